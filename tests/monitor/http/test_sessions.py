"""Sessions of browsers: a token becomes a cookie that is out of a script's reach, and opens what the token opens."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookies import SimpleCookie
from pathlib import Path

import pytest

from rankwatch.cli.open_page import open_page
from rankwatch_monitor.http.auth import Grant, Scope
from rankwatch_monitor.http.sessions import CODE_LIFETIME, GRACE, LIFETIME, MOST_CODES, Session, Sessions
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.waiting import wait_for

CONTROL, READ, INGEST = "control-secret", "read-secret", "ingest-secret"
READER = Grant(frozenset({Scope.READ}), "read")
SESSION = "/api/v1/session"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    flags = ("--token", CONTROL, "--read-token", READ, "--ingest-token", INGEST)
    with running_monitor(tmp_path_factory.mktemp("guarded"), *flags) as monitor:
        with Api(monitor.url, CONTROL) as api:
            node = {"node": "n", "host": "h", "launcher_pid": 1, "local_world_size": 1}
            assert api.post("/api/v1/jobs/j/nodes", json=node).status_code == 200
        yield monitor


@contextmanager
def logged_in(monitor: RunningMonitor, token: str) -> Iterator[Api]:
    with Api(monitor.url) as api:
        answer = api.post(SESSION, json={"token": token})
        assert answer.status_code == 200, answer.text
        yield api


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(guarded: RunningMonitor) -> None:
    with Api(guarded.url) as api:
        answer = api.post(SESSION, json={"token": READ})
    assert answer.json() == {"scope": "read", "name": "read"}
    assert answer.headers["cache-control"] == "no-store"
    [cookie] = SimpleCookie(answer.headers["set-cookie"]).values()
    assert cookie["httponly"]
    assert cookie["samesite"] == "strict"
    assert not cookie["secure"], "the monitor is not reached by TLS"
    assert int(cookie["max-age"]) == LIFETIME
    assert READ not in cookie.value


@pytest.mark.parametrize(("token", "status"), [(READ, 200), (CONTROL, 200), (INGEST, 403)])
def test_a_session_opens_what_its_token_opens(guarded: RunningMonitor, token: str, status: int) -> None:
    with logged_in(guarded, token) as api:
        assert api.get("/api/v1/jobs").status_code == status
        with api.stream("GET", "/api/v1/events") as stream:
            assert stream.status_code == status


def test_a_wrong_token_opens_no_session(guarded: RunningMonitor) -> None:
    with Api(guarded.url) as api:
        for body in ({"token": "guess"}, {"token": ""}):
            answer = api.post(SESSION, json=body)
            assert answer.status_code == 401, body
            assert "set-cookie" not in answer.headers
        assert api.get("/api/v1/jobs").status_code == 401


def test_a_bearer_token_counts_before_the_cookie(guarded: RunningMonitor) -> None:
    with logged_in(guarded, CONTROL) as api:
        assert api.get("/api/v1/jobs", headers={"Authorization": "Bearer guess"}).status_code == 401
        assert api.get("/api/v1/jobs", headers={"Authorization": "Basic x"}).status_code == 401


def test_after_the_end_of_a_session_its_cookie_opens_nothing(guarded: RunningMonitor) -> None:
    with logged_in(guarded, READ) as api, Api(guarded.url) as thief:
        thief.cookies.update(api.cookies)
        assert thief.get("/api/v1/jobs").status_code == 200
        assert api.delete(SESSION).status_code == 204
        assert not api.cookies
        assert thief.get("/api/v1/jobs").status_code == 401


def test_a_monitor_without_tokens_needs_no_session(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running_monitor(tmp_path_factory.mktemp("open")) as monitor, Api(monitor.url) as api:
        answer = api.post(SESSION, json={"token": ""})
        assert answer.json() == {"scope": "control", "name": "none"}
        assert "set-cookie" not in answer.headers


def test_sessions_end_in_time_and_are_bounded() -> None:
    now = 0.0
    sessions = Sessions(lambda: now, most=3)
    cookies = [f"other=1; {sessions.cookie}={sessions.begin(Session(READER))}" for _ in range(5)]
    assert len(sessions) == 3
    assert [sessions.grant_in(each) for each in cookies] == [None, None, READER, READER, READER]
    now = LIFETIME - 1.0
    assert sessions.grant_in(cookies[4]) == READER
    now = LIFETIME
    assert sessions.grant_in(cookies[4]) is None
    sessions.begin(Session(READER))
    assert len(sessions) == 1
    assert sessions.grant_in(f"{sessions.cookie}=") is None
    assert sessions.grant_in("") is None


def test_sessions_survive_a_restart_with_the_same_tokens_alone(tmp_path: Path) -> None:
    """And not their end, nor that of their named token."""
    flags, database = ("--token", CONTROL, "--read-token", READ), tmp_path / "kept.db"
    with running_monitor(tmp_path / "1", *flags, database=database) as first, Api(first.url, CONTROL) as owner:
        names = ("team", "gone")
        tokens = [owner.post("/api/v1/tokens", json={"name": each, "scope": "read"}).json()["token"] for each in names]
        with contextlib.ExitStack() as stack:
            kept, ended, team, gone = (
                stack.enter_context(logged_in(first, token)).cookies for token in (READ, READ, *tokens)
            )
            with Api(first.url, cookies=ended) as browser:
                assert browser.delete(SESSION).status_code == 204
            assert owner.delete("/api/v1/tokens/gone").status_code == 200
            cookies = [dict(each) for each in (kept, team, gone)]
            cookies.insert(1, {next(iter(kept)): next(iter(ended.values()), "")})
        values = [value for each in cookies for value in each.values() if value]
    content = b"".join(path.read_bytes() for path in tmp_path.glob("kept.db*"))
    assert not any(value.encode() in content for value in values), "their hashes are stored"
    assert READ.encode() not in content

    def status(monitor: RunningMonitor, cookie: dict[str, str]) -> int:
        with Api(monitor.url, cookies=cookie) as browser:
            return browser.get("/api/v1/jobs").status_code

    with running_monitor(tmp_path / "2", *flags, database=database) as second:
        assert [status(second, each) for each in cookies] == [200, 401, 200, 401]
    with running_monitor(tmp_path / "3", "--token", CONTROL, "--read-token", "new", database=database) as third:
        assert {status(third, each) for each in cookies} == {401}
    with running_monitor(tmp_path / "4", *flags, database=database) as fourth:
        assert {status(fourth, each) for each in cookies} == {401}, "a change of tokens ended them for good"


def test_a_session_that_is_exchanged_goes_on_for_requests_that_are_under_way() -> None:
    now = 0.0
    sessions = Sessions(lambda: now)
    cookie = f"{sessions.cookie}={sessions.begin(Session(READER))}"
    sessions.supersede(cookie)
    assert sessions.grant_in(cookie) == READER
    now = GRACE
    assert sessions.grant_in(cookie) is None


def test_the_sessions_of_a_revoked_token_end() -> None:
    sessions = Sessions()
    cookie = f"{sessions.cookie}={sessions.begin(Session(READER))}"
    sessions.end_of("other")
    assert sessions.grant_in(cookie) == READER
    sessions.end_of("read")
    assert sessions.grant_in(cookie) is None


def test_a_code_opens_one_session_with_what_its_maker_may(guarded: RunningMonitor) -> None:
    with Api(guarded.url, READ) as reader:
        code = reader.post(f"{SESSION}/codes").json()["code"]
    with Api(guarded.url) as browser:
        answer = browser.get(SESSION, params={"code": code})
        assert (answer.status_code, answer.headers["location"]) == (303, "../../")
        assert "httponly" in answer.headers["set-cookie"].lower()
        assert READ not in answer.headers["set-cookie"]
        assert browser.get("/api/v1/jobs").status_code == 200
        assert browser.post("/api/v1/jobs/j/actions", json={"action": "stop"}).status_code == 403
    with Api(guarded.url) as second:
        for answer in (second.get(SESSION, params={"code": code}), second.post(SESSION, json={"code": code})):
            assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
            assert "was used" in answer.json()["detail"]


def test_a_code_is_no_token_and_only_readers_get_one(guarded: RunningMonitor) -> None:
    with Api(guarded.url, INGEST) as sender, Api(guarded.url) as anonymous, Api(guarded.url, CONTROL) as owner:
        assert sender.post(f"{SESSION}/codes").status_code == 403
        assert anonymous.post(f"{SESSION}/codes").status_code == 401
        code = owner.post(f"{SESSION}/codes").json()["code"]
        assert anonymous.post(SESSION, json={"token": code}).status_code == 401
        assert anonymous.get("/api/v1/jobs", params={"token": code}).status_code == 401
        assert anonymous.post(SESSION, json={"code": code}).json()["scope"] == "control"


def test_codes_expire_are_bounded_and_end_with_their_token() -> None:
    now = 0.0
    sessions = Sessions(lambda: now)
    old = sessions.issue_code(Session(READER))
    now = CODE_LIFETIME
    assert sessions.take_code(old) is None
    codes = [sessions.issue_code(Session(READER)) for _ in range(MOST_CODES + 1)]
    assert sessions.take_code(codes[0]) is None
    taken = sessions.take_code(codes[1])
    assert taken is not None
    assert taken.grant == READER
    sessions.end_of(READER.name)
    assert sessions.take_code(codes[2]) is None


def test_a_session_from_the_code_of_another_one_ends_with_it() -> None:
    now = 0.0
    sessions = Sessions(lambda: now)
    cookie = f"{sessions.cookie}={sessions.begin(Session(READER))}"
    for _ in range(3):  # each renews the one before as late as it can
        now += LIFETIME / 4
        first = sessions.named_in(cookie)
        assert first is not None
        second = sessions.take_code(sessions.issue_code(first))
        assert second is not None
        sessions.supersede(cookie)
        cookie = f"{sessions.cookie}={sessions.begin(second)}"
    now = LIFETIME - 1.0
    last = sessions.named_in(cookie)
    assert last is not None
    code = sessions.issue_code(last)
    now = LIFETIME
    assert (sessions.named_in(cookie), sessions.take_code(code)) == (None, None)


def code_of(maker: Api, **headers: str) -> str:
    answer = maker.post(f"{SESSION}/codes", headers={"Origin": str(maker.base_url).rstrip("/"), **headers})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["code"])


@contextmanager
def from_code(monitor: RunningMonitor, maker: Api, **headers: str) -> Iterator[Api]:
    with Api(monitor.url) as api:
        assert api.post(SESSION, json={"code": code_of(maker, **headers)}).status_code == 200
        yield api


def test_the_end_of_a_session_ends_its_family_and_the_codes_of_that(guarded: RunningMonitor) -> None:
    with (
        logged_in(guarded, READ) as root,
        logged_in(guarded, READ) as alone,
        from_code(guarded, root) as made,
        from_code(guarded, root, Authorization=f"Bearer {READ}") as by_token,
    ):
        codes = [code_of(each) for each in (root, made)]
        assert made.delete(SESSION).status_code == 204
        assert [each.get("/api/v1/jobs").status_code for each in (root, alone, by_token)] == [401, 200, 200]
        assert [made.post(SESSION, json={"code": code}).status_code for code in codes] == [401, 401]


def test_a_family_of_sessions_ends_after_a_restart_too(tmp_path: Path) -> None:
    flags, database = ("--token", CONTROL, "--read-token", READ), tmp_path / "kept.db"
    with (
        running_monitor(tmp_path / "1", *flags, database=database) as first,
        logged_in(first, READ) as root,
        from_code(first, root) as made,
    ):
        cookies = [dict(each.cookies) for each in (root, made)]
        with contextlib.closing(sqlite3.connect(database)) as stored:
            wait_for(lambda: stored.execute("select count(*) from sessions").fetchone() == (2,), "both are stored")
    with (
        running_monitor(tmp_path / "2", *flags, database=database) as second,
        Api(second.url, cookies=cookies[0]) as root,
        Api(second.url, cookies=cookies[1]) as made,
    ):
        assert [each.get("/api/v1/jobs").status_code for each in (root, made)] == [200, 200]
        assert root.delete(SESSION).status_code == 204
        assert made.get("/api/v1/jobs").status_code == 401


def test_open_prints_an_address_without_a_token(guarded: RunningMonitor, capsys: pytest.CaptureFixture[str]) -> None:
    assert open_page(["j/k", "--monitor", guarded.url, "--token", CONTROL]) == 0
    address = capsys.readouterr().out.strip()
    assert CONTROL not in address
    assert address.endswith("#/jobs/j%2Fk")
    with Api(guarded.url) as browser:
        assert browser.get(address).status_code == 303
        assert browser.get("/api/v1/jobs").status_code == 200
