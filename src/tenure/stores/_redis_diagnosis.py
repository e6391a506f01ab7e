"""How a Redis or Valkey server is set, for people: the level, what it rests on, and what would be lost when."""

from __future__ import annotations

from tenure.store import Durability, Finding, Grade
from tenure.stores._redis_check import Server

_NEARLY = 0.8

_LOST = {
    Durability.MEMORY: ("everything", "everything", "what no replica had yet"),
    Durability.LOCAL: ("nothing", "about the last second", "what no replica had yet"),
    Durability.DISK: ("nothing", "nothing", "what no replica had yet"),
    Durability.REPLICATED: ("nothing", "about the last second, if the replicas fail too", "nothing"),
    Durability.REPLICATED_DISK: ("nothing", "nothing", "nothing"),
}
"""What an acknowledged change may be part of that is lost: when the server ends, at a power loss, at a promotion."""


def findings(server: Server, level: Durability, replicas: int, *, safe: str) -> list[Finding]:
    """Return how the server is set; what could not be read is said too."""
    product = "Valkey" if server["valkey_version"] else "Redis"
    version = server["valkey_version"] or server["redis_version"] or "unknown (INFO is denied)"
    return [
        _ok("server", f"{product} {version}, role {server['role'] or 'unknown'}"),
        _durability(level, replicas),
        _ok("losses", _losses(server, level)),
        _log(server),
        *_replicas(server, level, replicas, safe),
        _eviction(server),
        _memory(server),
    ]


def _ok(name: str, text: str) -> Finding:
    return Finding(name=name, level=Grade.OK, text=text)


def _warning(name: str, text: str, fix: str) -> Finding:
    return Finding(name=name, level=Grade.WARNING, text=text, fix=fix)


def _problem(name: str, text: str, fix: str) -> Finding:
    return Finding(name=name, level=Grade.PROBLEM, text=text, fix=fix)


def _durability(level: Durability, replicas: int) -> Finding:
    text = level.value + (f", {replicas} replicas acknowledge" if replicas else "")
    if level is Durability.MEMORY:
        return _warning("durability", text, "CONFIG SET appendonly yes")
    return _ok("durability", text)


def _losses(server: Server, level: Durability) -> str:
    ends, power, promotion = _LOST[level]
    if level in (Durability.LOCAL, Durability.REPLICATED) and server.appendfsync == "no":
        power = power.replace("about the last second", "what the system had not written yet, half a minute or more")
    if not server.replicas:
        promotion += " (no replica is attached)"
    return f"when the server ends: {ends}; at a power loss: {power}; when a replica is promoted: {promotion}"


def _log(server: Server) -> Finding:
    on = "unknown" if server.info is None else "yes" if server.log_is_on else "no"
    text = f"appendonly {on}, appendfsync {server.appendfsync or 'could not be read'}"
    if server["aof_last_write_status"] == "err" or server["aof_last_bgrewrite_status"] == "err":
        return _problem("append-only file", f"{text}; the last write of it failed", "make room on the server's disk")
    if server.appendfsync is None:
        return _warning("append-only file", text, "grant +config|get to the user")
    if server.log_is_on and server.appendfsync == "no":
        return _warning("append-only file", text, "CONFIG SET appendfsync everysec, or always")
    return _ok("append-only file", text)


def _replicas(server: Server, level: Durability, replicas: int, safe: str) -> list[Finding]:
    if level not in (Durability.REPLICATED, Durability.REPLICATED_DISK) and not server.replicas:
        return []
    wanted = server.min_replicas
    shown = "could not be read" if wanted is None else str(wanted) if server.settings else "0" if not wanted else "set"
    text = f"{server.replicas} attached, min-replicas-to-write {shown}"
    if replicas and server.replicas < replicas:
        fix = "bring them back (REPLICAOF), or changes stay without an acknowledgement"
        return [_problem("replicas", f"{text}; {replicas} have to acknowledge", fix)]
    if replicas and not safe:
        fix = f"?replicas={(server.replicas + 1) // 2} or more: then most of the servers have every change"
        return [_warning("replicas", f"{text}; the one promoted need not be one that acknowledged", fix)]
    if wanted == 0:
        fix = "CONFIG SET min-replicas-to-write 1: a primary that is cut off then stops taking writes"
        return [_warning("replicas", text, fix)]
    return [_ok("replicas", text)]


def _eviction(server: Server) -> Finding:
    policy = server["maxmemory_policy"]
    if policy.startswith("allkeys-"):
        return _problem("eviction", policy, "CONFIG SET maxmemory-policy noeviction")
    return _ok("eviction", policy or "could not be read")


def _memory(server: Server) -> Finding:
    used, most = int(server["used_memory"] or "0"), int(server["maxmemory"] or "0")
    text = f"{used >> 20} MiB used of {f'{most >> 20} MiB' if most else 'what the host has'}"
    if most and used >= most:
        return _problem("memory", text, "CONFIG SET maxmemory higher, or `tenure runs prune`: writes are refused")
    if most and used > _NEARLY * most:
        return _warning("memory", text, "CONFIG SET maxmemory higher, or delete runs before it is full")
    return _ok("memory", text)
