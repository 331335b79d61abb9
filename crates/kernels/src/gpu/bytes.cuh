// Rows of values as signed bytes: 127ths of the largest size in the row, ties to even.

#define NOT_A_NUMBER __int_as_float(0x7fc00000)

// Of a row whose largest size is below nothing is left: its reciprocal would not be finite.
#define SMALLEST 1e-30f

// A value's size; without bound where it is no number, so that its row shows it.
__device__ inline float size_of(float value) { return value == value ? fabsf(value) : INFINITE; }

// What the values of a row are multiplied by to become codes.
__device__ inline float to_codes(float largest) { return largest > SMALLEST && largest < INFINITE ? 127.0f / largest : 0.0f; }

// What its codes are multiplied by; not a number where one of the values is not finite.
__device__ inline float of_codes(float largest) {
    if (!(largest < INFINITE)) return NOT_A_NUMBER;
    return largest > SMALLEST ? largest / 127.0f : 0.0f;
}

__device__ inline u32 code_of(float value, float factor) { return factor > 0.0f ? (u8)(int)rintf(value * factor) : 0; }

// A row of `width` values by the threads of a block: `whole` codes, with zeros behind the values, and their scale. `four(at, values)` reads
// four neighbours, and gives zeros behind the row's end.
template <class FOUR> __device__ inline void row_as_bytes(FOUR four, u8* codes, float* scale, u32 width, u32 whole) {
    __shared__ float scratch[32];
    float values[4], largest = 0.0f;
    for (u32 at = threadIdx.x * 4; at < width; at += blockDim.x * 4) {
        four(at, values);
        for (int i = 0; i < 4; i++) largest = fmaxf(largest, size_of(values[i]));
    }
    largest = row_max(largest, scratch);
    float factor = to_codes(largest);
    if (threadIdx.x == 0) *scale = of_codes(largest);
    for (u32 at = threadIdx.x * 4; at < whole; at += blockDim.x * 4) {
        four(at, values);
        u32 all = 0;
        for (int i = 0; i < 4; i++) all |= code_of(values[i], factor) << 8 * i;
        reinterpret_cast<u32*>(codes)[at / 4] = all;
    }
}
