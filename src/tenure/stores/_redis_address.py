"""Where Redis or Valkey is, as a URL says it: one server, what sentinels name, or a Cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias
from urllib.parse import urlsplit

from tenure.errors import InvalidUrl
from tenure.stores import refuse_options

Node: TypeAlias = tuple[str, int]
"""Host and port."""

MOST_SHARDS = 128
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_SENTINEL = ("sentinel_username", "sentinel_password")
OPTIONS = ("history", "db", "timeout", "replicas", "shards", "testing", *_TLS, *_SENTINEL)
_PORTS = {"one": 6379, "sentinel": 26379, "cluster": 6379}


class Setup(StrEnum):
    """How the primary is found."""

    ONE = "one"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a store is and how it is spoken to; `shown` carries no password, the rest may."""

    shown: str
    full: str = field(repr=False)
    """The URL of the one server; empty where it has to be found."""
    scheme: str = "redis"
    user: str = field(default="", repr=False)
    """Name and password as they stand before the `@` of the URL."""
    setup: Setup = Setup.ONE
    nodes: tuple[Node, ...] = ()
    """The sentinels, or some nodes of the Cluster."""
    service: str = ""
    sentinel_user: tuple[str, str] = field(default=("", ""), repr=False)
    timeout: float = 5.0
    replicas: int | None = None
    shards: int | None = None
    history: bool = True
    testing: bool = False
    db: int | None = None
    tls: tuple[tuple[str, str], ...] = ()

    def at(self, node: Node, /) -> str:
        """Return the full URL of one node."""
        return f"{self.scheme}://{self.user and self.user + '@'}{host_port(node)}"


def host_port(node: Node, /) -> str:
    """Return a node as it stands in a URL."""
    host, port = node
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def address(url: str, options: dict[str, str], /) -> Address:
    """Return the address of a URL; InvalidUrl says what to change and never repeats a password."""
    parts = urlsplit(url)
    refuse_options(options, parts.scheme, OPTIONS)
    base, _, found = parts.scheme.partition("+")
    scheme = {"valkey": "redis", "valkeys": "rediss"}.get(base, base)
    setup = Setup(found) if found else Setup.ONE
    user, _, hosts = parts.netloc.rpartition("@")
    path = parts.path if scheme == "unix" else parts.path.strip("/")
    service, db_path = ("", path) if setup is not Setup.SENTINEL else path.partition("/")[::2]
    try:
        nodes = tuple(_node(host, _PORTS[setup]) for host in hosts.split(",")) if scheme != "unix" else ()
        db = int(options["db"]) if "db" in options else None
        if scheme != "unix" and db_path:
            db = int(db_path) if db is None else db
        timeout = float(options.get("timeout", "5"))
        replicas = int(options["replicas"]) if "replicas" in options else None
        shards = int(options["shards"]) if "shards" in options else None
    except ValueError:
        message = (
            "port, database, timeout, replicas and shards are numbers, the port one below 65536; correct the URL: "
            f"{parts.scheme}://host:port/database?timeout=5"
        )
        if setup is Setup.ONE and not hosts and db_path and not db_path.isdecimal():
            message = f"no host stands before the third slash; write {parts.scheme}://host:port/db"
        raise InvalidUrl(message) from None
    _refuse(setup, nodes, service, db, ("" if hosts else path) if scheme == "unix" else "-")
    if timeout <= 0 or (replicas is not None and replicas < 1):
        message = "timeout must be above 0 seconds and replicas at least 1; correct the URL"
        raise InvalidUrl(message)
    if shards is not None and not 1 <= shards <= MOST_SHARDS:
        message = f"shards is a number from 1 to {MOST_SHARDS}; correct the URL"
        raise InvalidUrl(message)
    for name in ("history", "testing"):
        if options.get(name, "on") not in ("on", "off"):
            message = f"{name} is 'on' or 'off'; correct the URL"
            raise InvalidUrl(message)
    if sentinel := [name for name in _SENTINEL if name in options and setup is not Setup.SENTINEL]:
        message = f"{sentinel[0]} is for redis+sentinel:// URLs; take it out"
        raise InvalidUrl(message)
    return Address(
        shown=f"{parts.scheme}://{hosts or ('' if scheme == 'unix' else 'localhost')}{parts.path}",
        full=f"{scheme}://{parts.netloc}{parts.path}" if setup is Setup.ONE else "",
        scheme=scheme,
        user=user,
        setup=setup,
        nodes=nodes,
        service=service,
        sentinel_user=(options.get("sentinel_username", ""), options.get("sentinel_password", "")),
        timeout=timeout,
        replicas=replicas,
        shards=shards,
        history=options.get("history", "on") == "on",
        testing=options.get("testing", "off") == "on",
        db=db,
        tls=_tls(scheme, options),
    )


def _node(text: str, port: int) -> Node:
    parts = urlsplit(f"//{text}")
    return parts.hostname or "localhost", parts.port or port


def _refuse(setup: Setup, nodes: tuple[Node, ...], service: str, db: int | None, path: str) -> None:
    if setup is Setup.SENTINEL and not service:
        message = "a sentinel URL names the service: redis+sentinel://host1,host2,host3/mymaster"
        raise InvalidUrl(message)
    if setup is Setup.ONE and len(nodes) > 1:
        message = (
            "several hosts need redis+sentinel://host1,host2/service or redis+cluster://host1,host2; correct the URL"
        )
        raise InvalidUrl(message)
    if setup is Setup.CLUSTER and db:
        message = "a Cluster has database 0 only; take the database out of the URL"
        raise InvalidUrl(message)
    if not path:
        message = "a unix:// URL names the path of the server's socket after three slashes: unix:///run/redis.sock"
        raise InvalidUrl(message)


def _tls(scheme: str, options: dict[str, str]) -> tuple[tuple[str, str], ...]:
    given = tuple((name, options[name]) for name in _TLS if name in options)
    if given and scheme != "rediss":
        message = f"{given[0][0]} is for TLS; write rediss:// (valkeys://), or take it out"
        raise InvalidUrl(message)
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        message = "ssl_keyfile needs ssl_certfile beside it; name both in the URL"
        raise InvalidUrl(message)
    return given
