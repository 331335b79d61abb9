#!/usr/bin/env bash
# Runs the program with NVIDIA support on a GPU in software (tests/stand_in_gpu): the whole way from the driver's calls to a search, slowly, on
# a machine without a GPU. Expects the debug program that scripts/gpu/build-test.sh builds.
#
#   scripts/gpu/stand-in-test.sh [PART ...]      # all parts where none is named
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/gpu/cuda-toolkit.sh
. scripts/gpu/cuda-toolkit.sh
repository=$PWD
target=$(realpath "${CARGO_TARGET_DIR:-target}")
program="$target/debug/peft-tune"
libraries="$target/stand-in-gpu"
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT

# The stand-in, built where its sources have changed.
modules=$(find "$target/debug/build" -path '*candle-kernels-*/out/affine.ptx' -printf '%T@ %h\n' | sort -n | tail -1 | cut -d' ' -f2)
kernels=$(cargo metadata --locked --features cuda --format-version 1 | grep -oE '[^"]*/candle-kernels-[0-9.]*/Cargo.toml' | head -1)
emulation=$(dirname "$(find src crates -name emulation.h 2>/dev/null)")
state=$(cat tests/stand_in_gpu/* "$emulation"/emulation*.h "$modules"/*.ptx | sha256sum)
if [ "$(cat "$libraries/state" 2>/dev/null)" != "$state" ]; then
  rm -rf "$libraries"
  tests/stand_in_gpu/build.sh "$libraries" "$modules" "$(dirname "$kernels")/src" "$emulation"
  echo "$state" > "$libraries/state"
fi
c++ -std=c++17 -I"$CUDA_HOME/include" -o "$folder/self_test" tests/stand_in_gpu/self_test.cpp "$libraries/libcuda.so.1" "$libraries/libnvrtc.so.13"
export LD_LIBRARY_PATH="$libraries:$CUDA_HOME/lib64:$CUDA_HOME/lib"
export PEFT_TUNE_KERNELS="$libraries/kernels" PEFT_TUNE_CACHE="$folder/cache" PEFT_TUNE_DB="$folder/tune.db"

die() {
  echo "FAIL: $*" >&2
  exit 1
}
# A command whose output is shown where it fails.
quietly() {
  local log="$folder/log"
  "$@" > "$log" 2>&1 || {
    tail -n 60 "$log" >&2
    die "$*"
  }
}

part_self() { quietly "$folder/self_test"; }

part_doctor() {
  quietly "$program" doctor
  grep -q 'trains on *cuda' "$folder/log" || die "doctor does not train on the stand-in"
}

part_parity() { quietly "$program" gpu-check --device cuda --parts parity; }

part_memory() { STAND_IN_GPU_BYTES=500000000 quietly "$program" gpu-check --device cuda --parts memory; }

# recipe NAME PRECISION CHECKPOINTING OPTIMIZER STEPS
recipe() {
  cat > "$folder/$1.yaml" <<RECIPE
model: $repository/search_spaces/quickstart/base
data: {train: $repository/search_spaces/quickstart/train.jsonl, held_out: $repository/search_spaces/quickstart/held_out.jsonl}
adapter: {rank: 8, alpha: 16, target_modules: all-linear}
precision: $2
gradient_checkpointing: $3
batch: {micro_batch: 2, gradient_accumulation: 2, sequence_length: 32}
optimizer: {kind: $4, learning_rate: 2e-3, max_grad_norm: 1.0}
schedule: {kind: constant}
training: {length: {steps: $5}, shuffle: false, evaluation_rows: 4}
RECIPE
}

# Losses and gradient norms of a training on the stand-in and on the CPU: train NAME TOLERANCE [FLAG ...]
train() {
  local name=$1 tolerance=$2
  shift 2
  for device in cpu cuda; do
    local flags=()
    if [ $device = cuda ]; then flags=("$@"); fi
    "$program" train "$folder/$name.yaml" --output "$folder/$name-$device" --force --json --device $device ${flags[@]+"${flags[@]}"} \
      > "$folder/$name-$device.json" 2> "$folder/log" || {
      tail -n 40 "$folder/log" >&2
      die "training $name on $device"
    }
  done
  python3 - "$folder/$name-cpu.json" "$folder/$name-cuda.json" "$tolerance" "$name" <<'PYTHON' || die "training $name"
import json, sys

def events(path):
    return [json.loads(line) for line in open(path)]

expected, actual, allowed, name = events(sys.argv[1]), events(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
assert len(expected) == len(actual) and len(actual) > 3, "another number of steps"
worst = 0.0
for one, other in zip(expected, actual):
    for key in ("loss", "held_out_loss"):
        if key in one:
            far = abs(one[key] - other[key]) / one[key]
            assert far == far, f"{name}: {one} and {other}"
            worst = max(worst, far)
losses = [event["loss"] for event in actual if "loss" in event]
assert len(losses) < 20 or losses[-1] < 0.9 * losses[0], f"{name}: nothing is learnt: {losses}"
print(f"   {name}: losses within {worst:.1e} of {allowed:.0e}")
assert worst <= allowed, f"{name}: {worst} is more than {allowed}"
PYTHON
}

# fp32 with AdamW is compared closely. In 16 bits two devices round differently, and AdamW makes steps of the same length of whatever is left.
part_train() {
  recipe fp32 fp32 none adamw 20
  train fp32 1e-4
  recipe bf16 bf16 full adamw_8bit 20
  train bf16 2e-2
  recipe nf4 nf4 offload paged_adamw 20
  train nf4 2e-2
  recipe offload fp32 offload paged_adamw_8bit 20
  train offload 1e-3
  recipe fp16 fp16 none lion_8bit 20
  train fp16 2e-2
  recipe muon fp32 full muon 8
  train muon 2e-2
}

# A step that comes from a graph gives what a launched one does, to the last bit: models of gpu-check in one micro-batch after the other, and
# a training whose rows are cut to one length, launched and replayed.
part_graphs() {
  quietly "$program" gpu-check --device cuda --parts graphs --shapes tiny --precisions nf4,fp16 --batches 1x16 --json "$folder/graphs.json"
  python3 - "$folder/graphs.json" <<'PYTHON' || die "replayed steps in gpu-check"
import json, sys

for one in json.load(open(sys.argv[1]))["graphs"]:
    name = f"{one['precision']} {one['rows']}x{one['length']}"
    assert one["difference"] == 0, f"{name}: losses differ by {one['difference']}"
    launched, replayed = one["launched"], one["replayed"]
    # The same activations, in the graph's memory instead of the pool's, and the inputs that stay.
    far = replayed["peak_bytes"] / launched["peak_bytes"] - 1
    assert abs(far) < 0.02, f"{name}: {replayed['peak_bytes']} bytes at most instead of {launched['peak_bytes']}"
    print(f"   {name}: {replayed['replayed_passes']} passes and {replayed['replayed_updates']} updates replayed, peak {100 * far:+.2f}%")
PYTHON
  for optimizer in adamw lion_8bit adafactor muon; do
    recipe graphs bf16 full $optimizer 8
    for form in fused graphs; do
      RUST_LOG=info quietly "$program" train "$folder/graphs.yaml" --output "$folder/graphs-$form" --force --device cuda --kernels $form --json
      grep '"loss"' "$folder/log" | python3 -c 'import json, sys; [print(json.loads(line)["loss"]) for line in sys.stdin]' > "$folder/losses-$form"
    done
    grep -q 'captured a CUDA graph of the update' "$folder/log" || die "$optimizer: the update was launched"
    [ -s "$folder/losses-graphs" ] && cmp "$folder/losses-fused" "$folder/losses-graphs" || die "$optimizer: a training from graphs has other losses"
  done
}

# A GPU that multiplies by warpgroups: attention takes them, having found them right, and trains as on the CPU.
part_hopper() {
  export STAND_IN_GPU_HOPPER=1
  rm -f "$PEFT_TUNE_KERNELS"/attention_hopper-*
  recipe hopper bf16 full adamw 8
  train hopper 2e-2
  ! grep -q 'kernels for Hopper' "$folder/log" || { cat "$folder/log" >&2 && die "attention for Hopper is refused"; }
  ls "$PEFT_TUNE_KERNELS"/attention_hopper-sm_90a-*.cubin > /dev/null || die "attention for Hopper is not taken"
  recipe hopper_fp16 fp16 none adamw 8
  train hopper_fp16 2e-2
  quietly "$program" gpu-check --device cuda --parts attention --shapes tiny --batches 2x96 --precisions bf16
  [ "$(grep -cE '^\| tiny .* (tiled|hopper) ' "$folder/log")" = 2 ] || { cat "$folder/log" >&2 && die "attention is not timed in both forms"; }
  unset STAND_IN_GPU_HOPPER
}

part_reference() {
  recipe reference fp32 full adamw 10
  train reference 1e-4 --kernels reference
  recipe reference_bf16 bf16 none adamw 10
  train reference_bf16 2e-2 --kernels reference
  recipe reference_nf4 nf4_double none adamw 10
  train reference_nf4 2e-2 --kernels reference
}

# What was trained is merged, and both forms write the same text on both devices.
part_generate() {
  [ -e "$folder/fp32-cuda" ] || { recipe fp32 fp32 none adamw 20 && train fp32 1e-4; }
  local prompt='The river' texts
  quietly "$program" merge --adapter "$folder/fp32-cuda" --output "$folder/merged"
  for device in cpu cuda; do
    for form in "--adapter $folder/fp32-cuda" "--model $folder/merged"; do
      # shellcheck disable=SC2086
      "$program" generate $form --precision fp32 --prompt "$prompt" --max-tokens 12 --temperature 0 --device $device 2> "$folder/log" ||
        { cat "$folder/log" >&2 && die "generate on $device"; }
      echo
    done
  done > "$folder/texts"
  texts=$(grep -v '^$' "$folder/texts" | sort -u | wc -l)
  [ "$texts" = 1 ] || { cat "$folder/texts" >&2 && die "another text on another device or of the merged model"; }
}

# space NAME MICRO_BATCHES PRECISIONS TRIALS [MORE_OF_THE_TRIAL] [MORE_OF_THE_SPACE]
space() {
  cat > "$folder/$1.yaml" <<SPACE
study: $1
model: $repository/search_spaces/quickstart/base
data: {train: $repository/search_spaces/quickstart/train.jsonl, held_out: $repository/search_spaces/quickstart/held_out.jsonl}
objectives: [throughput, peak_memory, loss]
space: {rank: 8, alpha_ratio: 2, learning_rate: 5e-3, global_batch: 4, micro_batch: $2, precision: $3${6:-}}
sampler: grid
trial: {sequence_length: 32, profile_steps: 2, profile_warmup: 1, training_tokens: 200, evaluation: {times: 1, rows: 4}${5:-}}
budget: {trials: $4}
confirm: none
seed: 3
SPACE
}

# Trials of a study that ended as a condition says: ended STUDY CONDITION NUMBER
ended() {
  local found
  found=$("$program" query --format csv "select count(*) from trial join study on study.id = trial.study_id where study.name = '$1' and $2" | tail -1)
  [ "$found" = "$3" ] || { "$program" show "$1" >&2 && die "$found trials of $1, not $3, with $2"; }
}

# Trials above the study's limit, and trials for which the device itself has no memory, end as such; the others of the same process do not.
part_search() {
  space limited '[1, 4]' '[bf16, nf4]' 4 ', memory_limit: 2900000'
  quietly "$program" search "$folder/limited.yaml" --devices 0
  ended limited "reason = 'out_of_memory' and micro_batch = 1 and precision = 'bf16'" 1
  # What is predicted to need a quarter more than that is not tried.
  ended limited "state = 'skipped' and micro_batch = 4" 2
  ended limited "state = 'complete' and micro_batch = 1 and precision = 'nf4'" 1
  # A context, the workspace of products, and 4 MiB.
  space small '[1, 4]' '[bf16, nf4]' 4
  STAND_IN_GPU_BYTES=$(((64 + 34 + 2) << 20)) quietly "$program" search "$folder/small.yaml" --devices 0
  ended small "reason = 'out_of_memory' and micro_batch = 4 and precision = 'bf16'" 1
  ended small "state = 'complete'" 3
  "$program" query --format csv "select count(*) from trial_prediction where study = 'small' and metric = 'peak_memory' and abs(error) < 0.02" |
    tail -1 | grep -qx 3 || { "$program" query "select * from trial_prediction" >&2 && die "memory is predicted more than 2% wrong"; }
  # What a trial needs does not depend on what its process did before.
  "$program" query --format csv "select count(distinct m.value) from trial_metric m join study s on s.name = m.study \
    join trial t on t.study_id = s.id and t.number = m.trial where m.name = 'peak_memory' and s.name in ('limited', 'small') \
    and t.micro_batch = 1 and t.precision = 'nf4'" | tail -1 | grep -qx 1 || {
    "$program" query "select study, trial, name, value from trial_metric where name like 'peak%'" >&2
    "$program" show small >&2; die "another peak of the same setting"
  }
}

# Each rank has a device of its own: of all that there are, or of those that workers have.
part_ranks() {
  space ranks 1 fp32 2 '' ', devices: [1, 2]'
  STAND_IN_GPU_DEVICES=2 quietly "$program" search "$folder/ranks.yaml"
  ended ranks "state = 'complete'" 2
  space seats '[1, 2]' fp32 4 '' ', devices: [1, 2]'
  STAND_IN_GPU_DEVICES=3 quietly "$program" search "$folder/seats.yaml" --devices 1,2
  ended seats "state = 'complete'" 4
}

part_profile() {
  recipe profile bf16 full adamw 20
  quietly "$program" profile "$folder/profile.yaml" --device cuda --budget 4s --trace "$folder/trace.json"
  # Kernels through CUPTI, the diagnosis of what NVML tells.
  grep -q 'attention_[a-z0-9_]* *| attention ' "$folder/log" || die "no kernels in the profile"
  grep -q 'throttled: ' "$folder/log" || die "no samples of the device in the profile"
  grep -q 'rms_norm_bf16' "$folder/trace.json" || die "no kernels in the trace"
}

parts=("$@")
parity=
if [ ${#parts[@]} -eq 0 ]; then
  parts=(self doctor memory train hopper graphs reference generate search ranks profile)
  # It takes as long as all others together, and one processor.
  quietly "$folder/self_test"
  "$program" gpu-check --device cuda --parts parity > "$folder/parity" 2>&1 &
  parity=$!
fi
for part in "${parts[@]}"; do
  echo "== $part (${SECONDS}s)"
  "part_$part"
done
if [ -n "$parity" ]; then
  echo "== parity (${SECONDS}s)"
  wait "$parity" || { grep -v '^ok' "$folder/parity" >&2 && die "parity"; }
fi
echo "the program runs on the stand-in for a GPU (${SECONDS}s)"
