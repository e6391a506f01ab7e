"""What the Redis tests share: verbs, waiting, and a proxy that loses things."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
import redis
import redis.asyncio as aredis

from tenure.core import build, journal
from tenure.core.run import (
    Claim,
    Commit,
    Grant,
    Run,
    Verdict,
)
from tenure.errors import StoreUnsafe
from tenure.stores import open_store
from tenure.stores.redis import RedisStore
from tenure.testing.proxy import Proxy

__all__ = ["Proxy", "begun", "claim", "grant_of", "key_contents", "linked", "opened", "refused", "step", "until"]


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[RedisStore]:
    async with cast("RedisStore", open_store(url, **options)) as store:
        yield store


def claim(run: str, *, nonce: str = "", ttl_ms: int = 60_000) -> Claim:
    return Claim(run=run, nonce=nonce or secrets.token_hex(16), owner="w", ttl_ms=ttl_ms)


grant_of = build.grant_of


async def begun(store: RedisStore, run: str = "r1", *, ttl_ms: int = 60_000) -> tuple[Grant, Run]:
    """Create and claim a run, which has to land."""
    await store.commit(build.create(run=run, kind="k", value=1))
    answer = await store.commit(claim(run, ttl_ms=ttl_ms))
    assert answer.verdict is Verdict.LANDED
    assert answer.run is not None
    return grant_of(answer.run), answer.run


def step(grant: Grant, run: Run, value: object = "x", **more: Any) -> Commit:
    """The commit that ends the next step of the run as known."""
    events = [journal.event(journal.CHECKPOINT, value=value)]
    return build.commit(grant, run.last_seq + 1, run.head, events, step=1, **more)


async def linked(url: str) -> None:
    """Wait until a replica follows its primary, and its primary counts it."""
    with redis.Redis.from_url(url) as client:
        await until(lambda: client.info("replication").get("master_link_status") == "up")
        said, port = client.info("replication"), client.connection_pool.connection_kwargs["port"]
    # The primary takes it for a good one from its first acknowledgement on; until then min-replicas-to-write refuses.
    async with aredis.Redis(host=said["master_host"], port=said["master_port"]) as primary:
        with anyio.fail_after(60):
            while not _counted(await primary.info("replication"), port):  # noqa: ASYNC110 - another process
                await anyio.sleep(0.02)


def _counted(said: dict[str, Any], port: int) -> bool:
    own = [one for name, one in said.items() if re.fullmatch(r"slave\d+", name) and one["port"] == port]
    return [one["state"] for one in own] == ["online"] and said.get("min_slaves_good_slaves", 1) > 0


async def until(true: Callable[[], object]) -> None:
    """Wait for what another process brings about; a replica takes seconds to follow even where nothing stalls."""
    with anyio.fail_after(60):
        while not true():  # noqa: ASYNC110 - another process
            await anyio.sleep(0.02)


async def refused(url: str, error: type[Exception] = StoreUnsafe, **options: Any) -> str:
    with pytest.raises(error) as caught:
        async with opened(url, **options):
            pass
    return str(caught.value)


def key_contents(url: str, namespace: str) -> dict[str, bytes | None]:
    """Every key of a namespace, as the server would dump it, but for the history row and what only waits to expire."""
    with redis.Redis.from_url(url) as client:
        names = [name.decode() for name in client.scan_iter(match=f"tenure:{{{namespace}:0}}:*")]
        lasting = [name for name in sorted(names) if not name.endswith(":history") and ":stage:" not in name]
        return {name: client.dump(name) for name in lasting}
