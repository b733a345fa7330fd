"""One module of Megatron-Bridge by its file, with Rankwatch standing in for nvidia_resiliency_ext.

Its own imports from Bridge and Megatron are few names, of types mostly; they are made up here, for the rest needs CUDA.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

from rankwatch.integrations.nvrx import stand_in

PACKAGES = ("megatron", "megatron.bridge", "megatron.bridge.training", "megatron.bridge.utils")


def load(file: str) -> ModuleType:
    """Run the module as it is."""
    stand_in.install()
    rank = int(os.environ["RANK"])

    def log(words: str) -> None:
        if rank == 0:
            sys.stdout.write(f"{words}\n")

    def module(name: str, **content: Any) -> None:
        made = ModuleType(name)
        vars(made).update(content)
        sys.modules[name] = made

    for package in PACKAGES:
        module(package)
    types = dict.fromkeys(("ConfigContainer", "FaultToleranceConfig", "NVRxStragglerDetectionConfig"), object)
    module("megatron.bridge.training.config", **types)
    module("megatron.bridge.training.state", GlobalState=object)
    module("megatron.bridge.utils.common_utils", get_rank_safe=lambda: rank, print_rank_0=log)
    module("megatron.bridge.utils.import_utils", MISSING_NVRX_MSG="nvidia-resiliency-ext is missing")
    spec = importlib.util.spec_from_file_location("megatron.bridge.training.loaded", file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
