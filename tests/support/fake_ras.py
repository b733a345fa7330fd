"""A stand-in for NCCL's RAS subsystem: its protocol on a real socket, and answers in the forms of several versions.

The forms follow NCCL's documentation of RAS and the answers that users have published; the jobs in them are made up.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

TEXT_2_24 = """\
NCCL version 2.24.3 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  MISMATCH
    1         4         2         1         2         8   RUNNING      OK

Errors
======

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  7 ranks have launched up to operation 6650
  Rank 5 has launched up to operation 6649 -- GPU 1 managed by process 4242 on node 10.0.0.2

"""
"""Of one rank that has launched one operation less; all kinds are counted as one."""

TEXT_2_24_DEAD = """\
NCCL version 2.24.3 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2       3-4         8         7   RUNNING  INCOMPLETE

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 4242 on node 10.0.0.2 managing GPU 1

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 5

Warnings
========

"""

TEXT_2_27 = """\
NCCL version 2.27.3 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (2.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2       3-4         8         7   RUNNING  INCOMPLETE,MISMATCH

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 4249 on node 10.0.0.2 managing GPU 3 (NVML 7)

#0-0 (a1b2c3d4e5f60718) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 7 -- GPU 3 (NVML 7) managed by process 4249 on node 10.0.0.2

#0-0 (a1b2c3d4e5f60718) ERROR
  Asynchronous error on 1 rank
  Rank 2 reported Remote process error -- GPU 2 managed by process 4141 on node 10.0.0.1

Warnings
========

TIMEOUT
  Encountered 1 communication timeout while gathering communicator data

#0-0 (a1b2c3d4e5f60718) MISMATCH
  Communicator ranks have different AllGather operation counts
  5 ranks have launched up to operation 640
  2 ranks have launched up to operation 639
  Rank 1 -- GPU 1 managed by process 4140 on node 10.0.0.1
  Rank 4 -- GPU 0 managed by process 4241 on node 10.0.0.2

  Communicator ranks have different AllReduce operation counts
  6 ranks have launched up to operation 12
  Rank 4 has not launched any operations -- GPU 0 managed by process 4241 on node 10.0.0.2

"""
"""Kinds are counted apart, missing ranks have their process, and one rank reports an error."""

HEALTHY = TEXT_2_24.replace("MISMATCH", "      OK", 1).partition("#0-0")[0]


def json_answer(
    ranks: Sequence[Mapping[str, Any]], missing: Sequence[Mapping[str, Any]] = (), size: int = 0, name: str = "0xfeed"
) -> str:
    """The answer of NCCL 2.28.9 for one communicator, see :func:`json_rank`."""
    communicator = {
        "hash": name, "secondary_hash": "0x1:0x2", "size": size or len(ranks) + len(missing), "ranks_count": len(ranks),
        "missing_ranks_count": len(missing), "ranks": list(ranks), "missing_ranks": list(missing),
    }  # fmt: skip
    return json.dumps(
        {
            "nccl_version": "2.28.9", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
            "timestamp": "2026-08-01 12:00:00", "communicators_count": 1, "communicators": [communicator],
            "ras": {"collection_time_sec": 0.002, "timeouts_count": 0},
        },
        indent=2,
    )  # fmt: skip


def json_rank(rank: int, pid: int, host: str = "127.0.0.1", **counts: int) -> dict[str, Any]:
    """One rank of a communicator, with how many operations of each kind it has launched."""
    return {
        "rank": rank, "host": host, "pid": pid, "cuda_dev": rank, "nvml_dev": rank,
        "status": {
            "init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False,
        },
        "collective_counts": {"Broadcast": 1, "AllGather": 0, "AllReduce": 7, "SendRecv": rank, **counts},
    }  # fmt: skip


def missing_rank(rank: int, pid: int, host: str = "127.0.0.1", *, dead: bool = False) -> dict[str, Any]:
    """A rank of a communicator whose process has not answered."""
    status = {"unresponsive": True, "considered_dead": dead}
    return {"rank": rank, "host": host, "pid": pid, "cuda_dev": 0, "nvml_dev": 0, "status": status}


def serve(
    answer: Callable[[bool], str | bytes], *, port: int = 0, json_known: bool = True, greeting: bytes | None = None
) -> int:
    """Listen as NCCL does, on daemon threads; the port.

    Args:
        answer: the answer to STATUS; whether it is wanted in JSON.
        port: where, on loopback; 0: chosen by the system.
        json_known: False: this NCCL is older than 2.28.7.
        greeting: sent in place of the version of the protocol.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()

    def talk(line: socket.socket) -> None:
        in_json = False
        with line, line.makefile("rwb", buffering=0) as file:
            try:
                while command := file.readline(1000).strip().lower():
                    if command.startswith(b"client protocol "):
                        file.write(b"SERVER PROTOCOL 2\n" if greeting is None else greeting)
                    elif command.startswith(b"timeout "):
                        file.write(b"OK\n")
                    elif command.startswith(b"set format ") and json_known:
                        in_json = command.endswith(b"json")
                        file.write(b"OK\n")
                    elif command in (b"status", b"verbose status"):
                        found = answer(in_json)
                        line.sendall(found.encode() if isinstance(found, str) else found)
                        return
                    else:
                        file.write(b"ERROR: Unknown command " + command + b"\n")
            except OSError:
                return

    def accept() -> None:
        while True:
            threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return int(listener.getsockname()[1])
