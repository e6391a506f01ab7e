"""Changes of many runs at once: half of them go ahead, so that server and client work at the same time."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import anyio
import pytest

from stores.postgres_kit import begun
from tenure.core.run import Renew
from tenure.store import Store
from tenure.stores import open_store
from tenure.stores._postgres_line import HALF
from tenure.testing.contract_case import grant_of, write


def watched(store: Any, seen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Note how many changes each statement carries."""
    speech = type(store._session._speech)
    call = speech.call

    def noted(self: Any, changes: Any, **how: Any) -> Any:
        seen.append(len(changes))
        return call(self, changes, **how)

    monkeypatch.setattr(speech, "call", noted)


async def together(store: Store, held: Sequence[Any]) -> None:
    """Let the store see that several ask at once."""
    await store.commit_many([Renew(grant=grant_of(run)) for run in held[:2]])


async def all_at_once(call: Callable[[Any], Coroutine[Any, Any, None]], held: Sequence[Any]) -> None:
    async with anyio.create_task_group() as tasks:
        for run in held:
            tasks.start_soon(call, run)


@pytest.mark.parametrize(
    "runs, batches", [(2 * HALF - 1, [2 * HALF - 1]), (2 * HALF, [HALF, HALF]), (4 * HALF, [2 * HALF, 2 * HALF])]
)
async def test_of_many_runs_that_ask_at_once_half_are_sent_and_the_rest_before_those_are_answered(
    postgres_url: str, namespace: str, runs: int, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(postgres_url, namespace=namespace) as store:
        held = [await begun(store, f"r{number:02d}") for number in range(runs)]
        await together(store, held)
        seen: list[Any] = []
        watched(store, seen, monkeypatch)

        async def step(run: Any) -> None:
            assert (await store.commit(write(grant_of(run), run, step=1))).ok
            seen.append("answered")

        await all_at_once(step, held)
        assert seen == [*batches, *["answered"] * runs]
        assert {(await store.load(run.id)).step for run in held} == {held[0].step + 1}  # type: ignore[union-attr]


async def test_what_one_caller_asks_for_together_is_one_statement_however_much_it_is(
    postgres_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(postgres_url, namespace=namespace) as store:
        held = [await begun(store, f"r{number:02d}") for number in range(4 * HALF)]
        sizes: list[int] = []
        watched(store, sizes, monkeypatch)
        answers = await store.commit_many([write(grant_of(run), run, step=1) for run in held])
        assert all(getattr(answer, "ok", False) for answer in answers)
        assert sizes == [4 * HALF]


async def test_renewals_are_one_statement_however_many_ask_at_once(
    postgres_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(postgres_url, namespace=namespace) as store:
        held = [await begun(store, f"r{number:02d}") for number in range(4 * HALF)]
        await together(store, held)
        sizes: list[int] = []
        watched(store, sizes, monkeypatch)

        async def renew(run: Any) -> None:
            assert (await store.commit(Renew(grant=grant_of(run)))).ok

        await all_at_once(renew, held)
        assert sizes == [4 * HALF]


async def test_who_asks_alone_does_not_wait_for_others_and_they_go_together(
    postgres_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(postgres_url, namespace=namespace) as store:
        held = [await begun(store, f"r{number:02d}") for number in range(4)]
        sizes: list[int] = []
        watched(store, sizes, monkeypatch)
        turns: list[int] = []

        async def renew(run: Any) -> None:
            assert (await store.commit(Renew(grant=grant_of(run)))).ok
            turns.append(len(sizes))

        await all_at_once(renew, held)
        assert (sizes, turns) == ([1, 3], [1, 2, 2, 2])
        await all_at_once(renew, held)
        assert sizes == [1, 3, 4]
