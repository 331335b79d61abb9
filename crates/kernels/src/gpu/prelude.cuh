// What every kernel file begins with: element types, packs of them, sums over a warp or a row, matrix instructions.
//
// NVRTC compiles kernels without any header, so that no toolkit is needed where they run. The same files compile as C++
// for the tests, behind emulation.h, which stands in for the few things below that only a GPU has.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef EMULATED
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) u8 name[]
#define KERNEL extern "C" __global__ void
// Makes a kernel known to the tests, which run it on the CPU.
#define EMULATE(name)
#endif

#define INFINITE __int_as_float(0x7f800000)

// ---- elements ------------------------------------------------------------------------------------------------------

struct bf16 {
    u16 bits;
};

struct f16 {
    u16 bits;
};

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(bf16 value) { return __uint_as_float((u32)value.bits << 16); }

template <class T> __device__ inline T narrow(float value);
template <> __device__ inline float narrow<float>(float value) { return value; }

#ifndef EMULATED
__device__ inline float widen(f16 value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
}

template <> __device__ inline bf16 narrow<bf16>(float value) {
    bf16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    return result;
}

template <> __device__ inline f16 narrow<f16>(float value) {
    f16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    return result;
}
#endif

// Two elements in one register, the first in the low half.
template <class T> __device__ inline u32 pair(float first, float second) {
    return (u32)narrow<T>(first).bits | (u32)narrow<T>(second).bits << 16;
}

#ifndef EMULATED
template <> __device__ inline u32 pair<bf16>(float first, float second) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}

template <> __device__ inline u32 pair<f16>(float first, float second) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}

// 2^x in one instruction; 0 where the result is too small for a normal number.
__device__ inline float power_of_2(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}
#endif

// N neighbours that are read and written as one.
template <class T, int N> struct alignas(sizeof(T) * N) Pack {
    T at[N];
};

template <class T, int N> __device__ inline Pack<T, N> load(const T* from, u64 pack) {
    return reinterpret_cast<const Pack<T, N>*>(from)[pack];
}

template <class T, int N> __device__ inline void store(T* to, u64 pack, Pack<T, N> values) {
    reinterpret_cast<Pack<T, N>*>(to)[pack] = values;
}

// ---- sums ----------------------------------------------------------------------------------------------------------

__device__ inline float warp_sum(float value) {
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffff, value, distance);
    return value;
}

__device__ inline float warp_max(float value) {
    for (int distance = 16; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, distance));
    return value;
}

// `WARP` over the blockDim.x threads (a multiple of 32, at most 1024) that share threadIdx.y; `neutral` changes no result of
// it. All threads of the block call it; `scratch` holds 32 values for each row of threads.
template <float (*WARP)(float)> __device__ inline float over_row(float value, float neutral, float* scratch) {
    value = WARP(value);
    if (blockDim.x == 32) return value;
    float* own = scratch + threadIdx.y * 32;
    __syncthreads();
    if (threadIdx.x % 32 == 0) own[threadIdx.x / 32] = value;
    __syncthreads();
    u32 lane = threadIdx.x % 32;
    return WARP(lane < blockDim.x / 32 ? own[lane] : neutral);
}

__device__ inline float row_sum(float value, float* scratch) { return over_row<warp_sum>(value, 0.0f, scratch); }

__device__ inline float row_max(float value, float* scratch) { return over_row<warp_max>(value, -INFINITE, scratch); }

// ---- matrix instructions -------------------------------------------------------------------------------------------
//
// m16n8k16, with g = lane / 4 and t = lane % 4. Each register of a and b holds two neighbours along k.
//   a: rows g, g + 8, g, g + 8 at k = 2t, 2t, 2t + 8, 2t + 8      b: column g at k = 2t, 2t + 8
//   d: row g at columns 2t, 2t + 1, then row g + 8 at the same columns

#ifndef EMULATED
__device__ inline void multiply_tile(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], bf16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline void multiply_tile(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], f16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline u32 shared_address(const void* place) { return (u32)__cvta_generic_to_shared(place); }

// Four 8 x 8 tiles of 16-bit elements from shared memory: lane i names row i % 8 of tile i / 8 and gets, of each tile,
// row lane / 4 at columns 2 (lane % 4) and the next.
__device__ inline void load_tiles(u32 (&tiles)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// As load_tiles, each tile transposed.
__device__ inline void load_tiles_transposed(u32 (&tiles)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Copies 16 bytes to shared memory in the background; zeros where not `valid`, and nothing is read then.
__device__ inline void copy_in_background(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N of this thread's groups of copies are still under way.
template <int N> __device__ inline void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
#endif

// For each element type: name, and how many make 16 bytes.
#define FOR_EACH_ELEMENT(MACRO) MACRO(float, f32, 4) MACRO(bf16, bf16, 8) MACRO(f16, f16, 8)
