"""The `tenure` command: its groups, its global options, and the way out.

One file is one group of commands and has a function `register(app)`; a new group is a new line in `GROUPS`. These
modules load typer and nothing heavier: what a command needs, it imports when it runs.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tenure.cli.exits import Exit, report, report_output
from tenure.cli.place import DEFAULT_TTL_S, Place, logging_to_stderr

GROUPS = (
    *("demo", "worker", "submit", "look", "tail", "timeline", "ends", "resolve", "approvals", "verify", "journal"),
    *("store", "migrate", "doctor", "conformance"),
)
"""Modules of this package with commands, in the order in which help lists them."""

ELSEWHERE = {
    **dict.fromkeys(("status", "list", "ls", "ps"), "runs"),
    "import": "store import FILE",
    "export": "store export FILE",
    "logs": "tail RUN",
    "follow": "tail RUN",
    "start": "worker MODULE:APP",
    "run": "submit KIND",
    "approve": "approvals approve RUN",
    "deny": "approvals reject RUN",
    "kill": "cancel RUN",
}
"""What other programs call a command that has another name here."""
SPELLED = {"--json": "-o json", "--jsonl": "-o jsonl", "--format": "-o json"}


def build() -> typer.Typer:
    """Return the application with all its commands."""
    # Without rich markup help is plain text, and asking for it loads a third of the modules.
    app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback()(_tenure)
    for group in GROUPS:
        importlib.import_module(f"tenure.cli.{group}").register(app)
    return app


def _version(*, wanted: bool) -> None:
    if wanted:
        from tenure import __version__

        typer.echo(__version__)
        raise typer.Exit


def _tenure(
    ctx: typer.Context,
    *,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="TENURE_STORE",
            show_envvar=True,
            show_default=False,
            help="URL of the store; sqlite:///.tenure/tenure.db if none is named.",
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar="TENURE_NAMESPACE",
            show_envvar=True,
            show_default=False,
            help="Namespace in the store.",
        ),
    ] = None,
    ttl: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", envvar="TENURE_TTL", show_envvar=True, min=1, max=3600, help="Lease time, in seconds."
        ),
    ] = DEFAULT_TTL_S,
    log: Annotated[
        str,
        typer.Option(
            metavar="LEVEL", envvar="TENURE_LOG", show_envvar=True, help="Log level: debug, info, warning or error."
        ),
    ] = "warning",
    redact: Annotated[
        bool,
        typer.Option(
            "--redact",
            envvar="TENURE_REDACT",
            show_envvar=True,
            help="Hide what looks like a secret in inputs, decisions and reasons before they are stored.",
        ),
    ] = False,
    version: Annotated[  # noqa: ARG001 - its callback answers
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Long agent runs that survive the death of their process."""
    logging_to_stderr(log)
    ctx.obj = Place.of(store=store, namespace=namespace, ttl_s=ttl, redact=redact)


def invoke(arguments: Sequence[str], /) -> int:
    """Run one command and return its exit code; errors are told on stderr."""
    command = typer.main.get_command(build())
    try:
        code = command.main(args=list(arguments), prog_name="tenure", standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:
        return Exit.INTERRUPTED
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            return report(error, debug=_debug())
        # Closing at exit would raise once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A reader that is gone has seen enough (`| head`).
        return Exit.OK if error.errno == errno.EPIPE else report_output(error)
    except Exception as error:  # noqa: BLE001 - the last one to see it: everything becomes a sentence and a code
        if (show := getattr(error, "show", None)) is not None:  # typer's own: told with the usage of the command
            _point(error)
            show()
            return Exit.USAGE
        return report(error, debug=_debug())
    return code if isinstance(code, int) else Exit.OK


def _point(error: Any) -> None:
    """Say how a command or option is written that other programs spell otherwise, or that stands before the command."""
    name, ctx = getattr(error, "option_name", ""), getattr(error, "ctx", None)
    asked = re.match(r"No such command '(\S+)'", error.message)
    if asked and ctx is not None and ctx.parent is None and (here := ELSEWHERE.get(asked[1])):
        error.message = f"No such command {asked[1]!r}; write `{ctx.command_path} {here}`"
        return
    if asked and ctx is not None and ctx.info_name == "runs":
        error.message = f"No such command {asked[1]!r}; one run is `{ctx.find_root().command_path} show {asked[1]}`"
        return
    if not name or ctx is None:
        return
    root, _, command = ctx.command_path.partition(" ")
    before = next((own for own in ctx.find_root().command.params if name in own.opts), None)
    if before is not None and command:
        value = "" if before.is_flag else f" {before.metavar}"
        written = f"`{root} {name}{value} {command} ...`"
    elif name in SPELLED and any("-o" in own.opts for own in ctx.command.params):
        written = SPELLED[name]
    elif name in {"-o", "--output"} and any("--file" in own.opts for own in ctx.command.params):
        written = "--file FILE"
    else:
        return
    error.message, error.possibilities = f"{error.message}; write {written}", None


def _debug() -> bool:
    import logging

    return logging.getLogger("tenure").isEnabledFor(logging.DEBUG)
