"""Cut the primary off from its replicas and sentinels while clients on both sides write, and count what was lost.

    python bench/sentinel_partition.py [--runs 20] [--level replicated] [--kind redis7,redis8,valkey9] [--record]

A primary with two replicas and three sentinels. Everybody but client A reaches the primary through a link that then
lets nothing pass and closes nothing; A goes on writing to it, B follows the sentinels and takes A's runs over when it
may. When the link is whole again and the former primary has become a replica, every commit that either was told of has
to be there. Exits 1 if one is not. At `--level local` nobody waits for replicas: then some are not, which shows what
was looked for.
"""

import argparse
import asyncio
import sys
from collections import Counter

from evidence import programs, record, versions
from tenure.testing.chaos.sentinel import Partition, parted
from tenure.testing.servers import REDIS_KINDS, ServerKind


def line_of(kind: ServerKind, found: Partition) -> str:
    """Return what was seen as one line."""
    c = found.counts
    gap = f"{found.first_s - found.cut_s:.1f} s" if found.first_s else "never"
    told_of = f"A {c['A before the cut']} before and {c['A after it']} after the cut, B {c['B after it']}"
    turned = f"A without an answer {c['A without an answer']}, turned away {c['A turned away']}"
    taken = f"B took over {c['taken over']}, its first after {gap}"
    return f"{kind.name}: acknowledged {len(found.acknowledged)} ({told_of}), lost {c['lost']}; {turned}; {taken}"


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--level", default="replicated", choices=("local", "replicated", "replicated-disk"))
    parser.add_argument("--kind", default=",".join(kind.name for kind in REDIS_KINDS))
    parser.add_argument("--record", action="store_true", help="append the outcome to docs/evidence.md")
    asked_for = parser.parse_args()
    kinds = [kind for kind in REDIS_KINDS if kind.name in asked_for.kind.split(",")]
    ran = versions(programs(kinds))
    print(ran)
    total, violations = Counter[str](), 0
    for number in range(asked_for.runs):
        kind = kinds[number % len(kinds)]
        found = asyncio.run(parted(kind, asked_for.level))
        print(line_of(kind, found), *found.wrong, sep="\n  VIOLATION ", flush=True)
        total["acknowledged"] += len(found.acknowledged)
        total["lost"] += found.counts["lost"]
        violations += len(found.wrong)
    summary = f"{total['acknowledged']} acknowledged commits at {asked_for.level}, {total['lost']} lost"
    print(f"{asked_for.runs} partitions, {summary}, {violations} violations")
    if asked_for.record:
        counts = f"{asked_for.runs} partitions; {summary}"
        record(bar="sentinel partition", seed=0, counts=counts, ran=ran, violations=violations)
    return violations > 0


if __name__ == "__main__":
    sys.exit(main())
