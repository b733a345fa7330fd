"""``rankwatch.pyz`` and the base install: both diagnose a job of plain torchrun from an environment without torch."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import venv
from pathlib import Path

import pytest

from e2e.test_diagnose import HANGS, Start, named, start
from test_wheel import ROOT, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
__all__ = ["start"]  # a fixture


KUBECTL = """\
#!/bin/sh
[ "$1" = get ] && { echo pod/train-0; exit 0; }
while [ "$1" != -- ]; do shift; done
shift
PATH=PLACES exec "$@"
"""
"""An emulated one, whose only pod is this machine, with Python and nothing of Rankwatch."""
OTHERS = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
WITHOUT = ("setpriv", "--bounding-set=-sys_ptrace")
HIDING = "mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid=65534 --regid=65534 --clear-groups $0 $@"
HIDDEN = ("unshare", "--mount", "--propagation", "private", "sh", "-c", HIDING)


def test_a_job_is_diagnosed_by_one_file_and_by_the_base_install(tmp_path: Path, start: Start) -> None:
    bare = {"RANKWATCH_BUILD_PAGE": "0", "RANKWATCH_BUILD_MANUAL": "0"}
    made = run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT, **bare)
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    archive, python = tmp_path / "rankwatch.pyz", tmp_path / "env" / "bin" / "python"
    made = run(sys.executable, ROOT / "scripts" / "build_pyz.py", wheel, archive)
    assert made.returncode == 0, made.stderr
    venv.create(tmp_path / "env", with_pip=True)
    job = start(HANGS)

    def diagnosed(*command: str | Path, temporary: Path) -> None:
        temporary.mkdir()
        path = f"{python.parent}:/usr/bin:/bin"
        done = run(*command, "diagnose", "--json", "--job", job.name, path=path, TMPDIR=str(temporary))
        assert done.stdout, done.stderr
        (found,) = json.loads(done.stdout)["jobs"]
        assert (done.returncode, named(found)) == (3, [1]), found["reason"]
        assert list(temporary.iterdir()) == [], "nothing is left behind"

    diagnosed(python, archive, temporary=tmp_path / "t1")
    helped = run(python, archive, "--help")
    assert "Name the rank for which a running job waits" in helped.stdout, helped.stderr
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "kubectl").write_text(KUBECTL.replace("PLACES", f"{python.parent}:/usr/bin:/bin"))
    (tools / "kubectl").chmod(0o755)
    path = f"{tools}:{python.parent}:/usr/bin:/bin"
    words = ("diagnose", "--json", "--kubernetes", "app=x", "--job", job.name)
    done = run(python, archive, *words, path=path)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert (done.returncode, found["unanswered"], named(found["jobs"][0])) == (3, [], [1]), found

    installed = run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    assert installed.returncode == 0, installed.stderr
    assert run(python, "-c", "import torch").returncode != 0
    diagnosed(python.with_name("rankwatch"), temporary=tmp_path / "t2")

    if os.geteuid() or not shutil.which("setpriv") or not everybodys_python():
        return
    with tempfile.TemporaryDirectory() as public:
        Path(public).chmod(0o755)
        shutil.copy(archive, public)
        for rights, hindrance in ((OTHERS, "other_users"), (WITHOUT, "not_traced"), (HIDDEN, "hidden")):
            words = (*rights, everybodys_python(), f"{public}/{archive.name}", "diagnose", "--json", "--job", job.name)
            done = run(*words)
            assert done.stdout, done.stderr
            kinds = [each["kind"] for each in json.loads(done.stdout)["obstacles"]]
            assert (done.returncode, hindrance in kinds) == (4, True), done


def everybodys_python() -> str:
    """One that other users can run; empty: there is none."""
    asked = run("/usr/bin/python3", "-c", "import sys; print(sys.version_info >= (3, 11))")
    return "/usr/bin/python3" if asked.stdout.strip() == "True" else ""
