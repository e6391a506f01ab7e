"""Bytes to values and back: the stored form of records, rows and items, and typed values by pydantic.

Numbers of a record are decimal text, what has parts is canonical JSON. A record of a newer schema is refused by name
before any content is read; what cannot be read at all is CorruptRecord, never a record with holes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, get_args

from tenure.core import canonical
from tenure.core.run import SCHEMA, Ask, GrantLine, Item, Outcome, Request, Row, Run, Status
from tenure.errors import CorruptRecord, InvalidContent, StoreTooNew

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_TEXT = ("id", "kind", "code_version", "nonce", "epoch", "owner", "head", "parent", "input_digest")
_NUMBERS = (
    *("schema", "version", "attempt", "crashes", "failures", "token", "granted_ttl_ms", "lease_until_ms", "step"),
    *("last_seq", "base_seq", "inbox_seq", "priority", "touch", "created_ms", "updated_ms"),
)
_texts_of, _numbers_of = attrgetter(*_TEXT), attrgetter(*_NUMBERS)
_OPTIONAL = ("cancel_by_ms", "due_ms")
_BLANK = dict.fromkeys(sorted(Run.__dataclass_fields__), "")
_JSON = (dict, list, str, int, float, bool, type(None))


def pack_run(run: Run, /) -> dict[str, str]:
    """Return the record as text fields, in the order of their names; the empty text stands for None and for nothing."""
    # SQLite packs a record with every commit, and getting many attributes at once is half the work.
    fields = {**_BLANK, **dict(zip(_TEXT, _texts_of(run), strict=True))}
    fields.update(zip(_NUMBERS, map(str, _numbers_of(run)), strict=True))
    fields["cancel_by_ms"] = "" if run.cancel_by_ms is None else str(run.cancel_by_ms)
    fields["due_ms"] = "" if run.due_ms is None else str(run.due_ms)
    fields["status"], fields["outcome"] = run.status.value, pack_outcome(run.outcome)
    fields["requests"] = pack_requests(run.requests)
    fields["wants"] = pack_names(run.wants)
    fields["tags"] = _json(dict(run.tags)) if run.tags else ""
    fields["grants"] = "\n".join([pack_grant(line) for line in run.grants])
    return fields


def unpack_run(fields: Mapping[str, str], /) -> Run:
    """Return the record of text fields; StoreTooNew for a newer schema, CorruptRecord for what cannot be read."""
    run_id = fields.get("id", "")
    if (schema := _schema(fields)) > SCHEMA:
        message = f"run {run_id} has schema {schema} and this version reads up to {SCHEMA}; upgrade this worker"
        raise StoreTooNew(message, run_id=run_id)
    try:
        plain: dict[str, Any] = {name: fields[name] for name in _TEXT}
        plain.update({name: int(fields[name]) for name in _NUMBERS})
        plain.update({name: int(fields[name]) if fields[name] else None for name in _OPTIONAL})
        return Run(
            **plain,
            status=Status(fields["status"]),
            requests=unpack_requests(fields["requests"]),
            wants=unpack_names(fields["wants"]),
            tags=unpack_tags(fields["tags"]),
            outcome=unpack_outcome(fields["outcome"]),
            grants=unpack_grants(fields["grants"]),
        )
    except (KeyError, ValueError, TypeError, InvalidContent) as error:
        message = (
            f"the record of run {run_id} cannot be read ({type(error).__name__}: {error}); see `tenure show --raw`"
        )
        raise CorruptRecord(message, run_id=run_id) from None


def _schema(fields: Mapping[str, str]) -> int:
    text = fields.get("schema", "")
    if not text.isdecimal():
        message = f"the record of run {fields.get('id', '')} has no schema number; see `tenure show --raw`"
        raise CorruptRecord(message, run_id=fields.get("id"))
    return int(text)


@lru_cache(maxsize=1024)  # a line that has ended never changes, and the record is packed with each commit
def pack_grant(line: GrantLine, /) -> str:
    """Return one line of the grant log: a JSON array of texts, so that no script meets a number it would round."""
    parts = (line.ordinal, line.token, line.owner, line.from_ms, line.until_ms, line.ended, line.step)
    return _json([*(str(part) for part in parts), line.reason, line.by])


def unpack_grant(text: str, /) -> GrantLine:
    """Return the line of the grant log that `pack_grant` wrote."""
    # With one bracket it cannot be nested, and in a list of texts nothing else has to be refused.
    parts = json.loads(text) if text.count("[") == 1 and "{" not in text else canonical.decode(text.encode())
    ordinal, token, owner, from_ms, until_ms, ended, step, reason, by = parts
    return GrantLine(
        ordinal=int(ordinal),
        token=int(token),
        owner=owner,
        from_ms=int(from_ms),
        until_ms=int(until_ms),
        ended=ended,
        step=int(step),
        reason=reason,
        by=by,
    )


def unpack_grants(text: str, /) -> tuple[GrantLine, ...]:
    """Return the grant log: one line a grant."""
    return tuple([unpack_grant(line) for line in text.split("\n") if line])


def unpack_tags(text: str, /) -> Mapping[str, str]:
    """Return the tags of a record, of which the empty text says that there are none."""
    return {**canonical.decode(text.encode())} if text else {}  # TypeError for what is no object


def pack_requests(requests: Mapping[str, Request], /) -> str:
    """Return open requests as text: id to [digest, expiry as text or empty]."""
    if not requests:
        return ""
    shown = {k: [r.digest, "" if r.expires_ms is None else str(r.expires_ms)] for k, r in requests.items()}
    return _json(shown)


def unpack_requests(text: str, /) -> dict[str, Request]:
    """Return the requests that `pack_requests` wrote."""
    found = {**canonical.decode(text.encode())} if text else {}  # TypeError for what is no object
    return {k: Request(digest=digest, expires_ms=int(ms) if ms else None) for k, (digest, ms) in found.items()}


def pack_names(names: tuple[str, ...], /) -> str:
    """Return names as a JSON array, empty text for none."""
    return _json(list(names)) if names else ""


def unpack_names(text: str, /) -> tuple[str, ...]:
    """Return the names that `pack_names` wrote."""
    return tuple(canonical.decode(text.encode())) if text else ()


def pack_outcome(outcome: Outcome | None, /) -> str:
    """Return an outcome as a JSON array, empty text for none."""
    return "" if outcome is None else _json([outcome.code, outcome.message, outcome.result, outcome.by])


def unpack_outcome(text: str, /) -> Outcome | None:
    """Return the outcome that `pack_outcome` wrote."""
    if not text:
        return None
    code, message, result, by = canonical.decode(text.encode())
    return Outcome(code=code, message=message, result=result, by=by)


def pack_row(row: Row, at_ms: int, /) -> bytes:
    """Return the stored row: digest first, so that a script can compare it without parsing, then the body."""
    return f"{row.digest} {row.token} {row.grant or '-'} {at_ms}\n".encode() + row.body


def unpack_row(seq: int, data: bytes, /) -> Row:
    """Return the row that `pack_row` wrote; CorruptRecord for anything else."""
    head, _, body = data.partition(b"\n")
    try:
        digest, token, mark, at_ms = head.decode().split(" ")
        grant = "" if mark == "-" else mark
        return Row(seq=seq, token=int(token), grant=grant, digest=digest, at_ms=int(at_ms), body=body)
    except ValueError:
        message = f"commit {seq} has no readable head; `tenure show --raw` prints its bytes"
        raise CorruptRecord(message) from None


def pack_item(item: Item, /) -> bytes:
    """Return the stored inbox item: digest first, then its place, time, state, ask and name, then the body."""
    state = "consumed" if item.consumed else "new"
    head = f"{item.digest} {item.seq} {item.at_ms} {state} {item.ask.value} {item.name}\n"
    return head.encode() + (b"" if item.consumed else item.body)


def unpack_item(item_id: str, data: bytes, /) -> Item:
    """Return the item that `pack_item` wrote; CorruptRecord for anything else."""
    head, _, body = data.partition(b"\n")
    try:
        digest, seq, at_ms, state, ask, name = head.decode().split(" ", 5)
        return Item(
            seq=int(seq),
            id=item_id,
            name=name,
            ask=Ask(ask),
            digest=digest,
            body=body,
            at_ms=int(at_ms),
            consumed=state == "consumed",
        )
    except ValueError:
        message = f"inbox item {item_id!r} cannot be read; cancel the run or restore the store"
        raise CorruptRecord(message) from None


def _json(value: Any) -> str:
    return canonical.encode(value).decode()


def adapter(type_: Any, /) -> TypeAdapter[Any]:
    """Return the pydantic adapter of a type, built on first use."""
    try:
        return _kept_adapter(type_)
    except TypeError:  # a type whose annotations cannot be hashed, which is no fault of it
        return _kept_adapter.__wrapped__(type_)


@lru_cache(maxsize=1024)
def _kept_adapter(type_: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(type_)


def to_json_value(value: Any, type_: Any = Any, /) -> Any:
    """Return the JSON value of a typed value; InvalidContent if it has none.

    Fields are written by their own names: a model may read and write one under two other names.
    """
    if type_ is Any and type(value) in _JSON:
        return value
    from pydantic import ValidationError
    from pydantic_core import PydanticSerializationError

    try:
        if type_ is Any or type_ is None:
            dump = getattr(value, "model_dump", None)
            return dump(mode="json") if callable(dump) and not isinstance(value, type) else value
        checked = adapter(type_).validate_python(value)
        return adapter(type_).dump_python(checked, mode="json", by_alias=False)
    except (ValidationError, PydanticSerializationError) as error:
        what = f"the value does not fit its declared type {_shown(type_)}"
        raise _unfit(what, "return what is declared", error) from None
    except Exception as error:  # validators and serializers are anybody's code
        raise _unfit(f"the value cannot be written as {_shown(type_)}", "return what is declared", error) from error


def from_json_value(
    value: Any, type_: Any = Any, /, *, what: str = "the stored value", todo: str = "register a type that reads it"
) -> Any:
    """Return the typed value of a JSON value; InvalidContent, with what to do about it, if it does not fit."""
    if type_ is Any or type_ is None:
        return value
    from pydantic import ValidationError

    data = canonical.encode(value)
    try:
        # JSON mode: what a type writes (a date as text, a tuple as a list) it also reads back, under strict models too.
        return adapter(type_).validate_json(data, by_alias=True, by_name=True)
    except ValidationError as error:
        raise _unfit(f"{what} does not fit {_shown(type_)}", todo, error) from None
    except Exception as error:
        raise _unfit(f"{what} cannot be read as {_shown(type_)}", "correct the type", error) from error


def fits(value: Any, type_: Any = Any, /) -> bool:
    """Return whether a JSON value can be read as the type."""
    try:
        from_json_value(value, type_)
    except InvalidContent:
        return False
    return True


def round_trip(
    value: Any,
    type_: Any = Any,
    /,
    *,
    limit: int = canonical.MAX_COMMIT_BYTES,
    stored: Callable[[Any], Any] = lambda plain: plain,
) -> tuple[Any, Any]:
    """Return the JSON value of a typed value, and what is read from it; InvalidContent unless they say the same.

    `stored` makes the JSON value what it is stored as, if that is another one.
    """
    plain = stored(canonical.decode(canonical.encode(to_json_value(value, type_), limit=limit)))
    found = from_json_value(plain, type_)
    if found is not plain and to_json_value(found, type_) != plain:
        message = f"values of {_shown(type_)} are read back as other values than were written; name its fields apart"
        raise InvalidContent(message)
    return plain, found


def _unfit(what: str, todo: str, error: Exception) -> InvalidContent:
    """The error for what pydantic or the code of a type says; values stay out of it."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return InvalidContent(f"{what} ({type(error).__name__}); {todo}")
    found = errors(include_url=False, include_input=False, include_context=False)
    brief = "; ".join(str(problem.get("type")) for problem in found[:3])
    return InvalidContent(f"{what} ({brief}); {todo}", path=canonical.json_path(found[0]["loc"] if found else ()))


def _shown(type_: Any) -> str:
    return str(type_) if get_args(type_) else getattr(type_, "__name__", None) or str(type_)
