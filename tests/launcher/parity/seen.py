"""Plays a scene with one launcher, and what can be seen of it: from the caller, in the ranks, on the disk."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from launcher.conftest import SOURCES, wait_for
from launcher.parity.scenes import Scene
from support.forked import ForkedPopen
from support.ports import free_port
from support.processes import MARK, end_marked, marked, without

HERE: Final = Path(__file__).parent
RANKWATCH: Final = "import sys; from rankwatch_launcher.cli.main import run; sys.exit(run(sys.argv[1:]))"
TORCHRUN: Final = "import sys; from torch.distributed.run import main; sys.exit(main())"
PATIENCE: Final = 120.0
EVENT: Final = re.compile(r'"name": "torchelastic\.worker\.status\.(\w+)"')
PRINTED: Final = re.compile(r"(?:std(?:out|err) of \d|sum [\d.]+)$")

Seen = dict[str, Any]
"""What is compared, by its name in the table of differences."""


def play(scene: Scene, ours: bool, folder: Path, url: str) -> Seen:
    """Run the scene's launchers and return what was seen. Nothing is left running."""
    out, mark = folder / ("rankwatch" if ours else "torchrun"), f"{folder}-{ours}"
    out.mkdir()
    places = {"here": str(HERE), "out": str(out), "port": str(free_port())}
    env = without(("RANKWATCH_", "PET_", "SLURM_", "TORCHELASTIC", "CUDA_VISIBLE")) | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, SOURCES)),
        "XDG_STATE_HOME": str(out),
        "SCENE_OUT": str(out),
        "SCENE_HOW": scene.how,
        MARK: mark,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    env |= {name: value.format(**places) for name, value in scene.env.items()}
    env = {name: value for name, value in env.items() if value or name == "SCENE_HOW"}
    flags = [["--monitor", url, "--job-id", scene.name, "--no-standby"] if ours else []]
    processes = []
    try:
        for i, more in enumerate(scene.nodes):
            words = shlex.split(f"{scene.flags} {more} {scene.script}".format(**places))
            with (out / f"stdout{i}").open("wb") as stdout, (out / f"stderr{i}").open("wb") as stderr:
                command = [sys.executable, "-c", RANKWATCH if ours else TORCHRUN, *flags[0], *words]
                where = scene.folder.format(**places) or str(out)
                processes.append(
                    ForkedPopen(command, cwd=where, env=env, stdout=stdout, stderr=stderr, start_new_session=True)
                )
        if scene.signal is not None:
            wait_for(lambda: len(list(out.glob("ready-*"))) == 2, PATIENCE)
            processes[0].send_signal(scene.signal)
        codes = [_wait(process) for process in processes]
        wait_for(lambda: not marked(mark), 30.0, fail=False)
    finally:
        end_marked(mark)
        for process in processes:
            process.kill()
            process.wait()
    return _seen(scene, out, codes)


def _wait(process: subprocess.Popen[Any]) -> int:
    try:
        return process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        return -int(signal.SIGKILL)


def _seen(scene: Scene, out: Path, codes: list[int]) -> Seen:
    saw = {path.stem.removeprefix("saw-"): json.loads(path.read_text()) for path in sorted(out.glob("saw-*.json"))}
    text = {kind: [(out / f"{kind}{i}").read_text() for i in range(len(codes))] for kind in ("stdout", "stderr")}
    several = len(codes) > 1
    found: Seen = {
        "exit code": ", ".join(map(str, dict.fromkeys(codes))),
        "ranks": sorted(name.split("-", 1)[1] if several else name for name in saw),
        "stdout": _printed(text["stdout"]),
        "stderr": _printed(text["stderr"]),
        "files": sorted(path.name for path in out.glob("touched-*")),
        "signals": sorted(path.name for path in out.glob("got-*")),
        "log files": _logs(out),
        "events": sorted(set(EVENT.findall("".join(text["stderr"] + text["stdout"])))),
    }
    error = out / "error.json"
    found["error file"] = json.loads(error.read_text())["message"]["message"] if error.exists() else ""
    seen = [json.loads(_placed(json.dumps(each), out)) for each in saw.values()]
    for each in seen:
        each["path"] = "script" if each["path"] == "HERE" else "launcher"
        if "--multiprocessing-fork" in each["command"]:  # torch's own process, whose other arguments are descriptors
            each["command"] = ["--multiprocessing-fork"]
    variables = [each.pop("environment") for each in seen]
    found["environment"] = _counted([{k: v for k, v in each.items() if k != MARK} for each in variables])
    for part in sorted({part for each in seen for part in each}):
        found[part] = _counted([{"": each[part]} for each in seen])
    return found


def _placed(text: str, out: Path) -> str:
    return text.replace(str(out), "OUT").replace(str(HERE / "rank.py"), "RANK").replace(str(HERE), "HERE")


def _counted(values: list[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Each name's values over the ranks.

    Which node has which number is not the launcher's promise, nor, where nodes differ in size, how many ranks have it.
    """
    found: dict[str, Collection[str]] = {}
    for name in {name for each in values for name in each}:
        shown = [json.dumps(each.get(name)) for each in values]
        found[name] = set(shown) if name == "GROUP_RANK" else shown
    return {name: sorted(shown) for name, shown in found.items()}


def _printed(texts: list[str]) -> list[str]:
    lines = Counter(line for text in texts for line in text.splitlines() if PRINTED.search(line))
    return sorted(lines.elements())


def _logs(out: Path) -> list[str]:
    """The files below the folder of a launch, whose name is made up, with their sizes where ranks wrote them."""
    files = [path for path in (out / "logs").rglob("*") if path.is_file()]
    found = []
    for path in files:
        size = "" if path.name == "error.json" else f" {path.stat().st_size}"
        found.append("/".join(path.relative_to(out / "logs").parts[1:]) + size)
    return sorted(found)
