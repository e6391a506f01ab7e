"""How Redis and Valkey are reached: the URL, the connection, and what its errors mean here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from tenure.errors import InvalidUrl, OutcomeUnknown, StoreUnavailable, StoreUnsafe, TenureError
from tenure.stores import refuse_options
from tenure.stores._redis_line import LineBroken

ACL_PAGE = "deploy/redis-acl.txt lists what a user needs"
OPTIONS = ("history", "db", "timeout", "replicas", "testing", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_SCHEMES = {"valkey": "redis", "valkeys": "rediss"}
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server is and how it is spoken to; `shown` carries no password, `full` does."""

    shown: str
    full: str = field(repr=False)
    timeout: float = 5.0
    replicas: int | None = None
    history: bool = True
    testing: bool = False
    db: int | None = None
    tls: tuple[tuple[str, str], ...] = ()


def address(url: str, options: dict[str, str], /) -> Address:
    """Return the address of a URL; InvalidUrl says what to change and never repeats a password."""
    parts = urlsplit(url)
    refuse_options(options, parts.scheme, OPTIONS)
    scheme = _SCHEMES.get(parts.scheme, parts.scheme)
    try:
        host = parts.hostname or "localhost"
        port = f":{parts.port}" if parts.port else ""
        db = int(options["db"]) if "db" in options else None
        timeout = float(options.get("timeout", "5"))
        replicas = int(options["replicas"]) if "replicas" in options else None
        if scheme != "unix" and parts.path.strip("/"):
            int(parts.path.strip("/"))
    except ValueError:
        message = f"{parts.scheme}://host:port/db?db=&timeout=&replicas= take numbers there; correct the URL"
        raise InvalidUrl(message) from None
    if timeout <= 0 or (replicas is not None and replicas < 1):
        message = "timeout must be above 0 seconds and replicas at least 1; correct the URL"
        raise InvalidUrl(message)
    for name in ("history", "testing"):
        if options.get(name, "on") not in ("on", "off"):
            message = f"{name} is 'on' or 'off'; correct the URL"
            raise InvalidUrl(message)
    if scheme == "unix" and not parts.path:
        message = "a unix:// URL names the path of the server's socket: unix:///run/redis.sock"
        raise InvalidUrl(message)
    bare = f"{f'[{host}]' if ':' in host else host}{port}" if scheme != "unix" else ""
    return Address(
        shown=f"{parts.scheme}://{bare}{parts.path}",
        full=f"{scheme}://{parts.netloc}{parts.path}",
        timeout=timeout,
        replicas=replicas,
        history=options.get("history", "on") == "on",
        testing=options.get("testing", "off") == "on",
        db=db,
        tls=tuple((name, options[name]) for name in _TLS if name in options),
    )


async def connect(where: Address, /, *, timeout: float | None = None) -> AbstractConnection:
    """Return a new connection, authenticated; LineBroken (nothing sent) with the reason."""
    kwargs: dict[str, Any] = dict(where.tls)
    if where.db is not None:
        kwargs["db"] = where.db
    # The driver may never send anything twice: by default it runs a script again whose reply was lost.
    pool = ConnectionPool.from_url(
        where.full,
        decode_responses=False,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=timeout or where.timeout,
        socket_connect_timeout=where.timeout,
        **({} if where.full.startswith("unix") else {"socket_keepalive": True}),
        **kwargs,
    )
    connection = cast("AbstractConnection", pool.make_connection())  # type: ignore[no-untyped-call]
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
    except (RedisError, OSError) as error:
        await _drop(connection)
        raise LineBroken(error, sent=False) from None
    except BaseException:
        await _drop(connection)
        raise
    return connection


async def _drop(connection: AbstractConnection) -> None:
    try:
        await connection.disconnect(nowait=True)
    except (RedisError, OSError):
        return


def translated(
    error: BaseException, where: Address, /, *, change: bool = False, run_id: str | None = None
) -> TenureError:
    """Return what a driver's error means here, and what to do about it; payloads and passwords stay out of it."""
    at = where.shown
    if isinstance(error, LineBroken):
        if isinstance(error.cause, ResponseError | AuthenticationError | BusyLoadingError):
            return translated(error.cause, where, run_id=run_id)
        if change and error.sent:
            message = f"the connection to {at} broke before the answer came ({error}); send the same request again"
            return OutcomeUnknown(message, run_id=run_id)
        message = f"{at} cannot be reached ({error}); try again, and look whether the server runs"
        return StoreUnavailable(message, run_id=run_id)
    said = _first_line(error)
    match error:
        case AuthenticationError():
            message = f"{at} refused the name or password; correct them in the URL"
            return StoreUnsafe(message, run_id=run_id)
        case _ if isinstance(error, NoPermissionError) or "ACL failure" in said or "executing the script" in said:
            message = f"the user at {at} lacks a permission ({said}); grant it: {ACL_PAGE}"
            return StoreUnsafe(message, run_id=run_id)
        case ReadOnlyError():
            message = f"{at} is a replica and takes no writes; point the URL at the primary"
            return StoreUnsafe(message, run_id=run_id)
        case OutOfMemoryError():
            message = f"{at} has reached its maxmemory and refused the write whole; raise maxmemory or delete runs"
            return StoreUnavailable(message, run_id=run_id)
        case AskError():
            message = f"{at} is a cluster node that does not serve this namespace ({said}); name that node in the URL"
            return StoreUnsafe(message, run_id=run_id)
        case _ if (
            said.startswith(("WRONGTYPE", "user_script", "ERR user_script", "ERR Error running")) or "WRONGTYPE" in said
        ):
            message = f"a key of the store at {at} is not what tenure wrote ({said}); nothing of the run was changed"
            return StoreUnsafe(message, run_id=run_id)
        case _:
            message = f"{at} cannot serve this now ({said}); try again"
            return StoreUnavailable(message, run_id=run_id)


def _first_line(error: BaseException) -> str:
    # Scripts are named by their hash and no argument is ever part of an error text; it is cut all the same.
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
