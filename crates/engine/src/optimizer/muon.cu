// Muon on matrices with a short side, all in one launch: a block of threads for each (muon.rs has the formulas).
//
// X has SIDE rows, one for each row of a wide matrix or each column of a tall one, padded with zeros. It lies in the room, rounded to BF16,
// in strips of WIDTH columns one behind the other; each pass over it takes a strip to shared memory, changes it, sends it back, and adds its
// part to the Gram matrix X X^T that the next pass needs. Products are F32 sums of BF16 values.

#include "places.cuh"
#include "operands.cuh"

#define THREADS 256
#define WARPS 8
#define ITERATIONS 5
#define SMALLEST_NORM 1e-7f

// A short side of at most 16 T. A warp has 16 rows of a strip and 64 of its columns.
template <int T> struct Sizes {
    static constexpr int side = 16 * T;
    static constexpr int groups = WARPS / T; // of warps that share rows
    static constexpr int width = 64 * groups;
    static constexpr int stride = width + 8;      // of a strip in shared memory
    static constexpr int gram_stride = side + 8;  // of the Gram matrix there
    static constexpr int chunks = side * width / 8 / THREADS; // of 8 elements, for a thread
};

// What a block has in shared memory.
template <int T> struct alignas(16) Shared {
    bf16 strips[2][Sizes<T>::side * Sizes<T>::stride];
    bf16 gram[Sizes<T>::side * Sizes<T>::gram_stride];
    double partial[WARPS];
};

// momentum, 1 - momentum, keep = 1 - rate d, rate sqrt(max(1, rows / columns)), rows, columns
struct Matrix {
    const float* f;
    u32 side, length;
    bool tall;
    float* values;
    const float* gradients;
    float* momentum;
    bf16* room;

    // Where X's element is in the matrix.
    __device__ inline u64 index(u32 row, u32 column) const {
        return tall ? (u64)column * side + row : (u64)row * length + column;
    }
};

// Calls `of(index, place)` for each element of a strip, neighbours in neighbouring threads, with its place in shared memory; and `of_padding(place)`
// where the matrix has none.
template <int T, class F, class G> __device__ inline void each_element(const Matrix& matrix, u32 strip, F of, G of_padding) {
    using S = Sizes<T>;
    for (u32 i = threadIdx.x; i < S::side * S::width; i += THREADS) {
        u32 row = matrix.tall ? i % S::side : i / S::width, column = matrix.tall ? i / S::side : i % S::width;
        u32 place = row * S::stride + column;
        column += strip * S::width;
        if (row < matrix.side && column < matrix.length) of(matrix.index(row, column), place);
        else of_padding(place);
    }
}

// Calls `of(from, place)` for this thread's parts of 8 neighbours of a strip: where they are in the room and in shared memory.
template <int T, class F> __device__ inline void each_chunk(const Matrix& matrix, u32 strip, F of) {
    using S = Sizes<T>;
    #pragma unroll 1
    for (int part = 0; part < S::chunks; part++) {
        u32 chunk = part * THREADS + threadIdx.x;
        u32 row = chunk / (S::width / 8), column = chunk % (S::width / 8) * 8;
        of(matrix.room + (u64)strip * S::side * S::width + chunk * 8, row * S::stride + column);
    }
}

template <int T> __device__ inline void fetch(const Matrix& matrix, u32 strip, bf16* to) {
    each_chunk<T>(matrix, strip, [&](const bf16* from, u32 place) { copy_in_background(to + place, from, true); });
    end_copies();
}

template <int T> __device__ inline void send(const Matrix& matrix, u32 strip, const bf16* from) {
    each_chunk<T>(matrix, strip, [&](bf16* to, u32 place) { store<bf16, 8>(to, 0, load<bf16, 8>(from + place, 0)); });
}

// A warp's 16 rows of a Gram matrix, or its part of their sums.
template <int T> using GramRows = float[2 * T][4];

template <int T> __device__ inline u32 warp_row() { return threadIdx.x / 32 % T * 16; }
template <int T> __device__ inline u32 warp_group() { return threadIdx.x / 32 / T; }

// rows += the strip times its transpose, over the warp's columns.
template <int T> __device__ inline void add_gram(GramRows<T>& rows, const bf16* strip) {
    constexpr int stride = Sizes<T>::stride;
    #pragma unroll
    for (int step = 0; step < 4; step++) {
        u32 column = warp_group<T>() * 64 + 16 * step, a[4], b[4];
        left_operand<stride>(a, strip, warp_row<T>(), column);
        #pragma unroll
        for (int pair = 0; pair < T; pair++) {
            right_transposed<stride>(b, strip, 16 * pair, column);
            multiply_pair<bf16>(rows[2 * pair], rows[2 * pair + 1], a, b);
        }
    }
}

// Calls `of(row, column, values of two neighbours)` for what the instructions leave in this thread: tiles of 8 columns beside each other, of
// the warp's 16 rows.
template <int N, class F> __device__ inline void each_pair(float (&tiles)[N][4], u32 row, u32 column, F of) {
    u32 lane = threadIdx.x % 32;
    #pragma unroll
    for (int tile = 0; tile < N; tile++) {
        #pragma unroll
        for (int half = 0; half < 2; half++)
            of(row + lane / 4 + 8 * half, column + 8 * tile + lane % 4 * 2, tiles[tile][2 * half], tiles[tile][2 * half + 1]);
    }
}

__device__ inline void put_pair(bf16* to, float first, float second) { *reinterpret_cast<u32*>(to) = pair<bf16>(first, second); }

// gram = the sum of all warps' `rows`, rounded. What lies in the strips is lost.
template <int T> __device__ inline void finish_gram(Shared<T>& shared, GramRows<T>& rows) {
    using S = Sizes<T>;
    u32 first = warp_row<T>();
    __syncthreads();
    if constexpr (S::groups == 1) {
        each_pair(rows, first, 0, [&](u32 row, u32 column, float x, float y) { put_pair(shared.gram + row * S::gram_stride + column, x, y); });
    } else {
        float* sums = reinterpret_cast<float*>(shared.strips);
        float* own = sums + warp_group<T>() * S::side * S::side;
        each_pair(rows, first, 0, [&](u32 row, u32 column, float x, float y) {
            own[row * S::side + column] = x;
            own[row * S::side + column + 1] = y;
        });
        __syncthreads();
        for (u32 i = threadIdx.x; i < S::side * S::side; i += THREADS) {
            float sum = 0;
            for (int group = 0; group < S::groups; group++) sum += sums[group * S::side * S::side + i];
            shared.gram[i / S::side * S::gram_stride + i % S::side] = narrow<bf16>(sum);
        }
    }
    __syncthreads();
}

// gram G becomes b G + c G G, rounded.
template <int T> __device__ inline void make_polynomial(Shared<T>& shared) {
    using S = Sizes<T>;
    GramRows<T> rows = {};
    u32 first = warp_row<T>();
    bool works = warp_group<T>() == 0;
    if (works) {
        #pragma unroll
        for (int step = 0; step < T; step++) {
            u32 a[4], b[4];
            left_operand<S::gram_stride>(a, shared.gram, first, 16 * step);
            #pragma unroll
            for (int column = 0; column < T; column++) {
                right_straight<S::gram_stride>(b, shared.gram, 16 * step, 16 * column);
                multiply_pair<bf16>(rows[2 * column], rows[2 * column + 1], a, b);
            }
        }
    }
    __syncthreads();
    if (works) {
        each_pair(rows, first, 0, [&](u32 row, u32 column, float x, float y) {
            bf16* place = shared.gram + row * S::gram_stride + column;
            put_pair(place, -4.7750f * widen(place[0]) + 2.0315f * x, -4.7750f * widen(place[1]) + 2.0315f * y);
        });
    }
    __syncthreads();
}

// strip X becomes a X + gram X, rounded.
template <int T> __device__ inline void iterate(const Shared<T>& shared, bf16* strip) {
    using S = Sizes<T>;
    float tiles[8][4] = {};
    u32 first = warp_row<T>(), column = warp_group<T>() * 64;
    #pragma unroll 1
    for (int step = 0; step < T; step++) {
        u32 a[4], b[4];
        left_operand<S::gram_stride>(a, shared.gram, first, 16 * step);
        #pragma unroll
        for (int quarter = 0; quarter < 4; quarter++) {
            right_straight<S::stride>(b, strip, 16 * step, column + 16 * quarter);
            multiply_pair<bf16>(tiles[2 * quarter], tiles[2 * quarter + 1], a, b);
        }
    }
    // Others read these rows until here.
    __syncthreads();
    each_pair(tiles, first, column, [&](u32 row, u32 column, float x, float y) {
        bf16* place = strip + row * S::stride + column;
        put_pair(place, 3.4445f * widen(place[0]) + x, 3.4445f * widen(place[1]) + y);
    });
}

// Takes each strip to shared memory, the next one while `of(strip, place)` works on one, for which all threads have come together.
template <int T, class F> __device__ inline void each_strip(const Matrix& matrix, Shared<T>& shared, u32 strips, F of) {
    if (strips > 0) fetch<T>(matrix, 0, shared.strips[0]);
    for (u32 strip = 0; strip < strips; strip++) {
        wait_for_copies<0>();
        __syncthreads();
        if (strip + 1 < strips) fetch<T>(matrix, strip + 1, shared.strips[(strip + 1) % 2]);
        of(strip, shared.strips[strip % 2]);
    }
}

// Momentum; X = u, rounded. Returns the root of the sum of squares, rounded.
template <int T> __device__ inline float begin(const Matrix& matrix, Shared<T>& shared, u32 strips) {
    double squares = 0;
    for (u32 strip = 0; strip < strips; strip++) {
        bf16* tile = shared.strips[strip % 2];
        each_element<T>(
            matrix, strip,
            [&](u64 index, u32 place) {
                float gradient = matrix.gradients[index], old = matrix.momentum[index];
                float average = matrix.momentum[index] = old + (gradient - old) * matrix.f[1];
                tile[place] = narrow<bf16>(gradient + (average - gradient) * matrix.f[0]);
                squares += (double)widen(tile[place]) * widen(tile[place]);
            },
            [&](u32 place) { tile[place] = narrow<bf16>(0); });
        __syncthreads();
        send<T>(matrix, strip, tile);
    }
    for (int distance = 16; distance > 0; distance /= 2) squares += __shfl_xor_sync(0xffffffff, squares, distance);
    if (threadIdx.x % 32 == 0) shared.partial[threadIdx.x / 32] = squares;
    __syncthreads();
    double sum = 0;
    for (int warp = 0; warp < WARPS; warp++) sum += shared.partial[warp];
    return fmaxf(widen(narrow<bf16>((float)sqrt(sum))), SMALLEST_NORM);
}

template <int T> __device__ inline void update_matrix(const Matrix& matrix, Shared<T>& shared) {
    using S = Sizes<T>;
    u32 strips = (matrix.length + S::width - 1) / S::width;
    float norm = begin<T>(matrix, shared, strips);
    __syncthreads();
    for (int pass = 0; pass < ITERATIONS; pass++) {
        GramRows<T> rows = {};
        each_strip<T>(matrix, shared, strips, [&](u32 strip, bf16* tile) {
            if (pass > 0) iterate<T>(shared, tile);
            else
                each_chunk<T>(matrix, strip, [&](bf16*, u32 place) {
                    #pragma unroll
                    for (int i = 0; i < 8; i++) tile[place + i] = narrow<bf16>(widen(tile[place + i]) / norm);
                });
            __syncthreads();
            send<T>(matrix, strip, tile);
            add_gram<T>(rows, tile);
        });
        finish_gram<T>(shared, rows);
        make_polynomial<T>(shared);
    }
    each_strip<T>(matrix, shared, strips, [&](u32 strip, bf16* tile) {
        iterate<T>(shared, tile);
        __syncthreads();
        each_element<T>(
            matrix, strip,
            [&](u64 index, u32 place) { matrix.values[index] = matrix.values[index] * matrix.f[2] - widen(tile[place]) * matrix.f[3]; },
            [](u32) {});
    });
}

// Blocks that a multiprocessor shall have at once.
#define AT_ONCE(T) (T == 1 ? 4 : T == 2 ? 3 : T == 4 ? 2 : 0)

#define MUON(T)                                                                                                        \
    KERNEL __launch_bounds__(THREADS, AT_ONCE(T)) muon_##T(float* values, const float* gradients, float* momentum, bf16* room,      \
                                               const u64* table, const float* factors, u32 groups, const double* norm) { \
        if (is_overflow(norm)) return;                                                                                 \
        DYNAMIC_SHARED(shared);                                                                                        \
        Place place = place_of(table, groups, 0);                                                                      \
        const float* f = factors + 8 * place.group;                                                                    \
        const u64* row = place.row;                                                                                    \
        u32 rows = (u32)f[4], columns = (u32)f[5];                                                                     \
        Matrix matrix = {f, min(rows, columns), max(rows, columns), rows > columns, values + row[1],                   \
                         gradients + row[1], momentum + row[3], room + row[4]};                                        \
        update_matrix<T>(matrix, *reinterpret_cast<Shared<T>*>(shared));                                               \
    }                                                                                                                  \
    EMULATE(muon_##T)

MUON(1)
MUON(2)
MUON(4)
MUON(8)
