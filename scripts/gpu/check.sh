#!/usr/bin/env bash
# Checks peft-tune on this machine's NVIDIA GPU and times it against PEFT. Needs no Rust: it runs beside a packed program.
#
#   scripts/gpu/check.sh [PART ...]        parity reference memory sanitize search profile attention bench graphs literature peft table
#                                          (parity if none is named, `all` for all)
#
# Results go to $OUT (default: gpu-results): a file for each part, all of them in results.json, and table.md. PEFT_TUNE names
# another program, DEVICE another device, SHAPES and BATCHES what is timed, LITERATURE_SHAPE and LITERATURE_BATCH the model and
# micro-batch of the table of the literature, BIG_SEARCH the trials of a search on a random model of 3B parameters (60 with `all` on a
# GPU, else none). Each part goes on where another failed; the exit status is that of the worst.
# shellcheck disable=SC2329 # A part is called by its name.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
out=${OUT:-gpu-results}
mkdir -p "$out"
if [ -z "${PEFT_TUNE:-}" ]; then
  for PEFT_TUNE in ./peft-tune ./target/release/peft-tune ./target/debug/peft-tune; do [ -x "$PEFT_TUNE" ] && break; done
fi
device=${DEVICE:-cuda}
python=${PYTHON:-python3}
shapes=${SHAPES:-qwen2.5-0.5b,llama-3.2-3b,llama-3.1-8b}
batches=${BATCHES:-2x4096,8x512}
literature_shape=${LITERATURE_SHAPE:-llama-2-7b}
literature_batch=${LITERATURE_BATCH:-8x512}
worst=0

# Runs a part; notes its status and its seconds.
part() {
  local name=$1 began=$SECONDS status=0
  printf '\n== %s (%ss)\n' "$name" "$SECONDS"
  "$name" || status=$?
  if [ "$status" -ne 0 ]; then
    echo "FAILED ($status): $name"
    worst=1
  fi
  printf '%s\t%s\t%s\n' "$name" "$status" "$((SECONDS - began))" >> "$out/parts.tsv"
}

check() { "$PEFT_TUNE" gpu-check --device "$device" "$@"; }

# Ops forward and backward, gradients, optimizers, and trainings of 20 steps, against the CPU.
parity() {
  check --parts parity --json "$out/parity.json" | tee "$out/parity.log" | grep -v '^ok'
  return "${PIPESTATUS[0]}"
}

# The same with plain tensor ops.
reference() {
  check --parts parity --kernels reference --json "$out/reference.json" | tee "$out/reference.log" | grep -v '^ok'
  return "${PIPESTATUS[0]}"
}

# Out of memory, and a good training behind it.
memory() { check --parts memory --json "$out/memory.json"; }

sanitize() {
  local tool worst_of_all=0 kind
  tool=$(command -v compute-sanitizer || find /usr/local/cuda*/bin -name compute-sanitizer 2>/dev/null | head -1)
  if [ -z "$tool" ]; then
    echo "compute-sanitizer is not here: left out"
    return 0
  fi
  # The launcher's last step only sets the environment: the tool follows it into the program. Races are looked for in shared
  # memory, which only own kernels use by hand.
  for kind in memcheck racecheck synccheck; do
    "$tool" --target-processes all --tool "$kind" --print-limit 5 --error-exitcode 3 \
      "$PEFT_TUNE" gpu-check --device "$device" --parts parity > "$out/$kind.log" 2>&1 || worst_of_all=$?
    printf '%s: ' "$kind"
    tail -1 "$out/$kind.log"
  done
  return "$worst_of_all"
}

search() {
  rm -f "$out/quickstart.db"
  "$PEFT_TUNE" search search_spaces/quickstart.yaml --db "$out/quickstart.db" --trials "${TRIALS:-12}" --devices "$device_of_search" |
    tail -20 || return 1
  [ -n "${BIG_SEARCH:-}" ] || return 0
  local model=${BIG_MODEL:-/tmp/random-3b}
  [ -e "$model/model.safetensors" ] || "$python" scripts/gpu/make_model.py "$model" search_spaces/quickstart/base || return 1
  random_space "$model" > "$out/random-3b.yaml"
  rm -f "$out/random-3b.db"
  local began=$SECONDS
  "$PEFT_TUNE" search "$out/random-3b.yaml" --db "$out/random-3b.db" --trials "$BIG_SEARCH" --devices "$device_of_search" | tail -20 ||
    return 1
  printf '{"trials": %s, "seconds": %s}\n' "$BIG_SEARCH" "$((SECONDS - began))" > "$out/search.json"
}

# One setting in depth, kernels included, of the search's study or of its first recipe.
profile() {
  [ -e "$out/quickstart.db" ] || search || return 1
  "$PEFT_TUNE" export --db "$out/quickstart.db" --format recipe --output "$out/recipe" > /dev/null || return 1
  "$PEFT_TUNE" profile "$(find "$out/recipe" -name '*.yaml' | head -1)" --device "$device" --budget 20s --no-store --json \
    --trace "$out/trace.json" > "$out/profile.json" || return 1
  if [ "$device" != cpu ] && ! grep -q '"kernels"' "$out/profile.json"; then
    echo "no kernels in the profile: CUPTI is missing"
  fi
}

# The space for a 24 GB card on a model and data that are here, with NF4 beside bf16 and no limit but the device's.
random_space() {
  local data=$PWD/search_spaces/quickstart
  sed -e "s#^model:.*#model: $1#" -e "s#train: train.jsonl.*#train: $data/train.jsonl#" -e "s#held_out: 0.1.*#held_out: $data/held_out.jsonl#" \
    -e '/^ *loss_on:/d' -e '/^constraints:/d' -e '/^ *peak_memory:/d' -e '/^ *memory_limit:/d' \
    -e 's/precision: bf16/precision: [bf16, nf4]/' -e 's/training_tokens: .*/training_tokens: 60k/' \
    -e 's/^study:.*/study: random-3b/' -e '/^sampler:/q' search_spaces/lora-24gb.yaml
}

# Attention by itself, beside PyTorch's. Where there is no PyTorch, alone.
attention() {
  check --parts attention --shapes "$shapes" --batches "$batches" --json "$out/attention.json" || return 1
  [ "$device" = cpu ] || "$python" scripts/gpu/attention_bench.py "$out/attention.json" || true
}

bench() { check --parts bench --shapes "$shapes" --batches "$batches" --json "$out/bench.json"; }

# Steps replayed from CUDA graphs against launched ones: losses and tokens/s, on a tiny model and on the smallest shape.
graphs() { check --parts graphs --shapes "${shapes%%,*}" --batches "$batches" --json "$out/graphs.json"; }

# Full FP32, LoRA on fp32, 16-bit and NF4 weights of a model of 7B parameters.
literature() {
  check --parts literature --literature-shape "$literature_shape" --literature-batch "$literature_batch" --json "$out/literature.json"
}

# PEFT on the timed settings, then on those of the literature.
# shellcheck disable=SC2086 # PEFT_OPTIONS holds several words.
peft() {
  "$python" scripts/gpu/peft_bench.py "$out/peft.json" --shapes "$shapes" --batches "$batches" ${PEFT_OPTIONS:-} &&
    "$python" scripts/gpu/peft_bench.py "$out/peft.json" --append --shapes "$literature_shape" --batches "$literature_batch" \
      --precisions fp32,bf16,nf4 --no-compile ${PEFT_OPTIONS:-}
}

table() { "$python" scripts/gpu/results.py table "$out" | tee "$out/table.md"; }

for name in "$@"; do
  if [ "$name" = all ] && [ "$device" != cpu ]; then BIG_SEARCH=${BIG_SEARCH-60}; fi
done
case "$device" in cuda) device_of_search=cuda:0 ;; *) device_of_search=$device ;; esac
"$PEFT_TUNE" --version || exit 1
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv 2>/dev/null | tee "$out/device.csv"
: > "$out/parts.tsv"
for name in "${@:-parity}"; do
  case "$name" in
    parity | reference | memory | sanitize | search | profile | attention | bench | graphs | literature | peft | table) part "$name" ;;
    all) for each in parity memory search profile attention bench graphs literature peft table reference sanitize; do part "$each"; done ;;
    *)
      echo "no part \`$name\`"
      exit 2
      ;;
  esac
done
"$python" scripts/gpu/results.py json "$out" || echo "no results.json: the parts' own files hold all"
exit "$worst"
