"""One rank of a job without a line of Rankwatch, which speaks by OpenTelemetry alone; run as a script, see test_lens.

It steps in step with the others (a rank is never more than one step ahead of another), until a file ``stop`` appears.
A file ``hang-RANK`` makes it stand still before its next step, as if in a collective; ``freeze-RANK`` freezes it.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

EXPORT_MS = 200


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--speaks", choices=("metrics", "spans", "steps", "lens"), required=True)
    given.add_argument("--monitor", required=True)
    given.add_argument("--job", required=True)
    given.add_argument("--rank", type=int, required=True)
    given.add_argument("--ranks", type=int, required=True)
    given.add_argument("--folder", type=Path, required=True)
    given.add_argument("--delta", action="store_true")
    given.add_argument("--json", action="store_true")
    asked = given.parse_args()
    around, step, end = (lens_emitter if asked.speaks == "lens" else sdk_emitter)(asked)
    train(asked, around, step)
    end()


def train(asked: argparse.Namespace, around: Callable[[int], AbstractContextManager[Any]], reported: Any) -> None:
    number = 0
    while not (asked.folder / "stop").exists():
        if (asked.folder / f"freeze-{asked.rank}").exists():
            os.kill(os.getpid(), signal.SIGSTOP)
        slowest = min(reached(asked.folder, rank) for rank in range(asked.ranks))
        if number > slowest or (asked.folder / f"hang-{asked.rank}").exists():
            time.sleep(0.01)
            continue
        number += 1
        with around(number):
            time.sleep(0.03)
        reported(number)
        scratch = asked.folder / f".step-{asked.rank}"
        scratch.write_text(str(number))
        scratch.replace(asked.folder / f"step-{asked.rank}")


def reached(folder: Path, rank: int) -> int:
    try:
        return int((folder / f"step-{rank}").read_text())
    except FileNotFoundError:
        return 0


def lens_emitter(asked: argparse.Namespace) -> Any:
    """NVIDIA's NeMo Lens, set up as its users do it."""
    os.environ |= {
        "NEMO_LENS_ENABLED": "1",
        "NEMO_LENS_EXPORT_STRATEGY": "all_ranks",
        "NEMO_LENS_SPAN_GROUPS": "per_step",
        "OTEL_SERVICE_NAME": asked.job,
        "OTEL_EXPORTER_OTLP_ENDPOINT": asked.monitor,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_METRIC_EXPORT_INTERVAL": str(EXPORT_MS),
        "OTEL_BSP_SCHEDULE_DELAY": str(EXPORT_MS),
    }
    from nemo.lens import NemoLensConfig, managed_span, setup_telemetry, span_cm

    handle = setup_telemetry(NemoLensConfig.from_env(), rank=asked.rank, world_size=asked.ranks)
    assert handle.is_exporting
    # What Megatron-LM records at each log interval.
    duration = handle.meter.create_histogram("megatron.training.step_duration_ms", unit="ms")
    loss = handle.meter.create_gauge("megatron.training.loss")
    job = span_cm("megatron.pretrain", tracer=handle.tracer)
    job.__enter__()

    def around(number: int) -> Any:
        return managed_span("step", "megatron.train_step", tracer=handle.tracer, **{"megatron.iteration": number})

    def reported(number: int) -> None:
        duration.record(30.0)
        loss.set(1.0 / number)

    def end() -> None:
        job.__exit__(None, None, None)
        handle.shutdown()

    return around, reported, end


def sdk_emitter(asked: argparse.Namespace) -> Any:
    """The OpenTelemetry SDK, with the names that Megatron-LM gives, or (``steps``) those of somebody's own script."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
    from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create(
        {
            "service.name": asked.job,
            "host.name": os.uname().nodename,
            "nv.dl.rank": asked.rank,
            "nv.dl.world_size": asked.ranks,
            "process.pid": os.getpid(),
        }
    )
    if asked.speaks == "spans":
        tracers = TracerProvider(resource=resource)
        exporter = OTLPSpanExporter(f"{asked.monitor}/v1/traces")
        tracers.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=EXPORT_MS))
        tracer = tracers.get_tracer("megatron")
        job = tracer.start_span("megatron.pretrain")

        def around(number: int) -> Any:
            return tracer.start_as_current_span("nv.dl.training.iteration", attributes={"nv.dl.training.step": number})

        def end() -> None:
            job.end()
            tracers.shutdown()

        return around, lambda number: None, end

    temporality = AggregationTemporality.DELTA if asked.delta else AggregationTemporality.CUMULATIVE
    kind = json_exporter() if asked.json else OTLPMetricExporter
    out = kind(f"{asked.monitor}/v1/metrics", preferred_temporality={Counter: temporality, Histogram: temporality})
    provider = MeterProvider([PeriodicExportingMetricReader(out, export_interval_millis=EXPORT_MS)], resource)
    meter = provider.get_meter("training")
    # So that there is something to export whatever training does, as the memory of the process would be.
    meter.create_observable_up_down_counter("process.threads", [lambda options: [observation(7)]])
    if asked.speaks == "steps":
        gauge = meter.create_gauge("train/global_step")
        return lambda number: nullcontext(), gauge.set, provider.shutdown
    duration = meter.create_histogram("megatron.training.step_duration_ms", unit="ms")
    tokens = meter.create_counter("nv.dl.training.tokens.processed", unit="{token}")

    def reported(number: int) -> None:
        duration.record(30.0)
        tokens.add(4096)

    return lambda number: nullcontext(), reported, provider.shutdown


def observation(value: int) -> Any:
    from opentelemetry.metrics import Observation

    return Observation(value)


def json_exporter() -> Any:
    """The SDK's metrics as OTLP/JSON, which its Python exporter does not speak."""
    from google.protobuf.json_format import MessageToJson
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult

    class JsonExporter(MetricExporter):
        def __init__(self, url: str, **more: Any) -> None:
            super().__init__(**more)
            self._url = url

        def export(self, metrics_data: Any, timeout_millis: float = 10_000, **more: Any) -> Any:
            body = MessageToJson(encode_metrics(metrics_data)).encode()
            request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=5):
                return MetricExportResult.SUCCESS

        def force_flush(self, timeout_millis: float = 10_000) -> bool:
            return True

        def shutdown(self, timeout_millis: float = 30_000, **more: Any) -> None:
            pass

    return JsonExporter


if __name__ == "__main__":
    main()
