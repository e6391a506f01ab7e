"""Planted faults are caught by the tests that are mapped to them; the sound source passes the same ones.

Ten are planted, chosen by the source as it is; all of them with `--long`, and by `python -m faults.run`.
"""

import random
import zlib
from pathlib import Path

import pytest

from faults.planted import FAULTS
from faults.planting import POSTGRES, SOURCE, VALKEY, Fault, attempt, caught, database, plant, run

CHOSEN = 10


def seed_of_the_source() -> int:
    """A number that every change of the source changes, and nothing else."""
    seed = 0
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix in (".py", ".lua", ".sql"):
            seed = zlib.crc32(path.read_bytes(), seed)
    return seed


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fault" not in metafunc.fixturenames:
        return
    seed = seed_of_the_source()
    chosen = FAULTS if metafunc.config.getoption("--long") else random.Random(seed).sample(FAULTS, CHOSEN)
    # The seed stands in the name of each test, so that it is told whenever one fails.
    metafunc.parametrize("fault", chosen, ids=[f"{fault.name}, seed {seed}" for fault in chosen])


def test_there_are_enough_faults_of_each_sort() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) >= 40
    files = [fault.file for fault in FAULTS]
    assert sum(file.endswith(".py") for file in files) >= 10
    assert sum(file.endswith(".lua") for file in files) >= 5
    assert sum("sql/sqlite" in file for file in files) >= 3
    assert sum("sql/postgres" in file for file in files) >= 8
    assert {"trust.py", "watching.py", "heartbeat.py", "spawned.py", "sweep.py", "repair.py", "looks.py"} <= {*files}


def test_every_fault_can_still_be_planted() -> None:
    unsure = [f.name for f in FAULTS if (SOURCE / "tenure" / f.file).read_text().count(f.old) != 1 or f.old == f.new]
    assert unsure == []


@pytest.mark.parametrize("by", sorted({fault.by for fault in FAULTS}))
def test_the_sound_source_passes_what_the_faults_fail(by: str, request: pytest.FixtureRequest) -> None:
    found = [fault for fault in FAULTS if fault.by == by]
    code, words = run(SOURCE, by, " or ".join(sorted({fault.caught for fault in found})), url=_url(found[0], request))
    assert code == 0, words


def test_the_planted_fault_is_caught(fault: Fault, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    copy = plant(fault, tmp_path)
    code, words = attempt(copy, fault, url=_url(fault, request))
    assert caught(code, words), f"{fault.name}: pytest ended with {code}\n{words}"


def _url(fault: Fault, request: pytest.FixtureRequest) -> str:
    if fault.server == POSTGRES:
        return database(request.getfixturevalue("postgres_url"))
    return str(request.getfixturevalue("valkey_url")) if fault.server == VALKEY else ""
