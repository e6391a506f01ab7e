"""What is looked at before a store is used: it stops at whatever would lose or tear what it acknowledges."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from redis.exceptions import NoPermissionError

from tenure.errors import StoreTooNew, StoreUnavailable, StoreUnsafe
from tenure.store import Durability
from tenure.stores._redis_address import MOST_SHARDS, Address, Setup
from tenure.stores._redis_connect import ACL_PAGE, translated
from tenure.stores._redis_keys import SCHEMA
from tenure.stores._redis_line import pack
from tenure.stores._redis_reader import Reply

_LOG = logging.getLogger("tenure.stores.redis")

QUESTIONS = [pack("INFO"), pack("CONFIG", "GET", "appendfsync", "min-replicas-to-write")]
WAIT_MS = 2_000
"""How long a change may wait for replicas before its outcome is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a server says of itself; None is what it does not let us see."""

    info: dict[str, str] | None
    settings: dict[str, str] | None

    def __getitem__(self, name: str, /) -> str:
        """Return a line of INFO, empty if there is none."""
        return (self.info or {}).get(name, "")

    @property
    def replicas(self) -> int:
        """Return how many replicas are attached."""
        return int(self["connected_slaves"] or "0")

    @property
    def appendfsync(self) -> str | None:
        """Return when the append-only file is flushed; None if that could not be read."""
        return None if self.settings is None else self.settings.get("appendfsync")

    @property
    def min_replicas(self) -> int | None:
        """Return how many replicas the server wants before it writes; None if that could not be read."""
        if self.settings is not None:
            return int(self.settings.get("min-replicas-to-write", "0"))
        # INFO has this line only where the setting is above 0.
        return None if self.info is None else int("min_slaves_good_slaves" in self.info)

    @property
    def log_is_on(self) -> bool:
        """Return whether the append-only file is written."""
        return self["aof_enabled"] == "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What was settled at the opening, and every server that a later connection leads to has to keep to."""

    level: Durability
    allow: tuple[str, ...]


def server_of(replies: list[Reply], where: Address, /, *, say: bool = True) -> Server:
    """Return what the answers to QUESTIONS say; StoreUnsafe without INFO unless the history is off by name."""
    info, config = replies
    if isinstance(info, NoPermissionError):
        if where.history:
            message = (
                f"the user at {where.shown} may not call INFO, so a failover could not be seen; grant +info "
                f"({ACL_PAGE}), or open with ?history=off to do without"
            )
            raise StoreUnsafe(message)
        if say:
            _LOG.warning(
                "%s: INFO is denied, so role, eviction and durability could not be checked",
                where.shown,
                extra={"setting": True},
            )
    elif isinstance(info, BaseException):
        raise translated(info, where)
    said = None if isinstance(info, BaseException) else _lines(info)
    known = not isinstance(config, BaseException) and len(config) >= 2
    texts = [part.decode() for part in config] if known else []
    return Server(info=said, settings=dict(zip(texts[::2], texts[1::2], strict=True)) if known else None)


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


def refuse_meta(meta: dict[str, str], where: Address, shards: int | None, /) -> int:
    """Return the number of shards that the layout has; raise for one that this version does not write."""
    schema, found = meta.get("schema", ""), meta.get("shards", "")
    if not schema.isdecimal() or not found.isdecimal() or not 1 <= int(found) <= MOST_SHARDS:
        message = f"the meta key at {where.shown} is not what tenure wrote; restore it, or choose another namespace"
        raise StoreUnsafe(message)
    if int(schema) > SCHEMA:
        message = (
            f"the store at {where.shown} has schema {schema} and this version knows {SCHEMA}; upgrade this process"
        )
        raise StoreTooNew(message)
    if shards is not None and shards != int(found):
        message = (
            f"the namespace at {where.shown} was laid out with {found} shards and the URL asks for {shards}; they are "
            f"fixed when it is first opened: write ?shards={found}, or choose another namespace"
        )
        raise StoreUnsafe(message)
    return int(found)


def level_of(
    server: Server, wanted: Durability | None, where: Address, allow: tuple[str, ...], /, *, say: bool = True
) -> Durability:
    """Return the level that acknowledgements have; StoreUnsafe if it was named and is not reached."""
    if wanted is None:
        return _offered(server, where, say=say)
    _refuse_log(server, wanted, where, allow)
    need = f"{where.shown} does not reach durability {wanted.value}: "
    if wanted in (Durability.REPLICATED, Durability.REPLICATED_DISK):
        wanted_replicas = where.replicas or 1
        if server.replicas < wanted_replicas:
            raise StoreUnsafe(
                f"{need}{server.replicas} of {wanted_replicas} replicas are attached; on each CONFIG SET replicaof"
                " names this primary (REPLICAOF host port)"
            )
        if wanted is Durability.REPLICATED_DISK and version_of(server) < (7, 2):
            raise StoreUnsafe(f"{need}WAITAOF needs Redis 7.2 or Valkey; upgrade the server, or name `replicated`")
        if server.min_replicas == 0 and "min-replicas" not in allow:
            raise StoreUnsafe(
                f"{need}a primary that is cut off would go on taking writes; CONFIG SET min-replicas-to-write 1 (and in"
                " the configuration file of each server), or allow 'min-replicas'"
            )
    return wanted


def refuse_less(server: Server, kept: Kept, where: Address, /) -> None:
    """Raise StoreUnsafe for a server that a failover or a restart brought and that is set weaker."""
    refuse_unsafe(server, where, kept.allow)
    if server.info is not None:
        _refuse_log(server, kept.level, where, (*kept.allow, "unchecked"))


def refuse_demoted(server: Server, where: Address, /) -> None:
    """Raise StoreUnavailable for a replica where a primary was looked for."""
    if where.setup is not Setup.ONE and server["role"] == "slave":
        message = f"{where.shown} names a primary that is a replica now: a failover is under way; try again"
        raise StoreUnavailable(message)


def safe(level: Durability, server: Server, replicas: int, /) -> str:
    """Return why no acknowledged grant can be missing after a history change: disk, replicated, or empty."""
    if level is Durability.DISK:
        return "disk"
    # Whoever is elected is one of most of the servers; who acknowledged has to be most of them as well.
    return "replicated" if replicas and 2 * (replicas + 1) > server.replicas + 1 else ""


def _refuse_log(server: Server, wanted: Durability, where: Address, allow: tuple[str, ...]) -> None:
    need = f"{where.shown} does not reach durability {wanted.value}: "
    if wanted is Durability.MEMORY:
        return
    if server.info is None and "unchecked" not in allow:
        raise StoreUnsafe(f"{need}INFO is denied; grant +info ({ACL_PAGE}), or allow 'unchecked'")
    if server.info is not None and not server.log_is_on:
        raise StoreUnsafe(f"{need}CONFIG SET appendonly yes (and in the configuration file), or name a weaker one")
    if wanted is Durability.DISK and server.appendfsync != "always":
        if server.appendfsync is not None:
            raise StoreUnsafe(f"{need}CONFIG SET appendfsync always (and in the configuration file)")
        if "unchecked" not in allow:
            raise StoreUnsafe(f"{need}appendfsync could not be read; grant +config|get, or allow 'unchecked'")


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


def _offered(server: Server, where: Address, *, say: bool) -> Durability:
    if not server.log_is_on:
        if say:
            _LOG.warning(
                "%s keeps no append-only file, so nothing survives the server's end (durability memory); "
                "CONFIG SET appendonly yes",
                where.shown,
                extra={"setting": True},
            )
        return Durability.MEMORY
    level = Durability.DISK if server.appendfsync == "always" else Durability.LOCAL
    if say:
        unseen = " (appendfsync could not be read, so no more is assumed)" if server.appendfsync is None else ""
        _LOG.info("%s: durability %s%s", where.shown, level.value, unseen)
    return level


def version_of(server: Server, /) -> tuple[int, int]:
    """Return the major and minor version."""
    version = server["valkey_version"] or server["redis_version"] or "0.0"
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def _lines(info: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in info.decode(errors="replace").splitlines() if ":" in line)
    return {name: value for name, _, value in pairs}
