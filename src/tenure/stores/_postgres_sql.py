"""The statements of the PostgreSQL store by name, as they stand in `sql/postgres/`, in the schema that was chosen."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

_FOLDER = files("tenure.stores") / "sql" / "postgres"
_OURS = re.compile(r"\btenure\.")


@lru_cache
def script(name: str, schema: str) -> str:
    """Return a whole file."""
    return _OURS.sub(f'"{schema}".', (_FOLDER / name).read_text(encoding="utf-8"))


@lru_cache
def statements(name: str, schema: str) -> dict[str, str]:
    """Return the named statements of a file, without their heads."""
    found: dict[str, str] = {}
    for block in script(name, schema).split("-- name: ")[1:]:
        title, _, text = block.partition("\n")
        found[title.strip()] = "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip(" \n;")
    return found
