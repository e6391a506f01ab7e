"""What was told to whom in a history, and what is wrong with it: by itself, and held against the journal of its run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tenure.core.run import Commit, Row, Run
from tenure.core.verify import verify_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A grant, or a commit under one, that was said to have landed; when it was asked for and when it was heard of."""

    who: str
    run: str
    sent_s: float
    heard_s: float
    token: int
    commit: Commit | None = None


def out_of_order(grants: Sequence[Told], commits: Sequence[Told], /) -> list[str]:
    """Return what contradicts the order of tokens in what was told of one run.

    Of two that overlap nothing is known: one came after another where it was sent after that was heard of.
    """
    wrong = []
    for one in (*grants, *commits):
        before = [grant for grant in grants if grant.heard_s < one.sent_s]
        newest = max(before, key=lambda grant: grant.token, default=None)
        if newest is None:
            continue
        if one in grants and one.token <= newest.token:
            wrong.append(f"{one.who} was granted {one.token} after {newest.who} had {newest.token}")
        if one in commits and one.token < newest.token:
            wrong.append(f"{one.who} wrote under {one.token} after {newest.token} was granted")
    return wrong


def unsound(run: Run | None, rows: Sequence[Row], /) -> list[str]:
    """Return what is wrong with a journal by itself."""
    wrong = [] if run is not None and verify_run(run, rows).ok else ["its journal does not verify"]
    tokens = [row.token for row in rows]
    return wrong if tokens == sorted(tokens) else [*wrong, f"the tokens of its commits fall: {tokens}"]


def missing(rows: Sequence[Row], acknowledged: Iterable[tuple[int, str]], /) -> list[int]:
    """Return the seqs of acknowledged commits (seq, digest) that are not there."""
    stored = {row.seq: row.digest for row in rows}
    return [seq for seq, digest in acknowledged if stored.get(seq) != digest]


def gone(rows: Sequence[Row], commits: Iterable[Told], /) -> list[str]:
    """Return which commits that somebody was told of are not there."""
    told = [(one.commit.row.seq, one.commit.row.digest) for one in commits if one.commit is not None]
    return [f"commit {seq} was acknowledged and is not there" for seq in missing(rows, told)]
