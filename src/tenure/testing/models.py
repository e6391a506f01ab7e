"""Models that need no network: scripts and rules, with a log of their calls that stands outside the store."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from tenure.agent.model import Delta, ModelReply, ModelRequest
from tenure.core.messages import AssistantMessage, Usage, assistant
from tenure.errors import NotAllowed

Reply = ModelReply | AssistantMessage | str | Exception
"""What a script or a rule may answer with; a str is a text without calls, an exception is raised."""


class CallLog:
    """A file of one JSON line per call, written before and after it, that survives the death of the process."""

    def __init__(self, path: str | Path, /) -> None:
        self.path = Path(path)

    def write(self, what: str, /, **fields: Any) -> None:
        """Append a line; lines of several processes do not mix."""
        line = json.dumps({"what": what, "pid": os.getpid(), **fields}, sort_keys=True) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def read(self, what: str = "", /) -> list[dict[str, Any]]:
        """Return the lines so far, those of one sort if it is named."""
        if not self.path.exists():
            return []
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [line for line in lines if what in ("", line["what"])]


class FunctionModel:
    """A model that answers by a rule; `fn` may be async, and must decide by the request alone."""

    def __init__(
        self,
        fn: Callable[[ModelRequest], Reply | Awaitable[Reply]],
        /,
        *,
        name: str = "function",
        log: CallLog | None = None,
    ) -> None:
        self.name = name
        self.asked: list[ModelRequest] = []
        self._fn = fn
        self._log = log

    async def ask(self, request: ModelRequest, /) -> ModelReply:
        """Return what the rule says, with a usage of one token for each word."""
        self.asked.append(request)
        self._tell("model/asked", request)
        found = self._fn(request)
        reply = await found if inspect.isawaitable(found) else found
        if isinstance(reply, Exception):
            raise reply
        self._tell("model/answered", request)
        return _whole(reply, request)

    async def ask_stream(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelReply]:
        """Yield the text word by word, then the whole answer."""
        reply = await self.ask(request)
        words = reply.message.text.split(" ")
        for index, word in enumerate(words):
            yield Delta(text=word if index == len(words) - 1 else f"{word} ")
        yield reply

    def _tell(self, what: str, request: ModelRequest) -> None:
        if self._log is not None:
            self._log.write(what, run=request.run_id, step=request.step, attempt=request.attempt, key=request.key)


class ScriptedModel(FunctionModel):
    """A model that answers step n with the n-th reply, in whichever process it is asked."""

    def __init__(self, replies: Sequence[Reply], /, *, name: str = "scripted", log: CallLog | None = None) -> None:
        super().__init__(self._reply, name=name, log=log)
        self._replies = tuple(replies)

    def _reply(self, request: ModelRequest) -> Reply:
        if request.step > len(self._replies):
            message = f"the script has {len(self._replies)} replies and step {request.step} was asked for; add a reply"
            raise AssertionError(message)
        return self._replies[request.step - 1]


def _whole(reply: object, request: ModelRequest) -> ModelReply:
    if isinstance(reply, ModelReply):
        return reply
    message = assistant(reply) if isinstance(reply, str) else reply
    if not isinstance(message, AssistantMessage):
        what = type(reply).__name__
        text = f"the rule of a model answered with {what}; it returns a text, an AssistantMessage or a ModelReply"
        raise NotAllowed(text)
    seen = sum(len(part.text.split()) for m in request.messages for part in m.parts if hasattr(part, "text"))
    usage = Usage(input_tokens=seen, output_tokens=len(message.text.split()))
    return ModelReply(message=message, usage=usage, finish="calls" if message.calls else "stop")
