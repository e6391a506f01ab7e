"""Spans and token metrics of agents on a run, as they are exported: what was only replayed is not told again."""

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai.models.instrumented import InstrumentationSettings

from ext.clerk import Place, plainly, twice
from ext.test_pydantic_ai_processes import PROGRAM, ended, worker
from tenure import Ledger, open_store
from tenure.testing import Inline

pytestmark = pytest.mark.anyio

TRACED = PROGRAM.with_name("durable_traced.py")
IN, OUT = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
ALL_IN, ALL_OUT = "gen_ai.aggregated_usage.input_tokens", "gen_ai.aggregated_usage.output_tokens"


async def test_an_attempt_that_only_replays_exports_no_span_and_counts_no_token() -> None:
    place, exported, reader = Place(), InMemorySpanExporter(), InMemoryMetricReader()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(exported))
    place.agent.instrument = InstrumentationSettings(tracer_provider=tracing, meter_provider=MeterProvider([reader]))
    told: list[tuple[int, int]] = []

    async def ask() -> str:
        found = await plainly(place.agent)
        told.append((len(exported.get_finished_spans()), _counted(reader)))
        return found

    async with Inline(twice(ask)) as inline:
        assert await inline.result(await inline.ledger.submit("k", None, id="r")) == "found 21"
    assert len(told) == 2, "the second attempt is all replay"
    assert told[0] == told[1]
    assert told[0][1] == 6, "input and output tokens of three answers"
    names = Counter(span.name.split(" ")[0] for span in exported.get_finished_spans())
    assert (names["chat"], names["invoke_agent"], names["execute_tool"]) == (3, 1, 3)


def _counted(reader: InMemoryMetricReader) -> int:
    data = reader.get_metrics_data()
    return sum(
        point.count  # type: ignore[union-attr,misc]
        for resource in (data.resource_metrics if data is not None else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "gen_ai.client.token.usage"
        for point in metric.data.data_points
    )


@pytest.mark.slow
async def test_after_a_kill_the_spans_of_all_processes_tell_each_call_and_each_token_once(
    tmp_path: Path, namespace: str
) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    (tmp_path / "kill").touch()
    async with open_store(url, namespace=namespace) as store, Ledger(store, ttl=2) as ledger:
        handle = await ledger.submit("walk", None, id="r")
        with worker(url, namespace, tmp_path, program=TRACED) as first:
            assert await ended(first) == -signal.SIGKILL
        before = _spans(tmp_path)
        with worker(url, namespace, tmp_path, program=TRACED) as second:
            assert await handle.result(timeout=60) == ["arrived", 4, 3]
            assert await ended(second) == 0
    spans = _spans(tmp_path)
    after = spans[len(before) :]
    # The third call ended with its process and left no span; its own second call has one, and so has the agent's run.
    assert Counter(map(_what, before)) == {"chat": 3, "execute_tool c1": 1, "execute_tool c2": 1}
    assert Counter(map(_what, after)) == {"chat": 1, "execute_tool c3": 1, "invoke_agent": 1}
    chats = [span["attributes"] for span in spans if span["name"].startswith("chat")]
    (agent,) = [span["attributes"] for span in spans if span["name"].startswith("invoke_agent")]
    # What the agent's run says of its usage is the sum of what its questions say, over both processes.
    assert (agent[ALL_IN], agent[ALL_OUT]) == (sum(c[IN] for c in chats), sum(c[OUT] for c in chats))
    counted = json.loads((tmp_path / "tokens").read_text())
    assert counted == {"input": [1, chats[-1][IN]], "output": [1, chats[-1][OUT]]}


def _spans(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "spans").read_text().splitlines()]


def _what(span: dict[str, Any]) -> str:
    operation = span["name"].split(" ")[0]
    return f"{operation} {span['attributes']['gen_ai.tool.call.id']}" if operation == "execute_tool" else operation
