// Matrix products of the stand-ins for cuBLAS and cuBLASLt: by columns, with F32 sums (F64 for F64, whole numbers for bytes), checked before they are queued.
#pragma once

#include "driver.h"

#include <library_types.h>

#include <cmath>
#include <cstring>

namespace stand_in {

struct Operand {
    cudaDataType type;
    bool transposed;
    CUdeviceptr start;
    long long rows, columns, leading, stride;
};

struct Product {
    Operand a, b, c;
    double alpha, beta;
    int batches;
    // Where the matrix lies that is added, of c's layout; 0: in c itself.
    CUdeviceptr added = 0;
};

inline size_t size_of(cudaDataType type) {
    switch (type) {
    case CUDA_R_8I: return 1;
    case CUDA_R_16F:
    case CUDA_R_16BF: return 2;
    case CUDA_R_32F:
    case CUDA_R_32I: return 4;
    case CUDA_R_64F: return 8;
    default: fail("a product of elements of type %d", int(type));
    }
}

inline float from_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

inline double read(const Operand& operand, const char* start, size_t index) {
    if (operand.type == CUDA_R_64F) return reinterpret_cast<const double*>(start)[index];
    if (operand.type == CUDA_R_32F) return reinterpret_cast<const float*>(start)[index];
    if (operand.type == CUDA_R_8I) return reinterpret_cast<const int8_t*>(start)[index];
    if (operand.type == CUDA_R_32I) return reinterpret_cast<const int32_t*>(start)[index];
    uint16_t bits = reinterpret_cast<const uint16_t*>(start)[index];
    if (operand.type == CUDA_R_16BF) return from_bits(uint32_t{bits} << 16);
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 31 ? (fraction ? NAN : INFINITY)
                   : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                                  : std::ldexp(fraction, -24);
    return bits & 0x8000 ? -value : value;
}

inline uint16_t to_half(float value) {
    uint16_t sign = bits_of(value) >> 16 & 0x8000;
    float size = std::fabs(value);
    if (size != size) return sign | 0x7e00;
    if (size >= 65520.0f) return sign | 0x7c00;
    if (size == 0) return sign;
    int exponent;
    std::frexp(size, &exponent);
    // The last place of the result; below 2^-14 all numbers have the same.
    int place = std::max(exponent - 11, -24);
    float steps = std::nearbyint(std::ldexp(size, -place));
    // Subnormal numbers are their steps; the others have a hidden bit, which a step too many carries on by itself.
    return sign | (place == -24 ? uint16_t(steps) : uint16_t(((place + 24) << 10) + uint16_t(steps)));
}

inline void write(const Operand& operand, char* start, size_t index, double value) {
    if (operand.type == CUDA_R_64F) reinterpret_cast<double*>(start)[index] = value;
    else if (operand.type == CUDA_R_32F) reinterpret_cast<float*>(start)[index] = value;
    else if (operand.type == CUDA_R_32I) reinterpret_cast<int32_t*>(start)[index] = int32_t(value);
    else if (operand.type == CUDA_R_16F) reinterpret_cast<uint16_t*>(start)[index] = to_half(value);
    else {
        uint32_t bits = bits_of(value);
        uint16_t rounded = value != value ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        reinterpret_cast<uint16_t*>(start)[index] = rounded;
    }
}

// The operand as it enters the product, by columns without gaps.
template <class V> std::vector<V> packed(const Operand& operand, const char* start) {
    long long rows = operand.transposed ? operand.columns : operand.rows;
    long long columns = operand.transposed ? operand.rows : operand.columns;
    std::vector<V> values(rows * columns);
    for (long long column = 0; column < columns; column++)
        for (long long row = 0; row < rows; row++) {
            size_t index = operand.transposed ? row * operand.leading + column : column * operand.leading + row;
            values[column * rows + row] = read(operand, start, index);
        }
    return values;
}

template <class V> void multiply(const Product& product, int batch) {
    auto start = [batch](const Operand& operand) {
        return reinterpret_cast<char*>(operand.start) + batch * operand.stride * (long long)size_of(operand.type);
    };
    std::vector<V> a = packed<V>(product.a, start(product.a)), b = packed<V>(product.b, start(product.b));
    long long rows = product.c.rows, columns = product.c.columns;
    long long depth = product.a.transposed ? product.a.rows : product.a.columns;
    std::vector<V> sums(rows);
    char* c = start(product.c);
    const char* added = product.added ? reinterpret_cast<char*>(product.added) : c;
    for (long long column = 0; column < columns; column++) {
        std::fill(sums.begin(), sums.end(), V(0));
        const V* factors = &b[column * depth];
        long long k = 0;
        for (; k + 4 <= depth; k += 4) {
            const V *a0 = &a[k * rows], *a1 = a0 + rows, *a2 = a1 + rows, *a3 = a2 + rows;
            V f0 = factors[k], f1 = factors[k + 1], f2 = factors[k + 2], f3 = factors[k + 3];
            for (long long row = 0; row < rows; row++) sums[row] += a0[row] * f0 + a1[row] * f1 + a2[row] * f2 + a3[row] * f3;
        }
        for (; k < depth; k++)
            for (long long row = 0; row < rows; row++) sums[row] += a[k * rows + row] * factors[k];
        for (long long row = 0; row < rows; row++) {
            size_t index = column * product.c.leading + row;
            // With beta 0 the result's old elements are not read: they may be NaN.
            double old = product.beta == 0 ? 0 : product.beta * read(product.c, added, index);
            write(product.c, c, index, product.alpha * sums[row] + old);
        }
    }
}

// Whether sizes and leading dimensions are ones that the libraries take.
inline bool is_valid(const Product& product) {
    auto seen = [](const Operand& operand, bool of_rows) {
        return of_rows != operand.transposed ? operand.rows : operand.columns;
    };
    for (const Operand* one : {&product.a, &product.b, &product.c})
        if (one->rows < 0 || one->columns < 0 || one->leading < std::max(1LL, one->rows)) return false;
    return seen(product.a, true) == product.c.rows && seen(product.b, false) == product.c.columns &&
           seen(product.a, false) == seen(product.b, true) && product.batches >= 0;
}

inline void put_product(CUstream stream, const Product& product, const char* name) {
    if (product.c.rows == 0 || product.c.columns == 0 || product.batches == 0) return;
    for (const Operand* one : {&product.a, &product.b, &product.c}) {
        if (one->rows == 0 || one->columns == 0) continue;
        size_t size = size_of(one->type);
        if (one->start % size) fail("%s: an operand is not aligned to its elements", name);
        long long last = (product.batches - 1) * one->stride + (one->columns - 1) * one->leading + one->rows;
        check(one->start, last * size, name);
        if (one == &product.c && product.added) check(product.added, last * size, name);
    }
    auto work = [product] {
        for (int batch = 0; batch < product.batches; batch++) {
            // Sums of bytes are whole numbers, which F64 holds.
            if (product.c.type == CUDA_R_64F || product.c.type == CUDA_R_32I) multiply<double>(product, batch);
            else multiply<float>(product, batch);
        }
    };
    LOCKED;
    long long depth = product.a.transposed ? product.a.rows : product.a.columns;
    double flops = 2.0 * product.batches * product.c.rows * product.c.columns * depth;
    put(queue_of(stream), Operation{name, work, nullptr, nullptr, nullptr, 0, Operation::KERNEL, 0,
                                           detail("%lld x %lld of %lld, beta %g, %zu and %zu bytes", product.c.rows, product.c.columns, depth, product.beta,
                                                  size_of(product.a.type), size_of(product.c.type)),
                                           flops, size_of(product.a.type) <= 2});
}

} // namespace stand_in
