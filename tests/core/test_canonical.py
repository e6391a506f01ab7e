"""Content: whatever may be written can be read again, and what cannot is refused before any write."""

from typing import Any

import pytest

from tenure import InvalidContent, Ledger, open_store
from tenure.core import canonical


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
