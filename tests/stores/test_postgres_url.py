"""URLs of PostgreSQL: what is refused before any connection, and what an error shows of them."""

import re

import pytest

from tenure import InvalidUrl, StoreUnavailable, open_store

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/postgres", "postgresql:///postgres?host=/nowhere&port=7"])
async def test_nobody_who_listens_is_unavailable_and_named_by_where_it_was_looked_for(url: str) -> None:
    with pytest.raises(StoreUnavailable, match=f"{re.escape(url)} cannot be reached"):
        async with open_store(url.replace("//", "//tenure:hush@", 1)):
            pass


@pytest.mark.parametrize("hosts", ["localhost:abc", "localhost:1,other:x", "u:hush@[::1]:x", "::1"])
def test_a_port_that_is_no_number_is_refused_before_any_connection(hosts: str) -> None:
    with pytest.raises(InvalidUrl, match="a port is a number") as caught:
        open_store(f"postgresql://{hosts}/postgres")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("secret", ["pa@ss", "12/34"])
@pytest.mark.parametrize("where", ["postgresql://u:{}@h/db", "postgresql://h/db?direct=postgresql://u:{}@h/db"])
def test_a_password_that_is_not_encoded_is_refused_and_never_shown(where: str, secret: str) -> None:
    with pytest.raises(InvalidUrl, match="%2F") as refused:
        open_store(where.format(secret))
    assert "ss@" not in str(refused.value)
    assert "34" not in str(refused.value)
