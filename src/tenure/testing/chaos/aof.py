"""The append-only file of a Redis, cut at bytes of its last script: each script is there whole or not at all."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tenure.core.canonical import digest
from tenure.core.run import Status, Verdict
from tenure.errors import TenureError
from tenure.store import Store, Where
from tenure.stores import open_store
from tenure.testing.chaos._tale import Held, Tale, Teller, stuck, unlike, unsound
from tenure.testing.chaos.kinds import Kind, Place, Played
from tenure.testing.servers import REDIS_KINDS, RedisServer, ServerKind, start_server

CHANGES = 30
OPTIONS: dict[str, str | int] = {
    "appendonly": "yes", "appendfsync": "always", "auto-aof-rewrite-percentage": 0, "aof-load-truncated": "yes",
}  # fmt: skip
EDGES = 3
"""How many bytes from each end of a script's part of the log are always cut at, where not every byte is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What a server left behind: its folder, and the file that grows, by its path in there."""

    folder: Path
    grows: Path


class Aof(Kind):
    """One tale on a server of its own, and cuts in the part of the log that one drawn change wrote."""

    name = "aof"
    stores = ("redis7", "valkey9", "redis8")
    short, long, batch = 6, 150, 2
    cuts = 10
    """At how many bytes of a script the log is cut; 0 for every one."""
    wrapped = True
    """False takes away what makes one whole of a script's commands: then halves have to be found."""

    async def play(self, seed: int, place: Place, /) -> Played:
        """Record a tale, cut its log, and judge what a server makes of each cut."""
        kind = next(kind for kind in REDIS_KINDS if kind.name == place.name)
        drawn = random.Random(f"{self.name}:{place.name}:{seed}")
        tale, log = await self._recorded(seed, kind, place)
        wrote = [one for one in tale.told if one.verdict is Verdict.LANDED and one.told_at > one.sent_at]
        names = sorted({one.what for one in wrote})
        name = drawn.choice(names)
        one = drawn.choice([one for one in wrote if one.what == name])
        counts = Counter({f"scripts of {name}": 1})
        wrong = list[str]()
        for at in _cuts(one.sent_at, one.told_at, self.cuts, drawn):
            cut = Log(folder=place.folder / "cut", grows=log.grows)
            self._lay(log, cut, at)
            counts["cuts"] += 1
            found = await _restarted(kind, cut.folder, tale, at, counts)
            wrong += [f"cut at byte {at} of {one.sent_at} to {one.told_at} ({name}): {line}" for line in found]
        return Played(violations=wrong, counts=counts, note=f"{name}, {one.told_at - one.sent_at} bytes")

    async def _recorded(self, seed: int, kind: ServerKind, place: Place) -> tuple[Tale, Log]:
        folder = place.folder / "server"
        folder.mkdir()
        server = await asyncio.to_thread(start_server, kind, options=OPTIONS, folder=folder)
        try:
            (grows,) = (folder / "appendonlydir").glob("*.incr.aof")
            async with open_store(server.url, namespace="aof", durability="disk") as store:

                async def look() -> Held:
                    return await held(store, [aim.run for aim in teller.aims], teller.blobs())

                teller = Teller(store=store, seed=seed, where=lambda: grows.stat().st_size, look=look)
                tale = await teller.play(CHANGES)
        finally:
            await asyncio.to_thread(server.close)
        return tale, Log(folder=folder / "appendonlydir", grows=grows)

    def _lay(self, log: Log, cut: Log, at: int) -> None:
        shutil.rmtree(cut.folder, ignore_errors=True)
        shutil.copytree(log.folder, cut.folder / "appendonlydir")
        grows = cut.folder / "appendonlydir" / cut.grows.name
        data = grows.read_bytes()[:at]
        grows.write_bytes(data if self.wrapped else unwrapped(data))


async def _restarted(kind: ServerKind, folder: Path, tale: Tale, at: int, counts: Counter[str]) -> list[str]:
    try:
        server = await asyncio.to_thread(start_server, kind, options=OPTIONS, folder=folder)
        try:
            return await _judged(server, tale, at, counts)
        finally:
            await asyncio.to_thread(server.kill)
    except TenureError as error:
        return [f"it cannot be gone on with: {error}"]


async def _judged(server: RedisServer, tale: Tale, at: int, counts: Counter[str]) -> list[str]:
    async with open_store(server.url, namespace="aof", durability="disk") as store:
        wrong = unlike(await held(store, tale.runs, tale.blobs), tale, at, counts)
        return wrong or [*await unsound(store, tale), *await stuck(store, tale, at, counts)]


def _cuts(begin: int, end: int, wanted: int, drawn: random.Random) -> list[int]:
    every = range(begin, end + 1)
    if not wanted or wanted >= len(every):
        return list(every)
    edges = {*every[:EDGES], *every[-EDGES:]}
    others = [at for at in every if at not in edges]
    return sorted({*edges, *drawn.sample(others, min(len(others), max(0, wanted - len(edges))))})


def unwrapped(log: bytes) -> bytes:
    """Return a log without the commands that make one transaction of several."""
    return log.replace(b"*1\r\n$5\r\nMULTI\r\n", b"").replace(b"*1\r\n$4\r\nEXEC\r\n", b"")


async def held(store: Store, runs: Sequence[str], blobs: Sequence[str]) -> Held:
    """Return all that a store holds of some runs, as far as reads can see, and what its indexes say of them."""
    found: Held = {}
    for run_id in runs:
        raw = await store.raw(run_id)
        found[f"record of {run_id}"] = dict(raw)
        found[f"rows of {run_id}"] = await store.tail(run_id, limit=1000)
        found[f"inbox of {run_id}"] = await store.inbox(run_id)
        present = [(name, await store.blob(run_id, name)) for name in blobs] if raw else []
        found[f"blobs of {run_id}"] = [(name, digest(data)) for name, data in present if data is not None]
    for kind in sorted(await store.kinds()):
        found[f"due index of {kind}"] = sorted((await store.entries(kind))[0])
    for status in Status:
        found[f"index of {status}"] = sorted(run.id for run in (await store.find(Where(status=(status,)))).runs)
    return found
