"""Plant every fault (or those whose name holds a word), some at a time, and print which tests caught each.

Exits 1 if a fault was not caught or could not be planted: `cd tests && python -m faults.run [--record] [WORD]`; with
`--record` the table of all of them is put into docs/evidence.md.
"""

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from faults.planted import FAULTS
from faults.planting import POSTGRES, VALKEY, Fault, NotPlanted, attempt, caught, database, plant
from tenure.testing.campaigns import PAGE, running
from tenure.testing.servers import VALKEY9, PostgresServer, start_server

BEGIN, END = "<!-- planted faults -->", "<!-- end of planted faults -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What became of one fault."""

    fault: Fault
    found: bool
    took_s: float
    words: str


def try_one(fault: Fault, urls: dict[str, str]) -> Tried:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            url = urls.get(fault.server, "")
            url = database(url) if fault.server == POSTGRES else url
            code, words = attempt(plant(fault, Path(folder)), fault, url=url)
        except NotPlanted as reason:
            return Tried(fault=fault, found=False, took_s=0.0, words=str(reason))
    took_s = time.monotonic() - started
    return Tried(fault=fault, found=caught(code, words), took_s=took_s, words=words.splitlines()[-1].strip("= "))


def table(tried: list[Tried]) -> str:
    """Return the faults as a table of the evidence page."""
    rows = [
        f"| {one.fault.name} | {one.fault.file} | `{one.fault.caught}` | {one.took_s:.1f} |"
        for one in sorted(tried, key=lambda one: (one.fault.file, one.fault.name))
    ]
    head = f"{len(tried)} faults, each caught; {running()}."
    return "\n".join([BEGIN, head, "", "| Fault | File | Caught by | Seconds |", "|---|---|---|---|", *rows, END])


def record(tried: list[Tried]) -> None:
    """Put the table between its marks, in the place of the one before."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + table(tried) + rest.partition(END)[2], encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults.run", description=__doc__)
    parser.add_argument("--record", action="store_true", help="put the table into docs/evidence.md")
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args()
    chosen = [fault for fault in FAULTS if all(word in fault.name for word in asked.words)]
    with ExitStack() as opened:
        urls = {}
        if any(fault.server == VALKEY for fault in chosen):
            urls[VALKEY] = opened.enter_context(start_server(VALKEY9)).url
        if any(fault.server == POSTGRES for fault in chosen):
            urls[POSTGRES] = opened.enter_context(PostgresServer()).url
        pool = opened.enter_context(ThreadPoolExecutor(asked.side_by_side))
        tried = []
        for one in pool.map(lambda fault: try_one(fault, urls), chosen):
            tried.append(one)
            how = f"{one.took_s:.1f} s, {one.words}"
            print(
                f"{'caught' if one.found else 'MISSED':6}  {one.fault.name:45}  {one.fault.file:30}  {how}", flush=True
            )
    missed = sum(not one.found for one in tried)
    print(f"{len(chosen) - missed} of {len(chosen)} faults caught")
    if asked.record and not missed and not asked.words:
        record(tried)
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
