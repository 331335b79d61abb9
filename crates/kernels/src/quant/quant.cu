// Widens quantized weights: NF4 (two codes a byte, the earlier element in the high half), plain or with constants that are
// coded themselves, and int8 with 128 added to each code. Element i of a weight belongs to block i / block. Rows may have a gap behind
// them; then they are multiples of eight elements.

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

// Elements by which gaps move those of the thread that begins with element `from`: rows of `columns` elements, `gap` elements apart.
__device__ inline u64 shift(u64 from, u32 columns, u32 gap) {
    if (gap == 0) return 0;
    return (from >> 32 ? from / columns : (u32)from / columns) * (u64)gap;
}

// Eight elements a thread. `first` is the index of the first element in the weight, `block` the elements of a block.
template <class T>
__device__ void widen_nf4(const u8* packed, Constants constants, T* to, u64 count, u64 first, u32 block, u32 columns, u32 gap) {
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, from = thread * 8;
    if (from >= count) return;
    u64 end = min(from + 8, count);
    to += shift(from, columns, gap);
    for (u64 place = from; place < end; place++) {
        u64 index = first + place;
        u8 both = packed[index / 2];
        to[place] = narrow<T>(nf4_values[index % 2 ? both & 15 : both >> 4] * constants.of(index / block));
    }
}

// As above where eight elements lie in one block and begin at a multiple of eight.
template <class T>
__device__ void widen_nf4_packs(const u8* packed, Constants constants, T* to, u64 count, u64 first, u32 block, u32 columns, u32 gap) {
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (thread * 8 >= count) return;
    u64 index = first + thread * 8;
    u32 bytes = reinterpret_cast<const u32*>(packed)[index / 8];
    float constant = constants.of(index / block);
    Pack<T, 8> result;
    for (int i = 0; i < 4; i++) {
        u32 both = bytes >> (8 * i) & 255;
        result.at[2 * i] = narrow<T>(nf4_values[both >> 4] * constant);
        result.at[2 * i + 1] = narrow<T>(nf4_values[both & 15] * constant);
    }
    store(to + shift(thread * 8, columns, gap), thread, result);
}

template <class T>
__device__ void widen_int8(const u8* codes, const float* absmax, T* to, u64 count, u64 first, u32 block, u32 columns, u32 gap) {
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, from = thread * 8;
    if (from >= count) return;
    u64 end = min(from + 8, count);
    to += shift(from, columns, gap);
    for (u64 place = from; place < end; place++) {
        u64 index = first + place;
        to[place] = narrow<T>((float)((int)codes[index] - 128) * absmax[index / block] * 7.874016e-3f);
    }
}

#define QUANT(T, E, N)                                                                                                 \
    KERNEL widen_nf4_##E(const u8* packed, const float* absmax, const u8* codes, const float* nested, const float* map, \
                         float offset, T* to, u64 count, u64 first, u32 block, u32 columns, u32 gap) {                 \
        widen_nf4<T>(packed, Constants{absmax, codes, nested, map, offset}, to, count, first, block, columns, gap);    \
    }                                                                                                                  \
    EMULATE(widen_nf4_##E)                                                                                             \
    KERNEL widen_nf4_packs_##E(const u8* packed, const float* absmax, const u8* codes, const float* nested,            \
                               const float* map, float offset, T* to, u64 count, u64 first, u32 block, u32 columns,    \
                               u32 gap) {                                                                              \
        widen_nf4_packs<T>(packed, Constants{absmax, codes, nested, map, offset}, to, count, first, block, columns,    \
                           gap);                                                                                       \
    }                                                                                                                  \
    EMULATE(widen_nf4_packs_##E)                                                                                       \
    KERNEL widen_int8_##E(const u8* codes, const float* absmax, T* to, u64 count, u64 first, u32 block, u32 columns,   \
                          u32 gap) {                                                                                   \
        widen_int8<T>(codes, absmax, to, count, first, block, columns, gap);                                           \
    }                                                                                                                  \
    EMULATE(widen_int8_##E)

FOR_EACH_ELEMENT(QUANT)
