// What candle's kernels take from CUDA's headers, on the host: 16-bit elements, vectors, mathematical functions, atomics. Comes behind
// emulation.h.
//
// Arithmetic on 16-bit elements is F32's, rounded where a value is stored: at most one rounding less than on a GPU.
#include <cassert>
#include <limits>
#include <type_traits>

#define __CUDA_ARCH__ 800
#define CUDA_VERSION 13000
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT1_2 0.70710678118654752440

typedef unsigned char u8;

namespace stand_in {

inline uint16_t to_bf16(float value) {
    unsigned bits = __float_as_uint(value);
    if (value != value) return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline float from_bf16(uint16_t bits) { return __uint_as_float((unsigned)bits << 16); }

inline float from_half(uint16_t bits) {
    float wide = __uint_as_float((bits & 0x7fffu) << 13) * __uint_as_float((254 - 15) << 23);
    unsigned special = wide >= 65536.0f ? 255u << 23 : 0, sign = (bits & 0x8000u) << 16;
    return __uint_as_float(__float_as_uint(wide) | special | sign);
}

inline uint16_t to_half(float value) {
    unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff, half;
    if (magnitude > 255u << 23) half = 0x7e00;
    else if (magnitude >= (127u + 16) << 23) half = 0x7c00;
    else if (magnitude < 113u << 23) {
        unsigned magic = ((127 - 15) + (23 - 10) + 1) << 23;
        half = __float_as_uint(__uint_as_float(magnitude) + __uint_as_float(magic)) - magic;
    } else half = (magnitude + ((unsigned)(15 - 127) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    return half | sign;
}

template <uint16_t (*TO)(float), float (*FROM)(uint16_t)> struct Element16 {
    uint16_t bits;
    Element16() = default;
    template <class V, class = std::enable_if_t<std::is_arithmetic_v<V>>> Element16(V value) : bits(TO(value)) {}
    operator float() const { return FROM(bits); }
    Element16& operator+=(float other) { return *this = Element16(float(*this) + other); }
    Element16& operator*=(float other) { return *this = Element16(float(*this) * other); }
};

} // namespace stand_in

using __half = stand_in::Element16<stand_in::to_half, stand_in::from_half>;
using __nv_bfloat16 = stand_in::Element16<stand_in::to_bf16, stand_in::from_bf16>;

inline float __bfloat162float(__nv_bfloat16 value) { return value; }
inline __nv_bfloat16 __float2bfloat16(float value) { return value; }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return value; }
inline float __half2float(__half value) { return value; }
inline __half __float2half(float value) { return value; }

struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
inline __nv_bfloat162 __hadd2(__nv_bfloat162 a, __nv_bfloat162 b) { return {float(a.x) + float(b.x), float(a.y) + float(b.y)}; }
inline __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b) { return {float(a.x) * float(b.x), float(a.y) * float(b.y)}; }

// Elements of 8 bits compile and do not run: nothing here has any.
#define __NV_E4M3 0
struct __nv_fp8_e4m3 {
    u8 __x;
    __nv_fp8_e4m3() = default;
    template <class V> explicit __nv_fp8_e4m3(V) { emulation::fail("an element of 8 bits"); }
};
inline float __nv_cvt_fp8_to_halfraw(u8, int) { emulation::fail("an element of 8 bits"); }

struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }

template <class T> T hsqrt(T a) { return std::sqrt(float(a)); }
template <class T> T hcos(T a) { return std::cos(float(a)); }
template <class T> T hsin(T a) { return std::sin(float(a)); }
template <class T> T hlog(T a) { return std::log(float(a)); }
template <class T> T hexp(T a) { return std::exp(float(a)); }
template <class T> T __habs(T a) { return std::fabs(float(a)); }
template <class T> bool __hisnan(T a) { return std::isnan(float(a)); }
template <class T> T __hmax_nan(T a, T b) { return __hisnan(a) || (!__hisnan(b) && float(a) >= float(b)) ? a : b; }
template <class T> T __hmin_nan(T a, T b) { return __hisnan(a) || (!__hisnan(b) && float(a) <= float(b)) ? a : b; }
inline float rsqrtf(float value) { return 1.0f / std::sqrt(value); }
inline float normcdff(float value) { return 0.5f * std::erfc(-value * (float)M_SQRT1_2); }
inline double normcdf(double value) { return 0.5 * std::erfc(-value * M_SQRT1_2); }
using std::isnan;
using std::signbit;

template <class V> V __shfl_xor_sync(unsigned mask, V value, int distance, int) { return __shfl_xor_sync(mask, value, distance); }

// One thread runs at a time.
template <class V> V atomicAdd(V* place, V value) {
    V old = *place;
    *place = old + value;
    return old;
}
template <class V, class W> V atomicMin(V* place, W other) {
    V value = other;
    V old = *place;
    if (value < old) *place = value;
    return old;
}
template <class V, class W> V atomicMax(V* place, W other) {
    V value = other;
    V old = *place;
    if (value > old) *place = value;
    return old;
}
template <class V> V atomicCAS(V* place, V expected, V value) {
    V old = *place;
    if (old == expected) *place = value;
    return old;
}
inline unsigned short __half_as_ushort(__half value) { return value.bits; }
inline __half __ushort_as_half(unsigned short bits) {
    __half value;
    value.bits = bits;
    return value;
}
inline double __longlong_as_double(long long bits) {
    double value;
    std::memcpy(&value, &bits, 8);
    return value;
}
inline long long __double_as_longlong(double value) {
    long long bits;
    std::memcpy(&bits, &value, 8);
    return bits;
}
inline int __float_as_int(float value) { return (int)__float_as_uint(value); }

namespace cuda {
namespace std {
using ::std::numeric_limits;
}
} // namespace cuda
