#!/usr/bin/env bash
# Everything that needs a GPU, in one command of at most nine minutes: scripts/gpu.sh [--dry-run] [--only NAME,...] [--help]
#
# How this works: what the machine's Python lacks is installed from the wheels that scripts/gpu_wheels.py has fetched into
# wheels/ (no network is needed here), into a temporary folder that is removed in the end. tests/gpu/kit.py does the rest.
set -euo pipefail

cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT

if compgen -G 'wheels/*.whl' >/dev/null && ! "$python" -c 'import rankwatch_monitor.app, rankwatch_launcher.agent' 2>/dev/null; then
  "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile --target "$site" wheels/*.whl
fi
# The sources are not installed there; their commands are found by the entry points of a distribution.
"$python" - "$site" <<'ENTRY_POINTS'
import pathlib, sys, tomllib

project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
folder = pathlib.Path(sys.argv[1], f"{project['name']}-{project['version']}.dist-info")
folder.mkdir()
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
groups = {"console_scripts": project["scripts"], **project["entry-points"]}
lines = [f"[{group}]\n" + "".join(f"{name} = {where}\n" for name, where in names.items()) for group, names in groups.items()]
(folder / "entry_points.txt").write_text("\n".join(lines))
ENTRY_POINTS
PYTHONPATH="$PWD/tests:$PWD/telemetry:$PWD/monitor:$PWD/launcher:$site${PYTHONPATH:+:$PYTHONPATH}"
PATH="$site/bin:$PATH"
export PYTHONPATH PATH
# Not exec: the folder is removed when the kit has ended. A signal to this script reaches the kit, which ends its processes.
timeout --signal TERM --kill-after 10 535 "$python" -m gpu.kit "$@" &
kit=$!
trap 'kill -TERM "$kit" 2>/dev/null || true' TERM INT
status=0
wait "$kit" || status=$?
while kill -0 "$kit" 2>/dev/null; do wait "$kit" || status=$?; done
exit "$status"
