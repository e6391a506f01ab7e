"""What a store of values has to offer, and what a run store over it gives up."""

from __future__ import annotations

from typing import Literal, Protocol

from tenure.store import Durability

GIVEN_UP = {
    "I1": "the lease is judged by the caller's clock, for the values have none; between machines it must be kept right",
    "I10": "the salt of the history is another value: a change that is on its way while it is changed may still land",
    "I11": "a takeover is found by reading every record, and nobody is woken in another process",
    "I27": "each change writes the whole run again",
}
"""What a store of values cannot give, by invariant, and why."""


class KeyValue(Protocol):
    """What is needed of a store of values; all methods are cancellation points and raise StoreUnavailable.

    `atomicity` is what `put` is atomic between: the tasks of one "process", or of any ("cross-process").
    """

    @property
    def url(self) -> str:
        """Return where it is, without a password."""
        ...

    @property
    def atomicity(self) -> Literal["process", "cross-process"]:
        """Return between whom a version is compared."""
        ...

    @property
    def level(self) -> Durability:
        """Return what an acknowledged `put` survives."""
        ...

    async def open(self) -> None:
        """Make ready for use; opened as often as it is closed."""
        ...

    async def aclose(self) -> None:
        """Give up what `open` took."""
        ...

    async def get(self, key: str, /) -> tuple[bytes, int] | None:
        """Return the value and its version, None where there is none; CorruptRecord for what cannot be read."""
        ...

    async def put(self, key: str, value: bytes, /, *, version: int) -> bool:
        """Write a value whose version is `version` now (0: there is none), as the next version; False if it is not."""
        ...

    async def keys(self) -> list[str]:
        """Return every key."""
        ...
