#!/usr/bin/env bash
# Runs one suite: scripts/suite.sh -m "not long" -n 5 [more words for pytest]
#
# How this works: the tests start hundreds of processes beside each other on two cores, and now and then one of them misses
# a deadline. A test that fails is run once more alone, which decides; it is printed either way, and one that is printed
# often has to be fixed. More than a few failures are not retried, nor is anything but failed tests (a collection error, an
# interrupt).
set -uo pipefail

readonly FEW=4
readonly FAILED=.pytest_cache/v/cache/lastfailed

# Without cached bytecode every worker compiles all tests, and every process that they start all of Rankwatch.
unset PYTHONDONTWRITEBYTECODE
rm -f "$FAILED"
pytest --dist worksteal "$@"
status=$?
[ "$status" -eq 1 ] && [ -s "$FAILED" ] || exit "$status"

names=$(python -c 'import json, sys; print("\n".join(sorted(json.load(open(sys.argv[1])))))' "$FAILED")
count=$(wc -l <<<"$names")
if [ "$count" -gt "$FEW" ]; then
  printf '\n%d tests failed: too many to be the crowd.\n' "$count"
  exit 1
fi
printf '\nFailed among others, now each by itself:\n%s\n\n' "$names"
pytest "$@" -n 0 --last-failed --last-failed-no-failures none || exit 1
printf '\nPassed by itself after it had failed among others:\n%s\n' "$names"
