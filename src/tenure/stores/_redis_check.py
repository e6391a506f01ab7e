"""What is looked at before a store is used: it stops at whatever would lose or tear what it acknowledges."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from redis.exceptions import NoPermissionError

from tenure.errors import StoreTooNew, StoreUnsafe
from tenure.store import Durability, Finding, Grade
from tenure.stores._redis_connect import ACL_PAGE, Address, translated
from tenure.stores._redis_keys import SCHEMA
from tenure.stores._redis_line import Reply, pack

_LOG = logging.getLogger("tenure.stores.redis")

QUESTIONS = [pack("INFO"), pack("CONFIG", "GET", "appendfsync")]
WAIT_MS = 2_000
"""How long a change may wait for replicas before its outcome is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a server says of itself; None is what it does not let us see."""

    info: dict[str, str] | None
    appendfsync: str | None

    def __getitem__(self, name: str, /) -> str:
        """Return a line of INFO, empty if there is none."""
        return (self.info or {}).get(name, "")

    @property
    def replicas(self) -> int:
        """Return how many replicas are attached."""
        return int(self["connected_slaves"] or "0")

    @property
    def log_is_on(self) -> bool:
        """Return whether the append-only file is written."""
        return self["aof_enabled"] == "1"


def server_of(replies: list[Reply], where: Address, /) -> Server:
    """Return what the answers to QUESTIONS say; StoreUnsafe without INFO unless the history is off by name."""
    info, config = replies
    if isinstance(info, NoPermissionError):
        if where.history:
            message = (
                f"the user at {where.shown} may not call INFO, so a failover could not be seen; grant +info "
                f"({ACL_PAGE}), or open with ?history=off to do without"
            )
            raise StoreUnsafe(message)
        _LOG.warning("%s: INFO is denied, so role, eviction and durability could not be checked", where.shown)
    elif isinstance(info, BaseException):
        raise translated(info, where)
    said = None if isinstance(info, BaseException) else _lines(info)
    fsync = None if isinstance(config, BaseException) or len(config) < 2 else config[1].decode()
    return Server(info=said, appendfsync=fsync)


def refuse_unsafe(server: Server, where: Address, allow: tuple[str, ...], /) -> None:
    """Raise StoreUnsafe for an old version, a replica, and an eviction policy that drops keys without an expiry."""
    version = server["valkey_version"] or server["redis_version"]
    if version and int(version.partition(".")[0]) < 7:
        message = f"{where.shown} is version {version}; upgrade to Redis 7.0, Valkey 7.2 or later"
        raise StoreUnsafe(message)
    if server["role"] == "slave" and "replica" not in allow:
        message = (
            f"{where.shown} is a replica: what it shows is late and it takes no writes; point the URL at the primary, "
            "or allow 'replica' to read"
        )
        raise StoreUnsafe(message)
    policy = server["maxmemory_policy"]
    if policy.startswith("allkeys-") and "eviction" not in allow:
        message = (
            f"{where.shown} evicts any key when memory is full ({policy}), so runs would vanish; "
            "CONFIG SET maxmemory-policy noeviction, or allow 'eviction'"
        )
        raise StoreUnsafe(message)


def refuse_rights(said: list[Reply], where: Address, /) -> None:
    """Raise StoreUnsafe if the probe met a command that the user may not call from a script."""
    if said:
        first = str(said[0]) if isinstance(said[0], BaseException) else said[0].decode(errors="replace")
        message = f"the scripts may not call all that they need at {where.shown} ({first[:200]}); {ACL_PAGE}"
        raise StoreUnsafe(message)


def refuse_meta(meta: dict[str, str], where: Address, /) -> None:
    """Raise for a layout that this version does not write."""
    schema = meta.get("schema", "")
    if not schema.isdecimal() or meta.get("shards") != "1":
        message = f"the meta key at {where.shown} is not what tenure wrote; restore it, or choose another namespace"
        raise StoreUnsafe(message)
    if int(schema) > SCHEMA:
        message = (
            f"the store at {where.shown} has schema {schema} and this version knows {SCHEMA}; upgrade this process"
        )
        raise StoreTooNew(message)


def level_of(server: Server, wanted: Durability | None, where: Address, allow: tuple[str, ...], /) -> Durability:
    """Return the level that acknowledgements have; StoreUnsafe if it was named and is not reached."""
    if wanted is None:
        return _offered(server, where)
    need = f"{where.shown} does not reach durability {wanted.value}: "
    if server.info is None and wanted is not Durability.MEMORY and "unchecked" not in allow:
        raise StoreUnsafe(f"{need}INFO is denied; grant +info ({ACL_PAGE}), or allow 'unchecked'")
    if wanted is not Durability.MEMORY and server.info is not None and not server.log_is_on:
        raise StoreUnsafe(f"{need}CONFIG SET appendonly yes (and in the configuration file), or name a weaker one")
    if wanted is Durability.DISK and server.appendfsync != "always":
        if server.appendfsync is not None:
            raise StoreUnsafe(f"{need}CONFIG SET appendfsync always (and in the configuration file)")
        if "unchecked" not in allow:
            raise StoreUnsafe(f"{need}appendfsync could not be read; grant +config|get, or allow 'unchecked'")
    if wanted in (Durability.REPLICATED, Durability.REPLICATED_DISK):
        wanted_replicas = where.replicas or 1
        if server.replicas < wanted_replicas:
            raise StoreUnsafe(
                f"{need}{server.replicas} of {wanted_replicas} replicas are attached; on each CONFIG SET replicaof"
                " names this primary (REPLICAOF host port)"
            )
        if wanted is Durability.REPLICATED_DISK and _version(server) < (7, 2):
            raise StoreUnsafe(f"{need}WAITAOF needs Redis 7.2 or Valkey; upgrade the server, or name `replicated`")
    return wanted


def wait_command(level: Durability, server: Server, where: Address, /) -> tuple[bytes, int]:
    """Return the packed command that waits for replicas, empty where none does, and how many have to answer."""
    replicas = where.replicas or max(server.replicas, 1)
    timeout_ms = min(WAIT_MS, int(where.timeout * 500))
    if level is Durability.REPLICATED:
        return pack("WAIT", replicas, timeout_ms), replicas
    if level is Durability.REPLICATED_DISK:
        return pack("WAITAOF", 1, replicas, timeout_ms), replicas
    return b"", 0


def reached(reply: Reply, replicas: int, /) -> bool:
    """Return whether the answer to `wait_command` says that enough did."""
    if isinstance(reply, int):
        return reply >= replicas
    return isinstance(reply, list) and reply[0] >= 1 and reply[1] >= replicas


def findings(server: Server, level: Durability, replicas: int, /) -> list[Finding]:
    """Return how the server is set, for people; what could not be read is said too."""
    product = "Valkey" if server["valkey_version"] else "Redis"
    version = server["valkey_version"] or server["redis_version"] or "unknown (INFO is denied)"
    weak = level is Durability.MEMORY
    found = [
        Finding(name="server", level=Grade.OK, text=f"{product} {version}, role {server['role'] or 'unknown'}"),
        Finding(
            name="durability",
            level=Grade.WARNING if weak else Grade.OK,
            text=f"{level.value}" + (f", {replicas} replicas acknowledge" if replicas else ""),
            fix="CONFIG SET appendonly yes" if weak else "",
        ),
    ]
    if server.appendfsync is None:
        fix = "grant +config|get to the user"
        found.append(Finding(name="appendfsync", level=Grade.WARNING, text="could not be read", fix=fix))
    policy = server["maxmemory_policy"]
    evicts = policy.startswith("allkeys-")
    found.append(
        Finding(
            name="eviction",
            level=Grade.PROBLEM if evicts else Grade.OK,
            text=policy or "could not be read",
            fix="CONFIG SET maxmemory-policy noeviction" if evicts else "",
        )
    )
    return found


def _offered(server: Server, where: Address) -> Durability:
    if not server.log_is_on:
        _LOG.warning(
            "%s keeps no append-only file, so nothing survives the server's end (durability memory); "
            "CONFIG SET appendonly yes",
            where.shown,
        )
        return Durability.MEMORY
    level = Durability.DISK if server.appendfsync == "always" else Durability.LOCAL
    unseen = " (appendfsync could not be read, so no more is assumed)" if server.appendfsync is None else ""
    _LOG.info("%s: durability %s%s", where.shown, level.value, unseen)
    return level


def _version(server: Server) -> tuple[int, int]:
    version = server["valkey_version"] or server["redis_version"] or "0.0"
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def _lines(info: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in info.decode(errors="replace").splitlines() if ":" in line)
    return {name: value for name, _, value in pairs}
