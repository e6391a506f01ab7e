"""TLS, against a real server with a certificate authority of the test's own: trust is proved on both sides."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from conftest import StartRedis
from stores.redis_kit import begun, opened, refused, step
from tenure.core.run import Verdict
from tenure.errors import InvalidUrl, StoreUnavailable, StoreUnsafe
from tenure.stores import open_store
from tenure.testing._server_process import free_port
from tenure.testing.server_sets import Sentinel, asked, until
from tenure.testing.servers import REDIS7, find_program


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two authorities, a server's certificate from `ca` and a client's from each."""
    folder = tmp_path_factory.mktemp("tls")
    for ca in ("ca", "stranger"):
        made = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
        _openssl(folder, *made, "-keyout", f"{ca}.key", "-out", f"{ca}.crt", "-subj", f"/CN={ca}")
    for name, ca in (("server", "ca"), ("client", "ca"), ("unknown", "stranger")):
        asked_for = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        _openssl(folder, *asked_for, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        signed = ("x509", "-req", "-CA", f"{ca}.crt", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "2")
        _openssl(folder, *signed, "-in", f"{name}.csr", "-out", f"{name}.crt", "-extfile", "names")
    return folder


def _tls(papers: Path, port: int, clients: str) -> dict[str, str | int]:
    return {
        "tls_port": port,
        "tls_ca_cert_file": f'"{papers}/ca.crt"',
        "tls_cert_file": f'"{papers}/server.crt"',
        "tls_key_file": f'"{papers}/server.key"',
        "tls_auth_clients": clients,
    }


def _speaks_tls() -> bool:
    program = find_program(REDIS7)
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    return "libssl" in said


@pytest.fixture
def tls_port(papers: Path, start_redis: StartRedis) -> int:
    """A server that asks for a client's certificate; its plain port stays open for the test itself."""
    if not _speaks_tls():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("this redis-server was built without TLS")
    port = free_port()
    start_redis(REDIS7, **_tls(papers, port, "yes"))  # type: ignore[arg-type]
    return port


async def test_both_sides_prove_who_they_are_and_nobody_reads_along(
    tls_port: int, papers: Path, namespace: str
) -> None:
    files = f"ssl_ca_certs={papers}/ca.crt&ssl_certfile={papers}/client.crt&ssl_keyfile={papers}/client.key"
    for scheme, host in (("rediss", "127.0.0.1"), ("valkeys", "localhost")):
        async with opened(f"{scheme}://{host}:{tls_port}?{files}", namespace=namespace) as store:
            run_id = f"r-{scheme}"
            assert (await store.commit(step(*await begun(store, run_id)))).verdict is Verdict.LANDED
    context = ssl.create_default_context(cafile=str(papers / "ca.crt"))
    context.load_cert_chain(papers / "client.crt", papers / "client.key")
    with (
        socket.create_connection(("127.0.0.1", tls_port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
    ):
        assert wrapped.version() in ("TLSv1.2", "TLSv1.3")


async def test_who_cannot_be_trusted_is_named_and_nothing_is_sent_to_them(tls_port: int, papers: Path) -> None:
    at, client = f"rediss://127.0.0.1:{tls_port}", f"ssl_certfile={papers}/client.crt&ssl_keyfile={papers}/client.key"
    unknown = f"ssl_certfile={papers}/unknown.crt&ssl_keyfile={papers}/unknown.key"
    for query in (f"ssl_ca_certs={papers}/stranger.crt&{client}", client):
        assert "ssl_ca_certs" in await refused(f"{at}?{query}", StoreUnsafe)
    for query in (f"ssl_ca_certs={papers}/ca.crt&{unknown}", f"ssl_ca_certs={papers}/ca.crt"):
        with pytest.raises((StoreUnsafe, StoreUnavailable)):  # a server may say why, or hang up
            async with opened(f"{at}?{query}"):
                pass
    for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        given = {"ssl_ca_certs": "ca.crt", "ssl_certfile": "client.crt", "ssl_keyfile": "client.key", name: "nothing"}
        query = "&".join(f"{option}={papers}/{file}" for option, file in given.items())
        assert f"the file of {name} cannot be read" in await refused(f"{at}?{query}", StoreUnsafe)
    swapped = f"ssl_ca_certs={papers}/client.key&{client}"
    assert "ssl_ca_certs" in await refused(f"{at}?{swapped}", StoreUnsafe)


@pytest.mark.parametrize("query", ["ssl_ca_certs=/x", "ssl_certfile=/x"])
def test_files_for_tls_without_tls_are_refused(query: str) -> None:
    with pytest.raises(InvalidUrl, match="rediss"):
        open_store(f"redis://localhost?{query}")
    with pytest.raises(InvalidUrl, match="ssl_certfile"):
        open_store("rediss://localhost?ssl_keyfile=/x")


async def test_sentinels_and_the_primary_are_both_spoken_to_by_tls(tls_port: int, papers: Path, namespace: str) -> None:
    port = free_port()
    plain = {name.replace("_", "-"): value for name, value in _tls(papers, port, "no").items()}
    files = f"ssl_ca_certs={papers}/ca.crt&ssl_certfile={papers}/client.crt&ssl_keyfile={papers}/client.key"
    program = find_program(REDIS7)
    assert program is not None
    with ExitStack() as started:
        watch = {"sentinel monitor": f"runs 127.0.0.1 {tls_port} 1", "tls-replication": "yes"}
        sentinel = started.enter_context(Sentinel(program, options={**plain, **watch}))
        until(lambda: "master" in asked(sentinel, "SENTINEL", "MASTER", "runs")["flags"])
        url = f"rediss+sentinel://127.0.0.1:{port}/runs"
        async with opened(f"{url}?{files}", namespace=namespace) as store:
            assert (await store.commit(step(*await begun(store)))).verdict is Verdict.LANDED
        assert "ssl_ca_certs" in await refused(f"{url}?{files.replace('ca.crt', 'stranger.crt')}", StoreUnsafe)
