"""The contract of a store: subclass `StoreContract`, give the fixture `store`, and inherit every test.

Needs pytest (extra `testing`). Each part also stands alone, for who wants to run one.
"""

# ruff: noqa: E402 - asserts are rewritten only in what is imported after asking for it
from __future__ import annotations

import sys

import pytest

_SUBJECTS = ("case", "claims", "ends", "fence", "history", "import", "inbox", "reads", "sequences", "steps")
_PARTS = {f"tenure.testing.contract_{subject}" for subject in _SUBJECTS}
pytest.register_assert_rewrite(*(_PARTS - sys.modules.keys()))

from tenure.testing.contract_case import ABILITIES, StoreCase
from tenure.testing.contract_claims import ClaimContract
from tenure.testing.contract_ends import EndContract
from tenure.testing.contract_fence import FenceContract
from tenure.testing.contract_history import HistoryContract
from tenure.testing.contract_import import ImportContract
from tenure.testing.contract_inbox import InboxContract
from tenure.testing.contract_reads import ReadContract
from tenure.testing.contract_sequences import SequenceContract
from tenure.testing.contract_steps import StepContract

__all__ = [
    "ABILITIES",
    "ClaimContract",
    "EndContract",
    "FenceContract",
    "HistoryContract",
    "ImportContract",
    "InboxContract",
    "ReadContract",
    "SequenceContract",
    "StepContract",
    "StoreCase",
    "StoreContract",
]


class StoreContract(
    FenceContract,
    ClaimContract,
    EndContract,
    InboxContract,
    HistoryContract,
    ImportContract,
    ReadContract,
    SequenceContract,
    StepContract,
):
    """Every test that a store has to pass."""
