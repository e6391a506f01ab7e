"""Every planted fault is caught by the contract: the tests have teeth, and the sound source passes the same ones."""

from pathlib import Path

import pytest

from faults.planted import FAULTS
from faults.planting import SOURCE, VALKEY, Fault, caught, plant, run


def test_there_are_enough_faults_of_each_sort() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)
    files = [fault.file for fault in FAULTS]
    assert sum(file.endswith(".py") for file in files) >= 10
    assert sum(file.endswith(".lua") for file in files) >= 5
    assert sum(file.endswith(".sql") for file in files) >= 3


@pytest.mark.parametrize("by", sorted({fault.by for fault in FAULTS}))
def test_the_sound_source_passes_what_the_faults_fail(by: str, request: pytest.FixtureRequest) -> None:
    chosen = " or ".join(sorted({fault.caught for fault in FAULTS if fault.by == by}))
    code, words = run(SOURCE, by, chosen, valkey_url=_valkey(by, request))
    assert code == 0, words


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_planted_fault_is_caught(fault: Fault, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    copy = plant(fault, tmp_path)
    code, words = run(copy, fault.by, fault.caught, valkey_url=_valkey(fault.by, request))
    assert caught(code, words), f"{fault.name}: pytest ended with {code}\n{words}"


def _valkey(by: str, request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("valkey_url")) if by == VALKEY else ""
