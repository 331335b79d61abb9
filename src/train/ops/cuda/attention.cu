// Causal attention within documents (FlashAttention-2, Dao 2023, https://arxiv.org/abs/2307.08691), BF16 and F16 on tensor
// cores, and a plain form for F32 and odd head sizes.
//
// q, o, d_o (tokens, query heads, d), k, v (tokens, key heads, d), lse and dot (tokens, query heads) F32. `bounds` holds
// for each token the first token of its document and the one behind its last: (2, tokens). A query i sees the keys j with
// start(i) <= j <= i and i - j < window (0: no window).
//
// A tile is 16 rows for each of the block's warps. Its rows lie in shared memory with 16 bytes between them, so that the
// eight rows that a tile load takes at once fall into different banks. Scores are kept in units of log2.

#define LOG2E 1.4426950408889634f

struct Shape {
    u32 tokens, query_heads, key_heads, d;
    u32 window;
    float scale, cap;
};

__device__ inline bool sees(const Shape& shape, u32 query, u32 key, u32 start) {
    return key <= query && key >= start && (shape.window == 0 || query - key < shape.window);
}

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

// Right operand of a product with a tile: its rows 16 step .. are summed over, its columns 16 pair .. are those of the
// result.
template <class T, int D> __device__ inline void right_straight(u32 (&b)[4], const T* tile, u32 step, u32 pair) {
    u32 lane = threadIdx.x % 32;
    load_tiles_transposed(b, tile + (step * 16 + lane % 16) * STRIDE<D> + pair * 16 + lane / 16 * 8);
}

template <class T> __device__ inline void multiply_pair(float (&first)[4], float (&second)[4], const u32 (&a)[4], const u32 (&b)[4]) {
    const u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
    multiply_tile(first, a, low, T{});
    multiply_tile(second, a, high, T{});
}

// result (16 rows of a warp, N) = left rows times the transpose of `right` (N rows).
template <class T, int N, int D>
__device__ inline void scores_of(float (&result)[N / 8][4], const T* left, u32 row, const T* right) {
    #pragma unroll
    for (int column = 0; column < N / 8; column++)
        for (int i = 0; i < 4; i++) result[column][i] = 0;
    #pragma unroll
    for (int step = 0; step < D / 16; step++) {
        u32 a[4];
        left_operand<T, D>(a, left, row, step);
        #pragma unroll
        for (int pair = 0; pair < N / 16; pair++) {
            u32 b[4];
            right_transposed<T, D>(b, right, pair, step);
            multiply_pair<T>(result[2 * pair], result[2 * pair + 1], a, b);
        }
    }
}

// result (16 rows, D) += weights (16 rows, N) times `right` (N rows, D). The weights lie as the scores do, which is how a
// left operand lies, too.
template <class T, int N, int D>
__device__ inline void add_weighted(float (&result)[D / 8][4], const float (&weights)[N / 8][4], const T* right) {
    #pragma unroll
    for (int step = 0; step < N / 16; step++) {
        const float(&low)[4] = weights[2 * step];
        const float(&high)[4] = weights[2 * step + 1];
        const u32 a[4] = {pair<T>(low[0], low[1]), pair<T>(low[2], low[3]), pair<T>(high[0], high[1]),
                          pair<T>(high[2], high[3])};
        #pragma unroll
        for (int columns = 0; columns < D / 16; columns++) {
            u32 b[4];
            right_straight<T, D>(b, right, step, columns);
            multiply_pair<T>(result[2 * columns], result[2 * columns + 1], a, b);
        }
    }
}

// Writes a warp's 16 rows of D values, of which d and the rows below `tokens` exist.
template <class T, int D>
__device__ inline void write_rows(T* to, const float (&values)[D / 8][4], float scale0, float scale1, u32 first, u32 head,
                                  u32 heads, u32 tokens, u32 d) {
    u32 lane = threadIdx.x % 32, row0 = first + lane / 4, row1 = row0 + 8;
    #pragma unroll
    for (int tile = 0; tile < D / 8; tile++) {
        u32 column = tile * 8 + lane % 4 * 2;
        if (column >= d) continue;
        if (row0 < tokens)
            *reinterpret_cast<u32*>(to + ((u64)row0 * heads + head) * d + column) =
                pair<T>(values[tile][0] * scale0, values[tile][1] * scale0);
        if (row1 < tokens)
            *reinterpret_cast<u32*>(to + ((u64)row1 * heads + head) * d + column) =
                pair<T>(values[tile][2] * scale1, values[tile][3] * scale1);
    }
}

// First key that any query from `first` on sees, rounded down to a tile.
template <int N> __device__ inline u32 first_key(const Shape& shape, const u32* bounds, u32 first) {
    u32 key = bounds[first];
    if (shape.window != 0 && first + 1 > shape.window) key = max(key, first + 1 - shape.window);
    return key / N * N;
}

// Whether every query of first..last sees every key of key..key + N - 1, so that nothing needs to be masked.
template <int N>
__device__ inline bool all_seen(const Shape& shape, u32 first, u32 last, u32 key, u32 start_of_last) {
    return key + N - 1 <= first && key >= start_of_last && (shape.window == 0 || last - key < shape.window);
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

template <class T, int M, int N, int D>
__device__ void attend(const T* q, const T* k, const T* v, T* o, float* lse, const u32* bounds, Shape shape) {
    DYNAMIC_SHARED(memory);
    T* queries = reinterpret_cast<T*>(memory);
    T* keys = queries + M * STRIDE<D>;
    T* values = keys + N * STRIDE<D>;
    // The last tiles have the most keys: they go first.
    u32 first = (gridDim.x - 1 - blockIdx.x) * M, head = blockIdx.y, key_head = head / (shape.query_heads / shape.key_heads);
    u32 last = min(first + M, shape.tokens) - 1;
    u32 lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16;
    u32 row[2] = {first + warp_row + lane / 4, first + warp_row + lane / 4 + 8};
    u32 start[2] = {bounds[min(row[0], last)], bounds[min(row[1], last)]};
    u32 begin = first_key<N>(shape, bounds, first), start_of_last = bounds[last];
    copy_tile<T, M, D>(queries, q, first, head, shape.query_heads, shape.tokens, shape.d);
    copy_tile<T, N, D>(keys, k, begin, key_head, shape.key_heads, shape.tokens, shape.d);
    end_copies();
    float result[D / 8][4] = {}, largest[2] = {-INFINITE, -INFINITE}, sum[2] = {0, 0};
    for (u32 key = begin; key <= last; key += N) {
        wait_for_copies<0>();
        __syncthreads();
        copy_tile<T, N, D>(values, v, key, key_head, shape.key_heads, shape.tokens, shape.d);
        end_copies();
        float scores[N / 8][4];
        scores_of<T, N, D>(scores, queries, warp_row, keys);
        bool masked = !all_seen<N>(shape, first, last, key, start_of_last);
        float before[2] = {largest[0], largest[1]};
        #pragma unroll
        for (int tile = 0; tile < N / 8; tile++)
            for (int i = 0; i < 4; i++) {
                u32 column = key + tile * 8 + lane % 4 * 2 + i % 2;
                float score = capped(shape, scores[tile][i]) * LOG2E;
                if (masked && !sees(shape, row[i / 2], column, start[i / 2])) score = -INFINITE;
                scores[tile][i] = score;
                largest[i / 2] = fmaxf(largest[i / 2], score);
            }
        float shrink[2], base[2];
        for (int half = 0; half < 2; half++) {
            largest[half] = quad_max(largest[half]);
            // A row that has seen no key yet.
            base[half] = largest[half] == -INFINITE ? 0.0f : largest[half];
            shrink[half] = exp2f(before[half] - base[half]);
            sum[half] *= shrink[half];
        }
        #pragma unroll
        for (int tile = 0; tile < N / 8; tile++)
            for (int i = 0; i < 4; i++) {
                scores[tile][i] = exp2f(scores[tile][i] - base[i / 2]);
                sum[i / 2] += scores[tile][i];
            }
        #pragma unroll
        for (int tile = 0; tile < D / 8; tile++)
            for (int i = 0; i < 4; i++) result[tile][i] *= shrink[i / 2];
        wait_for_copies<0>();
        __syncthreads();
        if (key + N <= last) copy_tile<T, N, D>(keys, k, key + N, key_head, shape.key_heads, shape.tokens, shape.d);
        end_copies();
        add_weighted<T, N, D>(result, scores, values);
    }
    wait_for_copies<0>();
    sum[0] = quad_sum(sum[0]), sum[1] = quad_sum(sum[1]);
    write_rows<T, D>(o, result, 1.0f / sum[0], 1.0f / sum[1], first + warp_row, head, shape.query_heads, shape.tokens,
                     shape.d);
    for (int half = 0; half < 2; half++)
        if (lane % 4 == 0 && row[half] < shape.tokens)
            lse[(u64)row[half] * shape.query_heads + head] = largest[half] / LOG2E + logf(sum[half]);
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

// dq = scale sum of ds k, one tile of queries a block.
template <class T, int M, int N, int D>
__device__ void query_gradient(const T* q, const T* k, const T* v, const T* d_o, const float* lse, const float* dot, T* dq,
                               const u32* bounds, Shape shape) {
    DYNAMIC_SHARED(memory);
    T* queries = reinterpret_cast<T*>(memory);
    T* gradients = queries + M * STRIDE<D>;
    T* keys = gradients + M * STRIDE<D>;
    T* values = keys + N * STRIDE<D>;
    u32 first = (gridDim.x - 1 - blockIdx.x) * M, head = blockIdx.y, key_head = head / (shape.query_heads / shape.key_heads);
    u32 last = min(first + M, shape.tokens) - 1;
    u32 lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16;
    u32 row[2] = {first + warp_row + lane / 4, first + warp_row + lane / 4 + 8}, start[2];
    float row_lse[2], row_dot[2];
    for (int half = 0; half < 2; half++) {
        u32 token = min(row[half], last);
        start[half] = bounds[token];
        row_lse[half] = lse[(u64)token * shape.query_heads + head] * LOG2E;
        row_dot[half] = dot[(u64)token * shape.query_heads + head];
    }
    u32 begin = first_key<N>(shape, bounds, first), start_of_last = bounds[last];
    copy_tile<T, M, D>(queries, q, first, head, shape.query_heads, shape.tokens, shape.d);
    copy_tile<T, M, D>(gradients, d_o, first, head, shape.query_heads, shape.tokens, shape.d);
    float result[D / 8][4] = {};
    for (u32 key = begin; key <= last; key += N) {
        copy_tile<T, N, D>(keys, k, key, key_head, shape.key_heads, shape.tokens, shape.d);
        copy_tile<T, N, D>(values, v, key, key_head, shape.key_heads, shape.tokens, shape.d);
        end_copies();
        wait_for_copies<0>();
        __syncthreads();
        float scores[N / 8][4], products[N / 8][4];
        scores_of<T, N, D>(scores, queries, warp_row, keys);
        scores_of<T, N, D>(products, gradients, warp_row, values);
        bool masked = !all_seen<N>(shape, first, last, key, start_of_last);
        #pragma unroll
        for (int tile = 0; tile < N / 8; tile++)
            for (int i = 0; i < 4; i++) {
                u32 column = key + tile * 8 + lane % 4 * 2 + i % 2;
                float score = capped(shape, scores[tile][i]);
                float p = exp2f(score * LOG2E - row_lse[i / 2]);
                if (masked && !sees(shape, row[i / 2], column, start[i / 2])) p = 0;
                scores[tile][i] = p * (products[tile][i] - row_dot[i / 2]) * slope(shape, score);
            }
        add_weighted<T, N, D>(result, scores, keys);
        __syncthreads();
    }
    write_rows<T, D>(dq, result, shape.scale, shape.scale, first + warp_row, head, shape.query_heads, shape.tokens,
                     shape.d);
}

// dk = scale sum of ds q and dv = sum of p d_o over all queries and all heads of the group: one tile of keys a block, so
// that every sum is made in a fixed order. Rows of the products are keys here, columns queries.
template <class T, int M, int N, int D>
__device__ void key_gradient(const T* q, const T* k, const T* v, const T* d_o, const float* lse, const float* dot, T* dk,
                             T* dv, const u32* bounds, Shape shape) {
    DYNAMIC_SHARED(memory);
    T* keys = reinterpret_cast<T*>(memory);
    T* values = keys + M * STRIDE<D>;
    T* queries = values + M * STRIDE<D>;
    T* gradients = queries + N * STRIDE<D>;
    float* tile_lse = reinterpret_cast<float*>(gradients + N * STRIDE<D>);
    float* tile_dot = tile_lse + N;
    u32* tile_start = reinterpret_cast<u32*>(tile_dot + N);
    u32 first = blockIdx.x * M, key_head = blockIdx.y, group = shape.query_heads / shape.key_heads;
    u32 last = min(first + M, shape.tokens) - 1;
    u32 lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16;
    u32 row[2] = {first + warp_row + lane / 4, first + warp_row + lane / 4 + 8};
    // Behind the last query that sees any key of the tile.
    u32 end = bounds[shape.tokens + last];
    if (shape.window != 0) end = min(end, last + shape.window);
    copy_tile<T, M, D>(keys, k, first, key_head, shape.key_heads, shape.tokens, shape.d);
    copy_tile<T, M, D>(values, v, first, key_head, shape.key_heads, shape.tokens, shape.d);
    float key_result[D / 8][4] = {}, value_result[D / 8][4] = {};
    for (u32 member = 0; member < group; member++) {
        u32 head = key_head * group + member;
        for (u32 query = first / N * N; query < end; query += N) {
            copy_tile<T, N, D>(queries, q, query, head, shape.query_heads, shape.tokens, shape.d);
            copy_tile<T, N, D>(gradients, d_o, query, head, shape.query_heads, shape.tokens, shape.d);
            end_copies();
            for (u32 index = threadIdx.x; index < N; index += blockDim.x) {
                u32 token = min(query + index, shape.tokens - 1);
                tile_lse[index] = lse[(u64)token * shape.query_heads + head] * LOG2E;
                tile_dot[index] = dot[(u64)token * shape.query_heads + head];
                // A query that is not there sees nothing.
                tile_start[index] = query + index < shape.tokens ? bounds[token] : 0xffffffffu;
            }
            wait_for_copies<0>();
            __syncthreads();
            float scores[N / 8][4], products[N / 8][4];
            scores_of<T, N, D>(scores, keys, warp_row, queries);
            scores_of<T, N, D>(products, values, warp_row, gradients);
            #pragma unroll
            for (int tile = 0; tile < N / 8; tile++)
                for (int i = 0; i < 4; i++) {
                    u32 column = tile * 8 + lane % 4 * 2 + i % 2;
                    float score = capped(shape, scores[tile][i]);
                    float p = exp2f(score * LOG2E - tile_lse[column]);
                    if (!sees(shape, query + column, row[i / 2], tile_start[column])) p = 0;
                    scores[tile][i] = p;
                    products[tile][i] = p * (products[tile][i] - tile_dot[column]) * slope(shape, score);
                }
            add_weighted<T, N, D>(value_result, scores, gradients);
            add_weighted<T, N, D>(key_result, products, queries);
            __syncthreads();
        }
    }
    wait_for_copies<0>();
    write_rows<T, D>(dk, key_result, shape.scale, shape.scale, first + warp_row, key_head, shape.key_heads, shape.tokens,
                     shape.d);
    write_rows<T, D>(dv, value_result, 1.0f, 1.0f, first + warp_row, key_head, shape.key_heads, shape.tokens, shape.d);
}

// ---- plain form ----------------------------------------------------------------------------------------------------
//
// A warp for each row; lane l holds the elements l, l + 32, ... of a head of up to 256.

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
    for (u32 key = first_key<1>(shape, bounds, query); key <= query; key++) {
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
    for (u32 key = first_key<1>(shape, bounds, query); key <= query; key++) {
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

// M rows of a block (16 a warp), N of the other side: forward, then both gradients.
#define TILED(T, E, D, M, N, BM, BN)                                                                                   \
    KERNEL __launch_bounds__(M * 2) attention_##E##_##D(const T* q, const T* k, const T* v, T* o, float* lse,          \
                                                        const u32* bounds, SHAPE) {                                    \
        attend<T, M, N, D>(q, k, v, o, lse, bounds, SHAPE_VALUE);                                                      \
    }                                                                                                                  \
    EMULATE(attention_##E##_##D)                                                                                       \
    KERNEL __launch_bounds__(BM * 2) attention_query_##E##_##D(const T* q, const T* k, const T* v, const T* d_o,       \
                                                               const float* lse, const float* dot, T* dq,              \
                                                               const u32* bounds, SHAPE) {                             \
        query_gradient<T, BM, BN, D>(q, k, v, d_o, lse, dot, dq, bounds, SHAPE_VALUE);                                 \
    }                                                                                                                  \
    EMULATE(attention_query_##E##_##D)                                                                                 \
    KERNEL __launch_bounds__(BM * 2) attention_key_##E##_##D(const T* q, const T* k, const T* v, const T* d_o,         \
                                                             const float* lse, const float* dot, T* dk, T* dv,         \
                                                             const u32* bounds, SHAPE) {                               \
        key_gradient<T, BM, BN, D>(q, k, v, d_o, lse, dot, dk, dv, bounds, SHAPE_VALUE);                               \
    }                                                                                                                  \
    EMULATE(attention_key_##E##_##D)

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

#define ALL_TILED(T, E)                                                                                                \
    TILED(T, E, 64, 64, 64, 64, 64)                                                                                    \
    TILED(T, E, 96, 64, 64, 64, 32)                                                                                    \
    TILED(T, E, 128, 64, 64, 64, 32)                                                                                   \
    TILED(T, E, 256, 64, 32, 32, 32)

ALL_TILED(bf16, bf16)
ALL_TILED(f16, f16)
FOR_EACH_ELEMENT(PLAIN)
