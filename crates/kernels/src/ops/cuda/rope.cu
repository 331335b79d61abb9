// Rotary position embedding of queries q (tokens, query heads, d) and keys k (tokens, key heads, d), in place and in half-split
// order: y1 = x1 c - x2 s, y2 = x2 c + x1 s on the first 2 half dimensions of each head; the rest stays. `sign` -1 is the
// inverse rotation.

template <class T, int N>
__device__ void rotate(T* q, T* k, const float* cosines, const float* sines, const u32* positions, u32 query_heads, u32 key_heads,
                       u32 d, u32 half, float sign) {
    u32 token = blockIdx.x, packs = half / N, heads = query_heads + key_heads;
    u64 table = (u64)positions[token] * half;
    for (u32 index = threadIdx.x; index < heads * packs; index += blockDim.x) {
        u32 head = index / packs, pack = index % packs;
        T* place = head < query_heads ? q + ((u64)token * query_heads + head) * d : k + ((u64)token * key_heads + head - query_heads) * d;
        Pack<T, N> low = load<T, N>(place, pack), high = load<T, N>(place + half, pack), low_out, high_out;
        for (int i = 0; i < N; i++) {
            float a = widen(low.at[i]), b = widen(high.at[i]);
            float c = cosines[table + pack * N + i], s = sines[table + pack * N + i] * sign;
            low_out.at[i] = narrow<T>(a * c - b * s);
            high_out.at[i] = narrow<T>(b * c + a * s);
        }
        store(place, pack, low_out);
        store(place + half, pack, high_out);
    }
}

// As rotate, of neighbouring dimensions: y[2i] = x[2i] c - x[2i + 1] s, y[2i + 1] = x[2i + 1] c + x[2i] s.
template <class T>
__device__ void rotate_neighbours(T* q, T* k, const float* cosines, const float* sines, const u32* positions, u32 query_heads,
                                  u32 key_heads, u32 d, u32 half, float sign) {
    u32 token = blockIdx.x, heads = query_heads + key_heads;
    u64 table = (u64)positions[token] * half;
    for (u32 index = threadIdx.x; index < heads * half; index += blockDim.x) {
        u32 head = index / half, pair = index % half;
        T* place = head < query_heads ? q + ((u64)token * query_heads + head) * d : k + ((u64)token * key_heads + head - query_heads) * d;
        float a = widen(place[2 * pair]), b = widen(place[2 * pair + 1]);
        float c = cosines[table + pair], s = sines[table + pair] * sign;
        place[2 * pair] = narrow<T>(a * c - b * s);
        place[2 * pair + 1] = narrow<T>(b * c + a * s);
    }
}

// One head by a warp: y = the rotation of x r (offset + weight), which is rounded before, with r = 1 / sqrt(mean(x^2) + eps), as in
// rms_norm.cu. What a rotation leaves is normalised only.
template <class T, int N>
__device__ void rotate_normed(const T* x, const T* weight, T* y, float* rstd, const float* cosines, const float* sines, u32 d, u32 half,
                              float eps, float offset) {
    float squares = 0;
    for (u32 pack = threadIdx.x; pack < d / N; pack += 32) {
        Pack<T, N> values = load<T, N>(x, pack);
        for (int i = 0; i < N; i++) squares += widen(values.at[i]) * widen(values.at[i]);
    }
    float r = 1.0f / sqrtf(warp_sum(squares) / d + eps);
    if (threadIdx.x == 0) *rstd = r;
    auto normed = [&](T value, T factor) { return widen(narrow<T>(widen(value) * r * (widen(factor) + offset))); };
    for (u32 pack = threadIdx.x; pack < half / N; pack += 32) {
        Pack<T, N> low = load<T, N>(x, pack), high = load<T, N>(x + half, pack);
        Pack<T, N> low_factor = load<T, N>(weight, pack), high_factor = load<T, N>(weight + half, pack);
        for (int i = 0; i < N; i++) {
            float a = normed(low.at[i], low_factor.at[i]), b = normed(high.at[i], high_factor.at[i]);
            float c = cosines[pack * N + i], s = sines[pack * N + i];
            low.at[i] = narrow<T>(a * c - b * s);
            high.at[i] = narrow<T>(b * c + a * s);
        }
        store(y, pack, low);
        store(y + half, pack, high);
    }
    for (u32 pack = 2 * half / N + threadIdx.x; pack < d / N; pack += 32) {
        Pack<T, N> values = load<T, N>(x, pack), factors = load<T, N>(weight, pack);
        for (int i = 0; i < N; i++) values.at[i] = narrow<T>(normed(values.at[i], factors.at[i]));
        store(y, pack, values);
    }
}

#define PACKED(T, E, N)                                                                                                \
    KERNEL rope_##E##_##N(T* q, T* k, const float* cosines, const float* sines, const u32* positions, u32 query_heads, \
                          u32 key_heads, u32 d, u32 half, float sign) {                                                \
        rotate<T, N>(q, k, cosines, sines, positions, query_heads, key_heads, d, half, sign);                          \
    }                                                                                                                  \
    EMULATE(rope_##E##_##N)                                                                                            \
    KERNEL rope_normed_##E##_##N(const T* q, const T* k, const T* query_weight, const T* key_weight, T* rotated_q,     \
                                 T* rotated_k, float* query_rstd, float* key_rstd, const float* cosines,               \
                                 const float* sines, const u32* positions, u32 tokens, u32 query_heads,                \
                                 u32 key_heads, u32 d, u32 half, float eps, float offset) {                            \
        u32 heads = query_heads + key_heads, index = blockIdx.x * blockDim.y + threadIdx.y;                            \
        if (index >= tokens * heads) return;                                                                           \
        u32 token = index / heads, head = index % heads;                                                               \
        bool is_query = head < query_heads;                                                                            \
        u64 row = is_query ? (u64)token * query_heads + head : (u64)token * key_heads + head - query_heads;            \
        u64 table = (u64)positions[token] * half;                                                                      \
        rotate_normed<T, N>((is_query ? q : k) + row * d, is_query ? query_weight : key_weight,                        \
                            (is_query ? rotated_q : rotated_k) + row * d, (is_query ? query_rstd : key_rstd) + row,    \
                            cosines + table, sines + table, d, half, eps, offset);                                     \
    }                                                                                                                  \
    EMULATE(rope_normed_##E##_##N)

#define BOTH_PACKS(T, E, N)                                                                                            \
    PACKED(T, E, N)                                                                                                    \
    PACKED(T, E, 1)                                                                                                    \
    KERNEL rope_neighbours_##E(T* q, T* k, const float* cosines, const float* sines, const u32* positions,             \
                               u32 query_heads, u32 key_heads, u32 d, u32 half, float sign) {                          \
        rotate_neighbours<T>(q, k, cosines, sines, positions, query_heads, key_heads, d, half, sign);                  \
    }                                                                                                                  \
    EMULATE(rope_neighbours_##E)

FOR_EACH_ELEMENT(BOTH_PACKS)
