"""Pictures of real jobs as the page shows them: ``python tests/web/real_pictures.py FOLDER [NAME …]``.

Real: launchers, ranks over gloo, faults, the monitor, the page and Chromium. Emulated: the ranks and launchers of
``emulated`` (``benchmarks/load.py``). Each moment is taken on a desk, on a phone, in the dark theme and as printed:
``FOLDER/NAME-VARIANT.png``. A page is open from the start of its job, so it is the live one that is taken.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, TimeoutError

sys.path.insert(0, str(Path(__file__).parents[1]))

from e2e.training import HOST, STEPS, Training
from support.browser import chromium
from support.forked import ForkedPopen
from support.forked_ranks import launcher_code
from support.monitor_process import Api, RunningMonitor, environment, running_monitor
from support.ports import free_port
from support.waiting import wait_for
from web.screenshots import COMPLETE, DESK, PHONE, watch

LOAD: Final = Path(__file__).parents[2] / "benchmarks" / "load.py"
EMULATED: Final = 16_384
PAPER: Final = (794, 1123)
"""A4 at 96 pixels an inch."""
VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "desk": {"viewport": {"width": DESK[0], "height": DESK[1]}},
    "phone": {"viewport": {"width": PHONE[0], "height": PHONE[1]}},
    "dark": {"viewport": {"width": DESK[0], "height": DESK[1]}, "color_scheme": "dark"},
    "print": {"viewport": {"width": PAPER[0], "height": PAPER[1]}},
}
QUICK: Final = ("--section-timeout", "step=4")
OTHER_HOST: Final = """
import ctypes, socket
ctypes.CDLL(None).unshare(0x04000000)  # CLONE_NEWUTS
socket.sethostname({host!r})
"""
"""What a launcher and its ranks run first that are on another node as far as they can see; needs root."""
RUN: Final = "from rankwatch.cli.main import main; sys.exit(main())"


class Album:
    """One page in each variant."""

    def __init__(self, browser: Browser, url: str, folder: Path) -> None:
        self._pages: dict[str, Page] = {}
        self._folder, self.url = folder, url
        for variant, options in VARIANTS.items():
            page = browser.new_context(**options).new_page()
            watch(page)
            page.goto(url)
            if variant == "print":
                page.emulate_media(media="print")
            self._pages[variant] = page

    def open(self, address: str) -> None:
        """Show a view in all of them."""
        for page in self._pages.values():
            page.goto(f"{self.url}/{address}")

    def take(self, name: str, state: str = "", patience: int = 60_000) -> None:
        """Take each page once it shows this state of the job, and is complete or changes every second."""
        for variant, page in self._pages.items():
            page.locator("main :is(article, .fleet)").wait_for(timeout=patience)
            if state:
                page.locator(f"article.job[data-state='{state}']").wait_for(timeout=patience)
            with suppress(TimeoutError):
                page.wait_for_function(COMPLETE, timeout=5_000)
            page.screenshot(path=self._folder / f"{name}-{variant}.png", full_page=True, timeout=180_000)
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()


class Shoot:
    """The jobs, one after the other, each by its name; a method is one picture or several of one job."""

    def __init__(self, album: Album, monitor: RunningMonitor, folder: Path) -> None:
        self.album, self.monitor, self.folder = album, monitor, folder

    @contextmanager
    def job(self, name: str) -> Iterator[Training]:
        (self.folder / name).mkdir()
        training = Training(self.folder / name, f"gpt-{name}")
        training.follow(self.monitor.url)
        self.album.open(f"#/jobs/gpt-{name}")
        try:
            yield training
        finally:
            training.close()

    def state(self, training: Training, *states: str) -> str:
        return str(training.until(f"the job is {states}", lambda: _in(training.summary(), "state", states)))

    def crash(self) -> None:
        with self.job("crash") as training:
            fault = "rank=1,step=35,kind=exception;rank=1,step=55,kind=exception,attempt=2"
            training.run("--max-restarts", "1", ranks=3, inject=fault)
            training.launchers[-1].wait()
            self.album.take("crash", "failed")

    def hang_restart(self) -> None:
        with self.job("hang-restart") as training:
            training.run(*QUICK, ranks=2)
            training.until_running(2)
            training.strike("rank=1,kind=hang")
            self.state(training, "hung", "restarting")
            self.album.take("hang-restart-during")
            training.until_running(2, attempt=2)
            self.album.take("hang-restart")
            training.finish()

    def hang_log(self) -> None:
        with self.job("hang-log") as training:
            training.run(*QUICK, "--on-hang", "log", ranks=3)
            training.until_running(3)
            training.strike("rank=1,kind=hang")
            self.state(training, "hung")
            training.until("stacks are in", lambda: training.incidents()[0]["timeline"]["captured"])
            self.album.take("hang-log", "hung")
            self.album.open("#/")
            self.album.take("fleet")
            self.album.open(f"#/nodes/{HOST}")
            self.album.take("node")

    def suspicion(self) -> None:
        with self.job("suspicion") as training:
            training.run("--learned-minimum", "2", "--confirmation-window", "60", ranks=2)
            training.until_running(2)
            rows = lambda: any(row["learned"] for row in training.summary()["timeouts"])  # noqa: E731
            training.until("a limit is learned", rows)
            training.strike("rank=1,kind=hang,seconds=45")
            self.state(training, "suspected")
            self.album.take("suspicion-during", "suspected")
            training.until("it ends by itself", lambda: training.incidents()[0]["closed_at"])
            self.album.take("suspicion", "running")
            self.album.open(f"#/jobs/gpt-suspicion/incidents/{training.incidents()[0]['id']}")
            self.album.take("suspicion-past")
            training.finish()

    def straggler(self) -> None:
        with self.job("straggler") as training:
            script = ("--slow", "data=0.2", "--slow-rank", "2")
            training.run("--profiling-interval", "16", ranks=3, script=script)
            self.state(training, "slow")
            training.until("goodput is known", lambda: training.summary()["goodput"] is not None)
            self.album.take("straggler", "slow")
            for tab in ("timeline", "kernels", "charts", "control"):
                self.album.open(f"#/jobs/gpt-straggler?tab={tab}")
                self.album.take(f"straggler-{tab}")
            training.finish()

    def two_node(self) -> None:
        with self.job("two-node") as training:
            self.nodes(training)
            training.until_running(4)
            self.album.take("two-node", "running")
            training.strike("rank=3,kind=hang")
            self.state(training, "hung")
            training.until("stacks are in", lambda: training.incidents()[0]["timeline"]["captured"])
            self.album.take("two-node-hung", "hung")
            self.album.open("#/nodes/node-b")
            self.album.take("two-node-node")

    def lost_node(self) -> None:
        with self.job("lost-node") as training:
            self.nodes(training, "--max-restarts", "1")
            training.until_running(4)
            training.launchers[1].process.kill()  # its ranks end with it
            training.until("it is given up", lambda: any(each["lost"] for each in training.summary()["nodes"]))
            self.album.take("lost-node")
            self.album.open("#/nodes/node-b")
            self.album.take("lost-node-node")
            left = training.processes()
            for pid in left:
                os.kill(pid, signal.SIGSTOP)
            try:
                self.album.open(f"#/jobs/{training.job}")
                self.album.take("lost", "lost", patience=200_000)
            finally:
                for pid in left:
                    os.kill(pid, signal.SIGCONT)

    def nodes(self, training: Training, *flags: str) -> None:
        """Start two launchers of two ranks each, the second on a node of another name; the first has the store."""
        port = free_port()
        place = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--local-addr", "127.0.0.1"]
        place += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", training.job]
        place += ["--monitor", self.monitor.url]
        common = ["run", *place, "--job-id", training.job, *QUICK, "--on-hang", "log", *flags, *training.script()]
        for host in (HOST, "node-b"):
            training.start(["-c", OTHER_HOST.format(host=host) + launcher_code(RUN), *common], GLOO_SOCKET_IFNAME="lo")
            wait_for(lambda: answers(port), "the store is there", 60)

    def preempted(self) -> None:
        with self.job("preempted") as training:
            training.run("--stop-signal", "SIGTERM", ranks=2)
            training.until_running(2)
            training.launchers[-1].process.send_signal(signal.SIGTERM)
            training.launchers[-1].wait()
            self.album.take("preempted", "stopped")

    def stopped(self) -> None:
        with self.job("stopped") as training:
            training.run(ranks=2)
            training.until_running(2)
            training.order("stop", "wrong learning rate")
            training.launchers[-1].wait()
            self.album.take("stopped", "stopped")

    def finished(self) -> None:
        with self.job("finished") as training:
            training.run(ranks=2, script=("--steps", str(20 * STEPS)))
            self.state(training, "running")
            training.until("steps are measured", lambda: training.summary()["vitals"]["step"])
            self.album.take("running", "running")
            training.launchers[-1].wait()
            self.album.take("finished", "finished")

    def emulated(self) -> None:
        flags = ["--ranks", str(EMULATED), "--interval", "20", "--launchers", "--seconds", "600", "--warm-up", "20"]
        command = [sys.executable, str(LOAD), "--url", self.monitor.url, *flags, "--fault", "rank=4711,at=60,kind=hang"]
        with (self.folder / "load.log").open("wb") as log, Api(self.monitor.url) as api:
            load = ForkedPopen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment()
            )
            try:
                large: Callable[[], Any] = lambda: next(  # noqa: E731
                    (each for each in api.jobs() if each["world_size"] == EMULATED), None
                )
                job = wait_for(large, "the emulated job is there", 300)["id"]
                self.album.open(f"#/jobs/{job}")
                # On a busy machine many reports are on their way at any time.
                wait_for(lambda: large()["ranks_reporting"] > 0.5 * EMULATED, "its ranks report", 600)
                self.album.take("emulated-running")
                wait_for(lambda: large()["state"] in ("hung", "restarting"), "its hang is found", 600)
                self.album.take("emulated")
                self.album.open("#/")
                self.album.take("emulated-fleet")
            finally:
                load.kill()
                load.wait()


def _in(job: dict[str, Any], name: str, values: tuple[str, ...]) -> str:
    return job[name] if job and job[name] in values else ""


def answers(port: int) -> bool:
    """Whether something listens at a port of loopback."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


NAMES: Final = (
    *("stopped", "preempted", "finished", "crash", "hang_restart", "suspicion", "straggler"),
    *("two_node", "lost_node", "hang_log", "emulated"),
)


def main() -> None:
    """Take the pictures."""
    folder, chosen = Path(sys.argv[1]), set(sys.argv[2:]) or set(NAMES)
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_monitor(Path(scratch) / "monitor") as monitor,
        chromium() as browser,
    ):
        shoot = Shoot(Album(browser, monitor.url, folder), monitor, Path(scratch))
        for name in NAMES:
            if name in chosen:
                getattr(shoot, name)()


if __name__ == "__main__":
    main()
