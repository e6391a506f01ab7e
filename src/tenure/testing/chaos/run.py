"""One run of a history: its processes, and the verdict when they are through with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import anyio

from tenure.core import build
from tenure.core.run import How, Status
from tenure.errors import TenureError
from tenure.ledger import Ledger
from tenure.store import Store
from tenure.stores import open_store
from tenure.testing.chaos import noted
from tenure.testing.chaos.judge import of_answers, of_grants, of_stale
from tenure.testing.chaos.kinds import Place, Played
from tenure.testing.chaos.noted import NotedStore
from tenure.testing.chaos.stage import Forked
from tenure.testing.chaos.walk import DONE
from tenure.testing.crashing import Point, account, violations
from tenure.testing.models import CallLog

WALK = "tenure.testing.chaos.walk"
RUN = "walk"
PATIENCE_S = 5.0


@dataclass(slots=True, kw_only=True)
class Walk:
    """A run of the walker in a namespace of its own, and what was seen of it."""

    place: Place
    seed: str
    ledger: Ledger
    played: Played
    folder: Path
    _forked: int = field(default=0)

    async def fork(self, *, url: str = "", ttl: float = 30, **order: Any) -> Forked:
        """Fork a process that works on it."""
        self._forked += 1
        said: dict[str, Any] = {
            "url": url or self.place.url,
            "namespace": self.place.namespace,
            "folder": str(self.folder),
        }
        said |= {"run": RUN, "seed": self.seed, "ttl": ttl, **order}
        errors = self.folder / f"errors.{self._forked}"
        return await self.place.stage.fork(f"{WALK}:walk", said, errors=errors)

    async def recover(self, **order: Any) -> None:
        """Bring it to its end in another process."""
        await self.ends(await self.fork(**order), {DONE}, "the recovery")

    async def ends(self, process: Forked, codes: Iterable[int], who: str) -> int:
        """Wait for the end of a process; another code than these is a violation."""
        code = await process.ended()
        if code not in codes:
            self.played.violations.append(f"{who} ended with {code}: {process.errors}")
        return code

    async def bury(self) -> None:
        """Forfeit the grant of the dead, as a supervisor does that saw it die."""
        run = await self.ledger.store.load(RUN)
        if run is not None and run.status is Status.RUNNING:
            await self.ledger.ask(build.end(run=run.id, how=How.FORFEIT, token=run.token, nonce=run.nonce))

    async def judge(self, died: Iterable[Point] | None) -> None:
        """Hold all that was seen against what is promised; see `crashing.violations` for `died`."""
        wrong, counts = self.played.violations, self.played.counts
        lines, asked = CallLog(self.folder / "calls.log").read(), noted.read(self.folder)
        try:
            run = await self.ledger.load(RUN)
            rows = await self.ledger.store.tail(RUN, limit=1000)
            calls = account(rows, lines)
        except TenureError as error:
            wrong.append(f"it cannot be read: {error!r}")
            return
        wrong += [*of_grants(run, rows), *of_answers(rows, asked, counts), *of_stale(lines, counts)]
        try:
            result: Any = await self.ledger.handle(RUN).result(timeout=PATIENCE_S)
        except (TenureError, TimeoutError) as error:
            wrong.append(f"it has no end: {error!r}")
            return
        wrong += violations(run, rows, result, calls, died)
        counts["calls repeated in flight"] += len(calls.repeated)
        counts["takeovers"] += run.attempt - 1


@asynccontextmanager
async def walking(place: Place, seed: str, *, turn: int = 0) -> AsyncIterator[Walk]:
    """Open the store of a place for a run, and give it a folder; each turn is another run."""
    folder = place.folder / f"turn-{turn}"
    await anyio.Path(folder).mkdir()
    here = replace(place, namespace=f"{place.namespace}-{turn}")
    store = NotedStore(open_store(here.url, namespace=here.namespace), folder)
    async with store, Ledger(cast("Store", store)) as ledger:
        yield Walk(place=here, seed=seed, ledger=ledger, played=Played(), folder=folder)
