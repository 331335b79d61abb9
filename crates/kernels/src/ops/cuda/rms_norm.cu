// RMS normalisation: y = x r f with r = 1 / sqrt(mean(x^2) + eps) and f = offset + weight.
//
// blockDim.x threads (32 for short rows) share a row, blockDim.y rows share a block. A row is read twice; the second time
// it comes from the caches.

template <class T, int N>
__device__ void normalise(const T* x, const T* weight, T* y, float* rstd, u32 rows, u32 width, float eps, float offset) {
    __shared__ float scratch[32 * 32];
    u32 row = blockIdx.x * blockDim.y + threadIdx.y, packs = width / N;
    bool inside = row < rows;
    const T* from = x + (u64)(inside ? row : 0) * width;
    float squares = 0;
    for (u32 pack = threadIdx.x; pack < packs; pack += blockDim.x) {
        Pack<T, N> values = load<T, N>(from, pack);
        for (int i = 0; i < N; i++) squares += widen(values.at[i]) * widen(values.at[i]);
    }
    squares = row_sum(squares, scratch);
    float r = 1.0f / sqrtf(squares / width + eps);
    if (!inside) return;
    if (threadIdx.x == 0) rstd[row] = r;
    T* to = y + (u64)row * width;
    for (u32 pack = threadIdx.x; pack < packs; pack += blockDim.x) {
        Pack<T, N> values = load<T, N>(from, pack), factors = load<T, N>(weight, pack), result;
        for (int i = 0; i < N; i++)
            result.at[i] = narrow<T>(widen(values.at[i]) * r * (widen(factors.at[i]) + offset));
        store(to, pack, result);
    }
}

// dx = r (g - n mean(g n)) with g = dy f and n = x r; where `residual` is there, dx += residual.
template <class T, int N>
__device__ void normalise_backward(const T* x, const T* weight, const float* rstd, const T* dy, const T* residual, T* dx,
                                   u32 rows, u32 width, float offset) {
    __shared__ float scratch[32 * 32];
    u32 row = blockIdx.x * blockDim.y + threadIdx.y, packs = width / N;
    bool inside = row < rows;
    u64 start = (u64)(inside ? row : 0) * width;
    float along = 0;
    for (u32 pack = threadIdx.x; pack < packs; pack += blockDim.x) {
        Pack<T, N> values = load<T, N>(x + start, pack), d = load<T, N>(dy + start, pack);
        Pack<T, N> factors = load<T, N>(weight, pack);
        for (int i = 0; i < N; i++) along += widen(d.at[i]) * (widen(factors.at[i]) + offset) * widen(values.at[i]);
    }
    along = row_sum(along, scratch);
    if (!inside) return;
    float r = rstd[row], scale = along / width * r * r;
    for (u32 pack = threadIdx.x; pack < packs; pack += blockDim.x) {
        Pack<T, N> values = load<T, N>(x + start, pack), d = load<T, N>(dy + start, pack);
        Pack<T, N> factors = load<T, N>(weight, pack), result, more;
        if (residual) more = load<T, N>(residual + start, pack);
        for (int i = 0; i < N; i++) {
            float gradient = r * (widen(d.at[i]) * (widen(factors.at[i]) + offset) - widen(values.at[i]) * scale);
            if (residual) gradient = widen(narrow<T>(gradient)) + widen(more.at[i]);
            result.at[i] = narrow<T>(gradient);
        }
        store(dx + start, pack, result);
    }
}

// y = x - mean(x).
template <class T, int N> __device__ void centre(const T* x, T* y, u32 rows, u32 width) {
    __shared__ float scratch[32 * 32];
    u32 row = blockIdx.x * blockDim.y + threadIdx.y, packs = width / N;
    bool inside = row < rows;
    u64 start = (u64)(inside ? row : 0) * width;
    float total = 0;
    for (u32 pack = threadIdx.x; pack < packs; pack += blockDim.x) {
        Pack<T, N> values = load<T, N>(x + start, pack);
        for (int i = 0; i < N; i++) total += widen(values.at[i]);
    }
    float mean = row_sum(total, scratch) / width;
    if (!inside) return;
    for (u32 pack = threadIdx.x; pack < packs; pack += blockDim.x) {
        Pack<T, N> values = load<T, N>(x + start, pack);
        for (int i = 0; i < N; i++) values.at[i] = narrow<T>(widen(values.at[i]) - mean);
        store(y + start, pack, values);
    }
}

// partial (blocks in y, width): sums of dy x r over `share` rows each.
template <class T>
__device__ void weight_gradient(const T* x, const float* rstd, const T* dy, float* partial, u32 rows, u32 width,
                                u32 share) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= width) return;
    u32 first = blockIdx.y * share, last = min(first + share, rows);
    float sum = 0;
    for (u32 row = first; row < last; row++) {
        u64 index = (u64)row * width + column;
        sum += widen(dy[index]) * (widen(x[index]) * rstd[row]);
    }
    partial[(u64)blockIdx.y * width + column] = sum;
}

#define PACKED(T, E, N)                                                                                                \
    KERNEL rms_norm_##E##_##N(const T* x, const T* weight, T* y, float* rstd, u32 rows, u32 width, float eps,          \
                              float offset) {                                                                          \
        normalise<T, N>(x, weight, y, rstd, rows, width, eps, offset);                                                 \
    }                                                                                                                  \
    EMULATE(rms_norm_##E##_##N)                                                                                        \
    KERNEL rms_norm_backward_##E##_##N(const T* x, const T* weight, const float* rstd, const T* dy, const T* residual, \
                                       T* dx, u32 rows, u32 width, float offset) {                                     \
        normalise_backward<T, N>(x, weight, rstd, dy, residual, dx, rows, width, offset);                              \
    }                                                                                                                  \
    EMULATE(rms_norm_backward_##E##_##N)                                                                               \
    KERNEL centre_##E##_##N(const T* x, T* y, u32 rows, u32 width) { centre<T, N>(x, y, rows, width); }                \
    EMULATE(centre_##E##_##N)

#define BOTH_PACKS(T, E, N)                                                                                            \
    PACKED(T, E, N)                                                                                                    \
    PACKED(T, E, 1)                                                                                                    \
    KERNEL rms_norm_weight_##E(const T* x, const float* rstd, const T* dy, float* partial, u32 rows, u32 width,        \
                               u32 share) {                                                                            \
        weight_gradient<T>(x, rstd, dy, partial, rows, width, share);                                                  \
    }                                                                                                                  \
    EMULATE(rms_norm_weight_##E)

FOR_EACH_ELEMENT(BOTH_PACKS)
