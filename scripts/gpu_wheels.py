"""Fetches the wheels that scripts/gpu.sh installs on a machine without a network: python scripts/gpu_wheels.py

They are for CPython 3.12 on x86-64 manylinux, in the versions of constraints.txt, and lie in wheels/, which git
ignores. Checked: a wheel for each name, of one version; everything that a wheel requires is among them or part of
PRESENT; at most 60 MiB in all.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "wheels"
LIMIT = 60 << 20
"""Bytes of all wheels."""
PRESENT = {"torch", "numpy", "cuda-pathfinder", "nvidia-cuda-cupti"}
"""What the machine has."""
NAMES = (
    "opentelemetry-api", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-common", "opentelemetry-proto",
    "opentelemetry-semantic-conventions", "googleapis-common-protos", "protobuf", "fastapi", "starlette", "uvicorn",
    "pydantic", "pydantic-core", "annotated-types", "annotated-doc", "typing-inspection", "typing-extensions", "anyio",
    "idna", "h11", "httpx", "httpcore", "certifi", "click", "sqlalchemy",
    "alembic", "mako", "markupsafe", "zstandard", "prometheus-client", "py-spy", "nvidia-ml-py",
    "cupti-python", "cuda-bindings",
)  # fmt: skip
PINNED = {"cupti-python": "13.0.*", "cuda-bindings": "13.0.*"}
"""What constraints.txt has not: CUPTI of the CUDA version that torch brings there."""
DEFAULT_ENVIRONMENT = {"python_version": "3.12", "python_full_version": "3.12.3", "extra": "", "sys_platform": "linux"}
DEFAULT_ENVIRONMENT |= {"platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"}
DEFAULT_ENVIRONMENT |= {"implementation_name": "cpython", "platform_python_implementation": "CPython"}
GLIBC = (5, 12, 17, 24, 27, 28, 31, 34)


def requirements() -> list[str]:
    """Names with their versions."""
    lines = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    known = {canonicalize_name(name): version for name, version in lines} | PINNED
    return [f"{name}=={known[name]}" for name in NAMES]


def problems(folder: Path) -> list[str]:
    """What is wrong with the wheels in a folder."""
    found: list[str] = []
    files = sorted(folder.glob("*.whl"))
    names = [str(parse_wheel_filename(file.name)[0]) for file in files]
    found += [f"no wheel of {name}" for name in NAMES if name not in names]
    found += [
        f"a wheel that is not asked for, or twice there: {name}"
        for name in names
        if names.count(name) > 1 or name not in NAMES
    ]
    for file, name in zip(files, names, strict=True):
        with zipfile.ZipFile(file) as wheel:
            (metadata,) = [each for each in wheel.namelist() if each.endswith(".dist-info/METADATA")]
            lines = Parser().parsestr(wheel.read(metadata).decode()).get_all("Requires-Dist") or []
        for needed in map(Requirement, lines):
            applies = needed.marker is None or needed.marker.evaluate(DEFAULT_ENVIRONMENT)
            if applies and canonicalize_name(needed.name) not in {*names, *PRESENT}:
                found.append(f"{name} requires {needed}")
    total = sum(file.stat().st_size for file in files)
    print(f"{len(files)} wheels, {total / (1 << 20):.1f} MiB")
    if total > LIMIT:
        found.append(f"{total / (1 << 20):.1f} MiB is more than {LIMIT >> 20} MiB")
    return found


def main() -> int:
    """Fetch and check; the exit code."""
    FOLDER.mkdir(exist_ok=True)
    for file in FOLDER.glob("*.whl"):
        file.unlink()
    platforms = [word for glibc in GLIBC for word in ("--platform", f"manylinux_2_{glibc}_x86_64")]
    platforms += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux1_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp", *platforms]
    subprocess.run([*command, "--dest", str(FOLDER), *requirements()], check=True)
    found = problems(FOLDER)
    print("\n".join(found) or f"{FOLDER.name}/ is complete")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
