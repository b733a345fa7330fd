"""The dashboards, compiled against Grafana's own types: every panel, its options, its field options and its queries."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.scene import ROOT, tool

GRAFANA = ROOT / "dashboards" / "grafana"
FILES = sorted((GRAFANA / "dashboards").glob("*.json"))
TYPES = {
    "stat": ("stat/panelcfg/x/StatPanelCfg_types.gen", None),
    "timeseries": ("timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen", "FieldConfig"),
    "state-timeline": ("statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen", "FieldConfig"),
    "bargauge": ("bargauge/panelcfg/x/BarGaugePanelCfg_types.gen", None),
    "table": ("table/panelcfg/x/TablePanelCfg_types.gen", "FieldConfig"),
}
"""Kind of panel -> the module of its options, and the type of its own field options."""
HEADER = """
import type { AnnotationQuery, Dashboard, DashboardLink, DataQuery } from '@grafana/schema';
import type { Panel, RowPanel, VariableModel } from '@grafana/schema';
// JSON has the words of an enumeration, TypeScript wants its members.
type Plain<T> = T extends string ? `${T}` : T extends number | boolean | null | undefined ? T
  : T extends (infer E)[] ? Plain<E>[] : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
// The schema package no longer has the query of Prometheus; these are the fields that we use of it.
type Query = Plain<DataQuery> & {
  expr: string; legendFormat: string; editorMode: 'code'; format: 'time_series' | 'table';
  instant: boolean; range: boolean;
};
"""


def source(boards: list[dict[str, Any]]) -> str:
    """TypeScript that declares every part of every dashboard to be of its type."""
    lines = [HEADER]
    for kind, (module, _) in TYPES.items():
        name = kind.replace("-", "_")
        lines.append(
            f"import type * as {name} from './node_modules/@grafana/schema/dist/types/raw/composable/{module}';"
        )
    number = 0

    def declare(type_: str, value: object) -> None:
        nonlocal number
        number += 1
        lines.append(f"export const v{number}: {type_} = {json.dumps(value)};")

    for board in boards:
        declare("Omit<Plain<Dashboard>, 'panels' | 'templating' | 'annotations'>", {
            key: value for key, value in board.items() if key not in ("panels", "templating", "annotations")
        })  # fmt: skip
        for link in board["links"]:
            declare("Plain<DashboardLink>", link)
        for variable in board["templating"]["list"]:
            declare("Plain<VariableModel> & { definition?: string }", variable)
        for mark in board["annotations"]["list"]:
            more = {key: mark.pop(key) for key in ("expr", "titleFormat", "textFormat", "step", "useValueForTime")}
            declare("Plain<AnnotationQuery>", mark)
            assert all(value is not None for value in more.values()), "Prometheus' own, which the schema leaves open"
        for panel in board["panels"]:
            if panel["type"] == "row":
                declare("Plain<RowPanel>", panel)
                continue
            _, field = TYPES[panel["type"]]
            name = panel["type"].replace("-", "_")
            declare("Plain<Panel>", panel)
            declare(f"Partial<Plain<{name}.Options>>", panel["options"])
            custom = panel["fieldConfig"]["defaults"].get("custom")
            if field is not None:
                declare(f"Partial<Plain<{name}.{field}>>", custom)
            else:
                assert custom is None
            for target in panel["targets"]:
                declare("Query", target)
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Grafana's types and a TypeScript compiler."""
    npm = tool("npm")
    folder = tmp_path_factory.mktemp("schema")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(GRAFANA / "schema" / name, folder)
    command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    if done.returncode and not os.environ.get("CI"):
        pytest.skip(f"needs an npm registry: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    return folder


def compiled(folder: Path, text: str) -> str:
    """What the compiler complains of; nothing when all is well."""
    (folder / "dashboards.ts").write_text(text)
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022"]
    command = [folder / "node_modules" / ".bin" / "tsc", *options, "dashboards.ts"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False).stdout


@pytest.mark.long
@pytest.mark.timeout(300)
def test_grafana_s_types_accept_every_dashboard(compiler: Path) -> None:
    boards = [json.loads(path.read_text()) for path in FILES]
    assert compiled(compiler, source(boards)) == ""


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("options", {"colorMode": "rainbow"}, '"rainbow"'),
        ("options", {"colourMode": "value"}, "colourMode"),
        ("gridPos", {"h": 4, "w": "4", "x": 0, "y": 0}, "'string' is not assignable to type 'number'"),
    ],
)
def test_what_grafana_does_not_know_is_refused(compiler: Path, key: str, value: object, complaint: str) -> None:
    board = json.loads(FILES[0].read_text())
    panel = next(panel for panel in board["panels"] if panel["type"] == "stat")
    panel[key] = value
    assert complaint in compiled(compiler, source([board]))


def test_the_schema_is_the_one_of_the_image() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    pinned = json.loads((GRAFANA / "schema" / "package.json").read_text())["devDependencies"]["@grafana/schema"]
    assert services["grafana"]["image"] == f"grafana/grafana:{pinned}"
