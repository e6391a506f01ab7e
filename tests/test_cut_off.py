"""What is cut off leaves nothing behind: no process, no folder."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tenure.testing._parent import dying_with_parent

ROOT = Path(__file__).parents[1]
PATIENCE_S = 90.0

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="its processes are looked for in /proc"),
]


@contextmanager
def _playing(room: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "TMPDIR": str(room)}
    command = dying_with_parent([sys.executable, *words])
    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder with a short name: sockets stand below it."""
    with tempfile.TemporaryDirectory(prefix="cut-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"]) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def _until(true: Callable[[], object], what: str) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until_s, what
        time.sleep(0.05)


def _left(room: Path) -> list[str]:
    """Return the processes whose temporary files stand there, and what stands there."""
    found = [str(path.relative_to(room)) for path in room.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={room}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it has ended, or is somebody else's
    return found


def _plays(room: Path) -> bool:
    # Not by rglob: it fails where a folder goes meanwhile.
    return any(names and Path(name).name.startswith("tenure-chaos-") for name, names, _ in os.walk(room))


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_session_of_tests_that_is_told_to_end_leaves_nothing_of_the_campaign_it_plays(
    room: Path, how: signal.Signals
) -> None:
    test = "tests/bars/test_chaos.py::test_i05_a_blocked_loop_or_a_held_interpreter_costs_the_lease_and_nothing_else"
    with _playing(room, "-m", "pytest", "-q", "-p", "no:cacheprovider", test) as session:
        _until(lambda: _plays(room), "the campaign plays")
        session.send_signal(how)
        said, _ = session.communicate(timeout=PATIENCE_S)
        assert session.returncode == pytest.ExitCode.INTERRUPTED, said
    _until(lambda: not _left(room), f"left: {_left(room)}")


@pytest.mark.slow
def test_a_session_of_tests_that_is_killed_leaves_no_process(room: Path) -> None:
    test = "tests/bars/test_chaos.py::test_i05_a_blocked_loop_or_a_held_interpreter_costs_the_lease_and_nothing_else"
    with _playing(room, "-m", "pytest", "-q", "-p", "no:cacheprovider", test) as session:
        _until(lambda: _plays(room), "the campaign plays")
        session.kill()
        session.wait(timeout=PATIENCE_S)
    _until(lambda: all(left.startswith("tenure-room-") for left in _left(room)), f"left: {_left(room)}")


@pytest.mark.slow
def test_a_campaign_lets_what_it_plays_come_to_its_end_and_breaks_it_off_when_told_twice(room: Path) -> None:
    program = ("-m", "tenure.testing.chaos", "--stores", "sqlite", "--kinds", "kill=200,power=10", "--processes", "2")
    with _playing(room, *program) as campaign:
        assert campaign.stdout is not None
        _until(lambda: _plays(room), "the campaign plays")
        campaign.send_signal(signal.SIGINT)
        assert any("comes to its end" in line for line in campaign.stdout)
        assert campaign.poll() is None
        campaign.send_signal(signal.SIGTERM)
        said, _ = campaign.communicate(timeout=PATIENCE_S)
        assert campaign.returncode == 130, said
        assert "violations (seed 1" in said
    _until(lambda: not _left(room), f"left: {_left(room)}")


@pytest.mark.slow
def test_a_simulated_campaign_that_is_stopped_keeps_what_it_judged(tmp_path: Path, room: Path) -> None:
    state = tmp_path / "state.jsonl"
    program = ("-m", "tenure.testing.sim", "--histories", "20000", "--processes", "1", "--state", str(state))
    with _playing(room, *program) as campaign:
        _until(lambda: state.exists() and len(state.read_text().splitlines()) > 1, "a part is judged")
        campaign.send_signal(signal.SIGTERM)
        said, _ = campaign.communicate(timeout=PATIENCE_S)
        assert campaign.returncode == 130, said
    judged = 25 * (len(state.read_text().splitlines()) - 1)
    assert f"{judged} of 20000 histories, 0 violations (seed 1)" in said
    _until(lambda: not _left(room), f"left: {_left(room)}")
