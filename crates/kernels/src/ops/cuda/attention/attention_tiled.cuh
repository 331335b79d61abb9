// Causal attention within documents (FlashAttention-2, Dao 2023, https://arxiv.org/abs/2307.08691), BF16 and F16 on tensor
// cores.
//
// A warp has one or two tiles of 16 rows: with two, each operand that it loads for both is loaded once. Rows lie in shared
// memory with 16 bytes between them, so that the eight rows that a tile load takes at once fall into different banks.
//
// The files that include this one have the tiles for GPUs with much and with little shared memory.

#include "attention_parts.cuh"
#include "operands.cuh"

// ---- tiles ---------------------------------------------------------------------------------------------------------

// Elements from one row of a tile to the next.
template <int D> constexpr int STRIDE = D + 8;

// Where the elements of a tile of ROWS rows lie.
template <int ROWS, int D> struct Padded {
    static constexpr u32 SIZE = ROWS * STRIDE<D>;

    static __device__ inline u32 of(u32 row, u32 column) { return row * STRIDE<D> + column; }

    // Copies in one go: for more of them the forward pass for heads of 128 has no registers.
    static constexpr int UNROLLED = 1;
    // Whether of(row + down, column + across) is of(row, column) + of(down, across) for multiples of these.
    template <int DOWN, int ACROSS> static constexpr bool IS_LINEAR = true;
};

template <class T, int W, int ROWS, int D>
__device__ inline void copy_rows(T* tile, const T* from, u32 first, u32 head, u32 heads, const Shape& shape) {
    copy_tile<T, Padded<ROWS, D>, ROWS, D, 32 * W>(tile, from, first, head, heads, shape.tokens, shape.d);
}

// The rows of a warp, `row` on, of `left` times the transpose of `right` (N rows).
template <class T, int R, int N, int D>
__device__ inline void scores_of(Part<R, N>& result, const T* left, u32 row, const T* right) {
    result = {};
    #pragma unroll
    for (int step = 0; step < D / 16; step++) {
        u32 a[R][4];
        #pragma unroll
        for (int r = 0; r < R; r++) left_operand<STRIDE<D>>(a[r], left, row + 16 * r, 16 * step);
        #pragma unroll
        for (int pair = 0; pair < N / 16; pair++) {
            u32 b[4];
            right_transposed<STRIDE<D>>(b, right, 16 * pair, 16 * step);
            #pragma unroll
            for (int r = 0; r < R; r++) multiply_pair<T>(result.at[r][2 * pair], result.at[r][2 * pair + 1], a[r], b);
        }
    }
}

// result += the left operands `a` times 16 rows of `right`, of its columns those from `column` on.
template <class T, int R, int C, int D>
__device__ inline void add_step(Part<R, C>& result, const u32 (&a)[R][4], const T* right, u32 step, u32 column) {
    #pragma unroll
    for (int columns = 0; columns < C / 16; columns++) {
        u32 b[4];
        right_straight<STRIDE<D>>(b, right, 16 * step, column + columns * 16);
        #pragma unroll
        for (int r = 0; r < R; r++) multiply_pair<T>(result.at[r][2 * columns], result.at[r][2 * columns + 1], a[r], b);
    }
}

// result += weights times `right` (N rows).
template <class T, int R, int N, int D>
__device__ inline void add_weighted(Part<R, D>& result, const Part<R, N>& weights, const T* right) {
    #pragma unroll
    for (int step = 0; step < N / 16; step++) {
        u32 a[R][4];
        #pragma unroll
        for (int r = 0; r < R; r++) as_left_operand<T>(a[r], weights, r, step);
        add_step<T, R, D, D>(result, a, right, step, 0);
    }
}

// result += the warp's rows of `weights`, `row` on, times the columns of `right` (N rows) from `column` on.
template <class T, int R, int N, int C, int D>
__device__ inline void add_product(Part<R, C>& result, const T* weights, u32 row, const T* right, u32 column) {
    #pragma unroll
    for (int step = 0; step < N / 16; step++) {
        u32 a[R][4];
        #pragma unroll
        for (int r = 0; r < R; r++) left_operand<STRIDE<N>>(a[r], weights, row + 16 * r, 16 * step);
        add_step<T, R, C, D>(result, a, right, step, column);
    }
}

// Puts what a warp has of a product into a tile of N columns.
template <class T, int R, int C, int N>
__device__ inline void keep_part(T* tile, const Part<R, C>& values, u32 row, u32 column) {
    u32 lane = threadIdx.x % 32;
    #pragma unroll
    for (int r = 0; r < R; r++)
        #pragma unroll
        for (int at = 0; at < C / 8; at++)
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                T* place = tile + (row + 16 * r + lane / 4 + 8 * half) * STRIDE<N> + column + at * 8 + lane % 4 * 2;
                *reinterpret_cast<u32*>(place) = pair<T>(values.at[r][at][2 * half], values.at[r][at][2 * half + 1]);
            }
}

// ---- forward -------------------------------------------------------------------------------------------------------

template <class T, int W, int R, int N, int D>
__device__ void attend(const T* q, const T* k, const T* v, T* o, float* lse, const u32* bounds, Shape shape) {
    DYNAMIC_SHARED(memory);
    const int M = W * R * 16;
    T* queries = reinterpret_cast<T*>(memory);
    T* keys = queries + M * STRIDE<D>;
    T* values = keys + N * STRIDE<D>;
    // The last tiles have the most keys: they go first.
    u32 first = (gridDim.x - 1 - blockIdx.x) * M, head = blockIdx.y, key_head = head / (shape.query_heads / shape.key_heads);
    u32 last = min(first + M, shape.tokens) - 1, warp_row = threadIdx.x / 32 * 16 * R;
    Queries<R> rows(shape, bounds, first + warp_row, last + 1);
    u32 begin = first_seen(shape.window, first, bounds[first]) / N * N;
    copy_rows<T, W, M, D>(queries, q, first, head, shape.query_heads, shape);
    copy_rows<T, W, N, D>(keys, k, begin, key_head, shape.key_heads, shape);
    end_copies();
    Part<R, D> result = {};
    Softmax<R> softmax;
    for (u32 key = begin; key <= last; key += N) {
        wait_for_copies<0>();
        __syncthreads();
        copy_rows<T, W, N, D>(values, v, key, key_head, shape.key_heads, shape);
        end_copies();
        bool seen = rows.template see_any<N>(key);
        Part<R, N> scores;
        if (seen) {
            float shrink[R][2];
            scores_of<T, R, N, D>(scores, queries, warp_row, keys);
            softmax.template weigh<N>(shape, rows, scores, key, shrink);
            Softmax<R>::template rescale<D>(result, shrink);
        }
        wait_for_copies<0>();
        __syncthreads();
        if (key + N <= last) copy_rows<T, W, N, D>(keys, k, key + N, key_head, shape.key_heads, shape);
        end_copies();
        if (seen) add_weighted<T, R, N, D>(result, scores, values);
    }
    wait_for_copies<0>();
    softmax.template write<T, D>(shape, rows, result, o, lse, head);
}

// ---- backward ------------------------------------------------------------------------------------------------------

// dq = scale sum of ds k. S tiles of keys and values lie in shared memory: with two, one comes while the other is used.
template <class T, int W, int R, int N, int D, int S>
__device__ void query_gradient(const T* q, const T* k, const T* v, const T* d_o, const float* lse, const float* dot, T* dq,
                               const u32* bounds, Shape shape) {
    DYNAMIC_SHARED(memory);
    const int M = W * R * 16, TILE = N * STRIDE<D>;
    T* queries = reinterpret_cast<T*>(memory);
    T* gradients = queries + M * STRIDE<D>;
    T* keys = gradients + M * STRIDE<D>;
    T* values = keys + S * TILE;
    u32 first = (gridDim.x - 1 - blockIdx.x) * M, head = blockIdx.y, key_head = head / (shape.query_heads / shape.key_heads);
    u32 last = min(first + M, shape.tokens) - 1, warp_row = threadIdx.x / 32 * 16 * R;
    Queries<R> rows(shape, bounds, first + warp_row, last + 1);
    float row_lse[R][2], row_dot[R][2];
    rows.read(row_lse, lse, head, shape.query_heads, LOG2E);
    rows.read(row_dot, dot, head, shape.query_heads, 1.0f);
    u32 begin = first_seen(shape.window, first, bounds[first]) / N * N, stage = 0;
    copy_rows<T, W, M, D>(queries, q, first, head, shape.query_heads, shape);
    copy_rows<T, W, M, D>(gradients, d_o, first, head, shape.query_heads, shape);
    copy_rows<T, W, N, D>(keys, k, begin, key_head, shape.key_heads, shape);
    copy_rows<T, W, N, D>(values, v, begin, key_head, shape.key_heads, shape);
    end_copies();
    Part<R, D> result = {};
    for (u32 key = begin; key <= last; key += N) {
        wait_for_copies<0>();
        // Behind it nobody reads the other tile any more.
        __syncthreads();
        const T* own_keys = keys + stage * TILE;
        const T* own_values = values + stage * TILE;
        stage = S - 1 - stage;
        bool more = key + N <= last;
        if (S == 2 && more) {
            copy_rows<T, W, N, D>(keys + stage * TILE, k, key + N, key_head, shape.key_heads, shape);
            copy_rows<T, W, N, D>(values + stage * TILE, v, key + N, key_head, shape.key_heads, shape);
        }
        end_copies();
        if (rows.template see_any<N>(key)) {
            Part<R, N> scores, products;
            scores_of<T, R, N, D>(scores, queries, warp_row, own_keys);
            scores_of<T, R, N, D>(products, gradients, warp_row, own_values);
            slopes_of_queries(shape, rows, products, scores, key, row_lse, row_dot);
            add_weighted<T, R, N, D>(result, products, own_keys);
        }
        if (S == 1 && more) {
            __syncthreads();
            copy_rows<T, W, N, D>(keys, k, key + N, key_head, shape.key_heads, shape);
            copy_rows<T, W, N, D>(values, v, key + N, key_head, shape.key_heads, shape);
            end_copies();
        }
    }
    wait_for_copies<0>();
    #pragma unroll
    for (int r = 0; r < R; r++)
        write_rows<T, D>(dq, result.at[r], shape.scale, shape.scale, rows.first + 16 * r, 0, head, shape.query_heads,
                         shape.tokens, shape.d);
}

// dk = scale sum of ds q and dv = sum of p d_o over all queries and all heads of the group: one tile of keys a block, so
// that every sum is made in a fixed order. Rows of the products are keys here, columns queries.
//
// Two warps have the same rows: each makes the weights of half of the queries, and of both results half of the columns. The
// weights meet in shared memory.
template <class T, int W, int R, int N, int D, int S>
__device__ void key_gradient(const T* q, const T* k, const T* v, const T* d_o, const float* lse, const float* dot, T* dk,
                             T* dv, const u32* bounds, Shape shape) {
    DYNAMIC_SHARED(memory);
    typedef QueryTile<T, Padded<N, D>, N, D, 32 * W> Tile;
    const int M = W / 2 * R * 16, H = N / 2, C = D / 2;
    const u32 BYTES = 2 * Padded<N, D>::SIZE * sizeof(T) + Tile::NUMBERS;
    T* keys = reinterpret_cast<T*>(memory);
    T* values = keys + M * STRIDE<D>;
    T* weights = values + M * STRIDE<D>;
    T* slopes = weights + M * STRIDE<N>;
    u8* tiles = reinterpret_cast<u8*>(slopes + M * STRIDE<N>);
    auto staged = [&](u32 stage) {
        u8* begin = tiles + stage * BYTES;
        return Tile(reinterpret_cast<T*>(begin), begin + BYTES - Tile::NUMBERS);
    };
    u32 first = blockIdx.x * M, key_head = blockIdx.y, stage = 0;
    u32 last = min(first + M, shape.tokens) - 1;
    u32 warp_row = threadIdx.x / 64 * 16 * R, side = threadIdx.x / 32 % 2, lowest = first + warp_row;
    copy_rows<T, W, M, D>(keys, k, first, key_head, shape.key_heads, shape);
    copy_rows<T, W, M, D>(values, v, first, key_head, shape.key_heads, shape);
    Part<R, C> key_result = {}, value_result = {};
    QueryWalk at = QueryWalk::over<N>(shape, bounds, first, last, key_head);
    staged(0).fill(q, d_o, at.query, at.head, shape);
    staged(0).keep(Tile::read(lse, dot, bounds, at.query, at.head, shape));
    while (!at.is_over()) {
        QueryWalk next = at.template next<N>();
        wait_for_copies<0>();
        // Behind it nobody reads the other tile, nor the weights, any more.
        __syncthreads();
        Tile tile = staged(stage);
        stage = S - 1 - stage;
        QueryNumbers numbers = {};
        if (S == 2 && !next.is_over()) {
            staged(stage).fill(q, d_o, next.query, next.head, shape);
            numbers = Tile::read(lse, dot, bounds, next.query, next.head, shape);
        }
        bool seen = at.query + N > lowest;
        if (seen) {
            Part<R, H> scores, products;
            scores_of<T, R, H, D>(scores, keys, warp_row, tile.queries + side * H * STRIDE<D>);
            scores_of<T, R, H, D>(products, values, warp_row, tile.gradients + side * H * STRIDE<D>);
            slopes_of_keys<N>(shape, products, scores, tile, at.query, side * H, lowest);
            keep_part<T, R, H, N>(weights, scores, warp_row, side * H);
            keep_part<T, R, H, N>(slopes, products, warp_row, side * H);
        }
        if (S == 2) staged(stage).keep(numbers);
        __syncthreads();
        if (seen) {
            add_product<T, R, N, C, D>(value_result, weights, warp_row, tile.gradients, side * C);
            add_product<T, R, N, C, D>(key_result, slopes, warp_row, tile.queries, side * C);
        }
        at = next;
        if (S == 1 && !at.is_over()) {
            __syncthreads();
            tile.fill(q, d_o, at.query, at.head, shape);
            tile.keep(Tile::read(lse, dot, bounds, at.query, at.head, shape));
        }
    }
    #pragma unroll
    for (int r = 0; r < R; r++) {
        u32 row = lowest + 16 * r;
        write_rows<T, C>(dk, key_result.at[r], shape.scale, shape.scale, row, side * C, key_head, shape.key_heads,
                         shape.tokens, shape.d);
        write_rows<T, C>(dv, value_result.at[r], 1.0f, 1.0f, row, side * C, key_head, shape.key_heads, shape.tokens,
                         shape.d);
    }
}

// ---- instances -----------------------------------------------------------------------------------------------------

// Forward, gradient of queries, gradient of keys: each as (warps, tiles of 16 rows a warp, rows of the other side[, tiles of them]).
#define TILED(T, E, D, FORWARD, QUERY, KEY)                                                                            \
    KERNEL __launch_bounds__(WARPS FORWARD * 32, BLOCKS FORWARD)                                                                       \
        attention_##E##_##D(const T* q, const T* k, const T* v, T* o, float* lse, const u32* bounds, SHAPE) {          \
        attend<T, THREE FORWARD, D>(q, k, v, o, lse, bounds, SHAPE_VALUE);                                             \
    }                                                                                                                  \
    EMULATE(attention_##E##_##D)                                                                                       \
    KERNEL __launch_bounds__(WARPS QUERY * 32, BLOCKS QUERY) attention_query_##E##_##D(const T* q, const T* k, const T* v, const T* d_o, \
                                                               const float* lse, const float* dot, T* dq,              \
                                                               const u32* bounds, SHAPE) {                             \
        query_gradient<T, THREE QUERY, D, STAGES QUERY>(q, k, v, d_o, lse, dot, dq, bounds, SHAPE_VALUE);              \
    }                                                                                                                  \
    EMULATE(attention_query_##E##_##D)                                                                                 \
    KERNEL __launch_bounds__(WARPS KEY * 32, BLOCKS KEY) attention_key_##E##_##D(const T* q, const T* k, const T* v, const T* d_o, \
                                                             const float* lse, const float* dot, T* dk, T* dv,         \
                                                             const u32* bounds, SHAPE) {                               \
        key_gradient<T, THREE KEY, D, STAGES KEY>(q, k, v, d_o, lse, dot, dk, dv, bounds, SHAPE_VALUE);                \
    }                                                                                                                  \
    EMULATE(attention_key_##E##_##D)

#define WARPS(W, ...) W
// A multiprocessor has registers for eight warps of 255.
#define BLOCKS(W, ...) (8 / W)
#define THREE(W, R, N, ...) W, R, N
#define STAGES(W, R, N, S) S
