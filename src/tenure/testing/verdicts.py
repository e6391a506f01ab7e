"""The verdict on a live deployment, part by part of what was played on it. Needs pytest (extra `testing`)."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis  # noqa: F401 - the whole extra, so that what is missing is said before anything is played
import pytest

from tenure.errors import NotAllowed

CHAOS = "chaos"
MODULE = "tenure.testing.conformance"


@dataclass(slots=True, kw_only=True)
class Verdict:
    """One part: how many tests held, which failed and why, and which could not be shown here and why."""

    part: str
    held: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    not_shown: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Return whether nothing failed."""
        return not self.failed


class _Bench:
    """Takes in what pytest reports."""

    def __init__(self, *, chaos: bool) -> None:
        self.parts: dict[str, str] = {}
        self.verdicts: dict[str, Verdict] = {}
        self._chaos = chaos

    def pytest_collection_modifyitems(self, items: list[pytest.Item], config: pytest.Config) -> None:
        """Note which part each test belongs to, by the file that it stands in."""
        kept = [item for item in items if self._chaos or "TestChaos" not in item.nodeid]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
        for item in items:
            module: str = item.function.__module__  # type: ignore[attr-defined]
            part = module.rpartition(".")[2].removeprefix("contract_")
            self.parts[item.nodeid] = CHAOS if module == MODULE else part

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one phase of one test."""
        part = self.parts[report.nodeid]
        verdict = self.verdicts.setdefault(part, Verdict(part=part))
        name = report.nodeid.rpartition("::")[2]
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            lines = str(crash.message if crash is not None else report.longrepr).strip().splitlines()
            verdict.failed.setdefault(name, next(iter(lines), "it failed without a word"))
        elif report.skipped:
            where = report.longrepr
            verdict.not_shown[name] = str(where[2] if isinstance(where, tuple) else where).removeprefix("Skipped: ")
        elif report.when == "call":
            verdict.held += 1


def judge(url: str, /, *, chaos: bool = True) -> list[Verdict]:
    """Return the verdicts on the store of a URL, played in scratch namespaces that are removed.

    NotAllowed with what pytest said if nothing could be played.
    """
    bench, said = _Bench(chaos=chaos), io.StringIO()
    with tempfile.TemporaryDirectory(prefix="tenure-conformance-") as folder, _alone():
        (Path(folder) / "pytest.ini").write_text("[pytest]\n")
        arguments = ["--rootdir", folder, "-c", f"{folder}/pytest.ini", "-q", "--tb=short", "-p", "no:cacheprovider"]
        arguments += ["-p", "anyio", "-p", "tenure.testing.plugin", "--pyargs", MODULE, "--tenure-store", url]
        with redirect_stdout(said), redirect_stderr(said):
            code = pytest.main(arguments, plugins=[bench])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not bench.verdicts:
        message = f"nothing could be played ({pytest.ExitCode(code).name}): {said.getvalue()[-1000:].strip()}"
        raise NotAllowed(message)
    return list(bench.verdicts.values())


@contextmanager
def _alone() -> Iterator[None]:
    """Let no plugin and no option of the caller's own pytest take part."""
    changed = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
