"""What was meant by a store URL that is none: the sentence that spells it right."""

from __future__ import annotations

import re

from tenure.errors import InvalidUrl

KNOWN = (
    "memory://, sqlite:///relative.db, sqlite:////absolute.db, redis://, rediss://, valkey://, unix://, "
    "redis+sentinel://, redis+cluster://, postgresql://"
)
_AFTER = {
    "memory": "",
    "unix": "/run/redis.sock",
    "sentinel": "host1,host2,host3/service",
    "cluster": "host1,host2",
    "postgresql": "user:password@host:port/database",
    "postgres": "user:password@host:port/database",
}
"""What stands after the slashes, by scheme or setup; one server is at `host:port/db`."""
_FILES = (".db", ".sqlite", ".sqlite3")


def lower(url: str, /) -> str:
    """Return the URL beginning with its scheme, in lower case, as everybody looks for it; a path stays as it is."""
    # Who splits a URL cuts what stands before it as well.
    return re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*:", lambda scheme: scheme[0].lower(), url.lstrip())


def unknown(url: str, scheme: str, /) -> InvalidUrl:
    """Return the error for a scheme that no store has; what may be a password is not repeated."""
    if scheme:
        return InvalidUrl(f"no store is known for {scheme!r}; use one of {KNOWN}")
    path = url.partition("?")[0]
    if "@" not in path and not path.startswith("//") and ("/" in path or path.endswith(_FILES)):
        return InvalidUrl(
            f"a store is named by a URL; write sqlite:///{_shown(path.replace('%', '%25'))} for this file"
        )
    return InvalidUrl(f"a store URL begins with its scheme; use one of {KNOWN}")


def refuse_slashes(url: str, scheme: str, /) -> None:
    """Raise InvalidUrl for a known scheme without its `://`: what follows would pass for something else."""
    rest = url.partition(":")[2].partition("?")[0]
    if rest.startswith("//"):
        return
    if scheme == "sqlite":
        message = f"a SQLite URL has three slashes before its path; write sqlite:///{_shown(rest) or 'relative.db'}"
    else:
        after = _AFTER.get(scheme.partition("+")[2] or scheme, "host:port/db")
        message = f"two slashes are missing after {scheme}: in the store URL; write {scheme}://{after}"
    raise InvalidUrl(message)


def _shown(path: str) -> str:
    return path[:200].encode("unicode_escape").decode() if not path.isprintable() else path[:200]
