"""Arbitrary files that a rank writes for its launcher, and a launcher for its ranks: what is none is ignored.

The same sequence in every run.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from abuse.test_answers_fuzz import SETTINGS
from abuse.test_launcher_fuzz import changed
from launcher.here import Here
from rankwatch import launcher_requests
from rankwatch.contract import env
from rankwatch.contract.limits import RankActivity, RankLimits
from rankwatch.contract.messages import RankRequest
from rankwatch.recording.shared_slots import SETTINGS_BYTES, SETTINGS_LENGTH, SETTINGS_OFFSET, Reading, Slots
from rankwatch_launcher.node.rank_requests import RequestInbox
from rankwatch_launcher.outcome import FINISHED, Outcome
from rankwatch_launcher.shell.rank_error import read_error

REQUEST: Final = {
    "action": "change_policy", "reason": "why", "rank": 0, "policy": {"section_timeouts": {"step": 5.0}},
    "calculated": True, "notice": "wrong_result", "seconds": 1.5,
}  # fmt: skip
ERROR: Final = {
    "message": {
        "message": "ValueError: bad", "extraInfo": {"py_callstack": "Traceback", "timestamp": "1700000000"},
        "rankwatch": {"at": 1.0, "passing": True},
    }
}  # fmt: skip
LEARNED: Final = {"current_timeouts": {"section": {"section": {"step": 9.0}, "calculated_sections": ["step"]}}}
EXAMPLES: Final = settings(
    max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def written(content: Any) -> bytes:
    return content if isinstance(content, bytes) else json.dumps(content).encode()


def reading() -> Reading:
    given: dict[str, Any] = {each.name: 1 for each in fields(Reading) if each.name in Reading.__match_args__[:12]}
    return Reading(**{**given, "rank": 0, "requests": 1})


@EXAMPLES
@given(content=st.one_of(changed(REQUEST), st.binary(max_size=20), st.just(b"[" * 100_000)))
def test_a_request_of_a_rank_is_read_as_it_is_declared_or_ignored(
    tmp_path_factory: pytest.TempPathFactory, content: Any
) -> None:
    folder = tmp_path_factory.mktemp("slots")
    file = folder / env.request_file(0, 1)
    file.write_bytes(written(content))
    for request in RequestInbox(folder).take({0: reading()}):
        TypeAdapter(RankRequest).validate_json(json.dumps(asdict(request)), strict=True)
    assert not file.exists()


@EXAMPLES
@given(policy=changed(REQUEST["policy"]))
def test_whatever_policy_a_rank_requests_its_launcher_goes_on(policy: Any) -> None:
    with Here() as node:
        if isinstance(policy, dict):
            node.session.change_policy(RankRequest("change_policy", "why", 0, json.loads(json.dumps(policy)), True))


@EXAMPLES
@given(content=st.one_of(changed(ERROR), st.binary(max_size=20)))
def test_an_error_file_is_read_or_ignored(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    file = tmp_path_factory.mktemp("error") / "error.json"
    file.write_bytes(written(content))
    if (found := read_error(str(file))) is not None:
        found.where()
        found.stack(0, 1)


@EXAMPLES
@given(content=st.one_of(changed(LEARNED), st.binary(max_size=20), st.just(b"[" * 100_000)))
def test_learned_limits_are_read_or_ignored_in_a_rank(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    folder = tmp_path_factory.mktemp("slots")
    (folder / env.LEARNED_FILE).write_bytes(written(content))

    class Writer:
        def __init__(self) -> None:
            self.folder = folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher_requests, "_writer", Writer())
        launcher_requests.learned_timeouts()


@EXAMPLES
@given(content=st.one_of(changed(asdict(Outcome(FINISHED, 0, excluded=(("n", "h", "w"),)))), st.binary(max_size=20)))
def test_an_outcome_is_read_or_ignored(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    file = tmp_path_factory.mktemp("outcome") / "outcome.json"
    file.write_bytes(written(content))
    if (found := Outcome.read(file)) is not None:
        assert isinstance(found.code, int)
        found.write(file)


@EXAMPLES
@given(content=st.one_of(changed(SETTINGS), st.binary(max_size=20), st.just(b"[" * 7_000)), length=st.integers(-2, 1))
def test_whatever_settings_are_in_the_slots_a_rank_goes_on(
    tmp_path_factory: pytest.TempPathFactory, content: Any, length: int
) -> None:
    file = tmp_path_factory.mktemp("slots") / "slots"
    slots = Slots.create(file)
    try:
        body = written(content)[:SETTINGS_BYTES]
        slots._view[SETTINGS_OFFSET : SETTINGS_OFFSET + len(body)] = body
        slots.words[SETTINGS_LENGTH] = len(body) if length > -2 else length
        found = slots.settings()
        assert found is not None
        RankLimits.from_settings(found[1]).passed(RankActivity({"step": 3.0}, 1.0, None, 1.0))
    finally:
        slots.close()
