"""How histories of one kind are played, in batches, by processes that keep their servers."""

from __future__ import annotations

import functools
import logging
import secrets
import shutil
import sqlite3
import subprocess
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.util import Finalize
from pathlib import Path

import anyio

from tenure.testing.campaigns import Batch, Campaign, players
from tenure.testing.chaos.kinds import Kind, Place, Played, kind_of
from tenure.testing.chaos.stage import stage
from tenure.testing.inline import outside
from tenure.testing.servers import REDIS_KINDS, PostgresServer, find_program, start_server

PATIENCE_S = 150.0
LOOK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Histories of a kind that are played in one go; the store of a seed is its turn."""

    kind: str
    stores: tuple[str, ...]
    seeds: range


@dataclass(slots=True, kw_only=True)
class Lane:
    """A kind, where it is played, and what was judged of it."""

    kind: Kind
    stores: tuple[str, ...]
    seeds: range
    campaign: Campaign

    def parts(self) -> Iterator[Part]:
        """Return what is left to play."""
        for seeds in self.campaign.missing(self.seeds, size=self.kind.batch):
            yield Part(kind=self.kind.name, stores=self.stores, seeds=seeds)


def conduct(lanes: Sequence[Lane], processes: int, say: Callable[[int, int], None]) -> bool:
    """Play what is left of all lanes, a batch of each in turn; returns whether nothing is left.

    `say` is told now and then how many of how many are judged. Where a stop is asked for see `campaigns.players`.
    """
    parts = [list(lane.parts()) for lane in lanes]
    asked = sum(len(part.seeds) for own in parts for part in own)
    turns = (
        (lane, own[at]) for at in range(max(map(len, parts), default=0)) for lane, own in _having(lanes, parts, at)
    )
    done = 0
    playing: dict[Future[Batch], Lane] = {}
    with players(processes) as (pool, stop):
        while True:
            if not stop.is_set():
                for lane, part in islice(turns, processes + 1 - len(playing)):
                    playing[pool.submit(play, part)] = lane
            if not playing:
                break
            for future in wait(playing, timeout=LOOK_S, return_when=FIRST_COMPLETED).done:
                batch = future.result()
                playing.pop(future).campaign.add(batch)
                done += batch.histories
            say(done, asked)
    return done == asked


def _having(lanes: Sequence[Lane], parts: Sequence[list[Part]], at: int) -> Iterator[tuple[Lane, list[Part]]]:
    return ((lane, own) for lane, own in zip(lanes, parts, strict=True) if at < len(own))


def play(part: Part, /) -> Batch:
    """Play and judge one batch."""
    logging.getLogger("tenure").setLevel(logging.CRITICAL)  # what a blow brings about is said by the judge
    counts: Counter[str] = Counter()
    violations: list[str] = []
    kind = kind_of(part.kind)
    for store in part.stores if kind.works_in else ():
        _server(store)  # before the loop runs, which would stand still meanwhile
    anyio.run(_play_all, part, kind, counts, violations)
    return Batch(first=part.seeds.start, histories=len(part.seeds), counts=dict(counts), violations=violations)


async def _play_all(part: Part, kind: Kind, counts: Counter[str], violations: list[str]) -> None:
    room = anyio.Semaphore(kind.at_once)
    with ExitStack() as kept:
        folder = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="tenure-chaos-")))
        async with stage(*kind.works_in) as forks, anyio.create_task_group() as tasks:

            async def one(seed: int) -> None:
                store, own = part.stores[seed % len(part.stores)], folder / str(seed)
                # A batch that was broken off may have left some of a namespace without the last part.
                namespace = f"{kind.name}-{seed}-{secrets.token_hex(4)}"
                async with room:
                    url = (_server(store) or f"sqlite:///{own}/chaos.db") if kind.works_in else ""
                    place = Place(name=store, url=url, namespace=namespace, folder=own, stage=forks)
                    played = await _played(kind, seed, place)
                counts.update({f"on {store}": 1, **played.counts})
                if played.violations:
                    said = "".join(f"\n  {line}" for line in [*filter(None, [played.note]), *played.violations[:5]])
                    violations.append(f"{kind.name} seed {seed} on {store}{said}\n  {repro(kind.name, store, seed)}")

            for seed in part.seeds:
                tasks.start_soon(one, seed)


def repro(kind: str, store: str, seed: int) -> str:
    """Return the command that plays one history again."""
    return f"python -m tenure.testing.chaos --kinds {kind} --stores {store} --seed {seed} --histories 1"


async def _played(kind: Kind, seed: int, place: Place) -> Played:
    await anyio.Path(place.folder).mkdir()
    try:
        with anyio.fail_after(PATIENCE_S):
            return await kind.play(seed, place)
    except Exception:  # noqa: BLE001 - whatever it is, this history did not end as it should
        return Played(violations=[f"it was not played to its end: {traceback.format_exc()[-1500:]}"])
    finally:
        shutil.rmtree(place.folder, ignore_errors=True)


_serving = ExitStack()
Finalize(None, _serving.close, exitpriority=1)  # a process of a pool runs nothing else when it ends


@functools.cache
def _server(store: str) -> str:
    """Return where the private server of this process is, started when it is first asked for; "" for a file."""
    if store == "sqlite":
        return ""
    if store != "postgres":
        kind = next(kind for kind in REDIS_KINDS if kind.name == store)
        return _serving.enter_context(start_server(kind)).url
    from tenure.stores._postgres_connect import address
    from tenure.stores._postgres_migrate import migrate

    url = _serving.enter_context(PostgresServer(options={"max_connections": 400})).url
    outside(partial(anyio.run, migrate, address(url, {})))
    return url


def version(store: str) -> str:
    """Return what a store is, as words."""
    if store == "sqlite":
        return f"sqlite {sqlite3.sqlite_version}"
    if store == "postgres":
        from tenure.testing._postgres_server import version as version_of

        return version_of()
    program = find_program(next(kind for kind in REDIS_KINDS if kind.name == store))
    said = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True).stdout
    return f"{store} {said.partition('v=')[2].partition(' ')[0]}"
