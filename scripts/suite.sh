#!/usr/bin/env bash
# Runs one suite: scripts/suite.sh -m "not long" -n 3 [more words for pytest]. A test that fails fails the run.
set -euo pipefail

# Without cached bytecode every worker compiles all tests, and every process that they start all of Rankwatch.
unset PYTHONDONTWRITEBYTECODE
exec pytest --dist worksteal "$@"
