"""The settings of a rank: name, default, unit and meaning in one place. The only reader of the environment.

A setting comes from the argument of :func:`rankwatch.init` of the same name, else from the first of its environment
variables that is set, else from its default. Variables are listed in the order in which they count, so ``RANKWATCH_*``
beats ``OTEL_*``. Invalid values are logged and ignored: settings never raise into training.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final
from urllib.parse import quote, urlsplit

from rankwatch.contract import access, intervals, semconv
from rankwatch.contract import env as environment
from rankwatch.contract.enums import KernelSource
from rankwatch.contract.policy import RANKS
from rankwatch.contract.schema import PAIRS, SWITCH, TEXT, URL, choice, seconds, setting, whole

MAX_RANKS: Final = 2**31
MAX_PROFILING_INTERVAL: Final = 1_000_000

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


_NUMBER: Final = whole(0, MAX_RANKS)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process, from arguments and environment."""

    disabled: bool = setting(False, SWITCH, "do nothing at all: no slots, no export", env=("RANKWATCH_DISABLED",))
    monitor: str | None = setting(
        None, URL, "base address of the monitor, to which telemetry goes by OTLP/HTTP", env=(environment.MONITOR_URL,)
    )
    collector: str | None = setting(
        None,
        URL,
        "base address of an OpenTelemetry Collector that passes telemetry on to the monitor; with the headers of "
        "OTEL_EXPORTER_OTLP_HEADERS",
        env=(environment.COLLECTOR_URL,),
    )
    token: str | None = setting(
        None, TEXT, "bearer token that the monitor asks for; sent to it alone", env=(environment.TOKEN,)
    )
    job_id: str | None = setting(
        None,
        TEXT,
        "identity of the job, equal on all its ranks and kept by chained retries",
        env=(environment.JOB_ID, "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"),
    )
    job_name: str | None = setting(
        None, TEXT, "name of the job for people", env=(environment.JOB_NAME, "OTEL_SERVICE_NAME")
    )
    attempt: int = setting(
        1, _NUMBER, "which start of the ranks this is, counted over the whole job", env=(environment.ATTEMPT,)
    )
    rank: int = setting(0, _NUMBER, "global rank of this process", env=("RANKWATCH_RANK", "RANK", "SLURM_PROCID"))
    local_rank: int = setting(
        0, _NUMBER, "rank on this node", env=("RANKWATCH_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID")
    )
    world_size: int = setting(
        1, whole(1, MAX_RANKS), "number of ranks", env=("RANKWATCH_WORLD_SIZE", "WORLD_SIZE", "SLURM_NTASKS")
    )
    export_interval: float = setting(
        intervals.EXPORT_SECONDS,
        seconds(0.05, 3600.0),
        "time between two exports; unless it is given, longer in a job of more than 4,096 ranks",
        env=("RANKWATCH_EXPORT_INTERVAL",),
    )
    span_stride: int = setting(
        intervals.SPAN_STRIDE,
        whole(0, MAX_RANKS),
        "sections of every n-th step are sent as spans; 0 sends none",
        "{step}",
        env=("RANKWATCH_SPAN_STRIDE",),
    )
    slots_dir: str | None = setting(
        None, TEXT, "folder of the slot files that this node's launcher reads", env=(environment.SLOTS_DIR,)
    )
    stack_signal: int | None = setting(
        None,
        whole(1, 64),
        "number of the signal on which Python stacks are written",
        env=(environment.STACK_SIGNAL,),
    )
    stop_signal: int | None = setting(
        None,
        whole(1, 64),
        'number of the signal that means "save and stop", where a scheduler signals the ranks',
        env=(environment.STOP_SIGNAL,),
    )
    control_plane: bool = setting(
        True,
        SWITCH,
        "let the launcher ask torch how far process groups have come",
        env=("RANKWATCH_CONTROL_PLANE",),
    )
    kernel_timings: str = setting(
        "auto",
        choice(KernelSource),
        "where kernel timings come from: auto, cupti, kineto or off",
        env=("RANKWATCH_KERNEL_TIMINGS",),
    )
    profiling_interval: int = setting(
        0,
        whole(0, MAX_PROFILING_INTERVAL),
        "steps in a window, of which the last is profiled; 0: about 10 s",
        "{step}",
        env=("RANKWATCH_PROFILING_INTERVAL",),
    )
    profiled_ranks: str = setting(
        "all", RANKS, "ranks that are profiled: all, none, or 0,8-15", env=("RANKWATCH_PROFILED_RANKS",)
    )
    report_interval: float = setting(
        300.0, seconds(1.0, 86400.0), "time between two reports of kernel timings", env=("RANKWATCH_REPORT_INTERVAL",)
    )
    trace_dir: str | None = setting(
        None,
        TEXT,
        "folder for the traces of suspects, by default rankwatch.UID/traces in the temporary folder",
        env=("RANKWATCH_TRACE_DIR",),
    )
    inject: str | None = setting(None, TEXT, "fault to inject on purpose (rankwatch.faults)", env=("RANKWATCH_INJECT",))
    otel_disabled: bool = setting(False, SWITCH, "export nothing", env=("OTEL_SDK_DISABLED",))
    resource_attributes: Mapping[str, str] | None = setting(
        None,
        PAIRS,
        "further resource attributes, dl.tensor_parallel.rank for example",
        env=("OTEL_RESOURCE_ATTRIBUTES",),
    )
    otlp_endpoint: str | None = setting(
        None,
        URL,
        "base address of an OTLP/HTTP receiver, used when no monitor is named",
        env=("OTEL_EXPORTER_OTLP_ENDPOINT",),
    )
    otlp_metrics_endpoint: str | None = setting(
        None, URL, "full address for metrics alone", env=("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",)
    )
    otlp_traces_endpoint: str | None = setting(
        None, URL, "full address for spans alone", env=("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",)
    )
    otlp_headers: Mapping[str, str] | None = setting(
        None, PAIRS, "headers sent with each request", env=("OTEL_EXPORTER_OTLP_HEADERS",)
    )
    otlp_certificate: str | None = setting(
        None, TEXT, "file of the certificates to trust", env=(environment.CA_FILE, "OTEL_EXPORTER_OTLP_CERTIFICATE")
    )
    otlp_client_certificate: str | None = setting(
        None,
        TEXT,
        "file of our own certificate",
        env=(environment.CLIENT_CERTIFICATE, "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"),
    )
    otlp_client_key: str | None = setting(
        None, TEXT, "file of its private key", env=(environment.CLIENT_KEY, "OTEL_EXPORTER_OTLP_CLIENT_KEY")
    )
    otlp_compression: str = setting(
        "none", choice(("none", "gzip", "deflate")), "none, gzip or deflate", env=("OTEL_EXPORTER_OTLP_COMPRESSION",)
    )
    # OpenTelemetry's specification counts this in milliseconds, its Python exporter in seconds; this is Python.
    otlp_timeout: float = setting(
        2.0, seconds(0.05, 10.0), "longest wait for an answer to an export", env=("OTEL_EXPORTER_OTLP_TIMEOUT",)
    )

    @property
    def endpoints(self) -> tuple[str | None, str | None]:
        """Where metrics and where spans go; None: nowhere."""
        named = self.collector or self.monitor
        base = named or self.otlp_endpoint
        metrics = base + semconv.OTLP_METRICS_PATH if base else None
        traces = base + semconv.OTLP_TRACES_PATH if base else None
        if named:
            return metrics, traces
        return self.otlp_metrics_endpoint or metrics, self.otlp_traces_endpoint or traces

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every export. Credentials for one receiver are sent to no other."""
        others = self.otlp_endpoint or self.otlp_metrics_endpoint or self.otlp_traces_endpoint
        foreign = others and (self.collector or self.monitor)
        headers = {} if foreign else {name.lower(): value for name, value in (self.otlp_headers or {}).items()}
        if self.monitor and self.token and not self.collector:
            headers["authorization"] = f"Bearer {self.token}"
        if self.job_id:
            headers[semconv.JOB_HEADER] = quote(self.job_id, safe="")
        return headers


def load(
    overrides: Mapping[str, Any] | None = None, variables: Mapping[str, str] | None = None
) -> tuple[Settings, list[str]]:
    """Return the settings, and a message for each invalid value that was ignored.

    ``overrides`` are the arguments of :func:`rankwatch.init`, "not given" being None; ``variables`` is the environment.
    """
    env = os.environ if variables is None else variables
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    problems: list[str] = []
    values: dict[str, Any] = {}
    for each in fields(Settings):
        sources = [(f"{each.name}=", given[each.name])] if each.name in given else []
        sources += [(name, env[name]) for name in each.metadata["environment"] if env.get(name, "").strip()]
        for source, raw in sources:
            try:
                values[each.name] = each.metadata["kind"].read_text(str(raw).strip())
                break
            except ValueError as error:
                problems.append(f"{source} {error}; it is ignored")
    if values.get("job_id") == "none" and not env.get(environment.JOB_ID):
        del values["job_id"]  # torchrun's value for a missing rendezvous id
    values.setdefault("job_id", _shared_by_all_ranks(env))
    values.setdefault("job_name", (values.get("resource_attributes") or {}).get(semconv.SERVICE_NAME, values["job_id"]))
    settings = Settings(**values)
    if settings.monitor and not settings.token and urlsplit(settings.monitor).hostname in _LOOPBACK:
        own = access.of(settings.monitor)  # one that this user started, with tokens of its own
        settings = replace(settings, token=own.ingest_token) if own is not None else settings
    if "export_interval" not in values:
        collected = bool(settings.collector) or not settings.monitor
        seconds = intervals.export_seconds(settings.world_size, collected=collected)
        settings = replace(settings, export_interval=seconds)
    if settings.rank >= settings.world_size:
        problems.append(f"rank {settings.rank} does not fit into a world of {settings.world_size} ranks")
    return settings, problems


def _shared_by_all_ranks(env: Mapping[str, str]) -> str:
    """A default job id: shared by the ranks of the job, but not by other jobs on these hosts."""
    if env.get("MASTER_ADDR") and env.get("MASTER_PORT"):
        return f"{env['MASTER_ADDR']}-{env['MASTER_PORT']}"
    return f"{socket.gethostname()}-{os.getpid()}"
