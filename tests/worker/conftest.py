"""A fleet on SQLite and one on Valkey; one on PostgreSQL for the tests that ask for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.fleet import Fleet, fleet


@pytest.fixture(params=["sqlite", "valkey"])
def workers(request: pytest.FixtureRequest, tmp_path: Path, namespace: str) -> Iterator[Fleet]:
    """Real workers on each kind of store."""
    kind = request.param
    url = f"sqlite:///{tmp_path}/fleet.db" if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")
    with fleet(tmp_path, url, namespace) as made:
        yield made


@pytest.fixture
def workers_on_file(tmp_path: Path, namespace: str) -> Iterator[Fleet]:
    """Real workers on SQLite, for what no store can make different."""
    with fleet(tmp_path, f"sqlite:///{tmp_path}/fleet.db", namespace) as made:
        yield made
