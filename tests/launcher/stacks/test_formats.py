"""What py-spy and faulthandler print, read."""

from __future__ import annotations

import json

import pytest

from rankwatch.contract.messages import Frame
from rankwatch_launcher.stacks.formats import MAX_FRAMES, MAX_NAME, from_faulthandler, from_py_spy, main_thread


def thread(name: str, native: int | None, frames: int = 1) -> dict[str, object]:
    frame = [{"name": f"f{i}", "filename": "/a.py", "line": i} for i in range(frames)]
    return {"thread_name": name, "thread_id": 7, "os_thread_id": native, "frames": frame}


def test_py_spy_finds_the_main_thread_by_its_id_or_its_name() -> None:
    main, every = from_py_spy(json.dumps([thread("other", 11, 2), thread("whatever", 10, 3)]), 10)
    assert (len(main), {tid: (each.name, len(each.frames)) for tid, each in every.items()}) == (
        3,
        {11: ("other", 2), 10: ("whatever", 3)},
    )
    main, every = from_py_spy(json.dumps([thread("other", 11, 2), thread("MainThread", None)]), 10)
    assert (main, list(every)) == ((Frame("f0", "/a.py", 0),), [11]), "its id in the kernel is not known"
    with pytest.raises(ValueError, match="main thread's stack was not found"):
        from_py_spy(json.dumps([thread("other", 11)]), 10)


def test_long_stacks_are_cut() -> None:
    frames, threads = from_py_spy(json.dumps([thread("w" * 500, 11), thread("m", 10, frames=500)]), 10)
    assert (len(frames), len(threads[10].frames), len(threads[11].name)) == (MAX_FRAMES, MAX_FRAMES, MAX_NAME)
    assert frames[0].function == "f0", "the inner frames are kept"


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[]", '[{"frames": []}]', '{"a": 1}'])
def test_what_is_no_output_of_py_spy_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        from_py_spy(text, 10)


DUMP = """Main thread 0x7f02
Stack (most recent call first):
  File "/lib/threading.py", line 622 in before
Stack (most recent call first):
  File "/train.py", line 12 in stuck here
  File "/train.py", line ??? in <module>
"""


def test_the_last_dump_counts() -> None:
    assert from_faulthandler(DUMP) == (Frame("stuck here", "/train.py", 12), Frame("<module>", "/train.py", 0))


def test_an_empty_dump_is_refused() -> None:
    with pytest.raises(ValueError, match="no stack"):
        from_faulthandler("")


def test_the_main_thread_is_the_one_whose_frames_are_read() -> None:
    threads = [
        {"thread_id": 11, "os_thread_id": 100, "thread_name": "saver", "frames": []},
        {"thread_id": 12, "os_thread_id": 99, "thread_name": "MainThread", "frames": []},
    ]
    assert main_thread(json.dumps(threads), 99) == 12
    assert main_thread(json.dumps(threads[:1]), 99) == 0
    assert main_thread(DUMP, 99) == 0x7F02
    assert main_thread("", 99) == 0
