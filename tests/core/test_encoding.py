"""The faster encoder: the same bytes, and the same refusals, for whatever a holder writes."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure import encoding
from tenure.core import canonical, journal
from tenure.errors import InvalidContent


@pytest.fixture(autouse=True, scope="module", params=["orjson", "pydantic"])
def encoder(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "pydantic":
            patched.setitem(sys.modules, "orjson", None)
        encoding._encoder.cache_clear()
        yield
    encoding._encoder.cache_clear()


class Level(IntEnum):
    LOW = 1


class Colour(StrEnum):
    RED = "red"


def nested(depth: int) -> Any:
    value: Any = []
    for level in range(depth - 1):
        value = [value] if level % 2 else {"k": value}
    return value


def said(encode: Any, value: Any) -> Any:
    try:
        return encode(journal.RECORD, scope="a", name="step:b", value=value)
    except InvalidContent as error:
        return error.message


TEXTS = st.text(st.characters(codec=None), max_size=12)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | TEXTS
    | st.sampled_from([*Level, *Colour, 10**15, 10**15 + 1, -(10**15), 2**63, 1e16, -0.0, 0.1, b"", (1, "a")]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXTS, inner, max_size=4)
        | st.dictionaries(st.integers() | st.none() | TEXTS | st.sampled_from([*Colour]), inner, max_size=2)
    ),
    max_leaves=12,
)


@given(VALUES)
@settings(deadline=None, max_examples=300)
def test_i26_an_event_has_the_canonical_bytes_or_the_refusal_that_core_says(value: Any) -> None:
    assert said(encoding.event, value) == said(journal.event, value)


def test_i26_every_character_of_the_first_planes_is_written_as_core_writes_it() -> None:
    for begin in range(0, 0x11000, 0x100):
        text = "".join(map(chr, range(begin, begin + 0x100)))
        assert said(encoding.event, {text: [text]}) == said(journal.event, {text: [text]})


@pytest.mark.parametrize(
    "value",
    [
        *(nested(depth) for depth in (1, 63, 64, 65, 66, 500)),
        *("x" * size for size in (canonical.MAX_EVENT_BYTES - 100, canonical.MAX_EVENT_BYTES)),
        *([[]] * 9_999, [1] * 20_000, {str(n): n for n in range(11_000)}),
        *(math.nan, [math.inf], {1: 2}, {"b": 1, None: 2}, object(), {"a": {1, 2}}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_i26_what_is_deep_or_large_or_has_no_place_is_refused_alike(value: Any) -> None:
    assert said(encoding.event, value) == said(journal.event, value)


def test_i26_what_another_thread_puts_in_after_the_look_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    value: dict[str, Any] = {"a": {"b": 1}, "c": [1]}
    found = encoding._encoder()

    def late(looked_at: Any) -> bytes:
        value["a"]["b"] = value["c"][0] = value["d"] = math.nan
        return found(looked_at)

    before = journal.event(journal.RECORD, value=value)
    monkeypatch.setattr(encoding, "_encoder", lambda: late)
    assert encoding.event(journal.RECORD, value=value) == before


def test_i26_what_holds_itself_is_refused_alike() -> None:
    value: list[Any] = []
    value += [value, value]
    assert said(encoding.event, value) == said(journal.event, value)
    assert "nested deeper" in said(encoding.event, value)


@pytest.mark.parametrize("hidden", ["", "orjson"])
def test_which_encoder_it_is_depends_on_what_is_installed(hidden: str) -> None:
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({hidden.split()!r}))\n"
        "from tenure import encoding\n"
        "print(encoding.event('record', value={'b': [1], 'a': 'x'}).decode(), 'pydantic_core' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ['{"scope":"","type":"record","value":{"a":"x","b":[1]}}', str(bool(hidden))]
