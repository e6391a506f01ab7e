"""Long agent runs that survive the death of their process.

Each public name is imported from its home when it is first asked for: `import tenure` loads no driver and no terminal.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # One line per public name, `from home import Name as Name`: type checkers see what `__getattr__` will find.
    from tenure.active import ActiveRun as ActiveRun
    from tenure.app import App as App
    from tenure.app import Kind as Kind
    from tenure.core.run import Grant as Grant
    from tenure.core.run import Request as Request
    from tenure.core.run import Run as Run
    from tenure.core.run import Status as Status
    from tenure.errors import CancelRequested as CancelRequested
    from tenure.errors import Code as Code
    from tenure.errors import CorruptRecord as CorruptRecord
    from tenure.errors import Draining as Draining
    from tenure.errors import HistoryLost as HistoryLost
    from tenure.errors import InvalidContent as InvalidContent
    from tenure.errors import InvalidId as InvalidId
    from tenure.errors import InvalidUrl as InvalidUrl
    from tenure.errors import LeaseHeld as LeaseHeld
    from tenure.errors import LeaseLost as LeaseLost
    from tenure.errors import MissingExtra as MissingExtra
    from tenure.errors import NotAllowed as NotAllowed
    from tenure.errors import OutcomeUnknown as OutcomeUnknown
    from tenure.errors import ReplayDrift as ReplayDrift
    from tenure.errors import RequestClosed as RequestClosed
    from tenure.errors import RunCancelled as RunCancelled
    from tenure.errors import RunClosed as RunClosed
    from tenure.errors import RunConflict as RunConflict
    from tenure.errors import RunDeclined as RunDeclined
    from tenure.errors import RunFailed as RunFailed
    from tenure.errors import RunNotFound as RunNotFound
    from tenure.errors import RunQuarantined as RunQuarantined
    from tenure.errors import RunSuspended as RunSuspended
    from tenure.errors import StaleDecision as StaleDecision
    from tenure.errors import StepFailed as StepFailed
    from tenure.errors import StoreTooNew as StoreTooNew
    from tenure.errors import StoreUnavailable as StoreUnavailable
    from tenure.errors import StoreUnsafe as StoreUnsafe
    from tenure.errors import TenureError as TenureError
    from tenure.errors import UnknownKind as UnknownKind
    from tenure.handle import Handle as Handle
    from tenure.lease import Lease as Lease
    from tenure.ledger import Ledger as Ledger
    from tenure.retry import Retry as Retry
    from tenure.retry import TryLater as TryLater
    from tenure.store import Durability as Durability
    from tenure.store import Store as Store
    from tenure.store import Where as Where
    from tenure.stores import open_store as open_store
    from tenure.trust import LeaseChange as LeaseChange

__version__ = "0.1.0"

# Public name -> the module it lives in.
_HOME: dict[str, str] = {
    "ActiveRun": "tenure.active",
    "App": "tenure.app",
    "CancelRequested": "tenure.errors",
    "Code": "tenure.errors",
    "CorruptRecord": "tenure.errors",
    "Draining": "tenure.errors",
    "Durability": "tenure.store",
    "Grant": "tenure.core.run",
    "Handle": "tenure.handle",
    "HistoryLost": "tenure.errors",
    "InvalidContent": "tenure.errors",
    "InvalidId": "tenure.errors",
    "InvalidUrl": "tenure.errors",
    "Kind": "tenure.app",
    "Lease": "tenure.lease",
    "LeaseChange": "tenure.trust",
    "LeaseHeld": "tenure.errors",
    "LeaseLost": "tenure.errors",
    "Ledger": "tenure.ledger",
    "MissingExtra": "tenure.errors",
    "NotAllowed": "tenure.errors",
    "OutcomeUnknown": "tenure.errors",
    "ReplayDrift": "tenure.errors",
    "Request": "tenure.core.run",
    "RequestClosed": "tenure.errors",
    "Retry": "tenure.retry",
    "Run": "tenure.core.run",
    "RunCancelled": "tenure.errors",
    "RunClosed": "tenure.errors",
    "RunConflict": "tenure.errors",
    "RunDeclined": "tenure.errors",
    "RunFailed": "tenure.errors",
    "RunNotFound": "tenure.errors",
    "RunQuarantined": "tenure.errors",
    "RunSuspended": "tenure.errors",
    "StaleDecision": "tenure.errors",
    "Status": "tenure.core.run",
    "StepFailed": "tenure.errors",
    "Store": "tenure.store",
    "StoreTooNew": "tenure.errors",
    "StoreUnavailable": "tenure.errors",
    "StoreUnsafe": "tenure.errors",
    "TenureError": "tenure.errors",
    "TryLater": "tenure.retry",
    "UnknownKind": "tenure.errors",
    "Where": "tenure.store",
    "open_store": "tenure.stores",
}

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
