"""The stores: one guarded write each. `open_store` picks one by URL and loads nothing of the others."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from tenure.core import ids
from tenure.errors import InvalidUrl, MissingExtra
from tenure.store import Durability
from tenure.stores import _spelling

if TYPE_CHECKING:
    from tenure.clock import Clock
    from tenure.store import Store

_MODULES = {
    "memory": "tenure.stores.memory",
    "sqlite": "tenure.stores.sqlite",
    "redis": "tenure.stores.redis",
    "rediss": "tenure.stores.redis",
    "valkey": "tenure.stores.redis",
    "valkeys": "tenure.stores.redis",
    "unix": "tenure.stores.redis",
    "postgresql": "tenure.stores.postgres",
    "postgres": "tenure.stores.postgres",
    **{
        f"{scheme}+{setup}": "tenure.stores.redis"
        for scheme in ("redis", "rediss", "valkey", "valkeys")
        for setup in ("sentinel", "cluster")
    },
}


def open_store(
    url: str,
    *,
    namespace: str = "default",
    durability: Durability | str | None = None,
    allow: Sequence[str] = (),
    clock: Clock | None = None,
) -> Store:
    """Return the store of a URL without any I/O; `async with` connects and checks.

    The query may name `namespace` and `durability`; what is left of it belongs to the store. `allow` names checks that
    may fail (StoreUnsafe says which). InvalidUrl, InvalidId or MissingExtra say what to change; none shows a
    password.
    """
    url = _spelling.lower(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        message = f"the store URL cannot be read; use one of {_spelling.KNOWN}"
        raise InvalidUrl(message) from None
    _refuse_marks(url, parts.scheme)
    module = _MODULES.get(parts.scheme)
    if module is None:
        raise _spelling.unknown(url, parts.scheme)
    _spelling.refuse_slashes(url, parts.scheme)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    namespace = ids.namespace(options.pop("namespace", namespace))
    level = _level(options.pop("durability", durability))
    # Cut, not put together again: some versions of urlunsplit lose the slashes of sqlite:////absolute.db.
    bare = url.partition("#")[0].partition("?")[0]
    try:
        opened = import_module(module)
    except ImportError as error:
        cure = "pip install 'tenure[postgres]'" if "postgres" in module else "install tenure anew, it is a part of that"
        message = f"{parts.scheme} needs the package {error.name!r}; {cure}"
        raise MissingExtra(message) from None
    store: Store = opened.open_url(
        bare, namespace=namespace, durability=level, allow=tuple(allow), clock=clock, options=options
    )
    return store


def _refuse_marks(url: str, scheme: str) -> None:
    """Raise InvalidUrl for what would be cut off: a password that is cut would be shown as a host or an option."""
    authority, _, rest = url.partition("://")[2].replace("?", "/").replace("#", "/").partition("/")
    if scheme not in ("sqlite", "unix", "memory") and "@" in rest and "@" not in authority:
        message = "the name or password in the store URL holds a / ? or # as it is; write %2F, %3F and %23 for them"
        raise InvalidUrl(message)
    if "#" in url or "\x00" in url or "%00" in url:
        message = "a store URL has no # and no NUL character; write %23 for a # in a password or file name"
        raise InvalidUrl(message)


def _level(value: Durability | str | None) -> Durability | None:
    if value is None:
        return None
    try:
        return Durability(value)
    except ValueError:
        message = f"durability {str(value)[:40]!r} is none of {', '.join(level.value for level in Durability)}"
        raise InvalidUrl(message) from None


def refuse_options(options: dict[str, str], scheme: str, known: Sequence[str] = ()) -> None:
    """Raise InvalidUrl for an option that the store does not know: a typo must not pass for a setting."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        message = (
            f"{scheme} URLs take no option {unknown[0]!r}; known are {', '.join(('namespace', 'durability', *known))}"
        )
        raise InvalidUrl(message)
