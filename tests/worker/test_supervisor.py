"""Real children, killed for real: what they held is taken over at once, and the service stops in order."""

import os
import signal
import subprocess
import sys
from typing import Any

import anyio
import pytest

from tenure import Ledger, Run, RunFailed, RunQuarantined, Status, open_store
from worker.fleet import Fleet, alive, asked, children, free_port, wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


class Seen:
    """The store as somebody outside sees it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    async def submit(self, kind: str, input: Any, *ids: str) -> None:
        for run_id in ids:
            await self.ledger.submit(kind, input, id=run_id)

    async def load(self, run_id: str) -> Run:
        return await self.ledger.load(run_id)


class opened:  # noqa: N801 - used like a function
    """Open the fleet's store from the test."""

    def __init__(self, workers: Fleet) -> None:
        self.store = open_store(workers.url, namespace=workers.namespace)

    async def __aenter__(self) -> Seen:
        await self.store.__aenter__()
        self.ledger = Ledger(self.store, owner="test")
        await self.ledger.__aenter__()
        return Seen(self.ledger)

    async def __aexit__(self, *exc: object) -> None:
        await self.ledger.__aexit__(None, None, None)
        await self.store.__aexit__(*exc)


async def noted(workers: Fleet, start: str, count: int = 1, *, seconds: float = 60) -> None:
    with anyio.fail_after(seconds):
        while len(workers.notes(start)) < count:  # noqa: ASYNC110 - another process writes them
            await anyio.sleep(0.005)


@pytest.mark.parametrize("workers", ["sqlite", "valkey", "postgres"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_i11_when_the_process_died_a_survivor_takes_over_at_once(workers: Fleet, number: signal.Signals) -> None:
    supervisor = workers.worker("--processes", "2")
    wait_until(lambda: len(children(supervisor.pid)) == 2)
    async with opened(workers) as seen:
        await seen.submit("hold", "go", "r")
        await noted(workers, "call r")
        first = workers.notes("call r")[0].pid
        os.kill(first, number)
        await noted(workers, "call r", 2)
        second = workers.notes("call r")[1].pid
        assert second != first
        workers.open_gate("go")
        assert await seen.ledger.handle("r").result(timeout=10) == "r"
        run = await seen.load("r")
        assert (run.attempt, run.crashes) == (2, 0)
        assert (run.grants[0].ended, run.grants[0].reason) == ("forfeit", f"signal {number.value} ({number.name})")
        # ttl is 30 s: nobody waited for the lease.
        assert run.grants[1].from_ms - run.grants[0].until_ms < 5000
        with anyio.fail_after(40):  # the row of the dead would stay for a minute
            while first in {row.pid for row in await seen.ledger.store.beats()}:  # noqa: ASYNC110 - the server tells
                await anyio.sleep(0.05)
    wait_until(lambda: len(children(supervisor.pid)) == 2)


async def test_b060_a_run_that_kills_every_worker_is_set_aside_after_three_deaths_and_hurts_no_other(
    workers: Fleet,
) -> None:
    workers.worker("--processes", "3", "--concurrency", "4")
    async with opened(workers) as seen:
        # Their steps are short: one that is alone in its process soon lands one, and goes on among others.
        await seen.submit("ticks", "go", *(f"r{n}" for n in range(6)))
        await noted(workers, "call", 6)
        await seen.submit("dies", "exit", "poison")
        with pytest.raises(RunQuarantined), anyio.fail_after(60):
            await seen.ledger.handle("poison").result()
        run = await seen.load("poison")
        assert [line.reason for line in run.grants] == ["exit status 137"] * 3
        assert len(workers.notes("call poison")) == 3
        workers.open_gate("go")
        for n in range(6):
            assert await seen.ledger.handle(f"r{n}").result(timeout=30) == f"r{n}"
            assert (await seen.load(f"r{n}")).attempt <= 2


async def test_i22_a_process_that_ends_well_but_not_on_order_has_died_under_its_runs(workers_on_file: Fleet) -> None:
    workers_on_file.worker("--processes", "1")
    async with opened(workers_on_file) as seen:
        await seen.submit("dies", "exit0", "poison")
        with pytest.raises(RunQuarantined), anyio.fail_after(30):
            await seen.ledger.handle("poison").result()
        run = await seen.load("poison")
        assert [line.ended for line in run.grants] == ["forfeit"] * 3
        assert len(workers_on_file.notes("call poison")) == 3


async def test_a_handler_that_calls_sys_exit_fails_its_own_run_and_ends_no_process(workers_on_file: Fleet) -> None:
    supervisor = workers_on_file.worker("--processes", "1")
    wait_until(lambda: len(children(supervisor.pid)) == 1)
    pids = children(supervisor.pid)
    async with opened(workers_on_file) as seen:
        for way in ("handler", "step", "thread", "task"):
            await seen.submit("quits", way, way)
            with pytest.raises(RunFailed) as failed, anyio.fail_after(20):
                await seen.ledger.handle(way).result()
            assert failed.value.failure == "HANDLER_FAILED"
            assert way == "task" or failed.value.detail == "Exited: sys.exit(0) was called"
            # It says nothing about the step, so nothing is recorded.
            assert [e["type"] async for _, e in seen.ledger.handle(way).events()] == [
                "run/start",
                "attempt/start",
                "run/end",
            ]
    assert children(supervisor.pid) == pids


async def test_i22_runs_that_shared_a_death_go_on_in_processes_of_their_own_and_a_spare_one_is_started_for_them(
    workers: Fleet,
) -> None:
    supervisor = workers.worker("--processes", "2", "--concurrency", "8")
    async with opened(workers) as seen:
        await seen.submit("hold", "go", *(f"r{n}" for n in range(5)))
        await noted(workers, "call", 5)
        pids = {note.pid for note in workers.notes("call")}
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        # Each waits for the file before its first step, so as many as there are processes are called again, each alone.
        await noted(workers, "call", 5 + 3)
        again = workers.notes("call")[5:]
        assert len({note.pid for note in again}) == len(again) == 3
        assert len(children(supervisor.pid)) == 3
        workers.open_gate("go")
        for n in range(5):
            assert await seen.ledger.handle(f"r{n}").result(timeout=30) == f"r{n}"
            run = await seen.load(f"r{n}")
            assert (run.attempt, run.crashes) == (2, 0)
    wait_until(lambda: len(children(supervisor.pid)) == 2)


async def test_what_is_left_of_a_dead_childs_process_group_is_killed(workers_on_file: Fleet) -> None:
    workers = workers_on_file
    workers.worker("--processes", "1")
    async with opened(workers) as seen:
        await seen.submit("spawns", None, "r")
        await noted(workers, "left")
        left = int(workers.notes("left")[0].what.split()[1])
        wait_until(lambda: not alive(left))


async def test_a_run_that_does_not_stop_is_forfeited_with_its_child_and_the_others_are_yielded(workers: Fleet) -> None:
    workers.worker("--processes", "1", "--concurrency", "4", ttl=2)
    async with opened(workers) as seen:
        await seen.submit("deaf", 30.0, "deaf")
        await seen.submit("gate", "go", "good")
        await noted(workers, "call deaf")
        await noted(workers, "wait good")
        # Its lease is ended from outside, and its thread goes on.
        await seen.ledger.evict("deaf", reason="test")
        await seen.ledger.cancel("deaf", reason="test")
        await noted(workers, "call good", 2)
        run = await seen.load("good")
        assert (run.grants[0].ended, run.attempt, run.crashes) == ("yield", 1, 0)
        assert "run deaf did not stop" in run.grants[0].reason
        workers.open_gate("go")
        assert await seen.ledger.handle("good").result(timeout=10) == "good"
    assert workers.notes("awake") == []


async def test_b080_sigterm_drains_the_step_in_hand_lands_and_nothing_waits_for_a_lease(workers: Fleet) -> None:
    port = free_port()
    process = workers.worker("--processes", "1", "--health", f"127.0.0.1:{port}")
    wait_until(lambda: asked(port, "/ready") == 200)
    assert asked(port, "/live") == 200
    assert asked(port, "/other") == 404
    async with opened(workers) as seen:
        await seen.submit("steps", {"count": 3, "seconds": 1}, "a", "b", "c")
        await noted(workers, "start", 3)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: asked(port, "/ready") in (503, 0), seconds=5)
        assert process.wait(10) == 0
        ended = anyio.current_time()
        for name in ("a", "b", "c"):
            run = await seen.load(name)
            assert (run.status, run.step, run.attempt, run.crashes, run.failures) == (Status.QUEUED, 1, 1, 0, 0)
        workers.worker("--processes", "1")
        await noted(workers, "start", 6)
        assert anyio.current_time() - ended < 28, "its ttl is 30 s, and a new worker has to start"
        for name in ("a", "b", "c"):
            assert await seen.ledger.handle(name).result(timeout=20) == 3
    # No step ran twice: the first of each was in hand at the signal, ended, and was recorded.
    assert len(workers.notes("start")) == len({note.what for note in workers.notes("start")}) == 9


async def test_a_second_signal_stops_at_once_and_hands_back(workers: Fleet) -> None:
    process = workers.worker("--processes", "1", "--drain", "60")
    async with opened(workers) as seen:
        await seen.submit("gate", "never", "r")
        await noted(workers, "wait r")
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: "SIGTERM" in workers.log())
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 0
        run = await seen.load("r")
        assert (run.status, run.crashes) == (Status.QUEUED, 0)


async def test_i23_a_signal_to_the_whole_group_is_obeyed_once_and_a_child_drains_when_its_supervisor_is_gone(
    workers: Fleet,
) -> None:
    process = workers.worker("--processes", "1", "--drain", "20")
    async with opened(workers) as seen:
        await seen.submit("steps", {"count": 2, "seconds": 1}, "r")
        await noted(workers, "start r 0")
        (child,) = children(process.pid)
        os.kill(child, signal.SIGTERM)
        os.kill(child, signal.SIGINT)
        process.kill()
        wait_until(lambda: not alive(child))
        run = await seen.load("r")
        assert (run.status, run.step, run.crashes) == (Status.QUEUED, 1, 0)
    assert [note.what for note in workers.notes("end")] == ["end r 0"]


async def test_i23_a_child_whose_supervisor_is_gone_ends_though_a_thread_of_it_goes_on(workers_on_file: Fleet) -> None:
    process = workers_on_file.worker("--processes", "1", "--drain", "0.2")
    async with opened(workers_on_file) as seen:
        await seen.submit("deaf", 60.0, "r")
        await noted(workers_on_file, "call r")
        (child,) = children(process.pid)
        process.kill()
        wait_until(lambda: not alive(child), seconds=15)
    assert workers_on_file.notes("awake") == []


async def test_a_frozen_child_is_killed_when_all_its_leases_are_over_and_its_runs_go_on_elsewhere(
    workers: Fleet,
) -> None:
    workers.worker("--processes", "2", ttl=2)
    async with opened(workers) as seen:
        await seen.submit("hold", "go", "r")
        await noted(workers, "call r")
        frozen = workers.notes("call r")[0].pid
        os.kill(frozen, signal.SIGSTOP)
        await noted(workers, "call r", 2, seconds=10)
        assert workers.notes("call r")[1].pid != frozen
        wait_until(lambda: not alive(frozen), seconds=10)
        workers.open_gate("go")
        assert await seen.ledger.handle("r").result(timeout=10) == "r"


async def test_a_child_that_was_frozen_with_its_supervisor_stops_its_run_and_goes_on(workers: Fleet) -> None:
    process = workers.worker("--processes", "1", ttl=2)
    async with opened(workers) as seen:
        await seen.submit("gate", "go", "r")
        await noted(workers, "wait r")
        (child,) = children(process.pid)
        for pid in (process.pid, child):
            os.kill(pid, signal.SIGSTOP)
        await anyio.sleep(4)
        for pid in (child, process.pid):
            os.kill(pid, signal.SIGCONT)
        await noted(workers, "wait r", 2, seconds=10)
        assert [note.pid for note in workers.notes("wait r")] == [child, child]
        workers.open_gate("go")
        assert await seen.ledger.handle("r").result(timeout=10) == "r"


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (["fleet_app:app", "--kinds", "nothing"], 2, "UNKNOWN_KIND: the app has no kind 'nothing'; it has"),
        (["fleet_app:app", "--kinds", "no spaces"], 2, "INVALID_ID"),
        (["fleet_app:nothing"], 2, "module fleet_app has no 'nothing'; name one that it has (its apps: fleet_app:app)"),
        (["fleet_app"], 2, "write module:app"),
        (["fleet_app.py:app"], 2, "write fleet_app:app"),
        (["gone:app"], 2, "there is no module 'gone'"),
        (["fleet_app:app", "--health", "nowhere"], 2, "write HOST:PORT"),
        (["fleet_app:app", "--store", "memory://x"], 2, "use --processes 0"),
        (["fleet_app:app", "--store", "redis://127.0.0.1:1"], 7, "STORE_UNAVAILABLE"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence_with_its_code(
    workers_on_file: Fleet, arguments: list[str], code: int, said: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tenure", "worker", *arguments],
        env={**workers_on_file.env, "TENURE_LOG": "error"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == code, ended.stderr
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_processes_0_works_in_this_process_and_drains_on_sigterm(workers_on_file: Fleet) -> None:
    workers, port = workers_on_file, free_port()
    process = workers.worker("--processes", "0", "--health", f"127.0.0.1:{port}")
    wait_until(lambda: asked(port, "/ready") == 200)
    assert asked(port, "/live") == 200
    async with opened(workers) as seen:
        await seen.submit("steps", {"count": 2, "seconds": 1}, "r")
        await noted(workers, "start r 0")
        assert children(process.pid) == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        run = await seen.load("r")
        assert (run.status, run.step) == (Status.QUEUED, 1)
