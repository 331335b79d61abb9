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
  grep -Eq '^  gpu gemm bf16 +[0-9]' "$folder/log" || die "doctor does not measure the stand-in"
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

# Losses of a training that the stand-in has run: losses NAME FILE
losses() { grep '"loss"' "$folder/$1-cuda.json" | python3 -c 'import json, sys; [print(json.loads(line)["loss"]) for line in sys.stdin]' > "$2"; }

# Updates on the host: as on the CPU, and to the last bit the same whether they follow the backward pass or wait for a norm; the states are
# off the device as predicted.
part_offload() {
  local kind norm what allowed
  for kind in adamw adamw_8bit lion_8bit adafactor adamw_schedulefree; do
    # Against the CPU's backward pass, which rounds otherwise. Lion takes signs: of a value near 0 either.
    case $kind in lion_8bit) allowed=2e-2 ;; *) allowed=1e-4 ;; esac
    for norm in null 1.0e+30; do
      recipe offload-$norm fp32 none $kind 12
      sed -i -e "s/max_grad_norm: 1.0/max_grad_norm: $norm, offload: host/" "$folder/offload-$norm.yaml"
      train offload-$norm $allowed
      losses offload-$norm "$folder/losses-$norm"
    done
    [ -s "$folder/losses-null" ] && cmp "$folder/losses-null" "$folder/losses-1.0e+30" || die "$kind: updates that follow the backward pass have other losses"
    # The device's kernels round as the host does here.
    recipe on-device fp32 none $kind 12
    sed -i 's/max_grad_norm: 1.0/max_grad_norm: null/' "$folder/on-device.yaml"
    train on-device $allowed
    losses on-device "$folder/losses-device"
    python3 - "$folder/losses-null" "$folder/losses-device" "$kind" <<'PYTHON' || die "$kind: other losses on the host"
import sys

host, device = ([float(line) for line in open(path)] for path in sys.argv[1:3])
worst = max(abs(a / b - 1) for a, b in zip(host, device))
print(f"   {sys.argv[3]}: {sum(a == b for a, b in zip(host, device))} of {len(host)} losses have the device's bits, the others are within {worst:.0e}")
assert len(host) == len(device) == 12 and worst < 1e-4
PYTHON
  done
  # All parameters, clipped; 16 bits and layers that are recomputed; a scale of the loss.
  recipe whole fp32 full adamw 12
  sed -i -e 's/^adapter: .*/adapter: null/' -e 's/max_grad_norm: 1.0/max_grad_norm: 1.0, offload: host/' "$folder/whole.yaml"
  train whole 1e-3
  for what in 'bf16 offload adamw' 'fp16 none lion' 'nf4 full adamw_8bit'; do
    # shellcheck disable=SC2086 # Three words.
    set -- $what
    recipe "host-$1" "$1" "$2" "$3" 12
    sed -i 's/max_grad_norm: 1.0/max_grad_norm: null, offload: host/' "$folder/host-$1.yaml"
    train "host-$1" 2e-2
  done
  space states '[1, 4]' '[fp32, bf16]' 8 '' ', optimizer: adamw, optimizer_offload: [none, host]'
  quietly "$program" search "$folder/states.yaml" --devices 0
  ended states "state = 'complete'" 8
  "$program" query --format csv "select count(*) from trial_prediction where study = 'states' and metric = 'peak_memory' and abs(error) < 0.02" |
    tail -1 | grep -qx 8 || { "$program" query "select * from trial_prediction" >&2 && die "memory is predicted more than 2% wrong"; }
}

# mixture FAMILY: a model as that of the parity tests with twice the widths, the quickstart's vocabulary and random values.
mixture() {
  mkdir -p "$folder/$1"
  cp "$repository"/search_spaces/quickstart/base/tokenizer* "$folder/$1"
  python3 - "$repository/tests/golden/ref_$1" "$folder/$1" <<'PYTHON'
import json, math, random, struct, sys

source, target = sys.argv[1:]
config = json.load(open(f"{source}/model/config.json"))
vocabulary, config["vocab_size"] = config["vocab_size"], 1024
for key in config:
    if key == "head_dim" or key in ("hidden_size", "intermediate_size") or key.endswith("_intermediate_size"):
        config[key] *= 2
json.dump(config, open(f"{target}/config.json", "w"))
recipe = json.load(open(f"{source}/seeded.json"))["model/model.safetensors"]
header, tensors, offset = {}, [], 0
random.seed(1)
for name, shape, *_ in recipe["tensors"]:
    # Widths are more than experts and heads.
    shape = [1024 if size == vocabulary else 2 * size if size > 8 else size for size in shape]
    count = math.prod(shape)
    middle = 1 if name.endswith("norm.weight") else 0
    values = struct.pack(f"<{count}f", *(random.gauss(middle, 0.08) for _ in range(count)))
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + len(values)]}
    offset += len(values)
    tensors.append(values)
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(f"{target}/model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + b"".join(tensors))
PYTHON
}

# Mixtures of experts train as on the CPU, in each storage, and their memory is predicted.
part_mixtures() {
  local family one
  for family in ${FAMILIES:-qwen3_moe qwen2_moe glm4_moe gpt_oss}; do
    mixture $family
    for one in 'fp32 none adamw 1e-4' 'bf16 full adamw 3e-2' 'nf4 none lion_8bit 3e-2' 'int8 full adamw 3e-2'; do
      # shellcheck disable=SC2086 # Four words.
      set -- $one
      recipe "$family-$1" "$1" "$2" "$3" 8
      sed -i -e "s|^model: .*|model: $folder/$family|" -e "s|all-linear}|all-linear, target_parameters: [experts.gate_up_proj, experts.down_proj]}|" \
        "$folder/$family-$1.yaml"
      train "$family-$1" "$4"
    done
    space "$family" '[1, 4]' '[fp32, bf16, nf4]' 6
    sed -i "s|^model: .*|model: $folder/$family|" "$folder/$family.yaml"
    quietly "$program" search "$folder/$family.yaml" --devices 0
    ended "$family" "state = 'complete'" 6
    "$program" query --format csv "select count(*) from trial_prediction where study = '$family' and metric = 'peak_memory' and abs(error) < 0.02" |
      tail -1 | grep -qx 6 || { "$program" query "select * from trial_prediction" >&2 && die "$family: memory is predicted more than 2% wrong"; }
  done
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

# Kernels for Hopper that trap or hang are found out in a process of their own: one warning, the tiled ones, and the worker goes on. Those that
# trap later cost an attempt: the trial is repeated with the tiled ones, and the search stays with them.
part_traps() {
  export STAND_IN_GPU_HOPPER=1
  recipe traps bf16 full adamw 4
  local control
  for control in STAND_IN_GPU_TRAP=attention_hopper_:715:0 STAND_IN_GPU_HANG=attention_hopper_; do
    env "$control" PEFT_TUNE_PROBE_SECONDS=20 "$program" train "$folder/traps.yaml" --output "$folder/traps" --force --device cuda \
      > "$folder/log" 2>&1 || { cat "$folder/log" >&2 && die "a training with $control"; }
    [ "$(grep -c 'kernels for Hopper are not used' "$folder/log")" = 1 ] || { cat "$folder/log" >&2 && die "$control: not one warning"; }
  done
  grep -q 'they were not done within 20s' "$folder/log" || { cat "$folder/log" >&2 && die "kernels that hang are not told from others"; }
  space probed '[1, 2]' bf16 2
  STAND_IN_GPU_TRAP=attention_hopper_:715:0 quietly "$program" search "$folder/probed.yaml" --devices 0
  ended probed "state = 'complete'" 2
  forms probed 'fused tiled -'
  # Behind the probes (three launches), and in the first trial's training.
  space trapped '[1, 4]' bf16 4
  sed -i 's/learning_rate: 5e-3/learning_rate: [5e-3, 4e-3]/' "$folder/trapped.yaml"
  STAND_IN_GPU_TRAP=attention_hopper_:715:40 quietly "$program" search "$folder/trapped.yaml" --devices 0
  ended trapped "state = 'complete'" 4
  forms trapped 'tiled tiled fused'
  [ "$(grep -c 'warning: a kernel of `--kernels auto` failed' "$folder/log")" = 1 ] || { cat "$folder/log" >&2 && die "the change is not told once"; }
  "$program" query --format csv "select count(*) from trial_lost_attempt where study = 'trapped' and message like '%ILLEGAL_INSTRUCTION%'" |
    tail -1 | grep -qx 1 || die "another number of lost attempts"
  unset STAND_IN_GPU_HOPPER
}

# The forms of all trials of a study that ran: forms STUDY 'KERNELS ATTENTION INSTEAD_OF'
forms() {
  local found
  found=$("$program" query --format csv "select distinct kernels || ' ' || coalesce(attention, '-') || ' ' || coalesce(instead_of, '-') \
    from trial_kernels join trial on trial.id = trial_id join study on study.id = study_id \
    where study.name = '$1' and not (attention is null and kernels <> 'reference')" | tail -n +2 | tr -d '"')
  [ "$found" = "$2" ] || die "trials of $1 ran in: $found, not $2"
}

# Of several algorithms of a product the fastest is taken, and kept on disk: the next process times none. What is damaged is made anew.
part_products() {
  local kept="$folder/products-kernels" one=products-1
  mkdir -p "$kept"
  cp "$libraries/kernels"/*.cubin "$kept/" 2>/dev/null || true
  recipe products bf16 none adamw 4
  # product NAME [VARIABLE=VALUE ...]: a training, with its losses and how often each algorithm ran.
  product() {
    local name=$1
    shift
    env PEFT_TUNE_KERNELS="$kept" STAND_IN_GPU_PRODUCT_TIMES=6000,3000,200,5000 STAND_IN_GPU_TIMES=1 RUST_LOG=warn "$@" "$program" train \
      "$folder/products.yaml" --output "$folder/$name" --force --device cuda --json > "$folder/$name.json" 2> "$folder/$name.log" ||
      { cat "$folder/$name.log" >&2 && die "a training with several algorithms"; }
  }
  product products-first PEFT_TUNE_PRODUCTS=first
  ! grep -q 'cublasLtMatmul [2-4]' "$folder/products-first.log" || die "algorithms are timed that nobody wants"
  ls "$kept"/products-*.json > /dev/null 2>&1 && die "what was not timed is kept"
  product $one & product products-2
  wait $!
  product products-again
  cat "$folder/$one.log" > "$folder/log"
  python3 - "$kept" "$folder" <<'PYTHON' || { cat "$folder/log" >&2 && die "the choice of products"; }
import glob, json, re, sys

kept, folder = sys.argv[1:]
losses = lambda name: [json.loads(line).get("loss") for line in open(f"{folder}/{name}.json")]
# Timing products disturbs no result.
for name in ("products-1", "products-2", "products-again"):
    assert losses(name) == losses("products-first"), name
(path,) = glob.glob(f"{kept}/products-*.json")
file = json.load(open(path))
assert file["machine"] == {"gpu": "stand-in for a GPU", "driver": 13000, "library": 130000}, file["machine"]
choices = file["choices"]
assert len(choices) > 10, choices.keys()
# Who waits for a processor is late, and now and then that is the fastest.
fastest = [choice for choice in choices.values() if choice["algorithm"][3] == 3]
assert len(fastest) >= 0.9 * len(choices), [choice for choice in choices.values() if choice not in fastest]
assert all(choice["first_microseconds"] >= 6000 for choice in choices.values()), choices
assert sorted(choice["microseconds"] for choice in fastest)[len(fastest) // 2] < 3000, fastest
def ran(name):
    text = open(f"{folder}/{name}.log").read()
    return {int(number) for number in re.findall(r"cublasLtMatmul (\d)", text)}
assert ran("products-1") == ran("products-2") == {1, 2, 3, 4} or ran("products-1") >= {1, 2, 3}, (ran("products-1"), ran("products-2"))
# Read back: nothing is timed. Shapes of the evaluation alone, which were never timed, take the first.
assert not ran("products-again") & ({2, 4} - {choice["algorithm"][3] for choice in choices.values()}), ran("products-again")
print(f"   {len(choices)} shapes are kept, the fastest algorithm each")
PYTHON
  local file
  file=$(ls "$kept"/products-*.json)
  echo '{"machine":' > "$file"
  product products-damaged
  grep -q 'the choice of products is damaged' "$folder/products-damaged.log" || die "a damaged file is not told of"
  python3 -c 'import json, sys; assert len(json.load(open(sys.argv[1]))["choices"]) > 10' "$file" || die "a damaged file is not written anew"
}

# Forms by their names, from the command line and the environment; what the device cannot run is refused.
part_forms() {
  recipe forms bf16 none adamw 2
  local code=0
  "$program" train "$folder/forms.yaml" --output "$folder/forms" --force --device cuda --kernels hopper > "$folder/log" 2>&1 || code=$?
  [ $code = 2 ] && grep -q 'compute capability 8.0) cannot run `--kernels hopper`' "$folder/log" ||
    { cat "$folder/log" >&2 && die "Hopper's kernels are not refused on another GPU"; }
  space refused '[1, 2]' bf16 1
  code=0
  "$program" search "$folder/refused.yaml" --devices 0 --kernels hopper > "$folder/log" 2>&1 || code=$?
  [ $code = 2 ] && grep -q 'cannot run `--kernels hopper`' "$folder/log" || { cat "$folder/log" >&2 && die "a search takes them"; }
  code=0
  PEFT_TUNE_KERNELS_FORM=fast "$program" train "$folder/forms.yaml" --output "$folder/forms" --force --device cuda > "$folder/log" 2>&1 || code=$?
  [ $code = 2 ] && grep -q 'auto, tiled, hopper, reference, graphs' "$folder/log" || { cat "$folder/log" >&2 && die "an unknown form is taken"; }
  export STAND_IN_GPU_HOPPER=1
  local form
  for form in auto tiled hopper; do
    space "form_$form" '[1, 2]' bf16 1
    PEFT_TUNE_KERNELS_FORM=$form quietly "$program" search "$folder/form_$form.yaml" --devices 0
  done
  forms form_auto 'fused hopper -'
  forms form_tiled 'tiled tiled -'
  forms form_hopper 'hopper hopper -'
  quietly "$program" profile "$folder/forms.yaml" --device cuda --budget 1s --no-store --json --kernels tiled
  grep -q '"attention": "tiled"' "$folder/log" || die "a profile does not say which kernels ran"
  unset STAND_IN_GPU_HOPPER
}

# A GPU with little shared memory: attention takes the tiles that are made for it.
part_ada() {
  export STAND_IN_GPU_ADA=1
  rm -f "$PEFT_TUNE_KERNELS"/attention_ada-*
  recipe ada bf16 full adamw 8
  train ada 2e-2
  ls "$PEFT_TUNE_KERNELS"/attention_ada-sm_89-*.cubin > /dev/null || die "attention for little shared memory is not taken"
  unset STAND_IN_GPU_ADA
}

# A GPU that the kernels cannot run on is refused by name, and `auto` passes it over.
part_turing() {
  export STAND_IN_GPU_TURING=1
  recipe turing bf16 full adamw 2
  ! "$program" train "$folder/turing.yaml" --output "$folder/turing" --force --device cuda > "$folder/log" 2>&1 || die "a GPU before Ampere is taken"
  grep -q 'compute capability 7.5, and the kernels need 8.0' "$folder/log" || { cat "$folder/log" >&2 && die "a GPU before Ampere is refused in other words"; }
  RUST_LOG=warn quietly "$program" train "$folder/turing.yaml" --output "$folder/turing" --force --device auto
  grep -q 'the CPU is used' "$folder/log" || { cat "$folder/log" >&2 && die "a GPU before Ampere is passed over in silence"; }
  unset STAND_IN_GPU_TURING
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

# A layer asks for as many launches as docs/gpu.md says.
part_launches() {
  python3 scripts/gpu/layer_launches.py "$program" "$folder/launches" > "$folder/log" || die "launches of a layer"
  cat "$folder/log"
  local wanted
  for wanted in '| product | 33 |' '| adapter_gradients_bf16_16 | 7 |' '| adapter_sums_bf16 | 7 |'; do
    grep -qF "$wanted" "$folder/log" || die "a layer has not $wanted"
  done
  awk -F'|' 'NF == 4 && $3 + 0 {sum += $3} END {exit sum != 62}' "$folder/log" || die "a layer has not 62 launches"
  # With NF4 a launch dequantizes the weight for each product, and the adapter's product of gate, of up and of down's gradient may go.
  local way bytes
  bytes=()
  for way in '' --longer; do
    python3 scripts/gpu/layer_launches.py "$program" "$folder/launches" --precision nf4 $way > "$folder/log" || die "launches of a layer in NF4 $way"
    cat "$folder/log"
    bytes+=("$(sed -n 's/^products read and write \(.*\) bytes$/\1/p' "$folder/log" | tr -d ,)")
    awk -F'|' -v all="$([ -n "$way" ] && echo 78 || echo 76)" -v products="$([ -n "$way" ] && echo 30 || echo 33)" \
      'NF == 4 && $3 + 0 {sum += $3} $2 == " product " {found = $3 + 0} END {exit sum != all || found != products}' "$folder/log" ||
      die "a layer in NF4 $way asks for other launches"
  done
  for wanted in '| longer_beside_bf16 | 2 |' '| longer_columns_bf16 | 2 |' '| longer_below_bf16 | 1 |'; do
    grep -qF "$wanted" "$folder/log" || die "a layer in NF4 has not $wanted"
  done
  [ "${bytes[1]}" -lt "${bytes[0]}" ] || die "longer sums move more: ${bytes[*]}"
}

# Quantized weights take adapters' products along where that was timed to be faster, which the device's file keeps, and not where it was not.
# Activations in 8 bits: as on the CPU, whose weights have a scale for each 64 values where a GPU's have one for a row or column.
part_bytes() {
  local precision kind name
  for precision in int8 nf4; do
    for kind in int8_forward int8_both; do
      name="bytes-$precision-$kind"
      recipe "$name" $precision none adamw 6
      echo "activation_quantization: $kind" >> "$folder/$name.yaml"
      STAND_IN_GPU_TIMES=1 train "$name" 1e-2
      # Gradients of inputs take the weight's columns, and no weight is widened any more.
      grep -q round_rows_bf16 "$folder/log" || die "$name: no product of bytes"
      if [ $kind = int8_both ]; then
        grep -q "byte_columns_${precision}" "$folder/log" || die "$name: no gradient in bytes"
        ! grep -q "widen_$precision" "$folder/log" || die "$name: a weight is widened"
      else
        ! grep -q byte_columns "$folder/log" || die "$name: a gradient in bytes"
      fi
    done
  done
  space bytes 2 '[int8, nf4]' 6 '' ', activation_quantization: [none, int8_forward, int8_both]'
  quietly "$program" search "$folder/bytes.yaml" --devices 0
  ended bytes "state = 'complete'" 6
  "$program" query --format csv "select count(*) from trial_prediction where study = 'bytes' and metric = 'peak_memory' and abs(error) < 0.02" |
    tail -1 | grep -qx 6 || { "$program" query "select * from trial_prediction" >&2 && die "memory is predicted more than 2% wrong"; }
  # Captured in graphs, to the same bits, and by plain tensor ops.
  losses bytes-int8-int8_both "$folder/losses-bytes"
  train bytes-int8-int8_both 1e-2 --kernels graphs
  losses bytes-int8-int8_both "$folder/losses-graphs"
  cmp "$folder/losses-bytes" "$folder/losses-graphs" || die "graphs have other losses"
  train bytes-int8-int8_both 1e-2 --kernels reference
}

part_sums() {
  local kept="$folder/sums-kernels" precision one far
  mkdir -p "$kept"
  cp "$libraries/kernels"/*.cubin "$kept/" 2> /dev/null || true
  # summed NAME RECIPE [VARIABLE=VALUE ...]: a training, with its log of launches.
  summed() {
    local name=$1 recipe=$2
    shift 2
    env PEFT_TUNE_KERNELS="$kept" STAND_IN_GPU_TIMES=1 RUST_LOG=warn "$@" "$program" train "$folder/$recipe.yaml" --output "$folder/$name" \
      --force --device cuda --json > "$folder/$name.json" 2> "$folder/$name.log" || { cat "$folder/$name.log" >&2 && die "$name"; }
  }
  # Three columns of results for each of the narrow side, in both directions.
  python3 scripts/gpu/make_model.py "$folder/sums-model" "$repository/search_spaces/quickstart/base" 128 2 4 2 384 > /dev/null
  local model="s|^model: .*|model: $folder/sums-model|"
  # Each product takes its time, whatever its size; or each launch does, by a made-up clock.
  local products=STAND_IN_GPU_PRODUCT_TIMES=20000 launches=STAND_IN_GPU_CLOCK=1e15,1e15,1e15,0,1e-3,0
  for precision in nf4 int8; do
    recipe "sums-$precision" $precision none adamw 6
    sed -i "$model" "$folder/sums-$precision.yaml"
    rm -f "$kept"/products-*.json
    summed "sums-$precision-first" "sums-$precision" PEFT_TUNE_PRODUCTS=first
    ls "$kept"/products-*.json > /dev/null 2>&1 && die "what was not timed is kept"
    summed "sums-$precision-launches" "sums-$precision" "$launches" STAND_IN_GPU_PRODUCT_TIMES=0
    rm -f "$kept"/products-*.json
    summed "sums-$precision-longer" "sums-$precision" "$products"
    summed "sums-$precision-again" "sums-$precision" STAND_IN_GPU_PRODUCT_TIMES=0
    python3 - "$kept" "$folder" $precision <<'PYTHON' || die "longer sums in $precision"
import glob, json, re, sys

kept, folder, precision = sys.argv[1:]
names = ["first", "launches", "longer", "again"]
lines = {name: [json.loads(line) for line in open(f"{folder}/sums-{precision}-{name}.json")] for name in names}
losses = {name: [line["loss"] for line in lines[name] if "loss" in line] for name in names}
(path,) = glob.glob(f"{kept}/products-*.json")
ways = json.load(open(path))["ways"]
assert len(ways) >= 2 and all(way["is_other"] for way in ways.values()), ways
assert all(shape.startswith(f"{precision.split('_')[0]} bf16 n") for shape in ways), ways.keys()
ran = {name: len(re.findall(r"longer_(?:beside|columns|below)", open(f"{folder}/sums-{precision}-{name}.log").read())) for name in names}
assert not ran["first"] and ran["longer"] == ran["again"] == 3, ran
assert losses["launches"] == losses["first"], "ways that were timed change what is computed"
assert losses["longer"] == losses["again"], "a process that reads the choice computes something else"
far = max(abs(one - other) / other for one, other in zip(losses["longer"], losses["first"], strict=True))
assert 0 < far < 1e-2, far
print(f"   {precision}: {len(ways)} shapes, losses within {far:.1e} of those by two products each")
PYTHON
  done
  # Dropout, and adapters whose outputs are turned.
  for one in 'dropout: 0.1' 'dora: true'; do
    recipe sums-plain nf4 none adamw 2
    sed -i -e "$model" -e "s/target_modules: all-linear}/target_modules: [gate_proj, up_proj], $one}/" "$folder/sums-plain.yaml"
    summed sums-plain sums-plain "$products"
    ! grep -q longer_ "$folder/sums-plain.log" || die "longer sums with $one"
  done
  # Trials say so, need the same memory both ways, and it is predicted.
  for one in first longer; do
    space "sums_$one" '[1, 4]' '[nf4, int8]' 4
    if [ $one = first ]; then far=PEFT_TUNE_PRODUCTS=first; else far=$products; fi
    mkdir -p "$kept-$one"
    cp "$kept"/*.cubin "$kept-$one/"
    env "$far" PEFT_TUNE_KERNELS="$kept-$one" "$program" search "$folder/sums_$one.yaml" --devices 0 > "$folder/log" 2>&1 ||
      { cat "$folder/log" >&2 && die "a search by $far"; }
    ended "sums_$one" "state = 'complete'" 4
    "$program" query --format csv "select sum(longer_sums) from trial_kernels join trial on trial.id = trial_id join study on study.id = study_id \
      where study.name = 'sums_$one'" | tail -1 | grep -qx "$([ $one = first ] && echo 0 || echo 4)" || die "trials of sums_$one do not say how sums were made"
    "$program" query --format csv "select count(*) from trial_prediction where study = 'sums_$one' and metric = 'peak_memory' and abs(error) < 0.02" |
      tail -1 | grep -qx 4 || { "$program" query "select * from trial_prediction" >&2 && die "memory is predicted more than 2% wrong"; }
  done
  "$program" query --format csv "select count(distinct m.value) from trial_metric m where m.name = 'peak_memory' and m.study in ('sums_first', 'sums_longer')" |
    tail -1 | grep -qx 4 || die "another peak by the other way"
  "$program" show sums_longer 0 | grep -q "adapters' products are parts of the weights'" || die "show does not say how sums were made"
}

# The engine is checked on the GPU before `backend: auto` takes it, once. The whole check takes as long as the part parity: what is not done in
# time has failed, and trials go on in TRL, which a script says it has.
part_auto() {
  local python=$folder/python-of-auto
  cat > "$python" <<'PYTHON'
#!/bin/sh
echo '{"python": "3.12.3", "torch": "2.15.0", "transformers": "5.23.0", "peft": "0.21.2", "trl": "1.16.0", "accelerate": "1.15.0", "datasets": "5.2.0", "devices": [], "missing": []}'
PYTHON
  chmod +x "$python"
  space auto '[1, 2]' bf16 2
  export PEFT_TUNE_MOCK=0.01 PEFT_TUNE_GPU_CHECK_SECONDS=3
  quietly "$program" search "$folder/auto.yaml" --backend auto --python "$python"
  grep -q 'checking the built-in engine on stand-in for a GPU against the CPU, once' "$folder/log" || die "the check is not told"
  grep -q 'auto takes TRL: .*it failed its check on stand-in for a GPU, against the CPU in 3.* it was not done within 3.0 s' "$folder/log" ||
    { cat "$folder/log" >&2 && die "an engine that is not checked in time is taken"; }
  quietly "$program" search "$folder/auto.yaml" --as again --backend auto --python "$python"
  ! grep -q 'checking the built-in engine' "$folder/log" || die "the verdict is not kept"
  "$program" doctor --json --python "$python" 2> /dev/null | grep -q '"known_family": "trl"' || die "doctor does not know the verdict"
  # Another GPU has a verdict of its own.
  STAND_IN_GPU_NAME=another quietly "$program" search "$folder/auto.yaml" --as other --backend auto --python "$python"
  grep -q 'checking the built-in engine on another against' "$folder/log" || die "the verdict of another GPU is taken"
  unset PEFT_TUNE_MOCK PEFT_TUNE_GPU_CHECK_SECONDS
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

# A device that fails costs an attempt; one that falls off its bus costs the search, and nothing that was found.
part_lost() {
  space fault '[1, 4]' '[bf16, nf4]' 4
  STAND_IN_GPU_FAULT="3000:715:$folder/fault" quietly "$program" search "$folder/fault.yaml" --devices 0
  ended fault "state = 'complete'" 4
  [ -e "$folder/fault" ] || die "there was no fault"
  "$program" query --format csv "select count(*) from trial_lost_attempt where study = 'fault' and message like '%ILLEGAL_INSTRUCTION%'" |
    tail -1 | grep -qx 1 || die "the fault cost no attempt"
  # An illegal instruction is a kernel's: the rest of the search stays with plain tensor ops.
  [ "$("$program" query --format csv "select count(*) from trial_kernels join trial on trial.id = trial_id join study on study.id = study_id \
    where study.name = 'fault' and kernels = 'reference' and instead_of = 'fused'" | tail -1)" -gt 0 ] || die "no trial was repeated in a safer form"
  space gone '[1, 4]' '[bf16, nf4]' 4
  local code=0
  STAND_IN_GPU_FAULT="3000:999:$folder/gone" STAND_IN_GPU_GONE="$folder/gone" "$program" search "$folder/gone.yaml" --devices 0 \
    > "$folder/log" 2>&1 || code=$?
  [ $code = 5 ] || { cat "$folder/log" >&2 && die "a search whose device is gone ends with code $code"; }
  local found
  found=$("$program" query --format csv "select count(*) from trial join study on study.id = study_id where study.name = 'gone' and state = 'complete'" | tail -1)
  [ "$found" -gt 0 ] && [ "$found" -lt 4 ] || die "$found trials were complete when the device was gone"
  ended gone "state = 'failed'" 0
  [ "$("$program" query --format csv "select count(*) from trial_kernels where instead_of is not null and trial_id in (select trial.id from trial \
    join study on study.id = study_id where study.name = 'gone')" | tail -1)" = 0 ] || die "other kernels are tried on a device that is gone"
  # The processor would do, and its results would not compare.
  code=0
  "$program" search "$folder/gone.yaml" --devices cpu > "$folder/log" 2>&1 || code=$?
  [ $code = 2 ] && grep -q 'device .* to .cpu. changed' "$folder/log" || { cat "$folder/log" >&2 && die "the search goes on with the processor"; }
  rm "$folder/gone"
  quietly "$program" search "$folder/gone.yaml" --devices 0
  ended gone "state = 'complete'" 4
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
  # It says that it is busy for 37% of the time.
  grep -q 'low_utilisation: ' "$folder/log" || die "an idle device is not called so"
  grep -q 'rms_norm_bf16' "$folder/trace.json" || die "no kernels in the trace"
}

# profiled CLOCK PRECISION CHECK [VARIABLE=VALUE ...]: a profile by a made-up clock, whose JSON Python's CHECK holds of. There, `found` are
# the rules that found something, and `about` compares within a twentieth. CHANGE is what sed changes in the recipe before,
# and BUDGET the time by that clock.
profiled() {
  local clock=$1 precision=$2 check=$3
  shift 3
  recipe ceilings "$precision" none adamw 20
  sed -i -e "${CHANGE:-}" "$folder/ceilings.yaml"
  env STAND_IN_GPU_CLOCK="$clock" "$@" "$program" profile "$folder/ceilings.yaml" --device cuda --budget "${BUDGET:-2s}" --json \
    ${VERIFY:+--verify} > "$folder/profile.json" 2> "$folder/log" || { tail -n 40 "$folder/log" >&2 && die "profile by the clock $clock"; }
  python3 - "$folder/profile.json" "$check" <<'PYTHON' || die "profile in $precision by the clock $clock: $check"
import json, sys

document = json.load(open(sys.argv[1]))
profile, diagnosis = document["profile"], document["diagnosis"]
found = {finding["rule"]: finding for finding in diagnosis}
arithmetic, steps = profile["arithmetic"], profile["steps"]

# The gradients of adapters in 16 bits are a kernel of our own, whose FLOPs (7% of this model's) the made-up clock does not charge.
def about(value, expected):
    return -0.05 < value / expected - 1 < 0.1

slow = {"low_tensor_core_use", "slow_op", "slow_number_type"}
idle = {"launch_bound", "host_bound", "copies_not_overlapped"}
print(f"   MFU {arithmetic['mfu']:.3f} of {arithmetic['peak_flops_per_s']:.3g} FLOP/s, {steps['tokens_per_s']:.0f} tokens/s, "
      f"spans {steps['spanned']['slowdown']:.2f}x, {sorted(found)}")
if not eval(f"({sys.argv[2]})"):
    print(json.dumps({"arithmetic": arithmetic, "steps": steps, "diagnosis": diagnosis}, indent=1))
    sys.exit(1)
PYTHON
}

# Ceilings are measured on the device, once, and what is said of a step follows from them: by a clock that is made up, so that it is known.
part_ceilings() {
  # Products at 0.1 GFLOP/s, copies at 1 GB/s, next to nothing else: slow enough that the host's own time does not count.
  local even=1e8,1e8,1e9,0,1e-5,0
  STAND_IN_GPU_CLOCK=$even "$program" doctor --measure --json > "$folder/doctor.json" 2> "$folder/log" || { cat "$folder/log" >&2 && die doctor; }
  python3 - "$folder/doctor.json" <<'PYTHON' || die "the GPU's ceilings in doctor"
import json, sys

gpu = json.load(open(sys.argv[1]))["gpu"]
values = {one["name"]: one["value"] for one in gpu["ceilings"]}
print(f"   {values}")
assert gpu["from"] == "measured" and gpu["name"] == "stand-in for a GPU", gpu
assert set(values) == {"gpu gemm fp32", "gpu gemm bf16", "gpu gemm fp16", "gpu memory"}, values
assert all(abs(value / (1 if name == "gpu memory" else 0.1) - 1) < 0.05 for name, value in values.items()), values
PYTHON
  profiled $even bf16 'about(arithmetic["mfu"], 1) and about(arithmetic["hfu"], 1) and not (slow | idle) & set(found)'
  ! grep -q 'measuring' "$folder/log" || die "what doctor measured is measured again"
  python3 -c 'import json, sys; found = json.load(open(sys.argv[1]))["profile"]
assert found["arithmetic"]["peak_from"] == "measured" and found["setting"]["memory_limit_bytes"] == 4 << 30, found["setting"]
products = [op["roofline_share"] for op in found["ops"] if op["name"].startswith("matmul") and op["share"] > 0.05]
assert products and all(0.8 < share < 1.05 for share in products), products' "$folder/profile.json" || die "where the peak comes from, or the memory limit"
  # A cost of each product that only large ones outweigh: by kernels, and where none are known by spans.
  local costly=1e8,1e8,1e9,8e-2,1e-5,0
  profiled $costly bf16 'arithmetic["mfu"] < 0.4 and "low_tensor_core_use" in found and "slow_op" not in found'
  profiled $costly bf16 'arithmetic["mfu"] < 0.4 and "slow_op" in found and "low_tensor_core_use" not in found' STAND_IN_GPU_CUPTI=12
  profiled $even bf16 'about(arithmetic["mfu"], 1) and not slow & set(found)' STAND_IN_GPU_CUPTI=12
  # Another type that is multiplied faster. Another GPU is measured by itself.
  profiled $even fp32 'about(arithmetic["mfu"], 1) and not slow & set(found)'
  VERIFY=1 profiled 4e8,1e8,1e9,0,1e-5,0 fp32 \
    'about(arithmetic["mfu"], 1) and about(found["slow_number_type"]["verified"]["gain"]["value"], 3)' STAND_IN_GPU_NAME=another
  grep -q 'measuring this GPU' "$folder/log" || die "the ceilings of another GPU are taken"
  # Waiting for the device takes long, and steps wait once, those with spans as well.
  profiled 1e8,1e8,1e9,0,1e-5,1e-2 bf16 'about(arithmetic["mfu"], 1) and steps["spanned"]["slowdown"] < 1.2 and
    steps["spanned"]["timed_by"] == "events" and profile["setting"]["device"] == "stand-in for a GPU" and
    not (slow | {"room_for_a_larger_micro_batch", "small_micro_batch"}) & set(found)'
  "$program" query --format csv "select count(*) from ceiling where threads = 0" | tail -1 | grep -qx 2 || die "the ceilings of two GPUs are not kept"
}

# What a GPU waits for is found in steps that have the fault, by clocks that are made up.
part_findings() {
  local -x PEFT_TUNE_DB="$folder/findings.db"
  # Products of a rate at which measuring takes seconds: the other clocks' would take hours.
  STAND_IN_GPU_CLOCK=1e8,1e8,1e9,0,1e-5,0 quietly "$program" doctor --measure
  # Kernels of a microsecond: the host launches none as fast.
  BUDGET=200ms profiled 1e15,1e15,1e15,1e-6,1e-6,0 bf16 '"launch_bound" in found'
  # A host that does not continue for a twentieth of a second when a wait is over.
  profiled 1e15,1e15,1e15,1e-6,1e-6,5e-2 bf16 '"host_bound" in found'
  # Gradients to the host and values back, at 10 MB/s, when the norm of all gradients is known.
  CHANGE='s/rank: 8,/rank: 64,/; s/max_grad_norm: 1.0/max_grad_norm: 1.0, offload: host/' profiled 1e15,1e15,1e7,1e-6,1e-6,0 bf16 \
    '"host_updates_wait" in found and found["copies_not_overlapped"]["change"] == {"optimizer_offload": "none"}'
}

# What a model takes to answer is counted on the device.
part_inference() {
  "$program" infer-bench --model "$repository/search_spaces/quickstart/base" --precision bf16 --ranks 4 --batch-sizes 1 --prompt-lengths 16 \
    --new-tokens 3 --budget 1ms --device cuda --json > "$folder/inference.json" 2> "$folder/log" || { cat "$folder/log" >&2 && die infer-bench; }
  python3 -c 'import json, sys
peaks = [point["peak_bytes"] for form in json.load(open(sys.argv[1])) for point in form["points"]]
print(f"   peaks of {peaks} bytes")
assert len(peaks) == 3 and all(1_700_000 < peak < 8_000_000 for peak in peaks), peaks' "$folder/inference.json" || die "peaks of infer-bench"
}

# Each trial tells what the GPU did meanwhile; a driver that does not is told of once.
part_samples() {
  space samples '[1, 2]' bf16 2
  STAND_IN_GPU_NAME='NVIDIA H200' quietly "$program" search "$folder/samples.yaml" --devices 0
  ended samples "state = 'complete'" 2
  local told
  told=$("$program" query --format csv "select count(*) from trial_metric where study = 'samples' and (name = 'gpu_power_w' and value = 123 \
    or name = 'gpu_temperature_c' and value = 45 or name = 'gpu_clock_mhz' and value = 1410 or name = 'gpu_utilisation' and abs(value - 0.37) < 1e-9 \
    or name = 'joules_per_token' and value > 0 or name = 'mfu' and value > 0 and value < 0.01)" | tail -1)
  [ "$told" = 12 ] || { "$program" show samples 0 >&2 && die "$told of 12 numbers of the GPU"; }
  "$program" show samples 0 | grep -q 'gpu_power_w *123 W' || die "show has no power"
  quietly "$program" report samples --output "$folder/samples.html"
  grep -q '"gpu_temperature_c"' "$folder/samples.html" || die "the report has no temperature"
  # The same without the management library.
  space untold '[1, 2]' bf16 2
  STAND_IN_GPU_NVML=0 quietly "$program" search "$folder/untold.yaml" --devices 0
  [ "$(grep -c "warning: trials will not tell of the GPU's utilisation" "$folder/log")" = 1 ] || { cat "$folder/log" >&2 && die "NVML's absence"; }
  "$program" query --format csv "select count(*) from trial_metric where study = 'untold' and (name like 'gpu%' or name like 'joules%')" |
    tail -1 | grep -qx 0 || die "numbers of a GPU that tells none"
}

# The whole of scripts/gpu/check.sh with little time, whose parts are killed at random: what a part had printed is in the archive, and every
# part has a status. What is printed is compared with what is packed.
part_check() {
  local first=$folder/check second=$folder/check-2 pid child
  export PEFT_TUNE="$program" SHAPES=tiny BATCHES=1x16 STEP_SHAPE=tiny STEP_BATCH=1x16 LITERATURE_SHAPE=tiny LITERATURE_BATCH=1x16 \
    STEP_MODEL="$repository/search_spaces/quickstart/base" STEP_BUDGET=2s TRIALS=4 PACK_EVERY=2
  OUT=$first WORK=$first-work LIMIT=${CHECK_LIMIT:-90} scripts/gpu/check.sh first second > "$first.log" 2>&1 &
  pid=$!
  while kill -0 "$pid" 2> /dev/null; do
    sleep "$((RANDOM % 8 + 1)).$((RANDOM % 10))"
    # The part's shell and program, as running out of memory kills them.
    child=$(pgrep -P "$(pgrep -P "$pid" -x timeout || echo none)" 2> /dev/null) || continue
    # shellcheck disable=SC2046 # Several processes.
    kill -KILL $(pgrep -P "$child") "$child" 2> /dev/null || true
  done
  wait "$pid" || true
  packed "$first" "$first-work" 12
  # The script itself, in the middle of a part: the archive is that of the last seconds.
  OUT=$second WORK=$second-work scripts/gpu/check.sh step parity > "$second.log" 2>&1 &
  pid=$!
  for ((i = 0; i < 60; i++)); do
    sleep 1
    if tar -xzOf "$second/results.tar.gz" ./parity.log 2> /dev/null | grep -q '^ok'; then break; fi
  done
  child=$(pgrep -P "$pid" -x timeout) || die "parity is over before it was killed"
  kill -KILL "$pid"
  kill "$child"
  wait "$pid" || true
  packed "$second" "$second-work" 2
  unset PEFT_TUNE SHAPES BATCHES STEP_SHAPE STEP_BATCH LITERATURE_SHAPE LITERATURE_BATCH STEP_MODEL STEP_BUDGET TRIALS PACK_EVERY
}

# packed OUT WORK PARTS: three files, with as many parts, whose logs are the beginning of what was written.
packed() {
  mkdir "$1-unpacked"
  tar -xzf "$1/results.tar.gz" -C "$1-unpacked"
  python3 - "$1" "$2" "$3" <<'PYTHON' || { cat "$1.log" >&2 && die "what check.sh packs"; }
import json, os, sys

out, work, count = sys.argv[1:]
left = {name for name in os.listdir(out) if not name.endswith(".part")}
assert left == {"results.json", "results.tar.gz", "table.md"}, left
parts = json.load(open(f"{out}/results.json"))["parts"]
assert len(parts) == int(count), [part["part"] for part in parts]
printed = 0
for part in parts:
    name = part["part"]
    written, archived = (open(f"{folder}/{name}.log", errors="replace").read() for folder in (work, f"{out}-unpacked"))
    assert written.startswith(archived), f"{name}: another log in the archive"
    assert part["status"] == "running" or written == archived, f"{name}: the archive has not all of a part that is over"
    printed += len(archived.splitlines())
statuses = {part["part"]: part["status"] for part in parts}
assert printed > 10, f"{printed} lines in all"
assert any(statuses.values()), f"nothing was killed: {statuses}"
print(f"   {statuses}, {printed} lines")
PYTHON
}

parts=("$@")
parity=
if [ ${#parts[@]} -eq 0 ]; then
  parts=(self doctor auto memory launches train offload bytes mixtures hopper traps forms products sums ada turing graphs reference generate search samples lost ranks profile
    ceilings findings inference check)
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
