"""Several private servers that belong together: a primary with replicas and sentinels, the nodes of a Cluster."""

import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tenure.testing._server_process import START_TIMEOUT_S, RedisServer, ServerMissing, free_port
from tenure.testing.servers import ServerKind, find_program

__all__ = ["ClusterSet", "Sentinel", "SentinelSet"]

SLOTS = 16_384


class Sentinel(RedisServer):
    """One sentinel process."""

    arguments = ("--sentinel",)


class _Set:
    """Servers that are started together and gone together."""

    def __init__(self, kind: ServerKind, options: Mapping[str, str | int] | None) -> None:
        found = find_program(kind)
        if found is None:
            raise ServerMissing(f"no local {kind.product} {kind.major}: {kind.hint}")
        self.program: Path = found
        self._options = dict(options or {})
        self._started = ExitStack()

    def _start(self, options: Mapping[str, str | int], *, sentinel: bool = False) -> RedisServer:
        make = Sentinel if sentinel else RedisServer
        return self._started.enter_context(make(self.program, options={**self._options, **options}))

    def __exit__(self, *exc: object) -> None:
        self._started.close()


class SentinelSet(_Set):
    """A primary, its replicas and the sentinels that watch them, on loopback."""

    service = "runs"

    def __init__(
        self,
        kind: ServerKind,
        *,
        replicas: int = 2,
        sentinels: int = 3,
        down_after_ms: int = 1_500,
        options: Mapping[str, str | int] | None = None,
    ) -> None:
        super().__init__(kind, options)
        self._counts = (replicas, sentinels)
        self._down_after_ms = down_after_ms
        self.servers: list[RedisServer] = []
        self.sentinels: list[RedisServer] = []

    def __enter__(self) -> Self:
        """Start them and wait until each knows of all others."""
        replicas, sentinels = self._counts
        try:
            primary = self._start({})
            followers = [self._start({"replicaof": f"127.0.0.1 {primary.port}"}) for _ in range(replicas)]
            self.servers = [primary, *followers]
            until(lambda: int(asked(primary, "INFO", "replication")["connected_slaves"]) == replicas)
            quorum = sentinels // 2 + 1
            watch = {
                "sentinel monitor": f"{self.service} 127.0.0.1 {primary.port} {quorum}",
                "sentinel down-after-milliseconds": f"{self.service} {self._down_after_ms}",
                "sentinel failover-timeout": f"{self.service} {6 * self._down_after_ms}",
            }
            self.sentinels = [self._start(watch, sentinel=True) for _ in range(sentinels)]
            for sentinel in self.sentinels:
                until(lambda sentinel=sentinel: self._complete(sentinel))  # type: ignore[misc]
        except BaseException:
            self._started.close()
            raise
        return self

    def _complete(self, sentinel: RedisServer) -> bool:
        said = asked(sentinel, "SENTINEL", "MASTER", self.service)
        replicas, sentinels = self._counts
        return int(said["num-slaves"]) == replicas and int(said["num-other-sentinels"]) == sentinels - 1

    @property
    def url(self) -> str:
        """Where a store finds the primary."""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.service}"

    def primary(self) -> RedisServer:
        """Return the server that the first sentinel names."""
        port = int(asked(self.sentinels[0], "SENTINEL", "MASTER", self.service)["port"])
        return next(server for server in self.servers if server.port == port)


class ClusterSet(_Set):
    """The nodes of a Cluster, all of them primaries, with the slots shared out evenly."""

    def __init__(
        self,
        kind: ServerKind,
        *,
        nodes: int = 3,
        replicas: int = 0,
        options: Mapping[str, str | int] | None = None,
    ) -> None:
        super().__init__(kind, {"cluster-enabled": "yes", "cluster-node-timeout": 1_000, **(options or {})})
        self._counts = (nodes, replicas)
        self.nodes: list[RedisServer] = []
        self.replicas: list[RedisServer] = []

    def __enter__(self) -> Self:
        """Start them, share the slots out, and wait until each node serves."""
        nodes, replicas = self._counts
        try:
            self.nodes = [self._node() for _ in range(nodes)]
            self.replicas = [self._node() for _ in range(replicas)]
            first = self.nodes[0]
            for number, node in enumerate(self.nodes):
                begin, end = SLOTS * number // nodes, SLOTS * (number + 1) // nodes - 1
                asked(node, "CLUSTER", "ADDSLOTSRANGE", begin, end)
            for number, node in enumerate([*self.nodes, *self.replicas]):
                asked(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                asked(node, "CLUSTER", "MEET", "127.0.0.1", first.port, first.bus_port)
            everybody = nodes + replicas
            for node in [*self.nodes, *self.replicas]:
                until(lambda node=node: state(node) == ("ok", everybody))  # type: ignore[misc]
            for number, replica in enumerate(self.replicas):
                asked(replica, "CLUSTER", "REPLICATE", self.id_of(self.nodes[number % nodes]))
                until(
                    lambda replica=replica: (  # type: ignore[misc]
                        asked(replica, "INFO", "replication").get("master_link_status") == "up"
                    )
                )
        except BaseException:
            self._started.close()
            raise
        return self

    def _node(self) -> RedisServer:
        bus_port = free_port()
        node = self._start({"cluster-port": bus_port})
        node.bus_port = bus_port
        return node

    @property
    def url(self) -> str:
        """Where a store finds them."""
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}"

    def id_of(self, node: RedisServer) -> str:
        """Return the name that a node has in the Cluster."""
        return str(asked(node, "CLUSTER", "MYID"))

    def holder(self, key: str) -> RedisServer:
        """Return the node that holds a key's slot."""
        slot = int(asked(self.nodes[0], "CLUSTER", "KEYSLOT", key))
        return self.nodes[next(n for n in range(len(self.nodes)) if slot < SLOTS * (n + 1) // len(self.nodes))]


def state(node: RedisServer) -> tuple[str, int]:
    """Return the state of the Cluster as a node sees it, and how many nodes it knows."""
    said = asked(node, "CLUSTER", "INFO")
    return said["cluster_state"], int(said["cluster_known_nodes"])


def asked(server: RedisServer, *command: str | int) -> Any:
    """Return what a server answers to one command; INFO-like and field-like answers as a dict."""
    import redis

    with redis.Redis(port=server.port, decode_responses=True, protocol=2, socket_timeout=10) as client:
        client.response_callbacks.clear()
        answer = client.execute_command(*command)
    if isinstance(answer, str) and ":" in answer:
        return dict(line.split(":", 1) for line in answer.splitlines() if ":" in line)
    if command[:2] == ("SENTINEL", "MASTER"):
        return dict(zip(answer[::2], answer[1::2], strict=True))
    return answer


def until(true: Callable[[], object], /) -> None:
    """Wait for what other processes bring about."""
    import redis

    end = time.monotonic() + 4 * START_TIMEOUT_S
    while time.monotonic() < end:
        with contextlib.suppress(redis.RedisError):
            if true():
                return
        time.sleep(0.02)
    raise ServerMissing("the servers did not find each other in time")
