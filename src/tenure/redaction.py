"""Redaction: what is hidden in content before it leaves the process. What is hashed is what is stored.

Content is redacted once, at the two places where bytes are made for a store: a change without a grant (`Ledger.ask`)
and what a holder appends (`Lease.write`). Who wrote a value goes on with what was stored, so that a first run and a
replay see the same. Names are never redacted, for they say what a thing is: one that would have to be is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from tenure.core import build, canonical, journal
from tenure.core.run import Ask, Change, Create, End, Outcome, Post
from tenure.errors import InvalidContent, NotAllowed

MARKER = "[redacted]"

FIELDS = (
    *("password", "passwd", "pwd", "passphrase", "secret", "token", "credential", "credentials"),
    *("authorization", "proxy_authorization", "cookie", "set_cookie", "apikey"),
    *("api_key", "access_key", "secret_key", "private_key", "signing_key", "encryption_key", "account_key"),
)
"""Names of fields whose values are hidden, also behind a prefix (`github_token`), in any spelling (`githubToken`)."""

NOT_SECRET = ("page_token", "next_token", "continuation_token", "sync_token", "skip_token", "cancellation_token")
"""Fields that are named like a secret and tell where a list goes on."""

_NAMED = r"(?:pass(?:word|wd|phrase)|secret|token|api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key)"

_PEM = r"[A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"

PATTERNS = (
    rf"(?s)-----BEGIN {_PEM}.*?(?:-----END {_PEM}|\Z)",
    # A header, whose scheme stays; the two forms in which a header or a setting stands in text.
    r"(?i)(?P<keep>\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token)\s+)?+)[^\s\"',]{6,}",
    r"(?i)(?P<keep>\bbearer\s+)(?=[^\s\"',]*\d)[A-Za-z0-9._~+/=-]{12,}",
    r"(?i)(?P<keep>\b(?:x-)?(?:api-key|auth-token)[\"']?\s*[:=]\s*[\"']?)[^\s\"',;]{6,}",
    rf"(?i)(?P<keep>\b[\w-]{{0,40}}{_NAMED}=[\"']?)[^\s\"',;&]{{6,}}",
    rf"(?i)(?P<keep>[\"'][\w-]{{0,40}}{_NAMED}[\"']\s*:\s*(?P<quote>[\"']))(?:\\.|(?!(?P=quote)).)+",
    r"(?P<keep>\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@]*:)[^\s/@]+(?=@)",
    r"\bgh[pousr]_[A-Za-z0-9]{20,}",
    r"\bgithub_pat_[A-Za-z0-9_]{20,}",
    r"\bglpat-[A-Za-z0-9_-]{20,}",
    r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b",
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    r"\bxapp-\d-[A-Za-z0-9-]{10,}",
    r"https://hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_-]+",
    r"\bsk-[A-Za-z0-9_-]{20,}",
    r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{10,}",
    r"\bAIza[A-Za-z0-9_-]{35}",
    r"\bya29\.[A-Za-z0-9_-]{20,}",
    r"\bhf_[A-Za-z0-9]{30,}",
    r"\bnpm_[A-Za-z0-9]{30,}",
    r"\bpypi-[A-Za-z0-9_-]{40,}",
    r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
)
"""What a secret looks like in any text; a group named `keep` stays before the marker."""

_STRUCTURE = frozenset(
    (
        *("type", "scope", "name", "names", "item", "ask", "request", "digest", "guard", "status", "code", "kind"),
        *("code_version", "parent", "owner", "held", "model", "output", "tools"),
    )
)
"""Fields of an event that say what it is."""
_CONTENT = frozenset({"input", "value"})
"""Fields of an event whose numbers are content too."""
_VERBATIM = frozenset({journal.REQUEST_OPENED})
"""Events that somebody decides on: bound to their digest, so all of it is stored or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """What to hide: texts that match `patterns`, values of `fields`, and what `functions` make of a JSON value.

    A function takes a whole value (an input, a result, a message's text) and returns it as it may be stored. It must
    leave what it returned as it is when it is given that again. What raises stops the write.
    """

    patterns: Sequence[str | re.Pattern[str]] = PATTERNS
    fields: Collection[str] = FIELDS
    functions: Sequence[Callable[[Any], Any]] = ()
    marker: str = MARKER

    def __post_init__(self) -> None:
        try:
            compiled = tuple(re.compile(pattern) for pattern in self.patterns)
        except (re.error, TypeError) as error:
            message = f"a redaction pattern is no regular expression ({error}); correct it"
            raise NotAllowed(message) from None
        if empty := next((found.pattern for found in compiled if found.search("")), None):
            message = f"a redaction pattern ({empty!r:.80}) finds a text of no length; let it match something"
            raise NotAllowed(message)
        if isinstance(self.fields, str) or not self.marker:
            message = "fields is a collection of names and marker a text that is not empty; correct them"
            raise NotAllowed(message)
        object.__setattr__(self, "patterns", compiled)
        object.__setattr__(self, "fields", frozenset(_plain(name) for name in self.fields))

    def text(self, text: str, /) -> str:
        """Return a text with what matches a pattern hidden."""
        found = text
        for pattern in cast("tuple[re.Pattern[str], ...]", self.patterns):
            # Only between markers: what is hidden is not hidden again, whatever a pattern matches.
            found = self.marker.join(pattern.sub(self._hidden, piece) for piece in found.split(self.marker))
        # Once more, until nothing changes: what stood against something that is hidden now stands alone.
        return found if found == text else self.text(found)

    def value(self, value: Any, /) -> Any:
        """Return a JSON value as it may be stored; InvalidContent if a function of the user fails."""
        for function in self.functions:
            try:
                value = function(value)
            except Exception as error:
                name = getattr(function, "__name__", "a redaction function")
                message = f"{name} raised {type(error).__name__}, and nothing is stored without it; correct it"
                raise InvalidContent(message) from error
        return self._walk(value)

    def changes(self, value: Any, /) -> bool:
        """Return whether redaction would change a JSON value: such content is not suspended on."""
        found = self.value(value)
        return found != value or canonical.encode(found) != canonical.encode(value)

    def verbatim(self, value: Any, what: str, /) -> None:
        """Raise InvalidContent if redaction would change what somebody is to decide on, or what names a thing."""
        if self.changes(value):
            message = f"{what} holds what redaction hides, and is stored as it is or not at all; pass a reference to it"
            raise InvalidContent(message)

    def name(self, text: str, what: str, /) -> None:
        """Raise InvalidContent for a name that would have to be hidden."""
        if self.text(text) != text:
            message = f"{what} holds what redaction hides, and a name is not redacted; choose one without a secret"
            raise InvalidContent(message)

    def names(self, names: Mapping[str, str], what: str, /) -> None:
        """Raise InvalidContent for names, or what they name, that would have to be hidden."""
        for name, text in names.items():
            self.name(f"{name}={text}", what)

    def event(self, data: bytes, /) -> bytes:
        """Return the canonical bytes of an event as they may be stored."""
        before = canonical.decode(data)
        type_ = str(before["type"])
        after = {key: self._field(type_, key, value) for key, value in before.items()}
        if after == before:
            return data
        if type_ in _VERBATIM:
            self.verbatim(before, "a request")
        return canonical.encode(after, limit=canonical.MAX_EVENT_BYTES, depth=canonical.RESTATED_DEPTH)

    def outcome(self, outcome: Outcome | None, /) -> Outcome | None:
        """Return an outcome as it may be stored."""
        if outcome is None:
            return None
        return replace(outcome, message=self.text(outcome.message), by=self.text(outcome.by))

    def change(self, change: Change, /) -> Change:
        """Return a change that needs no grant as it may be sent; its digests are those of what is stored."""
        match change:
            case Create(row=row) if row is not None:
                self.names({change.run: change.kind, **change.tags}, "a run's id, kind or tag")
                events = journal.events_of(row)
                stored = [self.event(canonical.encode(event, depth=canonical.RESTATED_DEPTH)) for event in events]
                first = canonical.decode(stored[0])
                effects = canonical.decode(row.body).get("effects", {})
                return replace(
                    change,
                    row=journal.row(change.run, 1, "", journal.body(stored, effects), None),
                    input_digest=journal.start_digest(first),
                )
            case Post():
                self.name(change.item, "an item's id")
                self.name(change.name, "a signal's name")
                value = canonical.decode(change.body)
                if change.ask is Ask.DECIDE and isinstance(value, Mapping) and "arguments" in value:
                    self.verbatim(value["arguments"], "what was decided to run")
                return build.post(
                    run=change.run,
                    item=change.item,
                    name=change.name,
                    ask=change.ask,
                    value=self.value(value),
                    request=change.request,
                    grace_ms=change.grace_ms,
                )
            case End():
                return replace(change, reason=self.text(change.reason), by=self.text(change.by))
            case _:
                return change

    def _field(self, type_: str, key: str, value: Any) -> Any:
        if key == "media":
            return value  # texts in it were redacted when it was taken apart; an image is no text
        if key not in _STRUCTURE:
            counts = isinstance(value, int | float) and key not in _CONTENT
            return value if counts else self.value(value)
        if isinstance(value, str):
            self.name(value, f"{key} of an event {type_}")
        return value

    def _walk(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case {"role": _, "parts": list(parts), "schema": _} if len(value) == 3:
                return {**value, "parts": [self._part(part) for part in parts]}
            case dict():
                return self._object(value)
            case list() | tuple():
                return [self._walk(item) for item in value]
            case _:
                return value

    def _part(self, part: Any) -> Any:
        """A part of a message: what it is and for whom stays, whatever fields are to be hidden."""
        if not isinstance(part, dict):
            return self._walk(part)
        content = {"text", "arguments", "content"} & part.keys()
        if part.get("type") == "provider":
            content = set()  # signed by who made it: another text would be no text to it
        return {**part, **{key: self.value(part[key]) for key in content}}

    def _object(self, value: dict[Any, Any]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, item in [*value.items()]:  # as it was at one moment: another thread may be changing it
            shown = key
            if isinstance(key, str) and (hidden := self.text(key)) != key:
                shown, n = hidden, 1
                while shown in found or shown in value:
                    shown, n = f"{hidden} {n + 1}", n + 1
            found[shown] = self._hide(item) if isinstance(key, str) and self._secret(key) else self._walk(item)
        return found

    def _secret(self, key: str) -> bool:
        name = _plain(key)
        if any(name.endswith(other) for other in NOT_SECRET):
            return False
        words = name.split("_")
        return any("_".join(words[at:]) in self.fields for at in range(len(words)))

    def _hide(self, value: Any) -> Any:
        """Every text and number of a value hidden; what says yes, no or nothing stays."""
        match value:
            case None | bool() | "":
                return value
            case dict():
                return {key: self._hide(item) for key, item in value.items()}
            case list() | tuple():
                return [self._hide(item) for item in value]
            case _:
                return self.marker

    def _hidden(self, found: re.Match[str]) -> str:
        kept = found.groupdict().get("keep") or ""
        return kept + self.marker


def redaction_of(given: Any, /) -> Redaction | None:
    """Return what `redact=` means: True is the defaults, None and False nothing; NotAllowed for anything else."""
    if given is None or isinstance(given, bool):
        return Redaction() if given else None
    if isinstance(given, Redaction):
        return given
    message = f"redact= takes True or a Redaction, not {type(given).__name__}; pass one of them"
    raise NotAllowed(message)


def changes(redaction: Redaction | None, value: Any, /) -> bool:
    """Return whether a redaction, if there is one, would change a JSON value."""
    return redaction is not None and redaction.changes(value)


def _plain(name: str) -> str:
    """A field's name in one spelling: `apiKey`, `API-Key` and `api_key` are one."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")
