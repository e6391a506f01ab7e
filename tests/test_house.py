"""The walls of the house: sizes, floors, public names, what an import may load, what may stand in a tracked file."""

import ast
import importlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tenure"

FILE_LINES = 300
FILE_LINES_NEVER = 450
FUNCTION_LINES = 60
# path: why it may pass 300 lines (never 450)
LONGER: dict[str, str] = {
    "src/tenure/core/rules.py": "the law is one file, read in one piece",
    "src/tenure/core/run.py": "the values the law speaks of: a list of records, hardly any code",
    "src/tenure/errors.py": "every error and its code: a list of classes, hardly any code",
    "src/tenure/stores/_postgres_line.py": "one connection and its states, in one piece",
    "src/tenure/stores/memory.py": "one store is one file; this one has no scripts beside it to hold a part",
    "tests/agent/test_recovery.py": "one subject, told in one piece",
    "tests/scenarios/test_bad_input.py": "one table",
    "tests/worker/test_supervisor.py": "one subject, told in one piece",
}

# Third-party imports below the top floors, by the first part of the path. Stores have a driver each, see below.
BOUNDARY = {"pydantic", "pydantic_core"}
WORKING = {*BOUNDARY, "anyio", "tenacity"}
MAY_IMPORT: dict[str, set[str]] = {
    **{floor: set() for floor in ("__init__", "__main__", "core", "errors")},
    **dict.fromkeys(("codec", "redaction", "store"), BOUNDARY),
    "encoding": {*BOUNDARY, "orjson"},
    "clock": {"anyio"},  # it sleeps, on whichever loop runs
}
DRIVERS = {"redis": "redis", "hiredis": "redis", "psycopg": "postgres", "psycopg_pool": "postgres", "sqlite3": "sqlite"}
TOP = {"cli", "console", "ext", "testing", "views"}

NEVER_LOADED_BY_IMPORT = {"hiredis", "orjson", "psycopg", "redis", "rich", "sqlite3", "typer"}

# In two pieces each, so that this file does not hold what it looks for.
NOT_IN_A_TRACKED_FILE = [
    first + second
    for first, second in (
        ("pypi", ".org"),
        ("python", "hosted"),
        ("registry.", "npmjs"),
        ("deb.", "debian"),
        ("/opt/", "pypi"),
        ("/opt/", "wheels"),
        ("/wo", "rk/"),
        ("/ro", "ot/"),
        ("/tmp/", "team"),
        ("/tmp/", "wt"),
        ("/tmp/", "venv"),
        ("/fa", "rm/"),
    )
]


def _kept_files() -> list[Path]:
    """What is tracked, and what is about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


def _code() -> list[Path]:
    return [path for path in _kept_files() if path.suffix in {".py", ".lua", ".sql"}]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_there_is_code_to_look_at() -> None:
    assert {"src/tenure/__init__.py", "tests/test_house.py"} <= {_name(path) for path in _code()}


def test_files_stay_below_their_ceiling() -> None:
    lines = {_name(path): len(path.read_text().splitlines()) for path in _code()}
    assert {name: n for name, n in lines.items() if n > FILE_LINES_NEVER} == {}
    assert {name: n for name, n in lines.items() if n > FILE_LINES and not LONGER.get(name)} == {}
    assert [name for name in LONGER if lines.get(name, 0) <= FILE_LINES] == [], "no longer long: take it off the list"


def test_functions_fit_on_a_screen() -> None:
    longer = {
        f"{_name(path)}:{node.lineno} {node.name}": length
        for path in _code()
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    }
    assert longer == {}


def test_public_names_are_sorted_importable_and_seen_by_type_checkers() -> None:
    assert tenure.__all__ == sorted(tenure.__all__)
    for name, home in tenure._HOME.items():
        assert getattr(tenure, name) is getattr(importlib.import_module(home), name)
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    shown = {
        alias.name: node.module
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert shown == tenure._HOME


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Lock'"):
        _ = tenure.Lock  # type: ignore[attr-defined]


def test_the_version_is_the_one_that_is_installed() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"[{tenure.__version__}]" in changelog or "[Unreleased]" in changelog
    said = subprocess.run([sys.executable, "-m", "tenure", "--version"], check=True, capture_output=True, text=True)
    assert said.stdout.strip() == tenure.__version__


@pytest.mark.parametrize(
    "program",
    ["import tenure", "import tenure; [getattr(tenure, name) for name in tenure.__all__]", "import tenure.cli"],
    ids=["import tenure", "every public name", "import tenure.cli"],
)
def test_an_import_loads_no_driver_and_no_terminal(program: str) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", f"import sys; {program}; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert "tenure" in shown
    assert NEVER_LOADED_BY_IMPORT & set(shown) == set()


def test_help_loads_no_driver() -> None:
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tenure", "--help"], check=True, capture_output=True, text=True
    )
    assert "Usage" in shown.stdout
    loaded = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}
    assert "typer" in loaded
    assert {"hiredis", "orjson", "psycopg", "redis", "sqlite3"} & loaded == set()


def test_every_floor_imports_only_the_libraries_it_may() -> None:
    foreign = {}
    for path in PACKAGE.rglob("*.py"):
        inside = path.relative_to(PACKAGE)
        floor = inside.parts[0].removesuffix(".py")
        if floor in TOP:
            continue
        third_party = {name for name in _imported(path) if name not in sys.stdlib_module_names} | (
            _imported(path) & DRIVERS.keys()
        )
        if floor == "stores":
            driven = {driver for driver, store in DRIVERS.items() if any(store in part for part in inside.parts[1:])}
            allowed = {*WORKING, *driven}
        else:
            allowed = MAY_IMPORT.get(floor, WORKING)
        if beyond := third_party - allowed - {"tenure"}:
            foreign[_name(path)] = beyond
    assert foreign == {}


def test_nobody_below_the_top_knows_a_store_by_name_and_an_agent_only_opens_one() -> None:
    known = {}
    for path in PACKAGE.rglob("*.py"):
        floor = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if floor in {*TOP, "stores", "__init__"}:
            continue
        allowed = {"tenure.stores", "tenure.stores.open_store"} if floor == "agent" else set()
        names = {name for name in _imports_of(ast.parse(path.read_text())) if f"{name}.".startswith("tenure.stores.")}
        if names - allowed:
            known[_name(path)] = names - allowed
    assert known == {}


def _imported(path: Path) -> set[str]:
    """The first parts of what a file imports."""
    return {name.partition(".")[0] for name in _imports_of(ast.parse(path.read_text()))}


def _imports_of(node: ast.AST) -> Iterator[str]:
    """What is imported, in function bodies too, but not for type checkers only."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from _imports_of(child)


def test_the_base_install_is_six_libraries() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [requirement.partition(">")[0] for requirement in project["dependencies"]]
    assert names == ["anyio", "pydantic", "redis", "rich", "tenacity", "typer"]


def test_contributing_names_every_check_of_ci() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    ci = (ROOT / ".ci" / "run").read_text()
    for command in ("ruff check", "ruff format --check", "mypy", "lint-imports", "pytest -n 2"):
        assert f"\ncheck {command}" in ci
        assert f"\n$ {command}\n" in contributing


def test_every_ignored_lint_rule_has_its_reason() -> None:
    lines = (ROOT / "pyproject.toml").read_text().partition("[tool.ruff.lint]")[2].partition("[tool.importlinter]")[0]
    rules = [line for line in lines.splitlines() if line.startswith('    "') and not line.endswith("[")]
    assert len(rules) > 20
    assert [line for line in rules if " # " not in line] == []


def test_tracked_files_name_no_registry_and_no_machine() -> None:
    found = {}
    for path in _kept_files():
        text = path.read_bytes().decode(errors="replace")
        if hits := [word for word in NOT_IN_A_TRACKED_FILE if word in text]:
            found[_name(path)] = hits
    assert found == {}
