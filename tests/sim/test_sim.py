"""The simulator: the same seed takes the same course, nothing goes wrong, and what is broken on purpose is found."""

import gc
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tenure.core import journal, rules
from tenure.core.run import Commit, Facts, Renew
from tenure.testing.linear import NEVER, Op, linearizable
from tenure.testing.sim.__main__ import main
from tenure.testing.sim.campaign import one, smaller
from tenure.testing.sim.judge import judge
from tenure.testing.sim.loop import SimLoop
from tenure.testing.sim.notes import Played
from tenure.testing.sim.playing import play
from tenure.testing.sim.story import Blow, Road, Story, Wish, draw
from tenure.trust import Trust

TRACE = """
import hashlib, sys
from tenure.testing.sim.playing import play
from tenure.testing.sim.story import draw
for seed in map(int, sys.argv[1:]):
    played = play(draw(seed))
    print(seed, hashlib.sha256(repr((played.decided, played.effects)).encode()).hexdigest())
"""


def _told(played: Played) -> Counter[str]:
    return Counter(f"{type(d.change).__name__} {d.answer.verdict.value}" for d in played.decided)


def test_the_same_seed_takes_the_same_course_in_any_process_whatever_was_played_before() -> None:
    seeds = [str(seed) for seed in range(1, 13)]
    said = [
        subprocess.run(
            [sys.executable, "-c", TRACE, *order],
            env={**os.environ, "PYTHONHASHSEED": hashing},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for hashing, order in (("1", seeds), ("2", seeds[::-1]))
    ]
    assert said[0] == said[1][::-1]
    assert len({line.split()[1] for line in said[0]}) == len(seeds), "each seed has a course of its own"


def test_a_story_is_read_back_from_what_a_violation_prints() -> None:
    story = draw(7)
    assert Story.of(story.line()) == story
    assert json.loads(story.line())["seed"] == 7


STILL = Story(seed=3, ttl_s=2.0, workers=2, wishes=(Wish(kind="steps", at_s=0.1), Wish(kind="agent", at_s=0.1)))


def test_a_line_that_no_violation_printed_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--replay", "{}"])
    assert "--replay takes the line that a violation printed" in capsys.readouterr().err


def test_a_story_is_played_without_the_package_that_only_trio_brings(tmp_path: Path) -> None:
    (tmp_path / "sniffio.py").write_text("raise ModuleNotFoundError('not there')\n")
    (tmp_path / "trio.py").write_text("raise ModuleNotFoundError('not there')\n")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    program = "from tenure.testing.sim.__main__ import main; main(['--replay', __import__('sys').argv[1]])"
    command = [sys.executable, "-c", program, draw(1).line()]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "nothing is wrong\n"), done.stderr


def test_nothing_of_a_world_is_left_when_it_has_ended() -> None:
    # Whom a kill leaves where they stand never end, and what a library knows of them held all that they knew.
    kill = Blow(at_s=0.7, what="kill", length=0.5)
    play(replace(STILL, blows=(kill,)))
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, SimLoop)]


def test_a_quiet_story_completes_without_a_takeover() -> None:
    played = play(STILL)
    assert judge(played) == []
    assert [run.status.value for run, _ in played.ends.values() if run is not None] == ["completed", "completed"]
    assert all(run is not None and run.attempt == 1 for run, _ in played.ends.values())
    assert _told(played)["Claim landed"] >= 2


@pytest.mark.parametrize("what", ["kill", "stop", "cut", "restart", "failover", "step", "outage"])
def test_each_blow_falls_and_the_runs_end_all_the_same(what: str) -> None:
    length = {"kill": 3.0, "stop": 5.0, "cut": 5.0, "step": 10_000.0}.get(what, 0.5)
    wishes = tuple(Wish(kind="steps", at_s=0.1 * n) for n in range(1, 5))
    blows = tuple(Blow(at_s=at_s, what=what, whom=n, length=length) for n, at_s in enumerate((0.7, 2.0)))
    story = replace(STILL, wishes=wishes, blows=blows, seed=11)
    played = play(story)
    assert judge(played) == []
    # A promotion may forget a run whose end its submitter has been told.
    ends = [run for run, _ in played.ends.values()]
    assert all(run.status.value == "completed" if run is not None else what == "failover" for run in ends)
    told = _told(played)
    if what in ("kill", "stop", "cut"):
        assert sum(run.attempt - 1 for run, _ in played.ends.values() if run is not None) > 0
    if what == "restart":
        assert told["Reattach landed"] > 0
    if what == "failover":
        assert played.lost_s


def test_i14_a_call_whose_answer_its_own_grant_recorded_is_found_also_after_another_was_let_in() -> None:
    kill = Blow(at_s=0.2, what="kill", length=1.0)
    played = play(replace(STILL, workers=1, wishes=(Wish(kind="steps", at_s=0.1),), blows=(kill,)))
    run, rows = played.ends["r0"]
    assert run is not None
    recorded = {(event.get("name"), row.token) for row in rows for event in journal.events_of(row)}
    own = [call for call in played.effects if call.token < run.token and (call.name, call.token) in recorded]
    assert (own != [], judge(played)) == (True, [])
    played.effects.append(replace(own[0], at_s=played.ended_s))
    assert [line.split()[1] for line in judge(played)] == ["I14", "I5"]


@pytest.fixture
def found_within() -> Callable[..., str]:
    def found_within(invariant: str, histories: int, *blows: Blow, road: Road = STILL.road) -> str:
        for seed in range(1, 1 + histories):
            wishes = tuple(Wish(kind=kind, at_s=0.1) for kind in ("steps", "agent", "steps"))
            wrong, _ = one(Story(seed=seed, ttl_s=2.0, workers=2, wishes=wishes, blows=blows, road=road))
            if hit := [line for line in wrong if invariant in line]:
                return hit[0]
        pytest.fail(f"{histories} histories did not find what breaks {invariant}")

    return found_within


CUT = (Blow(at_s=0.6, what="cut", whom=0, length=6.0), Blow(at_s=0.6, what="cut", whom=1, length=1.5))
STOP = (Blow(at_s=0.6, what="stop", whom=0, length=4.0), Blow(at_s=1.0, what="stop", whom=1, length=2.5))
KILL = (Blow(at_s=0.7, what="kill", whom=0, length=1.0), Blow(at_s=1.2, what="kill", whom=1, length=1.0))


class TestWhatIsBrokenOnPurposeIsFound:
    """A judge that finds nothing in broken code finds nothing in whole code either."""

    def test_i01_a_write_after_the_end_of_its_lease(self, monkeypatch: pytest.MonkeyPatch, found_within: Any) -> None:
        decide = rules.decide

        def late(change: Any, found: Any, facts: Facts) -> Any:
            if isinstance(change, Commit | Renew):
                facts = replace(facts, now_us=facts.now_us - 5_000_000)
            return decide(change, found, facts)

        monkeypatch.setattr(rules, "decide", late)
        found_within("I1 ", 20, *STOP)

    def test_i01_a_write_without_a_fence(self, monkeypatch: pytest.MonkeyPatch, found_within: Any) -> None:
        monkeypatch.setattr(rules, "holds", lambda *_: True)
        found_within("I1 ", 40, *STOP, road=Road(late=0.3, late_s=5.0))

    def test_i02_a_token_that_only_counts(self, monkeypatch: pytest.MonkeyPatch, found_within: Any) -> None:
        monkeypatch.setattr(rules, "later", lambda token, _: token + 1)
        found_within("I3 ", 20, Blow(at_s=1.5, what="failover", length=1.45))

    def test_i05_a_holder_that_trusts_too_long(self, monkeypatch: pytest.MonkeyPatch, found_within: Any) -> None:
        def deadline(self: Trust, sent_ns: int, left_ms: int) -> int:
            return sent_ns + (left_ms + 3 * self.grant.ttl_ms) * 1_000_000

        monkeypatch.setattr(Trust, "_deadline", deadline)
        found_within("I5 ", 20, *CUT)

    def test_i20_a_heartbeat_that_trusts_what_it_does_not_know(
        self, monkeypatch: pytest.MonkeyPatch, found_within: Any
    ) -> None:
        def unanswered(self: Trust, error: Exception, /) -> None:
            self.believe(self._clock.boot_ns(), self.grant.ttl_ms)

        monkeypatch.setattr(Trust, "unanswered", unanswered)
        found_within("I5 ", 20, *CUT)

    def test_i14_a_replay_that_forgets_records(self, monkeypatch: pytest.MonkeyPatch, found_within: Any) -> None:
        add = journal.State.add

        def forgetful(self: journal.State, found: journal.Event, /) -> None:
            if found["type"] != "record":
                add(self, found)

        monkeypatch.setattr(journal.State, "add", forgetful)
        found_within("I14 ", 20, *KILL)

    def test_i22_a_limit_of_one_crash(self, monkeypatch: pytest.MonkeyPatch, found_within: Any) -> None:
        decide = rules.decide

        def hasty(change: Any, found: Any, facts: Facts) -> Any:
            if hasattr(change, "max_crashes"):
                change = replace(change, max_crashes=1)
            return decide(change, found, facts)

        monkeypatch.setattr(rules, "decide", hasty)
        found_within("I22 ", 10, *KILL)

    def test_a_violation_is_made_small_and_printed_for_a_replay(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(rules, "later", lambda token, _: token)
        story = replace(draw(5), blows=(*draw(5).blows, Blow(at_s=1.0, what="outage", length=0.5)))
        assert any("I2 " in line for line in one(story)[0])
        least = smaller(story)
        assert (least.blows, len(least.wishes)) == ((), 1)
        assert main(["--replay", least.line()]) == 1
        assert "I2 " in capsys.readouterr().out


class TestLinearizability:
    """The search itself, on a register."""

    @staticmethod
    def step(state: int, call: tuple[str, int], answered: bool) -> Iterator[int]:
        what, value = call
        if what == "write":
            yield value
            if not answered:
                yield state
        elif value == state:
            yield state

    @staticmethod
    def op(what: str, value: int, sent: float, told: float = NEVER) -> Op[tuple[str, int]]:
        return Op(sent=sent, told=told, call=(what, value))

    def test_calls_that_overlap_may_stand_in_any_order(self) -> None:
        ops = [self.op("write", 1, 0, 10), self.op("read", 0, 1, 2), self.op("read", 1, 3, 4)]
        assert linearizable(ops, 0, self.step)

    def test_a_read_may_not_go_back(self) -> None:
        ops = [self.op("write", 1, 0, 10), self.op("read", 1, 1, 2), self.op("read", 0, 3, 4)]
        assert not linearizable(ops, 0, self.step)

    def test_a_write_without_an_answer_may_take_effect_late_or_never(self) -> None:
        lost = self.op("write", 1, 0)
        assert linearizable([lost, self.op("read", 0, 1, 2), self.op("read", 1, 3, 4)], 0, self.step)
        assert linearizable([lost, self.op("read", 0, 1, 2)], 0, self.step)
        assert not linearizable([lost, self.op("read", 1, 1, 2), self.op("read", 0, 3, 4)], 0, self.step)
