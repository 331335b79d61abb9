#!/usr/bin/env bash
# Builds the stand-in GPU: libraries under the names of NVIDIA's, which a program built with `--features cuda` loads instead of them.
#
#   tests/stand_in_gpu/build.sh FOLDER PTX_FOLDER CANDLE_KERNELS EMULATION
#
# PTX_FOLDER has the modules of candle's kernels as they were built into the program, CANDLE_KERNELS is the folder of their sources, and
# EMULATION that of emulation.h. CUDA_HOME names a toolkit, of which only headers are used.
set -euo pipefail
folder=$1 ptx=$2 sources=$3
emulation=$(realpath "$4")
own=$(cd "$(dirname "$0")" && pwd)
include="$CUDA_HOME/include"
made="$folder/build"
mkdir -p "$folder/candle" "$made/headers/cuda/std"
# Two at a time; a failure shows at the wait for it.
jobs=()
run() {
  "$@" &
  jobs+=($!)
  if [ ${#jobs[@]} -ge 2 ]; then
    wait "${jobs[0]}"
    jobs=("${jobs[@]:1}")
  fi
}
finish() {
  for job in ${jobs[@]+"${jobs[@]}"}; do wait "$job"; done
  jobs=()
}

# Calls of the driver that are not stood in for end the program by their name.
calls() { grep -ohE '\bcu[A-Z][A-Za-z0-9_]*' "$include/cuda.h" | sort -u; }
library="c++ -std=c++17 -fPIC -shared -Wall -Wno-deprecated-declarations -I$include"
$library -O2 -c "$own/queues.cpp" -o "$made/queues.o" &
$library -O2 -c "$own/memory.cpp" -o "$made/memory.o" &
$library -O2 -c "$own/device.cpp" -o "$made/device.o" &
for job in $(jobs -p); do wait "$job"; done
stood_in=$(nm --defined-only "$made"/{queues,memory,device}.o | awk '$2 == "T" {print $3}')
{
  echo '#include <stdio.h>'
  echo '#include <stdlib.h>'
  echo 'static void missing(const char *name) { fprintf(stderr, "stand-in GPU: %s is not stood in for\n", name); abort(); }'
  calls | grep -vxF "$stood_in" | awk '{print "void " $1 "(void) { missing(\"" $1 "\"); }"}'
} > "$made/missing.c"
cc -w -fPIC -c "$made/missing.c" -o "$made/missing.o"
c++ -shared -Wl,-soname,libcuda.so.1 -o "$folder/libcuda.so.1" "$made"/{queues,memory,device,missing}.o -ldl

# The others carry the version that a program linked with NVIDIA's asks for.
named() {
  echo "$1 { global: *; };" > "$made/$1.map"
  $library "${@:3}" -Wl,-soname,"$1" -Wl,--version-script="$made/$1.map" -o "$folder/$1" "$own/$2" "$folder/libcuda.so.1"
}
run named libnvrtc.so.13 nvrtc.cpp -O1 "-DEMULATION=\"$emulation/\"" "-DOWN=\"$own/\""
run named libcublas.so.13 cublas.cpp -O3 -march=native
run named libcublasLt.so.13 cublaslt.cpp -O3 -march=native
run named libcurand.so.10 curand.cpp -O2
run named libcupti.so.13 cupti.cpp -O1
run $library -O1 -Wl,-soname,libnvidia-ml.so.1 -o "$folder/libnvidia-ml.so.1" "$own/nvml.cpp"

# candle's kernels: each file behind the emulation, and an entry for each that the program's module has.
for header in cuda_fp16.h cuda_bf16.h cuda_fp8.h cuda.h cuda/std/limits; do : > "$made/headers/$header"; done
candle() {
  {
    cat "$emulation/emulation.h" "$own/kernel_entry.h" "$own/candle_kernels.h"
    # Shared memory whose size the launch gives.
    sed -E 's/extern __shared__ ([a-z]+) ([a-z_]+)\[\];/DYNAMIC_SHARED(dynamic); \1 *\2 = reinterpret_cast<\1 *>(dynamic);/' "$sources/$1.cu"
    grep -oE '\.entry [A-Za-z0-9_]+' "$ptx/$1.ptx" | awk '{print "EMULATE(" $2 ")"}'
  } > "$made/$1.cpp"
  c++ -std=c++17 -O2 -fno-strict-aliasing -fPIC -shared -fno-gnu-unique -w -I"$made/headers" -I"$sources" -o "$folder/candle/$1.so" "$made/$1.cpp"
}
for kernels in affine binary cast fill indexing reduce sort ternary unary; do run candle "$kernels"; done
finish
