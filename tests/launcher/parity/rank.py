"""A rank of a scene: writes down what it sees, then does as it is told. It imports no torch unless it has to."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

OUT, HOW = Path(os.environ["SCENE_OUT"]), os.environ.get("SCENE_HOW", "")
RANK, NODE = os.environ.get("RANK", "x"), os.environ.get("GROUP_RANK", "x")
ATTEMPT = os.environ.get("TORCHELASTIC_RESTART_COUNT", "x")
SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP", "SIGQUIT")

seen = {
    "environment": dict(os.environ),
    "arguments": sys.argv,
    "command": sys.orig_argv[1:],
    "folder": os.getcwd(),
    "path": sys.path[0],
    "name": [__name__, __file__],
    "flags": str(sys.flags),
    "handlers": {name: str(signal.getsignal(getattr(signal, name))) for name in SIGNALS},
    "umask": os.umask(0o22),
    "nice": os.nice(0),
    "affinity": sorted(os.sched_getaffinity(0)),
    "open files": resource.getrlimit(resource.RLIMIT_NOFILE),
}
(OUT / f"saw-{NODE}-{RANK}-{ATTEMPT}.json").write_text(json.dumps(seen))
for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
    stream.write(f"{name} of {RANK}\n")
    stream.flush()
(OUT / f"told-{NODE}-{RANK}-{ATTEMPT}").touch()
# The first end of a rank ends the others: all have been seen before.
begin = time.monotonic()
while len(list(OUT.glob(f"told-*-{ATTEMPT}"))) < int(os.environ.get("WORLD_SIZE", "1")):
    if time.monotonic() > begin + 60:
        break
    time.sleep(0.02)

if HOW == "all-raise" or (HOW == "raise" and RANK == "1") or (HOW == "raise-once" and (RANK, ATTEMPT) == ("1", "0")):
    raise ValueError("as told")
if HOW.startswith("exit-") and RANK == "1":
    sys.exit(int(HOW[5:]))
if HOW.startswith("kill-") and RANK == "1":
    os.kill(os.getpid(), int(HOW[5:]))
if HOW == "record":
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def main() -> None:
        if RANK == "1":
            raise ValueError("recorded")
        time.sleep(60)

    main()
if HOW == "collective":
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.ones(1) * int(RANK)
    dist.all_reduce(tensor)
    sys.stdout.write(f"sum {tensor.item()}\n")
    sys.stdout.flush()
    os._exit(0)
if HOW in ("handle", "linger"):

    def handler(number: int, _: object) -> None:
        (OUT / f"got-{RANK}-{signal.Signals(number).name}").touch()
        if HOW == "handle":
            os._exit(0)

    for each in SIGNALS:
        signal.signal(getattr(signal, each), handler)
if HOW in ("handle", "linger", "sleep"):
    (OUT / f"ready-{RANK}").touch()
    until = time.monotonic() + 100
    while time.monotonic() < until:
        time.sleep(0.05)
