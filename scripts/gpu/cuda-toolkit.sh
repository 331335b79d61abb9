# shellcheck shell=bash
# Finds a CUDA 13 toolkit (nvcc on the PATH, or CUDA_HOME), or installs compiler, headers and libraries from Python wheels
# into a cache folder (1.5 GB), so that `--features cuda` builds where there is neither a toolkit nor a GPU.
#
#   . scripts/gpu/cuda-toolkit.sh        # source it: sets CUDA_HOME, PATH, NVCC and CUDARC_CUDA_VERSION
#
# The driver's library is in no wheel. For the link step alone a stand-in is made, all of whose functions answer "no device".
set -u
if [ -z "${CUDA_HOME:-}" ] && command -v nvcc >/dev/null 2>&1; then
  CUDA_HOME=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
fi
if [ -z "${CUDA_HOME:-}" ]; then
  _wheels="${XDG_CACHE_HOME:-$HOME/.cache}/cuda-13.0/lib/python3"
  CUDA_HOME="$_wheels/nvidia/cu13"
  if [ ! -x "$CUDA_HOME/bin/nvcc" ]; then
    python3 -m pip install -q --no-deps --target "$_wheels" \
      nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85 \
      nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85 \
      nvidia-cublas==13.0.2.14 nvidia-curand==10.4.0.35
  fi
  # Wheels have no names without a version, which the linker looks for.
  ln -sfn lib "$CUDA_HOME/lib64"
  for _library in "$CUDA_HOME"/lib/lib*.so.*; do
    _name=$(basename "$_library")
    ln -sf "$_name" "$CUDA_HOME/lib/${_name%%.so.*}.so"
  done
fi
# The stand-in's source tells whether it is of this script.
if [ ! -e "$CUDA_HOME/lib64/stubs/libcuda.so" ] || { [ -e "$CUDA_HOME/lib/stubs/libcuda.c" ] && ! grep -q 'no device: a stand-in' "$CUDA_HOME/lib/stubs/libcuda.c"; }; then
  mkdir -p "$CUDA_HOME/lib/stubs"
  {
    grep -ohE '\bcu[A-Z][A-Za-z0-9_]*' "$CUDA_HOME/include/cuda.h" | sort -u | grep -vxE 'cuGetError(Name|String)' |
      awk '{print "int " $1 "(void) { return 100; }"}'
    # A program that asks for an error's name reads what is written.
    echo 'int cuGetErrorName(int error, const char **text) { *text = "CUDA_ERROR_NO_DEVICE"; return 0; }'
    echo 'int cuGetErrorString(int error, const char **text) { *text = "no device: a stand-in for the driver"; return 0; }'
  } > "$CUDA_HOME/lib/stubs/libcuda.c"
  gcc -shared -fPIC -w -Wl,-soname,libcuda.so.1 -o "$CUDA_HOME/lib/stubs/libcuda.so" "$CUDA_HOME/lib/stubs/libcuda.c"
fi
export CUDA_HOME CUDA_PATH="$CUDA_HOME"
# Candle's kernels for GGUF weights and mixtures of experts are linked into the program, but nothing in it launches them:
# they are compiled without optimisation, in 3 CPU minutes instead of 20. NVCC=nvcc compiles them as they come.
if [ -z "${NVCC:-}" ]; then
  NVCC="${XDG_CACHE_HOME:-$HOME/.cache}/peft-tune/nvcc-quick"
  mkdir -p "$(dirname "$NVCC")"
  cat > "$NVCC.$$" <<'QUICK'
#!/bin/sh
for argument in "$@"; do
  case "$argument" in
    *mmq_*.cu | *mmvq_*.cu | *moe_*.cu | *quantized.cu) exec nvcc "$@" -Xcicc -O0 -Xptxas -O0 ;;
  esac
done
exec nvcc "$@"
QUICK
  chmod +x "$NVCC.$$"
  # A build that looks at the compiler's date finds the same file again.
  if cmp -s "$NVCC.$$" "$NVCC"; then rm "$NVCC.$$"; else mv "$NVCC.$$" "$NVCC"; fi
fi
export NVCC
export CUDARC_CUDA_VERSION=${CUDARC_CUDA_VERSION:-13000} CUDA_COMPUTE_CAP=${CUDA_COMPUTE_CAP:-80}
case ":$PATH:" in *":$CUDA_HOME/bin:"*) ;; *) export PATH="$CUDA_HOME/bin:$PATH" ;; esac
