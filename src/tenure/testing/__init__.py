"""The public test kit: runs in line, deaths everywhere, a clock to advance, faults on order, servers, the contract.

Each name is imported from its home when it is first asked for: only what needs pytest loads it.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.clock import ManualClock as ManualClock
    from tenure.testing.boundary import Boundary as Boundary
    from tenure.testing.boundary import BoundaryStore as BoundaryStore
    from tenure.testing.boundary import Died as Died
    from tenure.testing.boundary import Side as Side
    from tenure.testing.everywhere import CrashReport as CrashReport
    from tenure.testing.everywhere import crash_everywhere as crash_everywhere
    from tenure.testing.faults import Fault as Fault
    from tenure.testing.faults import FaultStore as FaultStore
    from tenure.testing.faults import Order as Order
    from tenure.testing.inline import Inline as Inline
    from tenure.testing.inline import run_inline as run_inline
    from tenure.testing.inline import run_inline_async as run_inline_async
    from tenure.testing.models import FunctionModel as FunctionModel
    from tenure.testing.noting import note_effect as note_effect

_HOME: dict[str, str] = {
    "Boundary": "tenure.testing.boundary",
    "BoundaryStore": "tenure.testing.boundary",
    "CrashReport": "tenure.testing.everywhere",
    "Died": "tenure.testing.boundary",
    "Fault": "tenure.testing.faults",
    "FaultStore": "tenure.testing.faults",
    "FunctionModel": "tenure.testing.models",
    "Inline": "tenure.testing.inline",
    "ManualClock": "tenure.clock",
    "Order": "tenure.testing.faults",
    "Side": "tenure.testing.boundary",
    "crash_everywhere": "tenure.testing.everywhere",
    "note_effect": "tenure.testing.noting",
    "run_inline": "tenure.testing.inline",
    "run_inline_async": "tenure.testing.inline",
}

__all__ = sorted(_HOME)  # noqa: PLE0605 - the table is the one list; a test checks it


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """The public name, from its home, kept for the next time."""
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found: object = getattr(importlib.import_module(home), name)
        globals()[name] = found
        return found
