"""The settings of a rank: name, default, unit and meaning in one place. The only reader of the environment.

A setting comes from the argument of :func:`rankwatch.init` of the same name, else from the first of its environment
variables that is set, else from its default. Variables are listed in the order in which they count, so ``RANKWATCH_*``
beats ``OTEL_*``. Invalid values are logged and ignored: settings never raise into training.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from rankwatch.contract import access, intervals, semconv
from rankwatch.contract import env as environment
from rankwatch.contract.enums import KernelSource
from rankwatch.contract.policy import parse_ranks

MAX_RANKS: Final = 2**31
MAX_PROFILING_INTERVAL: Final = 1_000_000

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def _setting(default: Any, unit: str, meaning: str, *variables: str, read: Callable[[str], Any]) -> Any:
    """One setting; ``read`` parses its text and raises ``ValueError`` with a description of valid values."""
    return field(default=default, metadata={"unit": unit, "meaning": meaning, "environment": variables, "read": read})


def _text(raw: str) -> str:
    return raw


def _flag(raw: str) -> bool:
    try:
        return environment.parse_bool(raw)
    except ValueError:
        raise ValueError("true or false") from None


def _url(raw: str) -> str:
    parts = urlsplit(raw)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("an http:// or https:// address")
    return raw.rstrip("/")


def _integer(low: int, high: int) -> Callable[[str], int]:
    def read(raw: str) -> int:
        try:
            value = int(raw)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return value

    return read


def _seconds(low: float, high: float) -> Callable[[str], float]:
    def read(raw: str) -> float:
        try:
            value = float(raw)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise ValueError(f"a number of seconds from {low:g} to {high:g}")
        return value

    return read


def _compression(raw: str) -> str:
    if raw.lower() not in ("none", "gzip", "deflate"):
        raise ValueError("none, gzip or deflate")
    return raw.lower()


def _kernel_source(raw: str) -> str:
    try:
        return KernelSource(raw.lower())
    except ValueError:
        raise ValueError(f"one of {', '.join(KernelSource)}") from None


def _ranks(raw: str) -> str:
    try:
        return str(parse_ranks(raw))
    except ValueError:
        raise ValueError("all, none or ranks such as 0,8-15") from None


def _pairs(raw: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in raw.split(",") if part.strip()]
    if not all(mark and name.strip() for name, mark, _ in pairs):
        raise ValueError("written NAME=VALUE,NAME=VALUE")
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}


_RANK_NUMBER = _integer(0, MAX_RANKS)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process, from arguments and environment."""

    disabled: bool = _setting(False, "", "do nothing at all: no slots, no export", "RANKWATCH_DISABLED", read=_flag)
    monitor: str | None = _setting(
        None,
        "",
        "base address of the monitor, to which telemetry goes by OTLP/HTTP",
        environment.MONITOR_URL,
        read=_url,
    )
    collector: str | None = _setting(
        None,
        "",
        "base address of an OpenTelemetry Collector that telemetry goes to instead, with the headers of "
        "OTEL_EXPORTER_OTLP_HEADERS; it sends it on to the monitor",
        environment.COLLECTOR_URL,
        read=_url,
    )
    token: str | None = _setting(
        None, "", "bearer token that the monitor asks for; sent to it alone", environment.TOKEN, read=_text
    )
    job_id: str | None = _setting(
        None,
        "",
        "identity of the job, equal on all its ranks and kept by chained retries",
        environment.JOB_ID,
        "SLURM_JOB_ID",
        "TORCHELASTIC_RUN_ID",
        read=_text,
    )
    job_name: str | None = _setting(
        None, "", "name of the job for people", environment.JOB_NAME, "OTEL_SERVICE_NAME", read=_text
    )
    attempt: int = _setting(
        1, "", "which start of the ranks this is, counted over the whole job", environment.ATTEMPT, read=_RANK_NUMBER
    )
    rank: int = _setting(
        0, "", "global rank of this process", "RANKWATCH_RANK", "RANK", "SLURM_PROCID", read=_RANK_NUMBER
    )
    local_rank: int = _setting(
        0, "", "rank on this node", "RANKWATCH_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID", read=_RANK_NUMBER
    )
    world_size: int = _setting(
        1,
        "",
        "number of ranks",
        "RANKWATCH_WORLD_SIZE",
        "WORLD_SIZE",
        "SLURM_NTASKS",
        read=_integer(1, MAX_RANKS),
    )
    export_interval: float = _setting(
        intervals.EXPORT_SECONDS,
        "s",
        "time between two exports; unless it is given, longer in a job of more than 4,096 ranks",
        "RANKWATCH_EXPORT_INTERVAL",
        read=_seconds(0.05, 3600.0),
    )
    span_stride: int = _setting(
        intervals.SPAN_STRIDE,
        "{step}",
        "sections of every n-th step are sent as spans; 0 sends none",
        "RANKWATCH_SPAN_STRIDE",
        read=_integer(0, MAX_RANKS),
    )
    slots_dir: str | None = _setting(
        None,
        "",
        "folder of the slot files that this node's launcher reads",
        environment.SLOTS_DIR,
        read=_text,
    )
    stack_signal: int | None = _setting(
        None,
        "",
        "number of the signal on which all Python stacks are written into the slots folder",
        environment.STACK_SIGNAL,
        read=_integer(1, 64),
    )
    stop_signal: int | None = _setting(
        None,
        "",
        'number of the signal that the rank takes for "save and stop"; set where a scheduler signals the ranks',
        environment.STOP_SIGNAL,
        read=_integer(1, 64),
    )
    control_plane: bool = _setting(
        True,
        "",
        "let the launcher ask torch how far each process group has come (torch's worker control plane)",
        "RANKWATCH_CONTROL_PLANE",
        read=_flag,
    )
    kernel_timings: str = _setting(
        "auto",
        "",
        "where kernel timings come from: auto, cupti, kineto or off",
        "RANKWATCH_KERNEL_TIMINGS",
        read=_kernel_source,
    )
    profiling_interval: int = _setting(
        0,
        "{step}",
        "steps in a window, of which the last is profiled; 0: a power of two that makes about 10 s",
        "RANKWATCH_PROFILING_INTERVAL",
        read=_integer(0, MAX_PROFILING_INTERVAL),
    )
    profiled_ranks: str = _setting(
        "all",
        "",
        "ranks that are profiled: all, none, or 0,8-15",
        "RANKWATCH_PROFILED_RANKS",
        read=_ranks,
    )
    report_interval: float = _setting(
        300.0,
        "s",
        "time between two reports of kernel timings",
        "RANKWATCH_REPORT_INTERVAL",
        read=_seconds(1.0, 86400.0),
    )
    trace_dir: str | None = _setting(
        None,
        "",
        "folder for the traces of suspects, by default rankwatch.UID/traces, private, in the temporary folder",
        "RANKWATCH_TRACE_DIR",
        read=_text,
    )
    inject: str | None = _setting(
        None, "", "fault to inject on purpose (rankwatch.faults)", "RANKWATCH_INJECT", read=_text
    )
    otel_disabled: bool = _setting(False, "", "export nothing", "OTEL_SDK_DISABLED", read=_flag)
    resource_attributes: Mapping[str, str] | None = _setting(
        None,
        "",
        "further resource attributes, dl.tensor_parallel.rank for example",
        "OTEL_RESOURCE_ATTRIBUTES",
        read=_pairs,
    )
    otlp_endpoint: str | None = _setting(
        None,
        "",
        "base address of an OTLP/HTTP receiver, used when no monitor is named",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        read=_url,
    )
    otlp_metrics_endpoint: str | None = _setting(
        None, "", "full address for metrics alone", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", read=_url
    )
    otlp_traces_endpoint: str | None = _setting(
        None, "", "full address for spans alone", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", read=_url
    )
    otlp_headers: Mapping[str, str] | None = _setting(
        None, "", "headers sent with each request", "OTEL_EXPORTER_OTLP_HEADERS", read=_pairs
    )
    otlp_certificate: str | None = _setting(
        None, "", "file of the certificates to trust", environment.CA_FILE, "OTEL_EXPORTER_OTLP_CERTIFICATE", read=_text
    )
    otlp_client_certificate: str | None = _setting(
        None,
        "",
        "file of our own certificate",
        environment.CLIENT_CERTIFICATE,
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
        read=_text,
    )
    otlp_client_key: str | None = _setting(
        None, "", "file of its private key", environment.CLIENT_KEY, "OTEL_EXPORTER_OTLP_CLIENT_KEY", read=_text
    )
    otlp_compression: str = _setting(
        "none", "", "none, gzip or deflate", "OTEL_EXPORTER_OTLP_COMPRESSION", read=_compression
    )
    # OpenTelemetry's specification counts this in milliseconds, its Python exporter in seconds; this is Python.
    otlp_timeout: float = _setting(
        2.0, "s", "longest wait for an answer to an export", "OTEL_EXPORTER_OTLP_TIMEOUT", read=_seconds(0.05, 10.0)
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
    for setting in fields(Settings):
        sources = [(f"{setting.name}=", given[setting.name])] if setting.name in given else []
        sources += [(name, env[name]) for name in setting.metadata["environment"] if env.get(name, "").strip()]
        for source, raw in sources:
            try:
                values[setting.name] = setting.metadata["read"](str(raw).strip())
                break
            except ValueError as expected:
                shown = "" if setting.name in ("token", "otlp_headers") else f", not {raw!r}"
                problems.append(f"{source} must be {expected}{shown}; it is ignored")
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
