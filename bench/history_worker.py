"""One worker process of the histories: it works until SIGTERM, is killed, or is frozen and thawed.

It writes down what it was told, in a file outside the store: each grant, each call, each result whose commit it was
told had landed. When it has lost a lease it writes all the same, as a program without a deadline of its own would.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import random
import secrets
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio

from history_verdict import CALLS, results_of
from tenure import ActiveRun, Agent, App, Run, Store, Worker, open_store
from tenure.agent.model import ModelRequest
from tenure.agent.tool import ToolContext, tool
from tenure.clock import SystemClock
from tenure.core import build, journal
from tenure.core.messages import AssistantMessage, ToolCall, assistant
from tenure.core.run import Answer, Change, Commit
from tenure.errors import TenureError
from tenure.lease import Lease
from tenure.testing.models import CallLog, FunctionModel

MANY = 1000  # deaths that fall upon each other's runs must not set one aside here


class Book:
    """The call log of this worker, and the marks at which its calls stand still."""

    def __init__(self, folder: Path, worker: str) -> None:
        self._log = CallLog(folder / f"{worker}.log")
        self._marks = folder / "marks"
        self._worker = worker
        self._clock = SystemClock()

    def write(self, what: str, run: str, **said: Any) -> None:
        """Append one line."""
        self._log.write(what, worker=self._worker, run=run, at_ns=self._clock.boot_ns(), **said)

    async def call(self, run: str, name: str, attempt: int) -> str:
        """Make one call: write that it begins and that it is done; stand at a mark for as long as it is there."""
        number = secrets.token_hex(6)
        for what in ("called", "returned"):
            self.write(what, run, name=name, number=number, attempt=attempt)
            while (self._marks / f"{run}.{name.replace(':', '-')}.{what}").exists():  # noqa: ASYNC110 - a file
                await anyio.sleep(0.01)
            await anyio.sleep(random.uniform(0, 0.02))
        return number


class Telling:
    """A store that writes down what its commits came to, once it has been told."""

    def __init__(self, store: Store, book: Book) -> None:
        self._store = store
        self._book = book

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, change: Change, /) -> Answer:
        """Commit, then write down what was told."""
        answer = await self._store.commit(change)
        self._tell(change, answer)
        return answer

    async def commit_many(self, changes: Sequence[Change], /) -> list[Answer | TenureError]:
        """Commit, then write down what was told of each."""
        answers = await self._store.commit_many(changes)
        for change, answer in zip(changes, answers, strict=True):
            if isinstance(answer, Answer):
                self._tell(change, answer)
        return answers

    def _tell(self, change: Change, answer: Answer) -> None:
        if not isinstance(change, Commit):
            return
        if not answer.ok:
            self._book.write("refused", change.run, why=answer.why, token=change.grant.token)
            return
        for name, sha in results_of(change.row).items():
            self._book.write("landed", change.run, name=name, sha=sha, token=change.grant.token, seq=change.row.seq)


def app_of(store: Store, book: Book) -> App:
    """Return the app: a handler of steps, and an agent."""
    app = App(version="histories")

    async def held(run: ActiveRun[Any], work: Any) -> Any:
        lease = run.lease
        book.write("granted", run.id, token=lease.token, ordinal=lease.run.ordinal, attempt=lease.run.attempt)
        try:
            return await work()
        except BaseException:
            if lease.lost is not None:
                with anyio.CancelScope(shield=True):
                    await _write_all_the_same(store, lease, book)
            raise
        finally:
            book.write("left", run.id, token=lease.token)

    @app.kind("steps", max_crashes=MANY)
    async def steps(run: ActiveRun[str], _: str) -> list[str]:
        async def work() -> list[str]:
            names = CALLS["steps"]
            return [await run.step(n.removeprefix("step:"), partial(book.call, run.id, n, run.attempt)) for n in names]

        found: list[str] = await held(run, work)
        return found

    agent = _agent(book)

    @app.kind("agent", max_crashes=MANY)
    async def drive(run: ActiveRun[str], _: str) -> str:
        found: str = await held(run, partial(agent.drive, run))
        return found

    return app


def _agent(book: Book) -> Agent[str]:
    @tool
    async def note(context: ToolContext) -> str:
        return await book.call(context.run_id, f"tool:{context.call_id}", context.attempt)

    async def answer(request: ModelRequest) -> AssistantMessage:
        number = await book.call(request.run_id, f"model:{request.step}", request.attempt)
        calls = [ToolCall(id=f"c{request.step}", name="note", arguments={})] if request.step < 3 else []
        return assistant(number, *calls)

    return Agent(FunctionModel(answer), name="agent", tools=[note])


async def _write_all_the_same(store: Store, lease: Lease, book: Book) -> None:
    """Write under the dead grant: what was in hand, then at the journal's end, where only the fence refuses it."""
    try:
        # A holder stops before the store would let anybody in; until then its write is none of a dead grant.
        while (run := await store.load(lease.run.id)) is not None and run.token == lease.token:
            if run.lease_until_ms <= (await store.facts()).now_ms:
                break
            await anyio.sleep(0.02)
        await _write_after(store, lease, lease.run, book)
        if (run := await store.load(lease.run.id)) is not None:
            await _write_after(store, lease, run, book)
    except TenureError as error:
        book.write("unanswered", lease.run.id, token=lease.token, code=error.code.value)


async def _write_after(store: Store, lease: Lease, run: Run, book: Book) -> None:
    event = journal.event(journal.CHECKPOINT, value="stale")
    answer = await store.commit(build.commit(lease.grant, run.last_seq + 1, run.head, [event], step=1))
    book.write("stale", run.id, token=lease.token, landed=answer.ok, why=answer.why)


async def _serve(given: argparse.Namespace) -> None:
    book = Book(Path(given.folder), given.name)
    store = open_store(given.store, namespace=given.namespace)
    telling = cast("Store", Telling(store, book))
    worker = Worker(app_of(store, book), telling, name=given.name, concurrency=3, ttl=given.ttl, drain=2)
    async with store, anyio.create_task_group() as tasks:
        tasks.start_soon(_drain_on_term, worker, book)
        await worker.run()
        tasks.cancel_scope.cancel()


async def _drain_on_term(worker: Worker, book: Book) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        book.write("ready", "")
        async for _ in signals:
            await worker.drain()
            return


def main() -> None:
    """Serve until told to end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # a frozen worker goes with its director, too
    logging.getLogger("tenure").setLevel(logging.CRITICAL)
    parser = argparse.ArgumentParser()
    for name in ("name", "store", "namespace", "folder"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--ttl", type=float, required=True)
    anyio.run(_serve, parser.parse_args())


if __name__ == "__main__":
    main()
