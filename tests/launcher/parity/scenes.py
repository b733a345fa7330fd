"""Scenes that torchrun and ``rankwatch run`` both play: a command line, an environment, and what happens meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

STANDALONE: Final = "--standalone --nproc-per-node=2 --max-restarts=0"
C10D: Final = "--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{port} --rdzv-id=job --max-restarts=0"
SOON: Final = "--rdzv-conf=join_timeout=60,last_call_timeout=1"
LOGS: Final = "--log-dir={out}/logs"
RANK: Final = "{here}/rank.py --lr 1e-3 -x --max-restarts 7"
TOUCH: Final = "{here}/touch.sh {out}"


@dataclass(frozen=True)
class Scene:
    """One scene. ``{here}``: this folder, ``{out}``: the launcher's own, ``{port}``: a free port."""

    name: str
    flags: str
    script: str = RANK
    how: str = ""
    """What the ranks do, see ``rank.py``."""
    env: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ("",)
    """Further flags of each launcher."""
    signal: signal.Signals | None = None
    """Sent to the launcher once both ranks are ready."""
    folder: str = ""
    """Where the launcher is started, if it matters."""


def _env(**given: str) -> dict[str, str]:
    return given


SCENES: Final = (
    # What a rank finds
    Scene("standalone", STANDALONE),
    Scene("no-flags", ""),
    Scene("static", "--nproc-per-node=2 --rdzv-id=abc --monitor-interval=0.2 --start-method=spawn --max-restarts=0"),
    Scene("elastic", f"--nnodes=1:2 --nproc-per-node=2 {C10D} {SOON}"),
    Scene("one-of-one", f"--nnodes=1:1 --nproc-per-node=2 {C10D}"),
    Scene("master", "--nnodes=1 --nproc-per-node=2 --master-addr=localhost --master-port={port} --node-rank=0"),
    Scene("underscores", "--nproc_per_node=2 --master_addr=localhost --master_port={port} --max_restarts=0"),
    Scene("local-addr", f"--nproc-per-node=1 --local-addr=127.0.0.1 {C10D}"),
    Scene("role", f"{STANDALONE} --role=trainer"),
    Scene(
        "file-store",
        "--nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint={out}/store --rdzv-id=f "
        "--rdzv-conf=store_type=file --max-restarts=0",
    ),
    Scene("virtual-local-rank", f"{STANDALONE} --virtual-local-rank"),
    Scene("virtual-devices", f"{STANDALONE} --virtual-local-rank", env=_env(CUDA_VISIBLE_DEVICES="3,5")),
    Scene("devices", STANDALONE, env=_env(CUDA_VISIBLE_DEVICES="3,5")),
    Scene("threads", STANDALONE, env=_env(OMP_NUM_THREADS="")),
    Scene("threads-given", STANDALONE, env=_env(OMP_NUM_THREADS="3")),
    Scene("agent-store-off", STANDALONE, env=_env(TORCHELASTIC_USE_AGENT_STORE="False")),
    Scene("error-handling", STANDALONE, env=_env(TORCH_NCCL_ASYNC_ERROR_HANDLING="0")),
    Scene("python-flags", STANDALONE, env=_env(PYTHONUNBUFFERED="1", PYTHONOPTIMIZE="1")),
    Scene("inherited", STANDALONE, env=_env(SENTINEL="FOOBAR")),
    Scene("fork", f"{STANDALONE} --start-method=fork"),
    Scene("macro", STANDALONE, "{here}/rank.py --place '${{local_rank}}'"),
    Scene("collective", STANDALONE, how="collective"),
    # What is started
    Scene("module", f"-m {STANDALONE}", "rank a --b", folder="{here}"),
    Scene("run-path", f"--run-path {STANDALONE}", "{here}/rank.py a --b"),
    Scene("no-python", "--nproc-per-node=4 --no-python", TOUCH),
    Scene("no-python-alone", "--no-python", TOUCH),
    Scene("usage-no-python-module", "--nproc-per-node=4 --no-python --module", TOUCH),
    Scene("python-exec", STANDALONE, TOUCH, env=_env(PYTHON_EXEC="{here}/python.sh")),
    Scene(
        "variables",
        "",
        TOUCH,
        env=_env(
            PET_NNODES="1",
            PET_NPROC_PER_NODE="4",
            PET_RDZV_ID="77",
            PET_NO_PYTHON="1",
            PET_MONITOR_INTERVAL="0.2",
            PET_START_METHOD="spawn",
        ),
    ),
    Scene("usage-variables", "", TOUCH, env=_env(PET_NPROC_PER_NODE="2", PET_NO_PYTHON="1", PET_MODULE="1")),
    Scene(
        "variables-restarts",
        "",
        how="raise",
        env=_env(PET_NPROC_PER_NODE="2", PET_MAX_RESTARTS="1", PET_STANDALONE="1"),
    ),
    Scene("flag-before-variable", "--nproc-per-node=2", env=_env(PET_NPROC_PER_NODE="4", PET_STANDALONE="1")),
    Scene("nproc-auto", "--nproc-per-node=auto --no-python", TOUCH),
    Scene("nproc-cpu", "--nproc-per-node=cpu --no-python", TOUCH),
    Scene("usage-nproc-gpu", "--nproc-per-node=gpu --no-python", TOUCH),
    Scene("usage-nproc-xpu", "--nproc-per-node=xpu --no-python", TOUCH),
    Scene("usage-nproc-unknown", "--nproc-per-node=unknown --no-python", TOUCH),
    Scene("usage-nnodes", f"--nnodes=2:20:30 {STANDALONE}"),
    Scene("usage-nnodes-range", "--nnodes=3:2"),
    Scene("usage-restarts", "--standalone --max-restarts=-1"),
    Scene("usage-logs-specs", f"{STANDALONE} --logs-specs=NO_SUCH"),
    Scene("usage-filter", f"{STANDALONE} --local-ranks-filter=a"),
    Scene("usage-shutdown-timeout", f"{STANDALONE} --shutdown-timeout=-1"),
    Scene("unknown-flag", f"{STANDALONE} --no-such-flag=1"),
    Scene("no-script", STANDALONE, "{here}/no_such_script.py"),
    # Logs
    Scene("redirects", f"{STANDALONE} {LOGS} --redirects=3"),
    Scene("redirects-stdout", f"{STANDALONE} {LOGS} -r 1"),
    Scene("tee", f"{STANDALONE} {LOGS} --tee=3"),
    Scene(
        "tee-prefix", f"{STANDALONE} {LOGS} -t 3", env=_env(TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="[rank${{rank}}]: ")
    ),
    Scene("mixed", f"{STANDALONE} {LOGS} -r 0:1,1:2 -t 1:3"),
    Scene("filter", f"{STANDALONE} {LOGS} --tee=3 --local-ranks-filter=0"),
    Scene("filter-without-logs", f"{STANDALONE} --local-ranks-filter=1"),
    Scene("duplicates", f"{STANDALONE} {LOGS} --redirects=3 '--duplicate-stdout-filters=stdout of 1'"),
    Scene("no-redirects", f"{STANDALONE} {LOGS}"),
    Scene("logs-of-attempts", f"--standalone --nproc-per-node=2 {LOGS} -r 3 --max-restarts=1", how="raise-once"),
    Scene("events", f"{STANDALONE} --event-log-handler=console"),
    # Failures
    Scene("fails-alike", STANDALONE, how="all-raise"),
    Scene("fails", STANDALONE, how="raise"),
    Scene("fails-once", "--standalone --nproc-per-node=2 --max-restarts=1", how="raise-once"),
    Scene("exits-3", STANDALONE, how="exit-3"),
    Scene("exits-77", STANDALONE, how="exit-77"),
    Scene("killed-9", STANDALONE, how="kill-9"),
    Scene("killed-11", STANDALONE, how="kill-11"),
    Scene("killed-15", STANDALONE, how="kill-15"),
    Scene("records", STANDALONE, how="record"),
    Scene("error-file", STANDALONE, how="record", env=_env(TORCHELASTIC_ERROR_FILE="{out}/error.json")),
    # Signals
    Scene("stop-SIGTERM", STANDALONE, how="handle", signal=signal.SIGTERM),
    Scene("stop-SIGTERM-ignored", f"{STANDALONE} --shutdown-timeout=1", how="linger", signal=signal.SIGTERM),
    Scene("stop-SIGINT", STANDALONE, how="handle", signal=signal.SIGINT),
    Scene("stop-SIGHUP", STANDALONE, how="handle", signal=signal.SIGHUP),
    Scene("stop-SIGQUIT", STANDALONE, how="handle", signal=signal.SIGQUIT),
    Scene("stop-SIGHUP-ignored", f"{STANDALONE} --shutdown-timeout=1", how="linger", signal=signal.SIGHUP),
    Scene("stop-SIGUSR1", f"{STANDALONE} --signals-to-handle=SIGTERM,SIGUSR1", how="handle", signal=signal.SIGUSR1),
    # Several nodes
    Scene(
        "nodes-static",
        "--nnodes=2 --nproc-per-node=2 --master-addr=127.0.0.1 --master-port={port} --max-restarts=0",
        nodes=("--node-rank=0", "--node-rank=1"),
    ),
    Scene("nodes-c10d", f"--nnodes=2 --nproc-per-node=2 {C10D}", nodes=("", "")),
    Scene("nodes-elastic", f"--nnodes=2:3 {C10D} {SOON}", nodes=("", "")),
    Scene(
        "nodes-file",
        "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint={out}/store --rdzv-id=f --max-restarts=0 "
        "--rdzv-conf=store_type=file",
        nodes=("", ""),
    ),
    Scene(
        "nodes-unequal", f"--nnodes=3 {C10D}", nodes=("--nproc-per-node=1", "--nproc-per-node=2", "--nproc-per-node=1")
    ),
    Scene("nodes-roles", f"--nnodes=3 {C10D}", nodes=("--role=master", "--role=trainer", "--role=trainer")),
)
