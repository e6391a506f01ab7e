"""Finding the app that `module:name` names, and telling what is wrong with it in one sentence."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from pathlib import Path

from tenure.app import App
from tenure.errors import NotAllowed, TenureError


def find_app(path: str, /) -> tuple[str, str]:
    """Return module and name of `module:name` without importing it; NotAllowed if there is no such module."""
    module, _, name = path.partition(":")
    if not module or not name:
        example = f"{_module_of(module)}:app" if module.endswith(".py") else "fleet:app"
        message = f"{path[:80]!r} does not name an app; write module:app, for example {example}"
        raise NotAllowed(message)
    if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - sys.path holds text
        sys.path.insert(0, here)
    if "/" in module:
        raise _names_a_file(module, name)
    try:
        known = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        known = not f"{module}.".startswith(f"{error.name}.")
    except ValueError:
        known = False
    except (Exception, SystemExit):  # noqa: BLE001 - of the package around it: whoever loads it tells where
        known = True
    if not known and module.endswith(".py"):
        raise _names_a_file(module, name)
    if not known:
        message = f"there is no module {module!r} here or on the Python path; run it where the module is"
        raise NotAllowed(message)
    return module, name


def _names_a_file(module: str, name: str, /) -> NotAllowed:
    there = Path(module).parent
    far = there.is_absolute() or ".." in there.parts
    where = f" and run it in {there}" if far else ""
    return NotAllowed(
        f"{module!r} names a file, and an app is found by its module; write {_module_of(module)}:{name}{where}"
    )


def _module_of(file: str, /) -> str:
    """The module in a file as seen from here, or from the file's own folder if that is elsewhere."""
    path = Path(file.removesuffix(".py"))
    return path.name if path.is_absolute() or ".." in path.parts else ".".join(path.parts)


def load_app(path: str, /) -> App:
    """Return the app that `module:name` names; NotAllowed says what is wrong with it, and where."""
    module, name = find_app(path)
    try:
        found = importlib.import_module(module)
    except TenureError:
        raise
    except (Exception, SystemExit) as error:
        message = f"{path} cannot be loaded: {_told(error)}; mend that, TENURE_LOG=debug shows the way there"
        raise NotAllowed(message) from error
    app = getattr(found, name, None)
    if not isinstance(app, App):
        apps = sorted(known for known, value in vars(found).items() if isinstance(value, App))
        what = f"has no {name!r}" if app is None else f"has {name!r}, which is of type {type(app).__name__} and no App"
        has = f"its apps: {', '.join(f'{module}:{known}' for known in apps)}" if apps else "it has no tenure.App at all"
        message = f"module {module} {what}; name one that it has ({has})"
        raise NotAllowed(message)
    return app


def _told(error: BaseException) -> str:
    """What a module raised, in one line, with the last place in somebody's own code."""
    said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if isinstance(error, SyntaxError):
        return f"{said.partition(' (')[0]}, in {error.filename}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    others = (str(Path(__file__).parent), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
    own = [frame for frame in frames if not frame.filename.startswith(others)]
    place = (own or frames)[-1]
    return f"{said}, in {place.filename}, line {place.lineno}"
