#!/usr/bin/env bash
# Builds peft-tune with NVIDIA support and packs it: program, launcher, check scripts, search spaces; one archive.
#
#   scripts/gpu/pack.sh [OUTPUT.tar.xz]
#
# Needs nvcc and the CUDA 13 libraries: those of CUDA_HOME, else those of Python wheels, installed into a cache folder at the
# first call. No GPU and no driver is needed. CUDA_COMPUTE_CAP (80 by default) is the oldest architecture that the package
# runs on; the program's own kernels are compiled for the GPU that is there.
set -euo pipefail
cd "$(dirname "$0")/../.."
output=$(realpath -m "${1:-target/peft-tune-gpu.tar.xz}")
# shellcheck source=scripts/gpu/cuda-toolkit.sh
. scripts/gpu/cuda-toolkit.sh
export CUDA_COMPUTE_CAP=${CUDA_COMPUTE_CAP:-80}
cargo build --release --locked --features cuda --bin peft-tune
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
package="$folder/peft-tune"
mkdir -p "$package/scripts/gpu"
cp "${CARGO_TARGET_DIR:-target}/release/peft-tune" "$package/peft-tune.bin"
strip "$package/peft-tune.bin"
install -m 755 scripts/gpu/launch.sh "$package/peft-tune"
cp scripts/gpu/check.sh scripts/gpu/*.py "$package/scripts/gpu/"
cp -r search_spaces LICENSE "$package/"
tar -C "$folder" -c peft-tune | xz -T0 -6 > "$output"
ls -l "$output"
