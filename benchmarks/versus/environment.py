"""An environment of its own for nvidia-resiliency-ext, which brings other versions of what Rankwatch uses.

Made once with the standard ``venv`` and pip as configured on this machine, or taken when there is one. Both sides must
run the same build of torch, or the figures would compare two builds of torch.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

NVRX: Final = "nvidia-resiliency-ext"
NVRX_VERSION: Final = "0.4.1"
NOT_DECLARED: Final = ("numpy", "pynvml", "nvidia-ml-py", "pyyaml", "defusedxml", "packaging", "psutil")
"""What it imports and does not declare, so pip must be given it."""
INSTALL_SECONDS: Final = 1800
LEFT_OUT: Final = "none"
TORCH: Final = "import torch; print(torch.__version__)"
"""torch reports its build what the package's metadata may leave out."""
ASK: Final = (
    f"{TORCH}; from importlib.metadata import version; print(version({NVRX!r})); "
    "import nvidia_resiliency_ext.fault_tolerance"
)


@dataclass(frozen=True)
class Peer:
    """The other side: its environment, or in words why there is none."""

    python: Path | None
    words: str

    @property
    def launcher(self) -> str:
        """Its launcher; empty where there is none."""
        return "" if self.python is None else str(self.python.with_name("ft_launcher"))


def peer(asked: str, folder: Path, pip_words: list[str]) -> Peer:
    """The environment at ``asked``; one is made there, or in ``folder`` when nothing was asked for.

    ``pip_words`` are further words for ``pip install``, another index for instance.
    """
    if asked == LEFT_OUT:
        return Peer(None, f"{NVRX} was left out (--nvrx {LEFT_OUT})")
    place = Path(asked).absolute() if asked else folder / "nvrx"
    python = place / "bin" / "python"
    if not python.exists():
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            return Peer(
                None, f"{place} is no virtual environment, and not an empty place to make one: name another one"
            )
        if problem := _make(place, pip_words):
            return Peer(None, problem)
    return _checked(python)


def _make(place: Path, pip_words: list[str]) -> str:
    """Make it; in words why that did not work, or nothing."""
    torch = version("torch").partition("+")[0]
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pip_words]
    commands = (
        [sys.executable, "-m", "venv", str(place)],
        [*pip, f"torch=={torch}", f"{NVRX}=={NVRX_VERSION}"],
        [*pip, *NOT_DECLARED],
    )
    for command in commands:
        sys.stderr.write(f"$ {' '.join(command)}\n")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return f"{NVRX} was not installed within {INSTALL_SECONDS} s: make its environment by hand and name it"
        if done.returncode:
            printed = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            return (
                f"{NVRX} {NVRX_VERSION} cannot be installed here ({printed}): "
                "say where pip finds it with --pip, or name an environment that has it with --nvrx"
            )
    return ""


def _checked(python: Path) -> Peer:
    """The environment, if it has what is compared and the torch that is used here."""
    done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        printed = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return Peer(None, f"{python} cannot import {NVRX} ({printed}): name another environment with --nvrx")
    torch, nvrx = done.stdout.split()
    ours = subprocess.run([sys.executable, "-c", TORCH], capture_output=True, text=True, check=True).stdout.strip()
    if torch != ours:
        return Peer(None, f"{python} has torch {torch}, and this one {ours}: make both the same build, or use --pip")
    return Peer(python, f"{NVRX} {nvrx}, torch {torch}")
