#!/usr/bin/env bash
# Lints and builds the program with NVIDIA support in debug form, and checks what can be checked of it without a GPU: it links, it starts
# on a driver that has no device and says so, it works on the CPU all the same, CUPTI's records are those of the toolkit, and it runs on a
# GPU in software.
#
#   scripts/gpu/build-test.sh [PART ...]             # parts of stand-in-test.sh; where none is named, all that end within minutes
#   scripts/gpu/build-test.sh --without-stand-in     # all but the GPU in software
set -euo pipefail
cd "$(dirname "$0")/../.."
# What the GPU in software emulates of candle's kernels: later ones have types that it does not know.
export CUDA_COMPUTE_CAP=80
# shellcheck source=scripts/gpu/cuda-toolkit.sh
. scripts/gpu/cuda-toolkit.sh
cargo clippy --locked --workspace --features cuda --lib --bins -- -D warnings
cargo build --locked --features cuda --bin peft-tune
program="${CARGO_TARGET_DIR:-target}/debug/peft-tune"
scripts/gpu/cupti-layouts.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# As a machine whose driver finds no GPU has it.
stub=$(find -L "$CUDA_HOME/lib64/stubs" "$CUDA_HOME/lib/stubs" -name libcuda.so 2>/dev/null | head -1)
mkdir "$folder/driver"
ln -s "$stub" "$folder/driver/libcuda.so.1"
libraries="$folder/driver:$CUDA_HOME/lib64:$CUDA_HOME/lib"
started() { LD_LIBRARY_PATH="$libraries" "$program" "$@" 2>&1; }

started --version
started doctor --db "$folder/doctor.db" > "$folder/doctor.txt"
grep -q 'built with CUDA support' "$folder/doctor.txt"
# Where there is a GPU after all, the stand-in of the driver does not see it.
grep -q 'trains on *cpu' "$folder/doctor.txt"
if started gpu-check --device cuda > "$folder/check.txt"; then
  echo "a device was opened without a driver"
  exit 1
fi
grep -q 'cannot open device .cuda.' "$folder/check.txt"
# A worker process of this program starts, on the CPU, with a stand-in for the trial itself.
PEFT_TUNE_MOCK=0.05 started search search_spaces/quickstart.yaml --db "$folder/search.db" --trials 2 > "$folder/search.txt" || {
  cat "$folder/search.txt"
  exit 1
}
# Without the driver's library the loader refuses the program; the launcher says why.
install -m 755 scripts/gpu/launch.sh "$folder/peft-tune"
ln -s "$(realpath "$program")" "$folder/peft-tune.bin"
LD_LIBRARY_PATH="$libraries" "$folder/peft-tune" --version
echo "the program with NVIDIA support links and starts"
if [ "${1:-}" = --without-stand-in ]; then exit; fi
# The other parts (parity, mixtures, launches, lost, ranks, profile, reference, generate, check) are for a person to run.
if [ $# = 0 ]; then
  set -- self doctor auto memory train offload bytes hopper traps forms products sums ada turing graphs search samples ceilings findings inference
fi
scripts/gpu/stand-in-test.sh "$@"
