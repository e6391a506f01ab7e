"""All of one run on one sheet: what `show` gathers from the store and writes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from tenure.cli.census import served
from tenure.cli.evidence import Evidence, evidence
from tenure.cli.exits import Exit
from tenure.cli.output import Shape, hint, show, show_table_page, write, write_json
from tenure.core import canonical, journal
from tenure.core.run import Item, Row, Run, grant_mark
from tenure.core.text import count
from tenure.errors import CorruptRecord
from tenure.store import Refused, Store
from tenure.views import values

if TYPE_CHECKING:
    from rich.text import Text

PAGE = 100
REFUSED_LIMIT = 1_000


async def rows_of(store: Store, run_id: str, /) -> AsyncIterator[Row]:
    """Yield the commits of a run in order, read in pages."""
    after = 0
    while page := await store.tail(run_id, after=after, limit=PAGE):
        for row in page:
            yield row
        after = page[-1].seq


async def _result(store: Store, run: Run) -> bytes | None:
    """The bytes of the run's result, None where there is none that is what the record says."""
    digest = run.outcome.result if run.outcome is not None else ""
    data = await store.blob(run.id, digest) if digest else None
    return data if data is not None and canonical.digest(data) == digest else None


async def show_record(store: Store, run: Run, /, *, events: bool, output: Shape) -> None:
    """Write the record and what belongs to it."""
    facts = await store.facts()
    serves = served(await store.beats(), facts)
    refused = [line for line in await store.refused(limit=REFUSED_LIMIT) if line.run == run.id][::-1]
    inbox = await store.inbox(run.id)
    try:
        seen = await evidence(rows_of(store, run.id), run)
    except CorruptRecord as error:
        hint(f"tenure: {error.message}")
        seen = Evidence()
    result = await _result(store, run)
    if output is Shape.TABLE:
        _show_tables(run, now_ms=facts.now_ms, served=serves, seen=seen, refused=refused, inbox=inbox)
        if result is not None:
            write(f"result {result.decode(errors='backslashreplace')}\n")
        if events:
            await _show_events(store, run)
        return
    parts: dict[str, Any] = {
        "run": values.run_value(run, now_ms=facts.now_ms, served=serves),
        "grants": [values.grant_value(line, open_calls=seen.calls.get(line.token, ())) for line in run.grants],
        "refused": [values.refused_value(line) for line in refused],
        "inbox": [values.item_value(item) for item in inbox],
    }
    if seen.spent is not None:
        parts["used"] = seen.spent.to_json()
    if result is not None:
        parts["result"] = json.loads(result)
    if output is Shape.JSON:
        await _write_whole(parts, _events(store, run) if events else None)
    else:
        await _write_lines(parts, _events(store, run) if events else None)


async def _write_whole(parts: Mapping[str, Any], events: AsyncIterator[dict[str, Any]] | None) -> None:
    """One JSON object; events are written as they are read."""
    import json

    if events is None:
        write_json(parts)
        return
    body = ",\n".join(f"{json.dumps(name)}: {json.dumps(part, ensure_ascii=False)}" for name, part in parts.items())
    write("{\n" + body + ',\n"events": [')
    separator = "\n"
    async for event in events:
        write(separator + json.dumps(event, ensure_ascii=False))
        separator = ",\n"
    write("\n]}\n")


_LINE = {"run": "run", "grants": "grant", "refused": "refused", "inbox": "item", "used": "used"}


async def _write_lines(parts: Mapping[str, Any], events: AsyncIterator[dict[str, Any]] | None) -> None:
    """One line a part, each an object whose one key says what it is."""
    for name, part in parts.items():
        for one in part if isinstance(part, list) else [part]:
            write_json({_LINE[name]: one}, Shape.JSONL)
    if events is not None:
        async for event in events:
            write_json({"event": event}, Shape.JSONL)


async def _events(store: Store, run: Run) -> AsyncIterator[dict[str, Any]]:
    async for row in rows_of(store, run.id):
        for index, event in enumerate(journal.events_of(row)):
            yield values.event_value(row, index, event)


def _show_tables(
    run: Run,
    *,
    now_ms: int,
    served: frozenset[str],
    seen: Evidence,
    refused: list[Refused],
    inbox: list[Item],
) -> None:
    from tenure.core.rules import TERMINAL
    from tenure.views import tables
    from tenure.views.record import head

    ended = run.status in TERMINAL

    parts: list[str | Text | tables.Table] = [*head(run, now_ms=now_ms, served=served)]
    if seen.spent is not None:
        parts.append(f"used      {seen.words}")
    sections = (
        ("grants", tables.grants(run.grants, open_calls=seen.calls)),
        ("refused writes", tables.refused(refused, ordinals={line.token: line.ordinal for line in run.grants})),
        ("requests that nobody answered" if ended else "open requests", tables.requests(run, now_ms=now_ms)),
        ("inbox", tables.inbox(inbox, ended=ended)),
    )
    for title, table in sections:
        if table.rows:
            parts += ["", f"{title} ({len(table.rows)})", table]
    show(*parts)


async def _show_events(store: Store, run: Run) -> None:
    from tenure.views import tables

    show("", f"events ({count(run.last_seq, 'commit')})")
    widths: list[int] = []
    page: list[dict[str, Any]] = []

    def flush() -> None:
        table = tables.events(page)
        show_table_page(table, widths=widths, show_head=not widths)
        widths[:] = widths or tables.widths_of(table)
        page.clear()

    async for event in _events(store, run):
        page.append(event)
        if len(page) >= PAGE:
            flush()
    if page:
        flush()


async def show_raw(store: Store, run_id: str, output: Shape, /) -> int:
    """Write the stored fields and commits as they are, read or not; only the nonce shows as its mark."""
    fields = await store.raw(run_id)
    if not fields:
        from tenure.refusals import not_found

        raise not_found(run_id)
    if nonce := fields.get("nonce"):
        fields = {**fields, "nonce": f"(hidden, mark {grant_mark(nonce)})"}
    if output is Shape.TABLE:
        width = max(len(name) for name in fields)
        for name, value in sorted(fields.items()):
            write(f"{name:<{width}}  {_visible(value)}\n")
        write("\n")
    else:
        write_json({"record": dict(sorted(fields.items()))}, Shape.JSONL)
    code = Exit.OK
    async for row in _rows_unread(store, run_id):
        if isinstance(row, str):
            code = Exit.NOT_VERIFIED
            hint(f"tenure: {row}")
        elif output is Shape.TABLE:
            write(f"commit {row.seq} token {row.token} grant {row.grant or '-'} at {row.at_ms} digest {row.digest}\n")
            write(f"  {_visible(values.readable(row.body))}\n")
        else:
            write_json({"commit": values.row_value(row)}, Shape.JSONL)
    return code


def _visible(text: str) -> str:
    from tenure.views.figures import clean

    return clean(text)


async def _rows_unread(store: Store, run_id: str) -> AsyncIterator[Row | str]:
    """Yield commits, and in the place of one whose head cannot be read what is wrong with it."""
    after, size = 0, PAGE
    while True:
        try:
            page = await store.tail(run_id, after=after, limit=size)
        except CorruptRecord as error:
            if size == 1:
                yield error.message
                after += 1
            size = 1
            continue
        if not page:
            return
        for row in page:
            yield row
        after = page[-1].seq
