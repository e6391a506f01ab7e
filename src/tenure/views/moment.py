"""A run as it was at a place in its journal, for people and for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tenure.core.messages import to_json, usage_to_json
from tenure.core.text import count
from tenure.forking import Moment
from tenure.views.figures import clean, cut

WIDTH = 160


def moment_value(found: Moment, /) -> dict[str, Any]:
    """Return everything that the run had come to."""
    state, agent = found.state, found.agent
    value: dict[str, Any] = {
        "run": found.run.id,
        "kind": found.run.kind,
        "at": found.at,
        "step": found.step,
        "status": found.status,
        "input": state.input,
        "last": state.last,
        "records": [dict(record) for record in state.records.values()],
        "in_doubt": [f"{scope}/{name}" if scope else name for scope, name in sorted(state.started)],
    }
    if found.spoken:
        value["messages"] = [to_json(message) for message in agent.messages]
        value["open_calls"] = [call.id for call in agent.open]
        value["usage"] = usage_to_json(agent.usage)
    return value


def moment_lines(found: Moment, /) -> Iterator[str]:
    """Yield the lines for people."""
    value = moment_value(found)
    name = f"{clean(value['kind'])} {value['run']}"
    yield f"{name}   {value['status']} then   at {value['at']}, {count(found.step, 'step')}"
    yield f"  input     {_shown(value['input'])}"
    if found.state.checkpoints:
        yield f"  last      {_shown(value['last'])}"
    for record in value["records"]:
        said = record["value"] if "value" in record else record.get("error")
        yield f"  record    {clean(str(record['name']))} {'failed ' if 'error' in record else ''}{_shown(said)}"
    for name in value["in_doubt"]:
        yield f"  in doubt  {clean(name)}"
    for message in value.get("messages", ()):
        for part in message["parts"]:
            yield f"  {message['role']:<9} {_shown({k: v for k, v in part.items() if k != 'type'})}"
    if value.get("open_calls"):
        yield f"  open      {clean(', '.join(value['open_calls']))}"


def _shown(value: Any) -> str:
    return cut(clean(json.dumps(value, ensure_ascii=False, sort_keys=True)), WIDTH)
