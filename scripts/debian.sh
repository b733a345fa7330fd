#!/usr/bin/env bash
# Runs a command in another release of Debian, for its Python: scripts/debian.sh forky python3 scripts/matrix.py 3.14:2.14.1
#
# How this works: debootstrap makes a tree below build/ once; the command runs there with this repository at its own path,
# in mount and process namespaces of its own, so that nothing stays mounted and nothing goes on running. It needs root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ $# -ge 2 ] || { sed -n '2s/^# //p' "$0" >&2; exit 2; }
readonly RELEASE=$1 TREE="$PWD/build/debian-$1"
shift
command -v debootstrap >/dev/null || { echo "debootstrap is missing: apt install debootstrap" >&2; exit 1; }

if [ ! -e "$TREE/ready" ]; then
  mkdir -p "$TREE"
  mirror=$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/debian.sources)
  # A debootstrap older than the release has no script for it; all releases share one.
  debootstrap --variant=minbase --include=python3,python3-venv,gcc,libc6-dev,procps,ca-certificates \
    "$RELEASE" "$TREE" "$mirror" /usr/share/debootstrap/scripts/sid
  touch "$TREE/ready"
fi
cp -L /etc/resolv.conf /etc/hosts "$TREE/etc/"
cp -L /etc/ssl/certs/ca-certificates.crt "$TREE/etc/ssl/certs/"
# How this machine reaches its mirror: through a proxy, or as a snapshot that is past its date.
apt-config dump Acquire >"$TREE/etc/apt/apt.conf.d/99machine"
mkdir -p "$TREE$PWD"

# shellcheck disable=SC2016  # the inner shell expands it
exec unshare --mount --pid --fork --kill-child --propagation private bash -c '
  tree=$1 here=$2; shift 2
  mount --bind "$here" "$tree$here"
  mount -t proc proc "$tree/proc"
  mount --rbind /dev "$tree/dev"
  exec chroot "$tree" sh -c "cd \"\$0\" && exec \"\$@\"" "$here" "$@"
' bash "$TREE" "$PWD" "$@"
