// Rows of tokens on their way to experts and back, and what experts have of their own (rows.rs, expert_parts.rs, sinks.rs have the formulas).

#include "groups.cuh"

// y (R, width): rows `index` of x
template <class T, int N> __device__ void gather(const T* x, const u32* index, T* y, u64 packs, u32 row_packs) {
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= packs) return;
    store(y, at, load<T, N>(x, (u64)index[at / row_packs] * row_packs + at % row_packs));
}

// sums (T, width) = onto + the `chosen` rows of y of each token, in their order
template <class T, int N>
__device__ void sum_rows(const T* onto, const T* y, const u32* rows, T* sums, u64 packs, u32 row_packs, u32 chosen) {
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= packs) return;
    u64 token = at / row_packs, column = at % row_packs;
    float sum[N] = {};
    if (onto) {
        Pack<T, N> values = load<T, N>(onto, at);
        for (int i = 0; i < N; i++) sum[i] = widen(values.at[i]);
    }
    for (u32 which = 0; which < chosen; which++) {
        Pack<T, N> values = load<T, N>(y, (u64)rows[token * chosen + which] * row_packs + column);
        for (int i = 0; i < N; i++) sum[i] += widen(values.at[i]);
    }
    Pack<T, N> result;
    for (int i = 0; i < N; i++) result.at[i] = narrow<T>(sum[i]);
    store(sums, at, result);
}

// Each row of y times its weight
template <class T, int N> __device__ void scale_rows(T* y, const float* weights, u64 packs, u32 row_packs) {
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= packs) return;
    float weight = weights[at / row_packs];
    Pack<T, N> values = load<T, N>(y, at);
    for (int i = 0; i < N; i++) values.at[i] = narrow<T>(widen(values.at[i]) * weight);
    store(y, at, values);
}

// Each row of y plus the bias of its expert, times the row's weight where there are weights. biases (E, width)
template <class T, int N>
__device__ void add_biases(T* y, const float* biases, const u32* offsets, const float* weights, u64 packs, u32 row_packs, u32 experts) {
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= packs) return;
    u32 row = at / row_packs;
    u64 column = at % row_packs * N;
    const float* bias = biases + (u64)group_of(offsets, experts, row) * row_packs * N + column;
    float weight = weights ? weights[row] : 1.0f;
    Pack<T, N> values = load<T, N>(y, at);
    for (int i = 0; i < N; i++) values.at[i] = narrow<T>(widen(values.at[i]) + weight * bias[i]);
    store(y, at, values);
}

// o (rows, width) and lse of each, with one more logit in their softmax: that of the row's head. A warp has a row.
template <class T, int N>
__device__ void add_sinks(T* o, float* lse, const float* sinks, u32 rows, u32 heads, u32 row_packs) {
    u32 lane = threadIdx.x % 32;
    u64 row = (u64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    float before = lse[row], sink = sinks[row % heads], high = fmaxf(before, sink), low = fminf(before, sink);
    float with = high + log1pf(expf(low - high)), share = expf(before - with);
    for (u32 pack = lane; pack < row_packs; pack += 32) {
        Pack<T, N> values = load<T, N>(o, row * row_packs + pack);
        for (int i = 0; i < N; i++) values.at[i] = narrow<T>(widen(values.at[i]) * share);
        store(o, row * row_packs + pack, values);
    }
    __syncwarp();
    if (lane == 0) lse[row] = with;
}

// sums (R,): a b of each row; b is the row of its expert where there are offsets. A warp has a row.
template <class T, class B>
__device__ void dot_rows(const T* a, const B* b, const u32* offsets, float* sums, u32 rows, u32 width, u32 experts) {
    u32 lane = threadIdx.x % 32, row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    const T* left = a + (u64)row * width;
    const B* right = b + (u64)(offsets ? group_of(offsets, experts, row) : row) * width;
    float sum = 0;
    for (u32 i = lane; i < width; i += 32) sum += widen(left[i]) * widen(right[i]);
    sum = warp_sum(sum);
    if (lane == 0) sums[row] = sum;
}

// From b (N, r E), the columns of one rank beside each other, to the factors of each expert, (E, N, r). A thread has one value; those of a block
// lie in neighbouring rows of b.
template <class T> __device__ void split_experts(const T* b, T* split, u64 count, u32 rank, u32 experts) {
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    u64 width = (u64)rank * experts, row = at / width, rows = count / width;
    u32 expert = at % width / rank, of_rank = at % rank;
    split[((u64)expert * rows + row) * rank + of_rank] = b[row * width + (u64)of_rank * experts + expert];
}

// into (N, r E) += the parts (E, N, r)
KERNEL join_experts(const float* parts, float* into, u64 count, u32 rank, u32 experts) {
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    u64 width = (u64)rank * experts, row = at / width, rows = count / width;
    u32 of_rank = at % width / experts, expert = at % experts;
    into[at] += parts[((u64)expert * rows + row) * rank + of_rank];
}
EMULATE(join_experts)

#define PACKED(T, E, N)                                                                                                \
    KERNEL gather_##E##_##N(const T* x, const u32* index, T* y, u64 packs, u32 row_packs) {                            \
        gather<T, N>(x, index, y, packs, row_packs);                                                                   \
    }                                                                                                                  \
    EMULATE(gather_##E##_##N)                                                                                          \
    KERNEL sum_rows_##E##_##N(const T* onto, const T* y, const u32* rows, T* sums, u64 packs, u32 row_packs, u32 chosen) { \
        sum_rows<T, N>(onto, y, rows, sums, packs, row_packs, chosen);                                                 \
    }                                                                                                                  \
    EMULATE(sum_rows_##E##_##N)                                                                                        \
    KERNEL scale_rows_##E##_##N(T* y, const float* weights, u64 packs, u32 row_packs) {                                \
        scale_rows<T, N>(y, weights, packs, row_packs);                                                                \
    }                                                                                                                  \
    EMULATE(scale_rows_##E##_##N)                                                                                      \
    KERNEL add_biases_##E##_##N(T* y, const float* biases, const u32* offsets, const float* weights, u64 packs, u32 row_packs, u32 experts) { \
        add_biases<T, N>(y, biases, offsets, weights, packs, row_packs, experts);                                      \
    }                                                                                                                  \
    EMULATE(add_biases_##E##_##N)                                                                                      \
    KERNEL add_sinks_##E##_##N(T* o, float* lse, const float* sinks, u32 rows, u32 heads, u32 row_packs) {             \
        add_sinks<T, N>(o, lse, sinks, rows, heads, row_packs);                                                        \
    }                                                                                                                  \
    EMULATE(add_sinks_##E##_##N)

#define EACH(T, E, N)                                                                                                  \
    PACKED(T, E, 1)                                                                                                    \
    PACKED(T, E, N)                                                                                                    \
    KERNEL dot_rows_##E(const T* a, const T* b, float* sums, u32 rows, u32 width) {                                    \
        dot_rows<T, T>(a, b, nullptr, sums, rows, width, 0);                                                           \
    }                                                                                                                  \
    EMULATE(dot_rows_##E)                                                                                              \
    KERNEL dot_biases_##E(const T* a, const float* biases, const u32* offsets, float* sums, u32 rows, u32 width, u32 experts) { \
        dot_rows<T, float>(a, biases, offsets, sums, rows, width, experts);                                            \
    }                                                                                                                  \
    EMULATE(dot_biases_##E)                                                                                            \
    KERNEL split_experts_##E(const T* b, T* split, u64 count, u32 rank, u32 experts) {                                 \
        split_experts<T>(b, split, count, rank, experts);                                                              \
    }                                                                                                                  \
    EMULATE(split_experts_##E)

FOR_EACH_ELEMENT(EACH)
