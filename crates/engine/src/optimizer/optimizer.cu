// Optimizers on the flat buffers: all groups in one launch.

#include "places.cuh"

// What a rule makes of states that were codes: nothing, for most. `most_of_zero` are the largest values that their codes of zero may
// stand for.
struct AsCoded {
    __device__ static void restore(const float* f, const float (&most_of_zero)[2], float (&state)[2]) {}
};

// keep = 1 - lr d, take1 = 1 - b1, beta2, take2 = 1 - b2, rate = lr / (1 - b1^t), correction = sqrt(1 - b2^t), epsilon, least v for
// an m of 1
struct AdamW {
    static const int states = 2;
    __device__ static void restore(const float* f, const float (&most_of_zero)[2], float (&state)[2]) {
        float of_zero = state[0] == 0 ? 0 : most_of_zero[1];
        state[1] = fmaxf(fmaxf(state[1], of_zero), f[7] * state[0] * state[0]);
    }
    __device__ static void apply(const float* f, float* value, float gradient, float (&state)[2]) {
        state[0] = state[0] + f[1] * (gradient - state[0]);
        state[1] = f[2] * state[1] + f[3] * gradient * gradient;
        *value = *value * f[0] - f[4] * (state[0] / (sqrtf(state[1]) / f[5] + f[6]));
    }
};

// rate, keep, beta1, take1, beta2, take2
struct Lion : AsCoded {
    static const int states = 1;
    __device__ static void apply(const float* f, float* value, float gradient, float (&state)[2]) {
        float direction = f[2] * state[0] + f[3] * gradient;
        *value = *value * f[1] - f[0] * ((direction > 0) - (direction < 0));
        state[0] = f[4] * state[0] + f[5] * gradient;
    }
};

// rate, weight decay
struct Sgd : AsCoded {
    static const int states = 0;
    __device__ static void apply(const float* f, float* value, float gradient, float (&state)[2]) {
        *value -= f[0] * (gradient + f[1] * *value);
    }
};

// rate, weight decay, momentum, nesterov
struct Momentum : AsCoded {
    static const int states = 1;
    __device__ static void apply(const float* f, float* value, float gradient, float (&state)[2]) {
        gradient += f[1] * *value;
        state[0] = f[2] * state[0] + gradient;
        *value -= f[0] * (f[3] != 0 ? gradient + f[2] * state[0] : state[0]);
    }
};

// rate, weight decay, ahead = 1 - b1, beta2, take2 = 1 - b2, correction = sqrt(1 - b2^t), epsilon, share
struct ScheduleFree : AsCoded {
    static const int states = 2;
    __device__ static void apply(const float* f, float* value, float gradient, float (&state)[2]) {
        state[1] = f[3] * state[1] + f[4] * gradient * gradient;
        float change = gradient / (sqrtf(state[1]) / f[5] + f[6]) + f[1] * *value;
        float moved = state[0] - f[0] * change;
        *value = *value - f[2] * state[0] + f[7] * moved;
        state[0] = (1 - f[7]) * moved;
    }
};

#define ELEMENTS 1024

template <class Rule>
__device__ void update(float* values, const float* gradients, float* first, float* second, const u64* table,
                       const float* factors, u32 groups) {
    Place place = place_of(table, groups, ELEMENTS);
    for (u32 i = threadIdx.x; i < ELEMENTS; i += blockDim.x) {
        u64 offset = place.offset + i;
        if (offset >= place.row[2]) return;
        u64 index = place.row[1] + offset, at = place.row[3] + offset;
        float state[2] = {0, 0}, value = values[index];
        if (Rule::states > 0) state[0] = first[at];
        if (Rule::states > 1) state[1] = second[at];
        Rule::apply(factors + 8 * place.group, &value, gradients[index], state);
        values[index] = value;
        if (Rule::states > 0) first[at] = state[0];
        if (Rule::states > 1) second[at] = state[1];
    }
}

// Code of the nearest value: the number of bounds below the fraction.
__device__ inline u8 nearest(const float* bounds, float fraction) {
    u32 code = 0;
    for (u32 half = 128; half > 0; half /= 2)
        if (fraction > bounds[code + half - 1]) code += half;
    return (u8)code;
}

// A block of 256 elements, one a thread: codes (blocks, states, 256), absmax (blocks, states). `maps` holds for each state
// the 256 values and then the 256 bounds of its map.
template <class Rule>
__device__ void update_8bit(float* values, const float* gradients, u8* codes, float* absmax, const float* maps,
                            const u64* table, const float* factors, u32 groups) {
    __shared__ float scratch[32];
    Place place = place_of(table, groups, 256);
    u64 offset = place.offset + threadIdx.x, block = place.row[3] + place.offset / 256;
    bool inside = offset < place.row[2];
    float state[2] = {0, 0};
    if (inside) {
        u64 index = place.row[1] + offset;
        float value = values[index];
        float most_of_zero[2] = {0, 0};
        for (int which = 0; which < Rule::states; which++) {
            const float *map = maps + 512 * which, scale = absmax[block * Rule::states + which];
            state[which] = map[codes[(block * Rule::states + which) * 256 + threadIdx.x]] * scale;
            // A map of both signs has 127 values below zero.
            most_of_zero[which] = map[256 + (map[0] < 0 ? 127 : 0)] * scale;
        }
        Rule::restore(factors + 8 * place.group, most_of_zero, state);
        Rule::apply(factors + 8 * place.group, &value, gradients[index], state);
        values[index] = value;
    }
    for (int which = 0; which < Rule::states; which++) {
        // The maximum waits for all threads: nobody reads the old constant behind it.
        float largest = row_max(fabsf(state[which]), scratch);
        if (threadIdx.x == 0) absmax[block * Rule::states + which] = largest;
        float fraction = state[which] / (largest == 0 ? 1.0f : largest);
        codes[(block * Rule::states + which) * 256 + threadIdx.x] = nearest(maps + 512 * which + 256, fraction);
    }
}

#define RULE(Rule, name)                                                                                               \
    KERNEL name(float* values, const float* gradients, float* first, float* second, const u64* table,                  \
                const float* factors, u32 groups, const double* norm) {                                                \
        if (is_overflow(norm)) return;                                                                                 \
        update<Rule>(values, gradients, first, second, table, factors, groups);                                        \
    }                                                                                                                  \
    EMULATE(name)                                                                                                      \
    KERNEL name##_8bit(float* values, const float* gradients, u8* codes, float* absmax, const float* maps,             \
                       const u64* table, const float* factors, u32 groups, const double* norm) {                       \
        if (is_overflow(norm)) return;                                                                                 \
        update_8bit<Rule>(values, gradients, codes, absmax, maps, table, factors, groups);                             \
    }                                                                                                                  \
    EMULATE(name##_8bit)

RULE(AdamW, adamw)
RULE(Lion, lion)
RULE(Sgd, sgd)
RULE(Momentum, momentum)
RULE(ScheduleFree, schedule_free)

// values += factor * offsets
KERNEL shift(float* values, const float* offsets, float factor, u64 count) {
    for (u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x; index < count; index += (u64)gridDim.x * blockDim.x)
        values[index] += factor * offsets[index];
}
EMULATE(shift)

// ---- Adafactor -----------------------------------------------------------------------------------------------------

// The sum over all threads, in a fixed order, for each of them. `scratch` has a number for each warp.
__device__ inline double block_sum(double value, double* scratch) {
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffff, value, distance);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    double sum = 0;
    for (u32 warp = 0; warp < blockDim.x / 32; warp++) sum += scratch[warp];
    return sum;
}

// beta, 1 - beta, rate, keep = 1 - rate d, columns (0: a vector); of a matrix in bands: rows of a band, bands
struct Adafactor {
    const float* f;

    __device__ inline float blend(float mean, double sample) const { return (float)((double)f[0] * mean + (double)f[1] * sample); }

    // Learning rate over the clipped root mean square.
    __device__ inline float scale(double mean_square) const { return (float)(f[2] / fmax(sqrt(mean_square), 1.0)); }
};

#define ADAFACTOR_THREADS 512

// Some rows of a matrix, and their means.
struct Rows {
    const float* gradients;
    float* means;
    u32 rows, columns;
};

// Rows by as many neighbouring lanes as there are columns, up to 32: calls `of_row(row, lane, lanes)` in all of them.
template <class F> __device__ inline void each_row(Rows matrix, F of_row) {
    u32 lanes = 32;
    while (lanes / 2 >= matrix.columns) lanes /= 2;
    u32 at_once = blockDim.x / lanes;
    // All lanes of a warp stay to the end: they add up together.
    for (u32 first = 0; first < matrix.rows; first += at_once) of_row(first + threadIdx.x / lanes, threadIdx.x % lanes, lanes);
}

// r, the running means of g^2 over the columns; and the sum over the rows for each column, in one thread: `of_column(column, sum)`.
template <class F> __device__ inline void sum_squares(Adafactor rule, Rows matrix, double* partial, F of_column) {
    auto square = [&](u32 row, u32 column) {
        double g = matrix.gradients[(u64)row * matrix.columns + column];
        return g * g + 1e-30;
    };
    u32 rows = matrix.rows, columns = matrix.columns;
    each_row(matrix, [&](u32 row, u32 lane, u32 lanes) {
        double sum = 0;
        for (u32 column = lane; row < rows && column < columns; column += lanes) sum += square(row, column);
        for (u32 distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
        if (row < rows && lane == 0) matrix.means[row] = rule.blend(matrix.means[row], sum / columns);
    });
    // A thread has one column of every so many rows: neighbours read neighbours.
    for (u32 first = 0; first < columns; first += blockDim.x) {
        u32 width = min(columns - first, blockDim.x), shares = blockDim.x / width;
        u32 column = first + threadIdx.x % width, share = threadIdx.x / width;
        double sum = 0;
        for (u32 row = share; share < shares && row < rows; row += shares) sum += square(row, column);
        partial[threadIdx.x] = sum;
        __syncthreads();
        if (share == 0) {
            for (u32 other = 1; other < shares; other++) sum += partial[other * width + threadIdx.x];
            of_column(column, sum);
        }
        __syncthreads();
    }
}

// u = g / sqrt(r / mean(r)) / sqrt(c) of a matrix.
struct Direction {
    Rows matrix;
    double mean_of_rows;
    const float* column_means;

    __device__ inline float of_row(u32 row) const { return (float)(1.0 / sqrt((double)matrix.means[row] / mean_of_rows)); }

    __device__ inline float at(u64 index, float of_row, u32 column) const {
        return matrix.gradients[index] * of_row * (1.0f / sqrtf(column_means[column]));
    }

    // This thread's part of the sum of u^2.
    __device__ inline double squares() const {
        double sum = 0;
        each_row(matrix, [&](u32 row, u32 lane, u32 lanes) {
            if (row >= matrix.rows) return;
            float factor = of_row(row);
            for (u32 column = lane; column < matrix.columns; column += lanes) {
                float u = at((u64)row * matrix.columns + column, factor, column);
                sum += (double)u * u;
            }
        });
        return sum;
    }

    // values = values * keep - scale u
    __device__ inline void apply(float* values, float keep, float scale) const {
        each_row(matrix, [&](u32 row, u32 lane, u32 lanes) {
            if (row >= matrix.rows) return;
            float factor = of_row(row) * scale;
            for (u32 column = lane; column < matrix.columns; column += lanes) {
                u64 index = (u64)row * matrix.columns + column;
                values[index] = values[index] * keep - at(index, factor, column);
            }
        });
    }
};

__device__ inline double mean_of(const float* values, u32 count, double* partial) {
    double sum = 0;
    for (u32 index = threadIdx.x; index < count; index += blockDim.x) sum += values[index];
    return block_sum(sum, partial) / count;
}

// One block for a vector: u = g / sqrt(v), clipped as that of a matrix.
__device__ inline void update_vector(Adafactor rule, float* values, const float* gradients, float* means, u64 elements, double* partial) {
    double squares = 0;
    for (u64 index = threadIdx.x; index < elements; index += blockDim.x) {
        double g = gradients[index];
        float mean = means[index] = rule.blend(means[index], g * g + 1e-30);
        float u = gradients[index] / sqrtf(mean);
        squares += (double)u * u;
    }
    float scale = rule.scale(block_sum(squares, partial) / elements);
    for (u64 index = threadIdx.x; index < elements; index += blockDim.x)
        values[index] = values[index] * rule.f[3] - gradients[index] / sqrtf(means[index]) * scale;
}

// A block for each parameter; `means` holds r and c of a matrix one behind the other, or v of a vector.
KERNEL adafactor(float* values, const float* gradients, float* means, const u64* table, const float* factors, u32 groups,
                 const double* norm) {
    if (is_overflow(norm)) return;
    __shared__ double partial[ADAFACTOR_THREADS];
    Place place = place_of(table, groups, 0);
    Adafactor rule = {factors + 8 * place.group};
    u64 elements = place.row[2];
    u32 columns = (u32)rule.f[4];
    values += place.row[1], gradients += place.row[1], means += place.row[3];
    if (columns == 0) return update_vector(rule, values, gradients, means, elements, partial);
    u32 rows = elements / columns;
    Rows matrix = {gradients, means, rows, columns};
    float* column_means = means + rows;
    sum_squares(rule, matrix, partial,
                [&](u32 column, double sum) { column_means[column] = rule.blend(column_means[column], sum / rows); });
    Direction direction = {matrix, mean_of(means, rows, partial), column_means};
    float scale = rule.scale(block_sum(direction.squares(), partial) / elements);
    direction.apply(values, rule.f[3], scale);
}
EMULATE(adafactor)

// A matrix in bands of rows, a block for each, in four launches: each needs what all blocks of the one before it have found.
struct Band {
    Adafactor rule;
    u32 index, bands, rows, columns; // of the whole matrix
    Rows own;
    u64 first; // of its elements
    float *row_means, *column_means;
    double *sums, *squares; // of each band: for each column, and of u
};

__device__ inline Band band_of(const float* gradients, float* means, double* room, const u64* table, const float* factors, u32 groups) {
    Place place = place_of(table, groups, 1);
    Adafactor rule = {factors + 8 * place.group};
    u32 index = (u32)place.offset, columns = (u32)rule.f[4], height = (u32)rule.f[5], bands = (u32)rule.f[6];
    u32 rows = place.row[2] / columns, row = index * height;
    float* row_means = means + place.row[3];
    double* sums = room + place.row[4];
    u64 first = place.row[1] + (u64)row * columns;
    Rows own = {gradients + first, row_means + row, min(height, rows - row), columns};
    return {rule, index, bands, rows, columns, own, first, row_means, row_means + rows, sums, sums + (u64)bands * columns};
}

__device__ inline Direction direction_of(Band band, double* partial) {
    return {band.own, mean_of(band.row_means, band.rows, partial), band.column_means};
}

#define BANDS(name)                                                                                                    \
    KERNEL name(float* values, const float* gradients, float* means, double* room, const u64* table, const float* factors, \
                u32 groups, const double* norm) {                                                                      \
        if (is_overflow(norm)) return;                                                                                 \
        __shared__ double partial[ADAFACTOR_THREADS];                                                                  \
        name##_band(values, band_of(gradients, means, room, table, factors, groups), partial);                         \
    }                                                                                                                  \
    EMULATE(name)

__device__ inline void adafactor_sums_band(float*, Band band, double* partial) {
    double* sums = band.sums + (u64)band.index * band.columns;
    sum_squares(band.rule, band.own, partial, [&](u32 column, double sum) { sums[column] = sum; });
}
BANDS(adafactor_sums)

// Each block has some of the columns.
__device__ inline void adafactor_columns_band(float*, Band band, double*) {
    u32 width = (band.columns + band.bands - 1) / band.bands, end = min(band.columns, (band.index + 1) * width);
    for (u32 column = band.index * width + threadIdx.x; column < end; column += blockDim.x) {
        double sum = 0;
        for (u32 other = 0; other < band.bands; other++) sum += band.sums[(u64)other * band.columns + column];
        band.column_means[column] = band.rule.blend(band.column_means[column], sum / band.rows);
    }
}
BANDS(adafactor_columns)

__device__ inline void adafactor_squares_band(float*, Band band, double* partial) {
    double sum = block_sum(direction_of(band, partial).squares(), partial);
    if (threadIdx.x == 0) band.squares[band.index] = sum;
}
BANDS(adafactor_squares)

__device__ inline void adafactor_apply_band(float* values, Band band, double* partial) {
    double sum = 0;
    for (u32 other = 0; other < band.bands; other++) sum += band.squares[other];
    float scale = band.rule.scale(sum / ((double)band.rows * band.columns));
    direction_of(band, partial).apply(values + band.first, band.rule.f[3], scale);
}
BANDS(adafactor_apply)

// partial (blocks,): sums of squares in F64, in a fixed order.
KERNEL sum_of_squares(const float* values, double* partial, u64 count) {
    __shared__ double scratch[32];
    double sum = 0;
    for (u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x; index < count; index += (u64)gridDim.x * blockDim.x)
        sum += (double)values[index] * (double)values[index];
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (u32 warp = 1; warp < blockDim.x / 32; warp++) sum += scratch[warp];
    partial[blockIdx.x] = sum;
}
EMULATE(sum_of_squares)

// Squares of values that are `excess` times too large were added up in `partial`. result (2,): the norm of the right values, and
// the factor that makes right ones whose norm is at most `most`. A norm that is not finite is for others to judge: it is not brought
// down.
KERNEL norm_of_sums(const double* partial, double* result, const float* excess, double most, u32 count) {
    if (threadIdx.x > 0) return;
    double sum = 0;
    for (u32 index = 0; index < count; index++) sum += partial[index];
    double value = sqrt(sum) / *excess, factor = most / (value + 1e-6);
    bool finite = value - value == 0;
    result[0] = value;
    result[1] = (finite && factor < 1 ? factor : 1) / *excess;
}
EMULATE(norm_of_sums)

// Multiplies by the factor behind a norm; one of 1 touches nothing.
KERNEL scale_to_norm(float* values, const double* result, u64 count) {
    float factor = result[1];
    if (factor == 1) return;
    for (u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x; index < count; index += (u64)gridDim.x * blockDim.x)
        values[index] *= factor;
}
EMULATE(scale_to_norm)
