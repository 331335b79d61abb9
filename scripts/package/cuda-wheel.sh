#!/usr/bin/env bash
# Builds the program with NVIDIA support and makes the wheel `peft-tune-cuda` of it.
#
#     scripts/package/cuda-wheel.sh PLAIN_WHEEL FOLDER             # the plain wheel is of `wheels.sh`
#     scripts/package/cuda-wheel.sh PLAIN_WHEEL FOLDER PROGRAM     # of a program that is built already
#
# Installs the wheel in a fresh environment and starts it there, with the driver's library and without. CUDA's libraries are
# those of the toolkit that it was built with, unless DOWNLOAD is set: then pip installs those that the wheel asks for.
set -euo pipefail
cd "$(dirname "$0")/../.."
wheel=$(realpath "${1:?the plain wheel}")
output=$(realpath -m "${2:?folder for the wheel}")
program=${3:-}
# shellcheck source=scripts/gpu/cuda-toolkit.sh
. scripts/gpu/cuda-toolkit.sh
if [ -z "$program" ]; then
  cargo build --release --locked --features cuda --bin peft-tune
  program="${CARGO_TARGET_DIR:-target}/release/peft-tune"
fi
scripts/package/cuda_wheel.py "$wheel" "$program" "$output"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
packed=("$output"/peft_tune_cuda-*.whl)
if [ -n "${DOWNLOAD:-}" ]; then
  "$folder/python/bin/pip" install -q --no-cache-dir "${packed[0]}"
else
  "$folder/python/bin/pip" install -q --no-cache-dir --no-deps "${packed[0]}"
  # Where NVIDIA's wheels would be.
  site=$("$folder/python/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  mkdir -p "$site/nvidia/cu13"
  ln -s "$(realpath "$CUDA_HOME/lib64")" "$site/nvidia/cu13/lib"
fi
# Nothing else says where CUDA is.
alone() { env -u CUDA_HOME -u CUDA_PATH -u VIRTUAL_ENV -u CONDA_PREFIX -u LD_LIBRARY_PATH PATH=/usr/bin:/bin:/usr/sbin:/sbin "$@"; }
if ! alone ldconfig -p | grep -q 'libcuda.so.1 '; then
  if alone "$folder/python/bin/peft-tune" --version 2> "$folder/said"; then
    echo "error: it started without a driver" >&2
    exit 1
  fi
  grep -q '^error: libcuda.so.1 is missing' "$folder/said" || { cat "$folder/said" && exit 1; }
  echo "without a driver: $(head -1 "$folder/said")"
fi
stub=$(find -L "$CUDA_HOME/lib64/stubs" "$CUDA_HOME/lib/stubs" -name libcuda.so 2> /dev/null | head -1)
mkdir "$folder/driver"
ln -s "$stub" "$folder/driver/libcuda.so.1"
alone LD_LIBRARY_PATH="$folder/driver" "$folder/python/bin/peft-tune" --version
alone LD_LIBRARY_PATH="$folder/driver" "$folder/python/bin/peft-tune" doctor --db "$folder/doctor.db" > "$folder/doctor.txt" 2>&1
grep 'built with CUDA support' "$folder/doctor.txt"
# The libraries are those of the environment, not of some toolkit here.
alone LD_LIBRARY_PATH="$folder/driver" LD_DEBUG=libs "$folder/python/bin/peft-tune" --version > /dev/null 2> "$folder/loaded"
for library in libcudart.so.13 libcublas.so.13 libcublasLt.so.13 libcurand.so.10 libnvrtc.so.13; do
  grep -oE "calling init: $folder/python/.*/$library" "$folder/loaded" | sort -u | sed "s|calling init: $folder/python/|loaded |" | grep . || {
    echo "error: $library is not loaded from the environment:" >&2
    grep "$library" "$folder/loaded" >&2
    exit 1
  }
done
# Without a GPU it searches on the processor.
cd "$folder"
alone LD_LIBRARY_PATH="$folder/driver" "$folder/python/bin/peft-tune" quickstart --trials 1 --time 1m > search.txt 2> search.log ||
  { cat search.log && exit 1; }
grep '^\* recommended: trial ' search.txt
