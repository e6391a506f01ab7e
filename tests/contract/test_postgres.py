"""The PostgreSQL store keeps the contract: on a clock that the test moves, and on a server that is killed."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import ClassVar
from urllib.parse import quote

import psycopg
import pytest

from conftest import StartPostgres, skip_or_fail
from tenure.clock import ManualClock
from tenure.core import rules
from tenure.core.run import Answer, Found, Run, Verdict, Why
from tenure.store import Store
from tenure.stores import open_store
from tenure.testing._pooler import Pooler
from tenure.testing.contract import StoreContract
from tenure.testing.contract_case import claim, nonce, write
from tenure.testing.servers import PostgresServer, ServerMissing


class PostgresCase(StoreContract):
    """What both classes below can do: turn the history by the salt, as an import does, and damage what is stored."""

    url: str

    async def turn_history(self, store: Store) -> None:
        await self._change("UPDATE tenure.space SET salt = %s WHERE name = %s", nonce(), store.namespace)

    async def lose_index_entry(self, store: Store, run: Run) -> None:
        await self._damage(store, "entry_ms = NULL", run.id)

    async def break_record(self, store: Store, run_id: str) -> None:
        await self._damage(store, "tags = 'no JSON'", run_id)

    def address(self, store: Store) -> str:
        return self.url

    async def test_i01_i07_steps_of_many_runs_in_one_statement_are_each_decided_alone(self, store: Store) -> None:
        """They have a road of their own in `change_1`, on which those that land are written together."""
        begun = [await self.begin(store, f"r{number}") for number in range(7)]
        (lost, order, twice) = begun[4:]
        await self._damage(store, "crashes = 2", begun[0][1].id)
        steps = [write(grant, run, step=1) for grant, run in begun[:4]]
        added = write(begun[3][0], begun[3][1], step=0, failures=1)
        first = write(*twice, step=1)
        then = rules.applied(first, Found(run=twice[1]), await store.facts())
        assert then is not None
        second = write(twice[0], then, "more", step=1)
        absent = replace(begun[1][0], run="nobody")
        asked = [
            *(steps[0], steps[1], steps[2], added),
            *(write(replace(lost[0], nonce=nonce()), lost[1], step=1), write(absent, begun[1][1], step=1)),
            write(order[0], replace(order[1], head="f" * 64), step=1),
        ]
        answers = await store.commit_many(asked)
        whys = [answer.why if isinstance(answer, Answer) else answer for answer in answers]
        assert whys == [None, None, None, None, Why.LOST, Why.ABSENT, Why.SEQUENCE]
        again = [answer for answer in await store.commit_many(steps[:3]) if isinstance(answer, Answer)]
        assert [answer.verdict for answer in again] == [Verdict.ALREADY] * 3
        both = [answer for answer in await store.commit_many([first, second, first]) if isinstance(answer, Answer)]
        assert [answer.verdict for answer in both] == [Verdict.LANDED, Verdict.LANDED, Verdict.ALREADY]
        for (_, before), change in zip(begun[:4], [*steps[:3], added], strict=True):
            after = await store.load(before.id)
            assert after is not None
            assert (after.last_seq, after.head) == (before.last_seq + 1, change.row.digest)
            assert (after.version, after.crashes) == (before.version + 1, 0)
            (row,) = await store.tail(before.id, after=before.last_seq)
            assert (row.digest, row.body) == (change.row.digest, change.row.body)
        for _, before in (lost, order):
            assert await store.load(before.id) == before
            assert await store.tail(before.id, after=before.last_seq) == []

    async def _damage(self, store: Store, what: str, run_id: str) -> None:
        where = "id = %s AND space = (SELECT number FROM tenure.space WHERE name = %s)"
        await self._change(f"UPDATE tenure.run SET {what} WHERE {where}", run_id, store.namespace)

    async def _change(self, statement: str, *values: object) -> None:
        url = self.url.partition("?")[0]
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            assert (await connection.execute(statement.encode(), values)).rowcount == 1


class TestPostgres(PostgresCase):
    """On a clock that the test moves: so time-outs cost nothing, and the server's clock is shown below."""

    sequences = 60
    lacks: ClassVar = {"restart": "shown on a server of its own below"}

    @pytest.fixture
    async def store(self, postgres_url: str, namespace: str) -> AsyncIterator[Store]:
        self.url, self.clock = f"{postgres_url}?testing=on", ManualClock()
        async with open_store(self.url, namespace=namespace, clock=self.clock) as store:
            yield store

    async def advance_ms(self, ms: int) -> None:
        self.clock.advance(ms=ms)


@pytest.fixture(scope="session")
def pooler_url(postgres_url: str) -> Iterator[str]:
    try:
        with Pooler(postgres_url) as pooler:
            yield pooler.url
    except ServerMissing as missing:
        skip_or_fail(missing)


class TestB101PostgresThroughAPooler(PostgresCase):
    """B101: each transaction runs in another session, so nothing may be kept in one."""

    lacks: ClassVar = {
        "restart": "shown on a server of its own below",
        "advance_ms": "the server's clock is the clock",
    }
    # Too slow to be worth it: the functions are the same, and their sequences are played above and below.
    test_generated_sequences_are_answered_as_the_rules_answer = None  # type: ignore[assignment]

    @pytest.fixture
    async def store(self, pooler_url: str, postgres_url: str, namespace: str) -> AsyncIterator[Store]:
        self.url = f"{pooler_url}?direct={quote(postgres_url, safe='')}"
        async with open_store(self.url, namespace=namespace) as store:
            yield store


@pytest.fixture(scope="class")
def killable(start_postgres: StartPostgres) -> PostgresServer:
    return start_postgres(fsync="on", full_page_writes="on")


class TestPostgresThatFlushes(PostgresCase):
    """On the server's own clock, at the level `disk`, with crashes of the server."""

    sequences = 50
    least_landed = 2
    lacks: ClassVar = {"advance_ms": "the server's clock is the clock"}

    @pytest.fixture
    async def store(self, killable: PostgresServer, namespace: str) -> AsyncIterator[Store]:
        self.server, self.url = killable, killable.url
        async with open_store(self.url, namespace=namespace) as store:
            yield store

    async def restart(self, store: Store) -> Store:
        self.server.kill()
        self.server.start()
        return store

    async def test_i10_another_history_while_a_grace_runs_begins_it_anew(self, store: Store) -> None:
        await store.raise_ttl(60_000)
        await self.create(store)
        await self.turn_history(store)
        assert (first := await store.facts()).lossy
        self.server.restart()
        assert (await store.facts()).since_ms == first.since_ms, "a restart is no other history"
        await self.turn_history(store)
        await self.refuses(store, claim(), Why.GRACE)
        assert (await store.facts()).lossy
