"""Statements that a session keeps ready, and one that has forgotten them."""

from typing import Any

from stores.postgres_kit import begun
from tenure.stores import open_store
from tenure.testing.contract_case import grant_of, write


async def test_b101_a_session_that_has_forgotten_its_statements_is_given_them_as_text(
    postgres_url: str, namespace: str
) -> None:
    async with open_store(postgres_url, namespace=namespace) as store:
        opened: Any = store
        connection = opened._session.line._pgconn

        def kept() -> int:
            return int(connection.exec_(b"SELECT count(*) FROM pg_prepared_statements").get_value(0, 0))

        async def step(run: Any) -> Any:
            assert (await store.commit(write(grant_of(run), run, step=1))).ok
            return await store.load(run.id)

        run = await step(await step(await begun(store, "r1")))
        assert kept() == 2, "the lone step, and whatever else"
        connection.exec_(b"DEALLOCATE ALL")
        run = await step(await step(run))
        assert (run.step, kept()) == (4, 0)
