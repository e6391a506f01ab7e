"""The registry: names, types, what is refused when it is written, and finding an app by its path."""

import sys
import textwrap
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tenure import ActiveRun, App, InvalidContent, InvalidId, Kind, NotAllowed, UnknownKind
from tenure.loading import load_app


def test_a_name_is_taken_once_and_has_an_alphabet() -> None:
    app = App()

    @app.kind("k")
    async def one(run: ActiveRun[int], input: int) -> int:
        return input

    with pytest.raises(NotAllowed, match="already"):
        app.kind("k")(one.fn)
    with pytest.raises(InvalidId, match="rename the kind"):
        app.kind("no spaces")(one.fn)


def test_numbers_that_make_no_sense_are_refused() -> None:
    async def handler(run: ActiveRun[int], input: int) -> int:
        return input

    with pytest.raises(NotAllowed, match="at least 2"):
        Kind("k", handler, max_crashes=1)
    with pytest.raises(NotAllowed, match="positive"):
        Kind("k", handler, retries=-1)
    with pytest.raises(NotAllowed, match="positive"):
        Kind("k", handler, timeout=0)


def test_a_handler_takes_the_run_and_the_input() -> None:
    with pytest.raises(NotAllowed, match=r"takes \(run, input\)"):
        Kind("k", lambda run: run).decode_input(1)


def test_types_come_from_the_annotations_and_what_does_not_fit_is_refused() -> None:
    async def handler(run: ActiveRun[int], input: int) -> list[int]:
        return [input]

    kind: Kind[int, list[int]] = Kind("k", handler)
    assert kind.encode_input(3) == kind.decode_input(3) == 3
    with pytest.raises(InvalidContent):
        kind.decode_input("x")
    with pytest.raises(InvalidContent):
        kind.encode_result("x")  # type: ignore[arg-type]


def test_an_annotation_that_cannot_be_stored_or_resolved_is_said_with_the_next_step() -> None:
    async def foreign(run: ActiveRun[Any], input: Any) -> asynccontextmanager:  # type: ignore[valid-type]
        return asynccontextmanager

    async def missing(run: "ActiveRun[Any]", input: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
        return None

    with pytest.raises(NotAllowed, match=r"cannot be resolved.*top level"):
        Kind("k", missing).decode_input(1)
    assert Kind("k", foreign).name == "k"


def test_kinds_are_served_by_name() -> None:
    app = App()

    @app.kind("a")
    async def a(run: ActiveRun[int], input: int) -> int:
        return input

    @app.kind("b")
    async def b(run: ActiveRun[int], input: int) -> int:
        return input

    assert list(app.served()) == ["a", "b"]
    assert list(app.served(["b"])) == ["b"]
    with pytest.raises(UnknownKind, match="no kind 'c'; it has a, b"):
        app.served(["a", "c"])


class _Agent:
    name = "clerk"
    output = int

    async def drive(self, active: ActiveRun[str], /) -> int:
        return len(active.input)


def test_an_agent_is_a_kind_of_its_own_name() -> None:
    app = App()
    kind = app.agent(_Agent())
    assert app.kinds == {"clerk": kind}
    assert kind.decode_input("text") == "text"
    with pytest.raises(InvalidContent):
        kind.encode_result("no number")  # type: ignore[arg-type]


def test_an_app_is_found_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fleet_here.py").write_text(
        textwrap.dedent("""
        from tenure import App
        app = App(version="7")
        other = 3
        """)
    )
    (tmp_path / "fleet_broken.py").write_text("import nothing_of_this_name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load_app("fleet_here:app").version == "7"
    with pytest.raises(NotAllowed, match="write module:app"):
        load_app("fleet_here")
    with pytest.raises(NotAllowed, match="there is no module 'fleet_gone'"):
        load_app("fleet_gone:app")
    for file, right in (
        ("fleet_here.py", "write fleet_here:app"),
        ("fleet_gone.py", "write fleet_gone:app"),
        ("./fleet_here.py", "write fleet_here:app"),
        ("inner/fleet_here.py", "write inner.fleet_here:app"),
        ("/srv/fleet_here.py", "write fleet_here:app and run it in /srv"),
        ("../fleet_here.py", r"write fleet_here:app and run it in \.\."),
    ):
        with pytest.raises(NotAllowed, match=f"names a file.*{right}$"):
            load_app(f"{file}:app")
    with pytest.raises(NotAllowed, match=r"for example fleet_here:app$"):
        load_app("fleet_here.py")
    with pytest.raises(NotAllowed, match=r"is of type int and no App; .*fleet_here:app"):
        load_app("fleet_here:other")
    with pytest.raises(NotAllowed, match=r"has no 'missing'; .*fleet_here:app"):
        load_app("fleet_here:missing")
    with pytest.raises(NotAllowed, match=r"nothing_of_this_name.*fleet_broken\.py, line 1"):
        load_app("fleet_broken:app")
    for inside in ("fleet_broken", "fleet_broken.inner"):
        (tmp_path / "fleet_package").mkdir(exist_ok=True)
        (tmp_path / "fleet_package" / "__init__.py").write_text("1 / 0\n")
        with pytest.raises(NotAllowed, match=r"ZeroDivisionError.*__init__\.py, line 1"):
            load_app(f"fleet_package.{inside}:app")
