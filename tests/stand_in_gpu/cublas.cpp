// The stand-in for cuBLAS: the products that candle and the program ask for.
#include "product.h"

#include <cublas_v2.h>

using namespace stand_in;

struct cublasContext {
    CUstream stream = nullptr;
};

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
    if (!has_context()) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = new cublasContext;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
    handle->stream = reinterpret_cast<CUstream>(stream);
    return CUBLAS_STATUS_SUCCESS;
}

static Operand operand(cudaDataType type, bool transposed, const void* start, long long rows, long long columns, int leading,
                       long long stride) {
    return {type, transposed, reinterpret_cast<CUdeviceptr>(start), transposed ? columns : rows, transposed ? rows : columns, leading,
            stride};
}

static cublasStatus_t run(cublasHandle_t handle, const Product& product, const char* name) {
    if (!has_context()) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!is_valid(product)) return CUBLAS_STATUS_INVALID_VALUE;
    put_product(handle->stream, product, name);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b, int m, int n, int k,
                                          const void* alpha, const void* a, cudaDataType type_a, int leading_a, long long stride_a,
                                          const void* b, cudaDataType type_b, int leading_b, long long stride_b, const void* beta, void* c,
                                          cudaDataType type_c, int leading_c, long long stride_c, int batches,
                                          cublasComputeType_t compute, cublasGemmAlgo_t) {
    if (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32) fail("a product with sums of type %d", int(compute));
    bool known = type_a == type_b && (type_c == type_a || type_c == CUDA_R_32F) &&
                 (type_a == CUDA_R_32F || type_a == CUDA_R_16F || type_a == CUDA_R_16BF);
    if (!known) return CUBLAS_STATUS_NOT_SUPPORTED;
    Product product{operand(type_a, of_a != CUBLAS_OP_N, a, m, k, leading_a, stride_a),
                    operand(type_b, of_b != CUBLAS_OP_N, b, k, n, leading_b, stride_b),
                    operand(type_c, false, c, m, n, leading_c, stride_c),
                    *static_cast<const float*>(alpha),
                    *static_cast<const float*>(beta),
                    batches};
    return run(handle, product, "cublasGemmStridedBatchedEx");
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b, int m, int n, int k, const void* alpha,
                            const void* a, cudaDataType type_a, int leading_a, const void* b, cudaDataType type_b, int leading_b,
                            const void* beta, void* c, cudaDataType type_c, int leading_c, cublasComputeType_t compute,
                            cublasGemmAlgo_t algorithm) {
    return cublasGemmStridedBatchedEx(handle, of_a, of_b, m, n, k, alpha, a, type_a, leading_a, 0, b, type_b, leading_b, 0, beta, c, type_c,
                                      leading_c, 0, 1, compute, algorithm);
}

cublasStatus_t cublasDgemmStridedBatched(cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b, int m, int n, int k,
                                         const double* alpha, const double* a, int leading_a, long long stride_a, const double* b,
                                         int leading_b, long long stride_b, const double* beta, double* c, int leading_c,
                                         long long stride_c, int batches) {
    Product product{operand(CUDA_R_64F, of_a != CUBLAS_OP_N, a, m, k, leading_a, stride_a),
                    operand(CUDA_R_64F, of_b != CUBLAS_OP_N, b, k, n, leading_b, stride_b),
                    operand(CUDA_R_64F, false, c, m, n, leading_c, stride_c),
                    *alpha,
                    *beta,
                    batches};
    return run(handle, product, "cublasDgemmStridedBatched");
}
