#!/usr/bin/env bash
# Trials on one and on two processes through integrations/launch, for real: torchrun and accelerate (and DeepSpeed where it is
# installed) start launch_trainer.py on the CPU with the quickstart's model and gloo between the processes. At one global batch the
# loss does not depend on the number of processes.
#
#   scripts/peers/launch-test.sh [BINARY] [PYTHON]     # PYTHON has torch, transformers, peft, trl and accelerate
#   LAUNCHERS="torchrun" scripts/peers/launch-test.sh  # only some of them
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
binary=$(readlink -f "${1:-$root/target/debug/peft-tune}")
python=${2:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
query() { "$binary" query "$1" --db "$work/$launcher.db" --format csv | tail -n +2; }

# A study of two trials through one launcher, with further words for the program that trains.
try() {
  launcher=$1; shift
  cat > "$work/$launcher.yaml" <<SPACE
study: $launcher
objectives:
  - {metric: throughput, direction: maximize}
  - {metric: loss}
space:
  devices: [1, 2]
  rank: 4
  micro_batch: 2
  global_batch: 4
  learning_rate: 1e-2
sampler: grid
pruner: none
confirm: none
backend:
  command: [$python, $root/integrations/launch/launch.py, $launcher, --, $root/scripts/peers/launch_trainer.py, 1$*]
trial: {steps: 6, timeout: 10m}
budget: {trials: 2}
SPACE
  "$binary" search "$work/$launcher.yaml" --db "$work/$launcher.db" > "$work/$launcher.log" 2>&1 || { cat "$work/$launcher.log"; exit 1; }
  query "select trial, state, reason, throughput, loss from trial_summary order by trial"
  complete=$(query "select count(*) from trial where state = 'complete'")
  [ "$complete" = 2 ] || { query "select number, state, reason, detail from trial" >&2; echo "$launcher: trials failed" >&2; exit 1; }
  apart=$(query "select max(loss) - min(loss) < 0.02 from trial_summary")
  [ "$apart" = 1 ] || { echo "$launcher: the loss depends on the number of processes" >&2; exit 1; }
  echo "$launcher: one and two processes train to the same loss"
}

for one in ${LAUNCHERS:-torchrun accelerate deepspeed}; do
  if [ "$one" != deepspeed ]; then
    try "$one"
  elif "$python" -c 'import deepspeed' 2> /dev/null; then
    DS_ACCELERATOR=cpu try deepspeed ", $root/integrations/launch/zero2.json"
  else
    echo "DeepSpeed is not installed: passed over"
  fi
done
