// Cross-entropy of a chunk of logits, a block of threads for each row, and its gradient in place.

struct Online {
    float largest, sum;
};

// Takes N more values into a sum of exponentials relative to the largest so far.
template <int N> __device__ inline void take(Online* online, const float (&values)[N]) {
    float largest = online->largest;
    #pragma unroll
    for (int i = 0; i < N; i++) largest = fmaxf(largest, values[i]);
    if (largest > online->largest) {
        online->sum *= expf(online->largest - largest);
        online->largest = largest;
    }
    #pragma unroll
    for (int i = 0; i < N; i++) online->sum += expf(values[i] - largest);
}

__device__ inline float cap_logit(float logit, float cap) { return cap > 0 ? cap * tanhf(logit / cap) : logit; }

template <int N> __device__ inline Pack<float, N> cap_logits(Pack<float, N> logits, float cap) {
    #pragma unroll
    for (int i = 0; i < N; i++) logits.at[i] = cap_logit(logits.at[i], cap);
    return logits;
}

// logits (rows, vocabulary) before the soft-cap. losses and correct (rows,) are written. Where there is a scale, the row
// becomes the gradient of scale times its loss, as elements T from the start of the row's memory on. The vocabulary is a multiple of N.
template <class T, int N>
__device__ void losses_of(float* logits, const u32* targets, float* losses, u32* correct, u32 vocabulary, float cap,
                          const float* scale) {
    __shared__ float scratch[32];
    float* row = logits + (u64)blockIdx.x * vocabulary;
    u32 packs = vocabulary / N;
    Online online = {-INFINITE, 0.0f};
    for (u32 pack = threadIdx.x; pack < packs; pack += blockDim.x) take(&online, cap_logits(load<float, N>(row, pack), cap).at);
    float largest = row_max(online.largest, scratch);
    // A thread without a column has a sum of zero.
    float total = row_sum(online.sum > 0 ? online.sum * expf(online.largest - largest) : 0.0f, scratch);
    u32 target = targets[blockIdx.x];
    float lse = largest + logf(total), at_target = cap_logit(row[target], cap);
    if (threadIdx.x == 0) {
        losses[blockIdx.x] = logf(total) + (largest - at_target);
        correct[blockIdx.x] = at_target >= largest;
    }
    if (!scale) return;
    // What is written lies at or before what has been read: a narrower element takes the place of earlier ones.
    T* gradient = reinterpret_cast<T*>(row);
    float factor = *scale;
    __syncthreads();
    for (u32 first = 0; first < packs; first += blockDim.x) {
        u32 pack = first + threadIdx.x;
        Pack<float, N> capped = {};
        if (pack < packs) capped = load<float, N>(row, pack);
        __syncthreads();
        if (pack >= packs) continue;
        capped = cap_logits(capped, cap);
        Pack<T, N> result;
        #pragma unroll
        for (int i = 0; i < N; i++) {
            float logit = capped.at[i], part = expf(logit - lse) - (pack * N + i == target ? 1.0f : 0.0f);
            if (cap > 0) part *= 1.0f - (logit / cap) * (logit / cap);
            result.at[i] = narrow<T>(factor * part);
        }
        store(gradient, pack, result);
    }
}

template <class T, int N> __device__ inline void copy_row(const T* from, T* to, u32 width) {
    for (u32 pack = threadIdx.x; pack < width / N; pack += blockDim.x) store(to, pack, load<T, N>(from, pack));
}

// One row, 16 bytes (N elements) at a time where rows begin at multiples of them.
template <class T, int N> __device__ inline void move_row(const T* from, T* to, u32 width) {
    if (width % N == 0) copy_row<T, N>(from, to, width);
    else copy_row<T, 1>(from, to, width);
}

// to[i] = from[rows[i]], rows of `width`.
template <class T, int N> __device__ void gather(const T* from, const u32* rows, T* to, u32 width) {
    move_row<T, N>(from + (u64)rows[blockIdx.x] * width, to + (u64)blockIdx.x * width, width);
}

// to[rows[i]] = from[i]; no row occurs twice.
template <class T, int N> __device__ void scatter(const T* from, const u32* rows, T* to, u32 width) {
    move_row<T, N>(from + (u64)blockIdx.x * width, to + (u64)rows[blockIdx.x] * width, width);
}

#define HEAD(T, E, N)                                                                                                  \
    KERNEL loss_##E(float* logits, const u32* targets, float* losses, u32* correct, u32 vocabulary, float cap,         \
                    const float* scale) {                                                                              \
        if (vocabulary % 4 == 0) losses_of<T, 4>(logits, targets, losses, correct, vocabulary, cap, scale);            \
        else losses_of<T, 1>(logits, targets, losses, correct, vocabulary, cap, scale);                                \
    }                                                                                                                  \
    EMULATE(loss_##E)                                                                                                  \
    KERNEL gather_rows_##E(const T* from, const u32* rows, T* to, u32 width) { gather<T, N>(from, rows, to, width); }     \
    EMULATE(gather_rows_##E)                                                                                           \
    KERNEL scatter_rows_##E(const T* from, const u32* rows, T* to, u32 width) { scatter<T, N>(from, rows, to, width); }   \
    EMULATE(scatter_rows_##E)

FOR_EACH_ELEMENT(HEAD)
