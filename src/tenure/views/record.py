"""The head of a run's sheet: the record in a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tenure.core.rules import TERMINAL
from tenure.core.run import Run, Status
from tenure.core.text import count
from tenure.views.figures import ago, clean, duration, instant
from tenure.views.tables import STATUS_STYLE, note_on
from tenure.views.values import left_ms

if TYPE_CHECKING:
    from rich.text import Text


def head(run: Run, /, *, now_ms: int, served: frozenset[str] | None) -> list[Text]:
    """Return the lines: what it is, who holds it, how far it is, what is to be known about it."""
    from rich.text import Text

    first = Text.assemble(
        (clean(run.kind), "bold"), " ", (run.id, "bold"), "   ", (run.status.value, STATUS_STYLE[run.status])
    )
    first.append(f"   attempt {run.attempt}")
    if run.ordinal:
        first.append(f"   grant #{run.ordinal}")
    if run.status is Status.RUNNING:
        left = left_ms(run, now_ms)
        shown = f"{duration(left)} left of {duration(run.granted_ttl_ms)}" if left else "its lease ran out"
        first.append(f"   owner {clean(run.owner)} ({shown})" if run.owner else "   nobody holds it")
    return [first, *(Text(f"  {line}") for line in _lines(run, now_ms, served))]


def _lines(run: Run, now_ms: int, served: frozenset[str] | None) -> Iterator[str]:
    created, updated = instant(run.created_ms), ago(run.updated_ms, now_ms)
    yield f"created   {created} ({ago(run.created_ms, now_ms)}), updated {updated}"
    # A failure that is not tried again ends the run and is its outcome: it is not among these.
    again = f", tried again after {count(run.failures, 'failure')}" if run.failures else ""
    yield (
        f"progress  {count(run.step, 'step')}, {count(run.last_seq, 'commit')}, "
        f"{count(run.crashes, 'crash')} since the last step{again}"
    )
    if run.tags:
        yield f"tags      {clean(', '.join(f'{name}={value}' for name, value in sorted(run.tags.items())))}"
    if run.parent:
        yield f"parent    {clean(run.parent)}"
    if run.code_version:
        yield f"version   {clean(run.code_version)}"
    if run.due_ms is not None and run.status not in TERMINAL and run.due_ms > now_ms:
        yield f"due       {instant(run.due_ms)} ({ago(run.due_ms, now_ms)})"
    if (outcome := run.outcome) is not None:
        by = f", by {outcome.by}" if outcome.by else ""
        said = ": ".join(filter(None, (outcome.code, outcome.message)))
        yield clean(f"outcome   {said or run.status.value}{by}")
        if outcome.result:
            yield f"result    sha256 {outcome.result}"
    note, _ = note_on(run, now_ms=now_ms, served=served)
    if note and run.status not in TERMINAL:
        yield clean(f"note      {note}")
    yield f"input     sha256 {run.input_digest}"
    yield f"journal   sha256 {run.head}"
