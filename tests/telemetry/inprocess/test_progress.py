"""Signs of life of the main thread neither swallow an interruption nor end with one."""

from __future__ import annotations

import threading
import time

from rankwatch.inprocess.interruption import Interruption
from rankwatch.inprocess.progress import FunctionProgress
from rankwatch.inprocess.state import RankShouldRestart
from support.waiting import wait_for


def test_an_interruption_that_meets_a_question_in_the_main_thread_is_raised_all_the_same() -> None:
    interruption, progress, raised = Interruption(), FunctionProgress(), 0
    for _ in range(20):
        begun = threading.Event()

        def ask_and_strike(begun: threading.Event = begun) -> None:
            begun.wait()
            progress.idle_seconds()
            interruption.interrupt()

        thread = threading.Thread(target=ask_and_strike)
        thread.start()
        try:
            interruption.arm()
            begun.set()
            time.sleep(20)  # a wait in which both arrive, and which the interruption ends
        except RankShouldRestart:
            raised += 1
        finally:
            interruption.disarm()
            thread.join()
    interruption.close()
    assert raised == 20

    progress.begin()
    began = progress.since_ns

    def comes_further() -> bool:
        progress.idle_seconds()
        return progress.since_ns > began

    wait_for(comes_further, "the main thread is asked and answers again")
