"""How much an idle fleet asks of its store: N `tenure worker` services on one server, counted on the wire.

Each service talks to the server through a proxy that counts what arrives from clients: what leaves a client in one
piece is one round trip. Exits 1 above the bar of 10 a second for the whole fleet.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tenure import open_store
from tenure.testing.servers import VALKEY9, start_server

APP = """
from tenure import ActiveRun, App
app = App()

@app.kind("idle")
async def idle(run: ActiveRun[None], _: None) -> None:
    pass
"""


class Counting:
    """A proxy in front of a server; `pieces` counts what came from clients, by the command at its beginning."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.pieces: Counter[str] = Counter()

    async def serve(self) -> asyncio.Server:
        """Listen on a free port."""
        return await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=1024)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError, OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            await asyncio.gather(self._pass(reader, back, count=True), self._pass(there, writer, count=False))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, count: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if count:
                    words = data.split(b"\r\n", 3)
                    self.pieces[words[2].decode(errors="replace").upper() if len(words) > 2 else "?"] += 1
                writer.write(data)
                await writer.drain()
        writer.close()


async def measure(workers: int, seconds: float, room: Path) -> tuple[float, Counter[str]]:
    """Return round trips a second of `workers` idle services, and what they were."""
    (room / "idle_app.py").write_text(APP)
    with start_server(VALKEY9) as server:
        proxy = Counting(server.port)
        listening = await proxy.serve()
        url = f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        env = {
            **os.environ,
            "TENURE_STORE": url,
            "TENURE_LOG": "error",
            "PYTHONPATH": os.pathsep.join([*sys.path, str(room)]),
        }
        command = [sys.executable, "-m", "tenure", "worker", "idle_app:app", "--processes", "1"]
        services = [subprocess.Popen(command, env=env, cwd=room) for _ in range(workers)]  # noqa: ASYNC220 - at once
        try:
            async with open_store(server.url) as store:
                while len(await store.beats()) < workers:
                    if any(service.poll() is not None for service in services):
                        raise SystemExit("a worker has ended")
                    await asyncio.sleep(0.5)
            # What they do when they begin is not what they do when they idle.
            await asyncio.sleep(20)
            proxy.pieces.clear()
            before = time.monotonic()
            await asyncio.sleep(seconds)
            return proxy.pieces.total() / (time.monotonic() - before), Counter(proxy.pieces)
        finally:
            for service in services:
                service.send_signal(signal.SIGINT)
            for service in services:
                # Not waited for in a blocking way: what they say goodbye to is served by this loop.
                await asyncio.to_thread(service.wait)
            listening.close()


def main() -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--limit", type=float, default=10)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as room:
        rate, pieces = asyncio.run(measure(asked.workers, asked.seconds, Path(room)))
    shown = ", ".join(f"{name} {count}" for name, count in pieces.most_common(8))
    print(f"{asked.workers} idle workers: {rate:.2f} round trips a second (bar: under {asked.limit:g}); {shown}")
    return 0 if rate < asked.limit else 1


if __name__ == "__main__":
    sys.exit(main())
