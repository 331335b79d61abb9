// Attention as in attention_tiled.cuh on Hopper, whose tensor cores reach their speed through products of four warps only
// (FlashAttention-3, Shah et al. 2024, https://arxiv.org/abs/2407.08608): BF16 and F16, heads of up to 128.
//
// A block has two groups of four warps, and each of them 64 rows: while one makes weights, the tensor cores work for the other.

#include "attention_parts.cuh"
#include "warpgroup.cuh"

// Rows of a block, and of a group; threads of a block.
#define M 128
#define GROUP 64
#define THREADS 256

template <class T, int ROWS, int D>
__device__ inline void copy_panels(T* tile, const T* from, u32 first, u32 head, u32 heads, const Shape& shape) {
    copy_tile<T, Panels<ROWS, D>, ROWS, D, THREADS>(tile, from, first, head, heads, shape.tokens, shape.d);
}

// Starts the products of the group's rows of `left` (M rows) and the transpose of `right` (N rows).
template <class T, int N, int D> __device__ inline void start_scores(Part<1, N>& result, const T* left, const T* right) {
    u32 row = threadIdx.x / 128 * GROUP;
    #pragma unroll
    for (int step = 0; step < D / 16; step++)
        multiply_transposed(result.at[0], columns_of<T, M>(left, row, step), columns_of<T, N>(right, 0, step), step > 0, T{});
    end_products();
}

// Weights, rounded, as left operands.
template <int N> struct Left {
    u32 at[N / 16][4];

    template <class T> __device__ inline void round(const Part<1, N>& weights) {
        #pragma unroll
        for (int step = 0; step < N / 16; step++) as_left_operand<T>(at[step], weights, 0, step);
    }
};

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

// dq = scale sum of ds k.
template <class T, int N, int D>
__device__ void query_gradient(const T* q, const T* k, const T* v, const T* d_o, const float* lse, const float* dot, T* dq,
                               const u32* bounds, Shape shape) {
    DYNAMIC_SHARED(memory);
    T* queries = reinterpret_cast<T*>(first_panel(memory));
    T* gradients = queries + M * D;
    T* tiles = gradients + M * D;
    u32 first = (gridDim.x - 1 - blockIdx.x) * M, head = blockIdx.y, key_head = head / (shape.query_heads / shape.key_heads);
    u32 last = min(first + M, shape.tokens) - 1;
    Queries<1> rows(shape, bounds, first + threadIdx.x / 32 * 16, last + 1);
    float row_lse[1][2], row_dot[1][2];
    rows.read(row_lse, lse, head, shape.query_heads, LOG2E);
    rows.read(row_dot, dot, head, shape.query_heads, 1.0f);
    // A tile of N keys and one of their values.
    auto fill = [&](T* tile, u32 key) {
        copy_panels<T, N, D>(tile, k, key, key_head, shape.key_heads, shape);
        copy_panels<T, N, D>(tile + N * D, v, key, key_head, shape.key_heads, shape);
        end_copies();
    };
    u32 begin = first_seen(shape.window, first, bounds[first]) / N * N, stage = 0;
    copy_panels<T, M, D>(queries, q, first, head, shape.query_heads, shape);
    copy_panels<T, M, D>(gradients, d_o, first, head, shape.query_heads, shape);
    fill(tiles, begin);
    Part<1, D> result = {};
    for (u32 key = begin; key <= last; key += N) {
        // Behind it nobody reads the other tile any more.
        share_copies();
        const T* own = tiles + stage * 2 * N * D;
        stage = 1 - stage;
        Part<1, N> scores, products;
        Left<N> slopes;
        begin_products();
        start_scores<T, N, D>(scores, queries, own);
        start_scores<T, N, D>(products, gradients, own + N * D);
        if (key + N <= last) fill(tiles + stage * 2 * N * D, key + N);
        wait_for_products<0>();
        arrived(scores.at[0]);
        arrived(products.at[0]);
        slopes_of_queries(shape, rows, products, scores, key, row_lse, row_dot);
        slopes.template round<T>(products);
        begin_products();
        start_sum<T, N, D>(result, slopes, own);
        wait_for_products<0>();
        arrived(result.at[0]);
    }
    write_rows<T, D>(dq, result.at[0], shape.scale, shape.scale, rows.first, 0, head, shape.query_heads, shape.tokens, shape.d);
}

// dk = scale sum of ds q and dv = sum of p d_o over all queries and all heads of the group, in a fixed order. Rows of the
// products are keys here, columns queries.
template <class T, int N, int D>
__device__ void key_gradient(const T* q, const T* k, const T* v, const T* d_o, const float* lse, const float* dot, T* dk,
                             T* dv, const u32* bounds, Shape shape) {
    DYNAMIC_SHARED(memory);
    typedef QueryTile<T, Panels<N, D>, N, D, THREADS> Tile;
    T* keys = reinterpret_cast<T*>(first_panel(memory));
    T* values = keys + M * D;
    T* tiles = values + M * D;
    u8* numbers = reinterpret_cast<u8*>(tiles + 2 * 2 * N * D);
    auto staged = [&](u32 stage) { return Tile(tiles + stage * 2 * N * D, numbers + stage * Tile::NUMBERS); };
    u32 first = blockIdx.x * M, key_head = blockIdx.y, stage = 0;
    u32 last = min(first + M, shape.tokens) - 1, lowest = first + threadIdx.x / 32 * 16;
    copy_panels<T, M, D>(keys, k, first, key_head, shape.key_heads, shape);
    copy_panels<T, M, D>(values, v, first, key_head, shape.key_heads, shape);
    Part<1, D> key_result = {}, value_result = {};
    QueryWalk at = QueryWalk::over<N>(shape, bounds, first, last, key_head);
    staged(0).fill(q, d_o, at.query, at.head, shape);
    staged(0).keep(QueryNumbers::read(lse, dot, bounds, at.query, at.head, shape));
    while (!at.is_over()) {
        QueryWalk next = at.template next<N>();
        // Behind it nobody reads the other tile any more.
        share_copies();
        Tile tile = staged(stage);
        stage = 1 - stage;
        Part<1, N> scores, products;
        Left<N> weights, slopes;
        begin_products();
        start_scores<T, N, D>(scores, keys, tile.queries);
        start_scores<T, N, D>(products, values, tile.gradients);
        if (!next.is_over()) {
            staged(stage).fill(q, d_o, next.query, next.head, shape);
            staged(stage).keep(QueryNumbers::read(lse, dot, bounds, next.query, next.head, shape));
        }
        wait_for_products<0>();
        arrived(scores.at[0]);
        arrived(products.at[0]);
        slopes_of_keys<N>(shape, products, scores, tile, at.query, 0, lowest);
        weights.template round<T>(scores);
        slopes.template round<T>(products);
        begin_products();
        start_sum<T, N, D>(value_result, weights, tile.gradients);
        start_sum<T, N, D>(key_result, slopes, tile.queries);
        wait_for_products<0>();
        arrived(value_result.at[0]);
        arrived(key_result.at[0]);
        at = next;
    }
    write_rows<T, D>(dk, key_result.at[0], shape.scale, shape.scale, lowest, 0, key_head, shape.key_heads, shape.tokens, shape.d);
    write_rows<T, D>(dv, value_result.at[0], 1.0f, 1.0f, lowest, 0, key_head, shape.key_heads, shape.tokens, shape.d);
}

// ---- instances -----------------------------------------------------------------------------------------------------

// Heads of up to D, rows of the other side in the gradient of keys.
#define HOPPER(T, E, D, N)                                                                                             \
    KERNEL __launch_bounds__(THREADS, 1)                                                                                   \
        attention_hopper_##E##_##D(const T* q, const T* k, const T* v, T* o, float* lse, const u32* bounds, SHAPE) {   \
        attend<T, 128, D>(q, k, v, o, lse, bounds, SHAPE_VALUE);                                                       \
    }                                                                                                                  \
    EMULATE(attention_hopper_##E##_##D)                                                                                \
    KERNEL __launch_bounds__(THREADS, 1)                                                                                   \
        attention_query_hopper_##E##_##D(const T* q, const T* k, const T* v, const T* d_o, const float* lse,           \
                                         const float* dot, T* dq, const u32* bounds, SHAPE) {                          \
        query_gradient<T, 128, D>(q, k, v, d_o, lse, dot, dq, bounds, SHAPE_VALUE);                                    \
    }                                                                                                                  \
    EMULATE(attention_query_hopper_##E##_##D)                                                                          \
    KERNEL __launch_bounds__(THREADS, 1)                                                                                   \
        attention_key_hopper_##E##_##D(const T* q, const T* k, const T* v, const T* d_o, const float* lse,             \
                                       const float* dot, T* dk, T* dv, const u32* bounds, SHAPE) {                     \
        key_gradient<T, N, D>(q, k, v, d_o, lse, dot, dk, dv, bounds, SHAPE_VALUE);                                    \
    }                                                                                                                  \
    EMULATE(attention_key_hopper_##E##_##D)

HOPPER(bf16, bf16, 64, 128)
HOPPER(bf16, bf16, 128, 64)
HOPPER(f16, f16, 64, 128)
HOPPER(f16, f16, 128, 64)
