"""Kind J: behaviour of SQLite and PostgreSQL. (B101 is the contract by a pooler: TestB101PostgresThroughAPooler.)"""

import anyio
import pytest

from tenure import InvalidId, Ledger
from tenure.core import build
from tenure.core.run import Verdict
from tenure.core.verify import verify_run
from tenure.store import Store
from tenure.testing.contract_case import claim, grant_of, write


async def test_b100_twenty_tasks_that_share_a_store_each_see_their_own_run(store: Store) -> None:
    async def task(number: int) -> None:
        name = f"r{number}"
        assert (await store.commit(build.create(run=name, kind="k", value=number))).ok
        answer = await store.commit(claim(name, ttl_ms=600_000))
        assert answer.run is not None
        run, grant = answer.run, grant_of(answer.run)
        for step in range(5):
            assert (await store.commit(write(grant, run, f"{name} {step}" * 100, step=1))).verdict is Verdict.LANDED
            loaded = await store.load(name)
            assert loaded is not None
            run = loaded
            assert (run.id, run.step) == (name, step + 1)
            rows = await store.tail(name)
            assert verify_run(run, rows).ok
            assert all(name.encode() in row.body for row in rows[2:])

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(task, number)


async def test_b103_a_nul_character_is_kept_and_six_characters_stay_six(ledger: Ledger) -> None:
    value = {"nul": "a\x00b", "six": "\\u0000", "\x00": ["\x00"]}
    handle = await ledger.submit("k", value, id="r1")
    async with ledger.hold("r1") as lease:
        assert lease.state.input == value
        await lease.record("tool:1", value)
        await lease.checkpoint(value)
        said = [event["value"] async for _, event in lease.events() if event["type"] in ("record", "checkpoint")]
        assert said == [value, value]
        await lease.settle("completed", value)
    assert await handle.result(timeout=30) == value
    with pytest.raises(InvalidId):
        await ledger.submit("k", 1, id="r\x001")
