"""The ranges of pyproject.toml admit what five images have; test_images.py installs beside it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent
PROJECT = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
IMAGES = sorted((HERE / "images").glob("*.txt"))


def asked() -> Iterator[Requirement]:
    yield from map(Requirement, PROJECT["dependencies"])
    for extra in ("monitor", "yaml"):
        yield from map(Requirement, PROJECT["optional-dependencies"][extra])


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.stem)
def test_each_range_admits_what_the_image_has(image: Path) -> None:
    lines = [line for line in image.read_text().splitlines() if not line.startswith("#")]
    has = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    found = [each for each in asked() if canonicalize_name(each.name) in has]
    assert found, "the image has a package that Rankwatch needs too"
    assert not [str(each) for each in found if has[canonicalize_name(each.name)] not in each.specifier]
