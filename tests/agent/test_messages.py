"""Messages go to JSON and back unchanged, and what is not known is refused by name."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.core import canonical
from tenure.core.messages import (
    SCHEMA,
    AssistantMessage,
    Message,
    ProviderPart,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
    assistant,
    from_json,
    to_json,
    usage_from_json,
    usage_to_json,
)
from tenure.errors import CorruptRecord, StoreTooNew

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
texts = st.builds(Text, text=words)
calls = st.builds(ToolCall, id=words, name=words, arguments=values)
results = st.builds(ToolResult, call_id=words, content=values, is_error=st.booleans())
provided = st.builds(ProviderPart, provider=words, content=values)


def _several(parts: Any) -> Any:
    return st.lists(parts, max_size=4).map(tuple)


messages = st.one_of(
    st.builds(SystemMessage, parts=_several(texts)),
    st.builds(UserMessage, parts=_several(texts)),
    st.builds(AssistantMessage, parts=_several(texts | calls | provided)),
    st.builds(ToolMessage, parts=_several(results)),
)


@given(messages)
@settings(deadline=None)
def test_a_message_comes_back_from_the_canonical_bytes_as_it_was(message: Message) -> None:
    stored = canonical.encode(to_json(message))
    assert from_json(canonical.decode(stored)) == message


def test_a_message_of_a_newer_schema_is_refused_by_name() -> None:
    newer = {**to_json(assistant("hello")), "schema": SCHEMA + 1}
    with pytest.raises(StoreTooNew, match=f"schema {SCHEMA + 1}.*upgrade"):
        from_json(newer)


@pytest.mark.parametrize(
    "value, named",
    [
        (None, "NoneType"),
        ([], "list"),
        ({"role": "user", "parts": []}, "schema None"),
        ({"schema": 1, "role": "oracle", "parts": []}, "'oracle'"),
        ({"schema": 1, "role": "user", "parts": "text"}, "no list of parts"),
        ({"schema": 1, "role": "user", "parts": [{"type": "image", "url": "x"}]}, "'image'"),
        ({"schema": 1, "role": "user", "parts": [{"type": "call", "id": "1"}]}, "'call'"),
        ({"schema": 1, "role": "assistant", "parts": [{"type": "call", "id": "1", "name": "n"}]}, "'arguments'"),
        ({"schema": 1, "role": "assistant", "parts": [{"type": "text", "text": 3}]}, "'text' .*int"),
        ({"schema": 1, "role": "tool", "parts": [{"type": "result", "call_id": "1", "is_error": False}]}, "'content'"),
    ],
)
def test_b105_what_cannot_be_read_is_refused_by_name_and_never_becomes_nothing(value: Any, named: str) -> None:
    with pytest.raises(CorruptRecord, match=named):
        from_json(value)


def test_usage_adds_up_and_comes_back() -> None:
    both = Usage(input_tokens=3, output_tokens=1) + Usage(input_tokens=4)
    assert usage_from_json(usage_to_json(both)) == both == Usage(input_tokens=7, output_tokens=1)
