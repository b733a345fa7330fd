"""P5: what ``import rankwatch`` costs, in fresh interpreters, interleaved with bare ones.

    python benchmarks/rank_import.py [--json FILE] [--runs N]

Shown are the medians and the spread, of the wall clock and of CPU time; the latter holds on a busy machine too. "stdlib
it uses" imports only the standard library modules that rankwatch needs, so the difference to it is Rankwatch's own.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time

import _table

PROBE = "import sys; before = set(sys.modules); import rankwatch; print(*(set(sys.modules) - before))"


def main() -> None:
    asked = _table.arguments(__doc__, runs=(21, "interpreters of each kind"))
    loaded = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True).stdout.split()
    stdlib = sorted(name for name in loaded if name.partition(".")[0] in sys.stdlib_module_names)
    programs = {
        "bare interpreter": "pass",
        "stdlib it uses": "import " + ", ".join(stdlib),
        "import rankwatch": "import rankwatch",
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    spent: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(asked.runs):
        for name, program in programs.items():
            wall, cpu = run(program)
            times[name].append(wall)
            spent[name].append(cpu)

    rows = {
        name: {
            "p50": statistics.median(times[name]),
            "min": min(times[name]),
            "max": max(times[name]),
            "CPU": statistics.median(spent[name]),
        }
        for name in programs
    }
    for name, base in (("rankwatch itself", "stdlib it uses"), ("with stdlib", "bare interpreter")):
        rows[name] = {what: rows["import rankwatch"][what] - rows[base][what] for what in ("p50", "CPU")}
    heavy = sorted({name.partition(".")[0] for name in loaded} & {"torch", "numpy", "opentelemetry", "requests"})
    _table.report(rows, "ms", asked.json, heavy=heavy)
    print("heavy packages imported:", ", ".join(heavy) or "none")


def run(program: str) -> tuple[float, float]:
    """Milliseconds of the wall clock and of CPU time that an interpreter takes for a program.

    Raises:
        SystemExit: the program fails.
    """
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    code = subprocess.run([sys.executable, "-c", program], check=False).returncode
    wall, after = (time.perf_counter() - begin) * 1e3, resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        sys.exit(f"`{program}` failed in a fresh interpreter (exit code {code}): is Rankwatch installed?")
    return wall, (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1e3


if __name__ == "__main__":
    main()
