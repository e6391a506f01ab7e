"""How Redis and Valkey are reached: the connection, and what its errors mean here."""

from __future__ import annotations

import os
import ssl
from typing import Any, cast

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from tenure.errors import InvalidUrl, OutcomeUnknown, StoreUnavailable, StoreUnsafe, TenureError
from tenure.stores._redis_address import Address, Node, Setup
from tenure.stores._redis_line import LineBroken, reply
from tenure.stores._redis_reader import Reply

Kind = type[InvalidUrl | StoreUnsafe | StoreUnavailable]

_UNTRUSTED = ("CERTIFICATE", "UNKNOWN_CA", "WRONG_VERSION_NUMBER", "HANDSHAKE_FAILURE", "PROTOCOL_VERSION")
FOREIGN = "is not what tenure wrote"
ACL_PAGE = "deploy/redis-users.acl lists what a user needs"


async def connect(where: Address, node: Node | None = None, /, **kwargs: Any) -> AbstractConnection:
    """Return a new connection, authenticated; LineBroken (nothing sent) with the reason.

    `kwargs` are redis-py's, above what the address says.
    """
    for name, path in where.tls:
        if not os.access(path, os.R_OK):
            message = f"the file of {name} cannot be read ({path[:200]}); correct the path in the URL, or its rights"
            raise StoreUnsafe(message)
    settings: dict[str, Any] = {**dict(where.tls), **({} if where.db is None else {"db": where.db})}
    if where.scheme != "unix":
        settings["socket_keepalive"] = True
    # The driver may never send anything twice: by default it runs a script again whose reply was lost.
    settings |= {"decode_responses": False, "protocol": 2, "retry": Retry(NoBackoff(), 0)}
    settings |= {"socket_timeout": where.timeout, "socket_connect_timeout": where.timeout, **kwargs}
    try:
        pool = ConnectionPool.from_url(where.full if node is None else where.at(node), **settings)
        connection = cast("AbstractConnection", pool.make_connection())  # type: ignore[no-untyped-call]
    except (RedisError, OSError, ValueError) as error:
        raise LineBroken(error, sent=False) from None
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
    except (RedisError, OSError) as error:
        await drop(connection)
        raise LineBroken(error, sent=False) from None
    except BaseException:
        await drop(connection)
        raise
    return connection


async def told(connection: AbstractConnection, /, *commands: bytes) -> list[Reply]:
    """Return the replies of a connection that nobody else uses yet; LineBroken (nothing of a caller's was sent)."""
    try:
        await connection.send_packed_command(commands)
        return [await reply(connection) for _ in commands]
    except (RedisError, OSError) as error:
        raise LineBroken(error, sent=False) from None
    except BaseException:
        await drop(connection)  # whoever is cancelled here may not know of it yet
        raise


async def drop(connection: AbstractConnection, /) -> None:
    """Close a connection without a word."""
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
        if untrusted(error.cause):
            message = f"{at} and this side do not trust each other ({error}); correct ssl_ca_certs, or the certificates"
            return StoreUnsafe(message, run_id=run_id)
        foreign = "Protocol error" in str(error)
        look = "what answers there is no Redis" if foreign else "look whether the server runs there"
        message = f"{at} cannot be reached ({error}); {look}, or correct the URL"
        return StoreUnavailable(message, run_id=run_id)
    kind, message = _refusal(error, _first_line(error), where)
    return kind(message, run_id=run_id)


def _refusal(error: BaseException, said: str, where: Address) -> tuple[Kind, str]:
    at = where.shown
    match error:
        case AuthenticationError():
            return StoreUnsafe, f"{at} refused the name or password; correct them in the URL"
        case _ if isinstance(error, NoPermissionError) or "ACL failure" in said or "executing the script" in said:
            return StoreUnsafe, f"the user at {at} lacks a permission ({said}); grant it: {ACL_PAGE}"
        case ReadOnlyError() if where.setup is not Setup.ONE:
            return StoreUnavailable, f"{at} has a new primary, and the former one took no write; try again"
        case ReadOnlyError():
            return StoreUnsafe, f"{at} is a replica and takes no writes; point the URL at the primary"
        case _ if "DB index is out of range" in said:
            return InvalidUrl, f"the server of {at} has no such database (`databases` in its settings); correct the URL"
        case OutOfMemoryError():
            refused = "has reached its maxmemory and refused the write whole"
            return StoreUnavailable, f"{at} {refused}; raise maxmemory or delete runs"
        case AskError() | ClusterDownError() | TryAgainError():
            return _of_cluster(error, said, where)
        case _ if said.startswith("NOREPLICAS"):
            refused = "has fewer replicas than min-replicas-to-write and took no write"
            return StoreUnavailable, f"{at} {refused}; bring them back, then try again"
        case _ if said.startswith("MISCONF"):
            refused = f"cannot write to its disk and took no write ({said})"
            return StoreUnavailable, f"{at} {refused}; make room on it, then try again"
        case _ if "WRONGTYPE" in said or said.startswith(("user_script", "ERR user_script", "ERR Error running")):
            refused = f"{FOREIGN} ({said}); nothing of the run was changed"
            return StoreUnsafe, f"a key of the store at {at} {refused}"
        case _:
            return StoreUnavailable, f"{at} cannot serve this now ({said}); try again"


def _of_cluster(error: BaseException, said: str, where: Address) -> tuple[Kind, str]:
    at = where.shown
    if isinstance(error, ClusterDownError):
        message = f"{at}: the Cluster does not serve this slot now ({said}); bring its node back, then try again"
    elif where.setup is Setup.CLUSTER:
        message = f"{at} moves this slot to another node and wrote nothing; try again when that is done"
    else:
        message = f"{at} is a node of a Cluster and does not serve this namespace ({said}); use redis+cluster://"
        return StoreUnsafe, message
    return StoreUnavailable, message


def untrusted(cause: BaseException | str, /) -> bool:
    """Return whether a connection failed because one side does not trust the other, and will not by itself."""
    while isinstance(cause, BaseException):
        if isinstance(cause, ssl.SSLError) and any(word in (cause.reason or "") for word in _UNTRUSTED):
            return True
        cause = cause.__cause__ or cause.__context__ or ""
    return False


def _first_line(error: BaseException) -> str:
    # Scripts are named by their hash and no argument is ever part of an error text; it is cut all the same.
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
