"""A store that is named wrongly, is none, or is not to be read: a named error, nothing changed, no password shown."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scenarios.test_bad_input import NEXT_STEP
from tenure import Ledger, TenureError, open_store
from tenure.errors import Code
from tenure.stores import redis as redis_store
from tenure.stores._redis_line import pack

pytestmark = pytest.mark.anyio

SECRET = "hunter2"
URLS = [
    "",
    "redis",
    "//host",
    f"mysql://u:{SECRET}@h/db",
    f"u:{SECRET}@h",
    f"redis://u:{SECRET}#x@127.0.0.1:1/0",
    f"redis://u:1?{SECRET}@127.0.0.1:1/0",
    f"redis://u:1/{SECRET}@127.0.0.1:1/0",
    f"redis://u:1#{SECRET}@127.0.0.1:1/0",
    f"redis://u:{SECRET}[x@127.0.0.1:1/0",
    f"redis://u:{SECRET}@127.0.0.1:99999/0",
    f"redis://u:{SECRET}@127.0.0.1:abc/0",
    f"redis://u:{SECRET}@127.0.0.1:1/x",
    f"redis://u:{SECRET}@127.0.0.1:1/0?passwort=x",
    f"redis://u:{SECRET}@127.0.0.1:1/0?durability=some",
    f"redis:/u:{SECRET}@127.0.0.1",
    f"postgres:u:{SECRET}@h/db",
    f"u/{SECRET}@h/x.db",
    f"u:{SECRET}@h/x.db",
    "sqlite://x.db",
    "sqlite:",
    "sqlite:///",
    "sqlite:///x.db?nope=1",
    "sqlite:///x.db#other",
    "sqlite:///x\x00.db",
    "sqlite:///x%00.db",
    "memory://?durability=disk&x=1",
    "unix://",
]


@pytest.mark.parametrize("url", URLS)
def test_a_bad_url_is_named_before_anything_is_opened_and_its_password_is_not_shown(url: str) -> None:
    with pytest.raises(TenureError) as found:
        open_store(url)
    assert found.value.code is Code.INVALID_URL
    assert SECRET not in str(found.value)
    assert SECRET not in repr(found.value)
    assert any(step in found.value.message for step in (*NEXT_STEP, "known are", "is none of", "names the path")), (
        found.value
    )


@pytest.mark.parametrize(
    "url, right",
    [
        ("sqlite:runs.db", "write sqlite:///runs.db"),
        ("sqlite:/tmp/x/q.db?create=off", "write sqlite:////tmp/x/q.db"),
        ("sqlite:", "write sqlite:///relative.db"),
        ("SQLite:runs.db", "write sqlite:///runs.db"),
        ("sqlite://runs.db", "use sqlite:///relative.db"),
        ("runs.db", "write sqlite:///runs.db for this file"),
        ("Runs.db", "write sqlite:///Runs.db for this file"),
        ("/tmp/My Runs/A:B.db", "write sqlite:////tmp/My Runs/A:B.db for this file"),
        ("/tmp/x/q.db", "write sqlite:////tmp/x/q.db for this file"),
        ("runs\n.db", r"write sqlite:///runs\n.db for this file"),
        ("all 100%.db", "write sqlite:///all 100%25.db for this file"),
        ("redis", "begins with its scheme; use one of memory://"),
        ("redis:/localhost", "write redis://host:port/db"),
        ("redis:///localhost", "write redis://host:port/db"),
        ("valkeys:localhost:6379", "write valkeys://host:port/db"),
        ("redis+sentinel:/a,b/mymaster", "write redis+sentinel://host1,host2,host3/service"),
        ("rediss+cluster:a,b", "write rediss+cluster://host1,host2"),
        ("unix:/run/redis.sock", "write unix:///run/redis.sock"),
        ("unix://run/redis.sock", "three slashes: unix:///run/redis.sock"),
        ("postgresql:/host", "write postgresql://user:password@host:port/database"),
        ("postgres:host/db", "write postgres://user:password@host:port/database"),
        ("memory:name", "write memory://"),
    ],
)
def test_a_url_with_a_slash_too_few_is_told_its_right_spelling(
    url: str, right: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TenureError) as found:
        open_store(url)
    assert found.value.code is Code.INVALID_URL
    assert right in found.value.message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("namespace", ["", "A", "a b", "_a", "a" * 65, "a:b", "{a}", "a\n", None, 3])
def test_a_bad_namespace_is_an_invalid_id(namespace: Any) -> None:
    with pytest.raises(TenureError) as found:
        open_store("memory://", namespace=namespace)
    assert found.value.code is Code.INVALID_ID


async def test_a_store_that_is_not_reached_shows_no_password() -> None:
    with pytest.raises(TenureError) as found:
        async with open_store(f"redis://user:{SECRET}@127.0.0.1:1/0"):
            pass
    assert found.value.code is Code.STORE_UNAVAILABLE
    assert SECRET not in f"{found.value!r} {found.value} {found.value.__cause__!r}"
    assert "look whether the server runs" in found.value.message


def _folder(path: Path) -> None:
    path.mkdir()


def _text(path: Path) -> None:
    path.write_text("notes, not runs; " * 100)


def _foreign(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE notes (text)")
    other.close()


def _newer(path: Path) -> None:
    from tenure.stores._sqlite_open import APPLICATION_ID

    with sqlite3.connect(path) as other:
        other.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        other.execute("PRAGMA user_version = 999")
    other.close()


FILES: dict[Callable[[Path], None], Code] = {
    _folder: Code.STORE_UNSAFE,
    _text: Code.STORE_UNSAFE,
    _foreign: Code.STORE_UNSAFE,
    _newer: Code.STORE_TOO_NEW,
}


@pytest.mark.parametrize("make", FILES, ids=lambda fn: fn.__name__)
async def test_a_file_that_is_no_store_is_refused_and_left_as_it_is(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "found.db"
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(TenureError) as found:
        async with open_store(f"sqlite:///{path}"):
            pass
    assert found.value.code is FILES[make]
    assert any(step in found.value.message for step in NEXT_STEP)
    assert (path.read_bytes() if path.is_file() else b"") == before
    assert list(tmp_path.iterdir()) == [path]  # noqa: ASYNC240 - nothing else runs here


@pytest.mark.parametrize(
    "field, value, code", [("token", "many", Code.CORRUPT_RECORD), ("schema", "999", Code.STORE_TOO_NEW)]
)
async def test_a_record_that_cannot_be_read_is_named_and_the_others_go_on(
    valkey_url: str, namespace: str, field: str, value: str, code: Code
) -> None:
    async with open_store(valkey_url, namespace=namespace) as store, Ledger(store) as ledger:
        assert isinstance(store, redis_store.RedisStore)
        for name in ("broken", "whole"):
            await ledger.submit("k", 1, id=name)
        await store._read(pack("HSET", store._keys.run("broken"), field, value))
        before = await store.raw("broken")
        with pytest.raises(TenureError) as found:
            await ledger.load("broken")
        assert found.value.code is code
        if code is Code.CORRUPT_RECORD:
            with pytest.raises(TenureError, match=r"restore|see `"):
                await ledger.cancel("broken")
        assert await store.raw("broken") == before
        assert [run.id async for run in ledger.find()] == ["whole"]
