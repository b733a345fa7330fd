#!/usr/bin/env bash
# Installs the wheel of dist/ into an empty environment of each Python, as a user would, and runs its demo there:
# scripts/try_wheel.sh FOLDER python3.11 python3.12
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ $# -ge 2 ] || { sed -n '2,3s/^# //p' "$0" >&2; exit 2; }
wheel=$(realpath dist/*.whl)
readonly FOLDER=$1 wheel
shift

for python in "$@"; do
  SECONDS=0
  # shellcheck disable=SC2016  # Python's own
  version=$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')
  place="$FOLDER/$version"
  rm -rf "$place"
  "$python" -m venv "$place"
  # shellcheck disable=SC2086  # several words
  "$place/bin/python" -m pip install --disable-pip-version-check ${PIP_ARGS:-} "${wheel}[monitor,torch]" \
    >"$place/pip.log" 2>&1 || { tail -n 40 "$place/pip.log" >&2; exit 1; }
  printed=$("$place/bin/rankwatch" --version)
  case $wheel in
    *"/rankwatch-${printed##* }-"*) ;;
    *) echo "Python $version: the wheel is $(basename "$wheel"), and says '$printed'" >&2; exit 1 ;;
  esac
  # Apart from the records and monitors of whoever builds the release.
  (cd "$place" && XDG_STATE_HOME="$PWD/state" bin/rankwatch demo >demo.log 2>&1) ||
    { tail -n 40 "$place/demo.log" >&2; exit 1; }
  echo "Python $version: the wheel is installed, its demo has run in $SECONDS s"
done
