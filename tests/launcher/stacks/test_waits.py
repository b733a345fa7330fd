"""What a process waits for, read of real ones from /proc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from rankwatch.contract.enums import ProcessState, WaitKind
from rankwatch.contract.files import find_program
from rankwatch.contract.messages import Frame, Wait
from rankwatch_launcher import procfs
from rankwatch_launcher.stacks import formats
from rankwatch_launcher.stacks.waits import MAX_DESCRIPTORS, MAX_THREADS, SYSTEM_CALLS, PythonThread, wait_of
from support.waiting import wait_for

pytestmark = pytest.mark.skipif(platform.machine() not in SYSTEM_CALLS, reason="system calls of this machine unknown")

FIFO = "import os\nos.mkfifo('fifo')\n"
PARKED = "import threading\nthreading.Thread(target=lambda: threading.Event().wait(), daemon=True).start()\n"
SERVER = """
import socket, subprocess, sys
answer = '''
import socket, time
s = socket.create_server(('127.0.0.1', 0))
print(s.getsockname()[1], flush=True)
c, _ = s.accept()
time.sleep(600)
'''
child = subprocess.Popen([sys.executable, "-c", answer], stdout=subprocess.PIPE, start_new_session=True)
"""
QUEUE = """
import multiprocessing as mp, threading, time
def work(queue, how):
    threading.Event().wait() if how == "ever" else time.sleep(600)
def fetch(how):
    queue = mp.Queue()
    child = mp.Process(target=work, args=(queue, how), daemon=True)
    child.start()
    return queue, child
"""
DAEMON = """
import os, time
def daemon():
    if not os.fork():
        if not os.fork():
            time.sleep(20)
        os._exit(0)
    os.wait()
"""
"""A process that inherits what is open, and is no child."""
LIBRARY = """
import os, sys, threading, time
def module(folder):
    os.makedirs(folder + "/wandb")
    with open(folder + "/wandb/__init__.py", "w") as file:
        file.write("import threading, time\\ndef work(): time.sleep(600)\\n"
                   "thread = threading.Thread(target=work, daemon=True)\\nthread.start()\\n"
                   "def finish(): thread.join()\\n")
    sys.path.insert(0, os.path.abspath(folder))
    import wandb
    return wandb
"""


AIO = """
import ctypes, platform
call, (SETUP, GET) = ctypes.CDLL(None).syscall, (206, 208) if platform.machine() == "x86_64" else (0, 4)
context, buffer = ctypes.c_ulong(), ctypes.create_string_buffer(64)
assert call(SETUP, 1, ctypes.byref(context)) == 0
"""
NATIVE = """
import ctypes, os, sys, threading
from pathlib import Path
libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
assert libc.pthread_create(ctypes.byref(thread), None, libc.sleep, ctypes.c_void_p(600)) == 0
"""
NATIVE_SERVER = """
import ctypes, os, socket, threading
server, libc, thread = socket.create_server(("127.0.0.1", 0)), ctypes.CDLL(None), ctypes.c_ulong()
assert libc.pthread_create(ctypes.byref(thread), None, libc.accept, ctypes.c_void_p(server.fileno())) == 0
"""
SERVES = """
import queue, socket, threading
queue = queue.Queue()
def serve():
    server = socket.create_server(("127.0.0.1", 0))
    while True:
        queue.put(server.accept())
threading.Thread(target=serve, daemon=True).start()
"""


@contextlib.contextmanager
def process(code: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs this code in ``folder``, ended with all its children."""
    child = subprocess.Popen([sys.executable, "-c", code], cwd=folder, start_new_session=True, stdin=subprocess.DEVNULL)
    try:
        yield child
    finally:
        family = [child.pid, *_below(child.pid)]
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # a daemon of it
        child.wait()


def _parents() -> dict[int, int]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := procfs.stat_fields(_read(f"/proc/{name}/stat"))):
            found[int(name)] = int(fields[1])
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _below(pid: int) -> list[int]:
    parents, found = _parents(), [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def read(pid: int) -> Wait:
    tool = find_program("py-spy")
    assert tool is not None
    threads: dict[int, PythonThread] = {}
    command = [tool, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    dump = subprocess.run(command, capture_output=True, check=False)
    with contextlib.suppress(ValueError):
        threads = formats.from_py_spy(dump.stdout.decode() if dump.returncode == 0 else "", pid)[1]
    return wait_of(pid, threads, _parents()).wait


CASES = [
    ("sleep", "import time; time.sleep(600)", WaitKind.TIMED, ""),
    ("lock", "import threading; l = threading.Lock(); l.acquire(); l.acquire()", WaitKind.THREAD, ""),
    ("lock_with_limit", "import threading; threading.Event().wait(600)", WaitKind.TIMED, ""),
    ("join_of_a_lock", PARKED + "threading.enumerate()[-1].join()", WaitKind.THREAD, ""),
    ("queue_with_producer_that_sleeps",
     "import queue, threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
     "queue.Queue().get()",
     WaitKind.TIMED, ""),
    ("pool_future",
     "import time\nfrom concurrent.futures import ThreadPoolExecutor as P\nP(2).submit(time.sleep, 600).result()",
     WaitKind.TIMED, ""),
    ("child", "import subprocess; subprocess.run(['sleep', '600'])", WaitKind.CHILD, "sleep 600"),
    ("child_with_limit", "import subprocess; subprocess.run(['sleep', '600'], timeout=500)", WaitKind.TIMED, ""),
    ("child_that_is_stuck",
     "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import threading; threading.Event().wait()'])",
     WaitKind.THREAD, ""),
    ("fifo", FIFO + "open('fifo')", WaitKind.PIPE, "fifo"),
    ("fifo_read", FIFO + "os.read(os.open('fifo', os.O_RDWR), 1)", WaitKind.PIPE, "/fifo"),
    ("pipe_of_a_child", "import subprocess; p = subprocess.Popen(['sleep', '600'], stdout=-1); p.stdout.read()",
     WaitKind.CHILD, "sleep 600"),
    ("socket", SERVER + "port = int(child.stdout.readline())\nsocket.create_connection(('127.0.0.1', port)).recv(1)",
     WaitKind.CHILD, "socket"),
    ("listener", "import socket; socket.create_server(('127.0.0.1', 0)).accept()", WaitKind.SOCKET, "127.0.0.1:"),
    ("flock",
     "import fcntl, os, subprocess\nopen('l', 'w').close()\n"
     "held = subprocess.Popen(['flock', 'l', 'sleep', '600'])\n"
     "import time\nf = open('l')\n"
     "while True:\n"
     "    try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); fcntl.flock(f, fcntl.LOCK_UN); time.sleep(0.01)\n"
     "    except BlockingIOError: break\n"
     "fcntl.flock(f, fcntl.LOCK_EX)",
     WaitKind.FILE_LOCK, "/l, held by"),
    ("pause", "import signal; signal.pause()", WaitKind.EVENT, "a signal"),
    ("sigwait", "import signal; signal.sigwait({signal.SIGUSR1})", WaitKind.EVENT, "a signal"),
    ("lock_beside_a_thread_that_handles_signals",
     "import signal, threading\n"
     "threading.Thread(target=signal.sigwait, args=({signal.SIGUSR1},), daemon=True).start()\nthreading.Event().wait()",
     WaitKind.THREAD, ""),
    ("change_of_a_file",
     "import ctypes, os; c = ctypes.CDLL(None); n = c.inotify_init(); c.inotify_add_watch(n, b'.', 2); os.read(n, 9)",
     WaitKind.EVENT, "a change of a file"),
    ("eventfd", "import os; os.eventfd_read(os.eventfd(0))", WaitKind.THREAD, ""),
    ("eventfd_of_a_child",
     "import os, time\nn = os.eventfd(0)\nif not os.fork(): time.sleep(600)\nos.eventfd_read(n)",
     WaitKind.CHILD, ""),
    ("eventfd_of_a_child_that_is_stuck",
     "import os, threading\nn = os.eventfd(0)\nif not os.fork(): threading.Event().wait()\nos.eventfd_read(n)",
     WaitKind.THREAD, ""),
    ("eventfd_of_a_daemon", DAEMON + "n = os.eventfd(0); daemon(); os.eventfd_read(n)",
     WaitKind.EVENT, "an eventfd, held by"),
    ("pipe_of_a_daemon", DAEMON + "r, w = os.pipe(); daemon(); os.read(r, 1)", WaitKind.PIPE, "held by"),
    ("semaphore_of_a_daemon",
     DAEMON + "import multiprocessing as mp; lock = mp.Lock(); lock.acquire(); daemon(); lock.acquire()",
     WaitKind.EVENT, "a semaphore, held by"),
    ("semaphores_of_system_v",
     "import ctypes; c = ctypes.CDLL(None); n = c.semget(0, 1, 0o600)\n"
     "c.semop(n, ctypes.byref((ctypes.c_short * 3)(0, -1, 0)), 1)",
     WaitKind.EVENT, "a semaphore"),
    ("process_by_its_descriptor",
     "import os, select, subprocess\np = select.poll()\n"
     "p.register(os.pidfd_open(subprocess.Popen(['sleep', '600']).pid)); p.poll()",
     WaitKind.CHILD, "sleep 600"),
    ("epoll_in_a_poll",
     "import select, socket\ns = socket.create_server(('127.0.0.1', 0)); e = select.epoll(); e.register(s)\n"
     "p = select.poll(); p.register(e); p.poll()",
     WaitKind.SOCKET, "127.0.0.1:"),
    ("local_service_beside_a_child",
     DAEMON + "import socket, threading\na, b = socket.socketpair()\ndaemon(); b.close()\n"
     "if not os.fork(): threading.Event().wait()\na.recv(1)",
     WaitKind.SOCKET, "a local socket"),
    ("local_socket_of_a_child_that_is_stuck",
     "import os, socket, threading\na, b = socket.socketpair()\nif not os.fork(): threading.Event().wait()\n"
     "b.close(); a.recv(1)",
     WaitKind.THREAD, ""),
    ("datagram_beside_a_child",
     "import os, socket, threading\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0))\n"
     "if not os.fork(): threading.Event().wait()\ns.recv(1)",
     WaitKind.SOCKET, "127.0.0.1:"),
    ("asyncio", "import asyncio; asyncio.run(asyncio.sleep(600))", WaitKind.TIMED, ""),
    ("worker_that_sleeps", QUEUE + "fetch('long')[0].get()", WaitKind.CHILD, ""),
    ("worker_that_is_stuck", QUEUE + "fetch('ever')[0].get()", WaitKind.THREAD, ""),
    ("worker_that_is_stopped",
     QUEUE + "import os, signal\nqueue, child = fetch('long')\nos.kill(child.pid, signal.SIGSTOP)\nqueue.get()",
     WaitKind.STOPPED, ""),
    ("pool", "import multiprocessing as mp, time\nmp.Pool(2).map(time.sleep, [600])", WaitKind.CHILD, ""),
    ("thread_that_waits_for_a_socket",
     SERVER + "import threading\nport = int(child.stdout.readline())\n"
     "s = socket.create_connection(('127.0.0.1', port))\nt = threading.Thread(target=s.recv, args=(1,), daemon=True)\n"
     "t.start(); t.join()",
     WaitKind.CHILD, "socket"),
    ("library_that_waits_for_its_own_thread", LIBRARY + "module('site-packages').finish()", WaitKind.TIMED, ""),
    ("lock_beside_a_thread_of_a_library", LIBRARY + "module('site-packages')\nthreading.Event().wait()",
     WaitKind.THREAD, ""),
    ("lock_beside_a_thread_of_a_script_in_a_folder_called_like_a_library",
     LIBRARY + "module('src')\nthreading.Event().wait()", WaitKind.TIMED, ""),
    ("injected_hang",
     "import rankwatch\nfrom rankwatch.faults.actions import rankwatch_injected_hang as hang\n"
     "rankwatch.init(monitor='http://127.0.0.1:9', rank=0, world_size=1)\nhang(1e9)", WaitKind.THREAD, ""),
    ("asynchronous_io", AIO + "call(GET, context, 1, 1, buffer, None)", WaitKind.STORAGE, ""),
    ("eventfd_beside_a_native_thread_that_sleeps", NATIVE + "os.eventfd_read(os.eventfd(0))", WaitKind.UNKNOWN, ""),
    ("lock_beside_a_native_thread_that_sleeps", NATIVE + "threading.Event().wait()", WaitKind.THREAD, ""),
    ("native_code_of_a_package_beside_a_native_thread_that_sleeps",
     NATIVE + "os.makedirs('site-packages')\nPath('site-packages/store.py').write_text(\n"
     "    'import ctypes\\ndef get(lock): ctypes.PyDLL(None).PyThread_acquire_lock(lock, 1)')\n"
     "sys.path.insert(0, 'site-packages')\nimport store\n"
     "allocate = ctypes.PyDLL(None).PyThread_allocate_lock\nallocate.restype = ctypes.c_void_p\n"
     "lock = ctypes.c_void_p(allocate())\nstore.get(lock)\nstore.get(lock)", WaitKind.UNKNOWN, ""),
    ("lock_in_a_file_called_like_the_debugger",
     "import sys; from pathlib import Path\nPath('pdb.py').write_text('import threading; threading.Event().wait()')\n"
     "sys.path.insert(0, ''); import pdb", WaitKind.THREAD, ""),
    ("queue_that_a_server_in_a_thread_fills", SERVES + "queue.get()", WaitKind.SOCKET, "127.0.0.1:"),
    ("queue_that_an_asynchronous_server_in_a_thread_fills",
     "import asyncio, threading\nasync def serve():\n"
     "    async with await asyncio.start_server(print, '127.0.0.1', 0) as server: await server.serve_forever()\n"
     "threading.Thread(target=asyncio.run, args=(serve(),), daemon=True).start()\nthreading.Event().wait()",
     WaitKind.SOCKET, "127.0.0.1:"),
    ("lock_beside_a_server_of_pythons_own",
     "import os, threading\nfrom multiprocessing.resource_sharer import DupFd\n"
     "DupFd(os.dup(0))\nthreading.Event().wait()", WaitKind.THREAD, ""),
    ("eventfd_beside_a_native_server", NATIVE_SERVER + "os.eventfd_read(os.eventfd(0))", WaitKind.UNKNOWN, ""),
    ("lock_beside_a_native_server", NATIVE_SERVER + "threading.Event().wait()", WaitKind.THREAD, ""),
    ("lock_of_the_script_beside_a_native_thread_that_sleeps",
     NATIVE + "lock = threading.Lock(); lock.acquire(); lock.acquire()", WaitKind.UNKNOWN, ""),
    ("lock_beside_a_thread_that_reads_keys",
     "import os, pty, threading\n_, terminal = pty.openpty()\ndef keys(): os.read(terminal, 1)\n"
     "threading.Thread(target=keys, daemon=True).start()\nthreading.Event().wait()", WaitKind.EVENT, "/dev/pts/"),
    ("lock_that_an_alarm_ends",
     "import signal, threading\nsignal.signal(signal.SIGALRM, lambda *_: 1 / 0); signal.alarm(600)\n"
     "threading.Event().wait()", WaitKind.UNKNOWN, ""),
    ("lock_in_a_script_that_runs_in_the_debugger",
     "import runpy, sys\nopen('train.py', 'w').write('import threading; threading.Event().wait()')\n"
     "sys.argv = ['pdb', '-c', 'c', 'train.py']; runpy.run_module('pdb', run_name='__main__')", WaitKind.THREAD, ""),
    ("process_shared_lock", "import multiprocessing as mp; l = mp.Lock(); l.acquire(); l.acquire()",
     WaitKind.THREAD, ""),
]  # fmt: skip


def at_rest(pid: int) -> bool:
    """Whether the main thread sleeps, and did not wake up between two looks."""
    looks = []
    for _ in range(2):
        time.sleep(0.3)
        status = _read(f"/proc/{pid}/status")
        looks.append(re.findall(r"^(?:State:\s+S|voluntary_ctxt_switches:.*)", status, flags=re.MULTILINE))
    return len(looks[0]) == 2 and looks[0] == looks[1]


@pytest.mark.parametrize(("code", "kind", "target"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_wait_is_recognised(code: str, kind: WaitKind, target: str, tmp_path: Path) -> None:
    with process(code, tmp_path) as child:
        if kind is WaitKind.UNKNOWN:  # as it also is while the process starts
            wait_for(lambda: at_rest(child.pid), "the wait", 15)
        wait_for(lambda: (found := read(child.pid)).kind is kind and target in found.target, str(kind), 15)


def test_the_end_of_a_sleep_is_known(tmp_path: Path) -> None:
    with process("import time; time.sleep(600)", tmp_path) as child:
        wait_for(lambda: (left := read(child.pid).seconds) is not None and 500 < left <= 600, "the time left", 15)


def test_a_debugger_that_asks_for_input_is_one(tmp_path: Path) -> None:
    code = "import os, pdb, sys\nos.mkfifo('f')\nsys.stdin = os.fdopen(os.open('f', os.O_RDWR))\npdb.set_trace()\nx = 1"
    with process(code, tmp_path) as child:
        wait_for(lambda: read(child.pid).kind is WaitKind.DEBUGGER, "the debugger", 15)


@pytest.mark.parametrize(("function", "debugged"), [("PyDB._do_wait_suspend", True), ("PyDBDaemonThread.run", False)])
def test_only_what_an_ide_suspended_is_debugged(function: str, debugged: bool, tmp_path: Path) -> None:
    """Its threads run beside each script that it started."""
    with process("import threading; threading.Event().wait()", tmp_path) as child:
        wait_for(lambda: at_rest(child.pid), "the wait", 15)
        others = {child.pid + 1: PythonThread("ide", (Frame(function, "/ide/debugpy/_vendored/pydevd/pydevd.py", 1),))}
        assert (wait_of(child.pid, others, _parents()).wait.kind is WaitKind.DEBUGGER) is debugged


def test_a_process_that_a_debugger_holds_is_not_stopped(tmp_path: Path) -> None:
    ptrace, attach, detach = ctypes.CDLL(None, use_errno=True).ptrace, 16, 17
    with process("import threading; threading.Event().wait()", tmp_path) as child:
        assert ptrace(attach, child.pid, None, None) == 0, os.strerror(ctypes.get_errno())
        try:
            wait_for(lambda: read(child.pid).kind is WaitKind.DEBUGGER, "the debugger", 15)
            assert procfs.process_state(child.pid) is ProcessState.ALIVE
        finally:
            ptrace(detach, child.pid, None, None)


TRACER, SCRIPT, EXPORTER = (
    "/v/site-packages/sentry_sdk/integrations/threading.py",
    "/u/train.py",
    "/v/site-packages/wandb/",
)
THREADING, POOL = "/usr/lib/python3.12/threading.py", "/usr/lib/python3.12/concurrent/futures/thread.py"


@pytest.mark.parametrize(
    ("outermost_first", "libraries"),
    [
        ([("run", THREADING), ("_send", EXPORTER), ("get", "/usr/lib/python3.12/queue.py")], {"wandb"}),
        ([("run", THREADING), ("_send", EXPORTER), ("request", "/v/site-packages/requests/api.py")], {"wandb"}),
        ([("run", TRACER), ("run", THREADING), ("produce", SCRIPT)], set()),
        ([("run", TRACER), ("run", THREADING), ("_worker", POOL)], set()),
        ([("run", TRACER), ("_run", TRACER), ("Producer.run", SCRIPT)], set()),
        ([("run", TRACER), ("run", "/v/site-packages/streaming/prefetch.py")], set()),
        ([("run", TRACER), ("run", THREADING), ("_send", EXPORTER)], {"wandb"}),
        ([("run", THREADING), ("produce", SCRIPT), ("__iter__", "/v/site-packages/tqdm/std.py")], set()),
        ([("run", THREADING), ("load", "/v/site-packages/datasets/a.py"), ("f", "/v/site-packages/tqdm/s.py")], set()),
        ([("run", THREADING), ("run", "/v/site-packages/tqdm/_monitor.py")], {"tqdm"}),
        ([("run", THREADING), ("wait", THREADING)], set()),
    ],
)
def test_a_thread_is_a_librarys_only_if_the_library_started_it_for_itself(
    outermost_first: list[tuple[str, str]], libraries: set[str]
) -> None:
    frames = tuple(Frame(function, file, 1) for function, file in reversed(outermost_first))
    assert PythonThread("thread", frames).libraries == libraries


def test_another_architecture_is_unknown() -> None:
    assert wait_of(os.getpid(), {}, {}, machine="riscv64").wait == Wait(WaitKind.UNKNOWN)


HEADERS = {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}
NAMES = {
    "aio": ("io_getevents", "io_pgetevents"),
    "io_uring": ("io_uring_enter",),
    "recv": ("recvfrom", "recvmsg", "recvmmsg"), "read": ("read", "readv", "pread64"),
    "write": ("write", "writev", "pwrite64"), "send": ("sendto", "sendmsg"), "select": ("select", "pselect6"),
    "epoll": ("epoll_wait", "epoll_pwait"), "epoll2": ("epoll_pwait2",), "fsync": ("fsync", "fdatasync"),
    "accept": ("accept", "accept4"), "sigwait": ("rt_sigtimedwait",), "semop": ("semop", "semtimedop"),
    "pause": ("pause", "rt_sigsuspend"),
}  # fmt: skip


@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_of_system_calls_are_those_of_the_kernel(machine: str) -> None:
    header = Path("/usr/include", HEADERS[machine])
    if not header.exists():
        pytest.skip(f"{header} is not installed")
    text = re.sub(r"__NR3264_", "__NR_", header.read_text())
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", text)}
    wanted = [name for word in SYSTEM_CALLS["x86_64"].values() for name in NAMES.get(word, (word,))]
    there = {numbers[name] for name in wanted if name in numbers}
    assert there == set(SYSTEM_CALLS[machine])
    assert all(
        numbers.get(name) in (None, *(n for n, w in SYSTEM_CALLS[machine].items() if w == word))
        for word in SYSTEM_CALLS["x86_64"].values()
        for name in NAMES.get(word, (word,))
    )


@pytest.mark.parametrize(
    ("machine", "call", "kind"),
    [
        ("aarch64", "98 0x1 0x80 0x0 0x0", WaitKind.THREAD),
        ("aarch64", "98 0x1 0x80 0x0 0x1", WaitKind.TIMED),
        ("aarch64", "115 0x0 0x0 0x0 0x0", WaitKind.TIMED),
        ("aarch64", "82 0x3", WaitKind.STORAGE),
        ("aarch64", "32 0x3 0x2", WaitKind.FILE_LOCK),
        ("x86_64", "202 0x1 0x80 0x0 0x0", WaitKind.THREAD),
        ("x86_64", "73 0x3 0x2", WaitKind.FILE_LOCK),
        ("ppc64le", "202 0x1 0x80 0x0 0x0", WaitKind.UNKNOWN),
    ],
)
def test_the_numbers_are_those_of_the_machine(tmp_path: Path, machine: str, call: str, kind: WaitKind) -> None:
    words = call.split()
    shown(tmp_path, 7, [7], " ".join(words + ["0x0"] * (9 - len(words))))
    assert wait_of(7, {}, {}, proc=tmp_path, machine=machine).wait.kind is kind


def test_a_file_system_without_these_files_is_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "7" / "task" / "7"
    folder.mkdir(parents=True)
    (folder / "stat").write_text("7 (python) S 1 7 7 0 -1 0")
    assert wait_of(7, {}, {}, proc=tmp_path).wait.kind is WaitKind.UNKNOWN


# Large and strange processes, as /proc shows them ---------------------------------------------------------------------

LOCKED = "202 0x1 0x80 0x0 0x0 0x0 0x0 0x0 0x0"
"""futex, of this process alone, without a time limit."""


def shown(proc: Path, pid: int, tids: Iterable[int], call: str, comm: str = "python") -> None:
    """A process all of whose threads are in this system call."""
    for tid in tids:
        folder = proc / str(pid) / "task" / str(tid)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{tid} ({comm}) S 1 7 7 0 -1 0")
        (folder / "syscall").write_text(call)
        (folder / "comm").write_text(comm)


@pytest.mark.parametrize("child", ["gone", "zombie", "stuck", "unknown"])
def test_a_wait_for_a_child_is_over_once_that_has_ended(tmp_path: Path, child: str) -> None:
    shown(tmp_path, 7, [7], "61 0x8 0x0 0x0 0x0 0x0 0x0 0x0 0x0")
    parents = {7: 1, 8: 7}
    if child != "gone":
        shown(tmp_path, 8, [8], LOCKED)
    if child == "zombie":
        (tmp_path / "8" / "task" / "8" / "stat").write_text("8 (sleep) Z 7 7 7 0 -1 0")
    if child == "unknown":
        parents = {7: 1, 9: 7}
        shown(tmp_path, 9, [9], LOCKED)
    wait = wait_of(7, {}, parents, proc=tmp_path, machine="x86_64").wait
    assert wait.kind is (WaitKind.THREAD if child == "stuck" else WaitKind.RUNNING)


def test_a_deadlock_of_hundreds_of_threads_is_recognised(tmp_path: Path) -> None:
    shown(tmp_path, 7, range(7, 607), LOCKED)
    assert wait_of(7, {}, {}, proc=tmp_path, machine="x86_64").wait == Wait(WaitKind.THREAD)


def test_of_more_threads_than_are_looked_at_nothing_is_concluded(tmp_path: Path) -> None:
    shown(tmp_path, 7, range(7, 9 + MAX_THREADS), LOCKED)
    assert wait_of(7, {}, {}, proc=tmp_path, machine="x86_64").wait == Wait(WaitKind.UNKNOWN)


def test_of_a_long_line_of_children_nothing_is_concluded(tmp_path: Path) -> None:
    pids = range(7, 507)
    for pid in pids:
        shown(tmp_path, pid, [pid], "61 0xffffffff 0x0 0x0 0x0 0x0 0x0 0x0 0x0")
    parents = {pid + 1: pid for pid in pids[:-1]}
    assert wait_of(7, {}, parents, proc=tmp_path, machine="x86_64").wait == Wait(WaitKind.UNKNOWN)


def test_of_more_descriptors_than_are_looked_at_nothing_is_concluded(tmp_path: Path) -> None:
    shown(tmp_path, 7, [7], "232 0x3 0x0 0x1 0xffffffff 0x0 0x0 0x0 0x0")
    for folder in ("fd", "fdinfo"):
        (tmp_path / "7" / folder).mkdir()
    numbers = range(4, 6 + MAX_DESCRIPTORS)
    for number in numbers:
        (tmp_path / "7" / "fd" / str(number)).symlink_to("anon_inode:[eventfd]")
    (tmp_path / "7" / "fdinfo" / "3").write_text("".join(f"tfd: {number} events: 1\n" for number in numbers))
    assert wait_of(7, {}, {}, proc=tmp_path, machine="x86_64").wait == Wait(WaitKind.UNKNOWN)


def test_names_are_cut_and_no_terminal_obeys_them(tmp_path: Path) -> None:
    shown(tmp_path, 7, [7], LOCKED)
    shown(tmp_path, 7, [8], "0 0x3 0x0 0x0 0x0 0x0 0x0 0x0 0x0", comm="\x1b[2J")
    (tmp_path / "7" / "fd").mkdir()
    (tmp_path / "7" / "fd" / "3").symlink_to("/dev/pts/" + "\x1b\n\u202e" * 60)
    found = wait_of(7, {}, {}, proc=tmp_path, machine="x86_64").wait
    assert found.kind is WaitKind.EVENT
    assert found.target.isprintable()
    assert found.through == "\\x1b[2J"
    assert len(found.target) <= 256
