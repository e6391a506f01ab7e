"""Texts of people on PostgreSQL: whatever is in them, an answer is read as it was given."""

from urllib.parse import urlsplit

import anyio
import pytest

from stores.postgres_kit import rows_of
from tenure.core import build
from tenure.core.run import Answer, Due, Run
from tenure.errors import StoreUnsafe
from tenure.store import Store
from tenure.stores import open_store
from tenure.testing.contract_case import claim, grant_of, suspend

ENDS = "a\x0bb\x1cc\x85d\u2028e\u2029f"
"""What Unicode takes for ends of lines."""


async def claimed(store: Store, *names: str) -> list[Run]:
    with anyio.fail_after(60):
        answers = await store.commit_many([claim(name) for name in names])
    return [answer.run for answer in answers if isinstance(answer, Answer) and answer.run is not None]


@pytest.mark.parametrize("names", [("r1",), ("r1", "r2", "r3")])
async def test_a_run_with_any_text_in_it_is_claimed_alone_and_among_others(
    postgres_url: str, namespace: str, names: tuple[str, ...]
) -> None:
    """An answer that is cut in two would leave who asked, and all who asked with it, to wait for ever."""
    async with open_store(postgres_url, namespace=namespace) as store:
        await store.commit_many([build.create(run=name, kind="k", value=1, tags={"t": ENDS}) for name in names])
        held = await claimed(store, *names)
        assert [(run.id, run.tags) for run in held] == [(name, {"t": ENDS}) for name in names]
        await store.commit_many([suspend(grant_of(run), run, due=Due(ms=0, relative=True)) for run in held])
        assert [(run.id, run.tags) for run in await claimed(store, *names)] == [(name, {"t": ENDS}) for name in names]


async def test_texts_come_back_as_they_are_whatever_encoding_this_process_is_told_to_speak(
    postgres_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    async with open_store(postgres_url, namespace=namespace) as store:
        await store.commit(build.create(run="r1", kind="k", value=1, tags={"t": "é 字"}))
        (run,) = await claimed(store, "r1")
        assert run.tags == {"t": "é 字"}
        assert await store.load("r1") == run


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_a_database_that_cannot_keep_all_texts_is_refused(
    postgres_url: str, namespace: str, encoding: str
) -> None:
    name = f"{encoding.lower()}_{namespace.replace('-', '_').replace('.', '_')}"
    await rows_of(postgres_url, f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(StoreUnsafe, match=f"{encoding}.*ENCODING 'UTF8'"):
            async with open_store(urlsplit(postgres_url)._replace(path=f"/{name}").geturl(), namespace=namespace):
                pytest.fail("it was opened")
    finally:
        await rows_of(postgres_url, f"DROP DATABASE {name}")
