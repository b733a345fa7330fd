#!/usr/bin/env bash
# Runs one suite: scripts/suite.sh -m "not long" -n 3 [more words for pytest]
#
# How this works: the tests run beside each other, so that real processes crowd the cores, and now and then one of them
# waits in vain for something that only came late. What fails in the crowd is therefore run once more by itself, and
# that decides. It is named either way: a test that is often named here is to be mended. More than a few failures are no
# crowding, and nothing but failed tests (an error of collection, an interrupt) is tried again.
set -uo pipefail

readonly FEW=4
readonly FAILED=.pytest_cache/v/cache/lastfailed

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
