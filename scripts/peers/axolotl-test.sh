#!/usr/bin/env bash
# A search through the axolotl adapter, for real: the quickstart's model on the CPU, from a configuration that `export` wrote. axolotl
# checks that configuration first (`axolotl preprocess`), then trains one trial for each rank.
#
#   scripts/peers/axolotl-test.sh [BINARY] [PYTHON]     # PYTHON has axolotl
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
binary=$(readlink -f "${1:-$root/target/debug/peft-tune}")
python=${2:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PATH=$(cd "$(dirname "$(command -v "$python")")" && pwd):$PATH
export PATH AXOLOTL_DO_NOT_TRACK=1
assets=$root/search_spaces/quickstart
cd "$work"

# One measured setting to export.
cat > native.yaml <<SPACE
study: native
model: $assets/base
data: {train: $assets/train.jsonl, held_out: $assets/held_out.jsonl}
space: {rank: 4, learning_rate: [1e-2], micro_batch: 2, global_batch: 4, sequence_length: 96, precision: fp32}
trial: {profile_steps: 1, training_steps: 2, evaluation: {rows: 4}}
sampler: grid
confirm: none
budget: {trials: 1}
SPACE
"$binary" search native.yaml --db native.db > native.log 2>&1 || { cat native.log; exit 1; }
"$binary" export --db native.db --format axolotl --output exported > /dev/null
# axolotl turns its own kernels on by itself, and they need a GPU.
{ cat exported/axolotl.yaml; printf '%s: false\n' lora_mlp_kernel lora_qkv_kernel lora_o_kernel; } > base.yaml
axolotl preprocess base.yaml > preprocess.log 2>&1 || { tail -30 preprocess.log; echo "axolotl refuses what was exported" >&2; exit 1; }

cat > axolotl.yaml <<SPACE
study: axolotl
objectives:
  - {metric: throughput, direction: maximize}
  - {metric: loss}
space:
  rank: [4, 8]
  learning_rate: 1e-2
  micro_batch: 2
  global_batch: 4
  sequence_length: 96
  gradient_checkpointing: none
  precision: fp32
sampler: grid
pruner: none
backend: {command: [python3, $root/integrations/axolotl/peft_tune_axolotl.py, $work/base.yaml]}
trial: {steps: 4, timeout: 15m}
budget: {trials: 2}
confirm: none
SPACE
"$binary" search axolotl.yaml --db axolotl.db > search.log 2>&1 || { cat search.log; exit 1; }
"$binary" query "select trial, state, reason, throughput, loss from trial_summary order by trial" --db axolotl.db --format csv
right=$("$binary" query "select count(*) from trial_summary where state = 'complete' and throughput > 0 and loss between 0.1 and 10" \
  --db axolotl.db --format csv | tail -1)
[ "$right" = 2 ] || { "$binary" query "select number, state, reason, detail from trial" --db axolotl.db; exit 1; }
echo "axolotl takes what export writes, and trains two trials through the adapter"
