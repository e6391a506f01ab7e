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
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from tenure.core.run import Answer, Change, Renew
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.stores._group import LIMIT
from tenure.stores._postgres_answer import answer_of
from tenure.stores._postgres_connect import Address, Connection, translated, unacknowledged
from tenure.stores._postgres_speech import LIMIT_BYTES, TYPES, Speech, error_of, size_of

_LOG = logging.getLogger("tenure.stores.postgres")

SLOW_BYTES_S = 2**20
"""What is to be carried at least in a second: a large change may take longer than a small one."""
TRIES = 3
"""How often a change is sent when the server answered each time that the caller has to look again first."""
CLOSED = "the store was closed before the answer came; send the same request again"

Busy = Callable[[Change], Awaitable[Answer]]
"""Asks for one change in patience, on another connection."""


@dataclass(slots=True, eq=False)
class Slot:
    """One change in the line, and who waits for its answer."""

    change: Change
    done: asyncio.Future[Answer]
    alone: bool = False
    tries: int = 0


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
        self._waiting: deque[Slot] = deque()
        self._flying: list[Slot] = []
        self._result: PGresult | None = None
        self._fd = -1
        self._writing = False
        self._warned = False
        self._due = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped_for: asyncio.Task[None] | None = None
        self._closed = False

    async def ask(self, changes: Sequence[Change], /) -> list[Answer | BaseException]:
        """Return the answer to each change, which may be an exception."""
        slots = [Slot(change=change, done=self._loop.create_future()) for change in changes]
        if self._closed:
            message = "the store was closed; open it again"
            raise StoreUnavailable(message)
        self._waiting.extend(slots)
        self._soon()
        try:
            return [await _outcome(slot.done) for slot in slots]
        finally:
            for slot in slots:
                slot.done.cancel()  # nothing to one that is done; one that still waits in line is passed over

    def use(self, connection: Connection) -> None:
        """Take over a connection."""
        self._connection = connection
        self._pgconn = connection.pgconn
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

    def _send(self) -> None:
        self._due = False
        if self._flying or self._stopped_for is not None or not (batch := self._take()):
            return
        if self._pgconn is None:
            self._waiting.extendleft(reversed(batch))
            self._pause(self._reconnect())
            return
        self._flying = batch
        self._warned = False
        try:
            statement, values = self._speech.parts([slot.change for slot in batch])
        except Exception as error:  # noqa: BLE001 - what cannot be packed is an answer to whoever asked
            self._settle_whole(error)
            return
        size = sum(map(len, values))
        self._timer = self._loop.call_later(self._where.timeout + size / SLOW_BYTES_S, self._expired)
        types, formats = TYPES[len(values)]
        try:
            # Not prepared: planning a call of a function costs nothing, and a pooler keeps no prepared statements.
            self._pgconn.send_query_params(statement, values, types, formats, 1)
            self._flush()
        except psycopg.Error as error:
            self._drop(translated(error, self._where, change=True))

    def _take(self) -> list[Slot]:
        batch: list[Slot] = []
        size = 0
        while self._waiting and len(batch) < LIMIT:
            slot = self._waiting[0]
            if slot.done.done():
                self._waiting.popleft()
                continue
            renews = isinstance(slot.change, Renew)
            if batch and (slot.alone or batch[0].alone or renews != isinstance(batch[0].change, Renew)):
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
        if self._timer is not None:
            self._timer.cancel()
        if result is None or result.status != ExecStatus.TUPLES_OK:
            self._settle_whole(error_of(result, self._where))
        elif self._warned:
            self._settle_whole(unacknowledged(self._where))
        else:
            said = (result.get_value(0, 0) or b"").decode()
            self._settle(said)
        if self._waiting:
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
            lines = [message] * len(batch)
            for slot in batch:
                _give(slot, StoreUnavailable(message))
            return
        lines = [f"landed {said[4:]}"] * len(batch) if said.startswith("all ") else said.splitlines()
        for slot, line in zip(batch, lines, strict=True):
            if line == "busy" and isinstance(slot.change, Renew):
                _give(slot, StoreUnavailable(f"another transaction holds the row of run {slot.change.run}; try again"))
            elif line == "busy":
                self._own(self._in_patience(slot))
            else:
                try:
                    _give(slot, answer_of(slot.change, line))
                except Exception as error:  # noqa: BLE001 - what cannot be read is an answer to whoever asked
                    _give(slot, error)

    def _settle_whole(self, error: BaseException) -> None:
        batch, self._flying = self._flying, []
        if len(batch) > 1 and not isinstance(error, OutcomeUnknown):
            for slot in batch:
                slot.alone = True
            self._waiting.extendleft(reversed(batch))
        else:
            for slot in batch:
                _give(slot, error)
        if self._waiting:
            self._soon()

    def _noticed(self, said: psycopg.errors.Diagnostic) -> None:
        # Our functions warn of nothing. What warns is a commit that stopped waiting for its standbys.
        self._warned |= said.severity_nonlocalized == "WARNING"

    def _expired(self) -> None:
        connection = self._connection
        if connection is not None:
            self._own(_cancel(connection))
        message = f"{self._where.shown} did not answer in {self._where.timeout:g} s; send the same request again"
        self._drop(OutcomeUnknown(message), keep=True)

    def _drop(self, error: BaseException, *, keep: bool = False) -> None:
        connection, pgconn = self._connection, self._pgconn
        self._connection = self._pgconn = None
        if self._timer is not None:
            self._timer.cancel()
        if pgconn is not None:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
        if connection is not None and not keep:
            connection.pgconn.finish()
        batch, self._flying, self._result = self._flying, [], None
        for slot in batch:
            _give(slot, error)
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
            _give(slot, error)

    async def _reconnect(self) -> None:
        self.use(await self._opened())

    async def _look_again(self, what: str) -> None:
        await self._look(what)

    async def _in_patience(self, slot: Slot) -> None:
        try:
            _give(slot, await self._busy(slot.change))
        except asyncio.CancelledError:
            _give(slot, OutcomeUnknown(CLOSED))
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, who asked waits for it
            _give(slot, error)


async def _outcome(done: asyncio.Future[Answer]) -> Answer | BaseException:
    try:
        return await done
    except asyncio.CancelledError:
        raise
    except Exception as error:  # noqa: BLE001 - an answer like any other
        return error


def _give(slot: Slot, answer: Answer | BaseException) -> None:
    if slot.done.done():
        return
    if isinstance(answer, BaseException):
        slot.done.set_exception(answer)
        slot.done.exception()  # nobody may be there any more to take it
    else:
        slot.done.set_result(answer)


async def _cancel(connection: Connection) -> None:
    # Else what nobody waits for any more would hold its rows until it is through.
    try:
        await connection.cancel_safe(timeout=1.0)
    except (psycopg.Error, OSError):
        _LOG.debug("a statement that took too long could not be cancelled")
    finally:
        connection.pgconn.finish()
