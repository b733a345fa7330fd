"""Every row of docs/migrate-from-nvrx.md is tried: new names against the product, old ones against published wheels.

How this works
--------------
================================  ===================================================================================
old | new                         names in code spans, with the parameters and defaults that the row promises
the same                          the old name, imported through the stand-in, takes these parameters
new, the same parameters          the new name takes the parameters and defaults of the old one
none: why                         the stand-in must not have the old name
flags                             both columns, read by the launcher's own parser, lead to the same settings
log lines                         the words between ``…`` stand in one line of our source
================================  ===================================================================================

A row that states "not checked" is not. The long tests read the old packages by their source: importing them needs CUDA.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import shlex
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from rankwatch import inprocess
from rankwatch.faults import spec
from rankwatch.inprocess.options import WrapperOptions
from rankwatch.integrations.nvrx import missing_names, stand_in
from rankwatch_launcher.cli import main
from rankwatch_launcher.cli import nvrx as ft_launcher
from support.migration import Definition, Row, definitions, named, parameters_of, place, row_of, rows
from support.wheels import unpacked

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("telemetry/rankwatch", "launcher/rankwatch_launcher", "monitor/rankwatch_monitor")

NVRX: Final = {
    f"`nvidia_resiliency_ext.{name}`": name for name in ("fault_tolerance", "straggler", "ptl_resiliency", "inprocess")
}
"""By heading: the module below nvidia_resiliency_ext whose names the table holds."""
OTHERS: Final = ("Megatron-Bridge: hooks and settings", "Plugins and callbacks of NeMo-Run and NeMo")
FLAGS, VARIABLES, CODES, LINES, FILES = (
    "Launcher flags",
    "Environment variables",
    "Exit codes",
    "Log lines",
    "Files",
)


API: Final = [row for row in rows() if row.section in (*NVRX, *OTHERS) and re.match(r"`[a-z_]*\.?[\w.]+", row.old)]
KINDS: Final = [row for row in API if re.fullmatch(r"`[A-Z_]+`", row.old)]
NAMES: Final = [row for row in API if row not in KINDS]


@pytest.fixture(autouse=True)
def stands_in() -> Iterator[None]:
    stand_in.install()
    yield
    stand_in.uninstall()


# New names ------------------------------------------------------------------------------------------------------------


def test_the_message_of_a_missing_name_has_the_row() -> None:
    """Of names of their own: parameters and methods are found by reading the page."""
    top = {row: f"{NVRX[row.section]}.{named(row.old).name}" for row in NAMES if row.section in NVRX}
    for name, listed in missing_names.REPLACEMENTS.items():
        (row,) = [row for row, full in top.items() if full == name]
        if "the same" not in row.new:
            assert listed == row.new.strip("`"), name


@pytest.mark.parametrize("row", NAMES, ids=str)
def test_the_new_name_takes_what_the_row_states(row: Row) -> None:
    theirs = f"{stand_in.REPLACED}.{NVRX[row.section]}" if row.section in NVRX else ""
    if row.new.startswith("none: "):
        assert len(row.new) > len("none: ") + 5, "states why"
        if theirs:
            assert not is_there(f"{theirs}.{named(row.old).name}", named(row.old).parameters), "it is there by now"
        return
    if row.new == "the same":
        assert theirs, "only the stand-in has the same names"
        takes(f"{theirs}.{named(row.old).name}", named(row.old).parameters)
        return
    new = named(row.new)
    if row.new.endswith("the same parameters"):
        new = new._replace(parameters=named(row.old).parameters)
    ours = stand_in.COUNTERPARTS[NVRX[row.section]] if theirs and not new.name.startswith("rankwatch.") else ""
    takes(f"{ours}.{new.name}".lstrip("."), new.parameters)


def is_there(path: str, parameters: dict[str, str | None]) -> bool:
    try:
        takes(path, parameters)
    except (AttributeError, ImportError, AssertionError):
        return False
    return True


def takes(path: str, parameters: dict[str, str | None]) -> None:
    """The object of that name takes these parameters, with these defaults."""
    if path.startswith("rankwatch.integrations.nemo_run."):
        known = parameters_of(
            definitions(ROOT / "telemetry/rankwatch/integrations/nemo_run")["plugins"], path.split(".")[3:]
        )
    else:
        known = signature(found(path))
    for name, default in parameters.items():
        assert name in known, f"{path} takes no {name}; it takes {', '.join(known)}"
        if default is not None:
            assert _value(known[name]) == _value(default), f"{path}({name})"


def found(path: str) -> Any:
    """Import as much of a dotted name as there are modules of, and look up the rest."""
    parts = path.split(".")
    top = importlib.import_module(parts[0])
    for count, part in enumerate(parts[1:], 2):
        try:
            top = getattr(top, part)
        except AttributeError:
            if not inspect.ismodule(top):
                raise
            try:
                top = importlib.import_module(".".join(parts[:count]))
            except ImportError as error:
                if "pip install" in str(error):
                    pytest.skip(str(error))
                raise
    return top


def signature(of: Any) -> dict[str, str]:
    """Parameters with their defaults as Python writes them."""
    if of is inprocess.Wrapper:  # it takes keywords, and refuses unknown ones
        of = WrapperOptions
    if isinstance(of, property) or not callable(of):
        return {}
    fields = {f.name: f for f in dataclasses.fields(of)} if inspect.isclass(of) and dataclasses.is_dataclass(of) else {}
    try:
        parameters = inspect.signature(of).parameters.values()
    except (TypeError, ValueError):  # exceptions
        return {}
    return {
        each.name: "..." if each.name in fields and each.default is each.empty else _written(each.default)
        for each in parameters
    }


def _written(default: Any) -> str:
    return "..." if default is inspect.Parameter.empty else repr(getattr(default, "value", default))


def _value(text: str) -> Any:
    """Numbers that are equal are the same default."""
    try:
        return ast.literal_eval(text)
    except ValueError:
        try:
            return eval(text, {"__builtins__": {}})  # 60.0 * 60.0, in one of the old packages
        except NameError:
            return text


@pytest.mark.parametrize("row", KINDS, ids=str)
def test_every_kind_of_fault_has_its_name(row: Row) -> None:
    if not row.new.startswith("none: "):
        assert spec.of({"rank": 0, "step": 0, "kind": row.new.strip("`")}).kind


@pytest.mark.parametrize("row", row_of(VARIABLES, FILES), ids=str)
def test_variables_and_files_are_constants(row: Row) -> None:
    if row.new.startswith("`--"):
        settings(row.new.strip("`"))
        return
    value = found(named(row.new).name)
    assert isinstance(value, str)
    if "same" in row.note:
        assert value in row.old + row.note


@pytest.mark.parametrize("row", row_of(CODES), ids=str)
def test_exit_codes_are_constants(row: Row) -> None:
    constants = re.findall(r"`([\w.]+)`", row.note)
    assert constants
    assert {found(name) for name in constants} == {int(row.old)}


@pytest.mark.parametrize("row", row_of(LINES), ids=str)
def test_log_lines_stand_in_our_source(row: Row) -> None:
    parts = [part for part in re.split("…", row.new.strip("`")) if part]
    pattern = ".*".join(re.escape(part) for part in parts)
    assert any(re.search(pattern, path.read_text()) for folder in PACKAGES for path in (ROOT / folder).rglob("*.py"))


def test_the_paths_of_the_second_step_can_be_imported() -> None:
    step = [row for row in rows() if row.section == "" and row.new.startswith("`rankwatch.")]
    assert len(step) == 8
    for row in step:
        if not row.new.startswith("`rankwatch.integrations.nemo_run"):  # needs an environment of its own
            assert inspect.ismodule(found(named(row.new).name))
        for old in re.findall(rf"`({stand_in.REPLACED}[\w.]+)`", row.old):
            assert stand_in.COUNTERPARTS[old.partition(".")[2]] == named(row.new).name


# Flags ----------------------------------------------------------------------------------------------------------------


def settings(words: str) -> tuple[Any, ...]:
    """What the launcher makes of a command line with these words."""
    parser = main.build_parser()
    args = parser.parse_args(main.split([*shlex.split(words), "train.py"], parser))
    assert args.training_script == "train.py", f"{words} takes the script for a value"
    foreign = ft_launcher.from_flags(args, {}), Namespace(policy={}, options={}, notes=[], shutdown_timeout=None)
    options, restarts = main.read_options(args, {}, "none", foreign=foreign)  # type: ignore[arg-type]
    shutdown = foreign[0].shutdown_timeout if args.shutdown_timeout is None else args.shutdown_timeout
    return options, restarts, shutdown, foreign[0]


@pytest.mark.parametrize("row", row_of(FLAGS), ids=str)
def test_flags_mean_what_the_row_states(row: Row) -> None:
    words = row.old.strip("`")
    *old, given = settings(words)
    if row.new.startswith("none: "):
        assert tuple(old) == settings("")[:3]
        assert given.notes, "accepted without a word"
    elif row.new != "the same":
        assert tuple(old) == settings(row.new.strip("`"))[:3]
        assert tuple(old) != settings("")[:3], "it changes nothing"
    assert all(settings(spelled)[:3] == tuple(old) for spelled in spellings(words))


def spellings(words: str) -> list[str]:
    flag, _, value = words.partition(" ")
    others = {f"--{flag[2:].replace('-', '_')}"}
    if flag.startswith("--ft-") and flag != "--ft-cfg-path":
        name = flag.removeprefix("--ft-").replace("-", "_")
        others |= {f"--ft-param-{name}", f"--ft-{name}"}
    return [f"{each} {value}" for each in others]


@pytest.mark.parametrize("row", [r for r in row_of(FLAGS) if r.old.startswith("`--ft-")], ids=str)
def test_keys_of_the_file_mean_the_same_as_flags(row: Row, tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="needs PyYAML: pip install 'rankwatch[yaml]'")
    flag, _, value = row.old.strip("`").partition(" ")
    name = flag.removeprefix("--ft-").replace("-", "_")
    if name in ("cfg_path", "restart_policy"):
        return  # not keys of the file: where it is, and a flag alone
    file = tmp_path / "ft.yaml"
    file.write_text(f"training:\n  fault_tolerance:\n    {name}: '{value}'\n")
    of_file = ft_launcher.from_file(Namespace(ft_cfg_path=str(file)), {})
    of_flag = settings(f"{flag} {shlex.quote(value)}")[3]
    assert (of_file.policy, of_file.options, of_file.log_level) == (of_flag.policy, of_flag.options, of_flag.log_level)
    assert not [note for note in of_file.notes if "unknown key" in note]


# Old names ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nvrx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("nvidia-resiliency-ext==0.4.1", tmp_path_factory.mktemp("nvrx")) / stand_in.REPLACED


@pytest.fixture(scope="module")
def old(nvrx: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[Definition]]]:
    """By the page's heading: what the published packages define."""
    bridge = unpacked("megatron-bridge==0.3.1", tmp_path_factory.mktemp("bridge")) / "megatron" / "bridge"
    nemo = unpacked("nemo_toolkit==2.4.0", tmp_path_factory.mktemp("nemo")) / "nemo"
    plugins = definitions(nemo / "lightning" / "run") | definitions(nemo / "lightning" / "pytorch" / "callbacks")
    return {
        **{heading: definitions(nvrx / module) for heading, module in NVRX.items()},
        OTHERS[0]: definitions(bridge / "training"),
        OTHERS[1]: definitions(bridge / "recipes") | plugins | definitions(nemo / "collections/llm/recipes/callbacks"),
    }


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_the_page_and_the_old_packages_name_is_the_same(
    nvrx: Path, old: dict[str, dict[str, list[Definition]]]
) -> None:
    """One test, so that the packages are unpacked and read once."""
    for row in NAMES:
        _is_in_the_old_package(old, row)
    for heading in NVRX:
        _no_public_name_is_left_out(nvrx, old, heading)
    for heading in OTHERS:
        _no_setting_is_left_out(old, heading)
    known = {option for action in main.build_parser()._actions for option in action.option_strings}
    listed = {row.old.strip("`").partition(" ")[0] for row in row_of(FLAGS)}
    source = ast.parse((nvrx / "fault_tolerance" / "launcher.py").read_text())
    flags = [
        [each.value for each in node.args if isinstance(each, ast.Constant) and str(each.value).startswith("-")]
        for node in ast.walk(source)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
    ]
    assert len([each for each in flags if each]) > 30
    for spelled in filter(None, flags):
        assert known.issuperset(spelled)
        assert listed.intersection(map(str, spelled)), spelled


def _is_in_the_old_package(old: dict[str, dict[str, list[Definition]]], row: Row) -> None:
    span = named(row.old)
    where, names = place(old[row.section], span.name)
    if names == ["FrozenState"]:
        return  # made by a function
    known = parameters_of(where, names)
    for name, default in span.parameters.items():
        assert name in known, row
        if default is not None and "(" not in known[name]:
            assert _value(known[name]) == _value(default), (row, name)


def _no_public_name_is_left_out(nvrx: Path, old: dict[str, dict[str, list[Definition]]], heading: str) -> None:
    """What the package's ``__init__`` offers, modules with all that is in them, and methods."""
    listed = {named(row.old).name: row for row in NAMES if row.section == heading}
    body = ast.parse((nvrx / NVRX[heading] / "__init__.py").read_text()).body
    offered = {alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert offered
    for name in offered & old[heading].keys():
        offered |= {f"{name}.{each.name}" for each in old[heading][name] if isinstance(each, ast.ClassDef)}
    short = {name.rpartition(".")[2] for name in listed}
    for name in sorted(offered - old[heading].keys() - INTERNAL):
        assert name in listed or name.rpartition(".")[2] in short, name
        if "." in name or listed[name].new != "the same" or name.endswith(("Callback", "State")):
            continue  # methods of callbacks are Lightning's hooks; State's are the wrapper's own
        where, names = place(old[heading], name)
        (node,) = [each for each in where if each.name == names[0]]
        methods = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
        assert {f"{name}.{each}" for each in methods if not each.startswith("_")} <= listed.keys()


INTERNAL: Final = {
    "monitor_thread.MonitorThread",
    "nested_restarter.NestedRestarterLogger",
    "nested_restarter.NestedRestarterCallback",
    "rank_assignment.Node",
}
"""Classes in public modules of the old package that are never made."""


def _no_setting_is_left_out(old: dict[str, dict[str, list[Definition]]], heading: str) -> None:
    listed: dict[str, set[str]] = {}
    for row in NAMES:
        if row.section == heading:
            listed.setdefault(named(row.old).name, set()).update(named(row.old).parameters)
    for name, parameters in listed.items():
        where, names = place(old[heading], name)
        assert parameters == parameters_of(where, names).keys(), name
