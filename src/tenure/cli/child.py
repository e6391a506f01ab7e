"""The program of a supervisor's child: `python -m tenure.cli.child ORDERS LINES`, two numbers of inherited pipes.

It loads the app and opens the store; why that failed is told on the pipe.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import anyio

from tenure.app import App
from tenure.child import Pipe, first_order, take_orders_only_by_pipe, work
from tenure.cli.lines import LineFormatter, SettingOnce
from tenure.errors import TenureError
from tenure.loading import load_app
from tenure.stores import open_store


def main(arguments: Sequence[str], /) -> int:
    """Work until drained, and return the exit status."""
    take_orders_only_by_pipe()
    in_fd, out_fd = int(arguments[0]), int(arguments[1])
    orders = first_order(in_fd)
    if not orders:
        return 0
    pipe = Pipe(out_fd)
    _log(orders["log"], orders["name"])
    try:
        app = load_app(orders["app"])
    except TenureError as error:
        logging.getLogger("tenure.child").debug("the app cannot be loaded", exc_info=True)
        pipe.fatal(error.code.value, error.message)
        return 1
    try:
        anyio.run(_work, app, orders, in_fd, pipe)
    except TenureError as error:
        pipe.fatal(error.code.value, error.message)
        return 1
    _leave_threads()
    return 0


def _leave_threads() -> None:
    """End the process if a thread of a run goes on: nobody may be left to kill it, and Python would wait for it."""
    until = time.monotonic() + 1
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                logging.getLogger("tenure.child").error("thread %s does not stop: the process ends", thread.name)
                logging.shutdown()
                os._exit(0)


async def _work(app: App, orders: Mapping[str, Any], in_fd: int, pipe: Pipe) -> None:
    async with open_store(orders["url"], namespace=orders["namespace"]) as store:
        await work(app, store, orders, in_fd, pipe)


def _log(level: str, name: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    # The name stands for the process; what a line is about is in the line.
    handler.setFormatter(LineFormatter(worker=name))
    handler.addFilter(SettingOnce(said=True))
    ours = logging.getLogger("tenure")
    ours.addHandler(handler)
    ours.setLevel(level.upper())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
