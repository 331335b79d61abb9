// Rotary position embedding on x (tokens, heads, d), half-split order: y1 = x1 c - x2 s, y2 = x2 c + x1 s on the first
// 2 half dimensions of each head; the rest passes. `sign` -1 is the inverse rotation. x and y may be one buffer.

template <class T, int N>
__device__ void rotate(const T* x, T* y, const float* cosines, const float* sines, const u32* positions, u32 heads,
                       u32 d, u32 half, float sign) {
    u32 token = blockIdx.x, packs = half / N, rest = (d - 2 * half) / N;
    u64 table = (u64)positions[token] * half, start = (u64)token * heads * d;
    for (u32 index = threadIdx.x; index < heads * packs; index += blockDim.x) {
        u32 head = index / packs, pack = index % packs;
        const T* from = x + start + head * d;
        T* to = y + start + head * d;
        Pack<T, N> low = load<T, N>(from, pack), high = load<T, N>(from + half, pack), low_out, high_out;
        for (int i = 0; i < N; i++) {
            float a = widen(low.at[i]), b = widen(high.at[i]);
            float c = cosines[table + pack * N + i], s = sines[table + pack * N + i] * sign;
            low_out.at[i] = narrow<T>(a * c - b * s);
            high_out.at[i] = narrow<T>(b * c + a * s);
        }
        store(to, pack, low_out);
        store(to + half, pack, high_out);
    }
    for (u32 index = threadIdx.x; index < heads * rest; index += blockDim.x) {
        u64 place = start + (u64)(index / rest) * d + 2 * half;
        store(y + place, index % rest, load<T, N>(x + place, index % rest));
    }
}

#define PACKED(T, E, N)                                                                                                \
    KERNEL rope_##E##_##N(const T* x, T* y, const float* cosines, const float* sines, const u32* positions, u32 heads, \
                          u32 d, u32 half, float sign) {                                                               \
        rotate<T, N>(x, y, cosines, sines, positions, heads, d, half, sign);                                           \
    }                                                                                                                  \
    EMULATE(rope_##E##_##N)

#define BOTH_PACKS(T, E, N) PACKED(T, E, N) PACKED(T, E, 1)

FOR_EACH_ELEMENT(BOTH_PACKS)
