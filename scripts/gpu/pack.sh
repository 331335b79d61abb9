#!/usr/bin/env bash
# Builds peft-tune with NVIDIA support and packs it: program, launcher, check scripts, search spaces; one archive.
#
#   scripts/gpu/pack.sh [OUTPUT.tar.xz]
#
# Needs nvcc and the CUDA 13 libraries: those of CUDA_HOME, else those of Python wheels, installed into a cache folder at the
# first call. No GPU and no driver is needed. CUDA_COMPUTE_CAP (80 by default) is the oldest architecture that the package
# runs on; the program's own kernels are compiled for the GPU that is there. Liger's wheel goes along, for the comparison with PEFT;
# LIGER names another wheel, or, if empty, none.
set -euo pipefail
cd "$(dirname "$0")/../.."
output=$(realpath -m "${1:-target/peft-tune-gpu.tar.xz}")
# shellcheck source=scripts/gpu/cuda-toolkit.sh
. scripts/gpu/cuda-toolkit.sh
# The driver translates candle's kernels from PTX, and one that is older than the compiler does not read them.
newest=$(sed -nE 's/.*nvidia-cuda-nvcc==([0-9]+\.[0-9]+).*/\1/p' scripts/gpu/cuda-toolkit.sh)
release=$("$NVCC" --version | sed -nE 's/.*release ([0-9]+\.[0-9]+).*/\1/p')
if [ -z "$release" ] || [ "$(printf '%s\n' "$release" "$newest" | sort -V | tail -1)" != "$newest" ]; then
  echo "error: nvcc is of CUDA ${release:-an unknown release}, and $newest is the newest whose PTX the driver 580 loads." >&2
  echo "Put an older nvcc first in the PATH, name its toolkit in CUDA_HOME, or unset both to install one from wheels." >&2
  exit 2
fi
export CUDA_COMPUTE_CAP=${CUDA_COMPUTE_CAP:-80}
cargo build --release --locked --features cuda --bin peft-tune
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
package="$folder/peft-tune"
mkdir -p "$package/scripts/gpu" "$package/wheels"
cp "${CARGO_TARGET_DIR:-target}/release/peft-tune" "$package/peft-tune.bin"
strip "$package/peft-tune.bin"
# For the launcher: the loader's own message does not say what to do.
readelf --version-info "$package/peft-tune.bin" | grep -oE 'GLIBC_2\.[0-9]+' | sort -V | tail -n 1 | cut -d_ -f2 > "$package/glibc"
install -m 755 scripts/gpu/launch.sh "$package/peft-tune"
cp scripts/gpu/check.sh scripts/gpu/*.py "$package/scripts/gpu/"
cp -r search_spaces LICENSE "$package/"
liger=${LIGER-liger-kernel}
if [ -f "$liger" ]; then
  cp "$liger" "$package/wheels/"
elif [ -n "$liger" ] && ! python3 -m pip download -q --no-deps --only-binary=:all: -d "$package/wheels" "$liger"; then
  echo "without Liger's wheel: PEFT is compared with where it is not installed" >&2
fi
tar -C "$folder" -c peft-tune | xz -T0 -6 > "$output"
ls -l "$output"
