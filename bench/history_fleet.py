"""A fleet of worker processes on one store, what they write down, and the blows that fall on them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import anyio

from evidence import Place
from tenure.clock import SystemClock

TTL_S = 1.0
LOOK_S = 0.01
MOVED_S = 10.0
QUIET_S = 30.0
DRAIN_S = 15.0


class Kind(StrEnum):
    """What is done to a worker."""

    KILL = "kill"
    FREEZE = "freeze"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """What befalls the worker at a call of a run: while it stands there (`late_s` None), or so much later."""

    run: str
    name: str
    mark: str
    kind: Kind
    late_s: float | None

    def file(self, folder: Path) -> Path:
        """Return the file at which the call stands."""
        return folder / "marks" / f"{self.run}.{self.name.replace(':', '-')}.{self.mark}"


@dataclass(slots=True, kw_only=True)
class Member:
    """One worker process; `struck` while it is frozen and from when it is killed, so that one blow falls at a time."""

    name: str
    process: subprocess.Popen[bytes]
    struck: bool = False
    read: int = 0

    @property
    def alive(self) -> bool:
        """Return whether the process has not ended."""
        return self.process.poll() is None


@dataclass(slots=True, kw_only=True)
class Fleet:
    """`size` workers; who is killed is replaced, and at most all but two are frozen at a time."""

    place: Place
    namespace: str
    size: int
    folder: Path
    members: dict[str, Member] = field(default_factory=dict)
    lines: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    hurt: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Start one more worker."""
        name = f"w{len(self.members) + 1}"
        said = {"name": name, "store": self.place.url, "namespace": self.namespace}
        said |= {"folder": str(self.folder), "ttl": str(TTL_S)}
        command = [sys.executable, str(Path(__file__).with_name("history_worker.py"))]
        command += [word for key, value in said.items() for word in (f"--{key}", value)]
        with (self.folder / f"{name}.err").open("wb") as errors:
            # A session of its own: Ctrl-C is for the director, who ends them.
            process = subprocess.Popen(command, stdout=errors, stderr=errors, start_new_session=True)
        self.members[name] = Member(name=name, process=process)

    def read(self) -> None:
        """Take in what the workers have written since; a line that a kill has cut stays unread."""
        for member in self.members.values():
            path = self.folder / f"{member.name}.log"
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(member.read)
                whole = file.read().rpartition(b"\n")[0]
            member.read += len(whole) + bool(whole)
            for text in whole.splitlines():
                line = json.loads(text)
                self.lines[line["run"]].append(line)

    async def strike(self, blow: Blow, freezing: anyio.Semaphore) -> bool:
        """Wait until a worker stands at the blow's call, and let it fall; whether it hit who stood there."""
        async with freezing if blow.kind is Kind.FREEZE else contextlib.nullcontext():
            member = await self._standing(blow)
            if blow.late_s is not None:
                blow.file(self.folder).unlink()
                await anyio.sleep(blow.late_s)
                if member.struck:
                    return False
            member.struck = True
            struck_ns = SystemClock().boot_ns()
            if blow.kind is Kind.KILL:
                await self._kill(member)
            else:
                await self._freeze(member)
            blow.file(self.folder).unlink(missing_ok=True)
            if blow.kind is Kind.FREEZE:
                try:
                    await self._moved(blow.run, member, struck_ns)
                finally:
                    self._thaw(member)
        return True

    async def _standing(self, blow: Blow) -> Member:
        while True:
            # The last line of each worker: one that slept may write its farewell after another has come to stand there.
            last = {line["worker"]: line for line in self.lines[blow.run]}
            for worker, line in last.items():
                member = self.members[worker]
                if (line["what"], line.get("name")) == (blow.mark, blow.name) and not member.struck:
                    return member
            await anyio.sleep(LOOK_S)

    async def _kill(self, member: Member) -> None:
        member.process.kill()
        code = await anyio.to_thread.run_sync(member.process.wait)
        if code != -signal.SIGKILL:
            self.hurt.append(f"{member.name} was killed and ended with {code}")
        self.start()

    async def _freeze(self, member: Member) -> None:
        os.kill(member.process.pid, signal.SIGSTOP)
        stat = anyio.Path(f"/proc/{member.process.pid}/stat")
        while (await stat.read_text()).rpartition(")")[2].split()[0] != "T":  # noqa: ASYNC110 - it is told by a file
            await anyio.sleep(0.001)

    def _thaw(self, member: Member) -> None:
        if member.alive:
            os.kill(member.process.pid, signal.SIGCONT)
        member.struck = False

    async def _moved(self, run: str, member: Member, since_ns: int) -> None:
        """Return when the lease of a frozen worker is over, and its run has gone on without it or does not within 10 s.

        It does not where the worker sleeps inside a transaction of the file, for which everybody has to wait.
        """
        await anyio.sleep(TTL_S + 0.05)
        with anyio.move_on_after(MOVED_S):
            while not any(  # noqa: ASYNC110 - other processes tell by their files
                line["what"] in ("granted", "settled") and line["worker"] != member.name and line["at_ns"] > since_ns
                for line in self.lines[run]
            ):
                await anyio.sleep(LOOK_S)

    async def quiet(self, run: str) -> bool:
        """Wait until nothing goes on with a run: each worker that was granted it has left it, or is dead."""
        with anyio.move_on_after(QUIET_S):
            while True:
                left = {(line["worker"], line["token"]) for line in self.lines[run] if line["what"] == "left"}
                held = {(line["worker"], line["token"]) for line in self.lines[run] if line["what"] == "granted"}
                if all(not self.members[worker].alive for worker, _ in held - left):
                    self.read()
                    return True
                await anyio.sleep(LOOK_S)
        return False

    async def end(self) -> None:
        """Drain the workers; who does not end within 15 s, or ends badly, is told of."""
        living = [member for member in self.members.values() if member.alive]
        for member in living:
            member.process.terminate()
        for member in living:
            with anyio.move_on_after(DRAIN_S):
                code = await anyio.to_thread.run_sync(member.process.wait, abandon_on_cancel=True)
                # Who replaced a worker at the very end may not have come as far as to listen.
                ready = any(line["worker"] == member.name for line in self.lines[""])
                if code and (ready or code != -signal.SIGTERM):
                    errors = (self.folder / f"{member.name}.err").read_text(errors="replace")[-2000:]
                    self.hurt.append(f"{member.name} drained and ended with {code}: {errors}")
            if member.alive:
                self.hurt.append(f"{member.name} did not drain within {DRAIN_S:.0f} s")


@contextlib.asynccontextmanager
async def fleet(place: Place, namespace: str, drawn: random.Random) -> AsyncIterator[Fleet]:
    """Start three or four workers, and read what they write; none is left at the end."""
    folder = place.folder / namespace
    (folder / "marks").mkdir(parents=True)
    found = Fleet(place=place, namespace=namespace, size=drawn.choice((3, 4)), folder=folder)
    try:
        for _ in range(found.size):
            found.start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, found)
            yield found
            await found.end()
            tasks.cancel_scope.cancel()
    finally:
        for member in found.members.values():
            member.process.kill()
            member.process.wait()


async def _read(found: Fleet) -> None:
    while True:
        found.read()
        await anyio.sleep(LOOK_S)
