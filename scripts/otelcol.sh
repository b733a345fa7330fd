#!/usr/bin/env bash
# Builds build/otelcol, an OpenTelemetry Collector for the tests, of Debian sid's Go packages: scripts/otelcol.sh
#
# How this works: scripts/debian.sh makes a tree of Debian sid, apt installs Go and the Collector's packages there (3 GB),
# and the program of tests/support/otelcol, linked statically, lies outside of it. It needs root, as the tree does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck disable=SC2016  # the inner shell expands it
scripts/debian.sh sid sh -euc '
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends golang-go golang-opentelemetry-collector-dev >/dev/null
  version=$(dpkg-query --show --showformat="\${source:Upstream-Version}" golang-opentelemetry-collector-dev)
  cd tests/support/otelcol
  export GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE=/var/cache/go CGO_ENABLED=0
  go build -ldflags "-s -w -X main.version=$version" -o ../../../build/otelcol .
'
build/otelcol --version
