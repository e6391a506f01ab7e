"""What importing tenure and asking for its help cost, as multiples of importing pydantic.

    python bench/import_cost.py [PAIRS]

Medians over adjacent runs of the three commands, so that a machine that slows down slows all of them.
Exits 1 above a bar.
"""

import statistics
import subprocess
import sys
import time

BASE = ("-c", "import pydantic")
BARS = (
    ("import tenure", ("-c", "import tenure"), 2.0),
    ("tenure --help", ("-m", "tenure", "--help"), 3.5),
)
PAIRS = 21


def took_ms(arguments: tuple[str, ...]) -> float:
    """Wall time of one fresh interpreter, in milliseconds."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - begun) * 1000


def measure(pairs: int) -> bool:
    """Print one line a bar; whether all of them hold."""
    for arguments in (BASE, *(arguments for _, arguments, _ in BARS)):
        took_ms(arguments)  # writes bytecode and warms the file cache
    base_ms: list[float] = []
    ms: dict[str, list[float]] = {name: [] for name, _, _ in BARS}
    for _ in range(pairs):
        base_ms.append(took_ms(BASE))
        for name, arguments, _ in BARS:
            ms[name].append(took_ms(arguments))
    held = True
    for name, _, bar in BARS:
        ratio = statistics.median(cost / base for cost, base in zip(ms[name], base_ms, strict=True))
        held &= ratio < bar
        print(
            f"{name}: {ratio:.2f} x import pydantic (bar {bar}, {'held' if ratio < bar else 'MISSED'}); "
            f"medians {statistics.median(ms[name]):.0f} ms and {statistics.median(base_ms):.0f} ms of {pairs} pairs"
        )
    return held


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS
    if wanted < 15:
        sys.exit("fewer than 15 pairs say nothing; ask for 15 or more")
    sys.exit(not measure(wanted))
