"""Python processes that begin with the expensive imports done: ``ForkedPopen`` stands for ``subprocess.Popen``.

Importing torch costs 2.5 s of CPU time, the monitor's modules 1.6 s, and the tests start hundreds of processes that
need one or the other. So each worker of pytest keeps a server for each set of modules, started at its first use; the
server has imported them, and nothing else, and forks a process for each request. That is a process of its own all the
same: a child of the worker, with its own session, environment, arguments and output, that runs the script, module or
code as ``__main__`` and ends as an interpreter does. ``/proc/PID/environ`` shows its own environment; its command line
is the server's.

What needs a new interpreter gets one, as ``subprocess.Popen`` does: another program, options of Python, variables that
Python, the dynamic linker or torch read as they start, a ``sitecustomize``, descriptors to be passed on.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import inspect
import os
import pickle
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

PYTHON: Final = sys.executable
"""As it was before a test put another program in its place."""
TESTS: Final = str(Path(__file__).parents[1])
TORCH: Final = (
    *("torch", "torch.distributed", "torch.distributed.run"),
    *("opentelemetry.sdk.metrics.export", "opentelemetry.exporter.otlp.proto.common.metrics_encoder"),
)
MONITOR: Final = ("rankwatch_monitor.cli", "support.made_before")

PR_SET_CHILD_SUBREAPER: Final = 36
REQUEST_BYTES: Final = 1 << 17
ROOM: Final = "RW_ROOM"
"""A variable of the server that takes up the room in which the environments of its processes are shown."""
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Libraries start no threads as they are imported; no thread survives a fork."""
READ_AT_START: Final = ("PYTHON", "LD_", "MALLOC_", "TORCH_", "PYTORCH_", "KMP_", "MKL_", "GOMP_", "OMP_", "FAKETIME")
EMULATED: Final = ("PYTHONPATH", "PYTHONUNBUFFERED")


class ForkedPopen(subprocess.Popen[Any]):
    """``subprocess.Popen`` for a command of this interpreter, forked from a server with ``preload`` imported."""

    def __init__(self, args: Sequence[str], *, preload: Sequence[str] = TORCH, **options: Any) -> None:
        self._preload = tuple(preload)
        super().__init__(args, **options)

    def _execute_child(self, *given: Any) -> None:  # type: ignore[override]
        how = inspect.signature(super()._execute_child).bind(*given).arguments  # type: ignore[misc]
        command = [os.fspath(argument) for argument in how["args"]]
        env = dict(os.environ if how["env"] is None else how["env"])
        request = _request(command, env, os.fspath(how["cwd"] or os.getcwd()), session=how["start_new_session"])
        odd = how["preexec_fn"] or how["pass_fds"] or how["executable"] or how["shell"]
        if request is None or odd or how["umask"] != -1 or how["process_group"] not in (-1, None):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        ends = (how["p2cread"], how["c2pwrite"], how["errwrite"])
        outputs = [default if end == -1 else end for default, end in enumerate(ends)]
        self.pid = _server(self._preload).fork(request, outputs)
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            *(how[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )


def run(command: Sequence[str], *, preload: Sequence[str] = TORCH, timeout: float = 120.0, **options: Any) -> Any:
    """``subprocess.run`` by ``ForkedPopen``; the output is captured as text."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with ForkedPopen(command, preload=preload, **{**pipes, **options}) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


class ForkedProcess(subprocess.Popen[bytes]):
    """A child that was forked by a server, as ``subprocess`` handles children."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self.pid, self.args, self.returncode = pid, args, None  # type: ignore[assignment]
        self.stdin = self.stdout = self.stderr = None
        self._child_created, self._waitpid_lock = True, threading.Lock()


class Requests:
    """The requesting end of a server."""

    def __init__(self, end: socket.socket) -> None:
        self._end, self._lock, self._libc = end, threading.Lock(), ctypes.CDLL(None)

    def fork(self, request: Mapping[str, Any], outputs: Sequence[int]) -> int:
        """Have a process forked that becomes a child of this one; return its pid."""
        with self._lock:
            # The process's own parent ends at once, and the next ancestor that asked for it adopts the process.
            self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            socket.send_fds(self._end, [pickle.dumps(dict(request))], outputs)
            answer = self._end.recv(64)
            self._libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert answer, "the server of forked processes has ended"
        return int(answer)


_servers: dict[tuple[str, ...], Requests] = {}


def _server(preload: tuple[str, ...]) -> Requests:
    if preload not in _servers:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = f"import sys; sys.path.insert(0, {TESTS!r}); from support.forked import main; main()"
        process = subprocess.Popen(
            [PYTHON, "-c", code, str(theirs.fileno()), *preload],
            env={**_neutral(os.environ), ROOM: "x" * (1 << 16)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        _servers[preload] = Requests(ours)

        def end() -> None:
            process.kill()
            process.wait()
            ours.close()

        atexit.register(end)
    return _servers[preload]


def _neutral(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server: that of the tests, with one thread and without what each process gets anew."""
    return {name: value for name, value in env.items() if name != "PYTHONUNBUFFERED"} | ONE_THREAD


def _request(command: Sequence[str], env: Mapping[str, str], cwd: str, *, session: bool) -> dict[str, Any] | None:
    """What a server needs to know of a command; None where that takes a new interpreter."""
    if not command or command[0] != PYTHON:
        return None
    rest = list(command[1:])
    unbuffered = "PYTHONUNBUFFERED" in env
    if rest[:1] == ["-u"]:
        rest, unbuffered = rest[1:], True
    if rest[:1] in (["-c"], ["-m"]) and len(rest) > 1:
        kind, target, arguments = rest[0], rest[1], rest[2:]
    elif rest and rest[0].endswith(".py"):
        kind, target, arguments = "", rest[0], rest[1:]
    else:
        return None
    server = _neutral(os.environ)
    for name in {*env, *server} - set(EMULATED):
        given = env.get(name, ONE_THREAD.get(name))
        if name.startswith(READ_AT_START) and given != server.get(name):
            return None
    own = os.environ.get("PYTHONPATH", "")
    path = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder and env["PYTHONPATH"] != own]
    if any(Path(cwd, folder, f"{name}.py").exists() for folder in path for name in ("sitecustomize", "usercustomize")):
        return None
    return {
        "kind": kind,
        "target": target,
        "arguments": arguments,
        "env": dict(env),
        "cwd": cwd,
        "path": [str(Path(cwd, folder)) for folder in path],
        "session": session,
        "unbuffered": unbuffered,
    }


# In the server --------------------------------------------------------------------------------------------------------


def main() -> None:
    """Import what the command line names, then fork a process for each request that comes by the descriptor in it."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    sys.path.append(sys.path.pop(sys.path.index(TESTS)))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    sys.path.remove(TESTS)
    sys.path[0] = ""
    serve(requests)


def serve(requests: socket.socket) -> None:
    """Fork for each request; returns in no process but a forked one's, by an exception."""
    gc.collect()
    gc.freeze()  # a forked process neither walks through nor copies what has been imported
    while True:
        data, outputs, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 3)
        if not data:  # the requesting process is gone
            os._exit(0)
        between = os.pipe()
        middle = os.fork()
        if middle == 0:
            forked = os.fork()
            if forked == 0:
                requests.close()
                request = pickle.loads(data)
                if request["session"]:
                    os.setsid()  # before its pid is known: it may be the group of a signal at once
                os.write(between[1], str(os.getpid()).encode())
                for descriptor in between:
                    os.close(descriptor)
                try:
                    _become(request, outputs)
                except SystemExit as end:
                    _leave(end)
                    raise
            os._exit(0)
        os.waitpid(middle, 0)
        requests.send(os.read(between[0], 64))
        for descriptor in (*between, *outputs):
            os.close(descriptor)


def _become(request: Mapping[str, Any], outputs: Sequence[int]) -> None:
    """Run the command as a new interpreter would, and leave by ``SystemExit``."""
    os.chdir(request["cwd"])
    env = request["env"]
    os.environ.clear()
    os.environ.update(env)
    _show(env)
    for descriptor, output in zip((0, 1, 2)[-len(outputs) :], outputs, strict=True):
        os.dup2(output, descriptor)
        os.close(output)
    if request["unbuffered"]:
        sys.stdout.reconfigure(line_buffering=True, write_through=True)  # type: ignore[union-attr]
    target, kind = request["target"], request["kind"]
    sys.path[1:1] = request["path"]
    if request.get("site"):
        while os.getppid() != request["parent"] and Path(f"/proc/{request['parent']}").exists():
            time.sleep(0.001)  # until it is adopted, see Requests.fork
        with contextlib.suppress(ImportError):  # there is no other sitecustomize
            runpy.run_path(request["site"])
    main = sys.modules["__main__"].__dict__
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    if kind == "-m":
        sys.argv, sys.path[0] = ["-m", *request["arguments"]], request["cwd"]
        runpy._run_module_as_main(target)  # type: ignore[attr-defined]  # what Python itself calls for -m
    elif kind == "-c":
        sys.argv, sys.path[0] = ["-c", *request["arguments"]], ""
        exec(compile(target, "<string>", "exec"), main)
    else:
        sys.argv, sys.path[0] = [target, *request["arguments"]], str(Path(target).resolve().parent)
        main.update(__file__=target, __spec__=None)
        try:
            exec(compile(Path(target).read_bytes(), target, "exec"), main)
        except Exception as error:  # noqa: BLE001  # as the interpreter does, with the frames of the script only
            sys.excepthook(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
            raise SystemExit(1) from None
    raise SystemExit(0)


def _leave(end: SystemExit) -> None:
    """End as an interpreter does, but for the modules, which are not taken apart: that costs more than most tests."""
    code = 0 if end.code is None else end.code
    if not isinstance(code, int):
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    os._exit(code & 0xFF)


def _show(env: Mapping[str, str]) -> None:
    """Have ``/proc/PID/environ`` show this environment: marks of tests are looked for in there."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[47]), int(fields[48])
    shown = "".join(f"{name}={value}\0" for name, value in env.items()).encode("utf-8", "surrogateescape")
    if begin and len(shown) <= end - begin:
        ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)
