"""`doctor`: whether this store is safe to work on, and what is stuck in it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.exits import Exit
from tenure.cli.output import OutputOption, Shape, show, write_json
from tenure.cli.place import Place, command
from tenure.errors import StoreUnavailable, StoreUnsafe
from tenure.store import Diagnosable, Finding, Grade

if TYPE_CHECKING:
    from tenure.core.run import Facts
    from tenure.store import Store

TRIPS = 40
QUICK_TRIPS = 3


def register(app: typer.Typer, /) -> None:
    """Add the commands of this file."""
    command(app)(doctor)


async def doctor(
    place: Place,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Only whether the store answers and is safe.")] = False,
    output: OutputOption = Shape.TABLE,
) -> int:
    """Check the store and what is in it.

    Each problem names the line that fixes it; any problem is exit code 8, a store that does not answer 7.
    """
    store = place.store()
    findings: list[Finding] = []
    unsafe = Exit.UNSAFE
    try:
        async with store:
            findings += await of_store(store, ttl_ms=round(place.ttl_s * 1000), trips=QUICK_TRIPS if quick else TRIPS)
            if not quick:
                from tenure.cli.census import of_runs

                findings += await of_runs(store)
    except (StoreUnsafe, StoreUnavailable) as error:
        text, _, fix = error.message.partition("; ")  # these say what is wrong; then what to do
        findings.append(_problem("store", text, fix or "see docs/errors.md"))
        unsafe = Exit.UNREACHABLE if isinstance(error, StoreUnavailable) else Exit.UNSAFE
    _write(store, findings, output)
    return unsafe if any(one.level is Grade.PROBLEM for one in findings) else Exit.OK


def _write(store: Store, findings: list[Finding], output: Shape) -> None:
    from tenure.views import findings as view
    from tenure.views.values import finding_value

    if output is Shape.TABLE:
        show(*view.lines(findings, url=store.url, namespace=store.namespace))
    elif output is Shape.JSONL:
        for one in findings:
            write_json(finding_value(one), output)
    else:
        counts = Counter(one.level for one in findings)
        write_json(
            {
                "store": store.url,
                "namespace": store.namespace,
                "problems": counts[Grade.PROBLEM],
                "warnings": counts[Grade.WARNING],
                "findings": [finding_value(one) for one in findings],
            }
        )


def _ok(name: str, text: str) -> Finding:
    return Finding(name=name, level=Grade.OK, text=text)


def _warning(name: str, text: str, fix: str) -> Finding:
    return Finding(name=name, level=Grade.WARNING, text=text, fix=fix)


def _problem(name: str, text: str, fix: str) -> Finding:
    return Finding(name=name, level=Grade.PROBLEM, text=text, fix=fix)


async def of_store(store: Store, /, *, ttl_ms: int, trips: int) -> list[Finding]:
    """Return what is to be known about an open store: how it is set, how quick it is, what time it has."""
    import time

    from tenure.core.run import SCHEMA, Grant, Renew

    own = await store.diagnose() if isinstance(store, Diagnosable) else []
    level = [] if any(one.name == "level" for one in own) else [of_level(store)]
    took_ms: list[float] = []
    offsets_ms: list[float] = []
    facts = await store.facts()
    # What a heartbeat asks, of a run that is not there: it takes the way of every write, is refused, leaves no trace.
    nobody = Renew(grant=Grant(run="_doctor", token=1, nonce="", epoch="", ttl_ms=ttl_ms))
    for _ in range(trips):
        begun = time.perf_counter()
        await store.commit(nobody)
        took_ms.append((time.perf_counter() - begun) * 1000)
        begun, wall_ms = time.perf_counter(), time.time() * 1000
        facts = await store.facts()
        half_ms = (time.perf_counter() - begun) * 500
        offsets_ms.append(facts.now_us / 1000 - (wall_ms + half_ms))
    return [
        *own,
        *level,
        _ok("schema", f"records up to schema {SCHEMA} can be read"),
        of_round_trips(took_ms, ttl_ms=ttl_ms),
        of_clock(sorted(offsets_ms)[len(offsets_ms) // 2]),
        *of_history(facts),
    ]


def of_level(store: Store, /) -> Finding:
    """Return what an acknowledged change survives here."""
    from tenure.store import Durability

    survives = {
        Durability.MEMORY: "nothing: what is stored ends with its process or server",
        Durability.LOCAL: "the death of a process, not a power loss or a failover",
        Durability.DISK: "a power loss",
        Durability.REPLICATED: "a failover",
        Durability.REPLICATED_DISK: "a power loss and a failover",
    }
    text = f"{store.level.value}: an acknowledged change survives {survives[store.level]}"
    if store.level is Durability.MEMORY:
        return _warning("level", text, "use sqlite:/// or a server that writes to disk")
    return _ok("level", text)


def of_round_trips(took_ms: list[float], /, *, ttl_ms: int) -> Finding:
    """Return how quick the store answers, measured against the time that a heartbeat waits (ttl/6)."""
    from tenure.views.figures import duration

    ordered = sorted(took_ms)
    p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    text = (
        f"p50 {p50:.1f} ms, p99 {p99:.1f} ms; a heartbeat waits {duration(ttl_ms // 6)} of a ttl of {duration(ttl_ms)}"
    )
    longer = f"set TENURE_TTL to {max(1, -(-round(p99 * 60) // 1000))} or more, or bring the store nearer"
    if p99 > ttl_ms / 6:
        return _problem("round trip", text, longer)
    if p99 > ttl_ms / 30:
        return _warning("round trip", text, longer)
    return _ok("round trip", text)


def of_clock(offset_ms: float, /) -> Finding:
    """Return how far the store's clock is from this machine's; leases do not depend on it, due times and logs do."""
    text = f"the store's is {abs(offset_ms):.0f} ms {'ahead of' if offset_ms >= 0 else 'behind'} this machine's"
    if abs(offset_ms) < 1_000:
        return _ok("clock", text)
    return _warning("clock", f"{text}; due times and logs will not match", "synchronise both machines by NTP")


def of_history(facts: Facts, /) -> list[Finding]:
    """Return which history the store is in, and since when."""
    from tenure.views.figures import ago, duration, instant

    since = f" since {instant(facts.since_ms)} ({ago(facts.since_ms, facts.now_ms)})" if facts.since_ms else ""
    text = f"epoch {facts.epoch or '(none: it has no other past)'}{since}"
    wait_ms = facts.since_ms + facts.max_ttl_ms - facts.now_ms
    if facts.lossy and wait_ms > 0:
        fix = f"wait {duration(wait_ms)}: until then only a holder that proves its lease goes on"
        return [_warning("history", f"{text}; it is new: unless the store is, acknowledged writes may be missing", fix)]
    return [_ok("history", text)]
