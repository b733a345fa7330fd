"""Several real monitors on one database: a job has one of them, and another one once that is gone."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from support.http_receiver import HttpReceiver, http_receiver
from support.launcher import AT_WORK, PlayedLauncher, polling
from support.monitor_process import Api, RunningMonitor, environment, running_monitor
from support.nginx import running_nginx
from support.otlp import PROTOBUF, body, reports_of_all
from support.waiting import wait_for

WORLD, LIMIT, LEASE = 2, 2.0, 3


class Pair:
    """Two monitors, ``a`` and ``b``, on one database; more may be started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.database = folder, folder / "shared.db"
        self._stack = ExitStack()
        self.monitors: dict[str, RunningMonitor] = {}
        self.apis: dict[str, Api] = {}

    def start(self, name: str, *more: str) -> Api:
        shared = ("--shared-as", name, "--lease", str(LEASE), *more)
        of = running_monitor(self.folder / f"{name}{len(self.monitors)}", *shared, database=self.database)
        self.monitors[name] = self._stack.enter_context(of)
        self.apis[name] = self._stack.enter_context(Api(self.monitors[name].url))
        return self.apis[name]

    @contextmanager
    def ends(self) -> Iterator[Pair]:
        with self._stack:
            yield self

    def freeze(self, name: str) -> None:
        """Stop a monitor, but not while it writes: SQLite would wait for the end of that, which cannot be forced."""
        with closing(sqlite3.connect(self.database, isolation_level=None, timeout=60.0)) as connection:
            connection.execute("begin immediate")
            os.kill(self.monitors[name].pid, signal.SIGSTOP)
            connection.execute("rollback")

    def count(self, table: str) -> int:
        """Rows of a table."""
        with sqlite3.connect(self.database) as connection:
            return int(connection.execute(f"select count(*) from {table}").fetchone()[0])

    def numbers(self) -> list[int]:
        """The numbers of all directives that were committed, in their order."""
        with sqlite3.connect(self.database) as connection:
            return [number for (number,) in connection.execute("select id from directives order by id")]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with Pair(tmp_path).ends() as both:
        both.start("a")
        both.start("b")
        yield both


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as made:
        yield made


def send(api: Api, job: str, *, named: bool = True, **more: object) -> int:
    """Post the reports of all ranks of a job; return the status."""
    headers = {**PROTOBUF, **({"Rankwatch-Job": quote(job, safe="")} if named else {})}
    return api.post("/v1/metrics", content=body(*reports_of_all(job, WORLD, **more)), headers=headers).status_code  # type: ignore[arg-type]


def asked(api: Api, job: str) -> int:
    """The status of a report that is sent again where the monitor is busy, as every sender does."""
    return wait_for(lambda: status if (status := send(api, job)) != 429 else 0, "an answer about the job")


def taken(api: Api, job: str, *, named: bool = True) -> None:
    wait_for(lambda: send(api, job, named=named) == 200, f"{job} is taken up", 90.0)


def abandon(monitor: RunningMonitor, job: str) -> None:
    """Begin a report and leave before its response."""
    address = urlsplit(monitor.url)
    lines = f"POST /v1/metrics HTTP/1.1\r\nhost: {address.netloc}\r\nrankwatch-job: {job}\r\ncontent-length: 100\r\n"
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(f"{lines}content-type: application/x-protobuf\r\n\r\nhalf".encode())


def test_the_one_that_is_spoken_to_holds_the_job_and_the_other_states_whose_it_is(pair: Pair) -> None:
    a, b = pair.apis["a"], pair.apis["b"]
    job = "run 1 ü"
    taken(a, job)
    statuses = []

    def refused() -> bool:
        answer = b.post(
            "/v1/metrics",
            content=body(*reports_of_all(job, WORLD)),
            headers={**PROTOBUF, "Rankwatch-Job": quote(job, safe="")},
        )
        assert answer.headers["Retry-After"] == "1"
        statuses.append(answer.status_code)
        return answer.status_code == 503

    wait_for(refused, "it knows the holder")
    assert statuses == [429] * (len(statuses) - 1) + [503], "a proxy asks no other before it is known whose it is"
    answer = b.get(f"/api/v1/jobs/{quote(job, safe='')}")
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"].startswith(
        f"job {job!r} is held by monitor a at {pair.monitors['a'].url}: ask there"
    )
    assert a.job(job)["world_size"] == WORLD
    seen = wait_for(lambda: [each for each in b.jobs() if each["id"] == job], "the other lists it as well")
    assert (seen[0]["monitor"], seen[0]["state"]) == ("a", "running")
    assert [each.get("monitor") for each in a.jobs()] == [None]
    assert [b.get("/api/v1/jobs/never").status_code for _ in range(3)] == [404, 404, 404]


def test_reports_without_the_header_are_looked_at_job_by_job(pair: Pair) -> None:
    a, b = pair.apis["a"], pair.apis["b"]
    taken(a, "first", named=False)
    taken(b, "second", named=False)
    assert send(b, "first", named=False) == 503
    both = b.post(
        "/v1/metrics",
        content=body(*reports_of_all("first", WORLD), *reports_of_all("second", WORLD, resumed_at=9)),
        headers=PROTOBUF,
    )
    assert both.status_code == 200, "what is ours is taken"
    assert b.rejected()["held_elsewhere"] > 0


def test_a_killed_monitors_job_goes_on_with_another(pair: Pair) -> None:
    a, b = pair.apis["a"], pair.apis["b"]
    launcher = PlayedLauncher(a, "j", ranks=range(WORLD))
    wait_for(lambda: a.get("/api/v1/jobs/j").status_code == 404, "it is unknown there")
    launcher.register(policy={"section_timeouts": {"step": LIMIT}, "max_restarts": 9})
    launcher.start(1, WORLD)
    assert asked(a, "j") == 200
    a.change_policy("j", capture_deadline=60)
    assert launcher.next_directive("settings")["id"] == 1
    pair.monitors["a"].kill()

    launcher.api = b
    taken(b, "j")
    assert b.job("j")["policy"]["capture_deadline"] == 60
    assert [node["node"] for node in b.job("j")["nodes"]] == ["node-a"]
    assert b.incidents("j") == [], "nothing looked for a while, which is no alarm"
    send(b, "j", overdue=LIMIT + 1)
    capture = launcher.next_directive("capture")
    launcher.send_stacks(capture, dict.fromkeys(range(WORLD), AT_WORK))
    assert launcher.next_directive("restart")["id"] > capture["id"] > 1
    assert pair.numbers() == sorted(set(pair.numbers()))


def test_a_monitor_that_was_stopped_for_too_long_issues_nothing(pair: Pair) -> None:
    a, b = pair.apis["a"], pair.apis["b"]
    launcher = PlayedLauncher(a, "j", ranks=range(WORLD))
    launcher.register(policy={"section_timeouts": {"step": LIMIT}})
    launcher.start(1, WORLD)
    assert asked(a, "j") == 200
    before = pair.numbers()
    with polling(launcher, 25.0) as poll:
        pair.freeze("a")
        taken(b, "j")
        os.kill(pair.monitors["a"].pid, signal.SIGCONT)
        order = {"action": "restart", "reason": "it woke up and knows nothing"}
        answers: list[int] = []

        def held_elsewhere() -> bool:
            answers.append(a.post("/api/v1/jobs/j/actions", json=order).status_code)
            return answers[-1] != 429  # while it finds out, it is to be asked again

        wait_for(held_elsewhere, "it knows whose job it is")
        assert answers[-1] == 503
        wait_for(lambda: "lease lost to monitor b" in pair.monitors["a"].printed(), "it learns of it")
        wait_for(lambda: poll.ended_at, "those that wait for its orders are sent away")
        assert poll.found == []
        poll.error = None
    assert pair.numbers() == before
    assert [each.get("monitor") for each in a.jobs()] == ["b"]
    assert b.post("/api/v1/jobs/j/actions", json=order).status_code in (200, 202, 204)


def test_a_job_moves_to_the_monitor_that_it_speaks_to(pair: Pair) -> None:
    a, b = pair.apis["a"], pair.apis["b"]
    taken(a, "j")
    wait_for(lambda: send(b, "j") == 503, "it knows the holder")
    for _ in range(3):
        assert asked(a, "j") == 200
    assert [each.get("monitor") for each in a.jobs()] == [None], "it speaks to both: it stays where it is"
    taken(b, "j")  # from now on it speaks to b only
    assert "job j is handed over to monitor b" in pair.monitors["a"].printed()


def test_a_job_that_failed_over_goes_back_to_the_monitor_that_a_proxy_asks_first(pair: Pair) -> None:
    taken(pair.apis["a"], "j")
    pair.apis["a"].change_policy("j", capture_deadline=61)
    pair.monitors["a"].kill()
    taken(pair.apis["b"], "j")
    a = pair.start("a")
    answers: list[int] = []

    def report() -> bool:
        answers.append(asked(a, "j"))
        if answers[-1] == 503:
            send(pair.apis["b"], "j")  # as the proxy does
        return answers[-1] == 200

    wait_for(report, "the first takes it back", 60.0)
    assert 503 in answers, "it was held elsewhere before"
    assert a.job("j")["policy"]["capture_deadline"] == 61
    for _ in range(20):
        assert asked(a, "j") == 200, "and keeps it"
    assert "job j is handed over to monitor a" in pair.monitors["b"].printed()


def test_a_job_goes_to_the_monitor_that_a_proxy_asks_first_though_it_never_had_it(pair: Pair) -> None:
    """As where monitors were added, or where a proxy has another order than those that took over."""
    a, b = pair.apis["a"], pair.apis["b"]
    taken(b, "j")
    answers: list[int] = []

    def report(first: Api, then: Api) -> bool:
        answers.append(asked(first, "j"))
        if answers[-1] == 503:
            send(then, "j")  # as the proxy does
        return answers[-1] == 200

    wait_for(lambda: report(a, b), "the one that is asked first gets it", 60.0)
    assert 503 in answers
    assert "job j is handed over to monitor a" in pair.monitors["b"].printed()
    ends = time.monotonic() + 6 * LEASE
    while time.monotonic() < ends:
        assert report(a, b), "and keeps it"
        assert asked(b, "j") == 503, "also where the other is asked as often: no job wanders to and fro"
    assert "is handed over" not in pair.monitors["a"].printed()


def test_a_job_whose_senders_do_not_wait_for_the_response_stays(pair: Pair) -> None:
    """An overloaded monitor is late: a proxy tries the next one, and its report is not there when its turn comes."""
    a, b = pair.apis["a"], pair.apis["b"]
    taken(a, "j")
    wait_for(lambda: send(b, "j") == 503, "it knows the holder")
    asked: list[str | None] = []

    def considered() -> bool:
        abandon(pair.monitors["a"], "j")
        send(b, "j")
        with sqlite3.connect(pair.database) as connection:
            asked.extend(connection.execute("select asked_by from leases").fetchone())
        return sum(change == ("b", None) for change in pairwise(asked)) >= 5

    wait_for(considered, "the holder has considered several times whether to hand it over", 120.0)
    assert "is handed over" not in pair.monitors["a"].printed()


def test_a_new_job_is_acquired_by_the_monitor_that_the_proxy_chose(pair: Pair, tmp_path: Path) -> None:
    monitors = {monitor.url: name for name, monitor in pair.monitors.items()}
    jobs = [f"job-{number}" for number in range(20)]
    with running_nginx(tmp_path / "nginx", list(monitors)) as url, Api(url) as proxy:
        for job in jobs:
            taken(proxy, job)
    with sqlite3.connect(pair.database) as connection:
        rows = connection.execute("select owner, asked_by, generation from leases").fetchall()
    assert {owner for owner, _, _ in rows} == {"a", "b"}
    assert {row[1:] for row in rows} == {(None, 1)}, "the other was never asked"


def test_a_job_that_reports_rarely_and_has_no_launcher_stays_with_the_monitor_that_acquired_it(pair: Pair) -> None:
    """Its report goes to one monitor after the other, as by a proxy, and both acquire; the next comes much later."""
    both = pair.apis["a"], pair.apis["b"]

    def report() -> bool:
        return any(send(api, "j") == 200 for api in both)

    def moved() -> int:
        return sum(monitor.printed().count("job j is handed over") for monitor in pair.monitors.values())

    wait_for(report, "it is taken up")
    for _ in range(3):
        time.sleep(1.5 * LEASE)  # more than a lease without a report
        wait_for(report, "it is taken up again")
    assert moved() <= 1, "to the one that is asked first"


def test_a_lease_without_a_report_yet_is_not_handed_over(pair: Pair) -> None:
    a, b = pair.apis["a"], pair.apis["b"]
    for api in (a, b):
        assert send(api, "j") == 429, "it is acquired meanwhile"
    wait_for(lambda: pair.count("leases") == 1, "one of them has the lease")
    time.sleep(0.8 * LEASE)  # it is renewed meanwhile
    assert any(send(api, "j") == 200 for api in (a, b))


def test_a_monitor_that_ends_in_order_lets_its_jobs_go_at_once(pair: Pair) -> None:
    a, b = pair.apis["a"], pair.apis["b"]
    taken(a, "j")
    a.change_policy("j", capture_deadline=61)
    pair.monitors["a"].process.terminate()
    assert pair.monitors["a"].process.wait(30) == 0
    with sqlite3.connect(pair.database) as connection:
        assert connection.execute("select ends_at from leases").fetchall() == [(0.0,)]
    taken(b, "j")
    assert b.job("j")["policy"]["capture_deadline"] == 61


def test_what_a_killed_monitor_could_not_deliver_comes_from_the_next(pair: Pair, receiver: HttpReceiver) -> None:
    receiver.away()
    reported = ("--webhook", f"json={receiver.url}", "--webhook-events", "incident")
    first = pair.start("c", *reported)
    taken(first, "j")
    first.change_policy("j", section_timeouts={"step": LIMIT})
    send(first, "j", overdue=LIMIT + 1)
    wait_for(lambda: first.incidents("j"), "the hang is found")
    wait_for(lambda: pair.count("messages") == 1, "the message waits in the database")
    pair.monitors["c"].kill()
    receiver.back()
    second = pair.start("d", *reported)
    taken(second, "j")
    wait_for(lambda: receiver.taken and pair.count("messages") == 0, "it is delivered, and nothing waits any more")
    send(second, "j")  # the ranks go on
    wait_for(lambda: len(receiver.taken) >= 2, "its end is delivered")
    assert [each.json["event"] for each in receiver.taken] == ["incident_opened", "incident_closed"]


def test_a_monitor_that_shares_nothing_is_not_let_in(pair: Pair) -> None:
    command = [sys.executable, "-m", "rankwatch_monitor", "--port", "0", "--database", str(pair.database)]
    refused = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert "--shared-as" in refused.stderr
    assert "Traceback" not in refused.stderr
