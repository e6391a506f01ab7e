"""`python -m examples.license_audit`: the program; exit 1 if a number does not hold."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio
from rich.console import Console

from examples.license_audit.agents import Settings
from examples.license_audit.audit import Audit, Plan, audit, undisturbed
from examples.license_audit.places import known
from examples.license_audit.report import lines, show
from tenure.errors import TenureError

CHAOS_TTL_S, TTL_S = 2.0, 30.0
CHAOS_THINK_MS = 200


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    given = _arguments(arguments)
    with tempfile.TemporaryDirectory(prefix="license-audit-") as folder:
        plan = _plan(given, Path(folder))
        try:
            done = anyio.run(audit, plan, print)
            twin = undisturbed(plan.dists, plan.folder) if plan.chaos is not None and not plan.settings.model else None
        except TenureError as error:
            print(f"{error.code}: {error.message}", file=sys.stderr)
            return 1
    if given.out:
        Path(given.out).write_bytes(done.report)
    console = Console()
    if console.is_terminal:
        show(done.findings, console)
    for line in lines(done.numbers):
        print(line)
    return verdict(done, plan, twin)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.license_audit", description=__doc__)
    parser.add_argument(
        "dists", nargs="*", metavar="DIST", help="ids like attrs-26.1.0; all installed ones and the broken"
    )
    parser.add_argument("--store", default="", help="URL of the store; a new SQLite file if not given")
    parser.add_argument("--workers", type=int, default=0, help="worker processes; 0: this process alone")
    parser.add_argument(
        "--calls", default="", metavar="DIR", help="where call logs are kept; a folder that is then deleted"
    )
    parser.add_argument("--out", default="", help="file of the report")
    parser.add_argument("--chaos", type=int, metavar="SEED", help="kill or freeze a worker, again and again")
    parser.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help="how often chaos strikes")
    parser.add_argument("--strikes", type=int, metavar="N", help="how many times; else until all runs have ended")
    parser.add_argument("--think", type=int, metavar="MS", help="how much longer the model takes for an answer")
    parser.add_argument("--ttl", type=float, metavar="SECONDS", help="how long a lease lasts")
    given = parser.parse_args(arguments)
    if given.chaos is not None and given.workers < 2:
        parser.error("--chaos takes at least --workers 2: somebody has to be left")
    if unknown := sorted(set(given.dists) - known().keys()):
        parser.error(f"not installed: {', '.join(unknown)}")
    return given


def _plan(given: argparse.Namespace, folder: Path) -> Plan:
    chaos = given.chaos is not None
    think_ms = given.think if given.think is not None else CHAOS_THINK_MS if chaos else 0
    return Plan(
        dists=tuple(given.dists or known()),
        url=given.store or f"sqlite:///{folder}/audit.db",
        folder=folder,
        workers=given.workers,
        chaos=given.chaos,
        every_s=given.every,
        strikes=given.strikes,
        calls=Path(given.calls).resolve() if given.calls else None,
        ttl_s=given.ttl or (CHAOS_TTL_S if chaos else TTL_S),
        settings=Settings(think_ms=think_ms, model=os.environ.get("TENURE_MODEL", "")),
    )


def verdict(done: Audit, plan: Plan, twin: bytes | None, /) -> int:
    """Print what does not hold and return the exit code; `twin` is the report of an undisturbed process."""
    numbers = done.numbers
    wrong = [
        f"{what}: {found} instead of {wanted}"
        for what, found, wanted in (
            ("completed runs", numbers.completed, numbers.runs),
            ("journals that verify", numbers.verified, numbers.runs),
            ("landed model answers sent again", numbers.answers_asked_again, 0),
            ("recorded tools run again", numbers.results_called_again, 0),
            ("landed calls that no log knows", numbers.unlogged if done.fresh else 0, 0),
        )
        if found != wanted
    ]
    if plan.chaos is not None:
        print(f"workers killed {done.kills}, frozen {done.freezes}; writes refused {done.refused}")
        if done.kills + done.freezes == 0:
            wrong.append("nothing was disturbed; raise --think")
    if twin is not None:
        same = twin == done.report
        print(f"the report has the bytes of an undisturbed process: {'yes' if same else 'no'}")
        if not same:
            wrong.append("the report differs from that of an undisturbed process")
    for line in wrong:
        print(f"does not hold: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
