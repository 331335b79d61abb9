// The stand-in for cuRAND: normal numbers from a seed. They are not NVIDIA's: whoever compares runs must not start from them.
#include "driver.h"

#include <curand.h>

#include <random>

using namespace stand_in;

struct curandGenerator_st {
    std::mt19937_64 source{1};
    CUstream stream = nullptr;
};

curandStatus_t curandCreateGenerator(curandGenerator_t* generator, curandRngType_t) {
    if (!has_context()) return CURAND_STATUS_INITIALIZATION_FAILED;
    *generator = new curandGenerator_st;
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandDestroyGenerator(curandGenerator_t generator) {
    delete generator;
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandSetStream(curandGenerator_t generator, cudaStream_t stream) {
    generator->stream = reinterpret_cast<CUstream>(stream);
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t generator, unsigned long long seed) {
    generator->source.seed(seed);
    return CURAND_STATUS_SUCCESS;
}

template <class V> static curandStatus_t normal(curandGenerator_t generator, V* out, size_t count, V mean, V deviation) {
    // Pairs, as the library makes them.
    if (count % 2) return CURAND_STATUS_LENGTH_NOT_MULTIPLE;
    check(reinterpret_cast<CUdeviceptr>(out), count * sizeof(V), "random numbers");
    std::mt19937_64 source = generator->source;
    generator->source.discard(4 * count);
    put(generator->stream, "random numbers", [=]() mutable {
        std::normal_distribution<V> numbers(mean, deviation);
        for (size_t index = 0; index < count; index++) out[index] = numbers(source);
    });
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandGenerateNormal(curandGenerator_t generator, float* out, size_t count, float mean, float deviation) {
    return normal(generator, out, count, mean, deviation);
}

curandStatus_t curandGenerateNormalDouble(curandGenerator_t generator, double* out, size_t count, double mean, double deviation) {
    return normal(generator, out, count, mean, deviation);
}
