// A factor for each column of a matrix, its gradient, and DoRA's factors themselves.

// y (rows, width) *= gain (width,) + shift
template <class T, int N> __device__ void scale(T* y, const float* gain, float shift, u64 packs, u32 row_packs) {
    u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= packs) return;
    Pack<T, N> values = load<T, N>(y, index);
    u64 column = index % row_packs * N;
    for (int i = 0; i < N; i++) values.at[i] = narrow<T>(widen(values.at[i]) * (gain[column + i] + shift));
    store(y, index, values);
}

#define ROWS 128
#define LANES 32
#define TURNS 8

// y = dz gain, and in `partial` (bands, width) the sums of dz y over a band of ROWS rows. A lane has N columns, a turn every eighth row.
template <class T, int N>
__device__ void backward(const T* dz, T* y, const float* gain, float* partial, u32 rows, u32 width) {
    __shared__ float sums[TURNS][LANES * 8];
    u32 pack = blockIdx.x * LANES + threadIdx.x, row_packs = width / N, first = blockIdx.y * ROWS;
    float own[N] = {};
    if (pack < row_packs) {
        float factor[N];
        for (int i = 0; i < N; i++) factor[i] = gain[pack * N + i];
        for (u32 row = first + threadIdx.y; row < min(first + ROWS, rows); row += TURNS) {
            u64 index = (u64)row * row_packs + pack;
            Pack<T, N> d = load<T, N>(dz, index), before = load<T, N>(y, index);
            for (int i = 0; i < N; i++) {
                float gradient = widen(d.at[i]);
                own[i] += gradient * widen(before.at[i]);
                before.at[i] = narrow<T>(gradient * factor[i]);
            }
            store(y, index, before);
        }
    }
    for (int i = 0; i < N; i++) sums[threadIdx.y][threadIdx.x * N + i] = own[i];
    __syncthreads();
    if (threadIdx.y > 0 || pack >= row_packs) return;
    for (int i = 0; i < N; i++) {
        float sum = 0;
        for (int turn = 0; turn < TURNS; turn++) sum += sums[turn][threadIdx.x * N + i];
        partial[(u64)blockIdx.y * width + pack * N + i] = sum;
    }
}

// gradient += the sum of the bands over norm
KERNEL gain_gradient(const float* partial, const float* norm, float* gradient, u32 bands, u32 width) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= width) return;
    float sum = 0;
    for (u32 band = 0; band < bands; band++) sum += partial[(u64)band * width + column];
    gradient[column] += sum / norm[column];
}
EMULATE(gain_gradient)

// norm_j^2 = |W_j|^2 + 2 s B_j (A W^T)_j + s^2 B_j (A A^T) B_j^T, gain = magnitude / norm. projected = A W^T (rank, width), gram = A A^T,
// b (width, rank).
template <class T>
__device__ void fill(const float* squared, const T* projected, const float* gram, const float* b, const float* magnitude, float* norm,
                     float* gain, float scaling, u32 width, u32 rank) {
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= width) return;
    const float* own = b + (u64)row * rank;
    float along = 0, square = 0;
    for (u32 k = 0; k < rank; k++) {
        float sum = 0;
        for (u32 l = 0; l < rank; l++) sum += gram[(u64)k * rank + l] * own[l];
        along += own[k] * widen(projected[(u64)k * width + row]);
        square += own[k] * sum;
    }
    float length = sqrtf(squared[row] + 2 * scaling * along + scaling * scaling * square);
    norm[row] = length;
    gain[row] = magnitude[row] / length;
}

#define PACKED(T, E, N)                                                                                                \
    KERNEL gain_scale_##E##_##N(T* y, const float* gain, float shift, u64 packs, u32 row_packs) {                      \
        scale<T, N>(y, gain, shift, packs, row_packs);                                                                 \
    }                                                                                                                  \
    EMULATE(gain_scale_##E##_##N)                                                                                      \
    KERNEL gain_backward_##E##_##N(const T* dz, T* y, const float* gain, float* partial, u32 rows, u32 width) {        \
        backward<T, N>(dz, y, gain, partial, rows, width);                                                             \
    }                                                                                                                  \
    EMULATE(gain_backward_##E##_##N)

#define BOTH_PACKS(T, E, N)                                                                                            \
    PACKED(T, E, N)                                                                                                    \
    PACKED(T, E, 1)                                                                                                    \
    KERNEL gain_fill_##E(const float* squared, const T* projected, const float* gram, const float* b, const float* magnitude, \
                         float* norm, float* gain, float scaling, u32 width, u32 rank) {                               \
        fill<T>(squared, projected, gram, b, magnitude, norm, gain, scaling, width, rank);                             \
    }                                                                                                                  \
    EMULATE(gain_fill_##E)

FOR_EACH_ELEMENT(BOTH_PACKS)
