"""A script cannot find out whether its process was parked before: all it can ask is compared with a fresh one."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.conftest import SOURCES, wait_for
from launcher.starts import Starts
from rankwatch.contract.enums import ProcessState
from rankwatch_launcher.prewarm import child, handle
from rankwatch_launcher.procfs import process_state

FACTS = '''
"""Prints what a process can find out about itself."""
import atexit, faulthandler, gc, inspect, json, os, resource, signal, subprocess, sys, threading, warnings
import ctypes, logging
import __main__

def link(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None

deathsig = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(deathsig))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
facts = {
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "cmdline": open("/proc/self/cmdline").read(),
    "comm": open("/proc/self/comm").read(),
    "path": sys.path,
    "path importers": sorted(k for k in sys.path_importer_cache if "rankwatch" in k),
    "meta path": [str(f).split(" at 0x")[0] for f in sys.meta_path],
    "flags": str(sys.flags),
    "warnoptions": [sys.warnoptions, len(warnings.filters)],
    "xoptions": sys._xoptions,
    "executable": [sys.executable, sys.prefix],
    "main": {k: repr(v).split(" at 0x")[0] for k, v in vars(__main__).items() if k.startswith("__")},
    "main is": [__name__, sys.modules["__main__"] is __main__, vars(__main__) is globals()],
    "sitecustomize": [n for n in sys.modules if "customize" in n or "parked" in n],
    "stack": [frame.function for frame in inspect.stack() if "runpy" not in frame.filename],
    "cwd": os.getcwd(),
    "umask": os.umask(0o22),
    "environ": dict(os.environ),
    "environb": len(os.environb),
    "environ is": [type(os.environ._data).__name__, os.environb._data is os.environ._data],
    "child environ": subprocess.check_output("env | grep -v ^_= | sort", shell=True, text=True),
    "signals": {int(s): str(signal.getsignal(s)).split(" at 0x")[0] for s in signal.valid_signals()},
    "masks": [status[k] for k in ("SigBlk", "SigIgn", "SigCgt", "ShdPnd")],
    "session": [os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid()],
    "limits": [resource.getrlimit(n) for n in range(16)],
    "nice": [os.nice(0), sorted(os.sched_getaffinity(0)), os.sched_getscheduler(0)],
    "death signal": deathsig.value,
    "oom": open("/proc/self/oom_score_adj").read(),
    "descriptors": {n: link(n) for n in sorted(os.listdir("/proc/self/fd")) if n not in "12" and link(n)},
    "inheritable": [os.get_inheritable(n) for n in range(3)],
    "streams": [[s.name, s.line_buffering, s.write_through, s.encoding, s.errors, s.isatty(), type(s.buffer).__name__]
                for s in (sys.stdin, sys.stdout, sys.stderr)],
    "faulthandler": faulthandler.is_enabled(),
    "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.gettrace()],
    "last": [hasattr(sys, "last_value"), sys.exc_info()],
    "threads": [t.name for t in threading.enumerate()],
    "gc": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()],
    "atexit": atexit._ncallbacks(),
    "recursion": sys.getrecursionlimit(),
    "logging": str(logging.getLogger().handlers),
}
print(json.dumps(facts))
'''


@pytest.fixture
def starts(tmp_path: Path) -> Iterator[Starts]:
    made = Starts(tmp_path)
    yield made
    made.close()


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


WAYS = {
    "script": (["{folder}/facts.py", "--lr", "0.1", "-m", "x"], {}),
    "relative": (["./sub/facts.py"], {}),
    "linked": (["link.py", ""], {}),
    "module": (["-m", "sub.facts", "a", "-u"], {}),
    "package": (["-m", "pack"], {}),
    "settings": (["facts.py"], {"PYTHONWARNINGS": "ignore", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONFAULTHANDLER": "1"}),
    "with a path": (["facts.py"], {"PYTHONPATH": "{folder}/sub:{folder}"}),
    "with safe path": (["facts.py"], {"PYTHONSAFEPATH": "1"}),
    "without a path": (["facts.py"], {"PYTHONPATH": ""}),
    "with a sitecustomize": (["facts.py"], {"PYTHONPATH": "{folder}/site"}),
    "with a broken one": (["facts.py"], {"PYTHONPATH": "{folder}/broken"}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_script_finds_what_it_finds_in_a_fresh_process(
    starts: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    for name in ("facts.py", "sub/facts.py", "pack/__main__.py"):
        write(tmp_path / name, FACTS)
    write(tmp_path / "site" / "sitecustomize.py", "import sys; sys.customized = True\n")
    write(tmp_path / "broken" / "sitecustomize.py", "import not_there\n")
    (tmp_path / "link.py").symlink_to(tmp_path / "sub" / "facts.py")
    monkeypatch.chdir(tmp_path)
    args, env = WAYS[way]
    args = [arg.format(folder=tmp_path) for arg in args]
    env = {name: value.format(folder=tmp_path) for name, value in env.items()}
    fresh, warm = starts.fresh(args, env), starts.warm(args, env)
    assert (warm.code, warm.err) == (fresh.code, fresh.err)
    found, expected = json.loads(warm.out), json.loads(fresh.out)
    if env.get("PYTHONPATH") == "":
        # An empty PYTHONPATH is the same as none, and becomes none.
        for facts in (found, expected):
            facts["environ"].pop("PYTHONPATH", None)
            facts["child environ"] = facts["child environ"].replace("PYTHONPATH=\n", "")
            facts.pop("environb")
    assert expected["environ"]["MASTER_PORT"] == "2"
    assert {k: v for k, v in found.items() if v != expected[k]} == {k: v for k, v in expected.items() if v != found[k]}
    assert found == expected


ENDS = {
    "well": "print('done'); print('words', file=sys.stderr)",
    "exit code": "sys.exit(3)",
    "exit words": "sys.exit('no data')",
    "exception": "def f():\n    raise ValueError(1)\ntry:\n    f()\nexcept ValueError as e:\n    raise OSError from e",
    "syntax": "if True print(1)",
    "interrupt": "raise KeyboardInterrupt",
    "at once": "print('x', end=''); os._exit(5)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "os.kill(os.getpid(), signal.SIGTERM)",
    "at exit": "import atexit, threading\natexit.register(print, 'left')\n"
    "threading.Thread(target=lambda: print('thread')).start()\nraise RuntimeError('end')",
    "hook": "sys.excepthook = lambda *a: print('caught', a[1], a[2].tb_frame.f_code.co_name)\n1 / 0",
    "coding": "# -*- coding: latin-1 -*-\nprint(ascii('\xe4'))",
    "stack": "import traceback, warnings\ntraceback.print_stack()\nwarnings.warn('careful', stacklevel=2)",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_script_ends_as_in_a_fresh_process(starts: Starts, tmp_path: Path, end: str) -> None:
    head = "" if end == "coding" else "import os, signal, sys\n"
    script = tmp_path / "end.py"
    script.write_bytes((head + ENDS[end] + "\n").encode("latin-1"))
    fresh, warm = starts.fresh([str(script)]), starts.warm([str(script)])
    assert warm == fresh
    assert fresh.code != 0 or fresh.out or fresh.err, "the script has shown something"


def test_what_imports_print_is_printed_when_the_rank_starts(starts: Starts, tmp_path: Path) -> None:
    write(tmp_path / "chatty.py", "import os\nprint('hello')\nos.write(2, b'careful\\n')\n")
    script = write(tmp_path / "talk.py", "import chatty\nprint('script')\n")
    starts.base = ("chatty",)
    fresh, warm = starts.fresh([str(script)]), starts.warm([str(script)])
    assert warm == fresh
    assert fresh.out == "hello\nscript\n"


def test_what_imports_put_into_the_environment_stays_there(starts: Starts, tmp_path: Path) -> None:
    write(tmp_path / "setter.py", "import os\nos.environ.setdefault('SET_HERE', '1')\nos.environ.pop('DROP_ME')\n")
    script = write(tmp_path / "show.py", "import os, setter\nprint(sorted(os.environ.items()))\nos.system('env')\n")
    starts.base = ("setter",)
    env = {"DROP_ME": "x"}
    fresh, warm = starts.fresh([str(script)], env), starts.warm([str(script)], env)
    assert sorted(warm.out.splitlines()) == sorted(fresh.out.splitlines())


def test_folder_and_umask_are_those_of_the_start(
    starts: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = write(tmp_path / "where.py", "import os\nprint(os.getcwd(), oct(os.umask(0)))\n")
    monkeypatch.chdir(tmp_path)
    pool = starts.ready(starts.pool(), [str(script)])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    before = os.umask(0o77)
    try:
        ended = starts.take(pool, [str(script)])
    finally:
        os.umask(before)
    assert ended.out == f"{tmp_path}/elsewhere 0o77\n"


POOLS = """
import inspect, multiprocessing, pickle

def double(x):
    return 2 * x

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.map(double, range(4)))
    print(pickle.dumps(double), inspect.getsource(double), inspect.getfile(double))
"""


def test_pools_and_pickles_find_the_script_as_main(starts: Starts, tmp_path: Path) -> None:
    script = write(tmp_path / "pools.py", POOLS)
    fresh, warm = starts.fresh([str(script)]), starts.warm([str(script)])
    assert warm == fresh
    assert "forkserver [0, 2, 4, 6]" in fresh.out


TORCH_SCRIPT = """
import torch
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return torch.tensor(i)

@record
def main():
    for method, workers in (("fork", 2), ("spawn", 1)):
        loader = DataLoader(Data(), batch_size=4, num_workers=workers, multiprocessing_context=method)
        print(method, [batch.tolist() for batch in loader])
    print(torch.get_num_threads())
    raise ValueError("the end")

if __name__ == "__main__":
    main()
"""


@pytest.mark.long
@pytest.mark.timeout(400)
def test_torch_with_its_loaders_pools_and_error_files(starts: Starts, tmp_path: Path) -> None:
    script = write(tmp_path / "loaders.py", TORCH_SCRIPT)
    starts.base = ("torch",)
    results = []
    for start in (starts.fresh, starts.warm):
        error = tmp_path / "error.json"
        ended = start([str(script)], {"TORCHELASTIC_ERROR_FILE": str(error), "OMP_NUM_THREADS": "1"})
        message = json.loads(error.read_text())["message"]
        error.unlink()
        results.append((ended.code, ended.out, message["message"], message["extraInfo"]["py_callstack"]))
    fresh, warm = results
    assert warm == fresh
    assert "spawn [[0, 1, 2, 3], [4, 5, 6, 7]]" in fresh[1]
    assert fresh[2] == "ValueError: the end"


PARK_AND_WAIT = """
import os, sys, time
from launcher.starts import Starts
from pathlib import Path
starts = Starts(Path(sys.argv[1]))
pool = starts.ready(starts.pool(), [sys.argv[2]])
print(*(p.process.pid for p in pool._workers.values()), flush=True)
sys.stdin.read()
"""


def test_a_parked_interpreter_ends_with_its_launcher_and_runs_nothing(tmp_path: Path) -> None:
    script = write(tmp_path / "mark.py", f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    path = os.pathsep.join([str(Path(__file__).parents[2]), *map(str, SOURCES)])
    launcher = subprocess.Popen(
        [sys.executable, "-c", PARK_AND_WAIT, str(tmp_path), str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert launcher.stdout is not None
        waiting = int(launcher.stdout.readline())
        assert process_state(waiting) is ProcessState.ALIVE
        launcher.kill()
        wait_for(lambda: process_state(waiting) is ProcessState.EXITED)
        assert not (tmp_path / "ran").exists()
    finally:
        launcher.kill()
        launcher.communicate()


def test_the_end_of_the_connection_ends_it_too(starts: Starts, tmp_path: Path) -> None:
    script = write(tmp_path / "mark.py", f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    pool = starts.ready(starts.pool(), [str(script)])
    (waiting,) = pool._workers.values()
    waiting._connection.close()
    assert waiting.process.wait(60) == child.EXIT_UNUSED
    assert not (tmp_path / "ran").exists()


def test_a_python_that_would_not_park_is_found_out(tmp_path: Path) -> None:
    wrapper = write(tmp_path / "python", f'#!/bin/sh\nexec {sys.executable} -I "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    assert handle.probe(str(wrapper), dict(os.environ)).wait(60) == 0
    assert handle.probe(sys.executable, dict(os.environ)).wait(60) == child.EXIT_PROBED


def test_one_that_is_stopped_does_not_hold_the_start_up(
    starts: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "ANSWER_SECONDS", 0.2)
    script = write(tmp_path / "none.py", "")
    pool = starts.ready(starts.pool(), [str(script)])
    (waiting,) = pool._workers.values()
    os.kill(waiting.process.pid, signal.SIGSTOP)
    argv = (sys.executable, "-u", str(script))
    assert pool.take(0, argv, waiting.environment, 1, 2) is None
    assert process_state(waiting.process.pid) is ProcessState.EXITED
    assert any("did not start" in line for line in pool._logged)
