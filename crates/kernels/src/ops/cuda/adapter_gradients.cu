// Gradients of an adapter's output side, in one pass over the gradient of a layer's output (adapter_gradients.rs):
//
//   d_xa (T, r) = s dy B          dB (N, r) += s dy^T xa
//
// dy (T, N), B (N, r) and xa (T, r) have 16-bit elements; sums are F32. A block has a band of columns and some tiles of tokens. It keeps its
// part of dB in registers, adds up its part of d_xa over the band for each tile of tokens, and leaves both as parts of the sums, which a second
// launch adds up in one order. Each tile of dy comes once, while the one before is multiplied.

#include "operands.cuh"

#define THREADS 256
// Of a tile of dy.
#define TOKENS 64
#define COLUMNS 128

// A rank of at most R.
template <int R> struct Sizes {
    static constexpr int band = 16384 / R; // so that a thread has 64 sums of dB
    static constexpr int tiles = band / COLUMNS;
    static constexpr int dy_stride = COLUMNS + 8, stride = R + 8; // in shared memory
};

// What a block has in shared memory.
template <class T, int R> struct alignas(16) Shared {
    T dy[2][TOKENS * Sizes<R>::dy_stride];
    T xa[2][TOKENS * Sizes<R>::stride];
    T b[Sizes<R>::band * Sizes<R>::stride];
    float half[TOKENS * R];
};

// A matrix in memory, and where a block begins in it.
template <class T> struct Rows {
    const T* start;
    u32 stride, rows, columns;

    // Copies 8 neighbours in the background; zeros where the matrix has none.
    __device__ inline void copy(T* to, u32 row, u32 column) const {
        bool valid = row < rows && column < columns;
        copy_in_background(to, valid ? start + (u64)row * stride + column : start, valid);
    }
};

template <class T, int R> struct Gradients {
    using S = Sizes<R>;
    Rows<T> dy, xa, b;
    float *parts_of_xa, *parts_of_b;
    u32 first_column, tiles, first_row, last_row; // of its band: columns, tiles with any; tiles of tokens

    // Tile `part` of the band at the tokens of `row`, with their xa where it is the first.
    __device__ inline void fetch(Shared<T, R>& shared, u32 row, u32 part) const {
        T* to = shared.dy[((row - first_row) * tiles + part) % 2];
        #pragma unroll
        for (int i = 0; i < TOKENS * COLUMNS / 8 / THREADS; i++) {
            u32 chunk = i * THREADS + threadIdx.x, token = chunk / (COLUMNS / 8), column = chunk % (COLUMNS / 8) * 8;
            dy.copy(to + token * S::dy_stride + column, row * TOKENS + token, first_column + part * COLUMNS + column);
        }
        u32 token = threadIdx.x / (R / 8), column = threadIdx.x % (R / 8) * 8;
        if (part == 0 && token < TOKENS)
            xa.copy(shared.xa[(row - first_row) % 2] + token * S::stride + column, row * TOKENS + token, column);
        end_copies();
    }

    __device__ inline void fetch_b(Shared<T, R>& shared) const {
        #pragma unroll
        for (int i = 0; i < S::band * R / 8 / THREADS; i++) {
            u32 chunk = i * THREADS + threadIdx.x, row = chunk / (R / 8), column = chunk % (R / 8) * 8;
            b.copy(shared.b + row * S::stride + column, first_column + row, column);
        }
    }

    // sums += dy B over the warp's half of a tile's columns, for its 16 tokens.
    __device__ inline void add_xa(float (&sums)[R / 8][4], const T* tile, const T* b) const {
        u32 warp = threadIdx.x / 32, row = warp % 4 * 16, column = warp / 4 * (COLUMNS / 2);
        #pragma unroll 2
        for (int step = 0; step < COLUMNS / 2 / 16; step++) {
            u32 left[4], right[4];
            left_operand<S::dy_stride>(left, tile, row, column + 16 * step);
            #pragma unroll
            for (int n = 0; n < R / 16; n++) {
                right_straight<S::stride>(right, b, column + 16 * step, 16 * n);
                multiply_pair<T>(sums[2 * n], sums[2 * n + 1], left, right);
            }
        }
    }

    // sums += dy^T xa for the warp's 16 columns of a tile.
    __device__ inline void add_b(float (&sums)[R / 8][4], const T* tile, const T* xa) const {
        u32 column = threadIdx.x / 32 * 16;
        #pragma unroll 2
        for (int step = 0; step < TOKENS / 16; step++) {
            u32 left[4], right[4];
            left_transposed<S::dy_stride>(left, tile, 16 * step, column);
            #pragma unroll
            for (int n = 0; n < R / 16; n++) {
                right_straight<S::stride>(right, xa, 16 * step, 16 * n);
                multiply_pair<T>(sums[2 * n], sums[2 * n + 1], left, right);
            }
        }
    }

    // Calls `of(row, column, pair of neighbours)` for the sums of 16 rows in this thread, as far as there are so many rows and columns.
    template <class F> __device__ inline void each_pair(float (&sums)[R / 8][4], u32 row, u32 rows, F of) const {
        u32 lane = threadIdx.x % 32;
        #pragma unroll
        for (int n = 0; n < R / 8; n++) {
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 at = row + lane / 4 + 8 * half;
                if (at < rows && 8 * n < b.columns) of(at, 8 * n + lane % 4 * 2, Pack<float, 2>{sums[n][2 * half], sums[n][2 * half + 1]});
            }
        }
    }

    // The two halves of a tile's columns make this block's part of d_xa.
    __device__ inline void put_xa(Shared<T, R>& shared, float (&sums)[R / 8][4], u32 row) const {
        u32 warp = threadIdx.x / 32, first = warp % 4 * 16;
        if (warp >= 4) each_pair(sums, first, TOKENS, [&](u32 at, u32 column, Pack<float, 2> two) { store<float, 2>(shared.half, (at * R + column) / 2, two); });
        __syncthreads();
        if (warp < 4) {
            float* part = parts_of_xa + (u64)blockIdx.x * dy.rows * b.columns;
            each_pair(sums, first, min((u32)TOKENS, dy.rows - row * TOKENS), [&](u32 at, u32 column, Pack<float, 2> two) {
                Pack<float, 2> other = load<float, 2>(shared.half, (at * R + column) / 2);
                store<float, 2>(part, ((u64)(row * TOKENS + at) * b.columns + column) / 2, {two.at[0] + other.at[0], two.at[1] + other.at[1]});
            });
        }
    }

    __device__ inline void run(Shared<T, R>& shared) const {
        float of_b[S::tiles][R / 8][4] = {};
        fetch_b(shared);
        fetch(shared, first_row, 0);
        for (u32 row = first_row; row < last_row; row++) {
            float of_xa[R / 8][4] = {};
            #pragma unroll
            for (int part = 0; part < S::tiles; part++) {
                // The band's last tiles may lie behind the last column.
                if (part < tiles) {
                    wait_for_copies<0>();
                    __syncthreads();
                    bool ends = part + 1 == tiles;
                    if (!ends) fetch(shared, row, part + 1);
                    else if (row + 1 < last_row) fetch(shared, row + 1, 0);
                    const T* tile = shared.dy[((row - first_row) * tiles + part) % 2];
                    add_xa(of_xa, tile, shared.b + part * COLUMNS * S::stride);
                    add_b(of_b[part], tile, shared.xa[(row - first_row) % 2]);
                }
            }
            put_xa(shared, of_xa, row);
        }
        float* sums = parts_of_b + (u64)blockIdx.y * dy.columns * b.columns;
        #pragma unroll
        for (int part = 0; part < S::tiles; part++) {
            u32 column = first_column + part * COLUMNS + threadIdx.x / 32 * 16;
            each_pair(of_b[part], column, dy.columns, [&](u32 at, u32 of_rank, Pack<float, 2> two) {
                store<float, 2>(sums, ((u64)at * b.columns + of_rank) / 2, two);
            });
        }
    }
};

#define ADAPTER_GRADIENTS(T, name, R)                                                                                  \
    KERNEL __launch_bounds__(THREADS, 2)                                                                               \
        adapter_gradients_##name##_##R(const T* dy, const T* xa, const T* b, float* parts_of_xa, float* parts_of_b, u32 tokens, u32 columns, \
                                       u32 rank, u32 dy_stride, u32 xa_stride, u32 rows_of_tiles) {                    \
        DYNAMIC_SHARED(shared);                                                                                        \
        u32 first = blockIdx.x * Sizes<R>::band, tiles = min((columns - first + COLUMNS - 1) / COLUMNS, (u32)Sizes<R>::tiles); \
        u32 row = blockIdx.y * rows_of_tiles, last = min(row + rows_of_tiles, (tokens + TOKENS - 1) / TOKENS);         \
        Gradients<T, R> gradients = {{dy, dy_stride, tokens, columns}, {xa, xa_stride, tokens, rank}, {b, rank, columns, rank}, \
                                     parts_of_xa, parts_of_b, first, tiles, row, last};                                \
        gradients.run(*reinterpret_cast<Shared<T, R>*>(shared));                                                       \
    }                                                                                                                  \
    EMULATE(adapter_gradients_##name##_##R)

ADAPTER_GRADIENTS(bf16, bf16, 16)
ADAPTER_GRADIENTS(bf16, bf16, 32)
ADAPTER_GRADIENTS(f16, f16, 16)
ADAPTER_GRADIENTS(f16, f16, 32)

// Four neighbours of the sum over `count` parts, `apart` packs from each other.
__device__ inline Pack<float, 4> sum_of_parts(const float* parts, u64 pack, u32 count, u64 apart) {
    Pack<float, 4> sum = {};
    for (u32 part = 0; part < count; part++) {
        Pack<float, 4> next = load<float, 4>(parts, part * apart + pack);
        #pragma unroll
        for (int i = 0; i < 4; i++) sum.at[i] += next.at[i];
    }
    return sum;
}

// A thread has four neighbours of d_xa, or of dB behind them.
#define ADAPTER_SUMS(T, name)                                                                                          \
    KERNEL adapter_sums_##name(const float* parts_of_xa, const float* parts_of_b, T* d_xa, float* d_b, float scale, u32 tokens, u32 columns, \
                               u32 rank, u32 stride, u32 bands, u32 splits) {                                          \
        u64 pack = (u64)blockIdx.x * blockDim.x + threadIdx.x, of_xa = (u64)tokens * rank / 4, of_b = (u64)columns * rank / 4; \
        if (pack < of_xa) {                                                                                            \
            Pack<float, 4> sum = sum_of_parts(parts_of_xa, pack, bands, of_xa);                                        \
            Pack<T, 4> narrowed;                                                                                       \
            for (int i = 0; i < 4; i++) narrowed.at[i] = narrow<T>(scale * sum.at[i]);                                 \
            store<T, 4>(d_xa, ((pack * 4 / rank) * stride + pack * 4 % rank) / 4, narrowed);                           \
        } else if ((pack -= of_xa) < of_b) {                                                                           \
            Pack<float, 4> sum = sum_of_parts(parts_of_b, pack, splits, of_b), old = load<float, 4>(d_b, pack);        \
            for (int i = 0; i < 4; i++) old.at[i] += scale * sum.at[i];                                                \
            store<float, 4>(d_b, pack, old);                                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    EMULATE(adapter_sums_##name)

ADAPTER_SUMS(bf16, bf16)
ADAPTER_SUMS(f16, f16)
