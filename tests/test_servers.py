"""The servers the other tests stand on are real, are what they say, and behave as the kit promises."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import redis

from tenure.testing import servers
from tenure.testing._server_process import await_states
from tenure.testing.servers import (
    REDIS7,
    REDIS8,
    REDIS_KINDS,
    VALKEY9,
    Endpoint,
    ServerKind,
    ServerMissing,
    server_section,
)

from conftest import StartPostgres, StartRedis  # isort: skip

each_kind = pytest.mark.parametrize("kind", REDIS_KINDS, ids=lambda kind: kind.name)


@each_kind
def test_the_shared_server_is_the_product_and_version_it_is_called(
    kind: ServerKind, request: pytest.FixtureRequest
) -> None:
    served: Endpoint = request.getfixturevalue(kind.name)
    section = server_section(served.url, "server")
    if kind is VALKEY9:
        assert section["server_name"] == "valkey"
        assert section["valkey_version"].startswith("9.")
    else:
        assert "server_name" not in section
        assert section["redis_version"].startswith(f"{kind.major}.")
    assert served.version in section.values()


def test_no_module_was_loaded_into_it(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        # What a server has built in is listed too (vectorset, lua), but without the file of a loaded module.
        paths = [module[b"path"] for module in client.execute_command("MODULE", "LIST")]
    assert [path for path in paths if b"/" in path] == []


@each_kind
def test_what_was_appended_survives_a_kill_and_what_was_not_is_lost(kind: ServerKind, start_redis: StartRedis) -> None:
    durable = start_redis(kind, appendonly="yes", appendfsync="always")
    volatile = start_redis(kind)
    for server, kept in ((durable, b"1"), (volatile, None)):
        url, pid = server.url, server.pid
        with redis.Redis.from_url(url) as client:
            client.set("k", "1")
        server.kill()
        with redis.Redis.from_url(url, retry=None) as client, pytest.raises(redis.ConnectionError):
            client.ping()
        server.start()
        assert (server.url, server.pid != pid) == (url, True)
        with redis.Redis.from_url(url) as client:
            assert client.get("k") == kept


def test_a_restart_keeps_what_the_server_wrote_into_its_own_configuration(start_redis: StartRedis) -> None:
    server = start_redis(VALKEY9, appendonly="yes")
    with redis.Redis.from_url(server.url) as client:
        client.set("k", "1")
        client.config_set("maxmemory", "123456789")
        client.config_rewrite()
    server.restart()
    with redis.Redis.from_url(server.url) as client:
        assert client.get("k") == b"1"
        assert client.config_get("maxmemory") == {"maxmemory": "123456789"}


@each_kind
def test_a_replica_follows_its_primary(kind: ServerKind, start_redis: StartRedis) -> None:
    primary = start_redis(kind)
    replica = start_redis(kind, replicaof=f"127.0.0.1 {primary.port}")
    with redis.Redis.from_url(primary.url) as client:
        until = time.monotonic() + 30
        while server_section(replica.url, "replication")["master_link_status"] != "up" and time.monotonic() < until:
            time.sleep(0.02)
        client.set("k", "1")
        assert client.wait(1, 10_000) == 1
    with redis.Redis.from_url(replica.url) as client:
        assert client.get("k") == b"1"
        with pytest.raises(redis.ReadOnlyError):
            client.set("k", "2")


def test_a_frozen_server_keeps_its_connections_and_answers_nothing_until_thawed(start_redis: StartRedis) -> None:
    server = start_redis(REDIS7)
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=0.2)) as line:
        server.freeze()
        line.sendall(b"PING\r\n")
        with pytest.raises(TimeoutError):
            line.recv(64)
        server.thaw()
        line.settimeout(10)
        assert line.recv(64) == b"+PONG\r\n"


def test_a_frozen_server_can_be_stopped(start_redis: StartRedis) -> None:
    server = start_redis(REDIS7)
    pid = server.pid
    server.freeze()
    server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_unix_socket_serves_and_no_port_is_open(start_redis: StartRedis) -> None:
    server = start_redis(REDIS8, unix=True)
    with redis.Redis.from_url(server.url) as client:
        assert client.ping()
        assert client.config_get("port") == {"port": "0"}


def test_a_server_dies_with_the_process_that_started_it(start_redis: StartRedis) -> None:
    start_redis(VALKEY9).close()  # skips or fails here if there is none
    program = (
        "import os, sys; from tenure.testing.servers import *\n"
        "server = start_server(VALKEY9); print(server.pid, server.folder, flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        pid, folder = child.stdout.readline().split()
        os.kill(int(pid), 0)
        child.send_signal(signal.SIGKILL)
    until = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and "Z" not in _state(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert "Z" in _state(pid)
    for path in Path(folder).iterdir():
        path.unlink()
    Path(folder).rmdir()


def _state(pid: str) -> str:
    """Z also for a process that is gone: who reaps an orphan is not ours to say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def test_stopping_removes_the_folder_and_a_second_start_is_refused_while_it_runs(start_redis: StartRedis) -> None:
    server = start_redis(VALKEY9)
    with pytest.raises(RuntimeError, match=r"stop\(\) or kill\(\)"):
        server.start()
    server.close()
    assert not server.folder.exists()
    with pytest.raises(RuntimeError, match=r"start\(\)"):
        server.freeze()


def test_a_server_is_frozen_whole_although_one_of_its_sessions_has_just_ended(
    start_postgres: StartPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_postgres()
    there = server._pids()
    gone = subprocess.Popen(["true"])
    gone.wait()
    monkeypatch.setattr(server, "_pids", lambda: [there[0], gone.pid, *there[1:]])
    server.freeze()
    try:
        await_states(there, "TZ")  # a session of ours may have ended as well
        assert _state(str(there[0])) == "T"
    finally:
        server.thaw()
    await_states(there, "SRDZ")


def test_a_server_that_cannot_start_says_so_with_its_log(start_redis: StartRedis) -> None:
    start_redis(VALKEY9).close()
    with pytest.raises(ServerMissing, match="no-such-option"):
        servers.start_server(VALKEY9, options={"no-such-option": "1"})


def test_a_url_of_the_environment_comes_first_and_must_be_the_right_product(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_redis(VALKEY9)
    monkeypatch.setenv(VALKEY9.url_variable, server.url)
    with servers.endpoint(VALKEY9) as served:
        assert (served.url, served.source) == (server.url, f"${VALKEY9.url_variable}")
    monkeypatch.setenv(REDIS7.url_variable, server.url)
    with pytest.raises(ServerMissing, match=REDIS7.url_variable), servers.endpoint(REDIS7):
        pass


def test_the_kit_imports_no_pytest() -> None:
    program = "import sys, tenure.testing.servers; sys.exit('pytest' in sys.modules or 'redis' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
