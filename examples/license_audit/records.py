"""What an audit comes to, as records."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Confidence = Literal["high", "medium", "low", "none"]


class Evidence(BaseModel):
    """A line that says something; `says` is the licence it speaks for, empty where that is not to be made out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str = Field(description="path of the file, as list_files gives it")
    line: int = Field(ge=1, description="line in the file, counted from 1")
    text: str = Field(description="what stands there, shortened")
    says: str = Field(default="", description="SPDX id or expression that the line speaks for")


class Finding(BaseModel):
    """The licence of one distribution, and what speaks for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    version: str
    spdx: str = Field(description="SPDX expression, or NOASSERTION")
    confidence: Confidence = Field(
        description="high: metadata and text agree; medium: one of them speaks; low: they disagree; none: nothing said"
    )
    evidence: tuple[Evidence, ...] = ()
    notes: tuple[str, ...] = ()
