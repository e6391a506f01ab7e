"""One child as its supervisor sees it, once it is dead."""

import os
import signal
import subprocess
import sys

import pytest

from tenure.spawned import Spawned, spawn

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
