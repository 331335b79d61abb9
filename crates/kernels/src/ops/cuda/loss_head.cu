// Cross-entropy of a chunk of logits, a block of threads for each row, and its gradient in place.

struct Online {
    float largest, sum;
};

// Takes one more value into a sum of exponentials relative to the largest so far.
__device__ inline void take(Online* online, float value) {
    if (value > online->largest) {
        online->sum = online->sum * expf(online->largest - value) + 1.0f;
        online->largest = value;
    } else {
        online->sum += expf(value - online->largest);
    }
}

__device__ inline float cap_logit(float logit, float cap) { return cap > 0 ? cap * tanhf(logit / cap) : logit; }

// logits (rows, vocabulary) before the soft-cap. losses and correct (rows,) are written. Where there is a scale, the row
// becomes the gradient of scale times its loss, as elements T from the start of the row's memory on.
template <class T>
__device__ void losses_of(float* logits, const u32* targets, float* losses, u32* correct, u32 vocabulary, float cap,
                          const float* scale) {
    __shared__ float scratch[32];
    float* row = logits + (u64)blockIdx.x * vocabulary;
    Online online = {-INFINITE, 0.0f};
    for (u32 column = threadIdx.x; column < vocabulary; column += blockDim.x) take(&online, cap_logit(row[column], cap));
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
    for (u32 first = 0; first < vocabulary; first += blockDim.x) {
        u32 column = first + threadIdx.x;
        float logit = column < vocabulary ? row[column] : 0.0f;
        __syncthreads();
        if (column >= vocabulary) continue;
        logit = cap_logit(logit, cap);
        float part = expf(logit - lse) - (column == target ? 1.0f : 0.0f);
        if (cap > 0) part *= 1.0f - (logit / cap) * (logit / cap);
        gradient[column] = narrow<T>(factor * part);
    }
}

// to[i] = from[rows[i]], rows of `width`.
template <class T> __device__ void gather(const T* from, const u32* rows, T* to, u32 width) {
    u64 source = (u64)rows[blockIdx.x] * width, place = (u64)blockIdx.x * width;
    for (u32 column = threadIdx.x; column < width; column += blockDim.x) to[place + column] = from[source + column];
}

// to[rows[i]] = from[i]; no row occurs twice.
template <class T> __device__ void scatter(const T* from, const u32* rows, T* to, u32 width) {
    u64 source = (u64)blockIdx.x * width, place = (u64)rows[blockIdx.x] * width;
    for (u32 column = threadIdx.x; column < width; column += blockDim.x) to[place + column] = from[source + column];
}

#define HEAD(T, E, N)                                                                                                  \
    KERNEL loss_##E(float* logits, const u32* targets, float* losses, u32* correct, u32 vocabulary, float cap,         \
                    const float* scale) {                                                                              \
        losses_of<T>(logits, targets, losses, correct, vocabulary, cap, scale);                                        \
    }                                                                                                                  \
    EMULATE(loss_##E)                                                                                                  \
    KERNEL gather_rows_##E(const T* from, const u32* rows, T* to, u32 width) { gather<T>(from, rows, to, width); }     \
    EMULATE(gather_rows_##E)                                                                                           \
    KERNEL scatter_rows_##E(const T* from, const u32* rows, T* to, u32 width) { scatter<T>(from, rows, to, width); }   \
    EMULATE(scatter_rows_##E)

FOR_EACH_ELEMENT(HEAD)
