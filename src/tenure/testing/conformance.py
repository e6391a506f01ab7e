"""What `tenure conformance` plays on a live deployment: the contract of a store, and a short chaos of real workers.

By itself: `pytest --pyargs tenure.testing.conformance --tenure-store URL`. Everything happens in namespaces of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import ClassVar

import anyio
import pytest

from tenure.store import Store
from tenure.stores._spelling import lower
from tenure.testing import contract
from tenure.testing._conformance_play import RUNS, Played, expected, play
from tenure.testing.inline import outside
from tenure.testing.plugin import TenurePlace
from tenure.testing.scratch import scratch_namespace

HISTORY_OF_ITS_OWN = ("memory:", "redis:", "rediss:", "valkey:", "valkeys:", "unix:")
"""Stores in which each namespace has a history of its own."""


class TestContract(contract.StoreContract):
    """The contract, with the deployment's own clock and nothing damaged."""

    sequences = 40
    least_landed = 1
    lacks: ClassVar = {
        "advance_ms": "the deployment's clock is the clock",
        "turn_history": "a live deployment is not failed over",
        "lose_index_entry": "a live deployment is not damaged",
        "break_record": "a live deployment is not damaged",
        "restart": "a live deployment is not restarted",
    }

    @pytest.fixture
    async def store(self, tenure_place: TenurePlace, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
        """Give the store in a namespace of the test's own."""
        self._url = tenure_place.url
        imports = request.function.__module__ == contract.ImportContract.__module__
        if imports and not self._url.startswith(HISTORY_OF_ITS_OWN):
            pytest.skip("an import turns the history of the whole store here, also for who works in it")
        async with tenure_place.open() as store:
            yield store

    def address(self, store: Store) -> str:
        """Return the URL, where another process finds the same store under it."""
        del store
        if self._url.startswith("memory:"):
            pytest.skip("it lives in one process")
        return self._url


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Played:
    """What came of the play, which takes place once for all of the tests."""
    url = lower(str(request.config.getoption("--tenure-store")))
    if url.startswith("memory:"):
        pytest.skip("it lives in one process, so nothing can be killed beside it")
    with scratch_namespace(url) as namespace:
        return outside(partial(anyio.run, play, url, namespace))


class TestChaos:
    """Three workers on twelve runs; one is killed, and one frozen until its runs have moved on."""

    def test_every_run_completes_with_its_result(self, played: Played) -> None:
        """All twelve, whoever had them."""
        assert [told.result for told in played.told] == [expected(number) for number in range(RUNS)]

    def test_every_journal_verifies(self, played: Played) -> None:
        """None was cut, edited or written by two at a time."""
        assert [told.run.id for told in played.told if not told.verifies] == []

    def test_no_step_that_had_landed_was_made_again(self, played: Played) -> None:
        """Only what was in flight at a death is repeated."""
        assert played.again() == []

    def test_tokens_only_rise(self, played: Played) -> None:
        """Each grant of a run is later than the one before."""
        for told in played.told:
            tokens = [line.token for line in told.run.grants]
            assert tokens == sorted(set(tokens))

    def test_what_the_killed_and_the_frozen_held_was_taken_over(self, played: Played) -> None:
        """Both had runs in hand, and others finished them."""
        attempts = {told.run.id: told.run.attempt for told in played.told}
        for pid in (played.killed, played.frozen):
            assert max(attempts[run] for run in played.held_by(pid)) > 1
