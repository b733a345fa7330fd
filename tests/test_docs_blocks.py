"""What stands in the documents' code blocks and links is valid: commands parse, Python compiles, data parses."""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")])
FENCE = re.compile(r"^( *)```([\w+-]*)[^\n]*\n(.*?)^\1```", flags=re.MULTILINE | re.DOTALL)
SHELL = ("", "console", "sh", "bash", "text")
NOT_HERE = {"nemo_run", "nemo", "megatron", "nvidia_resiliency_ext", "my_model", "train", "standardwebhooks"}
"""Modules that an example may import and the tests' environment lacks."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    place: str
    language: str
    text: str


@cache
def blocks() -> tuple[Block, ...]:
    found = []
    for document in DOCUMENTS:
        content = document.read_text()
        for fence in FENCE.finditer(content):
            place = f"{document.relative_to(ROOT)}:{content.count(chr(10), 0, fence.start()) + 1}"
            found.append(Block(place, fence[2], textwrap.dedent(fence[3])))
    assert len(found) > 100, "the pattern no longer finds the code blocks"
    return tuple(found)


# Commands ----------------------------------------------------------------------------------------------------------


class Parsed(Exception):  # noqa: N818
    """The command's own parser has accepted the arguments."""


def commands(block: Block) -> Iterator[list[str]]:
    """The arguments of each call of ``rankwatch`` in a block; ``…`` and ``...`` stand for what is left out."""
    for line in re.sub(r"\\\n\s*", " ", block.text).splitlines():
        for call in re.finditer(
            r"(?:^|[|;&]\s|\s|\$\()rankwatch ((?:[a-z-]+|--\w+)(?: .*)?)$", re.split(r"\s#\s", line)[0]
        ):
            if re.match(r"\s*(?:#|\[rankwatch\])", line) or not re.match(
                r"[\w@-]*[$#] |\w+=|\S*srun |exec |rankwatch ", line
            ):
                continue
            lexer = shlex.shlex(call[1], posix=True, punctuation_chars="|;&<>()")
            lexer.whitespace_split, lexer.commenters = True, ""
            words, left_out = [], False
            for word in lexer:
                if word in ("|", "||", ";", "&", "&&", ">", ">>", "<", ")"):
                    break
                if word in ("…", "..."):
                    left_out = True
                else:
                    words.append(word)
            yield [*words, "train.py"] if left_out and words[0] == "run" and not call[1].endswith(".py") else words


def refused(words: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Why the command's parser refuses the arguments; empty if it accepts them."""
    name, *arguments = words
    known = {point.name: point for point in entry_points(group="rankwatch.commands")}
    if name.startswith("--"):
        return "" if name in ("--help", "--version") else f"there is no flag {name}"
    if name not in known:
        return f"there is no sub-command {name}"
    if name == "run":  # its main function looks for some flags of its own first
        from rankwatch_launcher.cli.main import build_parser

        load = lambda: build_parser().parse_args  # noqa: E731
    else:
        load = known[name].load
    original = argparse.ArgumentParser.parse_known_args

    def parse(self: argparse.ArgumentParser, *given: object, **named: object) -> object:
        outcome = original(self, *given, **named)  # type: ignore[arg-type]
        if outcome[1]:
            self.error(f"unrecognized arguments: {outcome[1]}")
        raise Parsed

    printed = io.StringIO()
    with monkeypatch.context() as patch, contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
        patch.setattr(argparse.ArgumentParser, "parse_known_args", parse)
        try:
            load()(arguments)
        except Parsed:
            return ""
        except SystemExit as ended:
            if not ended.code:  # --help
                return ""
        return (
            printed.getvalue().strip().splitlines()[-1]
            if printed.getvalue().strip()
            else "it did not parse its arguments"
        )


def test_commands_of_the_documents_are_accepted_by_their_own_parsers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [(block.place, words) for block in blocks() if block.language in SHELL for words in commands(block)]
    assert len(calls) > 50, "the pattern no longer finds the commands"
    wrong = [
        f"{place}: rankwatch {shlex.join(words)}: {why}"
        for place, words in calls
        if (why := refused(words, monkeypatch))
    ]
    assert not wrong, "\n".join(wrong)


# Python ------------------------------------------------------------------------------------------------------------


@cache
def defined(module: str) -> frozenset[str] | None:
    """The names that a module of ours has at its top, read from its source; None if there is no such module."""
    found = find_spec(module)
    if found is None or found.origin is None:
        return None
    source = Path(found.origin)
    names = (
        {path.stem for path in source.parent.glob("*") if path.name != "__pycache__"}
        if source.stem == "__init__"
        else set()
    )
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # names that __getattr__ serves
            names.add(node.value)
    return frozenset(names)


def unresolved(node: ast.AST) -> Iterator[str]:
    """The imports of a syntax node that lead nowhere."""
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            modules = [(alias.name, None) for alias in each.names]
        elif isinstance(each, ast.ImportFrom) and each.module:
            modules = [(each.module, [alias.name for alias in each.names])]
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "rankwatch":
            modules = [("rankwatch", [each.attr])]
        else:
            continue
        for module, names in modules:
            top = module.partition(".")[0]
            if top in NOT_HERE:
                continue
            if not top.startswith("rankwatch"):
                if find_spec(top) is None:
                    yield f"no module {top}"
                continue
            has = defined(module)
            if has is None:
                yield f"no module {module}"
            else:
                yield from (f"no {name} in {module}" for name in names or () if name not in has and name != "*")


def test_python_of_the_documents_compiles_and_its_imports_resolve() -> None:
    wrong = []
    python = [block for block in blocks() if block.language == "python"]
    assert len(python) > 25
    for block in python:
        try:
            tree = ast.parse(block.text)
        except SyntaxError:
            try:  # the inside of a function or a loop
                tree = ast.parse("def _():\n for _ in ():\n" + textwrap.indent(block.text, "  "))
            except SyntaxError as error:
                wrong.append(f"{block.place}: {error}")
                continue
        wrong += [f"{block.place}: {what}" for what in unresolved(tree)]
    assert not wrong, "\n".join(wrong)


# Data --------------------------------------------------------------------------------------------------------------


def test_json_and_yaml_of_the_documents_parse() -> None:
    wrong = []
    for block in blocks():
        try:
            if block.language == "json":
                json.loads(block.text)
            elif block.language in ("yaml", "yml"):
                list(yaml.safe_load_all(block.text))
        except ValueError as error:
            wrong.append(f"{block.place}: {error}")
        except yaml.YAMLError as error:
            wrong.append(f"{block.place}: {error}")
    assert not wrong, "\n".join(wrong)
    assert "yaml" in {block.language for block in blocks()}


# Links -------------------------------------------------------------------------------------------------------------


@cache
def anchors(document: Path) -> frozenset[str]:
    """The anchors of a document's headings, as GitHub and the manual make them."""
    seen: dict[str, int] = {}
    found = set()
    for heading in re.findall(r"^#{1,6} +(.*?) *$", FENCE.sub("", document.read_text()), flags=re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        found.add(slug if slug not in seen else f"{slug}-{seen[slug]}")
        seen[slug] = seen.get(slug, 0) + 1
    return frozenset(found)


def test_anchors_of_links_between_documents_exist() -> None:
    links = [
        (document, target, anchor)
        for document in DOCUMENTS
        for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)#([^)\s]+)\)", FENCE.sub("", document.read_text()))
    ]
    assert len(links) > 20, "the pattern no longer finds the links"
    wrong = []
    for document, target, anchor in links:
        file = (document.parent / target).resolve() if target else document
        if file.suffix == ".md" and anchor not in anchors(file):
            wrong.append(f"{document.relative_to(ROOT)}: {target}#{anchor}")
    assert not wrong, "\n".join(wrong)


# Messages ----------------------------------------------------------------------------------------------------------


@cache
def texts() -> tuple[str, ...]:
    """Every text of the product, with ``…`` for what is put in."""
    found = set()
    sources = [
        *ROOT.glob("telemetry/**/*.py"),
        *ROOT.glob("monitor/rankwatch_monitor/**/*.py"),
        *ROOT.glob("launcher/**/*.py"),
    ]
    for source in sources:
        if "node_modules" in source.parts:
            continue
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.add("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values))
    return tuple(re.sub(r"%[-+.\d]*[sdrgif]", "…", text) for text in found)


def test_messages_of_the_troubleshooting_page_exist_in_the_code() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    messages = re.findall(r"^### `(.+)`$", page, flags=re.MULTILINE)
    assert len(messages) >= 20
    unknown = [message for message in messages if not any(message.strip("… ") in text for text in texts())]
    assert unknown == []
