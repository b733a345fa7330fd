"""What a signal to the launcher does, with the real handlers of this process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import SignalException

from rankwatch_launcher.shell import signals as module
from rankwatch_launcher.shell.signals import Signals

NAMES = "SIGTERM, SIGHUP,SIGNONE"
USED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """A clock of this test; the handlers of this process come back after it."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    before = {number: signal.getsignal(number) for number in USED}
    yield clock
    for number, handler in before.items():
        signal.signal(number, handler)


def installed(stop: signal.Signals | None = signal.SIGTERM, *, polled: bool = True) -> tuple[Signals, list[str]]:
    woken: list[str] = []
    signals = Signals(NAMES, stop, lambda: woken.append("woken"))
    signals.polled = polled
    signals.install()
    return signals, woken


def send(number: int) -> None:
    """Send a signal to this process, and have its handler called now."""
    os.kill(os.getpid(), number)
    time.sleep(0)


def test_a_stop_signal_is_recorded_and_wakes_the_launcher() -> None:
    signals, woken = installed()
    send(signal.SIGTERM)
    assert (signals.stop_received, woken) == (signal.SIGTERM, ["woken"])


def test_a_repeated_stop_signal_is_a_duplicate_at_first_and_ends_the_launcher_later(clock: Clock) -> None:
    signals, woken = installed()
    send(signal.SIGTERM)
    clock.now += module.DUPLICATE_SECONDS - 0.1
    send(signal.SIGTERM)
    assert woken == ["woken"]
    clock.now += 0.2
    with pytest.raises(SignalException) as ended:
        send(signal.SIGTERM)
    assert ended.value.sigval == signal.SIGTERM
    assert signals.stop_received == signal.SIGTERM


def test_a_stop_signal_that_is_not_looked_for_ends_the_launcher() -> None:
    signals, woken = installed(polled=False)
    with pytest.raises(SignalException):
        send(signal.SIGTERM)
    assert (signals.stop_received, woken) == (None, [])


def test_any_other_signal_ends_the_launcher_at_once() -> None:
    signals, _ = installed()
    with pytest.raises(SignalException) as ended:
        send(signal.SIGHUP)
    assert (ended.value.sigval, signals.stop_received) == (signal.SIGHUP, None)


def test_without_a_stop_signal_each_of_them_ends_the_launcher() -> None:
    installed(None)
    with pytest.raises(SignalException):
        send(signal.SIGTERM)


def test_a_stop_signal_need_not_be_one_that_torchrun_handles() -> None:
    signals, _ = installed(signal.SIGUSR1)
    send(signal.SIGUSR1)
    assert signals.stop_received == signal.SIGUSR1
    with pytest.raises(SignalException):
        send(signal.SIGTERM)


def test_deferred_signals_act_in_their_order_when_the_context_ends() -> None:
    signals, woken = installed()
    context = signals.deferred()
    context.__enter__()
    send(signal.SIGTERM)
    send(signal.SIGHUP)
    assert (signals.stop_received, woken) == (None, [])
    with pytest.raises(SignalException) as ended:
        context.__exit__(None, None, None)
    assert (signals.stop_received, ended.value.sigval) == (signal.SIGTERM, signal.SIGHUP)


def test_a_context_that_fails_defers_nothing_further() -> None:
    signals, _ = installed()
    with pytest.raises(OSError), signals.deferred():
        raise OSError
    send(signal.SIGTERM)
    assert signals.stop_received == signal.SIGTERM


def test_signals_deferred_by_a_context_that_fails_are_not_lost() -> None:
    signals, woken = installed()

    def fail() -> None:
        with signals.deferred():
            send(signal.SIGTERM)
            send(signal.SIGHUP)
            raise OSError("no process can be started")

    with pytest.raises(SignalException) as ended:
        fail()
    assert (signals.stop_received, ended.value.sigval) == (signal.SIGTERM, signal.SIGHUP)
    assert isinstance(ended.value.__context__, OSError)
    assert woken


def test_at_the_end_all_signals_are_ignored() -> None:
    signals, woken = installed()
    signals.ignore()
    for number in (signal.SIGTERM, signal.SIGHUP):
        send(number)
    assert (signals.stop_received, woken) == (None, [])


def test_a_signals_number_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    signals: Any = SimpleNamespace(_deferred=None, stop=None, stop_received=None, polled=True)
    with pytest.raises(SignalException, match=f"process {os.getpid()} got signal {int(signal.SIGHUP)}"):
        Signals._handle(signals, signal.SIGHUP, None)
