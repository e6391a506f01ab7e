"""The committer of one lease: one commit in flight, and what arrives meanwhile goes into the next.

The I/O belongs to a task of its own. A caller that is cancelled gives up the wait; an append that was not taken yet is
withdrawn with it, one that was sent stays sent. A lost reply is asked again with the same bytes.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace

import anyio
import anyio.lowlevel

from tenure.clock import Clock
from tenure.core import build, canonical, journal, rules
from tenure.core.budget import held_before_ms
from tenure.core.run import Answer, Commit, Grant, How, Reattach, Run, Verdict, Why
from tenure.effects import Append, Effects, InboxUnread, merged, taken
from tenure.errors import HistoryLost, LeaseLost, NotAllowed, TenureError
from tenure.pulse import Pulse
from tenure.refusals import history_lost, lost
from tenure.retrying import resend
from tenure.sending import Sending, closed_meanwhile, refusal_of
from tenure.store import Store
from tenure.trust import Trust

log = logging.getLogger("tenure.lease")


class Committer:
    """Writes for one lease; `run` is the record as the holder last knew it, `state` what its journal folds to."""

    def __init__(self, store: Store, trust: Trust, pulse: Pulse, clock: Clock, *, run: Run, code_version: str) -> None:
        self.run = run
        self.state = journal.State()
        self._store = store
        self._trust = trust
        self._pulse = pulse
        self._clock = clock
        self._sending = Sending(store, trust, pulse, clock)
        self._code_version = code_version
        self._entries: list[Append] = []
        self._ending: Append | None = None
        self._bell = anyio.Event()
        self._begun: Grant | None = None
        self._unanswered: Reattach | None = None
        self._history = False
        self._closed = False
        self._done = False
        self._busy = False
        self._left: list[Append] = []
        trust.on_history = self._ask_reattach

    async def append(self, events: list[bytes], effects: Effects, *, shown: bool = False) -> Append:
        """Return the append once it has landed, with the seq of its commit; `shown` with its events as they stand."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        self._trust.check()
        if (ending := self._ending) is not None and effects.status is not None:
            # The same end again, after its caller was cancelled: it is on its way, and its answer is this one's.
            await ending.settled()
            if ending.error is None and (ending.events, ending.effects) == (events, effects):
                return ending
            self._trust.check()
        if self._closed or self._trust.over or self._trust.ending:
            message = "the lease is being ended; nothing can be written after settle, suspend or hand_back"
            raise NotAllowed(message, run=self.run)
        entry = Append(events=events, effects=effects, shown=shown)
        # The flag drops before the command is sent: nobody starts an effect while the lease is being given away.
        self._trust.ending = effects.status is not None
        self._ending = entry if effects.status is not None else None
        if self._busy or self._entries or self._left or self._history:
            await self._queue(entry)
        else:
            await self._write_alone(entry)
        if entry.error is not None:
            raise entry.error
        return entry

    async def _queue(self, entry: Append) -> None:
        self._entries.append(entry)
        self._bell.set()
        try:
            await entry.settled()
        except BaseException:
            if not entry.taken and entry in self._entries:
                self._entries.remove(entry)
                self._not_ending(entry)
            raise

    async def _write_alone(self, entry: Append) -> None:
        # In the caller's own task, because nothing else is being written: no task has to be woken for it, or by it.
        entry.taken, self._busy = True, True
        try:
            await self._flush([entry], alone=True)
        except BaseException:
            # The caller is cancelled, its write is not: the committer's task sends the same request again.
            if not entry.done:
                self._left.append(entry)
            raise
        finally:
            self._busy = False
            if self._done:
                self._drop()
            elif self._left or self._entries or self._history or self._trust.over:
                self._bell.set()

    def _not_ending(self, entry: Append) -> None:
        # Only for the append that ends the lease: another one that fails leaves that one on its way.
        if entry is self._ending:
            self._ending, self._trust.ending = None, False

    def _failed(self, entries: list[Append], error: BaseException) -> None:
        for entry in entries:
            if self._trust.error is None:
                self._not_ending(entry)
            entry.settle(error)

    async def work(self) -> None:
        """Write what is appended until the lease is over; runs as a task of the ledger."""
        try:
            while not self._trust.over:
                await self._bell.wait()
                self._bell = anyio.Event()
                if self._closed:
                    break
                if not self._busy:
                    await self._write_all()
        except BaseException:
            self._sending.stop()
            raise
        finally:
            self._closed = self._done = True
            self._drop()

    async def _write_all(self) -> None:
        self._busy = True
        try:
            if self._left:
                await self._flush([self._left.pop()])
            if self._history:
                await self._reattach_alone()
            while self._entries and not self._trust.over:
                await self._flush(taken(self._entries))
        finally:
            self._busy = False

    def _drop(self) -> None:
        error = self._trust.error or NotAllowed("the lease is over; hold the run again", run=self.run)
        for entry in [*self._left, *self._entries]:
            entry.settle(error)
        self._left.clear()
        self._entries.clear()

    async def set_aside(self, reason: str) -> None:
        """End the lease by quarantining the run; LeaseLost if this grant is no longer the record's."""
        grant, ending = self._trust.grant, self._trust.ending
        end = build.end(run=grant.run, how=How.QUARANTINE, token=grant.token, nonce=grant.nonce, reason=reason)
        self._trust.ending = True
        try:
            answer = await resend(self._clock, self._store.commit, end, within_s=self._trust.remaining_ms / 1000)
        except BaseException:
            self._trust.ending = ending
            raise
        if not answer.ok:
            error = lost(answer, grant.run, token=grant.token)
            self._trust.lose(error)
            raise error
        self._trust.over = True
        self._pulse.leave(self._trust)
        self.run = answer.run or self.run
        self.close()

    def close(self) -> None:
        """End the task; what was not taken is failed."""
        self._closed = True
        self._bell.set()

    async def _flush(self, batch: list[Append], *, alone: bool = False) -> None:
        try:
            await self._write(batch)
        except InboxUnread as unread:
            self._failed([entry for entry in batch if entry.effects.inbox_seq is not None], unread)
            if rest := [entry for entry in batch if entry.effects.inbox_seq is None]:
                await self._flush(rest)
        except TenureError as error:
            if isinstance(error, LeaseLost | HistoryLost) and self._trust.lose(error):
                await self._sending.tell(error)
            self._failed(batch, error)
        except Exception as error:
            self._failed(batch, error)
            raise
        except BaseException:
            if not alone:  # the ledger is being closed; its cancellation is not that of who waits here
                self._failed(batch, closed_meanwhile(self.run.id))
            raise

    async def _write(self, batch: list[Append]) -> None:
        while True:
            grant = self._trust.grant
            begin = [] if self._begun is grant else self._begin(grant)
            change = self._build(batch, grant, begin)
            answer: Answer | None = None
            if self._unanswered is None:  # else the grant may be another one by now, and this commit have landed
                answer = await self._sending.answer_to(change, batch[0].effects.through)
            if answer is None or answer.verdict is Verdict.HISTORY:
                if not await self._reattach(change.row.digest):
                    continue
            elif not answer.ok:
                raise refusal_of(answer, change)
            else:
                self.run = answer.run or rules.committed(change, self.run, answer.now_us // 1000)
            self._landed(batch, change, begin)
            if answer is not None and answer.verdict is Verdict.ALREADY and self.run.nonce != grant.nonce:
                # It had landed before somebody else came: what was written stands, and this holder stops.
                self._trust.lose(lost(replace(answer, why=Why.LOST), change.run))
            return

    def _begin(self, grant: Grant) -> list[bytes]:
        held_ms = held_before_ms(self.run, self.state.held_before)
        return [journal.begin(self.run, grant, self._code_version, held_ms)]

    def _build(self, batch: list[Append], grant: Grant, begin: list[bytes]) -> Commit:
        return build.commit(
            grant,
            self.run.last_seq + 1,
            self.run.head,
            begin + [event for entry in batch for event in entry.events],
            **merged([entry.effects for entry in batch], self.run.requests),
        )

    def _landed(self, batch: list[Append], change: Commit, begin: list[bytes]) -> None:
        # A commit that was found in the store's new history was made under the grant before.
        self._begun = change.grant
        for data in begin:
            self.state.add_own(data)
        if change.status is not None:
            self._trust.over = True
            self._pulse.leave(self._trust)
        for entry in batch:
            entry.seq = change.row.seq
            self._fold(entry)
            entry.settle()

    def _fold(self, entry: Append) -> None:
        if not entry.shown:
            for data in entry.events:
                self.state.add_own(data)
            return
        entry.stored = [canonical.decode_own(data) for data in entry.events]
        for event in entry.stored:
            self.state.add(event)

    def _ask_reattach(self, grant: Grant) -> None:
        if grant is self._trust.grant:
            self._history = True
            self._bell.set()

    async def _reattach_alone(self) -> None:
        try:
            await self._reattach("")
        except (LeaseLost, HistoryLost) as error:
            self._trust.lose(error)
        except TenureError:
            log.exception("run %s: could not reattach; the next renewal asks again", self.run.id)

    async def _reattach(self, flying: str) -> bool:
        """Continue under a new grant of the new history; return whether the commit in flight had landed."""
        self._history = False
        told = (self.run.last_seq, self.run.head)
        # One whose caller was cancelled may have landed: the same again, or this holder would not know its own grant.
        change = self._unanswered or Reattach(
            grant=self._trust.grant, nonce=secrets.token_hex(16), seq=told[0], head=told[1], flying=flying
        )
        self._unanswered, self._trust.reattaching = change, True
        try:
            answer = await self._sending.answer_to(change)
        except Exception:
            self._unanswered, self._trust.reattaching = None, False
            raise
        self._unanswered, self._trust.reattaching = None, False
        if not answer.ok or answer.run is None:
            raise history_lost(answer.run, change.run) if answer.why is Why.HISTORY_LOST else lost(answer, change.run)
        self.run = answer.run
        log.info("run %s goes on in the store's new history", self.run.id)
        return (self.run.last_seq, self.run.head) != told
