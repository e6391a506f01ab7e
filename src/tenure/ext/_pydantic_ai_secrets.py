"""Calls with arguments that redaction changes: marked in the recorded answer, and never made.

Neither way to make one is right: with the secret a successor cannot repeat it, without it something else is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ToolCallPart

from tenure.core import canonical
from tenure.errors import InvalidContent
from tenure.redaction import Redaction

MARK = "tenure_redacted"
WHY = "the arguments hold what looks like a secret, which is not stored; pass a name for it"


def marked(payload: Any, redaction: Redaction | None, /) -> Any:
    """Return the payload of a model request with those calls marked, and their arguments as they may be stored."""
    if redaction is None or not isinstance(payload, Mapping) or not isinstance(payload.get("parts"), list):
        return payload
    return {**payload, "parts": [_part(part, redaction) for part in payload["parts"]]}


def _part(part: Any, redaction: Redaction) -> Any:
    if not isinstance(part, Mapping) or part.get("part_kind") != "tool-call":
        return part
    arguments = _read(part.get("args"))
    if not redaction.changes(arguments):
        return part
    # As JSON and not as the text that a provider makes of it: fields are known by their names, and a text has none.
    details = {**(part.get("provider_details") or {}), MARK: True}
    return {**part, "args": redaction.value(arguments), "provider_details": details}


def _read(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return canonical.decode(arguments.encode())
    except (InvalidContent, UnicodeEncodeError):
        return arguments


def refuse(call: ToolCallPart, redaction: Redaction | None = None, /) -> None:
    """Raise ToolFailed, which tells the model why, for a call that was marked, or would be by this redaction."""
    if (call.provider_details or {}).get(MARK) or (redaction is not None and redaction.changes(_read(call.args))):
        raise ToolFailed(f"The call was not made: {WHY}.")
