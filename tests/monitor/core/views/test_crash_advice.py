"""What the error of a crash points to, and what is looked at first."""

from __future__ import annotations

import pytest

from rankwatch_monitor.core.cause import Exited
from rankwatch_monitor.core.views.crash_advice import Crash, ErrorClass, Passed, error_class, look


@pytest.mark.parametrize(
    ("error", "points_to"),
    [
        ("RuntimeError: CUDA error: device-side assert triggered", ErrorClass.KERNEL),
        ("CUDA error: an illegal memory access was encountered", ErrorClass.KERNEL),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", ErrorClass.DEVICE),
        ("NCCL error: unhandled cuda error", ErrorClass.DEVICE),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen; it fell off the bus", ErrorClass.DEVICE),
        ("RuntimeError: CUDA error: unspecified launch failure", ErrorClass.DEVICE),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", ErrorClass.DEVICE),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", ErrorClass.GPU_MEMORY),
        ("OSError: [Errno 12] Cannot allocate memory", ErrorClass.HOST_MEMORY),
        ("DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1", ErrorClass.NETWORK),
        ("RuntimeError: [gloo/transport/tcp/pair.cc] Connection closed by peer", ErrorClass.NETWORK),
        ("ValueError: loss is nan", ErrorClass.OTHER),
        ("KeyError: 'succession'", ErrorClass.OTHER),
        ("", ErrorClass.OTHER),
    ],
)
def test_an_error_points_to_one_class(error: str, points_to: ErrorClass) -> None:
    assert error_class(Exited(1, error)) is points_to
    assert error_class(Exited(-9)) is ErrorClass.HOST_MEMORY


CRASH = Crash(Exited(1), 5, "host-0", "GPU 5", "5", 614)
PASSED = Passed(614, 1, 638)


@pytest.mark.parametrize(
    ("error", "text", "command"),
    [
        ("device-side assert", "Run again with CUDA_LAUNCH_BLOCKING=1 and look at the batch after step 614: ", ""),
        ("ECC error", "Check GPU 5 on host-0 for errors", "nvidia-smi -q -i 5 "),
        ("CUDA out of memory", "See what holds the memory of GPU 5 on host-0", "nvidia-smi -i 5 --query-compute-apps"),
        ("MemoryError", "See whether host-0 ran out of memory", "dmesg -T | grep -iE 'out of memory"),
        ("NCCL error", "Look at the network of host-0: ", "ip -s link"),
        ("ValueError", "Read the traceback of rank 5 around step 614", ""),
    ],
)
def test_each_class_has_its_own_first_look(error: str, text: str, command: str) -> None:
    found = look(CRASH._replace(ended=Exited(1, error)))
    assert found.text.startswith(text)
    assert " ".join(found.commands).startswith(command)
    assert bool(found.commands) is bool(command)


def test_a_batch_that_an_attempt_got_past_does_not_explain_a_crash() -> None:
    found = look(CRASH._replace(ended=Exited(1, "device-side assert"), passed=PASSED))
    assert found.text == (
        "Run again with CUDA_LAUNCH_BLOCKING=1: attempt 1 passed step 614 and reached 638, so a bad batch there "
        "alone does not explain it"
    )
    assert found.host_first
    assert not look(CRASH._replace(ended=Exited(1, "device-side assert"))).host_first
    assert not look(CRASH._replace(ended=Exited(1, "ECC error"), passed=PASSED)).host_first, (
        "the GPU is looked at first"
    )


def test_what_is_not_known_is_left_out() -> None:
    unknown = CRASH._replace(host="", gpu="", selector="", step=None)
    assert look(unknown._replace(ended=Exited(1, "ECC error"))).text == "Check the GPU of rank 5 for errors"
    assert "the failing batch" in look(unknown._replace(ended=Exited(1, "device-side assert"))).text
    assert look(unknown).text == "Read the traceback of rank 5"
