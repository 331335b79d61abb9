// Attention of single queries over what is kept of earlier tokens (cached_attention.rs has the formulas). A block has one head of one
// query; its warps take the rows in turns, each with a softmax of its own, and put them together at the end.

#define WARPS 8
#define LANES 32

struct Heads {
    u32 heads, key_heads, d;
    float scale, cap; // cap 0: none
};

// Maximum, sum of exponentials below it, and weighted sum of values: a lane has every 32nd of D.
template <int D> struct Softmax {
    float highest, total, sum[D / LANES];

    // Takes in another one. An empty one has no weight, and two of them stay one.
    __device__ inline void add(float other_highest, float other_total, const float* other_sum) {
        float top = fmaxf(highest, other_highest);
        if (top == -INFINITE) return;
        float own = expf(highest - top), others = expf(other_highest - top);
        highest = top;
        total = total * own + other_total * others;
        for (int i = 0; i < D / LANES; i++) sum[i] = sum[i] * own + other_sum[i] * others;
    }
};

// sinks (heads,), where there are some: one more logit in each head's softmax, whose weight goes nowhere.
// q, o (tokens, heads, d); keys, values (rows, key_heads, d); places (tokens, 2): the first row that a query sees, and the one behind the last.
template <class T, int D>
__device__ void cached_attention(const T* q, const T* keys, const T* values, const u32* places, T* o, const float* sinks, Heads shape) {
    __shared__ float highest[WARPS], total[WARPS], sums[WARPS][D];
    u32 lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, head = blockIdx.x, token = blockIdx.y, d = shape.d;
    u64 query = ((u64)token * shape.heads + head) * d, stride = (u64)shape.key_heads * d;
    u64 first = (u64)(head / (shape.heads / shape.key_heads)) * d;
    float own[D / LANES];
    for (int i = 0; i < D / LANES; i++) own[i] = lane + LANES * i < d ? widen(q[query + lane + LANES * i]) : 0.0f;
    Softmax<D> found = {-INFINITE, 0, {}};
    for (u32 row = places[2 * token] + warp; row < places[2 * token + 1]; row += WARPS) {
        u64 place = row * stride + first;
        float dot = 0, value[D / LANES];
        for (int i = 0; i < D / LANES; i++) {
            u32 column = lane + LANES * i;
            value[i] = column < d ? widen(values[place + column]) : 0.0f;
            if (column < d) dot += own[i] * widen(keys[place + column]);
        }
        float score = shape.scale * warp_sum(dot);
        if (shape.cap > 0) score = shape.cap * tanhf(score / shape.cap);
        found.add(score, 1.0f, value);
    }
    if (lane == 0) highest[warp] = found.highest, total[warp] = found.total;
    for (int i = 0; i < D / LANES; i++) sums[warp][lane + LANES * i] = found.sum[i];
    __syncthreads();
    if (warp > 0) return;
    for (int other = 1; other < WARPS; other++) {
        float sum[D / LANES];
        for (int i = 0; i < D / LANES; i++) sum[i] = sums[other][lane + LANES * i];
        found.add(highest[other], total[other], sum);
    }
    if (sinks) {
        const float nothing[D / LANES] = {};
        found.add(sinks[head], 1.0f, nothing);
    }
    for (int i = 0; i < D / LANES; i++)
        if (lane + LANES * i < d) o[query + lane + LANES * i] = narrow<T>(found.sum[i] / found.total);
}

#define SIZE(T, E, D)                                                                                                  \
    KERNEL cached_attention_##E##_##D(const T* q, const T* keys, const T* values, const u32* places, T* o, const float* sinks, u32 heads, \
                                      u32 key_heads, u32 d, float scale, float cap) {                                  \
        cached_attention<T, D>(q, keys, values, places, o, sinks, {heads, key_heads, d, scale, cap});                  \
    }                                                                                                                  \
    EMULATE(cached_attention_##E##_##D)

#define SIZES(T, E, N) SIZE(T, E, 64) SIZE(T, E, 128) SIZE(T, E, 256)

FOR_EACH_ELEMENT(SIZES)
