"""Content: whatever may be written can be read again, and what cannot is refused before any write."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from tenure import InvalidContent, InvalidId, Ledger, NotAllowed, Status, encoding, open_store
from tenure.core import build, canonical
from tenure.core.run import Ask


def nested(depth: int, *, kind: type = list) -> Any:
    value: Any = kind()
    for _ in range(depth - 1):
        value = [value] if kind is list else {"k": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
@pytest.mark.parametrize("depth", [61, 62, 63, 64])
async def test_i26_content_at_the_depth_limit_is_read_back_wherever_it_stands(depth: int, kind: type) -> None:
    value = nested(depth, kind=kind)
    async with open_store("memory://") as store, Ledger(store, ttl=5) as ledger:
        handle = await ledger.submit("deep", value)
        async with ledger.hold(handle.id) as lease:
            assert lease.state.input == value
            await lease.checkpoint(value)
            await lease.record("tool:c1", value)
        async with ledger.hold(handle.id) as lease:
            assert lease.last == value
            await lease.settle(value=value)
        assert await handle.result(timeout=1) == value


@pytest.mark.parametrize("kind", [list, dict])
async def test_i26_deeper_content_is_refused_before_anything_is_written(kind: type) -> None:
    value = nested(65, kind=kind)
    async with open_store("memory://") as store, Ledger(store, ttl=5) as ledger:
        with pytest.raises(InvalidContent, match="flatten it"):
            await ledger.submit("deep", value, id="r1")
        assert await store.load("r1") is None
        await ledger.submit("deep", 1, id="r2")
        async with ledger.hold("r2") as lease:
            with pytest.raises(InvalidContent, match="flatten it"):
                await lease.checkpoint(value)
            with pytest.raises(InvalidContent, match="flatten it"):
                await lease.settle(value=value)
            assert lease.run.last_seq == 1


def test_i26_a_hostile_depth_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(InvalidContent, match="flatten it"):
        canonical.decode(b"[" * 100_000)


NO_TEXT = "no file 'b\udcff'"


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
async def test_i26_what_an_exception_or_a_person_says_is_stored_whatever_its_characters(
    scheme: str, tmp_path: Path
) -> None:
    url = "memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/t.db"
    async with open_store(url) as store, Ledger(store, ttl=5) as ledger:
        await ledger.submit("files", 1, id="r1")
        with pytest.raises(OSError, match="no file") as raised:
            async with ledger.hold("r1"):
                raise OSError(NO_TEXT)
        assert not hasattr(raised.value, "__notes__")
        run = await ledger.load("r1")
        assert (run.status, run.failures) == (Status.QUEUED, 1)
        async with ledger.hold("r1") as lease:
            await lease.settle("failed", code="FILES", message=NO_TEXT)
        await ledger.submit("files", 1, id="r2")
        run = await ledger.cancel("r2", reason=NO_TEXT, by=NO_TEXT)
        assert run.outcome is not None
        assert run.outcome.message == "no file 'b\\udcff'"


@pytest.mark.parametrize(
    "given",
    [
        {"priority": 10**16},
        {"priority": 1.5},
        {"priority": True},
        {"at": math.inf},
        {"at": math.nan},
        {"at": 1e300},
    ],
    ids=str,
)
async def test_i26_a_number_that_not_every_store_keeps_is_refused_before_any_write(given: dict[str, Any]) -> None:
    async with open_store("memory://") as store, Ledger(store, ttl=5) as ledger:
        with pytest.raises(NotAllowed, match="pass"):
            await ledger.submit("count", 1, id="r1", **given)
        assert await store.load("r1") is None
        await ledger.submit("count", 1, id="r1")
        for grace in (math.inf, math.nan, 1e300):
            with pytest.raises(NotAllowed, match="pass"):
                await ledger.cancel("r1", grace=grace)
        with pytest.raises(NotAllowed, match="pass"):
            ledger.hold("r1", ttl=math.nan)


async def test_i26_the_name_of_a_posted_item_stands_on_one_line() -> None:
    with pytest.raises(InvalidId, match="line break"):
        build.post(run="r1", item="i1", name="go\nconsumed", ask=Ask.SIGNAL)
    with pytest.raises(InvalidId, match="line break"):
        build.post(run="r1", item="\udcff", name="go", ask=Ask.SIGNAL)


@pytest.mark.parametrize(
    "value",
    [
        *(nested(depth, kind=kind) for depth in (1, 63, 64, 65, 66) for kind in (list, dict)),
        *(
            1,
            -1,
            10**15,
            10**15 + 1,
            -(10**5000),
            True,
            None,
            "",
            "\ud800",
            b"",
            1.5,
            math.nan,
            math.inf,
            Status.RUNNING,
        ),
        *({1: 2}, {"a": {None: 1}}, {"a": [1, (2, 3)]}, [object()], {"a": [1.5, {"b": "c"}]}, [[math.inf]]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_i26_what_is_sure_to_be_plain_is_never_what_the_walk_refuses(value: Any) -> None:
    try:
        canonical._refuse_foreign(value, "$", canonical.MAX_DEPTH, [10**6])
    except InvalidContent:
        assert not canonical._is_plain(value, canonical.MAX_DEPTH)


def test_what_most_values_are_is_sure_to_be_plain() -> None:
    value = {"role": "assistant", "content": "é", "calls": [{"id": 1, "ok": True, "none": None, "score": 0.5}]}
    assert canonical._is_plain(value, canonical.MAX_DEPTH)
    assert canonical._is_plain(nested(64), canonical.MAX_DEPTH)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@drawn(JSON)
@settings(deadline=None)
def test_i26_the_canonical_bytes_are_what_json_writes_with_sorted_keys_and_no_spaces(value: Any) -> None:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    assert canonical.encode(value, limit=10**9) == text.encode()


@drawn(JSON)
@settings(deadline=None)
def test_i26_what_was_read_is_written_again_in_the_same_bytes_without_a_check(value: Any) -> None:
    data = canonical.encode(value)
    assert canonical.again(canonical.decode(data)) == data


class Meanwhile:
    """A text while it is looked at, when another thread comes in, and none when it is written."""

    def __init__(self, change: Callable[[], object]) -> None:
        self._change = change

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        self._change()
        return str


@pytest.mark.parametrize("encode", [canonical.encode, lambda value: encoding.event("x", value=value)])
def test_i26_content_that_another_thread_changes_under_way_is_refused_and_says_what_to_do(
    encode: Callable[[Any], bytes],
) -> None:
    grows: dict[str, Any] = {"b": 1}
    grows["a"] = Meanwhile(lambda: grows.update(c=2))
    for value, said in ((grows, "RuntimeError"), ([Meanwhile(lambda: None)], "TypeError")):
        with pytest.raises(InvalidContent, match=rf"changed while it was being stored \({said}\); pass a copy"):
            encode(value)


def test_a_stack_that_is_full_is_not_taken_for_content_that_was_changed() -> None:
    def below(value: Any) -> bytes:
        try:
            return below(value)
        except RecursionError:
            return canonical.encode(value)

    assert below([[[[[[(1,)]]]]]]) == b"[[[[[[[1]]]]]]]"
