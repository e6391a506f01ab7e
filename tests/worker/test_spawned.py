"""Children as their supervisor sees them, once they are dead."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tenure import open_store
from tenure.core.run import LEADER_ID, How
from tenure.spawned import Spawned, spawn
from tenure.supervisor import Supervisor
from worker.kit import until

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="process groups and pidfds")]


async def dead_child(program: str) -> Spawned:
    child = spawn((sys.executable, "-c", program), {}, name="c", spare=False)
    lines: list[object] = []

    def on_lines() -> None:
        for line in child.read():
            child.take_in(line)
            lines.append(line)

    assert await child.died(on_lines) == "exit status 3"
    return child


async def test_i22_who_shared_a_death_is_forfeited_and_a_leader_is_not_blamed() -> None:
    child = await dead_child("raise SystemExit(3)")
    child.grants = {"r1": (7, "n1"), "r2": (8, "n2"), LEADER_ID: (9, "n3")}
    ends = child.ends("exit status 3", orderly=False)
    found = {end.run: (end.how, end.token, end.nonce) for end in ends}
    assert found == {
        "r1": (How.FORFEIT, 7, "n1"),
        "r2": (How.FORFEIT, 8, "n2"),
        LEADER_ID: (How.YIELD, 9, "n3"),
    }


async def test_i22_beside_the_run_that_a_child_was_killed_for_nobody_is_blamed() -> None:
    child = await dead_child("raise SystemExit(3)")
    child.grants = {"stuck": (7, "n1"), "beside": (8, "n2")}
    child.culprits = {"stuck"}
    assert {end.run: end.how for end in child.ends("signal 9", orderly=False)} == {
        "stuck": How.FORFEIT,
        "beside": How.YIELD,
    }


async def test_i22_an_orderly_end_blames_nobody() -> None:
    child = await dead_child("raise SystemExit(3)")
    child.grants = {"r1": (7, "n1")}
    assert [end.how for end in child.ends("exit status 0", orderly=True)] == [How.YIELD]


async def test_an_order_to_a_dead_child_is_not_written_to_what_has_its_descriptor_now() -> None:
    child = await dead_child("raise SystemExit(3)")
    # The lowest free numbers are the ones that were closed; they could as well be a file of the store.
    pipes = [os.pipe() for _ in range(3)]
    try:
        assert child.orders_fd in {fd for pipe in pipes for fd in pipe}
        child.order("look")
        for reader, _ in pipes:
            os.set_blocking(reader, False)
            with pytest.raises(BlockingIOError):
                os.read(reader, 100)
    finally:
        for fd in (fd for pipe in pipes for fd in pipe):
            os.close(fd)


async def test_a_dead_child_is_not_killed_again_for_its_number_may_be_anothers() -> None:
    child = await dead_child("raise SystemExit(3)")
    other = subprocess.Popen(["sleep", "60"], process_group=0)  # noqa: ASYNC220
    try:
        # As if the number of the process had been given out anew.
        child.process.pid = other.pid
        child.kill("nothing was heard of it")
        assert child.killed == ""
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.2)
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()


CHILD = """
import json, os, sys
orders, out = os.fdopen(int(sys.argv[1])), int(sys.argv[2])
def tell(**said):
    os.write(out, json.dumps(said).encode() + b"\\n")
first = json.loads(orders.readline())
tell(t="state", ready=True, loop_ms=0, heartbeat_ms=0)
if not first["spare"]:
    tell(t="crowded", run="r", token=1)
    for line in orders:
        what = json.loads(line)["t"]
        if what == "drain":
            break
        with open(first["notes"], "a") as notes:
            notes.write(what + "\\n")
tell(t="drained")
"""


async def test_when_a_spare_child_ends_the_others_look_for_what_it_was_not_there_to_take(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with open_store(f"sqlite:///{tmp_path}/s.db") as store, anyio.create_task_group() as tasks:
        command, settings = (sys.executable, "-c", CHILD), {"notes": str(notes)}
        supervisor = Supervisor(store, command, settings, processes=1, drain=1, ttl=30)
        tasks.start_soon(supervisor.run)
        await until(lambda: notes.exists() and "look" in notes.read_text(), seconds=20)
        os.kill(os.getpid(), signal.SIGTERM)


async def test_a_child_that_cannot_be_started_is_tried_again_and_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.supervisor.FIRST_PAUSE_S", 0.01)
    tried: list[int] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def starved(*args: Any, **options: Any) -> Spawned:
        # No gap among the descriptors, and one more to be had each time: each time another one is missing.
        filled = [os.open(os.devnull, os.O_RDONLY) for _ in range(50)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (filled[-1] + 1 + len(tried), hard))
        tried.append(1)
        try:
            return spawn(*args, **options)
        except OSError:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            left = os.dup(0)
            os.close(left)
            assert left == filled[-1] + 1
            raise
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in filled:
                os.close(fd)

    monkeypatch.setattr("tenure.supervisor.spawn", starved)
    async with open_store(f"sqlite:///{tmp_path}/s.db") as store, anyio.create_task_group() as tasks:
        command, settings = (sys.executable, "-c", CHILD), {"notes": str(tmp_path / "notes")}
        supervisor = Supervisor(store, command, settings, processes=1, drain=1, ttl=30)
        tasks.start_soon(supervisor.run)
        await until(lambda: any(child.begun for child in supervisor.children), seconds=20)
        os.kill(os.getpid(), signal.SIGTERM)
    assert len(tried) > 5
