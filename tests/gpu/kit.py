"""Runs the parts of the GPU kit one after the other, each in a process of its own unless dry: ``scripts/gpu.sh``.

    scripts/gpu.sh [--dry-run [--jobs]] [--only NAME,...] [--report FOLDER] [--budget SECONDS]

A part that fails, crashes or takes too long leaves the others alone. Everything that a part started is ended with it.
The device's settings are read and never changed. ``gpu-report.json`` and ``gpu-report.md`` in the folder are written
again after each part, so that an interrupted run leaves what it has. The exit code is 1 if a part failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import uuid4

from gpu import devices, jobs
from gpu.part import PARTS, CannotRunError, Context
from support.processes import end_marked

assert devices  # imported for the parts that they register
assert jobs
MARK = "RW_GPU_KIT"
BUDGET = 520.0
"""Seconds for all parts: the whole command stays below nine minutes."""
SHOWN = ("torch", "rankwatch", "opentelemetry-sdk", "cupti-python", "nvidia-ml-py", "py-spy", "fastapi", "protobuf")


def child(names: list[str], asked: argparse.Namespace, folder: Path) -> None:
    """Run parts in this process and write what came of each."""
    for name in names:
        began = time.monotonic()
        context = Context(not asked.dry_run, folder / name, asked.jobs)
        context.folder.mkdir()
        try:
            figures = PARTS[name].run(context)
            # Without a device only the kit was checked.
            found: dict[str, Any] = {"status": "passed" if context.cuda else "checked", "figures": figures}
        except CannotRunError as error:
            found = {"status": "cannot run", "reason": str(error)}
        except BaseException as error:  # noqa: BLE001 - whatever a part raises is its result
            found = {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
            found["traceback"] = traceback.format_exc()[-6000:]
        found["seconds"] = round(time.monotonic() - began, 1)
        (folder / f"{name}.json").write_text(json.dumps(found, default=str))
    sys.stdout.flush()
    os._exit(0)  # a broken CUDA context can hang the interpreter's end


def run(names: list[str], asked: argparse.Namespace, folder: Path, left: float) -> dict[str, dict[str, Any]]:
    """Run parts in one process and session, for their limits and what is left of the budget at most."""
    began, limit = time.monotonic(), min(sum(PARTS[name].limit for name in names), left)
    if limit < 5:
        return {
            name: {"status": "cannot run", "reason": "the kit's time was used up", "seconds": 0.0} for name in names
        }
    mark, log = uuid4().hex, folder / f"{names[0]}.log"
    command = [sys.executable, "-m", "gpu.kit", "--child", str(folder), "--only", ",".join(names)]
    command += ["--dry-run"] * asked.dry_run + ["--jobs"] * asked.jobs
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env=os.environ | {MARK: mark},
        )  # fmt: skip
        try:
            process.wait(limit)
            ending = f"its process ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            ending = f"it took more than {limit:.0f} s"
        finally:
            process.kill()
            process.wait()
            end_marked(mark, MARK)
    seconds, results = round(time.monotonic() - began, 1), {}
    for name in names:
        try:
            found = json.loads((folder / f"{name}.json").read_text())
        except (OSError, ValueError):
            found = {"status": "failed", "reason": ending, "seconds": seconds}
        if found["status"] == "failed":
            found["said"] = log.read_text(errors="replace")[-3000:]
        results[name] = found
    return results


def versions() -> dict[str, str]:
    """What is installed of what matters."""
    found = {"python": platform.python_version()}
    for name in SHOWN:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [
        f"# GPU kit, {report['date']}{' (dry run on the CPU)' if report['dry run'] else ''}",
        "",
        f"Device: {report['device']}. "
        + ", ".join(f"{name} {version}" for name, version in report["versions"].items()),
        "",
        "| part | status | s | figures or reason |",
        "|---|---|---|---|",
    ]
    for name, found in report["parts"].items():
        detail = json.dumps(found["figures"]) if "figures" in found else found["reason"]
        if found["status"] not in ("passed", "checked"):
            detail += f" — it would have proved: {PARTS[name].proves}"
        detail = detail.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {name} | {found['status']} | {found['seconds']} | {detail[:1500]} |")
    if report["dry run"]:
        lines += [
            "",
            "What only a device proves:",
            "",
            *(f"- {name}: {PARTS[name].proves}" for name in report["parts"]),
        ]
    return "\n".join(lines) + "\n"


def device() -> str:
    """The GPU in words."""
    try:
        (row, *_) = devices.smi("name,driver_version,memory.total")
        return ", ".join(row)
    except (CannotRunError, subprocess.SubprocessError, ValueError) as error:
        return f"none ({error})"


def main() -> int:
    """Run what was asked for; the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/gpu.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="run what each part can do on the CPU")
    parser.add_argument("--jobs", action="store_true", help="in a dry run, run the training jobs too, on the CPU")
    parser.add_argument("--only", default=",".join(PARTS), help="names of parts, separated by commas")
    parser.add_argument("--report", type=Path, default=Path("runs/gpu"), help="folder of the report")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds for all parts")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    names = asked.only.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if asked.child:
        child(names, asked, asked.child)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    asked.report.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + asked.budget
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "dry run": asked.dry_run,
        "device": device(),
        "versions": versions(),
        "parts": {},
    }
    with tempfile.TemporaryDirectory(prefix="rw-gpu-") as folder:
        # A dry run checks the kit, not torch: one process, which imports it once.
        for group in [names] if asked.dry_run and not asked.jobs else [[name] for name in names]:
            for name, found in run(group, asked, Path(folder), end - time.monotonic()).items():
                report["parts"][name] = {**found, "proves": PARTS[name].proves}
                reason = found.get("reason", "")[:300]
                print(f"{name:<20} {found['status']:<10} {found['seconds']:>6} s  {reason}", flush=True)
                if found["status"] == "failed":
                    print(found.get("traceback", ""), found.get("said", ""), flush=True)
            (asked.report / "gpu-report.json").write_text(json.dumps(report, indent=2) + "\n")
            (asked.report / "gpu-report.md").write_text(markdown(report))
    print((asked.report / "gpu-report.md").read_text())
    return int(any(found["status"] == "failed" for found in report["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
