"""The contract by generated sequences: every answer of the store equals that of the pure rules, and enough lands."""

from __future__ import annotations

import os
import secrets
from typing import ClassVar

from tenure.core.run import How
from tenure.store import Store
from tenure.testing.contract_case import StoreCase
from tenure.testing.generate import CHANGES, Sequence, Tally


class SequenceContract(StoreCase):
    """Sequences aimed at the live grant and the next step.

    TENURE_TEST_SEED plays other sequences (`random` draws one), TENURE_TEST_SEQUENCES sets how many.
    """

    sequences: ClassVar[int] = 80
    """How many sequences are played; half begin from nothing and half from a claimed run."""
    steps: ClassVar[int] = 16
    least_landed: ClassVar[int] = 5
    """How often each of the ten changes has to land, or the sequences proved too little."""

    async def test_generated_sequences_are_answered_as_the_rules_answer(self, store: Store) -> None:
        seed = os.environ.get("TENURE_TEST_SEED", "1")
        seed = secrets.token_hex(4) if seed == "random" else seed
        sequences = int(os.environ.get("TENURE_TEST_SEQUENCES", self.sequences))
        tally = Tally()
        # A machine that stands still lets leases run out that a sequence counts on, and less lands: then some more.
        for number in range(4 * sequences):
            if number >= sequences and not self.lacking(tally):
                break
            sequence = Sequence(
                store=store, seed=f"{seed}.{number}", pass_ms=self.pass_ms, short_ms=self.short_ms // 4, tally=tally,
                patient=hasattr(self, "advance_ms"), turn_history=getattr(self, "turn_history", None),
            )  # fmt: skip
            await sequence.play(steps=self.steps, claimed=number % 2 == 0)
        landed = {name: tally.landed(name) for name in (*CHANGES, *(f"end {how}" for how in How))}
        print(f"{type(self).__name__}, {sequences} sequences from seed {seed}, landed: {landed}")  # noqa: T201
        assert self.lacking(tally) == {}, landed
        if hasattr(self, "advance_ms"):
            # Only where time is moved by the sequence itself does the seed alone say what is met.
            self.met_enough(tally)

    def lacking(self, tally: Tally) -> dict[str, int]:
        """Return what landed less often than it has to, and how often."""
        few = {name: times for name in CHANGES if (times := tally.landed(name)) < self.least_landed}
        return few | {f"end {how}": 0 for how in How if not tally.landed(f"end {how}")}

    def met_enough(self, tally: Tally) -> None:
        """Check that the sequences met the common refusals too."""
        wanted = {"absent", "conflict", "closed", "quarantined", "suspended", "status", "lost", "expired", "held"}
        wanted |= {"moved", "declined", "sequence", "inbox", "request_closed", "stale", "not_due", "crowded"}
        assert sorted(wanted - tally.refusals()) == []
