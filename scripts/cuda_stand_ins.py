"""Lets a CUDA build of torch be imported without the gigabytes of its CUDA libraries, for runs on the CPU alone.

``python scripts/cuda_stand_ins.py SITE_PACKAGES`` compiles, beside torch's own libraries, one for each CUDA library
that they need and that is not there. Each has the functions that torch names, under the versions that torch names; all
return ``cudaErrorNoDevice``, so ``torch.cuda.is_available()`` is False. It needs gcc and readelf.

Only for testing: torch 2.14 for CUDA with its libraries is 3 GB to download, without them half a gigabyte.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

NEEDS: Final = "Version needs section"
NO_DEVICE: Final = 100
"""``cudaErrorNoDevice`` of the CUDA runtime."""
LIBRARY: Final = re.compile(r"lib(cu|nv|nccl)\S*\.so")
FUNCTION: Final = re.compile(r"(__)?(cu([A-Z]|da|dnn|blas|fft|rand|sparse|solver|file|pti)|nv)|p?nccl")
"""Names that no library of torch defines and that belong to CUDA; cuDNN's and NCCL's have no version."""


@dataclass
class Wanted:
    """What the libraries of torch need from elsewhere."""

    libraries: set[str] = field(default_factory=set)
    versions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By library, the versions under which its functions are looked up: its own name, mostly."""
    functions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By version."""
    plain: set[str] = field(default_factory=set)


def wanted(site_packages: Path) -> Wanted:
    """Read it from the dynamic sections and symbol tables."""
    found, defined = Wanted(), set[str]()
    folder = site_packages / "torch" / "lib"
    for library in [*folder.glob("*.so*"), *folder.parent.glob("_C*.so")]:
        found.libraries |= set(re.findall(r"\(NEEDED\).*\[(.+)\]", _readelf("-d", library)))
        needing = ""
        for kind, name in re.findall(r"(File|Name): (\S+)", _readelf("--version-info", library).partition(NEEDS)[2]):
            if kind == "File":
                needing = name
            else:
                found.versions[needing].add(name)
        for line in _readelf("--dyn-syms", library).splitlines():
            words = line.split()
            if len(words) < 8 or not words[0].rstrip(":").isdigit():
                continue
            name, _, version = words[7].replace("@@", "@").partition("@")
            if words[6] != "UND":
                defined.add(name)
            elif version:
                found.functions[version].add(name)
            elif words[4] != "WEAK":
                found.plain.add(name)
    found.libraries = {name for name in found.libraries if LIBRARY.match(name) and not (folder / name).exists()}
    found.plain = {name for name in found.plain - defined if FUNCTION.match(name)}
    return found


def compile_stand_ins(site_packages: Path) -> list[str]:
    """Compile the missing libraries and return their names; none where torch is a build for the CPU.

    Raises:
        CalledProcessError: gcc or readelf failed.
    """
    found, unversioned = wanted(site_packages), True
    for library in sorted(found.libraries):
        own = {version: found.functions[version] for version in found.versions[library]}
        _compile(site_packages / "torch" / "lib" / library, own, found.plain if unversioned else set())
        unversioned = False  # one of them has the names without a version
    return sorted(found.libraries)


def _compile(target: Path, versioned: dict[str, set[str]], plain: set[str]) -> None:
    names = set[str]().union(*versioned.values(), plain)
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "stand_in.c"), Path(folder, "versions")
        source.write_text(
            "".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in sorted(names)) or "int _;\n"
        )
        script.write_text(
            "".join(f"{version} {{ global: {'; '.join(sorted(of))}; }};\n" for version, of in versioned.items())
        )
        command = ["gcc", "-w", "-shared", "-fPIC", "-fno-builtin", "-o", target, source, f"-Wl,-soname,{target.name}"]
        subprocess.run([*command, *([f"-Wl,--version-script={script}"] if versioned else ())], check=True)


def _readelf(option: str, library: Path) -> str:
    return subprocess.run(["readelf", "-W", option, library], capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Print what was compiled."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("site_packages", type=Path, help="the folder that holds torch")
    print(*compile_stand_ins(parser.parse_args().site_packages), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
