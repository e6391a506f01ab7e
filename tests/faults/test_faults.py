"""Every planted fault is caught by the contract: the tests have teeth, and the sound source passes the same ones."""

from pathlib import Path

import pytest

from faults.planted import FAULTS
from faults.planting import POSTGRES, SOURCE, VALKEY, Fault, caught, database, plant, run


def test_there_are_enough_faults_of_each_sort() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)
    files = [fault.file for fault in FAULTS]
    assert sum(file.endswith(".py") for file in files) >= 10
    assert sum(file.endswith(".lua") for file in files) >= 5
    assert sum("sql/sqlite" in file for file in files) >= 3
    assert sum("sql/postgres" in file for file in files) >= 8


@pytest.mark.parametrize("by", sorted({fault.by for fault in FAULTS}))
def test_the_sound_source_passes_what_the_faults_fail(by: str, request: pytest.FixtureRequest) -> None:
    chosen = " or ".join(sorted({fault.caught for fault in FAULTS if fault.by == by}))
    code, words = run(SOURCE, by, chosen, url=_url(by, request))
    assert code == 0, words


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_planted_fault_is_caught(fault: Fault, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    copy = plant(fault, tmp_path)
    code, words = run(copy, fault.by, fault.caught, url=_url(fault.by, request))
    assert caught(code, words), f"{fault.name}: pytest ended with {code}\n{words}"


def _url(by: str, request: pytest.FixtureRequest) -> str:
    if by == POSTGRES:
        return database(request.getfixturevalue("postgres_url"))
    return str(request.getfixturevalue("valkey_url")) if by == VALKEY else ""
