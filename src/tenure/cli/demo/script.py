"""What the demo's runs do: an agent of four turns, whose model and tool need no network and write down each call."""

from __future__ import annotations

import random
import secrets
from typing import Any

import anyio

from tenure.agent.agent import Agent
from tenure.agent.model import ModelReply, ModelRequest
from tenure.agent.tool import Tool, ToolContext, tool
from tenure.cli.demo.book import Book
from tenure.core.messages import AssistantMessage, ToolCall, ToolMessage, Usage, assistant

KIND = "demo"
TURNS = 4
FREEZE_MARK_S = 0.08
"""How long a tool stands still after it has written that it is done: time to be frozen between effect and record."""


class ScriptedModel:
    """A model of a fixed script and drawn latency; every answer has a number of its own, by which it is found."""

    name = "demo-script"

    def __init__(self, book: Book, seed: int) -> None:
        self._book = book
        self._seed = seed

    async def ask(self, request: ModelRequest, /) -> ModelReply:
        """Return the answer of this turn after 150 to 350 ms."""
        number = secrets.token_hex(4)
        seen = [m.text for m in request.messages if isinstance(m, AssistantMessage)]
        results = [part.content for m in request.messages if isinstance(m, ToolMessage) for part in m.parts]
        self._book.write("asked", request.run_id, step=request.step, number=number, seen=seen, results=results)
        drawn = random.Random(f"{self._seed}:{request.run_id}:{request.step}")  # noqa: S311 - a script, not a secret
        await anyio.sleep(drawn.uniform(0.15, 0.35))
        self._book.write("answered", request.run_id, step=request.step, number=number)
        text = f"answer {number}"
        if request.step >= TURNS:
            return ModelReply(message=assistant(text), usage=Usage(input_tokens=40, output_tokens=8))
        call = ToolCall(id=f"c{request.step}", name="note", arguments={"page": request.step})
        return ModelReply(message=assistant(text, call), usage=Usage(input_tokens=40, output_tokens=8), finish="calls")


def note_tool(book: Book) -> Tool[..., Any]:
    """Return the tool of the demo: it does its effect, writes that down, and stands still for a moment."""

    @tool
    async def note(context: ToolContext, page: int) -> dict[str, Any]:
        """Note one page."""
        number = secrets.token_hex(4)
        book.write("called", context.run_id, call=context.call_id, number=number)
        await anyio.sleep(0.03)
        book.write("returned", context.run_id, call=context.call_id, number=number)
        await anyio.sleep(FREEZE_MARK_S)
        return {"page": page, "number": number}

    return note


def demo_agent(book: Book, seed: int) -> Agent[str]:
    """Return the agent that every run of the demo is driven by."""
    return Agent(ScriptedModel(book, seed), name=KIND, tools=[note_tool(book)], max_steps=TURNS)
