"""Why a run that was asked to end ends, and who asked: what its record says of it afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tenure.core import canonical
from tenure.core.run import Ask, Item
from tenure.errors import CorruptRecord, InvalidContent
from tenure.store import Store

LATE = "its time of grace is over"


class Asked(NamedTuple):
    """What was said with the first wish that a run ends; both may be empty."""

    reason: str = ""
    by: str = ""

    @property
    def late(self) -> str:
        """Return the reason of a run that did not end in its time of grace."""
        return f"{self.reason} ({LATE})" if self.reason else LATE


def said_in(items: Iterable[Item], /) -> Asked:
    """Read who asked a run to end out of its inbox; a wish that cannot be read counts, and says nothing."""
    for item in items:
        if item.ask is Ask.CANCEL and not item.consumed:
            try:
                said = canonical.decode(item.body)
            except InvalidContent:
                said = None
            if isinstance(said, dict):
                return Asked(*(canonical.plain(str(said.get(name) or ""), 200) for name in ("reason", "by")))
            return Asked()
    return Asked()


async def asked(store: Store, run_id: str, /) -> Asked:
    """Read who asked a run to end; one whose inbox is damaged is to end all the same."""
    try:
        return said_in(await store.inbox(run_id))
    except CorruptRecord:
        return Asked()
