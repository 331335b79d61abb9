// Attention for F32 and for heads that are no multiple of 8: a warp for each row; lane l holds the elements l, l + 32, ... of a
// head of up to 256. And for every form of the backward pass the sums of d_o o.

#include "attention_parts.cuh"

// dot = sum of d_o o over each head: a warp for each (token, head).
template <class T> __device__ void dot_rows(const T* d_o, const T* o, float* dot, u32 rows, u32 d) {
    u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0;
    for (u32 column = lane; column < d; column += 32)
        sum += widen(d_o[(u64)row * d + column]) * widen(o[(u64)row * d + column]);
    sum = warp_sum(sum);
    if (lane == 0) dot[row] = sum;
}

// Score with the soft-cap, in natural units.
__device__ inline float capped(const Shape& shape, float product) {
    float score = product * shape.scale;
    return shape.cap > 0 ? shape.cap * tanhf(score / shape.cap) : score;
}

// d capped / d score, from the capped score.
__device__ inline float slope(const Shape& shape, float score) {
    if (shape.cap <= 0) return 1.0f;
    float part = score / shape.cap;
    return 1.0f - part * part;
}

#define PARTS 8

template <class T> __device__ inline void read_row(float (&row)[PARTS], const T* from, u32 d) {
    for (int part = 0; part < PARTS; part++) {
        u32 column = part * 32 + threadIdx.x % 32;
        row[part] = column < d ? widen(from[column]) : 0.0f;
    }
}

template <class T> __device__ inline float dot_row(const float (&row)[PARTS], const T* other, u32 d) {
    float sum = 0;
    for (int part = 0; part < PARTS; part++) {
        u32 column = part * 32 + threadIdx.x % 32;
        if (column < d) sum += row[part] * widen(other[column]);
    }
    return warp_sum(sum);
}

template <class T> __device__ inline void add_row(float (&row)[PARTS], float factor, const T* other, u32 d) {
    for (int part = 0; part < PARTS; part++) {
        u32 column = part * 32 + threadIdx.x % 32;
        if (column < d) row[part] += factor * widen(other[column]);
    }
}

template <class T> __device__ inline void write_row(T* to, const float (&row)[PARTS], float factor, u32 d) {
    for (int part = 0; part < PARTS; part++) {
        u32 column = part * 32 + threadIdx.x % 32;
        if (column < d) to[column] = narrow<T>(row[part] * factor);
    }
}

template <class T>
__device__ void attend_plain(const T* q, const T* k, const T* v, T* o, float* lse, const u32* bounds, Shape shape) {
    u32 query = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, head = blockIdx.y;
    if (query >= shape.tokens) return;
    u32 key_head = head / (shape.query_heads / shape.key_heads), d = shape.d;
    u64 place = (u64)query * shape.query_heads + head;
    float row[PARTS], result[PARTS] = {}, largest = -INFINITE, sum = 0;
    read_row(row, q + place * d, d);
    for (u32 key = first_seen(shape.window, query, bounds[query]); key <= query; key++) {
        u64 other = ((u64)key * shape.key_heads + key_head) * d;
        float score = capped(shape, dot_row(row, k + other, d));
        float above = fmaxf(largest, score), shrink = expf(largest - above), weight = expf(score - above);
        for (int part = 0; part < PARTS; part++) result[part] *= shrink;
        add_row(result, weight, v + other, d);
        sum = sum * shrink + weight;
        largest = above;
    }
    write_row(o + place * d, result, 1.0f / sum, d);
    if (threadIdx.x % 32 == 0) lse[place] = largest + logf(sum);
}

template <class T>
__device__ void query_gradient_plain(const T* q, const T* k, const T* v, const T* d_o, const float* lse, const float* dot,
                                     T* dq, const u32* bounds, Shape shape) {
    u32 query = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, head = blockIdx.y;
    if (query >= shape.tokens) return;
    u32 key_head = head / (shape.query_heads / shape.key_heads), d = shape.d;
    u64 place = (u64)query * shape.query_heads + head;
    float row[PARTS], gradient[PARTS], result[PARTS] = {};
    read_row(row, q + place * d, d);
    read_row(gradient, d_o + place * d, d);
    for (u32 key = first_seen(shape.window, query, bounds[query]); key <= query; key++) {
        u64 other = ((u64)key * shape.key_heads + key_head) * d;
        float score = capped(shape, dot_row(row, k + other, d)), p = expf(score - lse[place]);
        float ds = p * (dot_row(gradient, v + other, d) - dot[place]) * slope(shape, score);
        add_row(result, ds, k + other, d);
    }
    write_row(dq + place * d, result, shape.scale, d);
}

template <class T>
__device__ void key_gradient_plain(const T* q, const T* k, const T* v, const T* d_o, const float* lse, const float* dot,
                                   T* dk, T* dv, const u32* bounds, Shape shape) {
    u32 key = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, key_head = blockIdx.y;
    if (key >= shape.tokens) return;
    u32 group = shape.query_heads / shape.key_heads, d = shape.d;
    u64 place = (u64)key * shape.key_heads + key_head;
    u32 end = bounds[shape.tokens + key];
    if (shape.window != 0) end = min(end, key + shape.window);
    float row[PARTS], value[PARTS], key_result[PARTS] = {}, value_result[PARTS] = {};
    read_row(row, k + place * d, d);
    read_row(value, v + place * d, d);
    for (u32 member = 0; member < group; member++)
        for (u32 query = key; query < end; query++) {
            u64 other = (u64)query * shape.query_heads + key_head * group + member;
            float score = capped(shape, dot_row(row, q + other * d, d)), p = expf(score - lse[other]);
            float ds = p * (dot_row(value, d_o + other * d, d) - dot[other]) * slope(shape, score);
            add_row(value_result, p, d_o + other * d, d);
            add_row(key_result, ds, q + other * d, d);
        }
    write_row(dk + place * d, key_result, shape.scale, d);
    write_row(dv + place * d, value_result, 1.0f, d);
}

// ---- instances -----------------------------------------------------------------------------------------------------

#define PLAIN(T, E, N)                                                                                                 \
    KERNEL attention_dot_##E(const T* d_o, const T* o, float* dot, u32 rows, u32 d) {                                  \
        dot_rows<T>(d_o, o, dot, rows, d);                                                                             \
    }                                                                                                                  \
    EMULATE(attention_dot_##E)                                                                                         \
    KERNEL attention_plain_##E(const T* q, const T* k, const T* v, T* o, float* lse, const u32* bounds, SHAPE) {       \
        attend_plain<T>(q, k, v, o, lse, bounds, SHAPE_VALUE);                                                         \
    }                                                                                                                  \
    EMULATE(attention_plain_##E)                                                                                       \
    KERNEL attention_query_plain_##E(const T* q, const T* k, const T* v, const T* d_o, const float* lse,               \
                                     const float* dot, T* dq, const u32* bounds, SHAPE) {                              \
        query_gradient_plain<T>(q, k, v, d_o, lse, dot, dq, bounds, SHAPE_VALUE);                                      \
    }                                                                                                                  \
    EMULATE(attention_query_plain_##E)                                                                                 \
    KERNEL attention_key_plain_##E(const T* q, const T* k, const T* v, const T* d_o, const float* lse,                 \
                                   const float* dot, T* dk, T* dv, const u32* bounds, SHAPE) {                         \
        key_gradient_plain<T>(q, k, v, d_o, lse, dot, dk, dv, bounds, SHAPE_VALUE);                                    \
    }                                                                                                                  \
    EMULATE(attention_key_plain_##E)

FOR_EACH_ELEMENT(PLAIN)
