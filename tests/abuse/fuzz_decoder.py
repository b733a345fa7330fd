"""Look for bodies that break the decoder's edge, guided by coverage (atheris); not a test, a tool to run for minutes.

    python tests/abuse/fuzz_decoder.py CORPUS_FOLDER -max_total_time=600

What it finds goes into ``tests/abuse/found`` under a name that states the defect; ``test_decoder.py`` runs all of them.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["rankwatch_monitor", "abuse.decoder_target"]):
    from abuse.decoder_target import feed

from abuse.hostile import changed, seeds


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """Every second time a change that knows the message, else one of libFuzzer's own."""
    dice = random.Random(seed)
    found = changed(data, dice) if dice.random() < 0.6 else atheris.Mutate(data, most)
    return found[:most]


def main() -> None:
    """Write the seeds into the corpus (the first argument), then fuzz."""
    corpus = Path(sys.argv[1])
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    atheris.Setup([*sys.argv, "-max_len=16384", "-timeout=20", "-rss_limit_mb=3000"], feed, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
