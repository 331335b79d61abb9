// What stands before and behind a product of bytes (byte_products.rs): rows of the left operand as codes, and their sums as values.

#include "bytes.cuh"

// codes (gridDim.x, whole), scales (gridDim.x,): a row of x (.., width), `apart` elements behind the last one, for each block; zeros behind
// its values. With N = 4 rows are multiples of four elements.
template <class T, int N> __device__ void round_rows(const T* x, u8* codes, float* scales, u64 apart, u32 width, u32 whole) {
    const T* row = x + blockIdx.x * apart;
    auto four = [&](u32 at, float (&values)[4]) {
        if (N == 4 && at < width) {
            Pack<T, 4> pack = load<T, 4>(row, at / 4);
            for (int i = 0; i < 4; i++) values[i] = widen(pack.at[i]);
        } else {
            for (u32 i = 0; i < 4; i++) values[i] = at + i < width ? widen(row[at + i]) : 0.0f;
        }
    };
    row_as_bytes(four, codes + (u64)blockIdx.x * whole, scales + blockIdx.x, width, whole);
}

// y (rows, columns) = old + factor times each sum times the scales of its row and column; rows of `whole` sums.
template <class T, int N>
__device__ void scale_sums(const int* sums, const float* of_rows, const float* of_columns, float factor, const T* old, u64 old_apart,
                           T* y, u64 apart, u32 rows, u32 columns, u32 whole) {
    u32 packs = columns / N, at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= rows * packs) return;
    u32 row = at / packs, pack = at % packs;
    Pack<int, N> sum = load<int, N>(sums + (u64)row * whole, pack);
    Pack<float, N> scales = load<float, N>(of_columns, pack);
    Pack<T, N> values, before;
    if (old) before = load<T, N>(old + row * old_apart, pack);
    float scale = factor * of_rows[row];
    for (int i = 0; i < N; i++) {
        float value = (float)sum.at[i] * (scale * scales.at[i]);
        values.at[i] = narrow<T>(old ? widen(before.at[i]) + value : value);
    }
    store(y + row * apart, pack, values);
}

#define BYTE_PRODUCTS(T, E, N)                                                                                         \
    KERNEL round_rows_##E##_##N(const T* x, u8* codes, float* scales, u64 apart, u32 width, u32 whole) {               \
        round_rows<T, N>(x, codes, scales, apart, width, whole);                                                       \
    }                                                                                                                  \
    EMULATE(round_rows_##E##_##N)                                                                                      \
    KERNEL scale_sums_##E##_##N(const int* sums, const float* of_rows, const float* of_columns, float factor, const T* old, \
                                u64 old_apart, T* y, u64 apart, u32 rows, u32 columns, u32 whole) {                    \
        scale_sums<T, N>(sums, of_rows, of_columns, factor, old, old_apart, y, apart, rows, columns, whole);           \
    }                                                                                                                  \
    EMULATE(scale_sums_##E##_##N)

#define EACH(T, E, N) BYTE_PRODUCTS(T, E, 4) BYTE_PRODUCTS(T, E, 1)
FOR_EACH_ELEMENT(EACH)
