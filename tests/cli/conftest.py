"""A console on a store of its own in this process, empty or with a run in every state."""

import os
import uuid

import pytest

from cli.kit import Console, fill
from tenure.stores import open_store


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TENURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def console(capsys: pytest.CaptureFixture[str]) -> Console:
    url = f"memory://{uuid.uuid4().hex}"
    open_store(url)  # what is there before a command is there after it
    return Console(capsys, url)


@pytest.fixture
def filled(console: Console) -> Console:
    console.do(fill)
    return console
