"""Faults in what works on the law: lease, heartbeat, supervisor, worker and sweep; and in the clock of PostgreSQL."""

from dataclasses import replace

from faults.planting import Fault

TRUST, HOLD, SWEEP = "tests/ledger/test_trust.py", "tests/ledger/test_hold.py", "tests/worker/test_sweep.py"
WORKER, SPAWNED = "tests/worker/test_worker.py", "tests/worker/test_spawned.py"
LATE = "tests/stores/test_postgres_late.py"
MOST = "test_i05_an_answer_gives_no_more_trust_than_one_ttl"

_trust = Fault(name="", file="trust.py", old="", new="", by=TRUST, caught=MOST)
_beat = replace(_trust, file="heartbeat.py", by=HOLD)
_sweep = replace(_trust, file="sweep.py", by=SWEEP)
_worker = replace(_trust, by=WORKER)
_spawned = replace(_trust, file="spawned.py", by=SPAWNED)

WORKING = [
    replace(_trust, name="a lease is trusted for more than it was given",
            old="left_ms = min(left_ms, self.grant.ttl_ms)", new="left_ms = max(left_ms, self.grant.ttl_ms)"),
    replace(_trust, name="no margin before the end of a lease",
            old="(left_ms - margin_ms(self.grant.ttl_ms)) * 1_000_000", new="left_ms * 1_000_000"),
    replace(_trust, name="heartbeat that trusts unknown", caught="test_i20_a_renewal_without_an_answer",
            old="        known = error if isinstance(error, TenureError) else None\n",
            new="        self.believe(self._clock.boot_ns(), self.grant.ttl_ms)\n"
                "        known = error if isinstance(error, TenureError) else None\n"),
    replace(_trust, name="nobody watches the deadline", file="watching.py",
            caught="test_i05_a_holder_is_stopped_at_its_deadline",
            old="                    trust.expire()\n", new="                    pass\n"),
    replace(_beat, name="a loop that hangs keeps its runs", caught="test_i20_a_loop_that_hangs",
            old="if stalled_ms > pulse.max_stall_ms:", new="if stalled_ms < 0:"),
    replace(_beat, name="a cancelled run is not told to its holder", file="trust.py",
            caught="test_i05_a_cancelled_run_cancels",
            old="            if self.lose(error):\n", new="            if error is None:\n"),
    replace(_sweep, name="sweep that recovers before it claims", caught="test_b030_what_ended_or_was_taken",
            old="        async with anyio.create_task_group() as tasks:\n            for hint, found in zip(hints",
            new="        for hint in hints:\n"
                "            await self._app.kinds[hint.kind].fn(await self._ledger.load(hint.run), None)\n"
                "        async with anyio.create_task_group() as tasks:\n            for hint, found in zip(hints"),
    replace(_sweep, name="sweep that stops at the first it cannot take", caught="test_b051_what_cannot_be_taken",
            old="            while fresh := await self._fresh(sweep, limit):\n",
            new="            if fresh := await self._fresh(sweep, limit):\n"),
    replace(_sweep, name="a failing store looks like a whole sweep", caught="test_b043_a_store_that_fails",
            old='        log.warning("the sweep is not complete: %s", error)\n        self.complete = False\n',
            new='        log.warning("the sweep is not complete: %s", error)\n'),
    replace(_sweep, name="a lease that a clock stretched is not cut", file="repair.py",
            caught="test_i11_a_lease_that_a_clock",
            old="if set_back.out_of_reach(run, now_ms):", new="if now_ms < 0:"),
    replace(_sweep, name="stray entries hide a lost one", file="repair.py", caught="test_b050_an_expired_run",
            old="rules.due_index(run) is not None and run.id not in seen.entries", new="run.id in seen.entries"),
    replace(_worker, name="more runs than slots", file="looks.py", caught="test_it_runs_what_is_due_now",
            old="chosen = choose(hints, free, scatter", new="chosen = choose(hints, free + 2, scatter"),
    replace(_spawned, name="a run whose process died is handed back", caught="test_i22_who_shared_a_death",
            old="how = How.YIELD if innocent else How.FORFEIT", new="how = How.YIELD"),
    replace(_spawned, name="who was beside a killed run is blamed", caught="test_i22_beside_the_run",
            old="(self.culprits and run not in self.culprits)", new="False"),
    replace(_spawned, name="a leader is blamed for a death", caught="test_i22_who_shared_a_death",
            old="orderly or run == LEADER_ID or", new="orderly or"),
    replace(_spawned, name="an orderly end is blamed", caught="test_i22_an_orderly_end",
            old="innocent = orderly or ", new="innocent = "),
    replace(_trust, name="now() for clock_timestamp()", file="stores/sql/postgres/law_1_shared.sql", by=LATE,
            caught="test_i01_who_waited_for_a_row", old="date_part('epoch', clock_timestamp())",
            new="date_part('epoch', now())"),
]  # fmt: skip
