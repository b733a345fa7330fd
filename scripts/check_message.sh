#!/bin/sh
# Refuses a commit whose subject has more than 72 characters, or whose second line is not empty. `make dev` installs it as
# the hook commit-msg; merges and fixups pass.
subject=$(sed -n '/^#/d; 1p' "$1")
case $subject in "Merge "* | fixup!* | squash!* | Revert*) exit 0 ;; esac
if [ "$(printf %s "$subject" | wc -m)" -gt 72 ]; then
  echo "The subject has $(printf %s "$subject" | wc -m) characters, 72 are allowed: move the reason to the body." >&2
  exit 1
fi
if [ -n "$(sed -n 2p "$1" | grep -v '^#')" ]; then
  echo "Leave the second line empty: the body begins on the third." >&2
  exit 1
fi
