#!/usr/bin/env bash
# Searches with `backend: trl`, for real: the quickstart's model, TRL and PEFT on the CPU. The first has trials that are complete,
# pruned and skipped by prediction; trl_families.py searches models that the built-in engine lacks, and trl_preferences.py pairs and
# labelled answers; settings of the first are then trained by workers that trl_worker.py speaks to, and compared.
#
#   scripts/peers/trl-test.sh [BINARY] [PYTHON]             # PYTHON has torch, transformers, peft, trl and its `datasets`
#   KILLS=50 scripts/peers/trl-test.sh [BINARY] [PYTHON]    # so many kills of Python workers, instead of 3
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
binary=$(readlink -f "${1:-$root/target/debug/peft-tune}")
python=$(command -v "${2:-python3}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PEFT_TUNE_CACHE=$work/cache PEFT_TUNE_WAIT_QUIET=0s
assets=$root/search_spaces/quickstart

# A micro-batch of 1024 rows cannot fit into the limit; of three learning rates two teach nothing, so that whichever order they
# come in, one of these is behind the median.
cat > "$work/trl.yaml" <<SPACE
study: trl
model: $assets/base
data: {train: $assets/train.jsonl, held_out: $assets/held_out.jsonl}
objectives: [throughput, loss]
space:
  rank: 4
  dropout: 0.1
  learning_rate: [1e-7, 1e-2, 1e-8]
  micro_batch: [4, 1024]
  gradient_accumulation: 1
  precision: fp32
sampler: grid
pruner: {kind: median, least_trials: 1}
backend: {trl: {python: $python}}
trial:
  sequence_length: 96
  profile_steps: 3
  profile_warmup: 2
  training_steps: 24
  evaluation: {rows: 8, times: 4}
  memory_limit: 1 GiB
  timeout: 10m
budget: {trials: 6}
confirm: none
SPACE
"$binary" search "$work/trl.yaml" --db "$work/results.db" 2> "$work/search.log" || { cat "$work/search.log"; exit 1; }
grep -F "trl 1." "$work/search.log" || { cat "$work/search.log"; echo "the search does not say which TRL it runs" >&2; exit 1; }
states=$("$binary" query "select trial, state, reason, throughput, loss from trial_summary order by trial" \
  --db "$work/results.db" --format csv)
echo "$states"
for wanted in ',complete,' ',pruned,' ',skipped,.*predicted to need .* MiB in TRL'; do
  grep -q "$wanted" <<< "$states" || { cat "$work/search.log"; echo "no trial is $wanted" >&2; exit 1; }
done
echo "a search with TRL: complete, pruned and skipped trials"
"$python" "$root/scripts/peers/trl_families.py" "$binary" "$work"
"$python" "$root/scripts/peers/trl_preferences.py" "$binary" "$work"
"$python" "$root/scripts/peers/trl_worker.py" "$binary" "$work/results.db" "$work" --kills "${KILLS:-3}"
