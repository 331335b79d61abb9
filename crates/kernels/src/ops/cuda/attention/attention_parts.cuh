// What the forms of attention share: shapes, what sees what, weights and their gradients, reading and writing of tiles.
//
// q, o, d_o (tokens, query heads, d), k, v (tokens, key heads, d), lse and dot (tokens, query heads) F32. `bounds` holds
// for each token the first token of its document and the one behind its last: (2, tokens). A query i sees the keys j with
// start(i) <= j <= i and i - j < window (0: no window).

#define LOG2E 1.4426950408889634f

struct Shape {
    u32 tokens, query_heads, key_heads, d;
    u32 window;
    float scale, cap;
};

#define SHAPE u32 tokens, u32 query_heads, u32 key_heads, u32 d, u32 window, float scale, float cap
#define SHAPE_VALUE Shape{tokens, query_heads, key_heads, d, window, scale, cap}

// First key that `query` sees, whose document begins at `start`; the last one is itself.
__device__ inline u32 first_seen(u32 window, u32 query, u32 start) {
    return window != 0 && query + 1 > window ? max(start, query + 1 - window) : start;
}

// What a warp has of a product: for each of its R tiles of 16 rows, N columns, as the matrix instructions leave them.
template <int R, int N> struct Part {
    float at[R][N / 8][4];
};

// ---- tiles ---------------------------------------------------------------------------------------------------------

// The largest power of two that divides a number.
template <int NUMBER> constexpr int POWER_IN = NUMBER & -NUMBER;

// Starts copying rows first.. of one head into a tile of ROWS rows and D columns; zeros beyond `tokens` and `d`. The pieces of 8
// elements lie as PLACE has them. THREADS of the block's threads copy, from number FIRST on, of which as many as a power of two allows
// have pieces of one row: a thread's next piece then lies a number of bytes further on that is known here. What does not exist is not
// read: the address may be any.
template <class T, class PLACE, int ROWS, int D, int THREADS, int FIRST = 0>
__device__ inline void copy_tile(T* tile, const T* from, u32 first, u32 head, u32 heads, u32 tokens, u32 d) {
    constexpr int ACROSS = POWER_IN<D / 8>, DOWN = THREADS / ACROSS;
    static_assert(PLACE::template IS_LINEAR<DOWN, ACROSS * 8>, "the next piece lies at a known distance");
    u32 thread = threadIdx.x - FIRST, row = thread / ACROSS, column = thread % ACROSS * 8, stride = heads * d * sizeof(T);
    T* to = tile + PLACE::of(row, column);
    #pragma unroll
    for (int across = 0; across < D; across += ACROSS * 8) {
        bool exists = column + across < d;
        const u8* place = reinterpret_cast<const u8*>(from + head * d + column + across) + (u64)(first + row) * stride;
        #pragma unroll PLACE::UNROLLED
        for (int down = 0; down < ROWS; down += DOWN, place += DOWN * stride)
            if (ROWS % DOWN == 0 || row + down < ROWS)
                copy_in_background(to + PLACE::of(down, across), place, first + row + down < tokens && exists);
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

// Columns 16 step .. 16 step + 15 of the rows of tile r as left operand: they lie as one already, but for the rounding.
template <class T, int R, int N> __device__ inline void as_left_operand(u32 (&a)[4], const Part<R, N>& part, int r, int step) {
    const float(&low)[4] = part.at[r][2 * step];
    const float(&high)[4] = part.at[r][2 * step + 1];
    a[0] = pair<T>(low[0], low[1]), a[1] = pair<T>(low[2], low[3]);
    a[2] = pair<T>(high[0], high[1]), a[3] = pair<T>(high[2], high[3]);
}

// ---- queries -------------------------------------------------------------------------------------------------------

// The queries of a warp and what they see.
template <int R> struct Queries {
    // Of the existing ones; nothing is seen where first > last.
    u32 first, last;
    // The first keys that they see.
    u32 first_of_first, first_of_last;
    const u32* bounds;
    u32 window;

    __device__ inline Queries(const Shape& shape, const u32* bounds, u32 from, u32 behind) : bounds(bounds), window(shape.window) {
        first = from, last = min(from + 16 * R, behind) - 1;
        first_of_first = first_seen(window, first, bounds[min(first, last)]);
        first_of_last = first_seen(window, last, bounds[last]);
    }

    // The lane's row of the upper or lower half of a tile.
    __device__ inline u32 row(int r, int half) const { return first + 16 * r + threadIdx.x % 32 / 4 + 8 * half; }

    // Whether any of the queries sees any of N keys.
    template <int N> __device__ inline bool see_any(u32 key) const {
        return first <= last && key <= last && key + N > first_of_first;
    }

    // Puts `value` where a query does not see one of N keys from `key` on.
    template <int N> __device__ inline void mask(Part<R, N>& part, u32 key, float value) const {
        if (key + N - 1 <= first && key >= first_of_last) return;
        #pragma unroll
        for (int r = 0; r < R; r++)
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 query = row(r, half), from = first_seen(window, query, bounds[min(query, last)]);
                // From the first key that is seen to the lane's first one; below it there are only numbers above all of them.
                u32 distance = key + threadIdx.x % 4 * 2 - from, seen = query - from;
                #pragma unroll
                for (int tile = 0; tile < N / 8; tile++)
                    for (int i = 0; i < 2; i++)
                        if (distance + tile * 8 + i > seen) part.at[r][tile][2 * half + i] = value;
            }
    }

    // Of each row `factor` times the value at (row, head) of a tensor of all queries.
    __device__ inline void read(float (&values)[R][2], const float* from, u32 head, u32 heads, float factor) const {
        for (int r = 0; r < R; r++)
            for (int half = 0; half < 2; half++)
                values[r][half] = from[(u64)min(row(r, half), last) * heads + head] * factor;
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

// ---- forward -------------------------------------------------------------------------------------------------------

// Sum and maximum over the four lanes that share a row.
__device__ inline float quad_sum(float value) {
    value += __shfl_xor_sync(0xffffffff, value, 1);
    return value + __shfl_xor_sync(0xffffffff, value, 2);
}

__device__ inline float quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffff, value, 2));
}

// The softmax of a warp's rows as the keys come.
template <int R> struct Softmax {
    // The largest score of a row, in its own units, their factor, and the sum of the weights.
    float largest[R][2], unit, sum[R][2];

    __device__ inline Softmax() : unit(0), sum{} {
        for (int r = 0; r < R; r++) largest[r][0] = largest[r][1] = -INFINITE;
    }

    // Makes weights of products with N keys. What was summed before has to be multiplied by `shrink`.
    template <int N>
    __device__ inline void weigh(const Shape& shape, const Queries<R>& rows, Part<R, N>& scores, u32 key, float (&shrink)[R][2]) {
        unit = cap_scores(shape, scores);
        rows.template mask<N>(scores, key, -INFINITE);
        #pragma unroll
        for (int r = 0; r < R; r++)
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                float before = largest[r][half], now = before, part = 0;
                #pragma unroll
                for (int tile = 0; tile < N / 8; tile++)
                    now = fmaxf(now, fmaxf(scores.at[r][tile][2 * half], scores.at[r][tile][2 * half + 1]));
                largest[r][half] = now = quad_max(now);
                // A row that has seen no key yet.
                float base = now == -INFINITE ? 0.0f : now * unit;
                shrink[r][half] = power_of_2(before * unit - base);
                #pragma unroll
                for (int tile = 0; tile < N / 8; tile++)
                    for (int i = 2 * half; i < 2 * half + 2; i++) {
                        float weight = power_of_2(scores.at[r][tile][i] * unit - base);
                        scores.at[r][tile][i] = weight;
                        part += weight;
                    }
                sum[r][half] = sum[r][half] * shrink[r][half] + part;
            }
    }

    // Brings the sum of weighted values to the weights now.
    template <int D> static __device__ inline void rescale(Part<R, D>& result, const float (&shrink)[R][2]) {
        #pragma unroll
        for (int r = 0; r < R; r++)
            #pragma unroll
            for (int tile = 0; tile < D / 8; tile++)
                for (int i = 0; i < 4; i++) result.at[r][tile][i] *= shrink[r][i / 2];
    }

    // Writes the result's rows and their lse.
    template <class T, int D>
    __device__ inline void write(const Shape& shape, const Queries<R>& rows, const Part<R, D>& result, T* o, float* lse, u32 head) {
        #pragma unroll
        for (int r = 0; r < R; r++) {
            sum[r][0] = quad_sum(sum[r][0]), sum[r][1] = quad_sum(sum[r][1]);
            write_rows<T, D>(o, result.at[r], 1.0f / sum[r][0], 1.0f / sum[r][1], rows.first + 16 * r, 0, head,
                             shape.query_heads, shape.tokens, shape.d);
            for (int half = 0; half < 2; half++)
                if (threadIdx.x % 4 == 0 && rows.row(r, half) < shape.tokens)
                    lse[(u64)rows.row(r, half) * shape.query_heads + head] =
                        largest[r][half] * unit / LOG2E + logf(sum[r][half]);
        }
    }
};

// ---- backward ------------------------------------------------------------------------------------------------------

// Subtracts the dot of their query from products d_o v^T.
template <int R, int N> __device__ inline void subtract_dots(Part<R, N>& products, const float (&dot)[R][2]) {
    #pragma unroll
    for (int r = 0; r < R; r++)
        #pragma unroll
        for (int tile = 0; tile < N / 8; tile++)
            for (int i = 0; i < 4; i++) products.at[r][tile][i] -= dot[r][i / 2];
}

// Makes weights of scores, which `unit` brings to units of log2, as lse is.
template <int R, int N>
__device__ inline void weigh_keys(Part<R, N>& scores, const Queries<R>& rows, u32 key, float unit, const float (&lse)[R][2]) {
    #pragma unroll
    for (int r = 0; r < R; r++)
        #pragma unroll
        for (int tile = 0; tile < N / 8; tile++)
            for (int i = 0; i < 4; i++)
                scores.at[r][tile][i] = power_of_2(scores.at[r][tile][i] * unit - lse[r][i / 2]);
    rows.template mask<N>(scores, key, 0);
}

template <int R, int N> __device__ inline void multiply_by(Part<R, N>& products, const Part<R, N>& weights) {
    #pragma unroll
    for (int r = 0; r < R; r++)
        #pragma unroll
        for (int tile = 0; tile < N / 8; tile++)
            for (int i = 0; i < 4; i++) products.at[r][tile][i] *= weights.at[r][tile][i];
}

// Makes gradients of scores, but for the scale, of the products d_o v^T of N keys, and weights of `scores`, which are products q k^T.
// lse is in units of log2.
template <int R, int N>
__device__ inline void slopes_of_queries(const Shape& shape, const Queries<R>& rows, Part<R, N>& products, Part<R, N>& scores, u32 key,
                                         const float (&lse)[R][2], const float (&dot)[R][2]) {
    float unit = cap_scores(shape, scores);
    subtract_dots(products, dot);
    uncap(shape, products, scores);
    weigh_keys(scores, rows, key, unit, lse);
    multiply_by(products, scores);
}

// What the gradient of keys needs of a query beside its tensors.
struct QueryNumbers {
    float lse, dot;
    // The first key that it sees.
    u32 first;

    static __device__ inline QueryNumbers read(const float* lse, const float* dot, const u32* bounds, u32 query, u32 head,
                                               const Shape& shape) {
        u32 token = min(query, shape.tokens - 1);
        u64 place = (u64)token * shape.query_heads + head;
        // A query that is not there sees nothing.
        return {lse[place], dot[place], query < shape.tokens ? first_seen(shape.window, token, bounds[token]) : 0xffffffffu};
    }
};

// N queries of one head as the gradient of keys reads them, which THREADS threads from number FIRST on copy. `queries` and `gradients` lie
// as PLACE has them.
template <class T, class PLACE, int N, int D, int THREADS, int FIRST = 0> struct QueryTile {
    T* queries;
    T* gradients;
    float* lse;
    float* dot;
    u32* first;

    // Bytes of the numbers beside the tiles.
    static constexpr u32 NUMBERS = 12 * N;

    __device__ inline QueryTile(T* tiles, u8* numbers) {
        queries = tiles;
        gradients = tiles + PLACE::SIZE;
        lse = reinterpret_cast<float*>(numbers);
        dot = lse + N;
        first = reinterpret_cast<u32*>(dot + N);
    }

    // Starts copying.
    __device__ inline void fill(const T* q, const T* d_o, u32 query, u32 head, const Shape& shape) {
        copy_tile<T, PLACE, N, D, THREADS, FIRST>(queries, q, query, head, shape.query_heads, shape.tokens, shape.d);
        copy_tile<T, PLACE, N, D, THREADS, FIRST>(gradients, d_o, query, head, shape.query_heads, shape.tokens, shape.d);
        end_copies();
    }

    // Of the thread's query, which is one of N from `query` on.
    static __device__ inline QueryNumbers read(const float* lse, const float* dot, const u32* bounds, u32 query, u32 head,
                                               const Shape& shape) {
        return QueryNumbers::read(lse, dot, bounds, query + threadIdx.x - FIRST, head, shape);
    }

    // Writes the thread's numbers, which were read before so that nobody waits for them here.
    __device__ inline void keep(const QueryNumbers& numbers) {
        u32 own = threadIdx.x - FIRST;
        if (own < N) {
            lse[own] = numbers.lse * LOG2E;
            dot[own] = numbers.dot;
            first[own] = numbers.first;
        }
    }
};

// As subtract_dots, where columns are H queries of a tile of N from `column` on.
template <int R, int H, class TILE> __device__ inline void subtract_dots(Part<R, H>& products, const TILE& tile, u32 column) {
    #pragma unroll
    for (int r = 0; r < R; r++)
        #pragma unroll
        for (int at = 0; at < H / 8; at++)
            for (int i = 0; i < 4; i++) products.at[r][at][i] -= tile.dot[column + at * 8 + threadIdx.x % 4 * 2 + i % 2];
}

// Makes weights of scores, as weigh_keys does, whose rows are keys, from `lowest` on, and whose columns are H queries of a tile of N from
// `column` on. The tile's first query is `query`.
template <int N, int R, int H, class TILE>
__device__ inline void weigh_queries(Part<R, H>& scores, const TILE& tile, u32 query, u32 column, u32 lowest, float unit) {
    u32 lane = threadIdx.x % 32;
    #pragma unroll
    for (int r = 0; r < R; r++)
        #pragma unroll
        for (int at = 0; at < H / 8; at++)
            for (int i = 0; i < 4; i++)
                scores.at[r][at][i] = power_of_2(scores.at[r][at][i] * unit - tile.lse[column + at * 8 + lane % 4 * 2 + i % 2]);
    // Some of the keys are not seen by some of the queries: one branch over all of it, both numbers being there.
    if ((query < lowest + 16 * R - 1) | (tile.first[N - 1] > lowest)) {
        #pragma unroll
        for (int at = 0; at < H / 8; at++)
            #pragma unroll
            for (int i = 0; i < 2; i++) {
                u32 own = column + at * 8 + lane % 4 * 2 + i, from = tile.first[own];
                #pragma unroll
                for (int r = 0; r < R; r++)
                    for (int half = 0; half < 2; half++) {
                        u32 key = lowest + 16 * r + lane / 4 + 8 * half;
                        if (key < from || key > query + own) scores.at[r][at][2 * half + i] = 0;
                    }
            }
    }
}

// Makes weights of products k q^T, as weigh_queries does, and gradients of scores, but for the scale, of products v d_o^T.
template <int N, int R, int H, class TILE>
__device__ inline void slopes_of_keys(const Shape& shape, Part<R, H>& products, Part<R, H>& scores, const TILE& tile, u32 query,
                                      u32 column, u32 lowest) {
    float unit = cap_scores(shape, scores);
    subtract_dots(products, tile, column);
    uncap(shape, products, scores);
    weigh_queries<N>(scores, tile, query, column, lowest, unit);
    multiply_by(products, scores);
}

// Queries that see keys of a tile: heads of the group one behind the other, N queries at a time.
struct QueryWalk {
    u32 begin, end, query, head, behind;

    // `first` and `last` of the tile's keys.
    template <int N>
    static __device__ inline QueryWalk over(const Shape& shape, const u32* bounds, u32 first, u32 last, u32 key_head) {
        u32 group = shape.query_heads / shape.key_heads;
        // Behind the last query that sees any key of the tile.
        u32 end = bounds[shape.tokens + last];
        if (shape.window != 0) end = min(end, last + shape.window);
        return {first / N * N, end, first / N * N, key_head * group, key_head * group + group};
    }

    template <int N> __device__ inline QueryWalk next() const {
        QueryWalk next = *this;
        next.query += N;
        if (next.query >= end) next.query = begin, next.head++;
        return next;
    }

    __device__ inline bool is_over() const { return head == behind; }
};
