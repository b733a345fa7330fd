"""Checks of the installed packages: Python, torch and its internals that the launcher uses, NVML, CUPTI."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import rankwatch
from rankwatch.cli.doctor.finding import Finding, fault, ok, warning
from rankwatch.contract.interpreter import own_python

PROBE_SECONDS: Final = 60.0
"""Timeout for importing torch and initialising the driver; both normally take seconds."""
EXTRAS: Final[Mapping[str, tuple[str, str]]] = {
    "monitor": ("fastapi", "a monitor cannot run here; ranks and launchers do not need one on their machine"),
    "wandb": ("wandb", "nothing is published to Weights & Biases from here; only a monitor would"),
}
"""By extra: the package that indicates it, and what is missing without it."""

Answers = Mapping[str, Any]


def checks(answers: Answers | None = None) -> Iterator[Finding]:
    """Check the packages; ``answers`` are the results of :mod:`rankwatch.cli.doctor.probe`, by default run now."""
    yield ok("rankwatch", f"{rankwatch.__version__} on Python {platform.python_version()}")
    answers = probe() if answers is None else answers
    yield from torch(answers)
    yield from devices(answers)
    yield from page()
    yield from extras()


def probe() -> dict[str, Any]:
    """Results of the probe process by name; ``died`` has the reason if it did not complete."""
    command = own_python("-m", "rankwatch.cli.doctor.probe")
    answers: dict[str, Any] = {}
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROBE_SECONDS, check=False, env=_bare(os.environ))
        out = done.stdout
        if done.returncode:
            last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
            answers["died"] = f"the process that imports torch ended with code {done.returncode}: {last[:300]}"
    except subprocess.TimeoutExpired as error:
        out = error.stdout or b""
        answers["died"] = f"importing torch and querying the devices timed out after {PROBE_SECONDS:.0f} s"
    except OSError as error:
        return {"died": f"the probe process did not start: {error}"}
    for line in out.splitlines():
        try:
            answers |= json.loads(line)
        except (ValueError, TypeError):
            continue  # a package that prints while it is imported
    return answers


def torch(answers: Answers) -> Iterator[Finding]:
    """torch and what the launcher needs of it."""
    if "torch" not in answers:
        if "died" in answers and "torch_missing" not in answers:
            yield fault(
                "torch", str(answers["died"]), "try it: python -c 'import torch'; `nvidia-smi` if there is a GPU"
            )
        else:
            mend = "pip install 'rankwatch[torch]' where ranks run; a monitor needs none"
            yield warning("torch", "it is not installed: no rank can run here", mend)
        return
    seams = answers.get("launcher", {})
    if "launcher" not in answers:
        yield fault(
            "torch", f"{answers['torch']}; {answers.get('died', 'the launcher did not answer')}", "install it again"
        )
    elif seams["complaint"]:
        words = f"{seams['complaint']}: 'rankwatch run' does no more than torchrun"
        yield warning("torch", words, "install torch 2.13: pip install 'rankwatch[torch]'")
    else:
        if seams["untested"]:
            yield warning("torch", seams["untested"], "'rankwatch run' works as far as torch's names are the same")
        else:
            yield ok("torch", f"{answers['torch']}, which the launcher supports")
        for feature in seams["missing"]:
            yield warning("torch", f"{answers['torch']}: {feature}", "everything else works; torch 2.13 has it")
    if "control_plane" not in answers:
        return
    if answers["control_plane"]:
        words = f"{answers['control_plane']}: a rank that has not entered a collective cannot be identified"
        yield warning("control plane", words, "install a torch that the launcher supports")
    else:
        yield ok("control plane", "torch reports the progress of each process group")


def devices(answers: Answers) -> Iterator[Finding]:
    """NVML and kernel timings."""
    if not answers.get("driver"):
        yield ok("nvml", "this machine shows no NVIDIA GPU: no device is read")
    elif answers.get("nvml", {}).get("reason") or "nvml" not in answers:
        reason = answers.get("nvml", {}).get("reason") or answers.get("died", "no response")
        yield warning("nvml", str(reason), "pip install 'rankwatch[gpu]'; does `nvidia-smi` work here?")
    else:
        yield ok("nvml", f"reads {answers['nvml']['metrics']} metrics of the first GPU")
    kernels = answers.get("kernels")
    if kernels is None:
        if "torch" in answers:
            words = str(answers.get("died", "no source answered"))
            yield warning("kernel timings", words, "set RANKWATCH_KERNEL_TIMINGS=off if training stops at it, too")
    elif kernels["source"] is None:
        yield warning("kernel timings", f"none: {kernels['reason']}", "pip install 'rankwatch[gpu]'")
    else:
        yield ok(
            "kernel timings", f"from {kernels['source']}" + (f": {kernels['reason']}" if kernels["reason"] else "")
        )


WEB_PARTS: Final = (
    ("page", "static", "serves its API only", "make web"),
    ("manual", "manual", "answers 404 at /manual", "make docs"),
)
"""Built parts of the monitor: name, folder, what a monitor without it does, what builds it."""


def page() -> Iterator[Finding]:
    """The web page and the manual of monitors that are started here."""
    spec = find_spec("rankwatch_monitor.web") if find_spec("fastapi") and find_spec("rankwatch_monitor") else None
    if spec is None or spec.origin is None:
        return  # no monitor can run here
    for name, folder, without, command in WEB_PARTS:
        if is_built(Path(spec.origin).with_name(folder)):
            yield ok(name, "it is installed with the monitor")
        else:
            words = f"this installation has none: a monitor that is started here {without}"
            yield warning(name, words, f"install a wheel of Rankwatch, or run '{command}' in the repository")


def is_built(folder: Path) -> bool:
    """Whether a built part of the monitor is in the folder."""
    return (folder / "index.html").is_file()


def extras() -> Iterator[Finding]:
    """Optional packages; their absence is no fault."""
    for extra, (package, without) in EXTRAS.items():
        name, installed = f"extra {extra}", _version(package)
        if installed:
            yield ok(name, f"{package} {installed}")
        else:
            words = f"{package} is not installed: {without}"
            yield ok(name, words, f"if you want it: pip install 'rankwatch[{extra}]'")
    where = shutil.which("promtool")
    yield ok("promtool", f"{where}" if where else "not installed; only needed to change alert rules")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _bare(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables of a rank."""
    ours = ("RANKWATCH_INJECT", "RANKWATCH_SLOTS_DIR", "TORCH_LOGS")
    return {name: value for name, value in variables.items() if name not in ours}
