// Causal attention within documents (FlashAttention-2, Dao 2023, https://arxiv.org/abs/2307.08691), BF16 and F16 on tensor
// cores, and a plain form for F32 and odd head sizes.
//
// q, o, d_o (tokens, query heads, d), k, v (tokens, key heads, d), lse and dot (tokens, query heads) F32. `bounds` holds
// for each token the first token of its document and the one behind its last: (2, tokens). A query i sees the keys j with
// start(i) <= j <= i and i - j < window (0: no window).
//
// A warp has one or two tiles of 16 rows: with two, each operand that it loads for both is loaded once. Rows lie in shared
// memory with 16 bytes between them, so that the eight rows that a tile load takes at once fall into different banks.

#define LOG2E 1.4426950408889634f

struct Shape {
    u32 tokens, query_heads, key_heads, d;
    u32 window;
    float scale, cap;
};

__device__ inline bool sees(const Shape& shape, u32 query, u32 key, u32 start) {
    return key <= query && key >= start && (shape.window == 0 || query - key < shape.window);
}

// ---- tiles ---------------------------------------------------------------------------------------------------------

// Elements from one row of a tile to the next.
template <int D> constexpr int STRIDE = D + 8;

// Starts copying rows first.. of one head into a tile of ROWS rows and D columns; zeros beyond `tokens` and `d`.
template <class T, int ROWS, int D>
__device__ inline void copy_tile(T* tile, const T* from, u32 first, u32 head, u32 heads, u32 tokens, u32 d) {
    const int chunks = D / 8;
    for (u32 index = threadIdx.x; index < ROWS * chunks; index += blockDim.x) {
        u32 row = index / chunks, column = index % chunks * 8, token = first + row;
        bool valid = token < tokens && column < d;
        const T* place = from + (valid ? ((u64)token * heads + head) * d + column : 0);
        copy_in_background(tile + row * STRIDE<D> + column, place, valid);
    }
}

// The 16 rows from `row` on, columns 16 step .. 16 step + 15, as left operand.
template <class T, int D> __device__ inline void left_operand(u32 (&a)[4], const T* tile, u32 row, u32 step) {
    u32 lane = threadIdx.x % 32;
    load_tiles(a, tile + (row + lane % 16) * STRIDE<D> + step * 16 + lane / 16 * 8);
}

// Right operand of a product with the transpose of a tile: its rows 16 pair .. 16 pair + 15 are 16 columns of the result
// (b[0], b[1] for the first eight, b[2], b[3] for the others), its columns 16 step .. are summed over.
template <class T, int D> __device__ inline void right_transposed(u32 (&b)[4], const T* tile, u32 pair, u32 step) {
    u32 lane = threadIdx.x % 32;
    load_tiles(b, tile + (pair * 16 + lane / 16 * 8 + lane % 8) * STRIDE<D> + step * 16 + lane / 8 % 2 * 8);
}

// Right operand of a product with a tile: its rows 16 step .. are summed over, its columns from `column` on are the 16 of
// the result.
template <class T, int D> __device__ inline void right_straight(u32 (&b)[4], const T* tile, u32 step, u32 column) {
    u32 lane = threadIdx.x % 32;
    load_tiles_transposed(b, tile + (step * 16 + lane % 16) * STRIDE<D> + column + lane / 16 * 8);
}

template <class T> __device__ inline void multiply_pair(float (&first)[4], float (&second)[4], const u32 (&a)[4], const u32 (&b)[4]) {
    const u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
    multiply_tile(first, a, low, T{});
    multiply_tile(second, a, high, T{});
}

// What a warp has of a product: for each of its R tiles of 16 rows, N columns.
template <int R, int N> struct Part {
    float at[R][N / 8][4];
};

// The rows of a warp, `row` on, of `left` times the transpose of `right` (N rows).
template <class T, int R, int N, int D>
__device__ inline void scores_of(Part<R, N>& result, const T* left, u32 row, const T* right) {
    result = {};
    #pragma unroll
    for (int step = 0; step < D / 16; step++) {
        u32 a[R][4];
        #pragma unroll
        for (int r = 0; r < R; r++) left_operand<T, D>(a[r], left, row + 16 * r, step);
        #pragma unroll
        for (int pair = 0; pair < N / 16; pair++) {
            u32 b[4];
            right_transposed<T, D>(b, right, pair, step);
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
        right_straight<T, D>(b, right, step, column + columns * 16);
        #pragma unroll
        for (int r = 0; r < R; r++) multiply_pair<T>(result.at[r][2 * columns], result.at[r][2 * columns + 1], a[r], b);
    }
}

// result += weights times `right` (N rows). The weights lie as the scores do, which is how a left operand lies, too.
template <class T, int R, int N, int D>
__device__ inline void add_weighted(Part<R, D>& result, const Part<R, N>& weights, const T* right) {
    #pragma unroll
    for (int step = 0; step < N / 16; step++) {
        u32 a[R][4];
        #pragma unroll
        for (int r = 0; r < R; r++) {
            const float(&low)[4] = weights.at[r][2 * step];
            const float(&high)[4] = weights.at[r][2 * step + 1];
            a[r][0] = pair<T>(low[0], low[1]), a[r][1] = pair<T>(low[2], low[3]);
            a[r][2] = pair<T>(high[0], high[1]), a[r][3] = pair<T>(high[2], high[3]);
        }
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
        for (int r = 0; r < R; r++) left_operand<T, N>(a[r], weights, row + 16 * r, step);
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

// Writes 16 rows, of which those below `tokens` exist, and of their columns, from `column` on, those below d.
template <class T, int C>
__device__ inline void write_rows(T* to, const float (&values)[C / 8][4], float scale0, float scale1, u32 first, u32 column,
                                  u32 head, u32 heads, u32 tokens, u32 d) {
    u32 lane = threadIdx.x % 32, row0 = first + lane / 4, row1 = row0 + 8;
    #pragma unroll
    for (int tile = 0; tile < C / 8; tile++) {
        u32 at = column + tile * 8 + lane % 4 * 2;
        if (at >= d) continue;
        if (row0 < tokens)
            *reinterpret_cast<u32*>(to + ((u64)row0 * heads + head) * d + at) =
                pair<T>(values[tile][0] * scale0, values[tile][1] * scale0);
        if (row1 < tokens)
            *reinterpret_cast<u32*>(to + ((u64)row1 * heads + head) * d + at) =
                pair<T>(values[tile][2] * scale1, values[tile][3] * scale1);
    }
}

// First key that `query` sees.
__device__ inline u32 first_seen(const Shape& shape, u32 query, u32 start) {
    return shape.window != 0 && query + 1 > shape.window ? max(start, query + 1 - shape.window) : start;
}

// The queries of a warp and what they see.
template <int R> struct Queries {
    // Of the existing ones; nothing is seen where first > last.
    u32 first, last, lowest, start_of_last;
    const u32* bounds;

    __device__ inline Queries(const Shape& shape, const u32* bounds, u32 from, u32 behind) : bounds(bounds) {
        first = from, last = min(from + 16 * R, behind) - 1;
        lowest = first_seen(shape, first, bounds[min(first, last)]);
        start_of_last = bounds[last];
    }

    // The lane's row of the upper or lower half of a tile.
    __device__ inline u32 row(int r, int half) const { return first + 16 * r + threadIdx.x % 32 / 4 + 8 * half; }

    // Where the row's document begins.
    __device__ inline u32 start(int r, int half) const { return bounds[min(row(r, half), last)]; }

    // Whether any of the queries sees any of N keys.
    template <int N> __device__ inline bool see_any(u32 key) const { return first <= last && key <= last && key + N > lowest; }

    // Whether every query sees every one of them, so that nothing needs to be masked.
    template <int N> __device__ inline bool see_all(const Shape& shape, u32 key) const {
        return key + N - 1 <= first && key >= start_of_last && (shape.window == 0 || last - key < shape.window);
    }
};

// Soft-caps scores, which are products before, where there is a cap. Returns the factor that brings them to units of log2.
template <int R, int N> __device__ inline float cap_scores(const Shape& shape, Part<R, N>& scores) {
    if (shape.cap <= 0) return shape.scale * LOG2E;
    float inner = shape.scale / shape.cap;
    #pragma unroll
    for (int r = 0; r < R; r++)
        #pragma unroll
        for (int tile = 0; tile < N / 8; tile++)
            for (int i = 0; i < 4; i++) scores.at[r][tile][i] = shape.cap * tanhf(scores.at[r][tile][i] * inner);
    return LOG2E;
}

// Multiplies gradients of capped scores by d capped / d score.
template <int R, int N> __device__ inline void uncap(const Shape& shape, Part<R, N>& gradients, const Part<R, N>& scores) {
    if (shape.cap <= 0) return;
    float inverse = 1.0f / shape.cap;
    #pragma unroll
    for (int r = 0; r < R; r++)
        #pragma unroll
        for (int tile = 0; tile < N / 8; tile++)
            for (int i = 0; i < 4; i++) {
                float part = scores.at[r][tile][i] * inverse;
                gradients.at[r][tile][i] *= 1.0f - part * part;
            }
}

// Sum and maximum over the four lanes that share a row.
__device__ inline float quad_sum(float value) {
    value += __shfl_xor_sync(0xffffffff, value, 1);
    return value + __shfl_xor_sync(0xffffffff, value, 2);
}

__device__ inline float quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffff, value, 2));
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
    u32 last = min(first + M, shape.tokens) - 1;
    u32 lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16 * R;
    Queries<R> rows(shape, bounds, first + warp_row, last + 1);
    u32 begin = first_seen(shape, first, bounds[first]) / N * N;
    copy_tile<T, M, D>(queries, q, first, head, shape.query_heads, shape.tokens, shape.d);
    copy_tile<T, N, D>(keys, k, begin, key_head, shape.key_heads, shape.tokens, shape.d);
    end_copies();
    Part<R, D> result = {};
    // The largest score of a row, in its own units, and the sum of the weights.
    float largest[R][2], sum[R][2] = {}, unit = 0;
    for (int r = 0; r < R; r++) largest[r][0] = largest[r][1] = -INFINITE;
    for (u32 key = begin; key <= last; key += N) {
        wait_for_copies<0>();
        __syncthreads();
        copy_tile<T, N, D>(values, v, key, key_head, shape.key_heads, shape.tokens, shape.d);
        end_copies();
        bool seen = rows.template see_any<N>(key);
        Part<R, N> scores;
        if (seen) {
            scores_of<T, R, N, D>(scores, queries, warp_row, keys);
            unit = cap_scores(shape, scores);
            if (!rows.template see_all<N>(shape, key)) {
                #pragma unroll
                for (int r = 0; r < R; r++)
                    #pragma unroll
                    for (int half = 0; half < 2; half++) {
                        u32 query = rows.row(r, half), start = rows.start(r, half);
                        #pragma unroll
                        for (int tile = 0; tile < N / 8; tile++)
                            for (int i = 0; i < 2; i++)
                                if (!sees(shape, query, key + tile * 8 + lane % 4 * 2 + i, start))
                                    scores.at[r][tile][2 * half + i] = -INFINITE;
                    }
            }
            #pragma unroll
            for (int r = 0; r < R; r++)
                #pragma unroll
                for (int half = 0; half < 2; half++) {
                    float before = largest[r][half], now = before;
                    #pragma unroll
                    for (int tile = 0; tile < N / 8; tile++)
                        now = fmaxf(now, fmaxf(scores.at[r][tile][2 * half], scores.at[r][tile][2 * half + 1]));
                    largest[r][half] = now = quad_max(now);
                    // A row that has seen no key yet.
                    float base = now == -INFINITE ? 0.0f : now * unit, shrink = power_of_2(before * unit - base), part = 0;
                    #pragma unroll
                    for (int tile = 0; tile < N / 8; tile++)
                        for (int i = 2 * half; i < 2 * half + 2; i++) {
                            float weight = power_of_2(scores.at[r][tile][i] * unit - base);
                            scores.at[r][tile][i] = weight;
                            part += weight;
                        }
                    sum[r][half] = sum[r][half] * shrink + part;
                    #pragma unroll
                    for (int tile = 0; tile < D / 8; tile++)
                        for (int i = 2 * half; i < 2 * half + 2; i++) result.at[r][tile][i] *= shrink;
                }
        }
        wait_for_copies<0>();
        __syncthreads();
        if (key + N <= last) copy_tile<T, N, D>(keys, k, key + N, key_head, shape.key_heads, shape.tokens, shape.d);
        end_copies();
        if (seen) add_weighted<T, R, N, D>(result, scores, values);
    }
    wait_for_copies<0>();
    #pragma unroll
    for (int r = 0; r < R; r++) {
        sum[r][0] = quad_sum(sum[r][0]), sum[r][1] = quad_sum(sum[r][1]);
        write_rows<T, D>(o, result.at[r], 1.0f / sum[r][0], 1.0f / sum[r][1], first + warp_row + 16 * r, 0, head,
                         shape.query_heads, shape.tokens, shape.d);
        for (int half = 0; half < 2; half++)
            if (lane % 4 == 0 && rows.row(r, half) < shape.tokens)
                lse[(u64)rows.row(r, half) * shape.query_heads + head] =
                    largest[r][half] * unit / LOG2E + logf(sum[r][half]);
    }
}

// ---- backward ------------------------------------------------------------------------------------------------------

// dot = sum of d_o o over each head: a warp for each (token, head).
template <class T> __device__ void dot_rows(const T* d_o, const T* o, float* dot, u32 rows, u32 d) {
    u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0;
    for (u32 column = lane; column < d; column += 32)
        sum += widen(d_o[(u64)row * d + column]) * widen(o[(u64)row * d + column]);
    sum = warp_sum(sum);
    if (lane == 0) dot[row] = sum;
}

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
    u32 last = min(first + M, shape.tokens) - 1;
    u32 lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16 * R;
    Queries<R> rows(shape, bounds, first + warp_row, last + 1);
    float row_lse[R][2], row_dot[R][2];
    for (int r = 0; r < R; r++)
        for (int half = 0; half < 2; half++) {
            u64 place = (u64)min(rows.row(r, half), last) * shape.query_heads + head;
            row_lse[r][half] = lse[place] * LOG2E;
            row_dot[r][half] = dot[place];
        }
    u32 begin = first_seen(shape, first, bounds[first]) / N * N, stage = 0;
    copy_tile<T, M, D>(queries, q, first, head, shape.query_heads, shape.tokens, shape.d);
    copy_tile<T, M, D>(gradients, d_o, first, head, shape.query_heads, shape.tokens, shape.d);
    copy_tile<T, N, D>(keys, k, begin, key_head, shape.key_heads, shape.tokens, shape.d);
    copy_tile<T, N, D>(values, v, begin, key_head, shape.key_heads, shape.tokens, shape.d);
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
            copy_tile<T, N, D>(keys + stage * TILE, k, key + N, key_head, shape.key_heads, shape.tokens, shape.d);
            copy_tile<T, N, D>(values + stage * TILE, v, key + N, key_head, shape.key_heads, shape.tokens, shape.d);
        }
        end_copies();
        if (rows.template see_any<N>(key)) {
            Part<R, N> scores, products;
            scores_of<T, R, N, D>(scores, queries, warp_row, own_keys);
            scores_of<T, R, N, D>(products, gradients, warp_row, own_values);
            float unit = cap_scores(shape, scores);
            #pragma unroll
            for (int r = 0; r < R; r++)
                #pragma unroll
                for (int tile = 0; tile < N / 8; tile++)
                    for (int i = 0; i < 4; i++) products.at[r][tile][i] -= row_dot[r][i / 2];
            uncap(shape, products, scores);
            bool masked = !rows.template see_all<N>(shape, key);
            #pragma unroll
            for (int r = 0; r < R; r++)
                #pragma unroll
                for (int half = 0; half < 2; half++) {
                    u32 query = rows.row(r, half), start = masked ? rows.start(r, half) : 0;
                    #pragma unroll
                    for (int tile = 0; tile < N / 8; tile++)
                        for (int i = 2 * half; i < 2 * half + 2; i++) {
                            float weight = power_of_2(scores.at[r][tile][i] * unit - row_lse[r][half]);
                            bool seen = !masked || sees(shape, query, key + tile * 8 + lane % 4 * 2 + i % 2, start);
                            products.at[r][tile][i] *= seen ? weight : 0.0f;
                        }
                }
            add_weighted<T, R, N, D>(result, products, own_keys);
        }
        if (S == 1 && more) {
            __syncthreads();
            copy_tile<T, N, D>(keys, k, key + N, key_head, shape.key_heads, shape.tokens, shape.d);
            copy_tile<T, N, D>(values, v, key + N, key_head, shape.key_heads, shape.tokens, shape.d);
            end_copies();
        }
    }
    wait_for_copies<0>();
    #pragma unroll
    for (int r = 0; r < R; r++)
        write_rows<T, D>(dq, result.at[r], shape.scale, shape.scale, first + warp_row + 16 * r, 0, head, shape.query_heads,
                         shape.tokens, shape.d);
}

// A tile of N queries as the gradient of keys reads it.
template <class T, int N, int D> struct QueryTile {
    T* queries;
    T* gradients;
    float* lse;
    float* dot;
    u32* start;

    static constexpr u32 BYTES = 2 * N * STRIDE<D> * sizeof(T) + 12 * N;

    __device__ inline QueryTile(u8* memory) {
        queries = reinterpret_cast<T*>(memory);
        gradients = queries + N * STRIDE<D>;
        lse = reinterpret_cast<float*>(gradients + N * STRIDE<D>);
        dot = lse + N;
        start = reinterpret_cast<u32*>(dot + N);
    }

    // Starts copying.
    __device__ inline void fill(const T* q, const T* d_o, const float* all_lse, const float* all_dot, const u32* bounds, u32 query,
                                u32 head, const Shape& shape) {
        copy_tile<T, N, D>(queries, q, query, head, shape.query_heads, shape.tokens, shape.d);
        copy_tile<T, N, D>(gradients, d_o, query, head, shape.query_heads, shape.tokens, shape.d);
        end_copies();
        for (u32 index = threadIdx.x; index < N; index += blockDim.x) {
            u32 token = min(query + index, shape.tokens - 1);
            lse[index] = all_lse[(u64)token * shape.query_heads + head] * LOG2E;
            dot[index] = all_dot[(u64)token * shape.query_heads + head];
            // A query that is not there sees nothing.
            start[index] = query + index < shape.tokens ? bounds[token] : 0xffffffffu;
        }
    }
};

// dk = scale sum of ds q and dv = sum of p d_o over all queries and all heads of the group: one tile of keys a block, so
// that every sum is made in a fixed order. Rows of the products are keys here, columns queries.
//
// Two warps have the same rows: each makes the weights of half of the queries, and of both results half of the columns. The
// weights meet in shared memory.
template <class T, int W, int R, int N, int D, int S>
__device__ void key_gradient(const T* q, const T* k, const T* v, const T* d_o, const float* lse, const float* dot, T* dk,
                             T* dv, const u32* bounds, Shape shape) {
    DYNAMIC_SHARED(memory);
    const int M = W / 2 * R * 16, H = N / 2, C = D / 2;
    T* keys = reinterpret_cast<T*>(memory);
    T* values = keys + M * STRIDE<D>;
    T* weights = values + M * STRIDE<D>;
    T* slopes = weights + M * STRIDE<N>;
    u8* tiles = reinterpret_cast<u8*>(slopes + M * STRIDE<N>);
    u32 first = blockIdx.x * M, key_head = blockIdx.y, group = shape.query_heads / shape.key_heads;
    u32 last = min(first + M, shape.tokens) - 1;
    u32 lane = threadIdx.x % 32, warp_row = threadIdx.x / 64 * 16 * R, side = threadIdx.x / 32 % 2;
    u32 lowest = first + warp_row, highest = lowest + 16 * R - 1;
    // Behind the last query that sees any key of the tile.
    u32 end = bounds[shape.tokens + last];
    if (shape.window != 0) end = min(end, last + shape.window);
    copy_tile<T, M, D>(keys, k, first, key_head, shape.key_heads, shape.tokens, shape.d);
    copy_tile<T, M, D>(values, v, first, key_head, shape.key_heads, shape.tokens, shape.d);
    Part<R, C> key_result = {}, value_result = {};
    u32 query = first / N * N, head = key_head * group, stage = 0;
    QueryTile<T, N, D>(tiles).fill(q, d_o, lse, dot, bounds, query, head, shape);
    for (u32 behind = head + group; head < behind;) {
        u32 next_query = query + N, next_head = head;
        if (next_query >= end) next_query = first / N * N, next_head++;
        wait_for_copies<0>();
        // Behind it nobody reads the other tile, nor the weights, any more.
        __syncthreads();
        QueryTile<T, N, D> tile(tiles + stage * QueryTile<T, N, D>::BYTES);
        stage = S - 1 - stage;
        if (S == 2 && next_head < behind)
            QueryTile<T, N, D>(tiles + stage * QueryTile<T, N, D>::BYTES)
                .fill(q, d_o, lse, dot, bounds, next_query, next_head, shape);
        bool seen = query + N > lowest;
        if (seen) {
            Part<R, H> scores, products;
            scores_of<T, R, H, D>(scores, keys, warp_row, tile.queries + side * H * STRIDE<D>);
            scores_of<T, R, H, D>(products, values, warp_row, tile.gradients + side * H * STRIDE<D>);
            float unit = cap_scores(shape, scores);
            #pragma unroll
            for (int r = 0; r < R; r++)
                #pragma unroll
                for (int at = 0; at < H / 8; at++)
                    for (int i = 0; i < 4; i++)
                        products.at[r][at][i] -= tile.dot[side * H + at * 8 + lane % 4 * 2 + i % 2];
            uncap(shape, products, scores);
            bool masked = query < highest || tile.start[N - 1] > lowest ||
                          (shape.window != 0 && query + N - 1 - lowest >= shape.window);
            #pragma unroll
            for (int r = 0; r < R; r++)
                #pragma unroll
                for (int at = 0; at < H / 8; at++)
                    for (int i = 0; i < 4; i++) {
                        u32 column = side * H + at * 8 + lane % 4 * 2 + i % 2, row = lowest + 16 * r + lane / 4 + i / 2 * 8;
                        float weight = power_of_2(scores.at[r][at][i] * unit - tile.lse[column]);
                        if (masked && !sees(shape, query + column, row, tile.start[column])) weight = 0;
                        scores.at[r][at][i] = weight;
                        products.at[r][at][i] *= weight;
                    }
            keep_part<T, R, H, N>(weights, scores, warp_row, side * H);
            keep_part<T, R, H, N>(slopes, products, warp_row, side * H);
        }
        __syncthreads();
        if (seen) {
            add_product<T, R, N, C, D>(value_result, weights, warp_row, tile.gradients, side * C);
            add_product<T, R, N, C, D>(key_result, slopes, warp_row, tile.queries, side * C);
        }
        query = next_query, head = next_head;
        if (S == 1 && head < behind) {
            __syncthreads();
            tile.fill(q, d_o, lse, dot, bounds, query, head, shape);
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

// ---- plain form ----------------------------------------------------------------------------------------------------
//
// A warp for each row; lane l holds the elements l, l + 32, ... of a head of up to 256.

// Score with the soft-cap, in natural units.
__device__ inline float capped(const Shape& shape, float product) {
    float score = product * shape.scale;
    return shape.cap > 0 ? shape.cap * tanhf(score / shape.cap) : score;
}

// d capped / d score, from the capped score.
__device__ inline float slope(const Shape& shape, float score) {
    if (shape.cap <= 0) return 1.0f;
    float part = score / shape.cap;
    return 1.0f - part * part;
}

#define PARTS 8

template <class T> __device__ inline void read_row(float (&row)[PARTS], const T* from, u32 d) {
    for (int part = 0; part < PARTS; part++) {
        u32 column = part * 32 + threadIdx.x % 32;
        row[part] = column < d ? widen(from[column]) : 0.0f;
    }
}

template <class T> __device__ inline float dot_row(const float (&row)[PARTS], const T* other, u32 d) {
    float sum = 0;
    for (int part = 0; part < PARTS; part++) {
        u32 column = part * 32 + threadIdx.x % 32;
        if (column < d) sum += row[part] * widen(other[column]);
    }
    return warp_sum(sum);
}

template <class T> __device__ inline void add_row(float (&row)[PARTS], float factor, const T* other, u32 d) {
    for (int part = 0; part < PARTS; part++) {
        u32 column = part * 32 + threadIdx.x % 32;
        if (column < d) row[part] += factor * widen(other[column]);
    }
}

template <class T> __device__ inline void write_row(T* to, const float (&row)[PARTS], float factor, u32 d) {
    for (int part = 0; part < PARTS; part++) {
        u32 column = part * 32 + threadIdx.x % 32;
        if (column < d) to[column] = narrow<T>(row[part] * factor);
    }
}

template <class T>
__device__ void attend_plain(const T* q, const T* k, const T* v, T* o, float* lse, const u32* bounds, Shape shape) {
    u32 query = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, head = blockIdx.y;
    if (query >= shape.tokens) return;
    u32 key_head = head / (shape.query_heads / shape.key_heads), d = shape.d;
    u64 place = (u64)query * shape.query_heads + head;
    float row[PARTS], result[PARTS] = {}, largest = -INFINITE, sum = 0;
    read_row(row, q + place * d, d);
    for (u32 key = first_seen(shape, query, bounds[query]); key <= query; key++) {
        u64 other = ((u64)key * shape.key_heads + key_head) * d;
        float score = capped(shape, dot_row(row, k + other, d));
        float above = fmaxf(largest, score), shrink = expf(largest - above), weight = expf(score - above);
        for (int part = 0; part < PARTS; part++) result[part] *= shrink;
        add_row(result, weight, v + other, d);
        sum = sum * shrink + weight;
        largest = above;
    }
    write_row(o + place * d, result, 1.0f / sum, d);
    if (threadIdx.x % 32 == 0) lse[place] = largest + logf(sum);
}

template <class T>
__device__ void query_gradient_plain(const T* q, const T* k, const T* v, const T* d_o, const float* lse, const float* dot,
                                     T* dq, const u32* bounds, Shape shape) {
    u32 query = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, head = blockIdx.y;
    if (query >= shape.tokens) return;
    u32 key_head = head / (shape.query_heads / shape.key_heads), d = shape.d;
    u64 place = (u64)query * shape.query_heads + head;
    float row[PARTS], gradient[PARTS], result[PARTS] = {};
    read_row(row, q + place * d, d);
    read_row(gradient, d_o + place * d, d);
    for (u32 key = first_seen(shape, query, bounds[query]); key <= query; key++) {
        u64 other = ((u64)key * shape.key_heads + key_head) * d;
        float score = capped(shape, dot_row(row, k + other, d)), p = expf(score - lse[place]);
        float ds = p * (dot_row(gradient, v + other, d) - dot[place]) * slope(shape, score);
        add_row(result, ds, k + other, d);
    }
    write_row(dq + place * d, result, shape.scale, d);
}

template <class T>
__device__ void key_gradient_plain(const T* q, const T* k, const T* v, const T* d_o, const float* lse, const float* dot,
                                   T* dk, T* dv, const u32* bounds, Shape shape) {
    u32 key = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, key_head = blockIdx.y;
    if (key >= shape.tokens) return;
    u32 group = shape.query_heads / shape.key_heads, d = shape.d;
    u64 place = (u64)key * shape.key_heads + key_head;
    u32 end = bounds[shape.tokens + key];
    if (shape.window != 0) end = min(end, key + shape.window);
    float row[PARTS], value[PARTS], key_result[PARTS] = {}, value_result[PARTS] = {};
    read_row(row, k + place * d, d);
    read_row(value, v + place * d, d);
    for (u32 member = 0; member < group; member++)
        for (u32 query = key; query < end; query++) {
            u64 other = (u64)query * shape.query_heads + key_head * group + member;
            float score = capped(shape, dot_row(row, q + other * d, d)), p = expf(score - lse[other]);
            float ds = p * (dot_row(value, d_o + other * d, d) - dot[other]) * slope(shape, score);
            add_row(value_result, p, d_o + other * d, d);
            add_row(key_result, ds, q + other * d, d);
        }
    write_row(dk + place * d, key_result, shape.scale, d);
    write_row(dv + place * d, value_result, 1.0f, d);
}

// ---- instances -----------------------------------------------------------------------------------------------------

#define SHAPE u32 tokens, u32 query_heads, u32 key_heads, u32 d, u32 window, float scale, float cap
#define SHAPE_VALUE Shape{tokens, query_heads, key_heads, d, window, scale, cap}

// Forward, gradient of queries, gradient of keys: each as (warps, tiles of 16 rows a warp, rows of the other side[, tiles of them]).
#define TILED(T, E, D, FORWARD, QUERY, KEY)                                                                            \
    KERNEL __launch_bounds__(WARPS FORWARD * 32)                                                                       \
        attention_##E##_##D(const T* q, const T* k, const T* v, T* o, float* lse, const u32* bounds, SHAPE) {          \
        attend<T, THREE FORWARD, D>(q, k, v, o, lse, bounds, SHAPE_VALUE);                                             \
    }                                                                                                                  \
    EMULATE(attention_##E##_##D)                                                                                       \
    KERNEL __launch_bounds__(WARPS QUERY * 32) attention_query_##E##_##D(const T* q, const T* k, const T* v, const T* d_o, \
                                                               const float* lse, const float* dot, T* dq,              \
                                                               const u32* bounds, SHAPE) {                             \
        query_gradient<T, THREE QUERY, D, STAGES QUERY>(q, k, v, d_o, lse, dot, dq, bounds, SHAPE_VALUE);              \
    }                                                                                                                  \
    EMULATE(attention_query_##E##_##D)                                                                                 \
    KERNEL __launch_bounds__(WARPS KEY * 32) attention_key_##E##_##D(const T* q, const T* k, const T* v, const T* d_o, \
                                                             const float* lse, const float* dot, T* dk, T* dv,         \
                                                             const u32* bounds, SHAPE) {                               \
        key_gradient<T, THREE KEY, D, STAGES KEY>(q, k, v, d_o, lse, dot, dk, dv, bounds, SHAPE_VALUE);                \
    }                                                                                                                  \
    EMULATE(attention_key_##E##_##D)

#define WARPS(W, ...) W
#define THREE(W, R, N, ...) W, R, N
#define STAGES(W, R, N, S) S

#define PLAIN(T, E, N)                                                                                                 \
    KERNEL attention_dot_##E(const T* d_o, const T* o, float* dot, u32 rows, u32 d) {                                  \
        dot_rows<T>(d_o, o, dot, rows, d);                                                                             \
    }                                                                                                                  \
    EMULATE(attention_dot_##E)                                                                                         \
    KERNEL attention_plain_##E(const T* q, const T* k, const T* v, T* o, float* lse, const u32* bounds, SHAPE) {       \
        attend_plain<T>(q, k, v, o, lse, bounds, SHAPE_VALUE);                                                         \
    }                                                                                                                  \
    EMULATE(attention_plain_##E)                                                                                       \
    KERNEL attention_query_plain_##E(const T* q, const T* k, const T* v, const T* d_o, const float* lse,               \
                                     const float* dot, T* dq, const u32* bounds, SHAPE) {                              \
        query_gradient_plain<T>(q, k, v, d_o, lse, dot, dq, bounds, SHAPE_VALUE);                                      \
    }                                                                                                                  \
    EMULATE(attention_query_plain_##E)                                                                                 \
    KERNEL attention_key_plain_##E(const T* q, const T* k, const T* v, const T* d_o, const float* lse,                 \
                                   const float* dot, T* dk, T* dv, const u32* bounds, SHAPE) {                         \
        key_gradient_plain<T>(q, k, v, d_o, lse, dot, dk, dv, bounds, SHAPE_VALUE);                                    \
    }                                                                                                                  \
    EMULATE(attention_key_plain_##E)

// As TILES in attention.rs has them.
#define ALL_TILED(T, E)                                                                                                \
    TILED(T, E, 64, (4, 2, 64), (4, 2, 32, 2), (4, 2, 64, 2))                                                          \
    TILED(T, E, 96, (4, 2, 64), (4, 1, 32, 2), (4, 2, 32, 2))                                                          \
    TILED(T, E, 128, (4, 2, 64), (4, 1, 32, 2), (4, 2, 32, 2))                                                         \
    TILED(T, E, 256, (4, 1, 32), (2, 1, 32, 1), (4, 1, 32, 1))

ALL_TILED(bf16, bf16)
ALL_TILED(f16, f16)
FOR_EACH_ELEMENT(PLAIN)
