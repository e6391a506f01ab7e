"""Plant every fault (or those whose name holds a word), two at a time, and print which tests caught each.

Exits 1 if a fault was not caught or could not be planted: `cd tests && python -m faults.run [WORD]`.
"""

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from faults.planted import FAULTS
from faults.planting import POSTGRES, VALKEY, Fault, NotPlanted, caught, database, plant, run
from tenure.testing.servers import VALKEY9, PostgresServer, start_server


def try_one(fault: Fault, urls: dict[str, str]) -> tuple[Fault, bool, str]:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            url = urls.get(fault.by, "")
            url = database(url) if fault.by == POSTGRES else url
            code, words = run(plant(fault, Path(folder)), fault.by, fault.caught, url=url)
        except NotPlanted as reason:
            return fault, False, str(reason)
    return fault, caught(code, words), f"{time.monotonic() - started:.1f} s, {words.splitlines()[-1].strip('= ')}"


def main() -> int:
    chosen = [fault for fault in FAULTS if all(word in fault.name for word in sys.argv[1:])]
    with ExitStack() as opened:
        urls = {}
        if any(fault.by == VALKEY for fault in chosen):
            urls[VALKEY] = opened.enter_context(start_server(VALKEY9)).url
        if any(fault.by == POSTGRES for fault in chosen):
            urls[POSTGRES] = opened.enter_context(PostgresServer()).url
        pool = opened.enter_context(ThreadPoolExecutor(2))
        missed = 0
        for fault, found, how in pool.map(lambda fault: try_one(fault, urls), chosen):
            missed += not found
            print(f"{'caught' if found else 'MISSED':6}  {fault.name:45}  {fault.file:30}  {how}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} faults caught")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
