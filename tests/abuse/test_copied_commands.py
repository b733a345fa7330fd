"""Commands that are printed for copying, about names that another user chose: a shell executes nothing of them."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from rankwatch.cli.status import render
from rankwatch.cli.terminal import Terminal
from rankwatch.contract.text import operands
from rankwatch_monitor.core.views import host_commands

NAMES: Final = (
    "-oProxyCommand=touch ran",
    "--kubeconfig=/shared/evil",
    "$(touch ran)",
    "a; touch ran",
    "`touch ran`",
    "a",
)
KUBERNETES: Final = {"scheduler": "kubernetes"}
MADE: Final[dict[str, Callable[[str], str]]] = {
    "launchers": lambda name: host_commands.still_runs({}, name, 7),
    "processes": lambda name: host_commands.processes([7], name),
    "ping": lambda name: host_commands.reach(name),
    "node of kubernetes": lambda name: host_commands.drain({"kubernetes_node": name}, "slow"),
    "pods": lambda name: host_commands.still_runs({**KUBERNETES, "kubernetes_pod": name}, "h", 7),
    "log of a pod": lambda name: host_commands.log({**KUBERNETES, "kubernetes_pod": name}),
    "monitor": lambda name: host_commands.reaches_monitor({"monitor": name}),
    "log": host_commands.tail_of,
    "incident": lambda name: details(name),
}


def details(job: str) -> str:
    incident: Any = {"id": f"{job}-1", "job_id": job}
    return " ".join(line.strip() for line in render.details_line(incident, Terminal(1_000))).partition(": ")[2]


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_one_word_and_no_option(name: str, made: Callable[[str], str], tmp_path: Path) -> None:
    command = made(name)
    words = shlex.split(command)
    place = next(at for at, word in enumerate(words) if word.startswith(name))
    if name.startswith("-"):
        assert "--" in words[:place]
    stand_in = tmp_path / "bin"
    stand_in.mkdir()
    for program in ("ssh", "ping", "kubectl", "curl", "tail", "rankwatch"):
        (stand_in / program).symlink_to("/bin/true")
    subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, env={"PATH": f"{stand_in}:/usr/bin:/bin"}, timeout=60)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["ALL", "all", "n[1-900]", "n1,n2", "n1 state=down", "n1\n", ""])
def test_no_more_than_one_node_of_slurm_is_drained(name: str) -> None:
    assert host_commands.drain({"slurm_node": name}, "slow") == ""
    assert "nodename=n1 " in host_commands.drain({"slurm_node": "n1"}, "slow")


def test_usual_words_stay_as_they_are() -> None:
    assert operands("job-1", "2") == "job-1 2"
    assert operands("-x", "a b") == "-- -x 'a b'"
