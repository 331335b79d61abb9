// Attention on tensor cores where a multiprocessor has 164 KiB of shared memory or more: A100, H100, B200.

#include "attention_tiled.cuh"

// As AMPLE in forms.rs has them.
#define ALL_TILED(T, E)                                                                                                \
    TILED(T, E, 64, (4, 2, 64), (4, 2, 32, 2), (4, 2, 64, 2))                                                          \
    TILED(T, E, 96, (4, 2, 64), (4, 1, 32, 2), (4, 2, 32, 2))                                                          \
    TILED(T, E, 128, (4, 2, 64), (4, 1, 32, 2), (4, 2, 32, 2))                                                         \
    TILED(T, E, 256, (4, 1, 32), (2, 1, 32, 1), (4, 1, 32, 1))

ALL_TILED(bf16, bf16)
ALL_TILED(f16, f16)
