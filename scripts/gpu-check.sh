#!/usr/bin/env bash
# Checks peft-tune on this machine's NVIDIA GPU and times it against PEFT. Needs no Rust: it runs beside a packed program.
#
#   scripts/gpu-check.sh [PART ...]        parts: parity reference memory sanitize search bench peft table (parity if none is named, `all` for all)
#
# Results go to $OUT (default: gpu-results). PEFT_TUNE names another program, SHAPES and BATCHES what is timed. Each part
# goes on where another failed; the exit status is that of the worst.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-gpu-results}
mkdir -p "$out"
if [ -z "${PEFT_TUNE:-}" ]; then
  for PEFT_TUNE in ./peft-tune ./target/release/peft-tune ./target/debug/peft-tune; do [ -x "$PEFT_TUNE" ] && break; done
fi
python=${PYTHON:-python3}
shapes=${SHAPES:-qwen2.5-0.5b,llama-3.2-3b,llama-3.1-8b}
batches=${BATCHES:-2x4096,8x512}
worst=0

part() {
  printf '\n== %s (%ss)\n' "$1" "$SECONDS"
  shift
  "$@" || { status=$?; echo "FAILED ($status): $*"; worst=1; }
}

parity() { "$PEFT_TUNE" gpu-check --device cuda --parts parity --json "$out/parity.json" | tee "$out/parity.log" | grep -v '^ok' ; return "${PIPESTATUS[0]}"; }
reference() { "$PEFT_TUNE" gpu-check --device cuda --parts parity --reference --json "$out/reference.json" | tee "$out/reference.log" | grep -v '^ok'; return "${PIPESTATUS[0]}"; }
memory() { "$PEFT_TUNE" gpu-check --device cuda --parts memory --json "$out/memory.json"; }

sanitize() {
  local tool
  tool=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
  [ -n "$tool" ] || { echo "compute-sanitizer is not here: left out"; return 0; }
  # The launcher's last step only sets the environment: the tool follows it into the program.
  "$tool" --target-processes all --tool memcheck --print-limit 5 --error-exitcode 3 \
    "$PEFT_TUNE" gpu-check --device cuda --parts parity > "$out/memcheck.log" 2>&1
  local status=$?
  tail -5 "$out/memcheck.log"
  return $status
}

search() {
  rm -f "$out/quickstart.db"
  "$PEFT_TUNE" search search_spaces/quickstart.yaml --db "$out/quickstart.db" --trials 12 | tail -20 || return 1
  [ -n "${BIG_SEARCH:-}" ] || return 0
  local model=${BIG_MODEL:-/tmp/random-3b}
  [ -e "$model/model.safetensors" ] || "$python" scripts/gpu_make_model.py "$model" search_spaces/quickstart/base || return 1
  sed -e "s#^model:.*#model: $model#" -e "s#quickstart/\(train\|held_out\)#$PWD/search_spaces/quickstart/\1#" \
    -e 's/precision: .*/precision: [bf16, nf4]/' -e 's/^study:.*/study: random-3b/' search_spaces/quickstart.yaml > "$out/random-3b.yaml"
  "$PEFT_TUNE" search "$out/random-3b.yaml" --db "$out/random-3b.db" --trials "$BIG_SEARCH" | tail -20
}

bench() {
  "$PEFT_TUNE" gpu-check --device cuda --parts bench --shapes "$shapes" --batches "$batches" --json "$out/bench.json"
}

peft() { "$python" scripts/gpu_peft_bench.py "$out/peft.json" --shapes "$shapes" --batches "$batches" ${PEFT_OPTIONS:-}; }
table() { "$python" scripts/gpu_table.py "$out/bench.json" "$out/peft.json" | tee "$out/table.md"; }

"$PEFT_TUNE" --version || exit 1
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv 2>/dev/null
for name in "${@:-parity}" ; do
  case "$name" in
    parity | reference | memory | sanitize | search | bench | peft | table) part "$name" "$name" ;;
    all) for each in parity memory search bench peft table reference sanitize; do part "$each" "$each"; done ;;
    *) echo "no part \`$name\`"; exit 2 ;;
  esac
done
exit $worst
