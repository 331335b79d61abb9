// Sums, bias, gated linear unit, dropout and rounding: one pass over memory each, 16 bytes a thread where rows allow it.

// sum = x + y
template <class T, int N> __device__ void add(const T* x, const T* y, T* sum, u64 packs) {
    u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= packs) return;
    Pack<T, N> a = load<T, N>(x, index), b = load<T, N>(y, index), result;
    for (int i = 0; i < N; i++) result.at[i] = narrow<T>(widen(a.at[i]) + widen(b.at[i]));
    store(sum, index, result);
}

// sum = x + scale y
template <class T, int N> __device__ void add_scaled(const T* x, const T* y, T* sum, float scale, u64 packs) {
    u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= packs) return;
    Pack<T, N> a = load<T, N>(x, index), b = load<T, N>(y, index), result;
    for (int i = 0; i < N; i++) result.at[i] = narrow<T>(widen(a.at[i]) + scale * widen(b.at[i]));
    store(sum, index, result);
}

// scaled = scale x
template <class T, int N> __device__ void multiply(const T* x, T* scaled, float scale, u64 packs) {
    u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= packs) return;
    Pack<T, N> values = load<T, N>(x, index), result;
    for (int i = 0; i < N; i++) result.at[i] = narrow<T>(scale * widen(values.at[i]));
    store(scaled, index, result);
}

// copy = values in its own type
template <class T, int N> __device__ void round(T* copy, const float* values, u64 packs) {
    u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= packs) return;
    Pack<float, N> wide = load<float, N>(values, index);
    Pack<T, N> result;
    for (int i = 0; i < N; i++) result.at[i] = narrow<T>(wide.at[i]);
    store(copy, index, result);
}

// y (rows, width) += scale bias (width,)
template <class T, class B, int N> __device__ void add_bias(T* y, const B* bias, float scale, u64 packs, u32 row_packs) {
    u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= packs) return;
    Pack<T, N> values = load<T, N>(y, index);
    u64 column = index % row_packs * N;
    for (int i = 0; i < N; i++) values.at[i] = narrow<T>(widen(values.at[i]) + scale * widen(bias[column + i]));
    store(y, index, values);
}

struct Activated {
    float value, slope;
};

// (1 / (1 + exp(-x)), 1 - that), without cancellation on either side.
__device__ inline void logistic(float x, float* s, float* rest) {
    float e = expf(-fabsf(x)), large = 1.0f / (1.0f + e), small = e * large;
    *s = x >= 0 ? large : small;
    *rest = x >= 0 ? small : large;
}

__device__ inline Activated silu(float g) {
    float s, rest;
    logistic(g, &s, &rest);
    return {g * s, s * (1.0f + g * rest)};
}

// GELU in its tanh form: (1 + tanh(u)) / 2 is the logistic function of 2 u.
__device__ inline Activated gelu(float g) {
    const float cubic = 0.044715f, scale = 1.5957691216f;
    float s, rest, square = g * g;
    logistic(scale * g * (1.0f + cubic * square), &s, &rest);
    return {g * s, s + g * s * rest * scale * (1.0f + 3.0f * cubic * square)};
}

template <bool GELU> __device__ inline Activated activate(float g) { return GELU ? gelu(g) : silu(g); }

// y = act(gate) up
template <class T, int N, bool GELU> __device__ void glu(const T* gate, const T* up, T* y, u64 packs) {
    u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= packs) return;
    Pack<T, N> g = load<T, N>(gate, index), u = load<T, N>(up, index), result;
    for (int i = 0; i < N; i++) result.at[i] = narrow<T>(activate<GELU>(widen(g.at[i])).value * widen(u.at[i]));
    store(y, index, result);
}

// d_gate = dy up act'(gate) in place of gate, d_up = dy act(gate) in place of dy
template <class T, int N, bool GELU> __device__ void glu_backward(T* gate, const T* up, T* dy, u64 packs) {
    u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= packs) return;
    Pack<T, N> g = load<T, N>(gate, index), u = load<T, N>(up, index), d = load<T, N>(dy, index), to_gate, to_up;
    for (int i = 0; i < N; i++) {
        Activated a = activate<GELU>(widen(g.at[i]));
        float gradient = widen(d.at[i]);
        to_gate.at[i] = narrow<T>(gradient * widen(u.at[i]) * a.slope);
        to_up.at[i] = narrow<T>(gradient * a.value);
    }
    store(gate, index, to_gate);
    store(dy, index, to_up);
}

// One element of the clamped unit (clamped_glu.rs): a value that is not a number stays one.
struct Clamped {
    float gate, up, logistic;
};

#define CLAMPED_SLOPE 1.702f

__device__ inline Clamped clamp_unit(float gate, float up, float limit) {
    float g = gate > limit ? limit : gate, u = up > limit ? limit : up < -limit ? -limit : up;
    return {g, u, 1.0f / (1.0f + expf(-CLAMPED_SLOPE * g))};
}

// y = (up + 1) gate s(a gate) of clamped values
template <class T, int N> __device__ void clamped_glu(const T* gate, const T* up, T* y, float limit, u64 packs) {
    u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= packs) return;
    Pack<T, N> g = load<T, N>(gate, index), u = load<T, N>(up, index), result;
    for (int i = 0; i < N; i++) {
        Clamped unit = clamp_unit(widen(g.at[i]), widen(u.at[i]), limit);
        result.at[i] = narrow<T>((unit.up + 1.0f) * unit.gate * unit.logistic);
    }
    store(y, index, result);
}

// Gradients of gate and up; 0 where a value was clamped.
template <class T, int N>
__device__ void clamped_glu_backward(const T* gate, const T* up, const T* dy, T* d_gate, T* d_up, float limit, u64 packs) {
    u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= packs) return;
    Pack<T, N> g = load<T, N>(gate, index), u = load<T, N>(up, index), d = load<T, N>(dy, index), to_gate, to_up;
    for (int i = 0; i < N; i++) {
        float wide_gate = widen(g.at[i]), wide_up = widen(u.at[i]), gradient = widen(d.at[i]);
        Clamped unit = clamp_unit(wide_gate, wide_up, limit);
        float s = unit.logistic, slope = s + CLAMPED_SLOPE * unit.gate * s * (1.0f - s);
        to_gate.at[i] = narrow<T>(wide_gate <= limit ? gradient * (unit.up + 1.0f) * slope : 0.0f);
        to_up.at[i] = narrow<T>(fabsf(wide_up) <= limit ? gradient * unit.gate * s : 0.0f);
    }
    store(d_gate, index, to_gate);
    store(d_up, index, to_up);
}

// xIELU: p x^2 + b x above 0, n (expm1(min(x, e)) - x) + b x below.
__device__ inline Activated xielu(float x, float p, float n, float b, float e) {
    if (x > 0) return {p * x * x + b * x, 2.0f * p * x + b};
    float slope = x < e ? expf(x) : x > e ? 0.0f : 0.5f * expf(x);
    return {(expm1f(fminf(x, e)) - x) * n + b * x, (slope - 1.0f) * n + b};
}

// y = xielu(x), or dx = dy xielu'(x) where dy is there
template <class T, int N>
__device__ void curve(const T* x, const T* dy, T* y, float p, float n, float b, float e, u64 packs) {
    u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= packs) return;
    Pack<T, N> values = load<T, N>(x, index), gradients, result;
    if (dy) gradients = load<T, N>(dy, index);
    for (int i = 0; i < N; i++) {
        Activated a = xielu(widen(values.at[i]), p, n, b, e);
        result.at[i] = narrow<T>(dy ? widen(gradients.at[i]) * a.slope : a.value);
    }
    store(y, index, result);
}

// The finaliser of SplitMix64.
__device__ inline u64 mix(u64 value) {
    u64 z = value + 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// Word w of Philox 4x32-7 at counter 16 g + l decides element 64 g + 16 w + l: a thread takes one l of one group and all
// four w. `masks` holds a seed and the row of x's first element in the tensor that the mask is for, the lower half of each first;
// `number` tells the masks of one seed apart.
template <class T>
__device__ void drop(const T* x, T* y, u64 count, const u32* masks, u64 number, u64 width, u32 threshold, float scale) {
    u64 key = mix(((u64)masks[1] << 32 | masks[0]) ^ number), first = ((u64)masks[3] << 32 | masks[2]) * width;
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u64 group = first / 64 + thread / 16;
    u32 lane = thread % 16;
    u64 counter = 16 * group + lane;
    u32 word[4] = {(u32)counter, (u32)(counter >> 32), 0, 0}, key0 = (u32)key, key1 = (u32)(key >> 32);
    for (int round = 0; round < 7; round++) {
        u32 high0 = __umulhi(0xD2511F53u, word[0]), low0 = 0xD2511F53u * word[0];
        u32 high1 = __umulhi(0xCD9E8D57u, word[2]), low1 = 0xCD9E8D57u * word[2];
        word[0] = high1 ^ word[1] ^ key0;
        word[1] = low1;
        word[2] = high0 ^ word[3] ^ key1;
        word[3] = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    for (int w = 0; w < 4; w++) {
        u64 index = 64 * group + 16 * w + lane;
        if (index < first || index - first >= count) continue;
        y[index - first] = narrow<T>(widen(x[index - first]) * (word[w] < threshold ? 0.0f : scale));
    }
}

#define PACKED(T, E, N)                                                                                                \
    KERNEL add_##E##_##N(const T* x, const T* y, T* sum, u64 packs) { add<T, N>(x, y, sum, packs); }                  \
    EMULATE(add_##E##_##N)                                                                                             \
    KERNEL add_scaled_##E##_##N(const T* x, const T* y, T* sum, float scale, u64 packs) {                              \
        add_scaled<T, N>(x, y, sum, scale, packs);                                                                     \
    }                                                                                                                  \
    EMULATE(add_scaled_##E##_##N)                                                                                      \
    KERNEL multiply_##E##_##N(const T* x, T* scaled, float scale, u64 packs) {                                         \
        multiply<T, N>(x, scaled, scale, packs);                                                                       \
    }                                                                                                                  \
    EMULATE(multiply_##E##_##N)                                                                                        \
    KERNEL round_##E##_##N(T* copy, const float* values, u64 packs) { round<T, N>(copy, values, packs); }              \
    EMULATE(round_##E##_##N)                                                                                           \
    KERNEL bias_##E##_##N(T* y, const T* bias, float scale, u64 packs, u32 row_packs) {                                \
        add_bias<T, T, N>(y, bias, scale, packs, row_packs);                                                           \
    }                                                                                                                  \
    EMULATE(bias_##E##_##N)                                                                                            \
    KERNEL bias_wide_##E##_##N(T* y, const float* bias, float scale, u64 packs, u32 row_packs) {                       \
        add_bias<T, float, N>(y, bias, scale, packs, row_packs);                                                       \
    }                                                                                                                  \
    EMULATE(bias_wide_##E##_##N)                                                                                       \
    KERNEL silu_glu_##E##_##N(const T* gate, const T* up, T* y, u64 packs) { glu<T, N, false>(gate, up, y, packs); }   \
    EMULATE(silu_glu_##E##_##N)                                                                                        \
    KERNEL gelu_glu_##E##_##N(const T* gate, const T* up, T* y, u64 packs) { glu<T, N, true>(gate, up, y, packs); }    \
    EMULATE(gelu_glu_##E##_##N)                                                                                        \
    KERNEL silu_glu_backward_##E##_##N(T* gate, const T* up, T* dy, u64 packs) {                                       \
        glu_backward<T, N, false>(gate, up, dy, packs);                                                                \
    }                                                                                                                  \
    EMULATE(silu_glu_backward_##E##_##N)                                                                               \
    KERNEL gelu_glu_backward_##E##_##N(T* gate, const T* up, T* dy, u64 packs) {                                       \
        glu_backward<T, N, true>(gate, up, dy, packs);                                                                 \
    }                                                                                                                  \
    EMULATE(gelu_glu_backward_##E##_##N)                                                                               \
    KERNEL clamped_glu_##E##_##N(const T* gate, const T* up, T* y, float limit, u64 packs) {                           \
        clamped_glu<T, N>(gate, up, y, limit, packs);                                                                  \
    }                                                                                                                  \
    EMULATE(clamped_glu_##E##_##N)                                                                                     \
    KERNEL clamped_glu_backward_##E##_##N(const T* gate, const T* up, const T* dy, T* d_gate, T* d_up, float limit, u64 packs) { \
        clamped_glu_backward<T, N>(gate, up, dy, d_gate, d_up, limit, packs);                                          \
    }                                                                                                                  \
    EMULATE(clamped_glu_backward_##E##_##N)                                                                            \
    KERNEL xielu_##E##_##N(const T* x, const T* dy, T* y, float p, float n, float b, float e, u64 packs) {             \
        curve<T, N>(x, dy, y, p, n, b, e, packs);                                                                      \
    }                                                                                                                  \
    EMULATE(xielu_##E##_##N)

#define BOTH_PACKS(T, E, N)                                                                                            \
    PACKED(T, E, N)                                                                                                    \
    PACKED(T, E, 1)                                                                                                    \
    KERNEL dropout_##E(const T* x, T* y, u64 count, const u32* masks, u64 number, u64 width, u32 threshold,            \
                       float scale) {                                                                                  \
        drop<T>(x, y, count, masks, number, width, threshold, scale);                                                  \
    }                                                                                                                  \
    EMULATE(dropout_##E)

FOR_EACH_ELEMENT(BOTH_PACKS)
