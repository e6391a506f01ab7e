"""Any model class of Pydantic AI as a model of ours: `PydanticAIModel("openai:gpt-5")`. Needs the extra pydantic-ai.

Only its models are used: the loop, the tools and the checkpoints stay those of tenure.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from tenure.agent.model import Delta, ModelReply, ModelRequest
from tenure.core import canonical
from tenure.core.messages import (
    AssistantMessage,
    Media,
    Message,
    ProviderPart,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
)
from tenure.errors import InvalidContent, MissingExtra, NotAllowed

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponse, ToolCallPart
    from pydantic_ai.models import Model as TheirModel
    from pydantic_ai.models import ModelRequestParameters

PROVIDER = "pydantic-ai"
OUTPUT_TOOL = "final_result"
"""The tool that a model calls to give its final answer; every provider knows tools, not every one JSON schemas."""


class PydanticAIModel:
    """A model of Pydantic AI, given as its object or as `provider:model`; keys are read as its provider reads them.

    MissingExtra if Pydantic AI or the provider's own package is not installed, NotAllowed for a name it does not know
    or a key that is not set.
    """

    def __init__(self, model: TheirModel | str, /) -> None:
        try:
            from pydantic_ai.exceptions import UserError
            from pydantic_ai.models import infer_model
        except ImportError as error:
            message = f"a Pydantic AI model needs {error.name!r}; pip install 'tenure[pydantic-ai]'"
            raise MissingExtra(message) from None
        try:
            self.model = infer_model(model)
        except ImportError as error:
            message = f"Pydantic AI cannot offer {model}: {error}"
            raise MissingExtra(message) from None
        except UserError as error:
            message = f"Pydantic AI refuses {model}: {error}; name a model as provider:model and set its key"
            raise NotAllowed(message) from None

    @property
    def name(self) -> str:
        """Return the model as `provider:model`."""
        return f"{self.model.system}:{self.model.model_name}"

    async def ask(self, request: ModelRequest, /) -> ModelReply:
        """Return the model's answer; its errors are raised as they are."""
        from pydantic_ai.direct import model_request

        reply = await model_request(self.model, **self._arguments(request))
        return self._reply(reply, request)

    async def ask_stream(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelReply]:
        """Yield the text as it comes, then the whole answer."""
        from pydantic_ai.direct import model_request_stream
        from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

        async with model_request_stream(self.model, **self._arguments(request)) as pieces:
            async for piece in pieces:
                match piece:
                    case PartStartEvent(part=TextPart(content=text)) if text:
                        yield Delta(text=text)
                    case PartDeltaEvent(delta=TextPartDelta(content_delta=text)) if text:
                        yield Delta(text=text)
                    case _:
                        pass
            reply = pieces.get()
        yield self._reply(reply, request)

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        return {
            "messages": self._to_theirs(request.messages),
            "model_settings": dict(request.settings) or None,
            "model_request_parameters": self._parameters(request),
        }

    def _parameters(self, request: ModelRequest) -> ModelRequestParameters:
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.tools import ToolDefinition

        tools = [
            ToolDefinition(name=spec.name, description=spec.description, parameters_json_schema=dict(spec.schema))
            for spec in request.tools
        ]
        if request.output_schema is None:
            return ModelRequestParameters(function_tools=tools)
        output = ToolDefinition(
            name=OUTPUT_TOOL,
            description="Give the final answer.",
            parameters_json_schema=_as_object(request.output_schema),
            kind="output",
        )
        # Where a provider lets text through all the same, the agent tells the model what does not fit.
        return ModelRequestParameters(
            function_tools=tools, output_mode="tool", output_tools=[output], allow_text_output=False
        )

    def _to_theirs(self, messages: Sequence[Message]) -> list[ModelMessage]:
        from pydantic_ai.messages import ModelRequest as TheirRequest
        from pydantic_ai.messages import SystemPromptPart, ToolReturnPart, UserPromptPart

        found: list[ModelMessage] = []
        names: dict[str, str] = {}
        asked: list[ModelRequestPart] = []
        for message in messages:
            match message:
                case SystemMessage(parts=parts):
                    asked.extend(SystemPromptPart(content=part.text) for part in parts)
                case UserMessage(parts=parts):
                    asked.extend(UserPromptPart(content=part.text) for part in parts)
                case ToolMessage(parts=results):
                    asked.extend(
                        ToolReturnPart(
                            tool_name=names[result.call_id],
                            content=_shown(result),
                            tool_call_id=result.call_id,
                            outcome="failed" if result.is_error else "success",
                        )
                        for result in results
                    )
                case AssistantMessage():
                    if asked:
                        found.append(TheirRequest(parts=asked))
                    found.append(self._response(message))
                    names.update({call.id: call.name for call in message.calls})
                    asked = []
        return [*found, TheirRequest(parts=asked)] if asked else found

    def _response(self, message: AssistantMessage) -> ModelResponse:
        from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

        for part in message.parts:
            if isinstance(part, ProviderPart) and part.provider == PROVIDER:
                (kept,) = self._adapter.validate_python([part.content])
                return _renamed(kept, message.calls)
        parts = [
            TextPart(content=part.text)
            if isinstance(part, Text)
            else ToolCallPart(tool_name=part.name, args=part.arguments, tool_call_id=part.id)
            for part in message.parts
            if not isinstance(part, ProviderPart)
        ]
        return ModelResponse(parts=parts)

    def _reply(self, reply: ModelResponse, request: ModelRequest) -> ModelReply:
        from pydantic_ai.messages import TextPart, ToolCallPart

        usage = Usage(input_tokens=reply.usage.input_tokens, output_tokens=reply.usage.output_tokens)
        calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
        if request.output_schema is not None and (final := [c for c in calls if c.tool_name == OUTPUT_TOOL]):
            # The final answer ends the run: calls beside it would have nobody to read their results.
            text = canonical.encode(_unwrapped(_arguments_of(final[0]), request.output_schema)).decode()
            message = AssistantMessage(parts=(Text(text=text),))
            return ModelReply(message=message, usage=usage, finish=reply.finish_reason or "stop")
        parts: list[Text | ToolCall | ProviderPart] = []
        for part in reply.parts:
            if isinstance(part, TextPart) and part.content:
                parts.append(Text(text=part.content))
            elif isinstance(part, ToolCallPart):
                parts.append(ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=_arguments_of(part)))
        if not all(_is_plain(part) for part in reply.parts):
            content = self._adapter.dump_python([reply], mode="json")[0]
            parts.append(ProviderPart(provider=PROVIDER, content=content))
        finish = reply.finish_reason or ("calls" if calls else "stop")
        return ModelReply(message=AssistantMessage(parts=tuple(parts)), usage=usage, finish=finish)

    @cached_property
    def _adapter(self) -> Any:
        from pydantic_ai.messages import ModelMessagesTypeAdapter

        return ModelMessagesTypeAdapter


def _is_plain(part: Any) -> bool:
    """Whether text, name, arguments and call id are all there is; reasoning and signatures go back verbatim."""
    if part.part_kind not in ("text", "tool-call"):
        return False
    return part.id is None and not part.provider_details


def _shown(result: ToolResult) -> Any:
    """A result as Pydantic AI takes it: the content, and after it the images and files."""
    if not result.media:
        return result.content
    from pydantic_ai.messages import BinaryContent, DocumentUrl, ImageUrl

    def one(media: Media) -> Any:
        if not media.url:
            return BinaryContent(media.data, media_type=media.media_type, identifier=media.name or None)
        url = ImageUrl if media.media_type.startswith("image/") else DocumentUrl
        return url(media.url, media_type=media.media_type)

    return [result.content, *map(one, result.media)]


def _renamed(kept: ModelResponse, calls: Sequence[ToolCall]) -> ModelResponse:
    """The response with the call ids that the journal gave: an id that a provider used twice was replaced there."""
    ids = iter([call.id for call in calls])
    parts = [replace(part, tool_call_id=next(ids)) if part.part_kind == "tool-call" else part for part in kept.parts]
    return replace(kept, parts=parts)


def _arguments_of(part: ToolCallPart) -> Any:
    """The arguments as JSON; what is none stays text, and is refused by the tool's schema."""
    if not isinstance(part.args, str):
        return part.args
    try:
        return canonical.decode(part.args.encode()) if part.args else {}
    except (InvalidContent, UnicodeEncodeError):
        return part.args


def _as_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema as a tool takes it: what is no object is put into one."""
    if schema.get("type") == "object":
        return dict(schema)
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    defs = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return {"type": "object", "properties": {"response": inner}, "required": ["response"], **defs}


def _unwrapped(arguments: Any, schema: Mapping[str, Any]) -> Any:
    if schema.get("type") == "object" or not isinstance(arguments, dict):
        return arguments
    return cast("dict[str, Any]", arguments).get("response", arguments)
