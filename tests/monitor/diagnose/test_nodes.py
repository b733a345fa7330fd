"""Reports of nodes: from files, and from commands that answer, fail, or never do."""

from __future__ import annotations

import json
import os
import sys
import time
import zipfile
from dataclasses import asdict
from pathlib import Path

import pytest

from monitor.diagnose.scenes import report, stands
from rankwatch.contract import interpreter
from rankwatch_monitor.diagnose import command, nodes
from rankwatch_monitor.diagnose.nodes import NodeError, Place
from support.opens import never_opened
from support.waiting import wait_for

TEXT = json.dumps(asdict(report(stands(0), host="n0")))


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_nodes_that_fail_or_never_answer_are_findings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nodes, "ANSWER_SECONDS", 5.0)
    pids = tmp_path / "pid"
    never = f"import os, time; open({str(pids)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    answers = nodes.ask(
        [
            Place("n0", python(f"print({TEXT!r})")),
            Place("n1", python(f"print('Welcome to n1'); print({TEXT.replace('n0', 'n1')!r})")),
            Place("broken", python("import sys; sys.exit('no route to host')")),
            Place("talks", python("print('hello')")),
            Place("never", python(never)),
            Place("absent", ("/nonexistent/ssh",)),
        ],
        0.0,
    )
    assert [each.host for each in answers.reports] == ["n0", "n1"]
    why = dict(answers.failed)
    assert why.keys() == {"broken", "talks", "never", "absent"}
    assert why["broken"] == "no route to host"
    wait_for(lambda: not Path(f"/proc/{pids.read_text()}").exists(), "the command that never answers is ended")


def test_each_node_has_its_own_time_where_they_are_too_many_to_be_asked_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nodes, "AT_ONCE", 1)
    monkeypatch.setattr(nodes, "ANSWER_SECONDS", 6.0)
    (tmp_path / "report").write_text(TEXT)
    places = [Place(f"n{i}", ("sh", "-c", f"sleep 1.7; cat {tmp_path}/report")) for i in range(5)]
    answers = nodes.ask(places, 0.0)
    assert (len(answers.reports), answers.failed) == (5, [])


def test_hundreds_of_nodes_are_asked_at_once(tmp_path: Path) -> None:
    (tmp_path / "report").write_text(TEXT)
    begin = tmp_path / "begin"
    wait = f"while [ ! -e {begin} ]; do sleep 1; done; cat {tmp_path}/report"
    places = [Place(f"n{i}", ("sh", "-c", wait)) for i in range(200)]
    # The last one lets all the others go: it is reached while they wait.
    places.append(Place("last", ("sh", "-c", f"touch {begin}; cat {tmp_path}/report")))
    answers = nodes.ask(places, 60.0)
    assert (len(answers.reports), answers.failed) == (201, [])


def test_reports_in_files_are_merged_and_bad_ones_named(tmp_path: Path) -> None:
    good, bad, empty = tmp_path / "good", tmp_path / "bad", tmp_path / "empty"
    good.write_text(f"{TEXT}\n{TEXT.replace('n0', 'n1')}\n")
    bad.write_text('{"host": 3}\n')
    empty.write_text("")
    answers = nodes.from_files([str(each) for each in (good, bad, empty, tmp_path / "missing")])
    assert [each.host for each in answers.reports] == ["n0", "n1"]
    assert [name for name, _ in answers.failed] == [str(bad), str(empty), str(tmp_path / "missing")]


@pytest.mark.timeout(60)
def test_an_answer_without_end_fills_no_disk() -> None:
    endless = Place("n0", python("import sys\nwhile True: sys.stdout.write('x' * 65536)"))
    began = time.monotonic()
    answers = nodes.ask([endless, Place("n1", python(f"print({TEXT!r})"))], 600.0)
    assert ([name for name, _ in answers.failed], len(answers.reports)) == (["n0"], 1)
    assert time.monotonic() - began < 60.0


@pytest.mark.timeout(60)
def test_a_pipe_is_read_if_somebody_writes_and_not_waited_for_if_not(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert [name for name, _ in nodes.from_files([str(pipe)]).failed] == [str(pipe)]
    reading, writing = os.pipe()
    os.write(writing, TEXT.encode())
    os.close(writing)
    try:
        assert len(nodes.from_files([f"/dev/fd/{reading}"]).reports) == 1
    finally:
        os.close(reading)


def test_a_pipe_that_another_user_has_planted_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "report")
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with never_opened(tmp_path / "report"):
        assert [name for name, _ in nodes.from_files([str(tmp_path / "report")]).failed] == [str(tmp_path / "report")]


def test_names_of_hosts_are_no_options() -> None:
    with pytest.raises(NodeError):
        nodes.by_ssh(["n0", "-oProxyCommand=x"], [], None)
    (place,) = nodes.by_ssh(["n0"], ["--seconds", "6.5"], "env X=1 rankwatch diagnose")
    assert place.command[-2:] == ("n0", "env X=1 rankwatch diagnose --report - --seconds 6.5")


def test_the_nodes_of_a_slurm_job_and_the_pods_of_a_selector(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tools = {
        "squeue": "echo 'n[0-1]'",
        "scontrol": "printf 'n0\\nn1\\n'",
        "kubectl": "printf 'pod/train-0\\npod/train-1\\n'",
    }
    for name, text in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert [each.name for each in nodes.by_slurm("7", [], None)] == ["n0", "n1"]
    pods = nodes.by_kubernetes("app=x", "ml", [], None)
    assert [each.command[:5] for each in pods][1] == ("kubectl", "exec", "--namespace", "ml", "pod/train-1")
    with pytest.raises(NodeError):
        nodes.by_slurm("7; rm", [], None)
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 'Invalid job id' >&2; exit 1\n")
    with pytest.raises(NodeError, match="Invalid job id"):
        nodes.by_slurm("7", [], None)


@pytest.mark.parametrize(
    "arguments", [["--seconds", "1"], ["--pid", "0"], ["--hosts", "-x"], ["--from", "a", "--hosts", "b"]]
)
def test_mistakes_of_the_user_end_with_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = command.diagnose(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == 2
    assert capsys.readouterr().err.startswith("rankwatch diagnose: ")


def test_files_without_a_job_are_no_healthy_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r").write_text(json.dumps(asdict(report())))
    assert command.diagnose(["--from", str(tmp_path / "r")]) == 4
    (tmp_path / "s").write_text(json.dumps(asdict(report(stands(0), stands(1), stands(2), stands(3)))))
    assert command.diagnose(["--from", str(tmp_path / "s"), "--json"]) == 4
    assert "standing" in capsys.readouterr().out


def test_one_file_sends_itself_without_what_the_verdict_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    main = f"import sys, zipfile; print({TEXT!r} if zipfile.ZipFile(sys.path[0]).namelist() == ['__main__.py'] else 1)"
    with zipfile.ZipFile(tmp_path / "rankwatch.pyz", "w") as made:
        made.writestr("native/numpy/__init__.py", "")
        made.writestr("rankwatch_monitor/__init__.py", "")
        made.writestr("__main__.py", main)
    monkeypatch.setattr(interpreter, "archive", str(tmp_path / "rankwatch.pyz"))
    (there,) = nodes.by_ssh(["n0"], ["--seconds", "6.5"], None)
    local = there._replace(command=("sh", "-c", there.command[-1]))
    answers = nodes.ask([local, local], 0.0)
    assert ([each.host for each in answers.reports], answers.failed) == (["n0", "n0"], [])
    assert not nodes.by_ssh(["n0"], [], "rankwatch diagnose")[0].is_sent
