"""What runs ask people: a table of requests, and one request with what it asked before."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from tenure.approving import OpenRequest, told
from tenure.core.approvals import RESOLVE, Standing, about
from tenure.views.figures import ago, clean, cut, instant
from tenure.views.tables import TEXT_WIDTH, Cell, Table

STYLE = {Standing.OPEN: "yellow", Standing.EXPIRED: "red", Standing.VOID: "red", Standing.DECIDED: "green"}


def request_value(request: OpenRequest, /) -> dict[str, Any]:
    """Return the JSON value of an open request."""
    return asdict(request)


def requests(found: Iterable[OpenRequest], /, *, now_ms: int) -> Table:
    """Return a table of open requests of any runs."""
    return Table(
        head=("RUN", "REQUEST", "ASKED", "EXPIRES", "STANDING", "ASKS"),
        rows=tuple(
            (
                Cell(request.run_id),
                Cell(request.id),
                Cell(ago(request.opened_ms, now_ms) if request.opened_ms else "-"),
                Cell("never" if request.expires_ms is None else ago(request.expires_ms, now_ms)),
                Cell(_standing(request), STYLE.get(request.standing, "")),
                Cell(cut(clean(told(request.content)), TEXT_WIDTH) or "-"),
            )
            for request in found
        ),
        optional=("ASKED", "EXPIRES"),
    )


def request_lines(request: OpenRequest, /, *, now_ms: int) -> list[str]:
    """Return one request in full, with the difference from what was asked before, and how to answer it."""
    expires = (
        "never" if request.expires_ms is None else f"{instant(request.expires_ms)} ({ago(request.expires_ms, now_ms)})"
    )
    lines = [
        f"request   {request.id}",
        f"digest    {request.digest}",
        f"expires   {expires}",
        f"standing  {_standing(request)}",
        *(f"  {clean(line)}" for line in _pretty(request.content)),
    ]
    if request.before is not None:
        lines += ["what was asked before, and what is asked now:", *(f"  {clean(x)}" for x in difference(request))]
    return [*lines, _advice(request)]


def difference(request: OpenRequest, /) -> list[str]:
    """Return the lines by which a request differs from the one before it about the same thing."""
    found = difflib.unified_diff(_pretty(request.before), _pretty(request.content), "before", "now", lineterm="")
    return list(found)


def _pretty(content: Any) -> list[str]:
    return json.dumps(content, ensure_ascii=False, sort_keys=True, indent=2).splitlines()


def _standing(request: OpenRequest) -> str:
    if request.decision is None:
        return request.standing.value
    said = "approved" if request.decision.approved else "rejected"
    return f"{said} by {clean(request.decision.by)}, not yet taken note of"


def _advice(request: OpenRequest) -> str:
    who, name = about(request.id)
    if request.standing is Standing.VOID:
        return "it was revoked: the run asks anew as soon as it goes on, under another name"
    if request.standing is Standing.DECIDED and who != RESOLVE:
        return f"tenure approvals revoke {request.run_id} {request.id}"
    if request.standing is Standing.EXPIRED:
        return "nobody can decide any more: the run says what follows as soon as it goes on"
    if who == RESOLVE:
        call = name.removeprefix("step:").partition("#")[0]
        return f"tenure resolve {request.run_id} {call} --result VALUE|--repeat|--fail"
    return f"tenure approvals approve|reject {request.run_id} {request.id} --digest {request.digest[:12]}"
