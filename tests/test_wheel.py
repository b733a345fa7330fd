"""What a user gets from ``pip install 'rankwatch[monitor]'``: an environment with nothing of this repository in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from urllib.request import urlopen

import pytest

from support.waiting import wait_for

ROOT = Path(__file__).resolve().parent.parent


def run(
    *command: str | Path, cwd: str | Path = "/", path: str | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RANKWATCH"))}
    environment |= more | ({} if path is None else {"PATH": path})
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cwd)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the sdist of this repository, by the name of the kind."""
    folder = tmp_path_factory.mktemp("built")
    made = run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    assert made.returncode == 0, made.stderr
    sdist = "import sys; sys.path.insert(0, 'scripts'); import build_page; build_page.build_sdist(sys.argv[1])"
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    assert run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", "hatchling").returncode == 0
    made = run(python, "-c", sdist, folder, cwd=ROOT)
    assert made.returncode == 0, made.stderr
    (wheel,), (archive,) = folder.glob("rankwatch-*.whl"), folder.glob("rankwatch-*.tar.gz")
    return {"wheel": wheel, "sdist": archive}


@pytest.fixture(scope="module")
def environment(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder of a fresh environment with what Rankwatch and its monitor need, but no torch."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "env", with_pip=True)
    bin_ = folder / "env" / "bin"
    what = f"{built['wheel']}[monitor]"
    done = run(bin_ / "python", "-m", "pip", "install", "--quiet", "--no-compile", "-c", ROOT / "constraints.txt", what)
    assert done.returncode == 0, done.stderr
    return bin_


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def installed(environment: Path, built: dict[str, Path], request: pytest.FixtureRequest) -> Path:
    """The environment with Rankwatch from its wheel, then from its sdist, which needs no Node and no MkDocs."""
    command = [environment / "python", "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps"]
    done = run(*command, built[request.param], path=without_node(environment.parent))
    assert done.returncode == 0, done.stderr
    return environment


def without_node(folder: Path) -> str:
    """A PATH with this machine's shell tools and no Node."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("sh", "env", "uname", "git"):
        if (found := shutil.which(name)) and not (tools / name).exists():
            (tools / name).symlink_to(found)
    return str(tools)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A copy of the repository as it is after a clone: without page and manual."""
    copy = tmp_path / "clone"
    for folder in ("telemetry", "monitor", "launcher", "examples", "scripts", "docs"):
        ignored = shutil.ignore_patterns("static", "manual", "node_modules", "__pycache__")
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt", "mkdocs.yml", ".gitignore"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_wheel_without_a_page_is_not_built(bare: Path, tmp_path: Path) -> None:
    """npm's registry is out of reach: the build ends with what to do, and no wheel is left."""
    made = run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "made", bare),
        npm_config_registry="http://127.0.0.1:9/",
        npm_config_cache=str(tmp_path / "cache"),
        npm_config_fetch_retries="0",
    )
    assert made.returncode != 0
    assert "the web page cannot be built" in made.stderr
    assert "RANKWATCH_BUILD_PAGE" in made.stderr
    assert not list(tmp_path.glob("made/*.whl"))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_page_and_manual_are_built_with_what_pip_fetches_where_the_machine_has_nothing(
    bare: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "made"]
    command += ["--build-constraint", ROOT / "constraints.txt", bare]
    made = run(*command, path=without_node(tmp_path))
    assert made.returncode == 0, made.stderr
    (wheel,) = (tmp_path / "made").glob("rankwatch-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"rankwatch_monitor/web/static/index.html", "rankwatch_monitor/web/manual/detection.html"} <= set(names)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_wheel_without_a_manual_is_built_only_on_request(bare: Path, built: dict[str, Path], tmp_path: Path) -> None:
    """Without build isolation MkDocs may be absent: the build states the remedy, and the switch leaves it out."""
    python = built["wheel"].parent / "env" / "bin" / "python"  # has hatchling and no MkDocs
    command = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--wheel-dir", tmp_path, bare]
    made = run(*command, RANKWATCH_BUILD_PAGE="0")
    assert made.returncode != 0
    assert "the manual cannot be built: no module mkdocs" in made.stderr
    assert "RANKWATCH_BUILD_MANUAL=0" in made.stderr
    assert not list(tmp_path.glob("*.whl"))
    made = run(*command, RANKWATCH_BUILD_PAGE="0", RANKWATCH_BUILD_MANUAL="0")
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert [name for name in zipfile.ZipFile(wheel).namelist() if "/web/manual/" in name] == []


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_an_editable_install_builds_neither_page_nor_manual(bare: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    done = run(
        *(python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", bare),
        path=without_node(tmp_path),
        npm_config_registry="http://127.0.0.1:9/",
    )
    assert done.returncode == 0, done.stderr
    assert not (bare / "monitor/rankwatch_monitor/web/static").exists()
    assert not (bare / "monitor/rankwatch_monitor/web/manual").exists()
    assert run(python, "-c", "import rankwatch.contract, rankwatch_monitor").returncode == 0


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_wheel_has_page_and_manual_and_not_their_sources(built: dict[str, Path]) -> None:
    assert built["wheel"].stat().st_size < 4_000_000
    names = zipfile.ZipFile(built["wheel"]).namelist()
    manual = {name.partition("/web/manual/")[2] for name in names if "/web/manual/" in name}
    assert {"index.html", "detection.html", "python-api.html", "search/search_index.js"} <= manual
    assert [name for name in manual if name.endswith((".md", ".map", "search_index.json")) or "lunr" in name] == []
    assert "rankwatch_monitor/web/static/index.html" in names
    assert "rankwatch_launcher/demo/train_gpt.py" in names
    assert [name for name in names if "/web/source/" in name or name.endswith((".ts", ".tsx"))] == []
    with tarfile.open(built["sdist"]) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "monitor/rankwatch_monitor/web/static/index.html",
        "monitor/rankwatch_monitor/web/source/package.json",
        "monitor/rankwatch_monitor/web/manual/index.html",
        "docs/index.md",
        "scripts/build_page.py",
        "scripts/build_manual.py",
    } <= packed
    assert not any("node_modules" in name for name in packed)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_wheel_serves_page_and_manual_without_torch(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "python", "-c", "import torch").returncode != 0
    ready = tmp_path / "ready.json"
    command = [installed / "rankwatch", "monitor", "--no-token", "--port", "0", "--database", "none"]
    command += ["--ready-file", ready, "--parent-pid", str(os.getpid())]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd="/") as monitor:
        try:
            wait_for(ready.exists, "the monitor listens", 90)
            url = json.loads(ready.read_text())["url"]
            for path in ("", "/manual", "/manual/", "/manual/detection.html"):
                with urlopen(url + path) as page:
                    assert page.status == 200
                    assert b"<!doctype html>" in page.read()[:100].lower()
            with urlopen(url + "/manual/search/search_index.json") as index:
                assert any("detection.html" in entry["location"] for entry in json.load(index)["docs"])
        finally:
            monitor.terminate()
    assert monitor.returncode == 0


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", ["page", "manual"])
def test_doctor_knows_page_and_manual_and_when_they_are_missing(installed: Path, part: str) -> None:
    def found() -> dict[str, str]:
        said = json.loads(run(installed / "rankwatch", "doctor", "--json").stdout)
        return {each["name"]: each["level"] for each in said["findings"]}

    folder = {"page": "static", "manual": "manual"}[part]
    (page,) = installed.parent.glob(f"lib/python*/site-packages/rankwatch_monitor/web/{folder}/index.html")
    assert found()[part] == "ok"
    page.rename(page.with_name("away.html"))
    try:
        assert found()[part] == "warning"
    finally:
        page.with_name("away.html").rename(page)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_command_states_what_is_missing(installed: Path) -> None:
    printed = run(installed / "rankwatch", "run", "train.py")
    assert printed.returncode == 2
    assert "pip install 'rankwatch[torch]'" in printed.stderr
    assert "torch" in run(installed / "rankwatch", "demo").stderr
    assert "monitor" in run(installed / "rankwatch", "--help").stdout
