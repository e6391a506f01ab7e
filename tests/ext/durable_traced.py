"""The agent of `durable_app.py` with its spans and metrics written to files as they are exported.

`python durable_traced.py URL NAMESPACE FOLDER` works until the run `r` has ended.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import durable_app  # type: ignore[import-not-found,unused-ignore]  # beside this program when it is run
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from pydantic_ai import Agent
from pydantic_ai.models.instrumented import InstrumentationSettings

FOLDER = Path(sys.argv[3])


class Lines(SpanExporter):
    """Writes each span when it ends: what a process exported stays when it is killed."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with (FOLDER / "spans").open("a") as file:
            for span in spans:
                told = {"pid": os.getpid(), "name": span.name, "attributes": dict(span.attributes or {})}
                file.write(json.dumps(told, default=str) + "\n")
        return SpanExportResult.SUCCESS


def tokens(reader: InMemoryMetricReader) -> dict[str, Any]:
    """How often tokens were counted, and how many by their type."""
    data = reader.get_metrics_data()
    points = [
        point
        for resource in (data.resource_metrics if data is not None else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "gen_ai.client.token.usage"
        for point in metric.data.data_points
    ]
    return {
        str((p.attributes or {})["gen_ai.token.type"]): [p.count, p.sum]  # type: ignore[union-attr,unused-ignore]
        for p in points
    }


def main() -> None:
    tracing, reader = TracerProvider(), InMemoryMetricReader()
    tracing.add_span_processor(SimpleSpanProcessor(Lines()))
    settings = InstrumentationSettings(tracer_provider=tracing, meter_provider=MeterProvider([reader]))
    Agent.instrument_all(settings)
    anyio.run(durable_app.main, sys.argv[1], sys.argv[2])
    (FOLDER / "tokens").write_text(json.dumps(tokens(reader)))


if __name__ == "__main__":
    main()
