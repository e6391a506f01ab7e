"""The console. Typer and rich are loaded by the call, never by importing this."""

import sys
from collections.abc import Sequence


def main() -> None:
    """Run the `tenure` command with the arguments of the process, and end it with the exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str], /) -> int:
    """Run one command in this process and return its exit code."""
    from tenure.cli.app import invoke

    return invoke(arguments)
