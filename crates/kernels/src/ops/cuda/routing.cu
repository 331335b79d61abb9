// Routing of tokens to experts (routing.rs has the formulas): choice, rows sorted by expert, and the gradient of the logits.
//
// The sort counts: each block counts the experts of CHUNK choices, one block makes sums of the counts, and each block places its choices. Rows
// of one expert stay in the order of their tokens.

#include "groups.cuh"

#define WARPS 4
#define CHUNK 256
#define MOST_EXPERTS 1024
#define NOBODY NO_GROUP
#define NOT_A_NUMBER __int_as_float(0x7fffffff)

// The highest of the values that are numbers, and of equal ones the first; NOBODY where there is none. For a whole warp.
__device__ inline u32 best_of(const float* values, u32 count) {
    float value = -INFINITE;
    u32 place = NOBODY;
    for (u32 i = threadIdx.x % 32; i < count; i += 32) {
        float other = values[i];
        if (other == other && (place == NOBODY || other > value)) value = other, place = i;
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        float other = __shfl_xor_sync(0xffffffff, value, distance);
        u32 its = __shfl_xor_sync(0xffffffff, place, distance);
        if (its != NOBODY && (place == NOBODY || other > value || (other == value && its < place))) value = other, place = its;
    }
    return place;
}

// Leaves numbers only in the best `chosen` of `groups` groups.
__device__ inline void keep_groups(float* keys, float* of_groups, u32 experts, u32 groups, u32 chosen, bool sum_of_two) {
    u32 lane = threadIdx.x % 32, size = experts / groups;
    for (u32 group = lane; group < groups; group += 32) {
        float first = -INFINITE, second = -INFINITE;
        for (u32 i = 0; i < size; i++) {
            float value = keys[group * size + i];
            second = fmaxf(second, fminf(first, value));
            first = fmaxf(first, value);
        }
        of_groups[group] = sum_of_two ? first + second : first;
    }
    __syncwarp();
    for (u32 i = 0; i < chosen; i++) {
        u32 group = best_of(of_groups, groups);
        __syncwarp();
        // The best ones are no numbers then, and the others are.
        if (lane == 0) of_groups[group] = NOT_A_NUMBER;
        __syncwarp();
    }
    for (u32 expert = lane; expert < experts; expert += 32) {
        float of_group = of_groups[expert / size];
        if (of_group == of_group) keys[expert] = NOT_A_NUMBER;
    }
    __syncwarp();
}

// A warp has a token: `experts` scores, as many keys to choose by, and a value for each group.
KERNEL route(const float* logits, const float* correction, float* scores, u32* choices, float* weights, u32 tokens, u32 experts, u32 chosen,
             u32 sigmoid, u32 normalised, float scale, u32 groups, u32 best_groups) {
    DYNAMIC_SHARED(shared);
    u32 lane = threadIdx.x % 32, token = blockIdx.x * WARPS + threadIdx.x / 32;
    if (token >= tokens) return;
    float* own = reinterpret_cast<float*>(shared) + threadIdx.x / 32 * (2 * experts + groups);
    float *keys = own + experts, *of_groups = keys + experts;
    float highest = -INFINITE, sum = 0;
    for (u32 expert = lane; expert < experts; expert += 32) highest = fmaxf(highest, logits[(u64)token * experts + expert]);
    highest = warp_max(highest);
    for (u32 expert = lane; expert < experts; expert += 32) {
        float logit = logits[(u64)token * experts + expert];
        own[expert] = sigmoid ? 1.0f / (1.0f + expf(-logit)) : expf(logit - highest);
        sum += own[expert];
    }
    sum = warp_sum(sum);
    for (u32 expert = lane; expert < experts; expert += 32) {
        float score = sigmoid ? own[expert] : own[expert] / sum, key = correction ? score + correction[expert] : score;
        own[expert] = scores[(u64)token * experts + expert] = score;
        keys[expert] = key == key ? key : -INFINITE;
    }
    __syncwarp();
    if (groups) keep_groups(keys, of_groups, experts, groups, best_groups, sigmoid);
    float divisor = 0;
    for (u32 i = 0; i < chosen; i++) {
        u32 expert = best_of(keys, experts);
        divisor += own[expert];
        __syncwarp();
        if (lane == 0) {
            keys[expert] = NOT_A_NUMBER;
            choices[(u64)token * chosen + i] = expert;
        }
        __syncwarp();
    }
    float factor = normalised ? scale / divisor : scale;
    if (lane == 0)
        for (u32 i = 0; i < chosen; i++) weights[(u64)token * chosen + i] = factor * own[choices[(u64)token * chosen + i]];
}
EMULATE(route)

// counts (chunks, experts)
KERNEL count_choices(const u32* choices, u32* counts, u32 total, u32 experts) {
    __shared__ u32 own[CHUNK];
    u32 index = blockIdx.x * CHUNK + threadIdx.x;
    own[threadIdx.x] = index < total ? choices[index] : NOBODY;
    __syncthreads();
    for (u32 expert = threadIdx.x; expert < experts; expert += CHUNK) {
        u32 count = 0;
        for (u32 i = 0; i < CHUNK; i++) count += own[i] == expert;
        counts[(u64)blockIdx.x * experts + expert] = count;
    }
}
EMULATE(count_choices)

// values (count,) become the sums of those before each; returns the sum of all. For a whole block.
__device__ inline u32 sums_before(u32* values, u32 count, u32* of_lanes) {
    u32 share = (count + 31) / 32, start = threadIdx.x * share;
    if (threadIdx.x < 32) {
        u32 sum = 0;
        for (u32 i = start; i < min(start + share, count); i++) sum += values[i];
        of_lanes[threadIdx.x] = sum;
    }
    __syncthreads();
    u32 all = 0, before = 0;
    for (u32 i = 0; i < 32; i++) {
        if (i == threadIdx.x) before = all;
        all += of_lanes[i];
    }
    if (threadIdx.x < 32) {
        for (u32 i = start; i < min(start + share, count); i++) {
            u32 value = values[i];
            values[i] = before;
            before += value;
        }
    }
    __syncthreads();
    return all;
}

// From counts to the first row of each chunk's choices, the first row of each expert, and the tiles of the experts' products. One block.
KERNEL sum_counts(u32* counts, u32* offsets, u32* map, u32 chunks, u32 experts, u32 most_tiles) {
    __shared__ u32 first[MOST_EXPERTS], tile[MOST_EXPERTS], of_lanes[32];
    for (u32 expert = threadIdx.x; expert < experts; expert += CHUNK) {
        u32 sum = 0;
        for (u32 chunk = 0; chunk < chunks; chunk++) {
            u32* place = counts + (u64)chunk * experts + expert;
            u32 count = *place;
            *place = sum;
            sum += count;
        }
        first[expert] = sum;
        tile[expert] = (sum + TILE_ROWS - 1) / TILE_ROWS;
    }
    __syncthreads();
    u32 rows = sums_before(first, experts, of_lanes);
    u32 tiles = sums_before(tile, experts, of_lanes);
    for (u32 expert = threadIdx.x; expert < experts; expert += CHUNK) {
        offsets[expert] = first[expert];
        u32 last = expert + 1 < experts ? first[expert + 1] : rows;
        for (u32 row = first[expert], at = tile[expert]; row < last; row += TILE_ROWS, at++) {
            map[2 * at] = expert;
            map[2 * at + 1] = row;
        }
        for (u32 chunk = 0; chunk < chunks; chunk++) counts[(u64)chunk * experts + expert] += first[expert];
    }
    if (threadIdx.x == 0) offsets[experts] = rows;
    for (u32 at = tiles + threadIdx.x; at < most_tiles; at += CHUNK) map[2 * at] = map[2 * at + 1] = NOBODY;
}
EMULATE(sum_counts)

// A thread has a choice.
KERNEL place_choices(const u32* choices, const float* weights, const u32* counts, u32* tokens, u32* rows, float* sorted, u32 total, u32 experts,
                     u32 chosen) {
    __shared__ u32 own[CHUNK];
    u32 index = blockIdx.x * CHUNK + threadIdx.x;
    own[threadIdx.x] = index < total ? choices[index] : NOBODY;
    __syncthreads();
    if (index >= total) return;
    u32 expert = own[threadIdx.x], row = counts[(u64)blockIdx.x * experts + expert];
    for (u32 i = 0; i < threadIdx.x; i++) row += own[i] == expert;
    tokens[row] = index / chosen;
    rows[index] = row;
    sorted[row] = weights[index];
}
EMULATE(place_choices)

// A warp has a token.
KERNEL route_backward(const float* scores, const u32* offsets, const u32* rows, const float* weights, const float* d_weights, float* d_logits,
                      u32 tokens, u32 experts, u32 chosen, u32 sigmoid, u32 normalised, float scale) {
    DYNAMIC_SHARED(shared);
    u32 lane = threadIdx.x % 32, token = blockIdx.x * WARPS + threadIdx.x / 32;
    if (token >= tokens) return;
    float* gradient = reinterpret_cast<float*>(shared) + threadIdx.x / 32 * experts;
    const float* own = scores + (u64)token * experts;
    for (u32 expert = lane; expert < experts; expert += 32) gradient[expert] = 0;
    __syncwarp();
    if (lane == 0) {
        float divisor = 0, together = 0;
        for (u32 i = 0; i < chosen; i++) {
            u32 row = rows[(u64)token * chosen + i];
            divisor += own[group_of(offsets, experts, row)];
            together += d_weights[row] * weights[row];
        }
        float factor = normalised ? scale / divisor : scale;
        together = normalised ? together / scale : 0.0f;
        for (u32 i = 0; i < chosen; i++) {
            u32 row = rows[(u64)token * chosen + i];
            gradient[group_of(offsets, experts, row)] = factor * (d_weights[row] - together);
        }
    }
    __syncwarp();
    float sum = 0;
    for (u32 expert = lane; expert < experts; expert += 32) sum += gradient[expert] * own[expert];
    sum = warp_sum(sum);
    for (u32 expert = lane; expert < experts; expert += 32) {
        float p = own[expert], d = gradient[expert];
        d_logits[(u64)token * experts + expert] = sigmoid ? d * p * (1.0f - p) : p * (d - sum);
    }
}
EMULATE(route_backward)
