"""A monitor that only records, and real launchers that are ended with everything they started."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from support.forked import ForkedPopen
from support.forked_ranks import launcher_code
from support.processes import without

SOURCES = [Path(__file__).parents[2] / name for name in ("telemetry", "monitor", "launcher")]
RUN = launcher_code("import sys; from rankwatch_launcher.cli.main import run; sys.exit(run(sys.argv[1:]))")


class FakeMonitor:
    """Answers as the monitor's control plane does and keeps all that it was sent."""

    def __init__(self, port: int = 0) -> None:
        self.posts: list[tuple[str, dict[str, Any]]] = []
        self.directives: list[dict[str, Any]] = []
        self.settings: dict[str, Any] = {}
        self.warnings: list[str] = []
        self.known = False
        self.closed = False
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        with self._changed:
            self.closed, self.known = True, False
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def order(self, kind: str, attempt: int, **fields: Any) -> int:
        with self._changed:
            number = len(self.directives) + 1
            directive = {"id": number, "kind": kind, "attempt": attempt, "reason": f"test {kind}", **fields}
            self.directives.append(directive)
            self._changed.notify_all()
        return number

    def of(self, path: str) -> list[dict[str, Any]]:
        """Bodies posted to a path below the job; a regular expression."""
        with self._changed:
            return [body for posted, body in self.posts if re.fullmatch(path, posted)]

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        events = [event for body in self.of("process-events") for event in body["events"]]
        return [e for e in events if kind is None or e["kind"] == kind]

    def acks(self, number: int) -> list[dict[str, Any]]:
        return self.of(f"directives/{number}/acks")

    def until(self, condition: Callable[[], Any], timeout: float = 60.0) -> Any:
        """Wait until something that depends on the posts is true, and return it."""
        until = time.monotonic() + timeout
        while not (found := condition()):
            with self._changed:
                if time.monotonic() > until:
                    raise AssertionError(f"not seen within {timeout:g} s; posts: {json.dumps(self.posts)[-4000:]}")
                self._changed.wait(0.1)
        return found

    def _take(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
        with self._changed:
            if path == "nodes":
                self.known = True
            elif not self.known:
                return 404, {"title": "no such job"}
            self.posts.append((path, body))
            self._changed.notify_all()
        if path == "nodes":
            return 200, {"job_id": "j", "settings": self.settings, "last_directive": 0, "warnings": self.warnings}
        return 204, None

    def _poll(self, after: int, wait: float) -> tuple[int, dict[str, Any]]:
        until = time.monotonic() + wait
        with self._changed:
            while self.known:
                if found := [d for d in self.directives if d["id"] > after]:
                    return 200, {"directives": found}
                if (left := until - time.monotonic()) <= 0:
                    return 200, {"directives": []}
                self._changed.wait(left)
            return 404, {"title": "no such job"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        monitor = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path.startswith("/v1/"):  # telemetry of ranks: not what is looked at here
                    self._answer(200, None)
                    return
                body = json.loads(content)
                self._answer(*monitor._take(urlsplit(self.path).path.split("/", 5)[5], body))

            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)
                if "after" not in query:  # what the launcher's last lines ask for
                    self._answer(404, {"title": "not here"})
                    return
                self._answer(*monitor._poll(int(query["after"][0]), float(query["wait"][0])))

            def _answer(self, status: int, body: dict[str, Any] | None) -> None:
                data = b"" if body is None else json.dumps(body).encode()
                self.close_connection = True
                if monitor.closed:
                    return
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(data)))
                    self.send_header("Connection", "close")
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


class Launcher:
    """A real ``rankwatch run`` in a process group of its own."""

    def __init__(self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], name: str) -> None:
        self._log = cwd / f"{name}.log"
        clean = without(("RANKWATCH_", "PET_", "SLURM_", "TORCHELASTIC"))
        path = os.pathsep.join(map(str, SOURCES))
        # The supervisor of --job-retries never imports torch.
        popen = subprocess.Popen if any(argument.startswith("--job-ret") for argument in arguments) else ForkedPopen
        with self._log.open("wb") as log:
            self.process = popen(
                [sys.executable, "-c", RUN, *arguments],
                cwd=cwd,
                env={**clean, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(cwd), **env},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def slots_folder(self) -> Path:
        """The folder of which the ranks printed that their slots are in."""
        found = re.search(r"slots in ([^>]*)>", self.output)
        assert found is not None, self.output
        return Path(found[1]).parent

    def wait(self, timeout: float = 60.0) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher did not end within {timeout:g} s:\n{self.output[-6000:]}") from None

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@pytest.fixture
def monitor() -> Iterator[FakeMonitor]:
    fake = FakeMonitor()
    yield fake
    fake.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    """Start a launcher; at teardown nothing that it started may be left."""
    launchers: list[Launcher] = []

    def begin(*arguments: str, env: Mapping[str, str] | None = None) -> Launcher:
        mark = {"RW_TEST_MARK": str(tmp_path)}
        launchers.append(Launcher(arguments, tmp_path, {**mark, **(env or {})}, f"launcher-{len(launchers)}"))
        return launchers[-1]

    yield begin
    for launcher in launchers:
        launcher.close()
    left = wait_for(lambda: not marked(str(tmp_path)), fail=False)
    strangers = marked(str(tmp_path))
    for pid in strangers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left, f"processes outlived their launcher: {strangers}"


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Write a training script: a preamble that meets over gloo and counts steps, then the given lines."""

    def write(body: str) -> str:
        path = tmp_path / "train.py"
        path.write_text(PREAMBLE + body)
        return str(path)

    return write


PREAMBLE = '''
import os, signal, sys, threading, time
from pathlib import Path
import torch, torch.distributed as dist
from rankwatch.recording import shared_slots as layout
from rankwatch.recording.shared_slots import Slots
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["RANKWATCH_ATTEMPT"])
FIRST = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

class Own:
    """The slots of this rank, written as rankwatch.init() does."""
    def __init__(self):
        folder = Path(os.environ["RANKWATCH_SLOTS_DIR"])
        local = int(os.environ["LOCAL_RANK"])
        self.slots = Slots.create(folder / f"{local}.slots")
        self.slots.claim(rank=RANK, local_rank=local, world_size=int(os.environ["WORLD_SIZE"]), attempt=ATTEMPT)
        self.words = self.slots.words
    def pulse(self):
        self.words[layout.LIVENESS_TICK] = time.monotonic_ns()
    def done(self, step):
        self.words[layout.ITERATION] = step + 1
    def stop_at(self):
        return self.words[layout.STOP_STEP] - 1

def meet():
    dist.init_process_group("gloo")

def together():
    t = torch.ones(1)
    dist.all_reduce(t)
    return t.item()

def say(text):
    print(f"<rank {RANK} attempt {ATTEMPT}: {text}>", flush=True)

def finish():
    """Without an interpreter that shuts down: gloo's threads sometimes abort it there (SIGABRT)."""
    os._exit(0)
'''


def wait_for(condition: Callable[[], Any], timeout: float = 60.0, *, fail: bool = True) -> Any:
    """Wait until something is true, and return it."""
    until = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > until:
            assert not fail, f"not seen within {timeout:g} s"
            return found
        time.sleep(0.02)
    return found


def marked(mark: str) -> list[int]:
    """Processes, zombies left out, whose environment carries a test's mark."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if f"RW_TEST_MARK={mark}\0".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found
