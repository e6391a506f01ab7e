"""Scenarios of kind L that are about workers: old ones before new records, and other shapes than the run's."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from stores.postgres_kit import rows_of
from tenure import Agent, App, CheckpointedAgent, Ledger, RunDeclined, Status, StoreTooNew, ToolCall, Worker, tool
from tenure.active import ActiveRun
from tenure.agent.runner import drive
from tenure.core.messages import assistant
from tenure.core.run import SCHEMA
from tenure.store import Store
from tenure.stores._redis_line import pack
from tenure.stores.postgres import PostgresStore
from tenure.stores.redis import RedisStore
from tenure.testing.models import ScriptedModel

pytestmark = pytest.mark.anyio


async def _write_schema(store: Store, run_id: str, schema: int, url: str) -> None:
    """Write the number as a newer version of this package would have."""
    if isinstance(store, RedisStore):
        await store._opened().asked(pack("HSET", store._keys.run(run_id), "schema", schema))
        return
    if isinstance(store, PostgresStore):
        where = "id = %s AND space = (SELECT number FROM tenure.space WHERE name = %s)"
        await rows_of(url, f"UPDATE tenure.run SET schema = %s WHERE {where}", schema, run_id, store.namespace)
        return
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute(
            "UPDATE run SET record = json_set(record, '$.schema', ?) WHERE id = ?", (str(schema), run_id)
        )


def _without_touch(raw: Mapping[str, str]) -> dict[str, str]:
    """The record but for the mark of a request that found nothing to do."""
    return {name: value for name, value in raw.items() if name != "touch"}


@pytest.mark.parametrize("store_url", ["sqlite", "valkey9", "postgres"], indirect=True)
async def test_b113_a_newer_record_is_declined_before_it_is_read_and_stays_for_a_newer_worker(
    store: Store, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, called = App(), list[str]()

    @app.kind("k")
    async def handler(run: ActiveRun[Any], _: Any) -> str:
        called.append(run.id)
        return run.id

    async with Ledger(store) as ledger:
        await ledger.submit("k", {"v": 1}, id="newer")
        await _write_schema(store, "newer", SCHEMA + 1, store_url)
        before = _without_touch(await store.raw("newer"))
        with pytest.raises(StoreTooNew, match=f"schema {SCHEMA + 1} and this version reads up to {SCHEMA}"):
            await ledger.load("newer")
        async with Worker(app, store, drain=1) as worker:
            other = await ledger.submit("k", None, id="other")
            assert await other.result(timeout=20) == "other"
            with anyio.fail_after(20):
                while "run newer is left to others" not in caplog.text:
                    worker.wake()
                    await anyio.sleep(0.02)
        assert called == ["other"]
        assert _without_touch(await store.raw("newer")) == before, "the repair pass leaves it alone as well"
        # A worker that reads it goes on.
        await _write_schema(store, "newer", 1, store_url)
        async with Worker(app, store, drain=1):
            assert await ledger.handle("newer").result(timeout=20) == "newer"


async def test_b116_another_shape_than_the_run_s_hands_it_back_and_says_which_call_it_lacks(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    @tool
    async def look(at: int) -> int:
        looked.append(at)
        return at

    async def ends_here(*_: Any) -> None:
        message = "the holder ends before its first call"
        raise RuntimeError(message)

    model = ScriptedModel([assistant("", ToolCall(id="c1", name="look", arguments={"at": 1})), "done"])
    agent = Agent(model, name="planner", tools=[look])
    await ledger.submit(agent, "go", id="r")
    with monkeypatch.context() as patched:
        patched.setattr("tenure.agent.calls.Calls.settle", ends_here)
        async with ledger.hold("r") as lease:
            with pytest.raises(RuntimeError, match="before its first call"):
                await drive(agent, lease)
            await lease.hand_back()
    with pytest.raises(RunDeclined, match=r"call c1 cannot be made here \(UnknownTool\)"):
        await CheckpointedAgent(Agent(ScriptedModel([]), name="planner"), ledger).recover("r")
    run = await ledger.load("r")
    assert (run.status, run.failures, looked) == (Status.QUEUED, 0, [])
    # It is due again in a while; who holds it then and has the tool goes on, and asks the model nothing again.
    assert run.due_ms is not None
    assert len(model.asked) == 1
