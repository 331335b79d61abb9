// Attention as in attention_tiled.cuh on Hopper, whose tensor cores reach their speed through products of four warps only
// (FlashAttention-3, Shah et al. 2024, https://arxiv.org/abs/2407.08608): BF16 and F16, heads of up to 128.
//
// A block has two groups of four warps, and each of them 64 rows: while one makes weights, the tensor cores work for the other. In the
// backward pass a third group copies the tiles that these meet (stages.cuh), so that nothing holds the two beside each other, and the
// products of a group are started in such an order that its own exponentials run beside some of them.

#include "attention_parts.cuh"
#include "warpgroup.cuh"
#include "stages.cuh"

// Rows of a block, and of a group; threads of the groups that multiply, of the one that copies, and of a block with both.
#define M 128
#define GROUP 64
#define THREADS 256
#define COPYING 128
#define ALL (THREADS + COPYING)
// Registers of a thread of either kind; a block of so many threads begins with 168 for each. Tiles that are on their way or read.
#define MUCH 240
#define LITTLE 24
#define STAGES 4

// By all threads of a block without a group that copies, or by that group, whose first thread is number FIRST.
template <class T, int ROWS, int D, int FIRST = 0>
__device__ inline void copy_panels(T* tile, const T* from, u32 first, u32 head, u32 heads, const Shape& shape) {
    constexpr int COUNT = FIRST == 0 ? THREADS : COPYING;
    copy_tile<T, Panels<ROWS, D>, ROWS, D, COUNT, FIRST>(tile, from, first, head, heads, shape.tokens, shape.d);
}

// Rows, rounded, as left operands: of weights, or of a tensor of which they are read once.
template <int N> struct Left {
    u32 at[N / 16][4];

    template <class T> __device__ inline void round(const Part<1, N>& weights) {
        #pragma unroll
        for (int step = 0; step < N / 16; step++) as_left_operand<T>(at[step], weights, 0, step);
    }

    // Rows first.. of a warp; zeros beyond `tokens` and `d`.
    template <class T> __device__ inline void read(const T* from, u32 first, u32 head, u32 heads, const Shape& shape) {
        u32 lane = threadIdx.x % 32;
        #pragma unroll
        for (int step = 0; step < N / 16; step++)
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 row = first + lane / 4 + i % 2 * 8, column = 16 * step + lane % 4 * 2 + i / 2 * 8;
                bool exists = row < shape.tokens && column < shape.d;
                at[step][i] = exists ? *reinterpret_cast<const u32*>(from + ((u64)row * heads + head) * shape.d + column) : 0;
            }
    }
};

// Starts the products of the group's rows and the transpose of `right` (N rows): the rows of `left` (M rows), or those in registers.
template <class T, int N, int D> __device__ inline void start_scores(Part<1, N>& result, const T* left, const T* right) {
    // From one lane, so that the compiler takes it for the same in all: descriptors are made for a warp then, and not for each thread. Each
    // time anew, since it would hold a register all along, of which the gradient of keys has none.
    u32 row = __shfl_sync(0xffffffff, threadIdx.x / 128, 0) * GROUP;
    #pragma unroll
    for (int step = 0; step < D / 16; step++)
        multiply_transposed(result.at[0], columns_of<T, M>(left, row, step), columns_of<T, N>(right, 0, step), step > 0, T{});
    end_products();
}

template <class T, int N, int D> __device__ inline void start_scores(Part<1, N>& result, const Left<D>& left, const T* right) {
    #pragma unroll
    for (int step = 0; step < D / 16; step++)
        multiply_transposed(result.at[0], left.at[step], columns_of<T, N>(right, 0, step), step > 0, T{});
    end_products();
}

// Starts the products of weights and `right` (N rows), which are added to the result.
template <class T, int N, int D> __device__ inline void start_sum(Part<1, D>& result, const Left<N>& weights, const T* right) {
    #pragma unroll
    for (int step = 0; step < N / 16; step++) multiply_straight(result.at[0], weights.at[step], rows_of<T, N>(right, step), T{});
    end_products();
}

// What has been copied is there for the products of all.
__device__ inline void share_copies() {
    wait_for_copies<0>();
    show_to_products();
    __syncthreads();
}

// ---- forward -------------------------------------------------------------------------------------------------------

// The scores of a tile of N keys are computed while the values of the one before are summed up.
template <class T, int N, int D>
__device__ void attend(const T* q, const T* k, const T* v, T* o, float* lse, const u32* bounds, Shape shape) {
    DYNAMIC_SHARED(memory);
    T* queries = reinterpret_cast<T*>(first_panel(memory));
    T* keys = queries + M * D;
    T* values = keys + 2 * N * D;
    // The last tiles have the most keys: they go first.
    u32 first = (gridDim.x - 1 - blockIdx.x) * M, head = blockIdx.y, key_head = head / (shape.query_heads / shape.key_heads);
    u32 last = min(first + M, shape.tokens) - 1;
    Queries<1> rows(shape, bounds, first + threadIdx.x / 32 * 16, last + 1);
    u32 key = first_seen(shape.window, first, bounds[first]) / N * N, stage = 0;
    copy_panels<T, M, D>(queries, q, first, head, shape.query_heads, shape);
    copy_panels<T, N, D>(keys, k, key, key_head, shape.key_heads, shape);
    end_copies();
    share_copies();
    copy_panels<T, N, D>(values, v, key, key_head, shape.key_heads, shape);
    if (key + N <= last) copy_panels<T, N, D>(keys + N * D, k, key + N, key_head, shape.key_heads, shape);
    end_copies();
    Part<1, D> result = {};
    Part<1, N> scores;
    Left<N> weights;
    Softmax<1> softmax;
    float shrink[1][2];
    begin_products();
    start_scores<T, N, D>(scores, queries, keys);
    wait_for_products<0>();
    arrived(scores.at[0]);
    softmax.template weigh<N>(shape, rows, scores, key, shrink);
    weights.template round<T>(scores);
    for (; key + N <= last; key += N) {
        // Keys of the next tile and values of this one. Behind it nobody reads the keys of this one and the values before it.
        share_copies();
        T* own_values = values + stage * N * D;
        T* own_keys = keys + stage * N * D;
        stage = 1 - stage;
        begin_products();
        start_scores<T, N, D>(scores, queries, keys + stage * N * D);
        start_sum<T, N, D>(result, weights, own_values);
        copy_panels<T, N, D>(values + stage * N * D, v, key + N, key_head, shape.key_heads, shape);
        if (key + 2 * N <= last) copy_panels<T, N, D>(own_keys, k, key + 2 * N, key_head, shape.key_heads, shape);
        end_copies();
        wait_for_products<1>();
        arrived(scores.at[0]);
        softmax.template weigh<N>(shape, rows, scores, key + N, shrink);
        make_before_waiting(softmax.sum[0][0], softmax.sum[0][1]);
        wait_for_products<0>();
        arrived(result.at[0]);
        Softmax<1>::template rescale<D>(result, shrink);
        weights.template round<T>(scores);
    }
    share_copies();
    begin_products();
    start_sum<T, N, D>(result, weights, values + stage * N * D);
    wait_for_products<0>();
    arrived(result.at[0]);
    softmax.template write<T, D>(shape, rows, result, o, lse, head);
}

// ---- backward ------------------------------------------------------------------------------------------------------

// Multiplies gradients of capped scores by d capped / d score, as uncap does, where only the weight is left of a score, and its lse in
// units of log2. Where the weight is 0 the factor may be any.
__device__ inline void uncap_by_weight(float& gradient, float weight, float lse, float inverse) {
    float part = fmaxf((log2f(weight) + lse) * inverse, -1.0f);
    gradient *= 1.0f - part * part;
}

// dq = scale sum of ds k. The scores of a tile, its products d_o v^T and the sum of the tile before are started together: exponentials run
// beside the two that come behind the scores, slopes are made of them beside the sum.
template <class T, int N, int D>
__device__ void query_gradient(const T* q, const T* k, const T* v, const T* d_o, const float* lse, const float* dot, T* dq,
                               const u32* bounds, Shape shape) {
    DYNAMIC_SHARED(memory);
    T* tiles = reinterpret_cast<T*>(first_panel(memory));
    Stages<STAGES> stages{reinterpret_cast<u64*>(tiles + STAGES * 2 * N * D)};
    auto keys = [&](u32 tile) { return tiles + tile % STAGES * 2 * N * D; };
    auto values = [&](u32 tile) { return keys(tile) + N * D; };
    // The last tiles have the most keys: they go first.
    u32 first = (gridDim.x - 1 - blockIdx.x) * M, head = blockIdx.y, key_head = head / (shape.query_heads / shape.key_heads);
    u32 last = min(first + M, shape.tokens) - 1, key = first_seen(shape.window, first, bounds[first]) / N * N, tile = 0;
    if (threadIdx.x == 0) stages.begin(COPYING / 32, THREADS / 32);
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        leave_registers<LITTLE>();
        Copies<STAGES> all{stages, 0};
        for (; key <= last; key += N)
            all.next([&](u32 tile) {
                copy_panels<T, N, D, THREADS>(keys(tile), k, key, key_head, shape.key_heads, shape);
                copy_panels<T, N, D, THREADS>(values(tile), v, key, key_head, shape.key_heads, shape);
            });
        all.end();
        return;
    }
    take_registers<MUCH>();
    Queries<1> rows(shape, bounds, first + threadIdx.x / 32 * 16, last + 1);
    float row_lse[1][2], row_dot[1][2];
    rows.read(row_lse, lse, head, shape.query_heads, LOG2E);
    rows.read(row_dot, dot, head, shape.query_heads, 1.0f);
    Left<D> queries, gradients;
    queries.template read<T>(q, rows.first, head, shape.query_heads, shape);
    gradients.template read<T>(d_o, rows.first, head, shape.query_heads, shape);
    Part<1, D> result = {};
    Part<1, N> scores, products;
    Left<N> slopes;
    auto weigh = [&]() {
        arrived(scores.at[0]);
        float unit = cap_scores(shape, scores);
        weigh_keys(scores, rows, key, unit, row_lse);
        make_before_waiting(scores.at[0]);
    };
    auto slope = [&]() {
        arrived(products.at[0]);
        subtract_dots(products, row_dot);
        if (shape.cap > 0)
            #pragma unroll
            for (int at = 0; at < N / 8; at++)
                for (int i = 0; i < 4; i++)
                    uncap_by_weight(products.at[0][at][i], scores.at[0][at][i], row_lse[0][i / 2], 1.0f / (LOG2E * shape.cap));
        multiply_by(products, scores);
    };
    stages.await_tile(tile);
    begin_products();
    start_scores<T, N, D>(scores, queries, keys(tile));
    start_scores<T, N, D>(products, gradients, values(tile));
    wait_for_products<1>();
    weigh();
    wait_for_products<0>();
    slope();
    slopes.template round<T>(products);
    for (key += N; key <= last; key += N, tile++) {
        stages.await_tile(tile + 1);
        begin_products();
        start_scores<T, N, D>(scores, queries, keys(tile + 1));
        start_scores<T, N, D>(products, gradients, values(tile + 1));
        start_sum<T, N, D>(result, slopes, keys(tile));
        wait_for_products<2>();
        weigh();
        wait_for_products<1>();
        slope();
        make_before_waiting(products.at[0]);
        wait_for_products<0>();
        arrived(result.at[0]);
        stages.release(tile);
        slopes.template round<T>(products);
    }
    begin_products();
    start_sum<T, N, D>(result, slopes, keys(tile));
    wait_for_products<0>();
    arrived(result.at[0]);
    write_rows<T, D>(dq, result.at[0], shape.scale, shape.scale, rows.first, 0, head, shape.query_heads, shape.tokens, shape.d);
}

// dk = scale sum of ds q and dv = sum of p d_o over all queries and all heads of the group, in a fixed order. Rows of the
// products are keys here, columns queries. The scores of a tile and the sum of dk of the tile before are started together, and exponentials
// run beside the latter; then the products v d_o^T and the sum of dv, and slopes are made beside that.
template <class T, int N, int D>
__device__ void key_gradient(const T* q, const T* k, const T* v, const T* d_o, const float* lse, const float* dot, T* dk,
                             T* dv, const u32* bounds, Shape shape) {
    DYNAMIC_SHARED(memory);
    typedef QueryTile<T, Panels<N, D>, N, D, COPYING, THREADS> Tile;
    T* keys = reinterpret_cast<T*>(first_panel(memory));
    T* values = keys + M * D;
    T* tiles = values + M * D;
    u8* numbers = reinterpret_cast<u8*>(tiles + STAGES * 2 * N * D);
    Stages<STAGES> stages{reinterpret_cast<u64*>(numbers + STAGES * Tile::NUMBERS)};
    // The first query of each tile.
    u32* queries = reinterpret_cast<u32*>(stages.barriers + 2 * STAGES);
    auto staged = [&](u32 tile) { return Tile(tiles + tile % STAGES * 2 * N * D, numbers + tile % STAGES * Tile::NUMBERS); };
    u32 first = blockIdx.x * M, key_head = blockIdx.y, last = min(first + M, shape.tokens) - 1, tile = 0;
    QueryWalk at = QueryWalk::over<N>(shape, bounds, first, last, key_head);
    if (threadIdx.x == 0) stages.begin(COPYING / 32, THREADS / 32);
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        leave_registers<LITTLE>();
        Copies<STAGES> all{stages, 0};
        // They come with the first tile.
        copy_panels<T, M, D, THREADS>(keys, k, first, key_head, shape.key_heads, shape);
        copy_panels<T, M, D, THREADS>(values, v, first, key_head, shape.key_heads, shape);
        for (; !at.is_over(); at = at.template next<N>())
            all.next([&](u32 tile) {
                staged(tile).fill(q, d_o, at.query, at.head, shape);
                staged(tile).keep(Tile::read(lse, dot, bounds, at.query, at.head, shape));
                if (threadIdx.x == THREADS) queries[tile] = at.query;
            });
        all.end();
        return;
    }
    take_registers<MUCH>();
    u32 lowest = first + threadIdx.x / 32 * 16, count = (at.end - at.begin + N - 1) / N * (at.behind - at.head);
    Part<1, D> key_result = {}, value_result = {};
    Part<1, N> scores, products;
    Left<N> weights, slopes;
    auto weigh = [&](const Tile& own, u32 tile) {
        arrived(scores.at[0]);
        float unit = cap_scores(shape, scores);
        weigh_queries<N>(scores, own, queries[tile % STAGES], 0, lowest, unit);
        make_before_waiting(scores.at[0]);
    };
    auto add_values = [&](const Tile& own) {
        begin_products();
        start_scores<T, N, D>(products, values, own.gradients);
        start_sum<T, N, D>(value_result, weights, own.gradients);
        wait_for_products<1>();
        arrived(products.at[0]);
        subtract_dots(products, own, 0);
        if (shape.cap > 0)
            #pragma unroll
            for (int at = 0; at < N / 8; at++)
                for (int i = 0; i < 4; i++)
                    uncap_by_weight(products.at[0][at][i], scores.at[0][at][i], own.lse[at * 8 + threadIdx.x % 4 * 2 + i % 2],
                                    1.0f / (LOG2E * shape.cap));
        multiply_by(products, scores);
        make_before_waiting(products.at[0]);
        wait_for_products<0>();
        arrived(value_result.at[0]);
        slopes.template round<T>(products);
    };
    stages.await_tile(tile);
    begin_products();
    start_scores<T, N, D>(scores, keys, staged(tile).queries);
    wait_for_products<0>();
    weigh(staged(tile), tile);
    weights.template round<T>(scores);
    add_values(staged(tile));
    for (; tile + 1 < count; tile++) {
        Tile own = staged(tile + 1);
        stages.await_tile(tile + 1);
        begin_products();
        start_scores<T, N, D>(scores, keys, own.queries);
        start_sum<T, N, D>(key_result, slopes, staged(tile).queries);
        wait_for_products<1>();
        weigh(own, tile + 1);
        wait_for_products<0>();
        arrived(key_result.at[0]);
        stages.release(tile);
        weights.template round<T>(scores);
        add_values(own);
    }
    begin_products();
    start_sum<T, N, D>(key_result, slopes, staged(tile).queries);
    wait_for_products<0>();
    arrived(key_result.at[0]);
    write_rows<T, D>(dk, key_result.at[0], shape.scale, shape.scale, lowest, 0, key_head, shape.key_heads, shape.tokens, shape.d);
    write_rows<T, D>(dv, value_result.at[0], 1.0f, 1.0f, lowest, 0, key_head, shape.key_heads, shape.tokens, shape.d);
}

// ---- instances -----------------------------------------------------------------------------------------------------

// Heads of up to D; rows of the other side that the gradients meet at a time.
#define HOPPER(T, E, D, KEYS, QUERIES)                                                                                 \
    KERNEL __launch_bounds__(THREADS, 1)                                                                               \
        attention_hopper_##E##_##D(const T* q, const T* k, const T* v, T* o, float* lse, const u32* bounds, SHAPE) {   \
        attend<T, 128, D>(q, k, v, o, lse, bounds, SHAPE_VALUE);                                                       \
    }                                                                                                                  \
    EMULATE(attention_hopper_##E##_##D)                                                                                \
    KERNEL __launch_bounds__(ALL, 1)                                                                                   \
        attention_query_hopper_##E##_##D(const T* q, const T* k, const T* v, const T* d_o, const float* lse,           \
                                         const float* dot, T* dq, const u32* bounds, SHAPE) {                          \
        query_gradient<T, KEYS, D>(q, k, v, d_o, lse, dot, dq, bounds, SHAPE_VALUE);                                   \
    }                                                                                                                  \
    EMULATE(attention_query_hopper_##E##_##D)                                                                          \
    KERNEL __launch_bounds__(ALL, 1)                                                                                   \
        attention_key_hopper_##E##_##D(const T* q, const T* k, const T* v, const T* d_o, const float* lse,             \
                                       const float* dot, T* dk, T* dv, const u32* bounds, SHAPE) {                     \
        key_gradient<T, QUERIES, D>(q, k, v, d_o, lse, dot, dk, dv, bounds, SHAPE_VALUE);                              \
    }                                                                                                                  \
    EMULATE(attention_key_hopper_##E##_##D)

HOPPER(bf16, bf16, 64, 64, 64)
HOPPER(bf16, bf16, 128, 64, 64)
HOPPER(f16, f16, 64, 64, 64)
HOPPER(f16, f16, 128, 64, 64)
