// Attention as in attention_tiled.cuh on Hopper, whose tensor cores reach their speed through products of four warps only
// (FlashAttention-3, Shah et al. 2024, https://arxiv.org/abs/2407.08608): BF16 and F16, heads of up to 128.
//
// A block has three groups of four warps. Two have 64 rows each, multiply and make weights; the third copies the tiles that these meet
// (stages.cuh). A group's products are started in such an order that its exponentials run beside some of them.

#include "attention_parts.cuh"
#include "warpgroup.cuh"
#include "stages.cuh"

// Rows of a block, and of a group; threads of the groups that multiply, of the one that copies, and of a block.
#define M 128
#define GROUP 64
#define MULTIPLYING 256
#define COPYING 128
#define THREADS (MULTIPLYING + COPYING)
// Registers of a thread of either kind. A block of so many threads begins with 168 for each.
#define MUCH 240
#define LITTLE 24

template <class T, int ROWS, int D>
__device__ inline void copy_panels(T* tile, const T* from, u32 first, u32 head, u32 heads, const Shape& shape) {
    copy_tile<T, Panels<ROWS, D>, ROWS, D, COPYING>(tile, from, first, head, heads, shape.tokens, shape.d);
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

// Starts the products of a group's rows and the transpose of `right` (N rows): the rows lie from `row` on in `left` (M rows), or in
// registers.
template <class T, int N, int D> __device__ inline void start_scores(Part<1, N>& result, const T* left, u32 row, const T* right) {
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

// Whether the thread is one of those that copy; the others know their group.
__device__ inline bool copies() { return threadIdx.x >= MULTIPLYING; }

// ---- forward -------------------------------------------------------------------------------------------------------

// The scores of a tile of N keys are computed while the values of the one before are summed up, and the groups take turns: while one
// makes weights, the tensor cores work for the other. Tiles come as keys, keys, values, keys, values ..., values.
template <class T, int N, int D>
__device__ void attend(const T* q, const T* k, const T* v, T* o, float* lse, const u32* bounds, Shape shape) {
    DYNAMIC_SHARED(memory);
    T* tiles = reinterpret_cast<T*>(first_panel(memory));
    Stages<4> stages{reinterpret_cast<u64*>(tiles + 4 * N * D)};
    auto staged = [&](u32 tile) { return tiles + tile % 4 * N * D; };
    // The last tiles have the most keys: they go first.
    u32 first = (gridDim.x - 1 - blockIdx.x) * M, head = blockIdx.y, key_head = head / (shape.query_heads / shape.key_heads);
    u32 last = min(first + M, shape.tokens) - 1, key = first_seen(shape.window, first, bounds[first]) / N * N;
    if (threadIdx.x == 0) stages.begin(COPYING / 32, MULTIPLYING / 32);
    __syncthreads();
    if (copies()) {
        leave_registers<LITTLE>();
        Copies<4> all{stages, 0};
        auto copy = [&](const T* from, u32 row) {
            all.next([&](u32 tile) { copy_panels<T, N, D>(staged(tile), from, row, key_head, shape.key_heads, shape); });
        };
        copy(k, key);
        for (; key + N <= last; key += N) copy(k, key + N), copy(v, key);
        copy(v, key);
        all.end();
        return;
    }
    take_registers<MUCH>();
    u32 group = threadIdx.x / 128, tile = 0;
    Queries<1> rows(shape, bounds, first + threadIdx.x / 32 * 16, last + 1);
    Left<D> queries;
    queries.template read<T>(q, rows.first, head, shape.query_heads, shape);
    Part<1, D> result = {};
    Part<1, N> scores;
    Left<N> weights;
    Softmax<1> softmax;
    float shrink[1][2];
    stages.await_tile(tile);
    begin_products();
    start_scores<T, N, D>(scores, queries, staged(tile));
    wait_for_products<0>();
    arrived(scores.at[0]);
    stages.release(tile++);
    softmax.template weigh<N>(shape, rows, scores, key, shrink);
    weights.template round<T>(scores);
    if (group == 1 && key + N <= last) give_turn(0);
    for (; key + N <= last; key += N, tile += 2) {
        stages.await_tile(tile);
        stages.await_tile(tile + 1);
        await_turn(group);
        begin_products();
        start_scores<T, N, D>(scores, queries, staged(tile));
        start_sum<T, N, D>(result, weights, staged(tile + 1));
        // The first group's last turn is given by nobody else, and the last one's last turn is nobody's.
        if (group == 0 || key + 2 * N <= last) give_turn(1 - group);
        wait_for_products<1>();
        arrived(scores.at[0]);
        stages.release(tile);
        softmax.template weigh<N>(shape, rows, scores, key + N, shrink);
        make_before_waiting(softmax.sum[0][0], softmax.sum[0][1]);
        wait_for_products<0>();
        arrived(result.at[0]);
        stages.release(tile + 1);
        Softmax<1>::template rescale<D>(result, shrink);
        weights.template round<T>(scores);
    }
    stages.await_tile(tile);
    begin_products();
    start_sum<T, N, D>(result, weights, staged(tile));
    wait_for_products<0>();
    arrived(result.at[0]);
    softmax.template write<T, D>(shape, rows, result, o, lse, head);
}

// ---- backward ------------------------------------------------------------------------------------------------------

// Multiplies gradients of a capped score by d capped / d score, as uncap does, where only its weight is left of the score. lse is in units
// of log2. The factor of a weight of 0 is 0.
__device__ inline void uncap_by_weight(float& gradient, float weight, float lse, float inverse) {
    float part = fmaxf((log2f(weight) + lse) * inverse, -1.0f);
    gradient *= 1.0f - part * part;
}

// Of queries' rows, and of queries' columns.
template <int N>
__device__ inline void uncap_by_weights(const Shape& shape, Part<1, N>& gradients, const Part<1, N>& weights, const float (&lse)[1][2]) {
    if (shape.cap <= 0) return;
    #pragma unroll
    for (int tile = 0; tile < N / 8; tile++)
        for (int i = 0; i < 4; i++)
            uncap_by_weight(gradients.at[0][tile][i], weights.at[0][tile][i], lse[0][i / 2], 1.0f / (LOG2E * shape.cap));
}

template <int N>
__device__ inline void uncap_by_weights(const Shape& shape, Part<1, N>& gradients, const Part<1, N>& weights, const float* lse) {
    if (shape.cap <= 0) return;
    #pragma unroll
    for (int tile = 0; tile < N / 8; tile++)
        for (int i = 0; i < 4; i++)
            uncap_by_weight(gradients.at[0][tile][i], weights.at[0][tile][i], lse[tile * 8 + threadIdx.x % 4 * 2 + i % 2],
                            1.0f / (LOG2E * shape.cap));
}

// As slopes_of_queries, as soon as the products are there: those of scores are waited for first, then the others, and SUMS that were
// started behind both go on.
template <int SUMS, int N>
__device__ inline void slopes_of_queries_beside(const Shape& shape, const Queries<1>& rows, Part<1, N>& products, Part<1, N>& scores,
                                                u32 key, const float (&lse)[1][2], const float (&dot)[1][2]) {
    wait_for_products<SUMS + 1>();
    arrived(scores.at[0]);
    float unit = cap_scores(shape, scores);
    weigh_keys(scores, rows, key, unit, lse);
    make_before_waiting(scores.at[0]);
    wait_for_products<SUMS>();
    arrived(products.at[0]);
    subtract_dots(products, dot);
    uncap_by_weights(shape, products, scores, lse);
    multiply_by(products, scores);
}

// As slopes_of_keys in the same way.
template <int SUMS, int N, class TILE>
__device__ inline void slopes_of_keys_beside(const Shape& shape, Part<1, N>& products, Part<1, N>& scores, const TILE& tile, u32 query,
                                             u32 lowest) {
    wait_for_products<SUMS + 1>();
    arrived(scores.at[0]);
    float unit = cap_scores(shape, scores);
    weigh_queries<N>(scores, tile, query, 0, lowest, unit);
    wait_for_products<SUMS>();
    arrived(products.at[0]);
    subtract_dots(products, tile, 0);
    uncap_by_weights(shape, products, scores, tile.lse);
    multiply_by(products, scores);
}

// dq = scale sum of ds k. While the weights of a tile are made, its products d_o v^T and the sum of the tile before are under way.
template <class T, int N, int D>
__device__ void query_gradient(const T* q, const T* k, const T* v, const T* d_o, const float* lse, const float* dot, T* dq,
                               const u32* bounds, Shape shape) {
    DYNAMIC_SHARED(memory);
    T* tiles = reinterpret_cast<T*>(first_panel(memory));
    Stages<4> stages{reinterpret_cast<u64*>(tiles + 4 * 2 * N * D)};
    auto keys = [&](u32 tile) { return tiles + tile % 4 * 2 * N * D; };
    auto values = [&](u32 tile) { return keys(tile) + N * D; };
    u32 first = (gridDim.x - 1 - blockIdx.x) * M, head = blockIdx.y, key_head = head / (shape.query_heads / shape.key_heads);
    u32 last = min(first + M, shape.tokens) - 1, key = first_seen(shape.window, first, bounds[first]) / N * N;
    if (threadIdx.x == 0) stages.begin(COPYING / 32, MULTIPLYING / 32);
    __syncthreads();
    if (copies()) {
        leave_registers<LITTLE>();
        Copies<4> all{stages, 0};
        for (; key <= last; key += N)
            all.next([&](u32 tile) {
                copy_panels<T, N, D>(keys(tile), k, key, key_head, shape.key_heads, shape);
                copy_panels<T, N, D>(values(tile), v, key, key_head, shape.key_heads, shape);
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
    u32 tile = 0;
    Part<1, D> result = {};
    Part<1, N> scores, products;
    Left<N> slopes;
    stages.await_tile(tile);
    begin_products();
    start_scores<T, N, D>(scores, queries, keys(tile));
    start_scores<T, N, D>(products, gradients, values(tile));
    slopes_of_queries_beside<0>(shape, rows, products, scores, key, row_lse, row_dot);
    slopes.template round<T>(products);
    for (key += N; key <= last; key += N, tile++) {
        stages.await_tile(tile + 1);
        begin_products();
        start_scores<T, N, D>(scores, queries, keys(tile + 1));
        start_scores<T, N, D>(products, gradients, values(tile + 1));
        start_sum<T, N, D>(result, slopes, keys(tile));
        slopes_of_queries_beside<1>(shape, rows, products, scores, key, row_lse, row_dot);
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
// products are keys here, columns queries. While the weights of a tile are made, its products v d_o^T and the sum of dk of the tile before
// are under way, and while its slopes are made the sum of dv.
template <class T, int N, int D>
__device__ void key_gradient(const T* q, const T* k, const T* v, const T* d_o, const float* lse, const float* dot, T* dk,
                             T* dv, const u32* bounds, Shape shape) {
    DYNAMIC_SHARED(memory);
    typedef QueryTile<T, Panels<N, D>, N, D, COPYING> Tile;
    T* keys = reinterpret_cast<T*>(first_panel(memory));
    T* values = keys + M * D;
    T* tiles = values + M * D;
    u8* numbers = reinterpret_cast<u8*>(tiles + 4 * 2 * N * D);
    Stages<4> stages{reinterpret_cast<u64*>(numbers + 4 * Tile::NUMBERS)};
    u32* queries = reinterpret_cast<u32*>(stages.barriers + 8);
    auto staged = [&](u32 tile) { return Tile(tiles + tile % 4 * 2 * N * D, numbers + tile % 4 * Tile::NUMBERS); };
    u32 first = blockIdx.x * M, key_head = blockIdx.y, last = min(first + M, shape.tokens) - 1, tile = 0;
    QueryWalk at = QueryWalk::over<N>(shape, bounds, first, last, key_head);
    if (threadIdx.x == 0) stages.begin(COPYING / 32, MULTIPLYING / 32);
    __syncthreads();
    if (copies()) {
        leave_registers<LITTLE>();
        Copies<4> all{stages, 0};
        // With the first tile.
        copy_panels<T, M, D>(keys, k, first, key_head, shape.key_heads, shape);
        copy_panels<T, M, D>(values, v, first, key_head, shape.key_heads, shape);
        for (; !at.is_over(); at = at.template next<N>())
            all.next([&](u32 tile) {
                staged(tile).fill(q, d_o, at.query, at.head, shape);
                staged(tile).keep(Tile::read(lse, dot, bounds, at.query, at.head, shape));
                if (threadIdx.x == MULTIPLYING) queries[tile] = at.query;
            });
        all.end();
        return;
    }
    take_registers<MUCH>();
    u32 row = threadIdx.x / 128 * GROUP, lowest = first + threadIdx.x / 32 * 16;
    u32 count = (at.end - at.begin + N - 1) / N * (at.behind - at.head);
    Part<1, D> key_result = {}, value_result = {};
    Part<1, N> scores, products;
    Left<N> weights, slopes;
    Tile own = staged(tile);
    stages.await_tile(tile);
    begin_products();
    start_scores<T, N, D>(scores, keys, row, own.queries);
    start_scores<T, N, D>(products, values, row, own.gradients);
    slopes_of_keys_beside<0>(shape, products, scores, own, queries[tile % 4], lowest);
    weights.template round<T>(scores);
    slopes.template round<T>(products);
    for (; tile + 1 < count; tile++) {
        Tile before = staged(tile), own = staged(tile + 1);
        stages.await_tile(tile + 1);
        begin_products();
        start_scores<T, N, D>(scores, keys, row, own.queries);
        start_scores<T, N, D>(products, values, row, own.gradients);
        start_sum<T, N, D>(value_result, weights, before.gradients);
        start_sum<T, N, D>(key_result, slopes, before.queries);
        slopes_of_keys_beside<2>(shape, products, scores, own, queries[(tile + 1) % 4], lowest);
        make_before_waiting(products.at[0]);
        wait_for_products<0>();
        arrived(value_result.at[0]);
        arrived(key_result.at[0]);
        stages.release(tile);
        weights.template round<T>(scores);
        slopes.template round<T>(products);
    }
    own = staged(tile);
    begin_products();
    start_sum<T, N, D>(value_result, weights, own.gradients);
    start_sum<T, N, D>(key_result, slopes, own.queries);
    wait_for_products<0>();
    arrived(value_result.at[0]);
    arrived(key_result.at[0]);
    write_rows<T, D>(dk, key_result.at[0], shape.scale, shape.scale, lowest, 0, key_head, shape.key_heads, shape.tokens, shape.d);
    write_rows<T, D>(dv, value_result.at[0], 1.0f, 1.0f, lowest, 0, key_head, shape.key_heads, shape.tokens, shape.d);
}

// ---- instances -----------------------------------------------------------------------------------------------------

// Heads of up to D.
#define HOPPER(T, E, D)                                                                                                \
    KERNEL __launch_bounds__(THREADS, 1)                                                                               \
        attention_hopper_##E##_##D(const T* q, const T* k, const T* v, T* o, float* lse, const u32* bounds, SHAPE) {   \
        attend<T, 128, D>(q, k, v, o, lse, bounds, SHAPE_VALUE);                                                       \
    }                                                                                                                  \
    EMULATE(attention_hopper_##E##_##D)                                                                                \
    KERNEL __launch_bounds__(THREADS, 1)                                                                               \
        attention_query_hopper_##E##_##D(const T* q, const T* k, const T* v, const T* d_o, const float* lse,           \
                                         const float* dot, T* dq, const u32* bounds, SHAPE) {                          \
        query_gradient<T, 64, D>(q, k, v, d_o, lse, dot, dq, bounds, SHAPE_VALUE);                                     \
    }                                                                                                                  \
    EMULATE(attention_query_hopper_##E##_##D)                                                                          \
    KERNEL __launch_bounds__(THREADS, 1)                                                                               \
        attention_key_hopper_##E##_##D(const T* q, const T* k, const T* v, const T* d_o, const float* lse,             \
                                       const float* dot, T* dk, T* dv, const u32* bounds, SHAPE) {                     \
        key_gradient<T, 64, D>(q, k, v, d_o, lse, dot, dk, dv, bounds, SHAPE_VALUE);                                   \
    }                                                                                                                  \
    EMULATE(attention_key_hopper_##E##_##D)

HOPPER(bf16, bf16, 64)
HOPPER(bf16, bf16, 128)
HOPPER(f16, f16, 64)
HOPPER(f16, f16, 128)
