"""Two questions over HTTP, for who restarts and who routes: /live and /ready, each 200 or 503."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress

import anyio
from anyio.abc import SocketStream, TaskStatus

from tenure.errors import NotAllowed

log = logging.getLogger("tenure.health")

HEAD_BYTES = 8192
PATIENCE_S = 5.0


def address(text: str, /) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; NotAllowed for anything else."""
    host, _, port = text.rpartition(":")
    if host and port.isascii() and port.isdecimal() and int(port) < 1 << 16:
        return host.strip("[]"), int(port)
    message = f"{text[:80]!r} is no address; write HOST:PORT, for example 127.0.0.1:8080"
    raise NotAllowed(message)


async def serve(
    host: str,
    port: int,
    /,
    *,
    live: Callable[[], bool],
    ready: Callable[[], bool],
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Answer until cancelled; NotAllowed if the address cannot be taken."""
    try:
        listener = await anyio.create_tcp_listener(local_host=host, local_port=port)
    except OSError as error:
        message = f"{host}:{port} cannot be listened on ({error.strerror or error}); choose another --health address"
        raise NotAllowed(message) from None
    answers = {"/live": live, "/ready": ready}

    async def answer(stream: SocketStream) -> None:
        # Whoever connects and says nothing is cut off; nobody here is worth waiting for.
        async with stream:
            with suppress(anyio.BrokenResourceError, anyio.EndOfStream, OSError), anyio.move_on_after(PATIENCE_S):
                head = b""
                while b"\r\n\r\n" not in head and len(head) < HEAD_BYTES:
                    head += await stream.receive(HEAD_BYTES)
                await stream.send(_reply(head, answers))

    async with listener:
        task_status.started()
        await listener.serve(answer)


def _reply(head: bytes, answers: dict[str, Callable[[], bool]]) -> bytes:
    method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    if path not in answers or method not in ("GET", "HEAD"):
        status, body = "404 Not Found", b""
    else:
        good = answers[path]()
        status = "200 OK" if good else "503 Service Unavailable"
        body = json.dumps({path[1:]: good}).encode() + b"\n"
    lines = (
        f"HTTP/1.1 {status}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + (body if method == "GET" else b"")
