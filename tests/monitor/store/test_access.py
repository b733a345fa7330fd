"""Named tokens and the audit log, in both databases."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from monitor.store.conftest import Place
from rankwatch_monitor.service import audit
from rankwatch_monitor.service import tokens as tokens_module
from rankwatch_monitor.service.audit import AuditLog
from rankwatch_monitor.service.tokens import MAX_JOBS, NotStoredError, TokenRegistry, matches
from rankwatch_monitor.store.repository import Repository


def registry(store: Repository | None) -> TokenRegistry:
    return TokenRegistry(store, lambda: 7.0)


def loaded(store: Repository) -> TokenRegistry:
    made = registry(store)
    asyncio.run(made.load())
    return made


def log_of(store: Repository | None) -> AuditLog:
    return AuditLog(store, itertools.count(1.0).__next__)


def test_a_token_is_stored_hashed_and_found_after_a_restart(place: Place, store: Repository) -> None:
    secret = asyncio.run(registry(store).create("team-a", "ingest", ["a-*", "a-*"], "control"))
    assert len(secret) > 43
    assert secret not in str(place.ask("select * from tokens"))
    token = loaded(store).find(secret)
    assert token is not None
    assert (token.name, token.scope, token.jobs, token.created_by) == ("team-a", "ingest", ("a-*",), "control")
    assert loaded(store).find(secret[:-1]) is None
    [digest] = [row[0] for row in place.ask("select digest from tokens")]
    assert loaded(store).find(digest) is None, "the hash is no token"


def test_a_revoked_token_is_gone_at_once_and_after_a_restart(place: Place, store: Repository) -> None:
    tokens = registry(store)
    secret = asyncio.run(tokens.create("team-a", "read", [], "control"))
    asyncio.run(tokens.revoke("team-a"))
    assert tokens.find(secret) is None
    assert loaded(store).find(secret) is None
    assert place.count("tokens") == 0
    with pytest.raises(KeyError):
        asyncio.run(tokens.revoke("team-a"))
    assert asyncio.run(tokens.create("team-a", "read", [], "control")) != secret


def test_monitors_on_one_database_see_each_others_changes(
    postgres_place: Place, opened: Callable[..., Repository]
) -> None:
    here, there = (registry(opened(postgres_place, shared=True)) for _ in range(2))
    secret = asyncio.run(here.create("team-a", "read", [], "control"))
    asyncio.run(there.load())
    assert there.find(secret) is not None
    asyncio.run(there.revoke("team-a"))
    asyncio.run(here.load())
    assert here.find(secret) is None
    secret = asyncio.run(there.create("team-b", "read", [], "control"))
    with pytest.raises(ValueError, match="there is a token 'team-b'"):
        asyncio.run(here.create("team-b", "ingest", [], "control"))
    asyncio.run(there.load())
    assert there.find(secret) is not None


def test_a_token_that_cannot_be_stored_is_not_made(place: Place, store: Repository) -> None:
    tokens = registry(store)
    place.ask("alter table tokens rename to elsewhere")
    with pytest.raises(NotStoredError):
        asyncio.run(tokens.create("team-a", "read", [], "control"))
    assert tokens.listed() == []


def test_a_revocation_that_cannot_be_stored_holds_in_this_monitor(place: Place, store: Repository) -> None:
    tokens = registry(store)
    secret = asyncio.run(tokens.create("team-a", "read", [], "control"))
    place.ask("alter table tokens rename to elsewhere")
    with pytest.raises(NotStoredError, match="restart"):
        asyncio.run(tokens.revoke("team-a"))
    assert tokens.find(secret) is None


@pytest.mark.parametrize(
    ("name", "jobs"),
    [("", ()), ("a b", ()), ("-a", ()), ("x" * 65, ()), ("control", ()), ("a", [""]), ("a", ["\x1b"]),
     ("a", ["j"] * (MAX_JOBS + 1)), ("taken", ())],
)  # fmt: skip
def test_names_and_patterns_are_checked(name: str, jobs: list[str]) -> None:
    tokens = registry(None)
    asyncio.run(tokens.create("taken", "read", [], ""))
    with pytest.raises(ValueError):
        asyncio.run(tokens.create(name, "read", jobs, "", ("control",)))
    assert [token.name for token in tokens.listed()] == ["taken"]


def test_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "MAX_TOKENS", 1)
    tokens = registry(None)
    asyncio.run(tokens.create("first", "read", [], ""))
    with pytest.raises(ValueError, match="revoke one first"):
        asyncio.run(tokens.create("second", "read", [], ""))


def test_jobs_are_matched_in_full_and_in_their_case() -> None:
    assert matches(["team-a-*"], "team-a-1")
    assert matches(["run[1]"], "run[1]"), "the id itself, though it looks like a pattern"
    for job in ("team-b-1", "my-team-a-1", "TEAM-A-1", ""):
        assert not matches(["team-a-*"], job)


def test_entries_are_stored_and_read_back_the_newest_first(place: Place, store: Repository) -> None:
    log = log_of(store)
    log.record("order", "job", "ops", "192.0.2.1", {"action": "stop"})
    log.record("policy", "job", "ops", "192.0.2.1", {"observe_only": True})
    found = asyncio.run(log_of(store).newest(10))
    assert [(e.at, e.action, e.subject, e.by, e.address, e.detail) for e in found] == [
        (2.0, "policy", "job", "ops", "192.0.2.1", {"observe_only": True}),
        (1.0, "order", "job", "ops", "192.0.2.1", {"action": "stop"}),
    ]
    assert [e.at for e in asyncio.run(log.newest(1))] == [2.0]


def test_the_log_and_its_entries_are_bounded(place: Place, store: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "KEPT", 3)
    log = log_of(store)
    for number in range(5):
        log.record("order", f"job {number}", "x" * 1_000, "a", {"reason": "y" * 10_000})
    assert store.flush()
    assert sorted(place.ask("select subject from audit")) == [("job 2",), ("job 3",), ("job 4",)]
    [newest] = asyncio.run(log.newest(1))
    assert (len(newest.by), len(newest.detail["beginning"])) == (256, audit.LONGEST_DETAIL)
    again = log_of(store)
    asyncio.run(again.load())
    again.record("order", "job 5", "", "a", {})
    assert store.flush()
    assert place.count("audit") == 3, "those of before the restart count"


def test_without_a_store_the_log_is_in_memory() -> None:
    log = log_of(None)
    for number in range(3):
        log.record("order", f"job {number}", "", "a", {})
    assert [entry.subject for entry in asyncio.run(log.newest(2))] == ["job 2", "job 1"]


def test_a_job_is_had_by_the_first_token_that_is_bound_to_it_or_by_itself() -> None:
    tokens = registry(None)
    for name, jobs in (("all", []), ("z", ["a-*"]), ("team-a", ["b", "a-*"])):
        asyncio.run(tokens.create(name, "ingest", jobs, "control"))
    assert [tokens.team_of(job) for job in ("a-1", "a-2", "b", "c")] == ["token team-a"] * 3 + ["c"]
