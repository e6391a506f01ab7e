"""The licence audit: its rules on broken metadata, the real environment, and worker processes that die."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.license_audit.__main__ import verdict
from examples.license_audit.agents import KIND, Settings, make_agent, prompt
from examples.license_audit.audit import Audit, Plan
from examples.license_audit.auditor import RuleModel
from examples.license_audit.calls import ASKED, CALLED, RETURNED, read_calls
from examples.license_audit.places import BROKEN, known, places
from examples.license_audit.records import Evidence, Finding
from examples.license_audit.replay import Journals, Landed, count
from tenure import CheckpointedAgent, Ledger, open_store
from tenure.agent.model import ModelRequest
from tenure.core.messages import ToolCall, ToolMessage, ToolResult, assistant, user

ROOT = Path(__file__).parents[2]

BROKEN_ONES = {
    "broken-binary-1.0": ("NOASSERTION", "none"),
    "broken-contradiction-1.0": ("MIT", "low"),
    "broken-dangling-1.0": ("NOASSERTION", "none"),
    "broken-empty-licence-1.0": ("MIT", "medium"),
    "broken-expression-1.0": ("ISC", "medium"),
    "broken-file-list-1.0": ("Unlicense", "medium"),
    "broken-huge-licence-1.0": ("MIT", "medium"),
    "broken-mention-1.0": ("MPL-2.0", "medium"),
    "broken-metadata-folder-1.0": ("MIT", "medium"),
    "broken-no-licence-1.0": ("NOASSERTION", "none"),
    "broken-no-metadata-1.0": ("MIT", "medium"),
    "broken-one-file-1.0": ("Apache-2.0", "medium"),
    "broken-open-classifiers-1.0": ("BSD-2-Clause OR BSD-3-Clause", "medium"),
    "broken-proprietary-1.0": ("NOASSERTION", "none"),
    "broken-undecodable-1.0": ("BSD-2-Clause", "high"),
}


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.license_audit", *arguments]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as started:
        try:
            stdout, stderr = started.communicate(timeout=110)
        except BaseException:
            os.killpg(started.pid, signal.SIGKILL)  # its fleet too; children whose supervisor is gone drain
            raise
    return subprocess.CompletedProcess(command, started.returncode, stdout, stderr)


def number(output: str, what: str) -> float:
    found = re.search(rf"{re.escape(what)} ([\d.]+)", output)
    assert found is not None, output
    return float(found[1])


# ------------------------------------------------------------------------------------------------ the rules


async def answer(*messages: Any) -> Any:
    reply = await RuleModel().ask(ModelRequest(messages=messages, step=len(messages)))
    return [(call.name, call.arguments) for call in reply.message.calls] or json.loads(reply.message.text)


async def test_the_model_reads_first_then_compares_what_sounds_like_a_licence() -> None:
    asked = user(prompt("thing-1.0"))
    assert await answer(asked) == [
        ("read_metadata", {"dist": "thing-1.0"}),
        ("list_files", {"dist": "thing-1.0"}),
    ]
    home = "thing-1.0.dist-info"
    header = {"field": "license-file", "line": 4, "text": "LICENSE"}
    first = assistant("", *(ToolCall(id=one, name=one, arguments={}) for one in ("read_metadata", "list_files")))
    found = ToolMessage(
        parts=(
            ToolResult(call_id="read_metadata", content={"path": f"{home}/METADATA", "headers": [header]}),
            ToolResult(
                call_id="list_files",
                content=[{"path": f"{home}/{name}", "bytes": 9} for name in ("AUTHORS", "LICENSE", "RECORD")],
            ),
        )
    )
    reads = await answer(asked, first, found)
    assert [(name, arguments["path"]) for name, arguments in reads] == [
        ("read_license", f"{home}/LICENSE"),
        ("read_license", f"{home}/AUTHORS"),
    ]
    second = assistant("", *(ToolCall(id=str(n), name=name, arguments=a) for n, (name, a) in enumerate(reads)))
    texts = ToolMessage(
        parts=tuple(
            ToolResult(call_id=str(n), content={"path": a["path"], "encoding": "utf-8", "lines": [_line(text)]})
            for n, ((_, a), text) in enumerate(zip(reads, ("Copyright, the authors", "Ann, Bob"), strict=True))
        )
    )
    assert await answer(asked, first, found, second, texts) == [
        ("match_text", {"dist": "thing-1.0", "path": f"{home}/LICENSE"})
    ]


def _line(text: str) -> dict[str, Any]:
    return {"line": 1, "text": text}


async def test_every_broken_distribution_gets_its_finding_and_none_breaks_a_run() -> None:
    assert BROKEN_ONES.keys() == places([BROKEN]).keys()
    agent = make_agent(Settings())
    found: dict[str, Finding] = {}
    async with open_store("memory://") as store, Ledger(store) as ledger:
        for dist in BROKEN_ONES:
            found[dist] = await CheckpointedAgent(agent, ledger).run(prompt(dist), id=dist)
    assert {dist: (one.spdx, one.confidence) for dist, one in found.items()} == BROKEN_ONES
    assert found["broken-contradiction-1.0"].notes == (
        "line 5 of the metadata says otherwise: GPL-3.0-only",
        "the licence text says otherwise: Apache-2.0",
    )
    assert found["broken-mention-1.0"].evidence == (
        Evidence(file="broken_mention.py", line=1, text="# SPDX-License-Identifier: MPL-2.0", says="MPL-2.0"),
    )
    assert any("etc/hostname" in note for note in found["broken-file-list-1.0"].notes)


def test_every_line_of_evidence_is_what_stands_there(whole: tuple[dict[str, Any], str]) -> None:
    checked = 0
    for dist, finding in whole[0]["distributions"].items():
        for one in finding["evidence"]:
            text = (known()[dist].root / one["file"]).read_bytes().decode(errors="replace")
            line = text.splitlines()[one["line"] - 1]
            assert " ".join(one["text"].removesuffix("…").split()[:3]) in " ".join(line.split()), one
            checked += 1
    assert checked > 60


# ------------------------------------------------------------------------------------------------ the program


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The report of the whole environment and what was printed."""
    out = tmp_path_factory.mktemp("audit") / "report.json"
    done = program("--out", str(out), "--store", "memory://")
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_bytes()), done.stdout


def test_one_process_audits_the_whole_environment(whole: tuple[dict[str, Any], str]) -> None:
    report, printed = whole
    real = {name: one for name, one in report["distributions"].items() if not name.startswith("broken-")}
    assert len(real) >= 30
    assert report["failed"] == {}
    assert sum(report["licences"].values()) == len(report["distributions"])
    assert real[f"pytest-{_version('pytest')}"]["spdx"] == "MIT"
    assert real[f"hypothesis-{_version('hypothesis')}"]["spdx"] == "MPL-2.0"
    assert real[f"tenacity-{_version('tenacity')}"]["spdx"] == "Apache-2.0"
    assert sum(one["confidence"] == "high" for one in real.values()) > len(real) // 2
    assert number(printed, "median") >= 3
    assert number(printed, "side by side") >= len(real)
    assert number(printed, "sent again") == number(printed, "run again") == 0


def _version(name: str) -> str:
    return next(place.version for place in known().values() if place.name == name)


@pytest.mark.slow
def test_workers_that_are_killed_and_frozen_give_the_bytes_of_one_undisturbed_process(tmp_path: Path) -> None:
    real = [dist for dist in known() if not dist.startswith("broken-")][:4]
    dists = [*real, "broken-undecodable-1.0", "broken-contradiction-1.0"]
    done = program(
        *dists,
        *("--workers", "3", "--chaos", "7", "--strikes", "6", "--ttl", "1", "--think", "200"),
        *("--out", str(tmp_path / "report.json")),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the bytes of an undisturbed process: yes" in done.stdout
    assert number(done.stdout, "killed") + number(done.stdout, "frozen") > 0
    assert number(done.stdout, "sent again") == number(done.stdout, "run again") == 0
    assert number(done.stdout, "completed") == len(dists)


def test_an_audit_that_was_killed_goes_on_in_the_next_process_and_asks_nothing_twice(tmp_path: Path) -> None:
    dists = [dist for dist in known() if not dist.startswith("broken-")][:4]
    calls = tmp_path / "calls"
    where = ("--store", f"sqlite:///{tmp_path}/audit.db", "--calls", str(calls), "--think", "100", "--ttl", "1")
    command = [sys.executable, "-m", "examples.license_audit", *dists, *where]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}) as killed:
        while not any(line["what"] == RETURNED for line in read_calls(calls)):
            assert killed.poll() is None
            time.sleep(0.01)
        killed.kill()
    done = program(*dists, *where)
    assert done.returncode == 0, done.stdout + done.stderr
    assert number(done.stdout, "takeovers") > 0
    assert number(done.stdout, "sent again") == number(done.stdout, "run again") == 0
    assert number(done.stdout, "asked for") >= number(done.stdout, "answers that landed") == 4 * len(dists)


async def test_a_model_of_pydantic_ai_runs_the_same_program(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/audit.db"
    done = program("broken-expression-1.0", "--store", url, TENURE_MODEL="test")
    assert done.returncode == 0, done.stdout + done.stderr
    async with open_store(url) as store, Ledger(store) as ledger:
        run = await ledger.load("broken-expression-1.0")
        events = [event async for _, event in ledger.handle(run.id).events()]
    assert run.kind == KIND
    assert {event["model"] for event in events if event["type"] == "assistant/message"} == {"test:test"}


def test_what_cannot_be_audited_is_said_before_anything_runs() -> None:
    assert "not installed: nobody-1.0" in program("nobody-1.0").stderr
    assert "--workers 2" in program("--chaos", "1").stderr


# ------------------------------------------------------------------------------------------------ the check can fail


def _numbers(*calls: dict[str, Any]) -> Any:
    journals = Journals(runs=1, completed=1, verified=1)
    journals.landed = {
        ("r", "model", "1"): Landed(attempt=1, at_ms=5_000),
        ("r", "tool", "c"): Landed(attempt=2, at_ms=6_000),
    }
    return count(journals, calls, boot_ms_of_store=1_000)


def test_a_call_that_is_made_again_before_anything_landed_is_no_second_one() -> None:
    found = _numbers(
        {"what": ASKED, "run": "r", "step": 1, "attempt": 1, "boot_ms": 3_000},
        {"what": CALLED, "run": "r", "call": "c", "attempt": 1, "boot_ms": 4_100},
        {"what": CALLED, "run": "r", "call": "c", "attempt": 2, "boot_ms": 4_900},
    )
    assert (found.answers_asked_again, found.results_called_again, found.repeated, found.unlogged) == (0, 0, 1, 0)


def test_a_call_after_what_it_asks_for_has_landed_is_counted() -> None:
    by_time = {"what": ASKED, "run": "r", "step": 1, "attempt": 1, "boot_ms": 4_500}
    by_attempt = {"what": CALLED, "run": "r", "call": "c", "attempt": 3, "boot_ms": 4_000}
    found = _numbers(by_time, by_attempt)
    assert (found.answers_asked_again, found.results_called_again) == (1, 1)
    assert _numbers(by_attempt).unlogged == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"completed": 0},
        {"verified": 0},
        {"answers_asked_again": 1},
        {"results_called_again": 1},
        {"unlogged": 1},
        {},
    ],
)
def test_a_number_that_does_not_hold_is_said_and_exits_1(wrong: dict[str, int], tmp_path: Path, capsys: Any) -> None:
    plan = Plan(dists=("r",), url="memory://", folder=tmp_path, workers=2, chaos=1)
    numbers = _numbers(
        {"what": ASKED, "run": "r", "step": 1, "attempt": 1, "boot_ms": 3_000},
        {"what": CALLED, "run": "r", "call": "c", "attempt": 2, "boot_ms": 4_100},
    )
    done = Audit(findings={}, numbers=numbers, fresh=True, kills=1)
    assert verdict(done, plan, done.report) == 0
    spoilt = replace(done, numbers=replace(numbers, **wrong)) if wrong else done
    assert verdict(spoilt, plan, done.report if wrong else b"other bytes") == 1
    assert "does not hold" in capsys.readouterr().err
