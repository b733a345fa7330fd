#!/bin/sh
# Runs a launcher and ends with the code that a PyTorchJob with restartPolicy ExitCode understands: from 128 on the pod
# is started again, below the job fails for good. A pod that ends with 0 is not started again.
#
#   0 finished or stopped, 2 command line, 17 wrong result, 93 no progress      as they are
#   0 preempted: saved on a signal, to be resumed                               203 (75 of an Indexed Job, and 128)
#   1 failed, 16 resume elsewhere                                               129, 144
#   128 and more: killed by a signal                                            as they are
export RANKWATCH_OUTCOME="${RANKWATCH_OUTCOME:-/tmp/rankwatch-outcome.json}"
rm -f "$RANKWATCH_OUTCOME"
"$@" &
launcher=$!
trap 'kill -TERM "$launcher" 2>/dev/null' TERM
wait "$launcher"
code=$?
# A signal ends the wait, not the launcher.
while kill -0 "$launcher" 2>/dev/null; do
  wait "$launcher"
  code=$?
done
case "$code" in
  0) ! grep -q '"state": "preempted"' "$RANKWATCH_OUTCOME" 2>/dev/null || code=203 ;;
  1 | 16) code=$((code + 128)) ;;
esac
exit "$code"
