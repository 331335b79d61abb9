#!/usr/bin/env bash
# Compiles every kernel with NVRTC for the architectures that are named (sm_80, sm_89 and sm_90a otherwise). NVRTC comes
# from a Python wheel of 100 MB, which is installed into a cache folder at the first call. No GPU is needed.
set -euo pipefail
here=$(dirname "$0")
cache=${PEFT_TUNE_NVRTC:-${XDG_CACHE_HOME:-$HOME/.cache}/peft-tune/nvrtc}
if ! ls "$cache"/nvidia/*/lib/libnvrtc.so.* >/dev/null 2>&1; then
  python3 -m pip install --quiet --no-deps --target "$cache" nvidia-cuda-nvrtc==13.0.88
fi
exec python3 "$here/compile_kernels.py" --library "$(find "$cache"/nvidia/*/lib -name 'libnvrtc.so.*' | head -1)" "$@"
