"""What is held against a run of real processes: its journal, its calls, and every answer that anybody was told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tenure.core.run import Commit, Row, Run
from tenure.testing.linear import Undecided, linearizable
from tenure.testing.register import START, Asked, op_of, step, told


def of_answers(rows: Sequence[Row], asked: Sequence[Asked], counts: Counter[str]) -> Iterator[str]:
    """I7, I9: what was acknowledged is in the journal, and some order of the calls on one run explains every answer."""
    there = {row.digest for row in rows}
    for one in asked:
        if isinstance(one.change, Commit) and one.answer is not None and one.answer.ok:
            counts["acknowledged commits"] += 1
            if one.change.row.digest not in there:
                yield f"I9 commit {one.change.row.seq} was acknowledged to {one.process} and is not in the journal"
    counts["calls"] += len(asked)
    counts["calls without an answer"] += sum(one.answer is None for one in asked)
    try:
        if not linearizable([op_of(one) for one in asked if told(one)], START, step):
            yield "I7 no order of its calls explains their answers"
        counts["linearizable"] += 1
    except Undecided:
        counts["undecided"] += 1


def of_grants(run: Run, rows: Sequence[Row]) -> Iterator[str]:
    """I1, I2: tokens rise from grant to grant and from row to row, and none was written under once the next was."""
    tokens = [line.token for line in run.grants]
    if tokens != sorted(set(tokens)):
        yield f"I2 the tokens of its grants do not rise: {tokens}"
    written = [row.token for row in rows]
    if written != sorted(written):
        yield f"I1 a row stands behind those of a later grant: {written}"
    for mine, after in pairwise(run.grants):
        late = [row.seq for row in rows if row.token == mine.token and row.at_ms > after.from_ms]
        if late:
            yield f"I1 commits {late} landed under #{mine.ordinal} when #{after.ordinal} had been granted"


def of_stale(lines: Sequence[Mapping[str, Any]], counts: Counter[str]) -> Iterator[str]:
    """I1: who wrote under a grant that was over was refused."""
    for line in lines:
        if line["what"] == "stale":
            counts["stale writes refused"] += not line["landed"]
            if line["landed"]:
                yield f"I1 process {line['pid']} wrote under a grant that was over, and it landed"
