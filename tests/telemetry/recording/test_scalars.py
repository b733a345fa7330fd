"""Logged values: means, what is no number, bounds, threads, and the cost of a call."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import rankwatch
from rankwatch.recording import scalars
from rankwatch.recording.scalars import DROP_NAME, DROP_VALUE, MAX_NAMES, MAX_WARNINGS, Scalars


class Ill:
    """A value whose own code fails."""

    def __float__(self) -> float:
        raise RuntimeError("no")


class OnDevice:
    """As a tensor on a GPU: reading it would wait for the device."""

    class Device:
        type = "cuda"

    device = Device()

    def __float__(self) -> float:
        raise AssertionError("it was read")

    item = __float__


@pytest.fixture
def dropped() -> list[str]:
    return []


@pytest.fixture
def attached(dropped: list[str]) -> Iterator[Scalars]:
    made = Scalars(dropped.append)
    scalars.attach(made)
    yield made
    scalars.attach(None)


def test_a_report_has_the_means_since_the_last_one(attached: Scalars) -> None:
    for i in range(4):
        rankwatch.log({"loss": float(i), "tokens": 100}, step=10 + i)
    assert attached.take() == ({"loss": 1.5, "tokens": 100.0}, {}, 13)
    assert attached.take().means == {}
    rankwatch.log({"loss": 7})
    assert attached.take() == ({"loss": 7.0}, {}, 13)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.array([2.0]), Decimal(2), True + 1])
def test_numbers_of_many_kinds_are_values(attached: Scalars, value: Any) -> None:
    rankwatch.log({"a": value})
    assert attached.take().means == {"a": 2.0}


def test_tensors_on_the_cpu_are_values_and_others_are_not_read(
    attached: Scalars, caplog: pytest.LogCaptureFixture, dropped: list[str]
) -> None:
    torch = pytest.importorskip("torch")
    rankwatch.log({"a": torch.tensor(2.0, requires_grad=True), "b": OnDevice(), "c": torch.zeros(3)})
    assert attached.take().means == {"a": 2.0}
    assert dropped == [DROP_VALUE] * 2
    assert "wait for the device" in caplog.text


def test_values_that_are_not_finite_are_counted_and_in_no_mean(attached: Scalars) -> None:
    for value in (1.0, math.nan, math.inf, -math.inf, 3.0, np.float32("nan")):
        rankwatch.log({"loss": value})
    assert attached.take()[:2] == ({"loss": 2.0}, {"loss": 4})
    assert attached.take()[:2] == ({}, {"loss": 4}), "a count since the start of the process"


def test_what_is_no_number_is_ignored_with_one_warning_for_each_name(
    attached: Scalars, caplog: pytest.LogCaptureFixture, dropped: list[str]
) -> None:
    for _ in range(3):
        rankwatch.log(
            {"good": 1.0, "text": "1.0", "none": None, "list": [1, 2], "ill": Ill(), "huge": 10**400, "l": {}}
        )
    assert attached.take().means == {"good": 1.0}
    assert dropped == [DROP_VALUE] * 18
    assert len(caplog.records) == 6


@pytest.mark.parametrize(
    "values", [None, 3, "loss", [("loss", 1.0)], {1: 1.0}, {"": 1.0}, {"x" * 500: 1.0}, {("a",): 1.0}]
)
def test_a_call_that_makes_no_sense_raises_nothing(attached: Scalars, values: Any) -> None:
    rankwatch.log(values)
    rankwatch.log({"loss": 1.0}, step="three")  # type: ignore[arg-type]
    rankwatch.log({"loss": 1.0}, step=2**200)
    assert attached.take() == ({"loss": 1.0}, {}, None)


def test_a_thousand_names_are_bounded_and_warned_of_once(
    attached: Scalars, caplog: pytest.LogCaptureFixture, dropped: list[str]
) -> None:
    with caplog.at_level(logging.WARNING, "rankwatch"):
        for i in range(1000):
            rankwatch.log({f"loss_{i}": 1.0, f"bad_{i}": "x", f"nan_{i}": math.nan})
    logged = attached.take()
    assert len(logged.means) + len(logged.non_finite) == MAX_NAMES
    assert dropped.count(DROP_NAME) == 2000 - MAX_NAMES
    assert caplog.text.count(f"keeps {MAX_NAMES} names") == 1
    assert len(caplog.records) <= MAX_WARNINGS
    rankwatch.log({"loss_0": 5.0})
    assert attached.take().means == {"loss_0": 5.0}, "known names go on"


def test_threads_log_while_the_exporter_takes(attached: Scalars) -> None:
    began, stop = threading.Barrier(5), threading.Event()

    def work(number: int) -> None:
        began.wait(30)
        while not stop.is_set():
            rankwatch.log({"shared": 2.0, f"own_{number}": float(number)}, step=number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    began.wait(30)
    taken = []
    while sum(logged.means.keys() >= {"shared", "own_3"} for logged in taken) < 20:
        taken.append(attached.take())
        time.sleep(0)
    stop.set()
    for thread in threads:
        thread.join(30)
    means = [logged.means for logged in [*taken, attached.take()]]
    assert {mean["shared"] for mean in means if "shared" in mean} == {2.0}
    assert all(mean == float(name[-1]) for each in means for name, mean in each.items() if name != "shared")


def test_before_init_and_after_shutdown_nothing_happens() -> None:
    rankwatch.log({"loss": 1.0})
    rankwatch.log(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rank", "reports"), [(0, True), (1, False), (3, True)])
def test_the_first_and_the_last_rank_report(rank: int, reports: bool) -> None:
    rankwatch.init(monitor="http://127.0.0.1:9", job_id="j", rank=rank, world_size=4)
    assert (scalars._scalars is not None) is reports
    rankwatch.shutdown()
    assert scalars._scalars is None


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer multiplies the cost")
def test_a_call_takes_about_a_microsecond(attached: Scalars) -> None:
    values = {"loss": 2.1, "tokens_per_second": 1.2e5}

    def cost() -> float:
        begin = time.thread_time()
        for i in range(20_000):
            rankwatch.log(values, i)
        return (time.thread_time() - begin) / 20_000

    best = min(cost() for _ in range(20))
    assert best < 5e-6, f"{best * 1e9:.0f} ns"
