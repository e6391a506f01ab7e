"""A log of calls outside the store, one file per process: what a model and tools were really asked, whatever landed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from tenure.agent.model import Model, ModelReply, ModelRequest
from tenure.agent.tool import Tool, ToolContext
from tenure.calling import Threads

ASKED = "model/asked"
ANSWERED = "model/answered"
CALLED = "tool/called"
RETURNED = "tool/returned"


class CallLog:
    """Lines of JSON, each on disk before what it announces happens."""

    def __init__(self, folder: Path, /) -> None:
        self._path = folder / f"worker-{os.getpid()}.jsonl"

    async def write(self, what: str, /, **fields: Any) -> None:
        """Append a line, with the milliseconds since boot: a clock that all processes of a machine share."""
        boot_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
        line = json.dumps({"what": what, "pid": os.getpid(), "boot_ms": boot_ms, **fields}, sort_keys=True)
        await anyio.to_thread.run_sync(self._append, f"{line}\n".encode())

    def _append(self, line: bytes) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line)
            os.fdatasync(file)
        finally:
            os.close(file)


def read_calls(folder: Path, /) -> list[dict[str, Any]]:
    """Return the lines of all files in a folder; a last line that a dying process did not end is no line."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("worker-*.jsonl")):
        whole, _, _ = path.read_text().rpartition("\n")
        found.extend(json.loads(line) for line in whole.splitlines())
    return found


class LoggedModel:
    """A model whose calls are logged; it takes `think_ms` longer, so that there is an instant to be killed in."""

    def __init__(self, model: Model, log: CallLog, /, *, think_ms: int = 0) -> None:
        self._model = model
        self._log = log
        self._think_ms = think_ms

    @property
    def name(self) -> str:
        """Return the model's own name."""
        return self._model.name

    async def ask(self, request: ModelRequest, /) -> ModelReply:
        """Ask the model."""
        call = {"run": request.run_id, "step": request.step, "attempt": request.attempt}
        await self._log.write(ASKED, **call)
        reply = await self._model.ask(request)
        await anyio.sleep(self._think_ms / 1000)
        await self._log.write(ANSWERED, **call)
        return reply


class LoggedTool(Tool[..., Any]):
    """A tool whose calls are logged; the pause is the model's, halved."""

    def __init__(self, tool: Tool[..., Any], log: CallLog, /, *, think_ms: int = 0) -> None:
        super().__init__(tool.fn, name=tool.name, timeout=tool.timeout, retry=tool.retry, effect=tool.effect)
        self._log = log
        self._think_ms = think_ms

    async def invoke(self, context: ToolContext, arguments: Mapping[str, Any], /, *, threads: Threads) -> Any:
        """Call the tool."""
        call = {"run": context.run_id, "call": context.call_id, "attempt": context.attempt, "token": context.token}
        await self._log.write(CALLED, **call)
        try:
            await anyio.sleep(self._think_ms / 2000)
            found = await super().invoke(context, arguments, threads=threads)
        except Exception:
            await self._log.write(RETURNED, **call)
            raise
        await self._log.write(RETURNED, **call)
        return found
