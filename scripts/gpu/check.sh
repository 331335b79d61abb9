#!/usr/bin/env bash
# Checks peft-tune on this machine's NVIDIA GPU and times it against PEFT. Needs no Rust: it runs beside a packed program.
#
#   scripts/gpu/check.sh first             # attention step kernels products peft
#   scripts/gpu/check.sh second            # parity memory bench nf4 literature graphs search
#   scripts/gpu/check.sh third             # sanitize
#   scripts/gpu/check.sh [PART ...]        # those, or reference profile peft_more search_3b; `all` for all; parity if none is named
#
# The first three end within LIMIT seconds (540, 540 and 300), whatever becomes of their parts. LIMIT holds for any others too; without
# it a part has an hour. What a part does not use goes to those behind it, in proportion. A part over its time is killed.
#
# What is known goes to $OUT (default: gpu-results) behind every part and every PACK_EVERY seconds (20): results.json, table.md, and
# results.tar.gz with all that the parts wrote. They write into $WORK (default: gpu-work), which may hold earlier parts' results: those
# count until their part runs again.
#
# PEFT_TUNE names another program, PYTHON another Python, DEVICE another device; SHAPES and BATCHES what is timed, STEP_SHAPE and
# STEP_BATCH the one step that is looked at in depth, LITERATURE_SHAPE and LITERATURE_BATCH the table of the literature; TRIALS (20) and
# BIG_SEARCH (60) the trials of the searches of a small model and of a random one of 3B parameters; SANITIZERS the tools (memcheck). Each
# part goes on where another failed; the exit status is that of the worst.
# shellcheck disable=SC2329 # A part is called by its name.
set -uo pipefail
script=$(readlink -f "$0")
cd "$(dirname "$script")/../.." || exit
export OUT=${OUT:-gpu-results} WORK=${WORK:-gpu-work}
out=$OUT work=$WORK
mkdir -p "$out" "$work"
if [ -z "${PEFT_TUNE:-}" ]; then
  for PEFT_TUNE in ./peft-tune ./target/release/peft-tune ./target/debug/peft-tune; do [ -x "$PEFT_TUNE" ] && break; done
fi
export PEFT_TUNE PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
device=${DEVICE:-cuda}
case "$device" in cuda) device_of_search=cuda:0 ;; *) device_of_search=$device ;; esac
python=${PYTHON:-python3}
shapes=${SHAPES:-llama-3.1-8b,llama-3.2-3b,qwen2.5-0.5b}
batches=${BATCHES:-2x4096,8x512}
step_shape=${STEP_SHAPE:-llama-3.1-8b}
step_batch=${STEP_BATCH:-2x4096}
literature_shape=${LITERATURE_SHAPE:-llama-2-7b}
literature_batch=${LITERATURE_BATCH:-8x512}
pack_every=${PACK_EVERY:-20}
# Wheels that the package brings, for PEFT's best modes: they are Python alone.
for wheel in wheels/*.whl; do
  [ -e "$wheel" ] || continue
  [ -d "$work/site" ] || "$python" -m zipfile -e "$wheel" "$work/site"
  export PYTHONPATH="$work/site${PYTHONPATH:+:$PYTHONPATH}"
done

check() { "$PEFT_TUNE" gpu-check --device "$device" "$@"; }

# Where models of many GB are written: memory, where there is enough of it.
room() {
  local free_kb
  free_kb=$(df --output=avail -k /dev/shm 2>/dev/null | tail -1)
  if [ "${free_kb:-0}" -gt $((40 << 20)) ]; then echo /dev/shm; else echo /tmp; fi
}

# ---- Parts. Each prints a line for each setting as soon as it is known.

# Ops forward and backward, gradients, optimizers, and trainings of 20 steps, against the CPU.
parity() { check --parts parity --json "$work/parity.json"; }

# The same with plain tensor ops.
reference() { check --parts parity --kernels reference --json "$work/reference.json"; }

# Out of memory, and a good training behind it.
memory() { check --parts memory --json "$work/memory.json"; }

# each_shape PART FLAG ...: one call for each shape, so that a killed part leaves those it had.
each_shape() {
  local name=$1 shape status=0
  shift
  for shape in ${shapes//,/ }; do
    check --shapes "$shape" --batches "$batches" --json "$work/$name.$shape.json" "$@" || status=$?
  done
  return "$status"
}

# Attention by itself, beside PyTorch's. Where there is no PyTorch, alone.
attention() {
  local status=0 all=$shapes shapes
  for shapes in ${all//,/ }; do
    each_shape attention --parts attention || status=$?
    [ "$device" = cpu ] || "$python" scripts/gpu/attention_bench.py "$work/attention.$shapes.json" || true
  done
  return "$status"
}

# The one step: its speed, then its kernels, then the products that it makes by themselves, then PEFT on it.
step() { check --parts bench --shapes "$step_shape" --batches "$step_batch" --precisions bf16 --json "$work/step.json"; }

kernels() {
  local model=${STEP_MODEL:-} status=0
  if [ -z "$model" ]; then
    model=$(room)/peft-tune-random-8b
    [ -e "$model/model.safetensors" ] ||
      "$python" scripts/gpu/make_model.py "$model" search_spaces/quickstart/base --untied 4096 32 32 8 14336 || return 1
  fi
  # Rows of the step's length, of the same text over and over.
  "$python" -c 'import json, sys
text = open(sys.argv[1]).read()
for first in range(64): print(json.dumps({"text": (text[1000 * first:] + text)[:8 * int(sys.argv[2])]}))' \
    search_spaces/quickstart/train.jsonl "${step_batch#*x}" > "$work/rows.jsonl" || return 1
  cat > "$work/step.yaml" <<RECIPE
model: $(realpath "$model")
data: {train: $(realpath "$work/rows.jsonl"), held_out: $(realpath "$work/rows.jsonl")}
adapter: {rank: 16, alpha: 32, target_modules: all-linear}
precision: bf16
gradient_checkpointing: none
batch: {micro_batch: ${step_batch%x*}, gradient_accumulation: 1, sequence_length: ${step_batch#*x}}
optimizer: {kind: adamw, learning_rate: 1e-4}
training: {length: {steps: 100}}
RECIPE
  "$PEFT_TUNE" profile "$work/step.yaml" --device "$device" --budget "${STEP_BUDGET:-20s}" --no-store --json \
    --trace "$work/step-trace.json" > "$work/kernels.json" || status=$?
  [ -n "${STEP_MODEL:-}" ] || rm -r "$model"
  [ "$status" -eq 0 ] || return "$status"
  [ "$device" = cpu ] || "$python" scripts/gpu/results.py kernels "$work"
}

# shellcheck disable=SC2086 # PRODUCTS_OPTIONS holds several words.
products() {
  "$python" scripts/gpu/products_bench.py "$work/products.json" --shape "$step_shape" --batch "$step_batch" ${PRODUCTS_OPTIONS:-}
}

# shellcheck disable=SC2086 # PEFT_OPTIONS holds several words.
peft() {
  "$python" scripts/gpu/peft_bench.py "$work/peft.json" --shapes "$step_shape" --batches "$step_batch" --precisions bf16 \
    --seconds "$((${PART_LIMIT:-3600} - 30))" ${PEFT_OPTIONS:-}
}

# PEFT on all timed settings and on those of the literature.
# shellcheck disable=SC2086
peft_more() {
  "$python" scripts/gpu/peft_bench.py "$work/peft_more.json" --shapes "$shapes" --batches "$batches" ${PEFT_OPTIONS:-} &&
    "$python" scripts/gpu/peft_bench.py "$work/peft_more.json" --append --shapes "$literature_shape" --batches "$literature_batch" \
      --precisions fp32,bf16,nf4 --no-compile ${PEFT_OPTIONS:-}
}

# Memory predicted and measured, tokens/s, and the switch from trial to trial.
bench() { each_shape bench --parts bench --precisions bf16; }
# With what the engine found out of products and of sums with adapters, both ways of which it timed.
nf4() {
  local status=0
  each_shape nf4 --parts bench --precisions nf4 || status=$?
  cp "${PEFT_TUNE_KERNELS:-${XDG_CACHE_HOME:-$HOME/.cache}/peft-tune/kernels}"/products-*.json "$work/" 2> /dev/null || true
  return "$status"
}

# Full FP32, LoRA on fp32, 16-bit and NF4 weights of a model of 7B parameters.
literature() {
  check --parts literature --literature-shape "$literature_shape" --literature-batch "$literature_batch" --json "$work/literature.json"
}

# Steps replayed from CUDA graphs against launched ones: losses and tokens/s, on a tiny model and on the smallest shape.
graphs() { check --parts graphs --shapes "${shapes##*,}" --batches "$batches" --json "$work/graphs.json"; }

search() {
  rm -f "$work"/quickstart.db*
  "$PEFT_TUNE" search search_spaces/quickstart.yaml --db "$work/quickstart.db" --trials "${TRIALS:-20}" --devices "$device_of_search"
}

search_3b() {
  local model=${BIG_MODEL:-$(room)/peft-tune-random-3b} trials=${BIG_SEARCH:-60} began=$SECONDS
  [ -e "$model/model.safetensors" ] || "$python" scripts/gpu/make_model.py "$model" search_spaces/quickstart/base || return 1
  random_space "$model" > "$work/random-3b.yaml"
  rm -f "$work"/random-3b.db*
  began=$SECONDS
  "$PEFT_TUNE" search "$work/random-3b.yaml" --db "$work/random-3b.db" --trials "$trials" --devices "$device_of_search" || return 1
  printf '{"trials": %s, "seconds": %s}\n' "$trials" "$((SECONDS - began))" > "$work/search_3b.json"
}

# The space for a 24 GB card on a model and data that are here, with NF4 beside bf16 and no limit but the device's.
random_space() {
  local data=$PWD/search_spaces/quickstart
  sed -e "s#^model:.*#model: $1#" -e "s#train: train.jsonl.*#train: $data/train.jsonl#" -e "s#held_out: 0.1.*#held_out: $data/held_out.jsonl#" \
    -e '/^ *loss_on:/d' -e '/^constraints:/d' -e '/^ *peak_memory:/d' -e '/^ *memory_limit:/d' \
    -e 's/precision: bf16/precision: [bf16, nf4]/' -e 's/training_tokens: .*/training_tokens: 60k/' \
    -e 's/^study:.*/study: random-3b/' -e '/^sampler:/q' search_spaces/lora-24gb.yaml
}

# One setting in depth, kernels included, of the search's study.
profile() {
  [ -e "$work/quickstart.db" ] || search || return 1
  "$PEFT_TUNE" export --db "$work/quickstart.db" --format recipe --output "$work/recipe" > /dev/null || return 1
  "$PEFT_TUNE" profile "$(find "$work/recipe" -name '*.yaml' | head -1)" --device "$device" --budget 20s --no-store --json \
    --trace "$work/trace.json" > "$work/profile.json" || return 1
  if [ "$device" != cpu ] && ! grep -q '"kernels"' "$work/profile.json"; then
    echo "no kernels in the profile: CUPTI is missing"
  fi
}

# Each op under compute-sanitizer. Trainings of whole models, which come behind the ops, would take hours there: it ends at the first.
# Races are looked for in shared memory, which only own kernels use by hand.
sanitize() {
  local tool kind log pid worst_of_all=0
  tool=${SANITIZER:-$(command -v compute-sanitizer || find /usr/local/cuda*/bin -name compute-sanitizer 2>/dev/null | head -1)}
  if [ -z "$tool" ]; then
    echo "compute-sanitizer is not here: left out"
    return 0
  fi
  for kind in ${SANITIZERS:-memcheck}; do
    log="$work/sanitize-$kind.log"
    # The launcher's last step only sets the environment: the tool follows it into the program.
    "$tool" --target-processes all --tool "$kind" --print-limit 5 --error-exitcode 3 \
      "$PEFT_TUNE" gpu-check --device "$device" --parts parity > "$log" 2>&1 &
    pid=$!
    while kill -0 "$pid" 2>/dev/null && ! grep -q 'gradients of step' "$log"; do sleep 0.5; done
    # The tool has five seconds to say what it found.
    if pkill -TERM -P "$pid" 2>/dev/null; then
      for _ in {1..10}; do kill -0 "$pid" 2>/dev/null && sleep 0.5; done
    fi
    kill "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
    printf '%s: %s ops checked, %s faults\n' "$kind" "$(grep -cE '^ok|^FAIL' "$log")" "$(faults "$log")"
    grep '^=========' "$log" | head -20
    grep -q '^ok' "$log" && [ "$(faults "$log")" = 0 ] || worst_of_all=3
  done
  return "$worst_of_all"
}

faults() { grep -cE '^=========.*(Invalid|Misaligned|Out-of-range|out of bounds|[Rr]ace|Barrier error|Program hit)' "$1"; }

# ---- What runs them.

# Shares of the time that there is, about as the parts need it: seconds on an H200.
share() {
  case "$1" in
    attention) echo 100 ;; step) echo 50 ;; kernels) echo 110 ;; products) echo 40 ;; peft) echo 240 ;;
    parity) echo 90 ;; memory) echo 30 ;; bench) echo 110 ;; nf4) echo 90 ;; literature) echo 90 ;; graphs) echo 50 ;; search) echo 60 ;;
    peft_more | search_3b) echo 900 ;; sanitize | reference) echo 280 ;; profile) echo 40 ;;
  esac
}

# Packs what is known: whole files under their names at every moment.
pack() {
  packed=$SECONDS
  "$python" scripts/gpu/results.py json "$work" > "$work/packing.log" 2>&1 && cp "$work/results.json" "$out/results.json.part" &&
    mv "$out/results.json.part" "$out/results.json"
  "$python" scripts/gpu/results.py table "$work" > "$out/table.md.part" 2>> "$work/packing.log" && cp "$out/table.md.part" "$work/table.md"
  mv "$out/table.md.part" "$out/table.md"
  archive "" || return 0
  if [ "$(stat -c %s "$out/results.tar.gz.part")" -gt $((15 << 20)) ]; then
    archive "-size -2048k"
    echo "files of 2 MiB or more are left out of results.tar.gz"
  fi
  mv "$out/results.tar.gz.part" "$out/results.tar.gz"
}

# A file that grows while it is read is no failure. The wheels' contents are no results.
# shellcheck disable=SC2086 # Conditions of `find` are several words.
archive() {
  (cd "$work" && find . -path ./site -prune -o -type f $1 -print0 | tar --null --no-recursion --warning=none -czf - -T -) \
    > "$out/results.tar.gz.part" || true
  [ -s "$out/results.tar.gz.part" ]
}

# note NAME STATUS SECONDS
note() { printf '%s\t%s\t%s\n' "$2" "$3" "$began_at" > "$work/$1.status"; }

# part NAME LIMIT: runs a part; notes its status and its seconds, also while it runs.
part() {
  local name=$1 limit=$2 began=$SECONDS status=0 shown
  began_at=$(date +%s)
  printf '\n== %s (at %ss, at most %ss)\n' "$name" "$SECONDS" "$limit"
  rm -f "$work/$name".* "$work/$name".log
  if [ "$limit" -lt 1 ]; then
    echo "no time is left for $name"
    note "$name" "not begun" 0
    worst=1
    return
  fi
  note "$name" running 0
  : > "$work/$name.log"
  PART_LIMIT=$limit timeout --kill-after=3 "$limit" bash "$script" within "$name" > "$work/$name.log" 2>&1 &
  running=$! running_name=$name
  tail -n +1 -s 0.3 -f --pid="$running" "$work/$name.log" | grep --line-buffered -v '^ok' &
  shown=$!
  while kill -0 "$running" 2>/dev/null; do
    sleep 0.3
    if [ $((SECONDS - packed)) -ge "$pack_every" ]; then
      note "$name" running $((SECONDS - began))
      pack
    fi
  done
  wait "$running" || status=$?
  running=
  wait "$shown"
  case "$status" in
    0) ;;
    124 | 137) echo "KILLED ($status, ${limit}s were allowed): $name" && worst=1 ;;
    *) echo "FAILED ($status): $name" && worst=1 ;;
  esac
  note "$name" "$status" $((SECONDS - began))
  pack
}

# Somebody else ends this: what is known is kept.
ended() {
  if [ -n "$running" ]; then
    kill "$running" 2>/dev/null
    note "$running_name" ended 0
  fi
  pack
  exit 143
}

run_parts() {
  local rest name limit left=0
  rest=("$@")
  while [ ${#rest[@]} -gt 0 ]; do
    name=${rest[0]}
    limit=3600
    if [ -n "${LIMIT:-}" ]; then
      left=0
      for each in "${rest[@]}"; do left=$((left + $(share "$each"))); done
      # What packing and killing take is kept back.
      limit=$(((LIMIT - LIMIT / 20 - SECONDS) * $(share "$name") / left))
    fi
    part "$name" "$limit"
    rest=("${rest[@]:1}")
  done
}

if [ "${1:-}" = within ]; then
  "$2"
  exit
fi
wanted=()
for name in "${@:-parity}"; do
  case "$name" in
    first) wanted+=(attention step kernels products peft) LIMIT=${LIMIT:-540} ;;
    second) wanted+=(parity memory bench nf4 literature graphs search) LIMIT=${LIMIT:-540} ;;
    third) wanted+=(sanitize) LIMIT=${LIMIT:-300} ;;
    all)
      wanted+=(attention step kernels products peft parity memory bench nf4 literature graphs search profile reference peft_more)
      # On a CPU a model of 3B parameters would train for days.
      if [ "$device" != cpu ]; then wanted+=(search_3b); fi
      wanted+=(sanitize)
      ;;
    *)
      if [ -z "$(share "$name")" ]; then
        echo "no part \`$name\`"
        exit 2
      fi
      wanted+=("$name")
      ;;
  esac
done
"$PEFT_TUNE" --version || exit 1
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv 2>/dev/null | tee "$work/device.csv"
worst=0 packed=0 running='' running_name='' began_at=0
trap ended TERM INT HUP
run_parts "${wanted[@]}"
pack
cat "$out/table.md" "$work/packing.log" 2>/dev/null
exit "$worst"
