"""Runs a smoke subset of the tests with other versions of Python and torch, and writes the table of docs/torch.md.

``python scripts/matrix.py 3.11:2.6.0 3.12:2.11.0`` gives each pair an environment of its own below build/matrix, with
torch but without the CUDA libraries that its wheel may ask for (see cuda_stand_ins.py), and runs :data:`SMOKE` in it:
real ranks over gloo on the CPU, healthy, crashing, hanging, preempted. Without pairs, those of the table are run again.
``--write`` puts each result into the table; a pair that is not run keeps its line. The exit code is 1 where a test
failed and 75 where nothing could be tested, because torch cannot be downloaded.

The interpreter of a version is ``pythonX.Y`` on the path, or one that pyenv has, or ``--python 3.14=/path/to/python``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cuda_stand_ins import compile_stand_ins

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "torch.md"
FOLDER: Final = ROOT / "build" / "matrix"
LIMIT: Final = 600
"""Seconds for one pair, download included."""
DOWNLOAD_LIMIT: Final = 240
"""Seconds to install torch and what it requires."""
UNAVAILABLE: Final = os.EX_TEMPFAIL
TOOLS: Final = ("pytest", "pytest-timeout", "httpx", "requests")
RUNS: Final = "tests/launcher/test_runs.py::test_"
HANGS: Final = "tests/e2e/test_hangs.py::test_a_"
SMOKE: Final = {
    "healthy": (f"{RUNS}a_clean_run_ends_with_zero_and_is_reported", f"{HANGS}healthy_job_raises_nothing"),
    "crash": (
        f"{RUNS}a_crash_is_restarted_and_named",
        "tests/e2e/test_crashes.py::test_a_crash_is_named_and_restarted",
    ),
    "hang": (
        f"{RUNS}an_order_to_restart_takes_evidence_first",
        f"{HANGS}rank_that_hangs_is_found_named_and_restarted",
    ),
    "signal": (f"{RUNS}save_and_stop_agrees_on_a_step", f"{RUNS}a_signal_to_the_launcher_ends_the_ranks"),
    "names": ("tests/launcher/test_torch_compat.py", "tests/launcher/cli/test_torch_seams.py"),
}
"""By the name in the table, the tests that it stands for."""
BEGIN: Final = "<!-- written by scripts/matrix.py -->"
END: Final = "<!-- end -->"
COLUMNS: Final = ("Python", "torch", ", ".join(SMOKE), "off in this version", "run on")
OUTSIDE: Final = re.compile(r"(nvidia|triton|cuda)")
"""Requirements of torch that are left out."""


@dataclass
class Result:
    """What came of one pair."""

    python: str
    torch: str
    outcomes: dict[str, str] = field(default_factory=dict)
    """By the name in the table: yes, or how many tests failed."""
    off: str = ""
    error: str = ""
    unavailable: bool = False
    """Torch could not be installed: says nothing about Rankwatch."""

    @property
    def passed(self) -> bool:
        """Whether everything ran, and nothing failed."""
        return not self.error and set(self.outcomes.values()) == {"yes"}

    def line(self, day: str) -> str:
        """Its line of the table."""
        failed = [f"{name}: {self.outcomes.get(name, 'not run')}" for name in SMOKE if self.outcomes.get(name) != "yes"]
        return f"| {' | '.join([self.python, self.torch, ', '.join(failed) or 'yes', self.error or self.off, day])} |"


class UnavailableError(Exception):
    """Torch, or what it requires, could not be installed."""


class Pair:
    """One version of Python with one of torch, in an environment of its own."""

    def __init__(self, python: str, torch: str, folder: Path) -> None:
        self.python, self.torch = python, torch
        self.folder = folder / f"{python}-{torch}"
        self.bin = self.folder / "bin"
        self._until = time.monotonic() + LIMIT

    def run(self, interpreter: Sequence[str], pip_arguments: Sequence[str]) -> Result:
        """Set the environment up, unless it is there, and run the tests."""
        result = Result(self.python, self.torch)
        try:
            if not (self.folder / "ready").exists():
                self._install(interpreter, pip_arguments)
            result.off = self._off()
            result.outcomes = self._test()
        except UnavailableError as error:
            result.error, result.unavailable = str(error), True
        except subprocess.TimeoutExpired:
            result.error = f"did not end within {LIMIT} s"
        except (subprocess.CalledProcessError, OSError) as error:
            result.error = str(error).splitlines()[0][:200].replace(str(ROOT), "").replace("|", "/")
        return result

    def _install(self, interpreter: Sequence[str], pip_arguments: Sequence[str]) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._run([*interpreter, "-m", "venv", self.folder])
        pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--prefer-binary")
        self._install_torch(pip, pip_arguments)
        constraints = ("--constraint", str(ROOT / "constraints.txt"))
        self._call(*pip, *pip_arguments, *constraints, "--editable", f"{ROOT}[monitor]", *TOOLS)
        where = self._call("-c", "import sysconfig; print(sysconfig.get_path('platlib'))", capture=True)
        compile_stand_ins(Path(where.strip()))
        (self.folder / "ready").touch()

    def _install_torch(self, pip: Sequence[str], pip_arguments: Sequence[str]) -> None:
        until, self._until = self._until, min(self._until, time.monotonic() + DOWNLOAD_LIMIT)
        try:
            self._call(*pip, *pip_arguments, "--no-deps", "--only-binary=:all:", f"torch=={self.torch}")
            query = "import importlib.metadata as m; print(*m.requires('torch'), sep='\\n')"
            asked = self._call("-c", query, capture=True)
            needed = [line for line in asked.splitlines() if "extra ==" not in line and not OUTSIDE.match(line)]
            self._call(*pip, *pip_arguments, *needed, "numpy")
        except subprocess.CalledProcessError as error:
            raise UnavailableError(f"torch {self.torch} could not be installed: see above") from error
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(f"torch {self.torch} was not installed within {DOWNLOAD_LIMIT} s") from error
        self._until = until

    def _off(self) -> str:
        """What `rankwatch doctor` finds missing in this torch."""
        found: dict[str, Any] = {}
        for line in self._call("-m", "rankwatch.cli.doctor.probe", capture=True).splitlines():
            found |= json.loads(line)
        missing = [f"all: {found['launcher']['complaint']}"] if found["launcher"]["complaint"] else []
        missing += found["launcher"]["missing"]
        missing += ["no numbers of gloo's collectives"] if found["control_plane"] else []
        return "; ".join(missing)

    def _test(self) -> dict[str, str]:
        report = self.folder / "tests.xml"
        report.unlink(missing_ok=True)
        names = [name for part in SMOKE.values() for name in part]
        self._call("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", *names, check=False)
        if not report.exists():
            raise OSError("pytest wrote no report")
        cases = [(_path(case), _failed(case)) for case in ElementTree.parse(report).iter("testcase")]
        return {part: _outcome(cases, of) for part, of in SMOKE.items()}

    def _call(self, *arguments: str, capture: bool = False, check: bool = True) -> str:
        return self._run([self.bin / "python", *arguments], capture=capture, check=check)

    def _run(self, command: Sequence[str | Path], *, capture: bool = False, check: bool = True) -> str:
        """In a session of its own, so that nothing is left of a command that takes too long."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RANKWATCH"))
        }
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if capture else None,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=max(self._until - time.monotonic(), 1.0))
            except BaseException:
                os.killpg(process.pid, signal.SIGTERM)  # pytest ends what its tests started
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        if check and process.returncode != 0:
            raise subprocess.CalledProcessError(process.returncode, [str(word) for word in command][:6])
        return output or ""


def _path(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"


def _failed(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    return "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else ""


def _outcome(cases: Iterable[tuple[str, str]], names: Sequence[str]) -> str:
    found = [failed for path, failed in cases if path.startswith(tuple(names))]
    bad = [failed for failed in found if failed]
    return "not run" if not found else "yes" if not bad else f"{len(bad)} of {len(found)} {bad[0]}"


def interpreter_of(version: str, given: dict[str, str]) -> str | None:
    """A Python of that version which can make environments; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = [given.get(version), sys.executable, shutil.which(f"python{version}")]
    found += [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]
    check = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, found):
        done = subprocess.run([candidate, "-c", check], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return candidate
    return None


def table_with(text: str, results: Iterable[Result], day: str) -> str:
    """The page with the lines of these pairs; others keep theirs. Sorted by torch, then Python."""
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    lines = {pair: line for line in old.splitlines() if (pair := _pair_of(line))}
    lines |= {(result.python, result.torch): result.line(day) for result in results}
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    ordered = sorted(lines, key=lambda pair: (_numbers(pair[1]), _numbers(pair[0])))
    body = "".join(lines[pair] + "\n" for pair in ordered)
    return f"{before}{BEGIN}\n\n{head}{body}\n{END}{after}"


def pairs_of(text: str) -> list[tuple[str, str]]:
    """The pairs (Python, torch) of the page's table."""
    return [pair for line in text.splitlines() if (pair := _pair_of(line))]


def _pair_of(line: str) -> tuple[str, str] | None:
    found = re.match(r"\| (\d+\.\d+) \| (\d+\.\d+\.\d+) \|", line)
    return (found[1], found[2]) if found else None


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the pairs; 1 if one failed, else 75 if the torch of one could not be installed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pairs", nargs="*", metavar="PYTHON:TORCH", help="such as 3.12:2.11.0")
    parser.add_argument(
        "--python", action="append", default=[], metavar="X.Y=PATH", help="where a version of Python is"
    )
    parser.add_argument("--pip-args", default="", help="more words for pip install: another index, for instance")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the environments are kept")
    parser.add_argument("--first", action="store_true", help="run only the first pair whose Python is here")
    parser.add_argument("--write", action="store_true", help="put the results into docs/torch.md")
    given = parser.parse_args(argv)
    # A shell starts background jobs with SIGINT ignored, ranks would inherit it, and a test sends it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    named = [tuple(pair.split(":", 1)) for pair in given.pairs]
    results = []
    for python, torch in named or pairs_of(PAGE.read_text()):
        print(f"== Python {python}, torch {torch}", flush=True)
        interpreter = interpreter_of(python, dict(each.split("=", 1) for each in given.python))
        begin = time.monotonic()
        if interpreter is None:
            print(f"no Python {python} here: not run", flush=True)
            continue
        result = Pair(python, torch, given.folder).run([interpreter], given.pip_args.split())
        print(f"{result.line('')}  {time.monotonic() - begin:.0f} s", flush=True)
        results.append(result)
        if given.write:
            PAGE.write_text(table_with(PAGE.read_text(), [result], f"{datetime.now(UTC):%Y-%m-%d}"))
        if given.first:
            break
    if results and all(result.passed or result.unavailable for result in results):
        return UNAVAILABLE if any(result.unavailable for result in results) else 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
