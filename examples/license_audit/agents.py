"""The agent: the tools, a model (rules, or the provider that TENURE_MODEL names), and what its answer looks like."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from examples.license_audit import reading
from examples.license_audit.auditor import RuleModel
from examples.license_audit.calls import CallLog, LoggedModel, LoggedTool
from examples.license_audit.records import Finding
from tenure.agent.agent import Agent
from tenure.agent.model import Model
from tenure.agent.tool import Tool

KIND = "license-audit"
TOOLS = (
    reading.read_metadata,
    reading.list_files,
    reading.read_license,
    reading.match_text,
    reading.find_mentions,
)
INSTRUCTIONS = """\
You find out under which licence an installed Python distribution is. Begin with read_metadata and list_files, then
read every file that may hold a licence text, and compare each text with match_text. Call tools side by side where one
does not need what another says. Trust what you have read, not what you remember. Where metadata and text disagree, keep
what the metadata's License-Expression says, set confidence to low and say so in a note. Every line of evidence names a
file, a line that you have read, and the SPDX id that it speaks for."""

CALLS, THINK_MS, MODEL = "LICENSE_AUDIT_CALLS", "LICENSE_AUDIT_THINK_MS", "TENURE_MODEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the agent runs: where calls are logged, how slow the model is made, and which one it is ("" for rules)."""

    calls: Path | None = None
    think_ms: int = 0
    model: str = ""

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] = os.environ, /) -> Self:
        """Read what the program gave its workers."""
        calls = environ.get(CALLS, "")
        return cls(
            calls=Path(calls) if calls else None,
            think_ms=int(environ.get(THINK_MS, "0")),
            model=environ.get(MODEL, ""),
        )

    def environment(self) -> dict[str, str]:
        """Return the same as variables for a worker."""
        return {CALLS: str(self.calls or ""), THINK_MS: str(self.think_ms), MODEL: self.model}


def prompt(dist: str, /) -> str:
    """Return the input of a distribution's run."""
    return f"Find the licence of the distribution {dist}"


def make_agent(settings: Settings, /) -> Agent[Finding]:
    """Return the agent; with a log, each call of its model and tools is written down."""
    model: Model = _provider(settings.model) if settings.model else RuleModel()
    tools: Sequence[Tool[..., Any]] = TOOLS
    if settings.calls is not None:
        log = CallLog(settings.calls)
        model = LoggedModel(model, log, think_ms=settings.think_ms)
        tools = tuple(LoggedTool(tool, log, think_ms=settings.think_ms) for tool in TOOLS)
    return Agent(model, name=KIND, instructions=INSTRUCTIONS, tools=tools, output=Finding)


def _provider(name: str) -> Model:
    from tenure.ext.pydantic_ai_model import PydanticAIModel

    return PydanticAIModel(name)
