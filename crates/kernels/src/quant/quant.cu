// Widens quantized weights: NF4 (two codes a byte, the earlier element in the high half), plain or with constants that are
// coded themselves, and int8 with 128 added to each code. Element i of a weight belongs to block i / block. Rows may have a gap behind
// them; then they are multiples of eight elements.
//
// And makes rows of signed bytes of them, one scale each, for products of bytes: of their rows, or of their columns.

#include "bytes.cuh"

__constant__ float nf4_values[16] = {-1.0f,          -0.6961928f,   -0.52507305f,  -0.3949175f,
                                     -0.28444138f,   -0.18477343f,  -0.091050036f, 0.0f,
                                     0.0795803f,     0.1609302f,    0.2461123f,    0.33791524f,
                                     0.44070983f,    0.562617f,     0.72295684f,   1.0f};

// The constant of a block: absmax itself, or map[code] nested + offset.
struct Constants {
    const float* absmax;
    const u8* codes;
    const float* nested;
    const float* map;
    float offset;

    __device__ float of(u64 block) const {
        return absmax ? absmax[block] : map[codes[block]] * nested[block / 256] + offset;
    }
};

// Blocks of consecutive elements, `shift` the power of two that they have, or 32.
struct Blocks {
    u32 size, shift;

    __device__ u64 of(u64 index) const {
        if (shift < 32) return index >> shift;
        return index >> 32 ? index / size : (u32)index / size;
    }
};

// The elements of a weight, by their index in it.
struct Nf4 {
    const u8* packed;
    Constants constants;
    Blocks blocks;

    __device__ float at(u64 index) const {
        u8 both = packed[index / 2];
        return nf4_values[index % 2 ? both & 15 : both >> 4] * constants.of(blocks.of(index));
    }

    // Four neighbours of one block, from a multiple of four on.
    __device__ void four(u64 index, float (&values)[4]) const {
        u32 both = reinterpret_cast<const u16*>(packed)[index / 4];
        float constant = constants.of(blocks.of(index));
        for (int i = 0; i < 4; i++) values[i] = nf4_values[both >> (i / 2 * 8 + (i % 2 ? 0 : 4)) & 15] * constant;
    }
};

struct Int8 {
    const u8* codes;
    const float* absmax;
    Blocks blocks;

    __device__ float of(u32 code, float constant) const { return (float)((int)code - 128) * constant * 7.874016e-3f; }

    __device__ float at(u64 index) const { return of(codes[index], absmax[blocks.of(index)]); }

    __device__ void four(u64 index, float (&values)[4]) const {
        u32 all = reinterpret_cast<const u32*>(codes)[index / 4];
        float constant = absmax[blocks.of(index)];
        for (int i = 0; i < 4; i++) values[i] = of(all >> 8 * i & 255, constant);
    }
};

// Elements by which gaps move those of the thread that begins with element `from`: rows of `columns` elements, `gap` elements apart.
__device__ inline u64 shift(u64 from, u32 columns, u32 gap) {
    if (gap == 0) return 0;
    return (from >> 32 ? from / columns : (u32)from / columns) * (u64)gap;
}

// Eight elements a thread. `first` is the index of the first element in the weight.
template <class T, class W> __device__ void widen_elements(W weight, T* to, u64 count, u64 first, u32 columns, u32 gap) {
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, from = thread * 8;
    if (from >= count) return;
    u64 end = min(from + 8, count);
    to += shift(from, columns, gap);
    for (u64 place = from; place < end; place++) to[place] = narrow<T>(weight.at(first + place));
}

// As above for NF4 whose eight elements lie in one block and begin at a multiple of eight.
template <class T> __device__ void widen_packs(Nf4 weight, T* to, u64 count, u64 first, u32 columns, u32 gap) {
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (thread * 8 >= count) return;
    u64 index = first + thread * 8;
    u32 bytes = reinterpret_cast<const u32*>(weight.packed)[index / 8];
    float constant = weight.constants.of(weight.blocks.of(index));
    Pack<T, 8> result;
    for (int i = 0; i < 4; i++) {
        u32 both = bytes >> (8 * i) & 255;
        result.at[2 * i] = narrow<T>(nf4_values[both >> 4] * constant);
        result.at[2 * i + 1] = narrow<T>(nf4_values[both & 15] * constant);
    }
    store(to + shift(thread * 8, columns, gap), thread, result);
}

// codes (gridDim.x, whole), scales (gridDim.x,): each row of the weight by a block; zeros behind its `columns` and `rows`. Where `even`,
// four neighbours are in one block of the weight, and rows begin at multiples of four.
template <class W>
__device__ void byte_rows(W weight, u8* codes, float* scales, u64 first, u32 rows, u32 columns, u32 whole, u32 even) {
    u32 row = blockIdx.x;
    bool inside = row < rows;
    u64 start = first + (u64)row * columns;
    auto four = [&](u32 at, float (&values)[4]) {
        if (inside && even && at < columns) return weight.four(start + at, values);
        for (u32 i = 0; i < 4; i++) values[i] = inside && at + i < columns ? weight.at(start + at + i) : 0.0f;
    };
    row_as_bytes(four, codes + (u64)row * whole, scales + row, columns, whole);
}

// partial (gridDim.y, width): of each column of the weight, the largest size in each of so many bands of its rows.
template <class W>
__device__ void largest_of_columns(W weight, float* partial, u64 first, u32 rows, u32 columns, u32 width) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= width) return;
    u32 band = (rows + gridDim.y - 1) / gridDim.y, from = blockIdx.y * band, end = min(from + band, rows);
    float largest = 0.0f;
    if (column < columns)
        for (u32 row = from; row < end; row++) largest = fmaxf(largest, size_of(weight.at(first + (u64)row * columns + column)));
    partial[(u64)blockIdx.y * width + column] = largest;
}

// codes (width, whole), scales (width,): the columns of the weight. A block takes 32 of them and 128 rows, by eight warps.
template <class W>
__device__ void byte_columns(W weight, const float* partial, u32 bands, u8* codes, float* scales, u64 first, u32 rows, u32 columns,
                             u32 width, u32 whole) {
    // A line is a bank longer than its codes, so that a warp writes to 32 banks.
    __shared__ u32 tile[32][33];
    __shared__ float factors[32];
    u32 lane = threadIdx.x % 32, group = threadIdx.x / 32, column = blockIdx.x * 32 + lane, top = blockIdx.y * 128;
    if (group == 0) {
        float largest = 0.0f;
        for (u32 band = 0; column < width && band < bands; band++) largest = fmaxf(largest, partial[(u64)band * width + column]);
        factors[lane] = to_codes(largest);
        if (blockIdx.y == 0 && column < width) scales[column] = of_codes(largest);
    }
    __syncthreads();
    for (u32 at = group; at < 128; at += 8) {
        u32 row = top + at;
        float value = row < rows && column < columns ? weight.at(first + (u64)row * columns + column) : 0.0f;
        reinterpret_cast<u8*>(tile[lane])[at] = code_of(value, factors[lane]);
    }
    __syncthreads();
    for (u32 line = group; line < 32; line += 8) {
        u32 to = blockIdx.x * 32 + line, at = top + lane * 4;
        if (to < width && at < whole) reinterpret_cast<u32*>(codes + (u64)to * whole)[at / 4] = tile[line][lane];
    }
}

#define NF4_ARGUMENTS                                                                                                  \
    const u8 *packed, const float *absmax, const u8 *nested_codes, const float *nested, const float *map, float offset, u32 size, \
        u32 power
#define NF4 (Nf4{packed, Constants{absmax, nested_codes, nested, map, offset}, Blocks{size, power}})
#define INT8_ARGUMENTS const u8 *all, const float *absmax, u32 size, u32 power
#define INT8 (Int8{all, absmax, Blocks{size, power}})

#define WIDEN(T, E, N)                                                                                                 \
    KERNEL widen_nf4_##E(NF4_ARGUMENTS, T* to, u64 count, u64 first, u32 columns, u32 gap) {                           \
        widen_elements<T>(NF4, to, count, first, columns, gap);                                                        \
    }                                                                                                                  \
    EMULATE(widen_nf4_##E)                                                                                             \
    KERNEL widen_nf4_packs_##E(NF4_ARGUMENTS, T* to, u64 count, u64 first, u32 columns, u32 gap) {                     \
        widen_packs<T>(NF4, to, count, first, columns, gap);                                                           \
    }                                                                                                                  \
    EMULATE(widen_nf4_packs_##E)                                                                                       \
    KERNEL widen_int8_##E(INT8_ARGUMENTS, T* to, u64 count, u64 first, u32 columns, u32 gap) {                         \
        widen_elements<T>(INT8, to, count, first, columns, gap);                                                       \
    }                                                                                                                  \
    EMULATE(widen_int8_##E)

FOR_EACH_ELEMENT(WIDEN)

#define BYTES(KIND, ARGUMENTS, WEIGHT)                                                                                 \
    KERNEL byte_rows_##KIND(ARGUMENTS, u8* codes, float* scales, u64 first, u32 rows, u32 columns, u32 whole, u32 even) { \
        byte_rows(WEIGHT, codes, scales, first, rows, columns, whole, even);                                           \
    }                                                                                                                  \
    EMULATE(byte_rows_##KIND)                                                                                          \
    KERNEL largest_of_columns_##KIND(ARGUMENTS, float* partial, u64 first, u32 rows, u32 columns, u32 width) {         \
        largest_of_columns(WEIGHT, partial, first, rows, columns, width);                                              \
    }                                                                                                                  \
    EMULATE(largest_of_columns_##KIND)                                                                                 \
    KERNEL byte_columns_##KIND(ARGUMENTS, const float* partial, u32 bands, u8* codes, float* scales, u64 first, u32 rows, \
                               u32 columns, u32 width, u32 whole) {                                                    \
        byte_columns(WEIGHT, partial, bands, codes, scales, first, rows, columns, width, whole);                       \
    }                                                                                                                  \
    EMULATE(byte_columns_##KIND)

BYTES(nf4, NF4_ARGUMENTS, NF4)
BYTES(int8, INT8_ARGUMENTS, INT8)
