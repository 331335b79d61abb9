#!/bin/sh
# nvcc, except that candle's kernels for GGUF weights and mixtures of experts are compiled without optimisation: they are
# linked into the program, but nothing in it launches them, and optimising them takes 20 minutes. The build finds this file
# through NVCC, which cuda-toolkit.sh sets.
for argument in "$@"; do
  case "$argument" in
    *mmq_*.cu | *mmvq_*.cu | *moe_*.cu | *quantized.cu) exec nvcc "$@" -Xcicc -O0 -Xptxas -O0 ;;
  esac
done
exec nvcc "$@"
