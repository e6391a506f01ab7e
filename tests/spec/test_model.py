"""The change table, model-checked: the properties hold, and each falls when its defence is taken out."""

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import pytest

from spec import tlc
from tenure.core import rules, run

CHECKS = {check.name: check for check in tlc.checks()}
Judge = Callable[[str], tlc.Verdict]


@pytest.fixture(scope="module")
def verdict_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """Give the verdict on a check of this session. TLC runs ahead of the tests, one process for each of two cores."""
    try:
        tlc.command()
    except tlc.ToolMissing as missing:
        # A run that is meant to prove something may not pass by leaving the model out.
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))

    def judge(name: str) -> tlc.Verdict:
        return tlc.run(CHECKS[name], tmp_path_factory.mktemp("tlc"))

    if (
        "PYTEST_XDIST_WORKER" in os.environ
    ):  # another process has other tests of the session; this one cannot know which
        yield judge
        return
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    with ThreadPoolExecutor(2) as pool:
        ahead = {name: pool.submit(judge, name) for name in CHECKS if name in asked}
        yield lambda name: ahead[name].result()
        pool.shutdown(cancel_futures=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, check in CHECKS.items() if not check.falls])
def test_properties_hold_and_changes_land_with_every_defence_in_place(name: str, verdict_of: Judge) -> None:
    verdict = verdict_of(name)
    assert verdict.complete, verdict.output
    assert verdict.landed == set(tlc.table()["configuration"][CHECKS[name].configuration]["lands"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, check in CHECKS.items() if check.switch])
def test_the_property_falls_without_its_defence(name: str, verdict_of: Judge) -> None:
    verdict = verdict_of(name)
    assert verdict.fell == CHECKS[name].falls, verdict.output


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, check in CHECKS.items() if check.falls and not check.switch])
def test_a_limit_is_as_documented(name: str, verdict_of: Judge) -> None:
    verdict = verdict_of(name)
    assert verdict.fell == CHECKS[name].falls, verdict.output


def test_every_change_lands_somewhere() -> None:
    # An import is no step of the model: the README says of what it is made.
    changes = {change.__name__.lower() for change in get_args(run.Change)} - {"end", "import"}
    landed = {name for made in tlc.table()["configuration"].values() for name in made["lands"]}
    assert landed == changes | {how.value for how in run.How}


def test_every_switch_has_a_check_that_fails_without_it() -> None:
    assert {made["switch"] for made in tlc.table()["defence"]} == set(tlc.table()["switches"])


def test_every_property_that_falls_without_a_defence_holds_with_it() -> None:
    for made in tlc.table()["defence"]:
        assert made["property"] in tlc.table()["configuration"][made["configuration"]]["holds"]


def test_statuses_of_the_model_are_those_of_the_rules() -> None:
    text = (tlc.SPEC / "Rules.tla").read_text(encoding="utf-8")
    body = text[text.index("NEXT == [") : text.index("]", text.index("NEXT == ["))]
    model = {status: set(re.findall(r'"(\w+)"', after)) for status, after in re.findall(r"(\w+) *\|-> \{(.*?)\}", body)}
    assert model.pop("absent") == {"queued"}
    assert model == {status.value: {after.value for after in allowed} for status, allowed in rules.NEXT.items()}


def test_tables_of_the_readme_are_drawn_from_the_checks() -> None:
    readme = (tlc.SPEC / "README.md").read_text(encoding="utf-8")
    assert readme == tlc.drawn(readme), "run: python tests/spec/tlc.py"


def test_every_constant_of_the_modules_is_set_and_no_other() -> None:
    declared = set()
    for path in tlc.SPEC.glob("*.tla"):
        for block in re.findall(r"^CONSTANTS(.*?)\n\n", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            declared |= set(re.findall(r"\w+", re.sub(r"\\\*.*", "", block)))
    for check in tlc.checks():
        assert set(tlc.constants(check)) == declared, check.name


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tlc.command.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tlc.ToolMissing, match="Java"):
        tlc.command()
    tlc.command.cache_clear()
