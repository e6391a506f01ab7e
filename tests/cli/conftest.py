"""A console on a store of its own in this process, empty or with a run in every state."""

import os
import uuid

import pytest

from cli.kit import Console, fill


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TENURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def console(capsys: pytest.CaptureFixture[str]) -> Console:
    return Console(capsys, f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def filled(console: Console) -> Console:
    console.do(fill)
    return console
