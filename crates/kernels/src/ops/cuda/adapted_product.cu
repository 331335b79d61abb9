// Operands of sums that are longer by the ranks of adapters (adapted_product.rs): eight values a thread, all rows multiples of eight.

// to (rows, whole): x (rows, width) beside u (rows, ranks), and zeros behind them.
template <class T>
__device__ void beside(const T* x, const T* u, T* to, u32 rows, u32 width, u32 ranks, u32 whole) {
    u32 packs = whole / 8;
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (u64)rows * packs) return;
    u32 row = at / packs, column = at % packs * 8;
    Pack<T, 8> values;
    if (column < width) {
        values = load<T, 8>(x, ((u64)row * width + column) / 8);
    } else {
        for (int i = 0; i < 8; i++) {
            u32 of_u = column + i - width;
            values.at[i] = of_u < ranks ? u[(u64)row * ranks + of_u] : narrow<T>(0.0f);
        }
    }
    store(to, at, values);
}

// Columns `width`.. of to (rows, whole), `more` of them: scale b (rows, rank) from the `first` of them on, and zeros in the others.
template <class T>
__device__ void columns(const T* b, float scale, T* to, u32 rows, u32 rank, u32 first, u32 width, u32 more, u32 whole) {
    u32 packs = more / 8, at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= rows * packs) return;
    u32 row = at / packs, column = at % packs * 8;
    Pack<T, 8> values;
    for (int i = 0; i < 8; i++) {
        // What lies before the first wraps around, and is as far away.
        u32 of_b = column + i - first;
        values.at[i] = narrow<T>(of_b < rank ? scale * widen(b[(u64)row * rank + of_b]) : 0.0f);
    }
    store(to, ((u64)row * whole + width + column) / 8, values);
}

// to: `count` values of a, and zeros behind them up to `whole`.
template <class T> __device__ void below(const T* a, T* to, u32 count, u32 whole) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (at >= whole) return;
    Pack<T, 8> values;
    for (int i = 0; i < 8; i++) values.at[i] = at + i < count ? a[at + i] : narrow<T>(0.0f);
    store(to, at / 8, values);
}

#define LONGER(T)                                                                                                      \
    KERNEL longer_beside_##T(const T* x, const T* u, T* to, u32 rows, u32 width, u32 ranks, u32 whole) {               \
        beside<T>(x, u, to, rows, width, ranks, whole);                                                                \
    }                                                                                                                  \
    EMULATE(longer_beside_##T)                                                                                         \
    KERNEL longer_columns_##T(const T* b, float scale, T* to, u32 rows, u32 rank, u32 first, u32 width, u32 more,      \
                              u32 whole) {                                                                             \
        columns<T>(b, scale, to, rows, rank, first, width, more, whole);                                               \
    }                                                                                                                  \
    EMULATE(longer_columns_##T)                                                                                        \
    KERNEL longer_below_##T(const T* a, T* to, u32 count, u32 whole) { below<T>(a, to, count, whole); }                \
    EMULATE(longer_below_##T)

LONGER(bf16)
LONGER(f16)
