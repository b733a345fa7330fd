"""Parts of the GPU kit that need one process: sources of kernel timings, their cost, NVML, health, identity, NCCL."""

from __future__ import annotations

import json
import math
import os
import pickle
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpu import kernel_sources
from gpu.part import CannotRunError, Context, Figures, part, require

STEPS = 8
"""Steps over which sources are compared with torch's profiler."""
TOLERANCE = 0.02
"""How far kernel time by a source may be from kernel time by torch's profiler."""

LIMITS = ("hw.gpu.memory.limit", "hw.gpu.power.limit", "hw.gpu.clock.limit")
"""Readings that do not change between two looks: ours and nvidia-smi's are the same."""


def smi(query: str, group: str = "gpu") -> list[list[str]]:
    """Rows of ``nvidia-smi --query-<group>=<query>``, without units."""
    command = ["nvidia-smi", f"--query-{group}={query}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except FileNotFoundError:
        raise CannotRunError("nvidia-smi is not installed") from None
    return [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def training_step(context: Context) -> tuple[Any, Callable[[], None], dict[str, Any]]:
    """Torch, a warm step of a transformer, and the sources that can be had, by name.

    In a dry run the model is small, and a stand-in takes the place of ``torch.cuda`` for the benchmark's own code.
    """
    torch = require("torch")
    if context.cuda:
        step = kernel_sources.training(torch)
        made = {name: source for name, source in kernel_sources.sources(torch).items() if source is not None}
    else:
        from rankwatch.profiling.kineto import KinetoSource

        layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        batch = torch.randn(2, 8, 32)

        def step() -> None:
            layer(batch).square().mean().backward()

        made = {"kineto-cpu": KinetoSource(torch, on_device=False, end_window=lambda: None)}
        torch = SimpleNamespace(**{name: getattr(torch, name) for name in ("__version__", "profiler")})
        torch.cuda = SimpleNamespace(synchronize=lambda: None)
    for _ in range(10 if context.cuda else 1):
        step()
    torch.cuda.synchronize()
    return torch, step, made


def sampled(torch: Any, step: Callable[[], None], source: Any) -> Any:
    """The trace of one step."""
    from rankwatch.profiling.source import MAX_EVENTS

    torch.cuda.synchronize()
    source.start()
    with torch.profiler.record_function("annotation of the script"):  # is no kernel
        step()
    raw = source.stop()
    torch.cuda.synchronize()
    return source.read(raw, MAX_EVENTS)


def profiled(torch: Any, step: Callable[[], None], file: Path) -> list[dict[str, Any]]:
    """The kernels of one step by torch's own profiler: ``name``, ``dur`` (µs) and ``args`` (grid, block) of each."""
    profiler = torch.profiler
    torch.cuda.synchronize()
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]) as recording:
        with torch.profiler.record_function("annotation of the script"):
            step()
        torch.cuda.synchronize()
    recording.export_chrome_trace(str(file))
    events = json.loads(file.read_text())["traceEvents"]
    return [event for event in events if event.get("cat") == "kernel"]


@part(
    "sources",
    limit=90,
    proves="CUPTI and Kineto see the kernels, names, launch shapes and, within 2 %, the times of torch's own profiler",
)
def sources(context: Context) -> Figures:
    from rankwatch.profiling.kernel_name import kernel_key, short_name

    torch, step, made = training_step(context)
    figures: Figures = {}
    try:
        if not context.cuda:
            trace = sampled(torch, step, made["kineto-cpu"])
            assert trace.kernels
            return {"operators on the CPU": len(trace.kernels)}
        for name in ("cupti", "kineto-cuda"):
            figures[name] = (
                _compared(torch, step, made[name], context, kernel_key, short_name) if name in made else None
            )
    finally:
        for source in made.values():
            source.close()
    lacking = [name for name, found in figures.items() if found is None]
    if lacking:
        raise CannotRunError(f"{', '.join(lacking)} cannot be had here; the others: {figures}")
    wrong = {name: found for name, found in figures.items() if not found["equal"]}
    assert not wrong, wrong
    return figures


def _compared(torch: Any, step: Any, source: Any, context: Context, kernel_key: Any, short_name: Any) -> Figures:
    """A source beside torch's profiler, in turn: kernels of a step, names that differ, time of all kernels.

    Kineto also gives copies and memsets, which are left out here.
    """
    ours, theirs = [], []
    own_names: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for number in range(STEPS):
        own = [kernel for kernel in sampled(torch, step, source).kernels if not kernel.key.startswith("Mem")]
        kernels = profiled(torch, step, context.folder / f"{source.name}-{number}.json")
        ours.append((len(own), sum(kernel.self_ns for kernel in own) / 1e3))
        theirs.append((len(kernels), sum(kernel["dur"] for kernel in kernels)))
        own_names = Counter(kernel.key for kernel in own)
        shaped = "<<<" in next(iter(own_names), "")
        names = Counter(
            kernel_key(k["name"], (*k["args"]["grid"], *k["args"]["block"])) if shaped else short_name(k["name"])
            for k in kernels
        )
    ratio = statistics.median(time for _, time in ours) / statistics.median(time for _, time in theirs)
    differing = sorted(((own_names - names) + (names - own_names)).items())
    return {
        "kernels": [ours[-1][0], theirs[-1][0]],
        "time ratio": ratio,
        "names that differ": differing[:10],
        "equal": ours[-1][0] == theirs[-1][0] and not differing and abs(ratio - 1) <= TOLERANCE,
    }


def interval(values: list[float]) -> Figures:
    """Median and its 95 % confidence interval, by order statistics: a block beside a neighbour's load counts once."""
    ordered, count = sorted(values), len(values)
    below = max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)))
    return {"median": statistics.median(ordered), "low": ordered[below], "high": ordered[-1 - below], "n": count}


@part(
    "overhead",
    limit=120,
    proves="cost of sections (P3) and of a sampled step (P4) on a GPU, interleaved blocks, 95 % confidence intervals",
)
def overhead(context: Context) -> Figures:
    import rankwatch

    torch, step, made = training_step(context)
    rounds, length = (20, 15) if context.cuda else (2, 2)

    def with_sections(work: Callable[[], None] = step) -> None:
        with rankwatch.step():
            for name in ("data", "forward", "backward", "optimizer", "logging"):
                with rankwatch.section(name):
                    if name == "forward":
                        work()
            rankwatch.heartbeat()

    with _collector() as url, ThreadPoolExecutor(1) as reader:
        os.environ.update(RANKWATCH_JOB_ID="overhead", RANKWATCH_KERNEL_TIMINGS="off")
        rankwatch.init(monitor=url)
        try:
            alone = []
            for _ in range(200):
                began = time.perf_counter()
                for _ in range(10):
                    with_sections(lambda: None)
                alone.append((time.perf_counter() - began) / 10 * 1e6)
            kinds = {"none": (step, None), "P3 sections": (with_sections, None)}
            kinds |= {f"P4 {name}": (step, source) for name, source in made.items()}
            blocks: dict[str, list[float]] = {kind: [] for kind in kinds}
            for number in range(rounds):
                order = list(kinds)
                for kind in order[number % len(order) :] + order[: number % len(order)]:
                    what, source = kinds[kind]
                    blocks[kind].append(kernel_sources.Block(torch, what, length, source, reader).seconds)
        finally:
            rankwatch.shutdown()
            for source in made.values():
                source.close()
    if not context.cuda:
        return {"blocks": {kind: len(seconds) for kind, seconds in blocks.items()}}
    step_ms = statistics.median(blocks["none"]) / length * 1e3
    figures: Figures = {"step, ms": step_ms, "P3 sections by themselves, us a step": interval(alone)}
    for kind, seconds in blocks.items():
        added = [each - base for each, base in zip(seconds, blocks["none"], strict=True)]
        if kind.startswith("P3"):
            parts = [extra / base * 100 for extra, base in zip(added, blocks["none"], strict=True)]
            figures[f"{kind}, % of a step"] = interval(parts)
        elif kind.startswith("P4"):
            figures[f"{kind}, ms a window"] = interval([extra * 1e3 for extra in added])
            figures[f"{kind}, % at a window every 10 s"] = interval(
                [extra / kernel_sources.PERIOD * 100 for extra in added]
            )
    return figures


class _collector:  # noqa: N801 - used as a context manager
    """An HTTP server in a process of its own that accepts every report; its address."""

    def __enter__(self) -> str:
        script = (
            "import http.server,sys\n"
            "class H(http.server.BaseHTTPRequestHandler):\n"
            "    def do_POST(self):\n"
            "        self.rfile.read(int(self.headers.get('content-length',0))); self.send_response(200)\n"
            "        self.send_header('content-length','0'); self.end_headers()\n"
            "    do_GET=do_POST\n"
            "    def log_message(self,*_): pass\n"
            "s=http.server.HTTPServer(('127.0.0.1',0),H); print(s.server_port,flush=True); s.serve_forever()\n"
        )
        self._process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        return f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


@part(
    "neighbour",
    limit=90,
    proves="the individual score of a rank falls when others take its multiprocessors, and not otherwise",
)
def neighbour(context: Context) -> Figures:
    if not context.cuda:
        alone = {"gemm": [10, 10, 10]}
        assert kernel_sources.score(alone, alone) == 1
        assert kernel_sources.score(alone, {"gemm": [20, 20, 20]}) == 0.5
        return {"score's logic": "checked"}
    torch, step, made = training_step(context)
    source = made.get("cupti") or made.get("kineto-cuda")
    if source is None:
        raise CannotRunError("no source of kernel timings can be had here")
    try:
        _, found = kernel_sources.straggler(torch, step, source, rounds=20)
    finally:
        for each in made.values():
            each.close()
    assert found["alone"]["score"] > 0.9, found
    assert found["another stream"]["score"] < found["alone"]["score"] - 0.1, found
    # The driver gives a GPU to one process at a time: kernels take as long as ever, and the step takes longer.
    assert found["another process"]["step ratio"] > 1.3, found
    return {"source": source.name, **found}


@part(
    "nvml",
    limit=30,
    proves="readings, clocks, throttle reasons, ECC and XID counts by NVML are those of nvidia-smi",
)
def nvml(context: Context) -> Figures:
    from rankwatch.profiling import nvml

    devices, found = nvml.Devices(0), None
    for _ in range(20):
        if (found := devices.read()) is not None or not context.cuda:
            break
        time.sleep(0.25)
    if not context.cuda:
        assert found is not None or devices.reason
        return {"without a device": devices.reason}
    require("pynvml")
    assert found is not None, devices.reason
    ours = {metric.name: points for metric, points in found.items()}
    (row, *_) = smi("memory.total,enforced.power.limit,clocks.max.sm,temperature.gpu,memory.used,power.draw,clocks.sm")
    for name, unit, theirs in zip(LIMITS, (1 << 20, 1, 1e6), row[:3], strict=True):
        if name in ours and theirs.replace(".", "").isdigit():
            value = ours[name][0][0]
            assert abs(value - float(theirs) * unit) <= 0.01 * value, (name, value, theirs)
    assert "hw.gpu.memory.usage" in ours, ours
    asked = ("clocks_event_reasons.active", "ecc.errors.uncorrected.volatile.total")
    return {"ours": ours, "nvidia-smi": row, "its reasons and ECC": [smi(each)[0][0] for each in asked],
            "identity": nvml.identity(0)}  # fmt: skip


@part(
    "health", limit=60, proves="CudaHealthCheck passes on a device that works, and raises on one that is busy for ever"
)
def health(context: Context) -> Figures:
    from rankwatch.inprocess.health import CudaHealthCheck, HealthCheckError

    state: Any = None
    torch = require("torch")
    if not context.cuda:
        CudaHealthCheck(1.0)(state)
        return {"without CUDA": "does nothing"}
    torch.zeros(1, device="cuda")
    CudaHealthCheck(10.0)(state)
    torch.cuda._sleep(8 * 2_000_000_000)  # some 8 s
    began = time.monotonic()
    try:
        CudaHealthCheck(1.0)(state)
        raise AssertionError("a busy device passed the check")
    except HealthCheckError as error:
        found = {"seconds": time.monotonic() - began, "message": str(error)}
    torch.cuda.synchronize()
    CudaHealthCheck(10.0)(state)
    return found


@part("rerun", limit=30, proves="the re-run machine identifies the device as nvidia-smi does")
def rerun(context: Context) -> Figures:
    require("torch")
    from rankwatch.rerun import device

    here = device.here()
    if not context.cuda:
        assert here.is_same(device.here())
        return {"device": str(here)}
    assert here.name == smi("uuid")[0][0], (here, smi("uuid"))
    return {"device": here.name}


@part(
    "nccl",
    limit=60,
    proves="NCCL with one rank: its flight recorder is read, by torch's own reader too; collectives are numbered",
)
def nccl(context: Context) -> Figures:
    os.environ |= {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_FR_BUFFER_SIZE": "2000"}
    torch = require("torch")
    import torch.distributed as dist

    from rankwatch.cli.flight_dumps import as_torch_reads

    backend = "nccl" if context.cuda else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        value = torch.ones(4, device=context.device)
        for _ in range(5):
            dist.all_reduce(value)
        if not context.cuda:
            return {"backend": backend}
        torch.cuda.synchronize()
        bindings = torch._C._distributed_c10d
        recorded = json.loads(bindings._dump_nccl_trace_json())
        entries = recorded["entries"]
        assert sum(entry["profiling_name"] == "nccl:all_reduce" for entry in entries) == 5, entries
        (context.folder / "trace_0").write_bytes(pickle.dumps(as_torch_reads(recorded, 1)))
        reader = [
            sys.executable,
            "-m",
            "torch.distributed.flight_recorder.fr_trace",
            str(context.folder),
            "-p",
            "trace_",
        ]
        read = subprocess.run(reader, capture_output=True, text=True, timeout=60, check=False)
        return {
            "backend": backend,
            "entries": len(entries),
            "fields": sorted(entries[-1]),
            "groups": recorded.get("pg_config"),
            "torch's reader": [read.returncode, (read.stdout + read.stderr)[-2000:]],
        }
    finally:
        dist.destroy_process_group()


@part("nccl-ras", limit=60, proves="a real NCCL's RAS is asked in JSON and in text, and both answers are read")
def nccl_ras(context: Context) -> Figures:
    from dataclasses import asdict

    from rankwatch_launcher.stacks import ras, ras_answer
    from support import fake_ras
    from support.ports import free_port

    torch = require("torch")
    import torch.distributed as dist

    port = free_port()
    os.environ |= {"NCCL_RAS_ENABLE": "1", "NCCL_RAS_ADDR": f"localhost:{port}"}
    if not context.cuda:
        fake_ras.serve(lambda in_json: fake_ras.HEALTHY, port=port)
        found = ras.ask([os.getpid()], time.monotonic() + 20)
        assert found is not None
        return {"answer": asdict(found)}
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        value = torch.ones(4, device=context.device)
        for _ in range(5):
            dist.all_reduce(value)
        torch.cuda.synchronize()
        found = ras.ask([os.getpid()], time.monotonic() + 20)
        assert found is not None, "no answer of NCCL's RAS"
        assert found.total >= 1, found
        answers: Figures = {"answer": asdict(found)}
        for name, commands in (("json", "SET FORMAT json\nSTATUS\n"), ("text", "VERBOSE STATUS\n")):
            with socket.create_connection(("localhost", port), timeout=10) as line:
                line.sendall(f"CLIENT PROTOCOL 2\n{commands}".encode())
                raw = b""
                while data := line.recv(1 << 16):
                    raw += data
            answers[name] = raw.decode()[:4000]
        read = ras_answer.report(answers["text"])
        assert read.version == found.version, answers
        return answers
    finally:
        dist.destroy_process_group()


@part("node-check", limit=60, proves="the checks of GPU, memory and NVLink read this node, and pass on one that works")
def node_check(context: Context) -> Figures:
    from dataclasses import asdict

    from rankwatch.contract.node_checks import CheckName, CheckState, sentence
    from rankwatch_launcher.checks.check import CheckedNode
    from rankwatch_launcher.checks.runner import CheckRun

    run = CheckRun()
    asked = (CheckName.GPU, CheckName.GPU_MEMORY, CheckName.NVLINK, CheckName.NETWORK)
    run.begin(asdict(CheckedNode(slots=str(context.folder))), asked)
    results = run.wait()
    failed = [sentence(each) for each in results if each.state is CheckState.FAILED]
    assert not failed, failed
    figures = {str(each.name): f"{each.state}, {each.seconds:.3f} s {dict(each.evidence)}" for each in results}
    if context.cuda:
        states = {each.name: each.state for each in results}
        assert states["gpu"] == states["gpu_memory"] == CheckState.PASSED, figures
    return {**figures, "counters": len(run.counters)}
