"""The programs on the pages run, and the commands on them exist."""

import re
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tenure import App, Ledger, Status, Worker, open_store
from tenure.cli.app import build
from tenure.loading import load_app

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.anyio
async def test_the_handler_of_the_page_takes_an_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "handlers.md").read_text(), re.DOTALL)[0]
    (tmp_path / "orders.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    app = load_app("orders:app")
    assert isinstance(app, App)
    async with open_store("memory://") as store, Ledger(store, ttl=5) as ledger, Worker(app, ledger, drain=1):
        handle = await ledger.submit("order", ["tea", "cake"], id="o1")
        with anyio.fail_after(20):
            assert await handle.result() == "receipt for 700 under o1:charge"
        assert (await handle.load()).status is Status.COMPLETED


def test_every_command_and_option_on_the_pages_exists() -> None:
    import typer

    group = typer.main.get_command(build())
    commands = group.commands  # type: ignore[attr-defined]
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        shown = "\n".join(re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL))
        for line in re.findall(r"(?m)^(?:\$ )?tenure ([a-z]+)([^\n]*)$", shown):
            name, rest = line
            assert name in commands, (page.name, name)
            command = commands[name]
            if inside := getattr(command, "commands", {}):  # a group of commands
                word = rest.split()[0] if rest.split() else ""
                assert word in inside or command.invoke_without_command, (page.name, line)
                command = inside.get(word, command)
            options = {option for parameter in command.params for option in parameter.opts}
            assert set(re.findall(r"(?<!\S)--[a-z-]+", rest)) <= options, (page.name, line)


def test_every_file_that_a_page_names_exists() -> None:
    named = r"(?<![\w./-])((?:bench|core|deploy|docs|examples|lua|sql|src|tests)/[\w./-]*\w)"
    lost = {}
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        roots = (ROOT, ROOT / "src" / "tenure", ROOT / "src" / "tenure" / "stores")
        found = {path for path in re.findall(named, page.read_text()) if not any((r / path).exists() for r in roots)}
        if found:
            lost[page.name] = found
    assert lost == {}


@pytest.mark.parametrize(
    "name,at",
    [
        ("agents", 0),
        ("approvals", 0),
        ("budgets", 0),
        ("journal", 0),
        ("redaction", 0),
        ("redaction", 1),
        ("waiting", 0),
        ("waiting", 1),
    ],
)
def test_the_programs_on_the_pages_print_what_the_pages_say(name: str, at: int, tmp_path: Path) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text()
    program = tmp_path / "program.py"
    program.write_text(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[at])
    said = subprocess.run([sys.executable, str(program)], check=True, capture_output=True, text=True, timeout=60)
    assert said.stdout == re.findall(r"```text\n(.*?)```", page, re.DOTALL)[at]
