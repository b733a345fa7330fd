"""docs/migrate-from-nvrx.md as rows, and what other people's packages define, read from their source."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final, NamedTuple

PAGE: Final = (Path(__file__).parents[2] / "docs" / "migrate-from-nvrx.md").read_text()
HEADS: Final = ("old", "from", "code", "`ft_launcher`", "`tools.inject_fault.Fault`")
"""What first columns are called."""
LIST: Final = re.compile(r"(The same|none: .+?|Below `[\w.]+`, the same parameters): `")
"""How a list of old names begins that share their second column."""


class Row(NamedTuple):
    """One row of a table of the page; ``note`` is empty where it has two columns."""

    section: str
    old: str
    new: str
    note: str

    def __str__(self) -> str:
        return self.old.strip("`").partition("(")[0]


class Span(NamedTuple):
    """A name in a code span; a parameter whose default the row does not give has None."""

    name: str
    parameters: dict[str, str | None]


def rows() -> list[Row]:
    """Every row of every table, its heading with it, and every name of a list such as "The same: `a`, `b`."."""
    found, section, listed = [], "", ""
    for line in PAGE.splitlines():
        if line.startswith("## "):
            section = line[3:]
        if start := LIST.match(line):
            listed = start[1].replace("The", "the").removeprefix("Below ")
            line = line[start.end(1) :]
        elif not line:
            listed = ""
        if listed:
            found += [Row(section, name, _below(listed, name), "") for name in re.findall(r"`[^`]+`", line)]
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")] if line.strip().startswith("| ") else []
        if len(cells) >= 2 and cells[0] not in HEADS:
            found.append(Row(section, cells[0], cells[1].removesuffix(" |"), cells[2] if len(cells) > 2 else ""))
    return found


def _below(listed: str, name: str) -> str:
    """The second column: of names below a module, the name there."""
    own = re.match(r"`(?:\w+\.)??((?:[A-Z]\w+\.)?\w+)[`(]", name)
    return re.sub("^(`[^`]+)`", rf"\1.{own[1] if own else ''}`", listed)


def row_of(*sections: str) -> list[Row]:
    checked = [row for row in rows() if row.section in sections and "not checked" not in row.note + row.new]
    assert checked, f"no table below {sections}"
    return checked


def named(cell: str) -> Span:
    """The first code span of a cell."""
    match = re.match(r"`([\w.]+)(?:\((.*)\))?`", cell)
    assert match, f"{cell!r} does not begin with a name in a code span"
    tree = ast.parse(f"f({', '.join(f'{p}=...' if '=' not in p else p for p in _split(match[2] or ''))})", mode="eval")
    assert isinstance(tree.body, ast.Call)
    pairs = {str(each.arg): ast.unparse(each.value) for each in tree.body.keywords}
    return Span(match[1], {name: None if value == "..." else value for name, value in pairs.items()})


def _split(parameters: str) -> list[str]:
    return [part.strip() for part in parameters.split(",") if part.strip()]


Definition = ast.ClassDef | ast.FunctionDef


def definitions(folder: Path) -> dict[str, list[Definition]]:
    """By the file's name without .py: the classes and functions in it."""
    there: dict[str, list[Definition]] = {}
    for path in sorted(folder.rglob("*.py")):
        there.setdefault(path.stem, []).extend(n for n in ast.parse(path.read_text()).body if isinstance(n, Definition))
    return there


def parameters_of(where: list[Definition], names: list[str]) -> dict[str, str]:
    """Parameters of ``Class``, ``Class.method`` or ``function``; a dataclass has its fields, an enumeration none."""
    (node,) = [each for each in where if each.name == names[0]]
    for name in names[1:]:
        assert isinstance(node, ast.ClassDef)
        (node,) = [each for each in node.body if isinstance(each, Definition) and each.name == name]
    made = node
    if isinstance(node, ast.ClassDef):
        inits = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        if not inits:
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            return {ast.unparse(each.target): _default(each.value) for each in fields}
        made = inits[0]
    assert isinstance(made, ast.FunctionDef)
    arguments = made.args
    names_, late = [a.arg for a in arguments.args], [_default(each) for each in arguments.defaults]
    by_position = dict(zip(names_, ["..."] * (len(names_) - len(late)) + late, strict=True))
    by_name = dict(zip([a.arg for a in arguments.kwonlyargs], map(_default, arguments.kw_defaults), strict=True))
    return {name: value for name, value in (by_position | by_name).items() if name not in ("self", "cls")}


def _default(node: ast.expr | None) -> str:
    return "..." if node is None else ast.unparse(node)


def place(there: dict[str, list[Definition]], name: str) -> tuple[list[Definition], list[str]]:
    """Where a name of the page is defined, and the name there: ``health_check.FaultCounter`` names its file."""
    names = name.split(".")
    files = [part for part in names[:-1] if part in there]
    where = there[files[-1]] if files else [each for nodes in there.values() for each in nodes]
    return where, names[names.index(files[-1]) + 1 :] if files else names
