// Products of groups of rows, each with a matrix of its own (grouped.rs): the experts of a mixture.
//
//   sums:       y (R, N)  = sum of scale x w, or of scale x w^T, over up to four terms
//   gradients:  into (G M, N) += alpha a^T b of each group's rows
//
// Nothing is padded: a block has a tile of one group's rows. A matrix is found through `table`, or lies `w` and a multiple of its size from there. Rows may begin anywhere: where they are not multiples of
// 16 bytes apart, they are copied element by element.

#include "groups.cuh"
#include "operands.cuh"

#define THREADS 256
#define ROWS TILE_ROWS
// Summed over in one step.
#define DEPTH 32
#define STAGES 3

// One product of a sum. What was summed before it is multiplied by `factor` first.
template <class T> struct Term {
    const T *x, *w;
    const u64* table;
    u32 stride, depth; // of x
    float factor;

    __device__ inline const T* matrix(u32 group, u32 columns) const {
        return table ? reinterpret_cast<const T*>(table[group]) : w + (u64)group * columns * depth;
    }
};

template <class T> struct Terms {
    Term<T> all[4];
    u32 count;

    // Without an index into registers.
    __device__ inline Term<T> of(u32 number) const { return number == 0 ? all[0] : number == 1 ? all[1] : number == 2 ? all[2] : all[3]; }

    __device__ inline u32 steps() const {
        u32 steps = 0;
        #pragma unroll
        for (int i = 0; i < 4; i++) steps += (u32)i < count ? (all[i].depth + DEPTH - 1) / DEPTH : 0;
        return steps;
    }
};

// Rows of a matrix that is read in tiles.
template <class T> struct Rows {
    const T* start;
    u32 stride, rows, columns;
    bool aligned;

    __device__ inline Rows(const T* start, u32 stride, u32 rows, u32 columns)
        : start(start), stride(stride), rows(rows), columns(columns),
          aligned((stride | columns) % 8 == 0 && reinterpret_cast<u64>(start) % 16 == 0) {}

    // Copies 8 neighbours, zeros where the matrix has none.
    __device__ inline void copy(T* to, u32 row, u32 column) const {
        u32 count = row < rows && column < columns ? min(columns - column, 8u) : 0;
        if (aligned) {
            copy_in_background(to, count ? start + (u64)row * stride + column : start, count > 0);
            return;
        }
        const T* from = start + (u64)row * stride + column;
        for (u32 i = 0; i < 8; i++) to[i] = i < count ? from[i] : narrow<T>(0.0f);
    }

    // Copies HEIGHT rows of WIDTH columns into rows that are 8 elements longer.
    template <int HEIGHT, int WIDTH> __device__ inline void copy_tile(T* to, u32 row, u32 column) const {
        constexpr int all = HEIGHT * WIDTH / 8, each = (all + THREADS - 1) / THREADS;
        #pragma unroll
        for (int i = 0; i < each; i++) {
            u32 chunk = i * THREADS + threadIdx.x, y = chunk / (WIDTH / 8), x = chunk % (WIDTH / 8) * 8;
            if (all % THREADS == 0 || chunk < all) copy(to + y * (WIDTH + 8) + x, row + y, column + x);
        }
    }
};

// ---- sums ----------------------------------------------------------------------------------------------------------

// Warps that lie below each other in a tile, and rows of one; a warp has 32 columns.
template <int COLUMNS> struct Warps {
    static constexpr int below = 8 / (COLUMNS / 32), rows = ROWS / below, tiles = rows / 16;
};

// What a block has in shared memory of one step.
template <class T, int COLUMNS, bool TRANSPOSED> struct alignas(16) Stage {
    T x[ROWS * (DEPTH + 8)];
    T w[TRANSPOSED ? COLUMNS * (DEPTH + 8) : DEPTH * (COLUMNS + 8)];
};

template <class T, int COLUMNS, bool TRANSPOSED> struct Sums {
    using S = Stage<T, COLUMNS, TRANSPOSED>;
    using W = Warps<COLUMNS>;
    const Terms<T>& terms;
    u32 group, matrix, row, last_row, column, columns;

    // One step of a term.
    __device__ inline void fetch(S& stage, const Term<T>& term, u32 step) const {
        Rows<T> x(term.x + (u64)row * term.stride, term.stride, last_row - row, term.depth);
        x.template copy_tile<ROWS, DEPTH>(stage.x, 0, step * DEPTH);
        const T* w = term.matrix(matrix, columns);
        if (TRANSPOSED) Rows<T>(w, term.depth, columns, term.depth).template copy_tile<COLUMNS, DEPTH>(stage.w, column, step * DEPTH);
        else Rows<T>(w, columns, term.depth, columns).template copy_tile<DEPTH, COLUMNS>(stage.w, step * DEPTH, column);
    }

    __device__ inline void add(float (&sums)[W::tiles][4][4], const S& stage) const {
        u32 warp = threadIdx.x / 32, first_row = warp % W::below * W::rows, first_column = warp / W::below * 32;
        #pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            u32 right[2][4];
            #pragma unroll
            for (int n = 0; n < 2; n++) {
                if (TRANSPOSED) right_transposed<DEPTH + 8>(right[n], stage.w, first_column + 16 * n, k);
                else right_straight<COLUMNS + 8>(right[n], stage.w, k, first_column + 16 * n);
            }
            #pragma unroll
            for (int m = 0; m < W::tiles; m++) {
                u32 left[4];
                left_operand<DEPTH + 8>(left, stage.x, first_row + 16 * m, k);
                #pragma unroll
                for (int n = 0; n < 2; n++) multiply_pair<T>(sums[m][2 * n], sums[m][2 * n + 1], left, right[n]);
            }
        }
    }

    __device__ inline void put(float (&sums)[W::tiles][4][4], T* y, float last) const {
        u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        #pragma unroll
        for (int m = 0; m < W::tiles; m++) {
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 at = row + warp % W::below * W::rows + 16 * m + lane / 4 + 8 * half;
                if (at >= last_row) continue;
                #pragma unroll
                for (int n = 0; n < 4; n++) {
                    u32 to = column + warp / W::below * 32 + 8 * n + lane % 4 * 2;
                    float first = last * sums[m][n][2 * half], second = last * sums[m][n][2 * half + 1];
                    u64 place = (u64)at * columns + to;
                    if (columns % 2 == 0 && to < columns) {
                        store<T, 2>(y, place / 2, {narrow<T>(first), narrow<T>(second)});
                    } else {
                        if (to < columns) y[place] = narrow<T>(first);
                        if (to + 1 < columns) y[place + 1] = narrow<T>(second);
                    }
                }
            }
        }
    }

    __device__ inline void run(S* stages, T* y, float last) const {
        float sums[W::tiles][4][4] = {};
        u32 steps = terms.steps(), fetched = 0, step_of_fetched = 0, added = 0, step_of_added = 0;
        Term<T> next = terms.of(0);
        u32 left = (next.depth + DEPTH - 1) / DEPTH;
        auto fetch_next = [&](u32 step) {
            if (step < steps) {
                fetch(stages[step % STAGES], next, step_of_fetched);
                if (++step_of_fetched * DEPTH >= next.depth) next = terms.of(++fetched), step_of_fetched = 0;
            }
            end_copies();
        };
        for (u32 step = 0; step < STAGES - 1; step++) fetch_next(step);
        for (u32 step = 0; step < steps; step++) {
            wait_for_copies<STAGES - 2>();
            __syncthreads();
            fetch_next(step + STAGES - 1);
            if (step_of_added == left) {
                Term<T> term = terms.of(++added);
                left = (term.depth + DEPTH - 1) / DEPTH, step_of_added = 0;
                if (term.factor != 1.0f) {
                    #pragma unroll
                    for (int m = 0; m < W::tiles; m++)
                        #pragma unroll
                        for (int n = 0; n < 4; n++)
                            #pragma unroll
                            for (int i = 0; i < 4; i++) sums[m][n][i] *= term.factor;
                }
            }
            step_of_added++;
            add(sums, stages[step % STAGES]);
        }
        wait_for_copies<0>();
        put(sums, y, last);
    }
};

#define TERM(T, I) const T *x##I, const T *w##I, const u64 *table##I, u32 stride##I, u32 depth##I, float factor##I
#define TERM_OF(I) {x##I, w##I, table##I, stride##I, depth##I, factor##I}
// The tile's group where this launch has its matrix.
#define ITS_GROUP                                                                                                      \
    u32 group = map[2 * blockIdx.y], row = map[2 * blockIdx.y + 1];                                                    \
    if (group == NO_GROUP || group < first || group - first >= groups) return;                                         \
    u32 last_row = min(row + ROWS, offsets[group + 1]);

#define SUMS(T, name, form, COLUMNS, TRANSPOSED)                                                                       \
    KERNEL __launch_bounds__(THREADS, 2)                                                                               \
        grouped_##form##_##name##_##COLUMNS(T* y, const u32* map, const u32* offsets, u32 first, u32 groups, u32 columns, u32 count, \
                                            float last, TERM(T, 0), TERM(T, 1), TERM(T, 2), TERM(T, 3)) {              \
        DYNAMIC_SHARED(shared);                                                                                        \
        ITS_GROUP                                                                                                      \
        Terms<T> terms = {{TERM_OF(0), TERM_OF(1), TERM_OF(2), TERM_OF(3)}, count};                                    \
        Sums<T, COLUMNS, TRANSPOSED> sums = {terms, group, group - first, row, last_row, blockIdx.x * COLUMNS, columns}; \
        sums.run(reinterpret_cast<Stage<T, COLUMNS, TRANSPOSED>*>(shared), y, last);                                   \
    }                                                                                                                  \
    EMULATE(grouped_##form##_##name##_##COLUMNS)

#define SUMS_OF(T, name)                                                                                               \
    SUMS(T, name, nt, 128, true) SUMS(T, name, nt, 32, true) SUMS(T, name, nn, 128, false) SUMS(T, name, nn, 32, false)

SUMS_OF(bf16, bf16)
SUMS_OF(f16, f16)

// ---- gradients -----------------------------------------------------------------------------------------------------

// Two columns of `into` (rows, columns) += the two values.
__device__ inline void add_two(float* into, u32 row, u32 column, u32 rows, u32 columns, float first, float second) {
    if (row >= rows) return;
    float* place = into + (u64)row * columns + column;
    if (column < columns) place[0] += first;
    if (column + 1 < columns) place[1] += second;
}

// HEIGHT x WIDTH of one group's gradient. A warp has 16 rows and 32 columns.
template <class T, int HEIGHT, int WIDTH>
__device__ void gradient(T* shared, const Rows<T>& a, const Rows<T>& b, float* into, float alpha) {
    constexpr int of_a = DEPTH * (HEIGHT + 8), of_b = DEPTH * (WIDTH + 8), stage = of_a + of_b;
    u32 across = (b.columns + WIDTH - 1) / WIDTH, row = blockIdx.x / across * HEIGHT, column = blockIdx.x % across * WIDTH;
    u32 steps = (a.rows + DEPTH - 1) / DEPTH, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 first_row = warp % (HEIGHT / 16) * 16, first_column = warp / (HEIGHT / 16) * 32;
    float sums[4][4] = {};
    auto fetch = [&](u32 step) {
        if (step < steps) {
            T* to = shared + step % STAGES * stage;
            a.template copy_tile<DEPTH, HEIGHT>(to, step * DEPTH, row);
            b.template copy_tile<DEPTH, WIDTH>(to + of_a, step * DEPTH, column);
        }
        end_copies();
    };
    for (u32 step = 0; step < STAGES - 1; step++) fetch(step);
    for (u32 step = 0; step < steps; step++) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        fetch(step + STAGES - 1);
        const T* from = shared + step % STAGES * stage;
        #pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            u32 left[4], right[4];
            left_transposed<HEIGHT + 8>(left, from, k, first_row);
            #pragma unroll
            for (int n = 0; n < 2; n++) {
                right_straight<WIDTH + 8>(right, from + of_a, k, first_column + 16 * n);
                multiply_pair<T>(sums[2 * n], sums[2 * n + 1], left, right);
            }
        }
    }
    wait_for_copies<0>();
    #pragma unroll
    for (int n = 0; n < 4; n++) {
        u32 at = row + first_row + lane / 4, to = column + first_column + 8 * n + lane % 4 * 2;
        add_two(into, at, to, a.columns, b.columns, alpha * sums[n][0], alpha * sums[n][1]);
        add_two(into, at + 8, to, a.columns, b.columns, alpha * sums[n][2], alpha * sums[n][3]);
    }
}

#define GRADIENTS(T, name, form, HEIGHT, WIDTH)                                                                        \
    KERNEL __launch_bounds__(THREADS, 2)                                                                               \
        grouped_##form##_##name(float* into, const u32* offsets, const T* a, const T* b, u32 stride_a, u32 stride_b, u32 rows, u32 columns, \
                                float alpha) {                                                                         \
        DYNAMIC_SHARED(shared);                                                                                        \
        u32 group = blockIdx.y, row = offsets[group], tokens = offsets[group + 1] - row;                               \
        if (tokens == 0) return;                                                                                       \
        Rows<T> left(a + (u64)row * stride_a, stride_a, tokens, rows), right(b + (u64)row * stride_b, stride_b, tokens, columns); \
        gradient<T, HEIGHT, WIDTH>(reinterpret_cast<T*>(shared), left, right, into + (u64)group * rows * columns, alpha); \
    }                                                                                                                  \
    EMULATE(grouped_##form##_##name)

GRADIENTS(bf16, bf16, wide, 32, 128)
GRADIENTS(bf16, bf16, tall, 128, 32)
GRADIENTS(f16, f16, wide, 32, 128)
GRADIENTS(f16, f16, tall, 128, 32)

// ---- F32 -----------------------------------------------------------------------------------------------------------

#define PLAIN_COLUMNS 64
#define PLAIN_DEPTH 16

// A thread has 8 rows and 4 columns, 16 apart.
template <bool TRANSPOSED>
__device__ void plain_sums(float* y, const Terms<float>& terms, u32 matrix, u32 row, u32 last_row, u32 column, u32 columns, float last) {
    __shared__ float x[PLAIN_DEPTH][ROWS + 1], w[PLAIN_DEPTH][PLAIN_COLUMNS + 1];
    u32 across = threadIdx.x % 16, down = threadIdx.x / 16;
    float sums[8][4] = {};
    for (u32 number = 0; number < terms.count; number++) {
        Term<float> term = terms.of(number);
        const float* right = term.matrix(matrix, columns);
        for (int m = 0; m < 8; m++)
            for (int n = 0; n < 4; n++) sums[m][n] *= number ? term.factor : 1.0f;
        for (u32 start = 0; start < term.depth; start += PLAIN_DEPTH) {
            __syncthreads();
            for (u32 i = threadIdx.x; i < ROWS * PLAIN_DEPTH; i += THREADS) {
                u32 of_row = i / PLAIN_DEPTH, k = i % PLAIN_DEPTH;
                bool valid = row + of_row < last_row && start + k < term.depth;
                x[k][of_row] = valid ? term.x[(u64)(row + of_row) * term.stride + start + k] : 0.0f;
            }
            for (u32 i = threadIdx.x; i < PLAIN_COLUMNS * PLAIN_DEPTH; i += THREADS) {
                u32 n = TRANSPOSED ? i / PLAIN_DEPTH : i % PLAIN_COLUMNS, k = TRANSPOSED ? i % PLAIN_DEPTH : i / PLAIN_COLUMNS;
                bool valid = column + n < columns && start + k < term.depth;
                u64 place = TRANSPOSED ? (u64)(column + n) * term.depth + start + k : (u64)(start + k) * columns + column + n;
                w[k][n] = valid ? right[place] : 0.0f;
            }
            __syncthreads();
            #pragma unroll
            for (int k = 0; k < PLAIN_DEPTH; k++) {
                float left[8], of_w[4];
                #pragma unroll
                for (int m = 0; m < 8; m++) left[m] = x[k][down + 16 * m];
                #pragma unroll
                for (int n = 0; n < 4; n++) of_w[n] = w[k][across + 16 * n];
                #pragma unroll
                for (int m = 0; m < 8; m++)
                    #pragma unroll
                    for (int n = 0; n < 4; n++) sums[m][n] += left[m] * of_w[n];
            }
        }
    }
    #pragma unroll
    for (int m = 0; m < 8; m++) {
        u32 at = row + down + 16 * m;
        #pragma unroll
        for (int n = 0; n < 4; n++) {
            u32 to = column + across + 16 * n;
            if (at < last_row && to < columns) y[(u64)at * columns + to] = last * sums[m][n];
        }
    }
}

#define PLAIN_SUMS(form, TRANSPOSED)                                                                                   \
    KERNEL grouped_##form##_f32(float* y, const u32* map, const u32* offsets, u32 first, u32 groups, u32 columns, u32 count, float last, \
                                TERM(float, 0), TERM(float, 1), TERM(float, 2), TERM(float, 3)) {                      \
        ITS_GROUP                                                                                                      \
        Terms<float> terms = {{TERM_OF(0), TERM_OF(1), TERM_OF(2), TERM_OF(3)}, count};                                \
        plain_sums<TRANSPOSED>(y, terms, group - first, row, last_row, blockIdx.x * PLAIN_COLUMNS, columns, last);     \
    }                                                                                                                  \
    EMULATE(grouped_##form##_f32)

PLAIN_SUMS(nt, true)
PLAIN_SUMS(nn, false)

// A thread has 4 rows and 4 columns, 16 apart.
KERNEL grouped_gradient_f32(float* into, const u32* offsets, const float* a, const float* b, u32 stride_a, u32 stride_b, u32 rows, u32 columns,
                            float alpha) {
    __shared__ float of_a[PLAIN_DEPTH][64 + 1], of_b[PLAIN_DEPTH][64 + 1];
    u32 group = blockIdx.y, first = offsets[group], last = offsets[group + 1];
    u32 tiles = (columns + 63) / 64, row = blockIdx.x / tiles * 64, column = blockIdx.x % tiles * 64;
    u32 across = threadIdx.x % 16, down = threadIdx.x / 16;
    if (first == last) return;
    float sums[4][4] = {};
    for (u32 start = first; start < last; start += PLAIN_DEPTH) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < 64 * PLAIN_DEPTH; i += THREADS) {
            u32 k = i / 64, at = i % 64;
            of_a[k][at] = start + k < last && row + at < rows ? a[(u64)(start + k) * stride_a + row + at] : 0.0f;
            of_b[k][at] = start + k < last && column + at < columns ? b[(u64)(start + k) * stride_b + column + at] : 0.0f;
        }
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < PLAIN_DEPTH; k++)
            #pragma unroll
            for (int m = 0; m < 4; m++)
                #pragma unroll
                for (int n = 0; n < 4; n++) sums[m][n] += of_a[k][down + 16 * m] * of_b[k][across + 16 * n];
    }
    float* to = into + (u64)group * rows * columns;
    #pragma unroll
    for (int m = 0; m < 4; m++) {
        u32 at = row + down + 16 * m;
        #pragma unroll
        for (int n = 0; n < 4; n++) {
            u32 of = column + across + 16 * n;
            if (at < rows && of < columns) to[(u64)at * columns + of] += alpha * sums[m][n];
        }
    }
}
EMULATE(grouped_gradient_f32)
