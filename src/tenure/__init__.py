"""Long agent runs that survive the death of their process.

Each public name is imported from its home when it is first asked for: `import tenure` loads no driver and no terminal.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # One line per public name, `from home import Name as Name`: type checkers see what `__getattr__` will find.
    from tenure.active import ActiveRun as ActiveRun
    from tenure.agent.agent import Agent as Agent
    from tenure.agent.agent import StepBoundary as StepBoundary
    from tenure.agent.approval import Approval as Approval
    from tenure.agent.checkpointed import CheckpointedAgent as CheckpointedAgent
    from tenure.agent.context import CompactResults as CompactResults
    from tenure.agent.context import Context as Context
    from tenure.agent.context import ContextPolicy as ContextPolicy
    from tenure.agent.context import SlidingWindow as SlidingWindow
    from tenure.agent.context import Summarise as Summarise
    from tenure.agent.doubt import resolve as resolve
    from tenure.agent.model import Delta as Delta
    from tenure.agent.model import Model as Model
    from tenure.agent.model import ModelReply as ModelReply
    from tenure.agent.model import ModelRequest as ModelRequest
    from tenure.agent.model import ToolSpec as ToolSpec
    from tenure.agent.recovery import Recovered as Recovered
    from tenure.agent.streaming import Landed as Landed
    from tenure.agent.streaming import RunStream as RunStream
    from tenure.agent.tool import NOT_DONE as NOT_DONE
    from tenure.agent.tool import Effect as Effect
    from tenure.agent.tool import Tool as Tool
    from tenure.agent.tool import ToolContext as ToolContext
    from tenure.agent.tool import tool as tool
    from tenure.app import App as App
    from tenure.app import Kind as Kind
    from tenure.approving import OpenRequest as OpenRequest
    from tenure.approving import asking as asking
    from tenure.core.approvals import Decision as Decision
    from tenure.core.budget import Budget as Budget
    from tenure.core.messages import AssistantMessage as AssistantMessage
    from tenure.core.messages import Media as Media
    from tenure.core.messages import ProviderPart as ProviderPart
    from tenure.core.messages import SystemMessage as SystemMessage
    from tenure.core.messages import Text as Text
    from tenure.core.messages import ToolCall as ToolCall
    from tenure.core.messages import ToolMessage as ToolMessage
    from tenure.core.messages import ToolResult as ToolResult
    from tenure.core.messages import Usage as Usage
    from tenure.core.messages import UserMessage as UserMessage
    from tenure.core.run import Grant as Grant
    from tenure.core.run import Request as Request
    from tenure.core.run import Run as Run
    from tenure.core.run import Status as Status
    from tenure.core.verify import Verification as Verification
    from tenure.core.verify import verify_run as verify_run
    from tenure.current import CurrentRun as CurrentRun
    from tenure.current import current_run as current_run
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
    from tenure.errors import LineageBroken as LineageBroken
    from tenure.errors import MissingExtra as MissingExtra
    from tenure.errors import NotAllowed as NotAllowed
    from tenure.errors import OutcomeUnknown as OutcomeUnknown
    from tenure.errors import OutOfBudget as OutOfBudget
    from tenure.errors import OutputInvalid as OutputInvalid
    from tenure.errors import ReplayDrift as ReplayDrift
    from tenure.errors import RequestClosed as RequestClosed
    from tenure.errors import RequestExpired as RequestExpired
    from tenure.errors import RolledBack as RolledBack
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
    from tenure.errors import StepLimit as StepLimit
    from tenure.errors import StoreNotFound as StoreNotFound
    from tenure.errors import StoreTooNew as StoreTooNew
    from tenure.errors import StoreUnavailable as StoreUnavailable
    from tenure.errors import StoreUnsafe as StoreUnsafe
    from tenure.errors import TenureError as TenureError
    from tenure.errors import UnknownKind as UnknownKind
    from tenure.handle import Handle as Handle
    from tenure.journal_file import export_to as export_to
    from tenure.journal_file import read_export as read_export
    from tenure.journal_file import verify_file as verify_file
    from tenure.lease import Lease as Lease
    from tenure.ledger import Ledger as Ledger
    from tenure.redaction import Redaction as Redaction
    from tenure.retry import Retry as Retry
    from tenure.retry import TryLater as TryLater
    from tenure.store import Durability as Durability
    from tenure.store import Store as Store
    from tenure.store import Where as Where
    from tenure.stores import open_store as open_store
    from tenure.sweep import SweepEntry as SweepEntry
    from tenure.sweep import Sweeper as Sweeper
    from tenure.sweep import SweepReport as SweepReport
    from tenure.trust import LeaseChange as LeaseChange
    from tenure.worker import Worker as Worker

__version__ = "0.1.0"

# Public name -> the module it lives in.
_HOME: dict[str, str] = {
    "ActiveRun": "tenure.active",
    "Agent": "tenure.agent.agent",
    "App": "tenure.app",
    "Approval": "tenure.agent.approval",
    "AssistantMessage": "tenure.core.messages",
    "Budget": "tenure.core.budget",
    "CancelRequested": "tenure.errors",
    "CheckpointedAgent": "tenure.agent.checkpointed",
    "Code": "tenure.errors",
    "CompactResults": "tenure.agent.context",
    "Context": "tenure.agent.context",
    "ContextPolicy": "tenure.agent.context",
    "CorruptRecord": "tenure.errors",
    "CurrentRun": "tenure.current",
    "Decision": "tenure.core.approvals",
    "Delta": "tenure.agent.model",
    "Draining": "tenure.errors",
    "Durability": "tenure.store",
    "Effect": "tenure.agent.tool",
    "Grant": "tenure.core.run",
    "Handle": "tenure.handle",
    "HistoryLost": "tenure.errors",
    "InvalidContent": "tenure.errors",
    "InvalidId": "tenure.errors",
    "InvalidUrl": "tenure.errors",
    "Kind": "tenure.app",
    "Landed": "tenure.agent.streaming",
    "Lease": "tenure.lease",
    "LeaseChange": "tenure.trust",
    "LeaseHeld": "tenure.errors",
    "LeaseLost": "tenure.errors",
    "Ledger": "tenure.ledger",
    "LineageBroken": "tenure.errors",
    "Media": "tenure.core.messages",
    "MissingExtra": "tenure.errors",
    "Model": "tenure.agent.model",
    "ModelReply": "tenure.agent.model",
    "ModelRequest": "tenure.agent.model",
    "NOT_DONE": "tenure.agent.tool",
    "NotAllowed": "tenure.errors",
    "OpenRequest": "tenure.approving",
    "OutOfBudget": "tenure.errors",
    "OutcomeUnknown": "tenure.errors",
    "OutputInvalid": "tenure.errors",
    "ProviderPart": "tenure.core.messages",
    "Recovered": "tenure.agent.recovery",
    "Redaction": "tenure.redaction",
    "ReplayDrift": "tenure.errors",
    "Request": "tenure.core.run",
    "RequestClosed": "tenure.errors",
    "RequestExpired": "tenure.errors",
    "Retry": "tenure.retry",
    "Run": "tenure.core.run",
    "RolledBack": "tenure.errors",
    "RunCancelled": "tenure.errors",
    "RunClosed": "tenure.errors",
    "RunConflict": "tenure.errors",
    "RunDeclined": "tenure.errors",
    "RunFailed": "tenure.errors",
    "RunNotFound": "tenure.errors",
    "RunQuarantined": "tenure.errors",
    "RunStream": "tenure.agent.streaming",
    "RunSuspended": "tenure.errors",
    "SlidingWindow": "tenure.agent.context",
    "StaleDecision": "tenure.errors",
    "Status": "tenure.core.run",
    "StepBoundary": "tenure.agent.agent",
    "StepFailed": "tenure.errors",
    "StepLimit": "tenure.errors",
    "Store": "tenure.store",
    "StoreNotFound": "tenure.errors",
    "StoreTooNew": "tenure.errors",
    "StoreUnavailable": "tenure.errors",
    "StoreUnsafe": "tenure.errors",
    "Summarise": "tenure.agent.context",
    "SweepEntry": "tenure.sweep",
    "SweepReport": "tenure.sweep",
    "Sweeper": "tenure.sweep",
    "SystemMessage": "tenure.core.messages",
    "TenureError": "tenure.errors",
    "Text": "tenure.core.messages",
    "Tool": "tenure.agent.tool",
    "ToolCall": "tenure.core.messages",
    "ToolContext": "tenure.agent.tool",
    "ToolMessage": "tenure.core.messages",
    "ToolResult": "tenure.core.messages",
    "ToolSpec": "tenure.agent.model",
    "TryLater": "tenure.retry",
    "UnknownKind": "tenure.errors",
    "Usage": "tenure.core.messages",
    "UserMessage": "tenure.core.messages",
    "Verification": "tenure.core.verify",
    "Where": "tenure.store",
    "Worker": "tenure.worker",
    "asking": "tenure.approving",
    "export_to": "tenure.journal_file",
    "current_run": "tenure.current",
    "open_store": "tenure.stores",
    "read_export": "tenure.journal_file",
    "resolve": "tenure.agent.doubt",
    "tool": "tenure.agent.tool",
    "verify_file": "tenure.journal_file",
    "verify_run": "tenure.core.verify",
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
