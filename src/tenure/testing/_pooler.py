"""A private pgbouncer before a PostgreSQL server: each transaction may run in another session of the server."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tenure.testing._postgres_server import ROLE, as_user, own
from tenure.testing._server_process import START_TIMEOUT_S, ServerMissing, free_port, spawn


class Pooler:
    """pgbouncer in transaction mode, with two sessions for everybody; gone when the `with` block is left."""

    def __init__(self, server_url: str) -> None:
        self._server = urlsplit(server_url)
        self._folder = Path(tempfile.mkdtemp(prefix="tenure-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"postgresql://{ROLE}@127.0.0.1:{self._port}/postgres"

    def __enter__(self) -> Self:
        """Start it; returns when it takes connections."""
        found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if found is None:
            raise ServerMissing("no pgbouncer: apt-get install pgbouncer")
        self._port = free_port()
        self._folder.chmod(0o755)
        (self._folder / "users.txt").write_text(f'"{ROLE}" ""\n')
        (self._folder / "pgbouncer.ini").write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={self._server.port} dbname=postgres user={ROLE}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self._port}\nunix_socket_dir =\nauth_type = trust\n"
            f"auth_file = {self._folder}/users.txt\npool_mode = transaction\ndefault_pool_size = 2\n"
            "server_round_robin = 1\nmax_client_conn = 200\n"
        )
        own(self._folder)
        command = [found, str(self._folder / "pgbouncer.ini")]
        self._process = spawn(command, self._folder / "pooler.log", cwd=self._folder, user=as_user()[1:-1])
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return self
            time.sleep(0.01)
        log = (self._folder / "pooler.log").read_text(errors="replace")
        self.__exit__(None, None, None)
        raise ServerMissing(f"pgbouncer did not start; its log ends: {log[-1000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Stop it and remove its folder."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
