// Attention on tensor cores where a multiprocessor has 100 KiB of shared memory: Ada, and Ampere and Blackwell for consumers. Two
// blocks of four warps with 49 KiB each, or one of eight with 99: with tiles for larger ones, it would have four warps.

#include "attention_tiled.cuh"

// As SCARCE in forms.rs has them.
#define ALL_TILED(T, E)                                                                                                \
    TILED(T, E, 64, (4, 2, 64), (4, 2, 16, 2), (4, 2, 32, 2))                                                          \
    TILED(T, E, 96, (4, 2, 48), (8, 1, 32, 2), (8, 1, 32, 2))                                                          \
    TILED(T, E, 128, (4, 1, 48), (8, 1, 16, 2), (8, 1, 32, 2))                                                         \
    TILED(T, E, 256, (8, 1, 32), (4, 1, 16, 1), (4, 1, 32, 1))

ALL_TILED(bf16, bf16)
ALL_TILED(f16, f16)
