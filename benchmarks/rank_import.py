"""P5: what ``import rankwatch`` costs, in fresh interpreters, interleaved with bare ones.

    python benchmarks/rank_import.py [--json FILE] [--runs N]

Shown are the medians and the spread, of the wall clock and of CPU time; the latter holds on a busy machine too. "stdlib
it uses" imports only the standard library modules that rankwatch needs, so the difference to it is Rankwatch's own.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time

PROBE = "import sys; before = set(sys.modules); import rankwatch; print(*(set(sys.modules) - before))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--runs", type=int, default=21)
    arguments = parser.parse_args()

    loaded = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True).stdout.split()
    stdlib = sorted(name for name in loaded if name.partition(".")[0] in sys.stdlib_module_names)
    programs = {
        "bare interpreter": "pass",
        "stdlib it uses": "import " + ", ".join(stdlib),
        "import rankwatch": "import rankwatch",
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    spent: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(arguments.runs):
        for name, program in programs.items():
            wall, cpu = run(program)
            times[name].append(wall)
            spent[name].append(cpu)

    medians = {name: statistics.median(values) for name, values in times.items()}
    used = {name: statistics.median(values) for name, values in spent.items()}
    for name, values in times.items():
        between = f"from {min(values):.1f} to {max(values):.1f}"
        print(f"{name:20}{medians[name]:8.1f} ms   ({between}; CPU time {used[name]:.1f} ms)")
    own = medians["import rankwatch"] - medians["stdlib it uses"]
    whole = medians["import rankwatch"] - medians["bare interpreter"]
    print(f"rankwatch itself: {own:.1f} ms; with the standard library it uses: {whole:.1f} ms")
    own_cpu = used["import rankwatch"] - used["stdlib it uses"]
    whole_cpu = used["import rankwatch"] - used["bare interpreter"]
    print(f"the same in CPU time: {own_cpu:.1f} ms; {whole_cpu:.1f} ms")
    heavy = sorted({name.partition(".")[0] for name in loaded} & {"torch", "numpy", "opentelemetry", "requests"})
    print("heavy packages imported:", ", ".join(heavy) or "none")
    if arguments.json:
        with open(arguments.json, "w") as file:
            figures = {"own_ms": own, "whole_ms": whole, "medians_ms": medians, "heavy": heavy}
            figures |= {"own_cpu_ms": own_cpu, "whole_cpu_ms": whole_cpu, "cpu_medians_ms": used}
            json.dump(
                {"benchmark": "rank_import", "python": platform.python_version(), "figures": figures}, file, indent=2
            )


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
