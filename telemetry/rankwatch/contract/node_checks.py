"""What checks of a node find, as records, and the one place where their words are made.

A launcher checks its node before each attempt; the results go into its registration, and to the other launchers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from rankwatch.contract.text import one_line

MAX_CHECKS: Final = 16
"""Results of one node that are kept."""
MAX_FIELDS: Final = 16
"""Fields of the evidence of one result."""
MAX_VALUE: Final = 200
"""Characters of one of them."""


class CheckName(StrEnum):
    """The checks of a node; a label of a metric, so there are no others."""

    GPU = "gpu"
    GPU_MEMORY = "gpu_memory"
    NVLINK = "nvlink"
    NETWORK = "network"
    STORAGE = "storage"
    HOST = "host"
    COMMAND = "command"
    PAIRS = "pairs"


class CheckState(StrEnum):
    """The result of one check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """There is nothing to check, or it cannot be read."""


class CheckReason(StrEnum):
    """Why a check failed, or was skipped."""

    # Any check
    TIMED_OUT = "timed_out"
    BROKEN = "broken"
    """The check itself failed."""
    # GPU
    GPU_LOST = "gpu_lost"
    GPU_MISSING = "gpu_missing"
    """Fewer devices than at the last check."""
    RECOVERY_NEEDED = "recovery_needed"
    PAGES_PENDING = "pages_pending"
    ROWS_PENDING = "rows_pending"
    ROWS_FAILED = "rows_failed"
    ECC_UNCORRECTED = "ecc_uncorrected"
    XID = "xid"
    THROTTLED_AT_REST = "throttled_at_rest"
    CLOCKS_LOW = "clocks_low"
    MEMORY_HELD = "memory_held"
    # NVLink
    LINK_INACTIVE = "link_inactive"
    FABRIC_NOT_READY = "fabric_not_ready"
    FABRIC_FAILED = "fabric_failed"
    LINK_ERRORS = "link_errors"
    # Network
    INTERFACE_MISSING = "interface_missing"
    INTERFACE_DOWN = "interface_down"
    HCA_MISSING = "hca_missing"
    PORT_DOWN = "port_down"
    PORT_SLOWER = "port_slower"
    PORT_ERRORS = "port_errors"
    # Storage
    NOT_WRITABLE = "not_writable"
    READ_BACK = "read_back"
    NO_SPACE = "no_space"
    MOUNT_STALE = "mount_stale"
    # Host
    LITTLE_MEMORY = "little_memory"
    LITTLE_SHARED_MEMORY = "little_shared_memory"
    CLOCK_OFF = "clock_off"
    FEW_FILES = "few_files"
    # A command of the user's own
    EXIT_CODE = "exit_code"
    # Pairs
    SLOW_IN_BOTH = "slow_in_both"
    SILENT_IN_BOTH = "silent_in_both"
    # Skipped
    NOTHING_HERE = "nothing_here"
    NOT_READABLE = "not_readable"
    NOT_ASKED = "not_asked"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check of one node found."""

    name: str
    """A :class:`CheckName`."""
    state: CheckState
    reason: str = ""
    """A :class:`CheckReason`; empty: it passed."""
    evidence: Mapping[str, str] = field(default_factory=dict)
    """What was read: of a failure, the fields of its sentence."""
    seconds: float = 0.0

    def brief(self) -> CheckResult:
        """It as it is registered: of a check that did not fail, nothing but that, so that most nodes send the same."""
        return replace(self, evidence=self.evidence if self.state is CheckState.FAILED else {}, seconds=0.0)

    def bounded(self) -> CheckResult:
        """It with texts that no terminal obeys, cut: paths, devices and commands may print anything."""
        evidence = {
            one_line(name, 40): one_line(one_line(value, MAX_VALUE), MAX_VALUE)
            for name, value in [*self.evidence.items()][:MAX_FIELDS]
        }
        return replace(self, name=one_line(self.name, 40), reason=one_line(self.reason, 40), evidence=evidence)


def failed(results: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """Those that failed."""
    return tuple(each for each in results if each.state is CheckState.FAILED)


# Words ----------------------------------------------------------------------------------------------------------------

_SENTENCES: Final[Mapping[str, str]] = {
    CheckReason.TIMED_OUT: "no answer within {limit} s",
    CheckReason.BROKEN: "the check itself failed: {error}",
    CheckReason.GPU_LOST: "GPU {gpu} is lost: {error}",
    CheckReason.GPU_MISSING: "{found} GPUs, {before} at the last check",
    CheckReason.RECOVERY_NEEDED: "GPU {gpu} asks for recovery: {action}",
    CheckReason.PAGES_PENDING: "GPU {gpu} has memory pages whose retirement is pending: reset it",
    CheckReason.ROWS_PENDING: "GPU {gpu} has memory rows whose remapping is pending: reset it",
    CheckReason.ROWS_FAILED: "GPU {gpu} has no spare memory rows left: remapping failed",
    CheckReason.ECC_UNCORRECTED: "GPU {gpu} had {count} uncorrected memory errors since the last check",
    CheckReason.XID: "GPU {gpu} reported XID {xid}",
    CheckReason.THROTTLED_AT_REST: "GPU {gpu} is throttled at rest: {throttling}",
    CheckReason.CLOCKS_LOW: "the clocks of GPU {gpu} are set to {clock} MHz of {default} MHz",
    CheckReason.MEMORY_HELD: "{mib} MiB of GPU {gpu} are still held by {processes} of an earlier attempt",
    CheckReason.LINK_INACTIVE: "GPU {gpu} has {active} active NVLinks, {expected} {compared}",
    CheckReason.FABRIC_NOT_READY: "the NVLink fabric of GPU {gpu} is {fabric}",
    CheckReason.FABRIC_FAILED: "GPU {gpu} is not part of its NVLink fabric: status {status}",
    CheckReason.LINK_ERRORS: "NVLink {link} of GPU {gpu}: {counter} rose by {count} since the last check",
    CheckReason.INTERFACE_MISSING: "no network interface matches {variable}={value}",
    CheckReason.INTERFACE_DOWN: "the network interface {interface} ({variable}={value}) is {found}",
    CheckReason.HCA_MISSING: "no InfiniBand device matches {entry} ({variable}={value})",
    CheckReason.PORT_DOWN: "port {port} is {found}{why}",
    CheckReason.PORT_SLOWER: "port {port} has {found}, {before} at the last check",
    CheckReason.PORT_ERRORS: "port {port}: {counter} rose by {count} since the last check",
    CheckReason.NOT_WRITABLE: "{path} cannot be used: {error}",
    CheckReason.READ_BACK: "{path} returns other data than was written",
    CheckReason.NO_SPACE: "{path} has {found} free",
    CheckReason.MOUNT_STALE: "the mount {path} ({kind}) does not answer: {error}",
    CheckReason.LITTLE_MEMORY: "{found} of memory are available",
    CheckReason.LITTLE_SHARED_MEMORY: "{found} are free in {path}",
    CheckReason.CLOCK_OFF: "the clock is {seconds} s {direction} the monitor's",
    CheckReason.FEW_FILES: "the limit of open files is {found}",
    CheckReason.EXIT_CODE: "{command} ended with {code}{last}",
    CheckReason.SLOW_IN_BOTH: "slow with both of its partners: {figures}",
    CheckReason.SILENT_IN_BOTH: "silent with both of its partners",
    CheckReason.NOTHING_HERE: "there is no {what} here",
    CheckReason.NOT_READABLE: "{what} cannot be read{error}",
    CheckReason.NOT_ASKED: "not asked for",
}


def sentence(result: CheckResult) -> str:
    """``storage: /ckpt cannot be used: Read-only file system``; the name alone where a check passed."""
    return f"{result.name}: {clause(result)}" if result.reason else result.name


def clause(result: CheckResult) -> str:
    """``/ckpt cannot be used: Read-only file system``; empty where a check passed."""
    words = _SENTENCES.get(result.reason)
    return result.reason if words is None else words.format_map(_Fields(result.evidence))


def unfit(results: Iterable[CheckResult]) -> str:
    """Why a node takes no part, from its failed checks."""
    words = [sentence(each) for each in results]
    more = f" and {len(words) - 3} more" if len(words) > 3 else ""
    return f"it fails its check: {'; '.join(words[:3])}{more}"


class _Fields(dict[str, str]):
    """A field that another version did not send is shown as such."""

    def __missing__(self, name: str) -> str:
        return "?"
