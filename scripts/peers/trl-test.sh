#!/usr/bin/env bash
# A search through the TRL adapter, for real: a tiny model with random weights, TRL and PEFT on the CPU. One trial runs out of
# memory and the pruner stops at least one; the outcomes are read back from the database.
#
#   scripts/peers/trl-test.sh [BINARY] [PYTHON]     # PYTHON has torch, transformers, peft and trl
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
binary=${1:-$root/target/debug/peft-tune}
python=${2:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
assets=$root/search_spaces/quickstart

# The micro-batch of 512 rows does not fit into the limit; the high learning rates lose.
cat > "$work/trl.yaml" <<SPACE
study: trl
objectives:
  - {metric: throughput, direction: maximize, known_after: 4, reference: 1}
  - {metric: loss, reference: 20}
space:
  rank: 4
  learning_rate: {choices: [1e-2, 0.5], affects: [loss]}
  micro_batch: {choices: [4, 512]}
  gradient_accumulation: 1
  sequence_length: 96
  precision: fp32
  max_grad_norm: none
sampler: grid
pruner: {kind: median, least_trials: 1}
backend:
  command: [$python, train.py, --model=$assets/base, --train=$assets/train.jsonl, --held-out=$assets/held_out.jsonl,
            --evaluation-rows=8, --evaluations=4, --threads=2]
  folder: $root/integrations/trl
  env: {PEFT_TUNE_MEMORY_LIMIT: 700000000}
trial: {steps: 12, timeout: 5m}
budget: {trials: 4}
confirm: none
SPACE
"$binary" search "$work/trl.yaml" --db "$work/results.db"
states=$("$binary" query "select trial, state, reason, throughput, loss from trial_summary order by trial" \
  --db "$work/results.db" --format csv)
echo "$states"
for wanted in ',complete,' ',pruned,' ',failed,out_of_memory'; do
  grep -q "$wanted" <<< "$states" || { echo "no trial is $wanted" >&2; exit 1; }
done
echo "the TRL adapter works: complete, pruned and out-of-memory trials"
