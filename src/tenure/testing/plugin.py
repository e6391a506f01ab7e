"""The pytest plugin: fixtures over a namespace of one's own, in the store that `--tenure-store URL` names.

Found by pytest where tenure is installed with the extra `testing`. It loads nothing until a fixture is asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tenure.clock import ManualClock
    from tenure.ledger import Ledger
    from tenure.store import Store
    from tenure.testing.boundary import BoundaryStore
    from tenure.testing.faults import FaultStore

DEFAULT_URL = "memory://"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--tenure-store`."""
    group = parser.getgroup("tenure", "tests of runs that survive their process")
    group.addoption(
        "--tenure-store",
        metavar="URL",
        default=DEFAULT_URL,
        help="the store of the tenure fixtures; each test has a namespace of its own there (default: memory://)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TenurePlace:
    """Where a test works: a store's URL, a namespace that nobody else uses, and the clock if the test has one."""

    url: str
    namespace: str
    clock: ManualClock | None

    def open(self) -> Store:
        """Return the store, not yet open: `async with place.open() as store:`, under any async plugin."""
        from tenure.stores import open_store

        return open_store(self.url, namespace=self.namespace, clock=self.clock)


@pytest.fixture
def tenure_url(pytestconfig: pytest.Config) -> str:
    """The URL of the store under test, as `--tenure-store` says; override it to name another."""
    return str(pytestconfig.getoption("--tenure-store"))


@pytest.fixture
def tenure_clock() -> ManualClock:
    """A clock that stands still until the test advances it; the store's clock, where it is asked for."""
    from tenure.clock import ManualClock

    return ManualClock()


@pytest.fixture
def tenure_place(request: pytest.FixtureRequest, tenure_url: str) -> Iterator[TenurePlace]:
    """A namespace of the test's own, gone when it ends."""
    from tenure.stores._spelling import lower
    from tenure.testing.scratch import scratch_namespace

    url = lower(tenure_url)
    clock: ManualClock | None = None
    if "tenure_clock" in request.fixturenames:
        if not takes_a_clock(url):
            pytest.skip("this store's clock is that of its server; open it with ?testing=on to advance it")
        clock = request.getfixturevalue("tenure_clock")
    with scratch_namespace(url) as namespace:
        yield TenurePlace(url=url, namespace=namespace, clock=clock)


def takes_a_clock(url: str, /) -> bool:
    """Return whether a store of this URL goes by a clock that it is given."""
    return url.startswith(("memory:", "sqlite:")) or "testing=on" in url


@pytest.fixture
async def tenure_store(tenure_place: TenurePlace, anyio_backend: Any) -> AsyncIterator[Store]:
    """An opened store in a namespace of the test's own."""
    del anyio_backend  # asked for so that anyio's plugin opens the store on the loop of the test
    async with tenure_place.open() as store:
        yield store


@pytest.fixture
async def tenure_ledger(tenure_store: Store) -> AsyncIterator[Ledger]:
    """A ledger on `tenure_store`."""
    from tenure.ledger import Ledger

    async with Ledger(tenure_store) as ledger:
        yield ledger


@pytest.fixture
def tenure_faults(tenure_store: Store) -> FaultStore:
    """`tenure_store`, going wrong on order: `tenure_faults.orders.append(Order(fault=Fault.REPLY_LOST))`."""
    from tenure.testing.faults import FaultStore

    return FaultStore(tenure_store)


@pytest.fixture
def tenure_fuse(tenure_store: Store) -> Callable[..., BoundaryStore]:
    """Stores that die at a boundary, made of `tenure_store`.

    `store = tenure_fuse(3, "after")` dies after the third change; put `with store.dies():` around what uses it.
    """
    from tenure.testing.boundary import Boundary, BoundaryStore, Side

    def fuse(at: int, side: str = "after", /, *, run_id: str = "") -> BoundaryStore:
        return BoundaryStore(tenure_store, Boundary(at=at, side=Side(side)), run_id=run_id)

    return fuse
