#!/usr/bin/env bash
# Others' software for `make test-frameworks`, each in an environment of its own below FOLDER: usage: frameworks.sh FOLDER [NAME...]
# About 3 GB with a CPU build of torch, which PIP_ARGS may name the index of. Environments that are complete are left alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:?name a folder}
shift
[ $# -gt 0 ] || set -- js nvrx bridge psycopg
python=${PYTHON:-python3}
torch=$(grep '^torch==' constraints.txt)

# NAME REQUIREMENT...: an environment with torch, what Rankwatch needs, and these.
environment() {
  local name=$1
  shift
  "$python" -m venv "$folder/$name"
  # shellcheck disable=SC2086
  "$folder/$name/bin/python" -m pip install --quiet ${PIP_ARGS:-} "$torch" '.[torch,monitor,yaml]' nvidia-resiliency-ext==0.4.1 "$@"
}

mkdir -p "$folder"
for name in "$@"; do
  [ ! -e "$folder/$name/complete" ] || continue
  case $name in
    js)
      mkdir -p "$folder/js"
      (cd "$folder/js" && npm install --no-save --no-audit --no-fund @opentelemetry/{api,resources,sdk-metrics,otlp-exporter-base} \
        @opentelemetry/exporter-metrics-otlp-{proto,http,grpc})
      ;;
    nvrx) environment nvrx ;;
    bridge)
      # Neither with its dependencies: most of them exist for CUDA alone.
      environment bridge 'numpy>=2,<2.4' triton 'transformers<5' datasets accelerate omegaconf tensorboard wandb six regex \
        pyyaml tqdm 'hydra-core>1.3,<=1.3.2' rich packaging einops sentencepiece tiktoken
      "$folder/bridge/bin/python" -m pip install --quiet --no-deps megatron-core==0.16.1 megatron-bridge==0.3.1
      ;;
    psycopg)  # the lowest version that pyproject.toml admits
      # shellcheck disable=SC2086
      "$python" -m pip install --quiet ${PIP_ARGS:-} --target "$folder/psycopg" \
        "$(sed -n 's/^postgresql = \["\(psycopg\[binary\]\)>=\([0-9.]*\)"\].*/\1==\2/p' pyproject.toml)"
      ;;
    *) echo "no such environment: $name; there are js, nvrx, bridge, psycopg" >&2 && exit 2 ;;
  esac
  touch "$folder/$name/complete"
done
