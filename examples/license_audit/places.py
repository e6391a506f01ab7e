"""Where installed distributions lie: the metadata folders of the environment, and of the broken ones beside it."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

BROKEN = Path(__file__).parent / "broken"
_FOLDER = re.compile(r"(?P<name>.+?)(-(?P<version>[^-]+)(-.*)?)?\.(dist-info|egg-info)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One distribution: `id` is its normalised name and version, `home` its metadata folder, or its one metadata file.

    Paths are told relative to `root`, so that the same environment elsewhere gives the same report.
    """

    id: str
    name: str
    version: str
    root: Path
    home: Path


def places(roots: Sequence[Path] | None = None, /) -> dict[str, Place]:
    """Return every distribution by id, in the order of the ids; of two with one id the first on the path counts."""
    found: dict[str, Place] = {}
    for root in _roots() if roots is None else roots:
        if not root.is_dir():
            continue
        for home in sorted(root.iterdir()):
            parts = _FOLDER.fullmatch(home.name)
            if parts is None:
                continue
            name, version = canonicalize_name(parts["name"]), parts["version"] or "0"
            id_ = re.sub(r"[^A-Za-z0-9._-]", "_", f"{name}-{version}")
            found.setdefault(id_, Place(id=id_, name=name, version=version, root=root, home=home))
    return dict(sorted(found.items()))


def _roots() -> list[Path]:
    own = Path.cwd().resolve()
    return [path for entry in sys.path if entry and (path := Path(entry).resolve()) != own] + [BROKEN]


@functools.cache
def known() -> dict[str, Place]:
    """Return the distributions of this process's environment and the broken ones; looked up once."""
    return places()


def place(dist: str, /) -> Place:
    """Return a distribution by id; LookupError for one that is not installed."""
    found = known().get(dist)
    if found is None:
        message = f"there is no distribution {dist!r:.80}; ids are normalised name and version, as in attrs-26.1.0"
        raise LookupError(message)
    return found
