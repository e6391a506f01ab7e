"""One worker process of the demo: `python -m tenure.cli.demo.worker`; ends on SIGTERM, or is killed."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import anyio

from tenure.active import ActiveRun
from tenure.app import App
from tenure.cli.demo.book import Book
from tenure.cli.demo.script import KIND, demo_agent
from tenure.cli.demo.snapshot import SnapshotStore
from tenure.core import build, journal
from tenure.errors import TenureError
from tenure.lease import Lease
from tenure.store import Store
from tenure.stores import open_store
from tenure.trust import refused_line
from tenure.worker import Worker


def main() -> None:
    """Serve the demo's runs until told to end."""
    parser = argparse.ArgumentParser()
    for name in ("name", "store", "namespace", "folder"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--ttl", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--no-fence", action="store_true")
    given = parser.parse_args()
    anyio.run(_serve, given)


async def _serve(given: argparse.Namespace) -> None:
    book = Book(Path(given.folder), given.name)
    store: Store = (
        SnapshotStore(Path(given.folder), book)
        if given.no_fence
        else open_store(given.store, namespace=given.namespace)
    )
    agent = demo_agent(book, given.seed)
    app = App(version="demo")

    @app.kind(KIND)
    async def demo(run: ActiveRun[str], _: str) -> str:
        lease = run.lease
        book.write("granted", run.id, token=lease.token, ordinal=lease.run.ordinal, attempt=lease.run.attempt)
        try:
            return await agent.drive(run)
        except BaseException:
            if lease.lost is not None:
                with anyio.CancelScope(shield=True):
                    await _knock(store, lease, book)
            raise

    worker = Worker(app, store, name=given.name, concurrency=1, ttl=given.ttl)
    async with store, anyio.create_task_group() as tasks:
        tasks.start_soon(_drain_on_term, worker)
        book.write("ready", "")
        await worker.run()
        tasks.cancel_scope.cancel()


async def _knock(store: Store, lease: Lease, book: Book) -> None:
    """Send the write that was in hand when the worker fell asleep, as a program without a local deadline would."""
    book.write("stopped", lease.run.id, token=lease.token, reason=getattr(lease.lost, "reason", "history"))
    run = await store.load(lease.run.id)
    if run is None or run.token == lease.token:
        return  # it stopped before its lease was over, and nobody has come: such a write would not be stale
    stale = build.commit(
        lease.grant, lease.run.last_seq + 1, lease.run.head, [journal.event(journal.CHECKPOINT, value="stale")], step=1
    )
    try:
        answer = await store.commit(stale)
    except TenureError as error:
        book.write("unanswered", lease.run.id, code=error.code.value)
        return
    if lease.lost is not None and not answer.ok:
        await store.tell_refused(refused_line(lease.grant, lease.lost, what="commit"))
    current = answer.run.token if answer.run is not None else 0
    ordinal = answer.run.ordinal if answer.run is not None else 0
    what = "landed" if answer.ok else "refused"
    book.write(what, lease.run.id, token=lease.token, why=answer.why or "", current=current, ordinal=ordinal)


async def _drain_on_term(worker: Worker) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            await worker.drain()
            return


if __name__ == "__main__":
    main()
