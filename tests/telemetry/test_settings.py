from __future__ import annotations

from dataclasses import fields

import pytest

from rankwatch.settings import Settings, load

PLAIN = {"RANKWATCH_JOB_ID": "j"}


def of(**variables: str) -> Settings:
    settings, problems = load({}, PLAIN | variables)
    assert problems == []
    return settings


def test_every_setting_states_what_it_means_and_where_it_comes_from() -> None:
    names: list[str] = []
    for setting in fields(Settings):
        assert setting.metadata["meaning"], setting.name
        assert setting.metadata["environment"], setting.name
        names += setting.metadata["environment"]
    assert len(names) == len(set(names)), "no variable means two things"


def test_an_argument_beats_ours_and_ours_beats_the_others() -> None:
    variables = {"RANK": "1", "SLURM_PROCID": "2", "WORLD_SIZE": "8"}
    assert of(**variables).rank == 1
    assert of(**variables, RANKWATCH_RANK="3").rank == 3
    assert load({"rank": 4}, PLAIN | variables)[0].rank == 4
    assert load({"rank": None}, PLAIN | variables)[0].rank == 1


def test_slurm_alone_is_enough() -> None:
    settings, _ = load(
        {}, {"SLURM_JOB_ID": "77", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "16", "WORLD_SIZE": " "}
    )
    assert (settings.job_id, settings.rank, settings.local_rank, settings.world_size) == ("77", 5, 1, 16)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("RANK", "two", "RANK must be a whole number from 0"),
        ("RANK", "-1", "RANK must be a whole number from 0"),
        ("RANKWATCH_EXPORT_INTERVAL", "0", "seconds from 0.05 to 3600"),
        ("RANKWATCH_EXPORT_INTERVAL", "nan", "seconds from 0.05 to 3600"),
        ("RANKWATCH_MONITOR", "monitor:9560", "an http:// or https:// address"),
        ("RANKWATCH_MONITOR", "http://[", "an http:// or https:// address"),
        ("OTEL_SDK_DISABLED", "maybe", "true or false"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip", "one of none, gzip, deflate"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "oops", "NAME=VALUE"),
        ("RANKWATCH_STACK_SIGNAL", "99", "from 1 to 64"),
    ],
)
def test_a_wrong_value_is_reported_and_ignored(variable: str, value: str, expected: str) -> None:
    settings, problems = load({}, PLAIN | {variable: value})
    assert settings == load({}, PLAIN)[0]
    assert len(problems) == 1
    assert problems[0].startswith(variable)
    assert expected in problems[0]


def test_a_wrong_value_makes_room_for_the_next_source() -> None:
    settings, problems = load({"rank": "x"}, PLAIN | {"RANK": "y", "SLURM_PROCID": "3", "WORLD_SIZE": "4"})
    assert settings.rank == 3
    assert len(problems) == 2


def test_secrets_are_not_shown() -> None:
    _, problems = load({}, PLAIN | {"OTEL_EXPORTER_OTLP_HEADERS": "hunter2"})
    assert "hunter2" not in problems[0]


def test_a_rank_outside_its_world_is_reported() -> None:
    _, problems = load({}, PLAIN | {"RANK": "4", "WORLD_SIZE": "4"})
    assert problems == ["rank 4 does not fit into a world of 4 ranks"]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RANKWATCH_JOB_ID": "a", "SLURM_JOB_ID": "b"}, "a"),
        ({"SLURM_JOB_ID": "b", "TORCHELASTIC_RUN_ID": "c"}, "b"),
        ({"TORCHELASTIC_RUN_ID": "c"}, "c"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "n0", "MASTER_PORT": "29500"}, "n0-29500"),
        ({"RANKWATCH_JOB_ID": "none"}, "none"),
    ],
)
def test_the_identity_of_the_job(variables: dict[str, str], expected: str) -> None:
    assert load({}, variables)[0].job_id == expected


def test_the_name_of_the_job() -> None:
    attributes = {"OTEL_RESOURCE_ATTRIBUTES": "service.name=from%20attributes,dl.tensor_parallel.rank=1"}
    assert of().job_name == "j"
    assert of(**attributes).job_name == "from attributes"
    assert of(**attributes, OTEL_SERVICE_NAME="otel").job_name == "otel"
    assert of(**attributes, OTEL_SERVICE_NAME="otel", RANKWATCH_JOB_NAME="ours").job_name == "ours"


def test_endpoints() -> None:
    assert of().endpoints == (None, None)
    assert of(RANKWATCH_MONITOR="http://m:1/").endpoints == ("http://m:1/v1/metrics", "http://m:1/v1/traces")
    otlp = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}
    assert of(**otlp).endpoints == ("http://c:4318/v1/metrics", "http://c:4318/v1/traces")
    traces = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x"}
    assert of(**otlp, **traces).endpoints == ("http://c:4318/v1/metrics", "http://t/x")
    assert of(**traces).endpoints == (None, "http://t/x")
    assert of(**otlp, **traces, RANKWATCH_MONITOR="http://m:1").endpoints[1] == "http://m:1/v1/traces"
    named = {"RANKWATCH_MONITOR": "http://m:1", "RANKWATCH_COLLECTOR": "http://n:4318/"}
    assert of(**otlp, **traces, **named).endpoints == ("http://n:4318/v1/metrics", "http://n:4318/v1/traces")


def test_the_token_and_foreign_headers_reach_no_other_receiver() -> None:
    mine = {"RANKWATCH_MONITOR": "http://m:1", "RANKWATCH_TOKEN": "t"}
    foreign = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://vendor", "RANKWATCH_TOKEN": "t"}
    headers = {"OTEL_EXPORTER_OTLP_HEADERS": "Api-Key=secret%201"}
    job = {"rankwatch-job": "j"}
    assert of(**mine, **headers).headers == {"authorization": "Bearer t", "api-key": "secret 1", **job}
    assert of(**foreign, **headers).headers == {"api-key": "secret 1", **job}
    assert of(**foreign, **headers, RANKWATCH_MONITOR="http://m:1").headers == {"authorization": "Bearer t", **job}
    assert of(**mine, **headers, RANKWATCH_COLLECTOR="http://n:1").headers == {"api-key": "secret 1", **job}
    assert of(**foreign, **headers, RANKWATCH_COLLECTOR="http://n:1").headers == job


def test_a_proxy_is_sent_the_job_as_a_path_holds_it() -> None:
    assert of(RANKWATCH_JOB_ID="a b/ü").headers["rankwatch-job"] == "a%20b%2F%C3%BC"


def test_the_standard_interval_is_not_ours() -> None:
    assert of(OTEL_METRIC_EXPORT_INTERVAL="60000").export_interval == 1.0


@pytest.mark.parametrize(
    ("world", "direct", "collected"),
    [(1, 1.0, 1.0), (4096, 1.0, 1.0), (16_384, 4.0, 1.0), (100_000, 100_000 / 4096, 5.0)],
)
def test_a_large_job_reports_less_often_unless_configured_otherwise(
    world: int, direct: float, collected: float
) -> None:
    there = {"WORLD_SIZE": str(world)}
    assert of(**there, RANKWATCH_MONITOR="http://m:1").export_interval == direct
    assert of(**there, OTEL_EXPORTER_OTLP_ENDPOINT="http://c:4318").export_interval == collected
    node = {"RANKWATCH_MONITOR": "http://m:1", "RANKWATCH_COLLECTOR": "http://n:4318"}
    assert of(**there, **node).export_interval == collected
    assert of(**there, RANKWATCH_MONITOR="http://m:1", RANKWATCH_EXPORT_INTERVAL="2").export_interval == 2.0
