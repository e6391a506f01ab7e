"""Pydantic AI's models as ours: what is sent, what comes back, and a whole run under a lease, without a network."""

import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import messages as theirs
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage

from tenure.agent.agent import Agent
from tenure.agent.checkpointed import CheckpointedAgent
from tenure.agent.model import Delta, ModelReply, ModelRequest, StreamingModel, ToolSpec
from tenure.core.messages import (
    AssistantMessage,
    ProviderPart,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    assistant,
    user,
)
from tenure.errors import NotAllowed
from tenure.ext.pydantic_ai_model import OUTPUT_TOOL, PydanticAIModel
from tenure.ledger import Ledger
from tenure.stores import open_store

ADD = ToolSpec(name="add", description="Add.", schema={"type": "object", "properties": {"a": {"type": "integer"}}})
OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Answer(BaseModel):
    n: int


class Seen:
    """A function model that keeps what it was sent and answers with given parts."""

    def __init__(self, *parts: theirs.ModelResponsePart) -> None:
        self.messages: list[theirs.ModelMessage] = []
        self.info: AgentInfo | None = None
        self._parts = parts

    def __call__(self, messages: list[theirs.ModelMessage], info: AgentInfo) -> theirs.ModelResponse:
        self.messages, self.info = messages, info
        return theirs.ModelResponse(parts=list(self._parts), usage=RequestUsage(input_tokens=7, output_tokens=3))


async def reply_of(*parts: theirs.ModelResponsePart, **request: Any) -> ModelReply:
    request.setdefault("messages", (user("go"),))
    return await PydanticAIModel(FunctionModel(Seen(*parts))).ask(ModelRequest(**request))


async def test_a_conversation_arrives_with_roles_tools_and_failed_calls() -> None:
    seen = Seen(theirs.TextPart(content="done"))
    request = ModelRequest(
        messages=(
            SystemMessage(parts=(Text(text="be brief"),)),
            user("add"),
            assistant("adding", ToolCall(id="c1", name="add", arguments={"a": 1})),
            ToolMessage(parts=(ToolResult(call_id="c1", content="ValueError: no", is_error=True),)),
        ),
        tools=(ADD,),
        settings={"temperature": 0.5},
    )
    reply = await PydanticAIModel(FunctionModel(seen)).ask(request)
    first, answer, last = seen.messages
    assert [part.part_kind for part in first.parts] == ["system-prompt", "user-prompt"]
    text, call = answer.parts
    assert isinstance(text, theirs.TextPart)
    assert text.content == "adding"
    assert isinstance(call, theirs.ToolCallPart)
    assert (call.tool_name, call.args, call.tool_call_id) == ("add", {"a": 1}, "c1")
    (result,) = last.parts
    assert isinstance(result, theirs.ToolReturnPart)
    assert (result.tool_name, result.content, result.outcome) == ("add", "ValueError: no", "failed")
    assert seen.info is not None
    assert [(tool.name, tool.parameters_json_schema) for tool in seen.info.function_tools] == [("add", ADD.schema)]
    assert seen.info.model_settings == {"temperature": 0.5}
    assert (reply.message, reply.finish) == (assistant("done"), "stop")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (7, 3)


async def test_calls_keep_ids_and_arguments_that_are_no_json_stay_text() -> None:
    reply = await reply_of(
        theirs.ToolCallPart(tool_name="add", args='{"a":1}', tool_call_id="x"),
        theirs.ToolCallPart(tool_name="add", args='{"a":', tool_call_id="y"),
        theirs.ToolCallPart(tool_name="add", tool_call_id="z"),
        tools=(ADD,),
    )
    assert [(call.id, call.arguments) for call in reply.message.calls] == [("x", {"a": 1}), ("y", '{"a":'), ("z", None)]
    assert reply.finish == "calls"


@pytest.mark.parametrize(
    "schema,args,text",
    [
        (OBJECT, {"n": 5}, '{"n":5}'),
        ({"type": "array", "items": {"type": "integer"}}, {"response": [1, 2]}, "[1,2]"),
    ],
    ids=["an object", "what is no object"],
)
async def test_a_final_answer_is_asked_for_as_a_tool_and_read_as_text(schema: Any, args: Any, text: str) -> None:
    final = theirs.ToolCallPart(tool_name=OUTPUT_TOOL, args=args)
    beside = theirs.ToolCallPart(tool_name="add", args={"a": 1})
    reply = await reply_of(beside, final, output_schema=schema, tools=(ADD,))
    assert reply.message == assistant(text)


async def test_reasoning_goes_back_verbatim_under_the_ids_of_the_journal() -> None:
    thought = theirs.ThinkingPart(content="hm", signature="s1g", provider_name="anthropic")
    call = theirs.ToolCallPart(tool_name="add", args={"a": 1}, tool_call_id="same")
    first = await reply_of(thought, call, tools=(ADD,))
    (kept,) = [part for part in first.message.parts if isinstance(part, ProviderPart)]
    renamed = AssistantMessage(parts=(ToolCall(id="call-1-1", name="add", arguments={"a": 1}), kept))
    seen = Seen(theirs.TextPart(content="done"))
    results = ToolMessage(parts=(ToolResult(call_id="call-1-1", content=2),))
    await PydanticAIModel(FunctionModel(seen)).ask(ModelRequest(messages=(user("go"), renamed, results)))
    sent_thought, sent_call = seen.messages[1].parts
    assert isinstance(sent_thought, theirs.ThinkingPart)
    assert (sent_thought.content, sent_thought.signature) == ("hm", "s1g")
    assert isinstance(sent_call, theirs.ToolCallPart)
    assert sent_call.tool_call_id == "call-1-1"


async def test_a_stream_shows_text_and_ends_with_the_whole_answer() -> None:
    async def pieces(_: list[theirs.ModelMessage], __: AgentInfo) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        yield "two "
        yield "words"
        yield {1: DeltaToolCall(name="add", json_args='{"a":1}', tool_call_id="c1")}

    model = PydanticAIModel(FunctionModel(stream_function=pieces))
    assert isinstance(model, StreamingModel)
    shown = [piece async for piece in model.ask_stream(ModelRequest(messages=(user("go"),), tools=(ADD,)))]
    *deltas, last = shown
    assert "".join(delta.text for delta in deltas if isinstance(delta, Delta)) == "two words"
    assert isinstance(last, ModelReply)
    assert last.message == assistant("two words", ToolCall(id="c1", name="add", arguments={"a": 1}))


async def test_an_agent_runs_on_it_under_a_lease() -> None:
    called: list[int] = []

    def add(a: int) -> int:
        called.append(a)
        return a + 1

    model = PydanticAIModel(TestModel(custom_output_args={"n": 4}))
    agent = Agent(model, name="adder", tools=[add], output=Answer)
    async with open_store("memory://") as store, Ledger(store) as ledger:
        assert await CheckpointedAgent(agent, ledger).run("add", id="r1") == Answer(n=4)
        events = [event async for _, event in ledger.handle("r1").events()]
    assert len(called) == 1
    assert [e["model"] for e in events if e["type"] == "assistant/message"] == ["test:test", "test:test"]


def test_a_name_that_it_does_not_know_says_what_to_do() -> None:
    with pytest.raises(NotAllowed, match="provider:model"):
        PydanticAIModel("nobody:nothing")


def test_without_the_extra_its_name_is_told() -> None:
    program = (
        "import sys; sys.modules['pydantic_ai'] = None\n"
        "from tenure.ext.pydantic_ai_model import PydanticAIModel\n"
        "from tenure.errors import MissingExtra\n"
        "try:\n    PydanticAIModel('test')\n"
        "except MissingExtra as error:\n    print(error.code, error.message)\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert "MISSING_EXTRA" in shown
    assert "tenure[pydantic-ai]" in shown


def test_a_provider_whose_package_is_missing_says_which() -> None:
    program = (
        "import sys; sys.modules['openai'] = None\n"
        "from tenure.ext.pydantic_ai_model import PydanticAIModel\n"
        "from tenure.errors import MissingExtra\n"
        "try:\n    PydanticAIModel('openai:gpt-5')\n"
        "except MissingExtra as error:\n    print(error.message)\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert "pydantic-ai-slim[openai]" in shown


def test_images_and_files_of_a_result_stand_behind_its_content() -> None:
    from pydantic_ai.messages import BinaryContent, DocumentUrl, ImageUrl, ToolReturnPart
    from pydantic_ai.models.test import TestModel

    from tenure import Media, ToolMessage, ToolResult

    media = (
        Media(media_type="image/png", data=b"png", name="a.png"),
        Media(media_type="image/png", url="https://example.org/b.png"),
        Media(media_type="application/pdf", url="https://example.org/c.pdf"),
    )
    call = ToolCall(id="c1", name="draw", arguments={})
    results = ToolMessage(parts=(ToolResult(call_id="c1", content="three", media=media),))
    found = PydanticAIModel(TestModel())._to_theirs([user("go"), assistant("", call), results])
    part = found[-1].parts[-1]
    assert isinstance(part, ToolReturnPart)
    assert isinstance(part.content, list)
    assert [type(one) for one in part.content] == [str, BinaryContent, ImageUrl, DocumentUrl]
    assert part.content[1].data == b"png"
