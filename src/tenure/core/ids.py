"""The alphabets of ids: strict, so that every store, key, file name and cluster slot takes them as they are."""

from __future__ import annotations

import re

from tenure.core.text import shown
from tenure.errors import InvalidId

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\Z")
_LABEL = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,200}\Z")
_LINE = re.compile(r"[^\n\ud800-\udfff]{0,1000}\Z")


def run_id(value: object, /) -> str:
    """Return the one canonical spelling of a run id (UUIDs in lower case); InvalidId for anything else."""
    if type(value).__name__ == "UUID":
        value = str(value)
    if isinstance(value, str) and _RUN.match(value):
        return value.lower() if _UUID.match(value) else value
    message = (
        f"run id {shown(value)} is not of the form [A-Za-z0-9][A-Za-z0-9._-]{{0,127}}; ids that begin with _ are "
        "reserved; choose another id or leave it out"
    )
    raise InvalidId(message)


def kind_name(value: object, /) -> str:
    """Return a kind's name; InvalidId if it is not one."""
    if isinstance(value, str) and _KIND.match(value):
        return value
    message = f"kind name {shown(value)} is not of the form [A-Za-z0-9][A-Za-z0-9._-]{{0,63}}; rename the kind"
    raise InvalidId(message)


def namespace(value: object, /) -> str:
    """Return a namespace; InvalidId if it is not one."""
    if isinstance(value, str) and _NAMESPACE.match(value):
        return value
    message = f"namespace {shown(value)} is not of the form [a-z0-9][a-z0-9._-]{{0,63}}; choose another"
    raise InvalidId(message)


def label(value: object, what: str, /) -> str:
    """Return a label for people (owner, tag): 1 to 200 characters without control characters."""
    if isinstance(value, str) and _LABEL.match(value):
        return value
    form = "1 to 200 characters without control characters"
    message = f"{what} {shown(value)} must be {'' if isinstance(value, str) else 'text: '}{form}; choose another"
    raise InvalidId(message)


def version(value: object, /) -> str:
    """Return the version of somebody's code: a label, or empty for none."""
    return label(value, "code version") if value != "" else ""


def line(value: object, what: str, /) -> str:
    """Return a name of the inbox, which is stored in one line: at most 1000 characters, no line break."""
    if isinstance(value, str) and _LINE.match(value):
        return value
    message = f"{what} {shown(value)} must be at most 1000 characters without a line break; choose another"
    raise InvalidId(message)
