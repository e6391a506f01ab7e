"""The road of changes: one connection, on which what gathers while a statement is under way goes into the next.

Nothing here belongs to who asks: a statement is sent and its answer is read by callbacks of the loop, so a caller
that is cancelled leaves nothing half-read, and what it asked for is withdrawn if it was not sent yet. A statement that
failed as a whole, and so left nothing, is sent again change by change.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from tenure.core.run import Answer, Change, Commit, Renew, Verdict
from tenure.errors import OutcomeUnknown, RowLocked, StoreUnavailable
from tenure.store import SLOW_BYTES_S
from tenure.stores._group import LIMIT
from tenure.stores._postgres_answer import answer_of
from tenure.stores._postgres_connect import Address, Connection, translated, unacknowledged
from tenure.stores._postgres_ready import Ready
from tenure.stores._postgres_speech import LIMIT_BYTES, Speech, error_of, size_of

_LOG = logging.getLogger("tenure.stores.postgres")

RENEW_LIMIT = 1024
"""How many renewals one statement takes: they are small, and a worker with many runs has them all at once."""
HALF = 8
"""How many changes a half has at least. Of twice as many that come at once, one half goes ahead: the server is at work
on it while this process takes the answers of the other. Of fewer, the statements and flushes would cost more."""
TRIES = 3
"""How often a change is sent when the server answered each time that the caller has to look again first."""
CLOSED = "the store was closed before the answer came; send the same request again"

Busy = Callable[[Change], Awaitable[Answer]]
"""Asks for one change in patience, on another connection."""


class Asked:
    """Who waits for the answers to some changes; `done` is over when the last is there, or nobody waits any more."""

    __slots__ = ("answers", "done", "missing")

    def __init__(self, done: asyncio.Future[None], count: int) -> None:
        self.done = done
        self.answers: list[Answer | BaseException | None] = [None] * count
        self.missing = count


class Slot:
    """One change in the line, and whose answer it is at which place."""

    __slots__ = ("alone", "asked", "change", "place", "tries", "whole")

    def __init__(self, change: Change, asked: Asked, place: int) -> None:
        self.change = change
        self.asked = asked
        self.place = place
        self.alone = self.whole = False
        self.tries = 0

    def give(self, answer: Answer | BaseException) -> None:
        """Answer it, once."""
        asked = self.asked
        if asked.answers[self.place] is None and not asked.done.done():
            asked.answers[self.place] = answer
            asked.missing -= 1
            if not asked.missing:
                asked.done.set_result(None)


class Line:
    """Changes of one store object on one connection; `ask` is for tasks of the loop that made it."""

    def __init__(
        self,
        where: Address,
        speech: Speech,
        *,
        opened: Callable[[], Awaitable[Connection]],
        look: Callable[[str], Awaitable[None]],
        busy: Busy,
    ) -> None:
        self._where = where
        self._speech = speech
        self._opened = opened
        self._look = look
        self._busy = busy
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._pgconn: PGconn | None = None
        self._ready: Ready | None = None
        self._waiting: deque[Slot] = deque()
        self._flying: list[Slot] = []
        self._result: PGresult | None = None
        self._fd = -1
        self._writing = False
        self._warned = False
        self._due = False
        self._together = 1
        self._patience_s = self._late_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped_for: asyncio.Task[None] | None = None
        self._closed = False

    async def ask(self, changes: Sequence[Change], /) -> list[Answer | BaseException]:
        """Return the answer to each change, which may be an exception."""
        if self._closed:
            message = "the store was closed; open it again"
            raise StoreUnavailable(message)
        if not changes:
            return []
        asked = Asked(self._loop.create_future(), len(changes))
        self._waiting.extend([Slot(change, asked, place) for place, change in enumerate(changes)])
        if self._together == 1 and not self._due:
            self._send()  # nobody else asks: a turn of the loop would bring nobody
        else:
            self._soon()
        await asked.done  # cancelled with who waits; what of it still stands in line is then passed over
        return [answer for answer in asked.answers if answer is not None]

    def use(self, connection: Connection) -> None:
        """Take over a connection."""
        self._connection = connection
        self._pgconn = connection.pgconn
        self._ready = Ready(self._pgconn)
        self._pgconn.nonblocking = 1
        connection.add_notice_handler(self._noticed)
        self._fd = self._pgconn.socket
        self._loop.add_reader(self._fd, self._readable)

    async def aclose(self) -> None:
        """Close the connection; what was not answered has no answer."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._drop(OutcomeUnknown(CLOSED))
        self._fail_waiting(StoreUnavailable("the store was closed; open it again"))

    # -------------------------------------------------------------------------------------------- sending

    def _soon(self) -> None:
        # Not at once: what other tasks of this turn of the loop ask for goes into the same statement.
        if not self._due and not self._flying and self._stopped_for is None:
            self._due = True
            self._loop.call_soon(self._send)

    def _send(self, *, ahead: bool = False) -> None:
        self._due &= ahead
        if self._flying or self._stopped_for is not None or not (batch := self._take(all_of_it=ahead)):
            return
        if self._ready is None:
            self._waiting.extendleft(reversed(batch))
            self._pause(self._reconnect())
            return
        self._flying = batch
        self._together = len(batch)
        self._warned = False
        try:
            call = self._speech.call([slot.change for slot in batch], whole=batch[0].whole)
        except Exception as error:  # noqa: BLE001 - what cannot be packed is an answer to whoever asked
            self._settle_whole(error)
            return
        size = sum(map(len, call.values))
        self._be_patient(self._where.timeout + size / SLOW_BYTES_S)
        try:
            self._ready.send(call)
            self._flush()
        except psycopg.Error as error:
            self._drop(translated(error, self._where, change=True))

    def _take(self, *, all_of_it: bool) -> list[Slot]:
        batch: list[Slot] = []
        size = 0
        limit = LIMIT
        most = len(self._waiting)
        if not all_of_it and most >= 2 * HALF:
            most = (most + 1) // 2
        while self._waiting and len(batch) < limit:
            slot = self._waiting[0]
            if slot.asked.done.done():
                self._waiting.popleft()
                continue
            renews = isinstance(slot.change, Renew)
            if not batch and renews:
                limit = RENEW_LIMIT
            if batch and (slot.alone or batch[0].alone or renews != isinstance(batch[0].change, Renew)):
                break
            if len(batch) >= most and slot.asked is not batch[-1].asked and not renews:
                break
            size += size_of(slot.change)
            if batch and size > LIMIT_BYTES:
                break
            batch.append(self._waiting.popleft())
        if len(batch) > 1 and not isinstance(batch[0].change, Renew):
            batch.sort(key=lambda slot: slot.change.run)  # rows are taken in one order by everybody
        return batch

    def _flush(self) -> None:
        pgconn = self._pgconn
        if pgconn is None:
            return
        if pgconn.flush():
            self._loop.add_writer(self._fd, self._writable)
            self._writing = True
        elif self._writing:
            self._loop.remove_writer(self._fd)
            self._writing = False

    def _writable(self) -> None:
        try:
            self._flush()
        except psycopg.Error as error:
            self._drop(translated(error, self._where, change=True))

    # -------------------------------------------------------------------------------------------- answers

    def _readable(self) -> None:
        pgconn = self._pgconn
        if pgconn is None:
            return
        try:
            pgconn.consume_input()
            while self._flying and not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    self._done()
                    return
                self._result = result
        except psycopg.Error as error:
            self._drop(translated(error, self._where, change=True))
            return
        if pgconn.status != psycopg.pq.ConnStatus.OK:
            self._drop(
                translated(psycopg.OperationalError("the server closed the connection"), self._where, change=True)
            )

    def _done(self) -> None:
        result, self._result = self._result, None
        if self._ready is not None and self._ready.again(result):
            self._flush()
            return
        if result is None or result.status != ExecStatus.TUPLES_OK:
            self._settle_whole(error_of(result, self._where))
        elif self._warned:
            self._settle_whole(unacknowledged(self._where))
        else:
            said = (result.get_value(0, 0) or b"").decode()
            self._settle(said)
        if len(self._waiting) >= HALF:
            self._send(ahead=True)  # before those who were answered ask for more
        elif self._waiting:
            self._soon()

    def _settle(self, said: str) -> None:
        batch, self._flying = self._flying, []
        if said.startswith("again "):
            for slot in batch:
                slot.tries += 1
            if batch[0].tries < TRIES:
                self._waiting.extendleft(reversed(batch))
                self._pause(self._look_again(said[6:]))
                return
            message = f"{self._where.shown} changes as fast as it is looked at ({said[6:]}); look who does that"
            for slot in batch:
                slot.give(StoreUnavailable(message))
            return
        if said == "ask":
            batch[0].whole = True
            self._waiting.extendleft(batch)
            self._soon()
            return
        if said.startswith("all "):
            _give_all(batch, int(said[4:]))
            return
        # Not by `splitlines`: U+0085, U+2028 and U+2029 stand in texts of people as they are, and end no line here.
        for slot, line in zip(batch, said.removesuffix("\n").split("\n"), strict=True):
            if line == "busy" and isinstance(slot.change, Renew):
                slot.give(RowLocked(f"another transaction holds the row of run {slot.change.run}; try again"))
            elif line == "busy":
                self._own(self._in_patience(slot))
            else:
                try:
                    slot.give(answer_of(slot.change, line))
                except Exception as error:  # noqa: BLE001 - what cannot be read is an answer to whoever asked
                    slot.give(error)

    def _settle_whole(self, error: BaseException) -> None:
        batch, self._flying = self._flying, []
        if len(batch) > 1 and not isinstance(error, OutcomeUnknown):
            for slot in batch:
                slot.alone = True
            self._waiting.extendleft(reversed(batch))
        else:
            for slot in batch:
                slot.give(error)
        if self._waiting:
            self._soon()

    def _noticed(self, said: psycopg.errors.Diagnostic) -> None:
        # Our functions warn of nothing. What warns is a commit that stopped waiting for its standbys.
        self._warned |= said.severity_nonlocalized == "WARNING"

    def _be_patient(self, patience_s: float) -> None:
        # One timer that looks now and then what is late: to set one for each statement would cost more.
        self._patience_s, self._late_at = patience_s, self._loop.time() + patience_s
        if self._watch is None or self._watch.when() > self._late_at:
            self._watch_until(self._late_at)

    def _watch_until(self, at: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self._loop.call_at(at, self._look_for_late)

    def _look_for_late(self) -> None:
        self._watch = None
        if not self._flying:
            return
        if self._loop.time() < self._late_at:
            self._watch_until(self._late_at)
            return
        connection = self._connection
        if connection is not None:
            self._own(_cancel(connection))
        message = f"{self._where.shown} did not answer in {self._patience_s:.3g} s; send the same request again"
        self._drop(OutcomeUnknown(message), keep=True)

    def _drop(self, error: BaseException, *, keep: bool = False) -> None:
        connection, pgconn = self._connection, self._pgconn
        self._connection = self._pgconn = self._ready = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if pgconn is not None:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
        if connection is not None and not keep:
            connection.pgconn.finish()
        batch, self._flying, self._result = self._flying, [], None
        for slot in batch:
            slot.give(error)
        if self._waiting and not self._closed:
            self._soon()

    # -------------------------------------------------------------------------------------------- pauses

    def _own(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _pause(self, work: Any) -> None:
        self._stopped_for = self._own(work)
        self._stopped_for.add_done_callback(self._go_on)

    def _go_on(self, task: asyncio.Task[None]) -> None:
        self._stopped_for = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail_waiting(error)
        if self._waiting and not self._closed:
            self._soon()

    def _fail_waiting(self, error: BaseException) -> None:
        waiting, self._waiting = self._waiting, deque()
        for slot in waiting:
            slot.give(error)

    async def _reconnect(self) -> None:
        self.use(await self._opened())

    async def _look_again(self, what: str) -> None:
        await self._look(what)

    async def _in_patience(self, slot: Slot) -> None:
        try:
            slot.give(await self._busy(slot.change))
        except asyncio.CancelledError:
            slot.give(OutcomeUnknown(CLOSED))
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, who asked waits for it
            slot.give(error)


def _give_all(batch: Sequence[Slot], now_us: int) -> None:
    answers: dict[int, Answer] = {}  # the same for all who asked for the same ttl
    for slot in batch:
        change = slot.change
        ttl_ms = change.grant.ttl_ms if isinstance(change, Commit | Renew) else 0
        answer = answers.get(ttl_ms)
        if answer is None:
            answer = answers[ttl_ms] = Answer(verdict=Verdict.LANDED, now_us=now_us, left_ms=ttl_ms)
        slot.give(answer)


async def _cancel(connection: Connection) -> None:
    # Else what nobody waits for any more would hold its rows until it is through.
    try:
        await connection.cancel_safe(timeout=1.0)
    except (psycopg.Error, OSError):
        _LOG.debug("a statement that took too long could not be cancelled")
    finally:
        connection.pgconn.finish()
