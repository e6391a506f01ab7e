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
        # Where time is real the machine has its part in what lands: then some more, which try what is lacking.
        for number in range(4 * sequences):
            lacking = self.lacking(tally) if number >= sequences else {}
            if number >= sequences and not lacking and not self.unmet(tally):
                break
            if "end release" in lacking:
                lacking["end quarantine"] = 0  # only what was set aside is released
            sequence = Sequence(
                store=store, seed=f"{seed}.{number}", pass_ms=self.pass_ms, short_ms=self.short_ms // 4, tally=tally,
                patient=hasattr(self, "advance_ms"), turn_history=getattr(self, "turn_history", None),
                eager=lacking,
            )  # fmt: skip
            await sequence.play(steps=self.steps, claimed=number % 2 == 0)
        landed = {name: tally.landed(name) for name in (*CHANGES, *(f"end {how}" for how in How))}
        print(f"{type(self).__name__}, {sequences} sequences from seed {seed}, landed: {landed}")  # noqa: T201
        assert self.lacking(tally) == {}, landed
        assert self.unmet(tally) == []

    def lacking(self, tally: Tally) -> dict[str, int]:
        """Return what landed less often than it has to, and how often."""
        few = {name: times for name in CHANGES if (times := tally.landed(name)) < self.least_landed}
        return few | {f"end {how}": 0 for how in How if not tally.landed(f"end {how}")}

    def unmet(self, tally: Tally) -> list[str]:
        """Return which of the common refusals were not met, where the seed alone and no machine says what is met."""
        if not hasattr(self, "advance_ms"):
            return []
        wanted = {"absent", "conflict", "closed", "quarantined", "suspended", "status", "lost", "expired", "held"}
        wanted |= {"moved", "declined", "sequence", "inbox", "request_closed", "stale", "not_due", "crowded"}
        return sorted(wanted - tally.refusals())
