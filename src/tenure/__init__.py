"""Long agent runs that survive the death of their process.

Each public name is imported from its home when it is first asked for: `import tenure` loads no driver and no terminal.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # One line per public name, `from home import Name as Name`: type checkers see what `__getattr__` will find.
    pass  # noqa: TC005 - filled as names come

__version__ = "0.1.0"

# Public name -> the module it lives in.
_HOME: dict[str, str] = {}

__all__ = sorted(_HOME)  # noqa: PLE0605 - the table is the one list; tests/test_house.py checks it


if not TYPE_CHECKING:  # or checkers would take any name for an object

    def __getattr__(name: str) -> object:
        """The public name, from its home, kept for the next time."""
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found: object = getattr(importlib.import_module(home), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
