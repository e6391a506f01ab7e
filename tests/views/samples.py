"""Six runs at one fixed instant: frozen, killed, suspended, poisoned, waiting, cancelled."""

from typing import Any

from tenure.core.run import Ask, GrantLine, Item, Outcome, Request, Run, Status
from tenure.store import Refused
from tenure.views.timeline import Chart, Landed, chart, lane

BEGIN_MS = 1_700_000_000_000
NOW_MS = BEGIN_MS + 6_100
TTL_MS = 1_000
RUNNING_ID = "0198c0de-7b1a-7c3d-9e2f-a1b2c3d4e5f6"


def grant(  # noqa: PLR0917 - a line of a table, column by column
    ordinal: int, token: int, owner: str, from_ms: int, until_ms: int = 0, /, ended: str = "", **more: Any
) -> GrantLine:
    """One line of a grant log, with times after the beginning."""
    return GrantLine(
        ordinal=ordinal,
        token=token,
        owner=owner,
        from_ms=BEGIN_MS + from_ms,
        until_ms=BEGIN_MS + until_ms if ended else 0,
        ended=ended,
        **more,
    )


def run(
    run_id: str, kind: str, status: Status, created_ms: int, updated_ms: int, *grants: GrantLine, **more: Any
) -> Run:
    """One record, with times after the beginning."""
    return Run(
        id=run_id,
        kind=kind,
        status=status,
        created_ms=BEGIN_MS + created_ms,
        updated_ms=BEGIN_MS + updated_ms,
        granted_ttl_ms=TTL_MS,
        grants=grants,
        input_digest="c0ffee" * 10 + "c0de",
        head="beef" * 16,
        **more,
    )


FROZEN = run(
    "run-1",
    "research",
    Status.COMPLETED,
    0,
    6_000,
    grant(1, 10, "carol", 100, 1_700, "expired", step=2),
    grant(2, 20, "alpha", 1_720, 6_000, "completed", step=7),
    attempt=2,
    step=7,
    last_seq=8,
    outcome=Outcome(result="ab" * 32),
)
KILLED = run(
    "run-2",
    "research",
    Status.COMPLETED,
    0,
    5_600,
    grant(1, 11, "bravo", 120, 1_600, "expired", step=2),
    grant(2, 21, "carol", 1_850, 5_600, "completed", step=6),
    attempt=2,
    step=6,
    last_seq=7,
)
RUNNING = run(
    RUNNING_ID,
    "a-kind-with-a-rather-long-name",
    Status.RUNNING,
    200,
    4_000,
    grant(1, 12, "alpha", 300, 900, "suspended", step=1),
    grant(2, 30, "bravo-with-a-long-name", 2_500, 2_900, "forfeit", step=2, reason="signal SIGKILL"),
    grant(3, 35, "carol", 2_920, 3_500, "queued", step=2),
    grant(4, 40, "alpha", 4_000),
    owner="alpha",
    token=40,
    nonce="the-nonce-is-nobodys-business",
    lease_until_ms=BEGIN_MS + 6_900,
    step=3,
    attempt=2,
    last_seq=7,
    requests={"deploy": Request(digest="d1" * 32, expires_ms=NOW_MS + 60_000), "budget": Request(digest="d2" * 32)},
    wants=("deploy",),
    tags={"team": "blue", "env": "prod"},
    parent="run-1",
)
POISONED = run(
    "run-4",
    "refund",
    Status.QUARANTINED,
    50,
    3_000,
    grant(1, 13, "alpha", 400, 800, "forfeit", reason="signal SIGSEGV"),
    grant(2, 31, "bravo", 900, 1_300, "forfeit", reason="signal SIGSEGV"),
    grant(3, 36, "carol", 2_400, 2_990, "forfeit", reason="exit status 137", by="supervisor"),
    crashes=3,
    failures=2,
    attempt=3,
)
WAITING = run("run-5", "refund", Status.QUEUED, 50, 60, due_ms=NOW_MS + 90_000)
CANCELLED = run(
    "run-6",
    "refund",
    Status.CANCELLED,
    50,
    2_000,
    grant(1, 14, "alpha", 500, 2_000, "cancel"),
    outcome=Outcome(code="cancelled", message="not needed", by="ada@host"),
)
RUNS = (FROZEN, KILLED, RUNNING, POISONED, WAITING, CANCELLED)

REFUSED = (
    Refused(run="run-1", owner="carol", token=10, what="commit", why="lost", current_token=20, at_ms=BEGIN_MS + 2_100),
)
ITEMS = (
    Item(seq=1, id="i-1", name="hint", ask=Ask.SIGNAL, digest="", body=b"", at_ms=BEGIN_MS + 400, consumed=True),
    Item(seq=2, id="i-2", name="hint", ask=Ask.SIGNAL, digest="", body=b'{"say":"go on"}', at_ms=BEGIN_MS + 4_500),
)
_LANDED = {
    "run-1": ((0, 0), (150, 10), (500, 10), (700, 10), (1_900, 20), (2_500, 20), (3_000, 20), (5_990, 20)),
    "run-2": ((0, 0), (170, 11), (580, 11), (2_000, 21), (2_600, 21), (3_700, 21), (5_600, 21)),
    RUNNING_ID: ((200, 0), (310, 12), (890, 12), (2_600, 30), (4_100, 40), (4_110, 40), (5_000, 40)),
    "run-4": ((50, 0),),
    "run-5": ((50, 0),),
    "run-6": ((50, 0), (700, 14)),
}


def landed(run_id: str) -> list[Landed]:
    """The commits of a run."""
    return [
        Landed(at_ms=BEGIN_MS + ms, token=token, seq=seq) for seq, (ms, token) in enumerate(_LANDED[run_id], start=1)
    ]


def whole_chart() -> Chart:
    """All six on one axis."""
    return chart([lane(one, landed=landed(one.id), refused=REFUSED, now_ms=NOW_MS) for one in RUNS])
