#!/bin/sh
# The demo job: two ranks of the example, one of which hangs once; the monitor named by RANKWATCH_DEMO_MONITOR finds it.
# Words after the command are added to the training script's: `docker compose run demo --steps 1000`.
set -eu

: "${RANKWATCH_DEMO_MONITOR:?name the monitor, for example http://monitor:9560}"
: "${RANKWATCH_TOKEN:?give the ingest token of the monitor: nothing can be sent without one}"

job="demo-$(date +%Y%m%d-%H%M%S)"
set -- \
  run --standalone --nproc-per-node 2 --section-timeout step=15 \
  --monitor "$RANKWATCH_DEMO_MONITOR" --job-id "$job" --job-name demo \
  "${RANKWATCH_DEMO_SCRIPT:-/opt/examples/train_gpt.py}" --preset cpu \
  --steps "${RANKWATCH_DEMO_STEPS:-600}" --log-every 20 \
  --checkpoint-dir "$job/checkpoints" --checkpoint-every 20 --inject rank=1,step=52,kind=hang "$@"
exec rankwatch "$@"
