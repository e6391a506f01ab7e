"""How a worker ends when one of its own tasks has failed."""

from pathlib import Path

import anyio
import pytest

from tenure import Status, Worker
from tenure.core.run import Grant
from tenure.executing import NoReports
from worker.kit import counting, opened, until

pytestmark = pytest.mark.anyio


async def test_a_worker_one_of_whose_tasks_fails_ends_with_that_error_and_gives_its_runs_back(tmp_path: Path) -> None:
    class Broken(NoReports):
        def granted(self, grant: Grant, /) -> None:
            if grant.run == "second":
                message = "nobody can be told"
                raise OSError(message)

    async with opened(f"sqlite:///{tmp_path}/t.db") as ledger:
        with pytest.raises(ExceptionGroup) as raised:
            async with Worker(counting([], anyio.Event()), ledger, reports=Broken(), drain=0.1) as worker:
                await ledger.submit("k", None, id="first")
                await until(lambda: bool(worker.slots.executions))
                await ledger.submit("k", None, id="second")
                await worker.ended()
        assert raised.value.subgroup(OSError) is not None
        run = await ledger.load("first")
        assert (run.status, run.crashes) == (Status.QUEUED, 0)
