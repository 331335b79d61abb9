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

#define PACKED(T, E, N)                                                                                                \
    KERNEL rope_##E##_##N(T* q, T* k, const float* cosines, const float* sines, const u32* positions, u32 query_heads, \
                          u32 key_heads, u32 d, u32 half, float sign) {                                                \
        rotate<T, N>(q, k, cosines, sines, positions, query_heads, key_heads, d, half, sign);                          \
    }                                                                                                                  \
    EMULATE(rope_##E##_##N)

#define BOTH_PACKS(T, E, N) PACKED(T, E, N) PACKED(T, E, 1)

FOR_EACH_ELEMENT(BOTH_PACKS)
