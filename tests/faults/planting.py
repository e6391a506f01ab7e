"""Planting a fault: one text of a copy of the source is replaced, and the tests that must notice run on the copy."""

import os
import shutil
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"

MEMORY = "tests/contract/test_memory.py::TestMemory"
SQLITE = "tests/contract/test_sqlite.py::TestSqlite"
VALKEY = "tests/contract/test_redis.py::TestRedis"
POSTGRES = "tests/contract/test_postgres.py::TestPostgres"
ONCE = {MEMORY: "asyncio", VALKEY: "valkey9"}  # of the ways in which the same tests run, the quickest


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`old` stands once in `file` (below src/tenure) and becomes `new`; the tests of `by` named `caught` must fail."""

    name: str
    file: str
    old: str
    new: str
    by: str
    caught: str

    @property
    def server(self) -> str:
        """Which server the tests need: the contract's, or none."""
        return POSTGRES if "postgres" in self.by else VALKEY if "redis" in self.by else ""


class NotPlanted(Exception):
    """The text to be replaced is not there, or is there more than once: the fault has to be written anew."""


def plant(fault: Fault, folder: Path) -> Path:
    """Copy the source into the folder with the fault in it; return the copy."""
    copy = folder / "src"
    shutil.copytree(SOURCE, copy)
    path = copy / "tenure" / fault.file
    text = path.read_text()
    if text.count(fault.old) != 1 or fault.old == fault.new:
        raise NotPlanted(f"{fault.name}: {fault.old!r} stands {text.count(fault.old)} times in {fault.file}, not once")
    path.write_text(text.replace(fault.old, fault.new))
    for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        stale.unlink()  # compiled code is trusted by size and second
    return copy


def run(source: Path, by: str, chosen: str, *, url: str = "") -> tuple[int, str]:
    """Run the chosen tests against a copy of the source until the first fails; return pytest's exit code and words."""
    only = f"({chosen}) and {ONCE[by]}" if by in ONCE else chosen
    command = [
        *(sys.executable, "-m", "pytest", by, "-k", only, "-x", "-q", "--no-header", "--tb=line"),
        *(
            "-p",
            "anyio",
            "-p",
            "pytest_timeout",
            "-p",
            "no:cacheprovider",
            "-o",
            f"pythonpath={source} {ROOT / 'tests'}",
            "--timeout=60",
        ),
    ]
    env = {**os.environ, "PYTHONPATH": str(source), "CI": "true"}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # half of a short run would be spent on loading what it does not use
    if url:
        env["TENURE_TEST_POSTGRES_URL" if "postgres" in by else "TENURE_TEST_VALKEY_URL"] = url
    env.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False)
    return done.returncode, done.stdout + done.stderr


def attempt(source: Path, fault: Fault, *, url: str = "") -> tuple[int, str]:
    """Run the tests of a fault against a copy that holds it; once more if they could not begin."""
    code, words = run(source, fault.by, fault.caught, url=url)
    if code == 0 or caught(code, words):
        return code, words
    return run(source, fault.by, fault.caught, url=url)


def database(url: str) -> str:
    """Return the URL of a new database on the server: the functions of a faulty copy must not meet the sound ones."""
    import psycopg

    name = f"fault_{uuid.uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    return url.rpartition("/")[0] + "/" + name


def caught(code: int, words: str) -> bool:
    """Whether a test ran and failed; a run that could not begin has caught nothing."""
    return code == 1 and " failed" in words and " error" not in words.splitlines()[-1]
