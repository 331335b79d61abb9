// The stand-in for cuBLASLt: descriptors, an "algorithm" that holds for what it was chosen for and nothing else, and the product.
#include "product.h"

#include <cublasLt.h>

#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

using namespace stand_in;

struct Layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t leading;
};

struct Description {
    cublasComputeType_t compute;
    cudaDataType scale;
    int32_t transposed[2] = {CUBLAS_OP_N, CUBLAS_OP_N};
};

struct Preference {
    uint64_t workspace = 0;
    // Without a preference the library takes all addresses to be multiples of 256.
    uint32_t alignments[4] = {256, 256, 256, 256};
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};

// What an algorithm keeps of the question that it answers.
struct Choice {
    uint32_t magic, transposed[2], types[3];
    uint64_t workspace, sizes[3][3];
    uint8_t alignments[4];
};
static_assert(sizeof(Choice) <= sizeof(cublasLtMatmulAlgo_t) * 2, "does not fit");

constexpr uint32_t MAGIC = 0x5eed;

// The algorithm itself has only 64 bytes: a digest of the choice.
static uint64_t digest(const Choice& choice) {
    uint64_t sum = 1469598103934665603u;
    auto bytes = reinterpret_cast<const unsigned char*>(&choice);
    for (size_t index = 0; index < sizeof choice; index++) sum = (sum ^ bytes[index]) * 1099511628211u;
    return sum;
}

static const Layout& layout(cublasLtMatrixLayout_t handle) { return **reinterpret_cast<Layout**>(handle); }
static const Description& description(cublasLtMatmulDesc_t handle) { return **reinterpret_cast<Description**>(handle); }

// Handles are opaque structures of a fixed size, of which the first word leads to what is kept.
template <class Handle, class Kept> static Handle handle_of(Kept* kept) { return reinterpret_cast<Handle>(new Kept*(kept)); }
template <class Kept, class Handle> static void drop(Handle handle) {
    delete *reinterpret_cast<Kept**>(handle);
    delete reinterpret_cast<Kept**>(handle);
}

// Algorithms that the heuristic names, each with the microseconds that a product by it takes longer: STAND_IN_GPU_PRODUCT_TIMES=900,300,600.
// Without it there are three, which take none.
static const std::vector<long>& times() {
    static const std::vector<long> times = [] {
        std::vector<long> times;
        const char* text = std::getenv("STAND_IN_GPU_PRODUCT_TIMES");
        for (text = text && *text ? text : "0,0,0"; text; text = std::strchr(text, ',')) times.push_back(std::atol(text += *text == ','));
        return times;
    }();
    return times;
}

size_t cublasLtGetVersion() { return 130000; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    if (!has_context()) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = reinterpret_cast<cublasLtHandle_t>(new int(0));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete reinterpret_cast<int*>(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* out, cudaDataType type, uint64_t rows, uint64_t columns,
                                          int64_t leading) {
    *out = handle_of<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, leading});
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
    drop<Layout>(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* out, cublasComputeType_t compute, cudaDataType scale) {
    *out = handle_of<cublasLtMatmulDesc_t>(new Description{compute, scale});
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) {
    drop<Description>(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
    bool of_a = attribute == CUBLASLT_MATMUL_DESC_TRANSA;
    if (!of_a && attribute != CUBLASLT_MATMUL_DESC_TRANSB) fail("attribute %d of a product is set", int(attribute));
    if (bytes != sizeof(int32_t)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&(*reinterpret_cast<Description**>(handle))->transposed[of_a ? 0 : 1], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* out) {
    *out = handle_of<cublasLtMatmulPreference_t>(new Preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
    drop<Preference>(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle, cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
    Preference& preference = **reinterpret_cast<Preference**>(handle);
    size_t first = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
        if (bytes != sizeof(uint64_t)) return CUBLAS_STATUS_INVALID_VALUE;
        std::memcpy(&preference.workspace, value, bytes);
    } else if (attribute >= first && attribute < first + 4) {
        if (bytes != sizeof(uint32_t)) return CUBLAS_STATUS_INVALID_VALUE;
        std::memcpy(&preference.alignments[attribute - first], value, bytes);
    } else if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
        if (bytes != sizeof(uint32_t)) return CUBLAS_STATUS_INVALID_VALUE;
        std::memcpy(&preference.reductions, value, bytes);
    } else {
        fail("attribute %d of a preference is set", int(attribute));
    }
    return CUBLAS_STATUS_SUCCESS;
}

static Choice choice_of(const Description& product, const Layout& a, const Layout& b, const Layout& c) {
    Choice choice;
    std::memset(&choice, 0, sizeof choice);
    choice.magic = MAGIC;
    const Layout* layouts[] = {&a, &b, &c};
    for (int index = 0; index < 3; index++) {
        choice.types[index] = layouts[index]->type;
        choice.sizes[index][0] = layouts[index]->rows;
        choice.sizes[index][1] = layouts[index]->columns;
        choice.sizes[index][2] = layouts[index]->leading;
    }
    choice.transposed[0] = product.transposed[0];
    choice.transposed[1] = product.transposed[1];
    return choice;
}

static Product product_of(const Description& description, const Layout& a, const Layout& b, const Layout& c) {
    auto operand = [](const Layout& one, bool transposed) {
        return Operand{one.type, transposed, 0, (long long)one.rows, (long long)one.columns, one.leading, 0};
    };
    return {operand(a, description.transposed[0] != CUBLAS_OP_N), operand(b, description.transposed[1] != CUBLAS_OP_N), operand(c, false),
            1, 0, 1};
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
    *found = 0;
    const Description& asked = description(product);
    const Preference& allowed = **reinterpret_cast<Preference**>(preference);
    bool of_bytes = asked.compute == CUBLAS_COMPUTE_32I && asked.scale == CUDA_R_32I;
    if (!of_bytes && (asked.compute != CUBLAS_COMPUTE_32F || asked.scale != CUDA_R_32F))
        fail("a product with sums of type %d", int(asked.compute));
    if (of_bytes != (layout(a).type == CUDA_R_8I) || of_bytes != (layout(b).type == CUDA_R_8I) || of_bytes != (layout(c).type == CUDA_R_32I))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    // Bytes are taken with sums along both operands' columns in memory only, and with rows of whole words.
    if (of_bytes && (asked.transposed[0] != CUBLAS_OP_T || asked.transposed[1] != CUBLAS_OP_N || layout(a).leading % 4 ||
                     layout(b).leading % 4 || layout(a).rows % 4 || layout(c).rows % 4))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (wanted < 1 || std::memcmp(&layout(c), &layout(d), sizeof(Layout))) return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_valid(product_of(asked, layout(a), layout(b), layout(c)))) return CUBLAS_STATUS_INVALID_VALUE;
    if (allowed.reductions & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE))
        fail("a product whose partial sums may meet in its result's type");
    // Rows that begin at odd elements have no algorithm here, so that the way around them is taken as well.
    for (auto one : {a, b, c})
        if (size_of(layout(one).type) == 2 && layout(one).leading % 2) return CUBLAS_STATUS_NOT_SUPPORTED;
    Choice choice = choice_of(asked, layout(a), layout(b), layout(c));
    for (*found = 0; *found < wanted && *found < int(times().size()); ++*found) {
        cublasLtMatmulHeuristicResult_t& result = results[*found];
        std::memset(&result, 0, sizeof result);
        result.algo.data[0] = digest(choice);
        result.algo.data[1] = allowed.workspace;
        for (int index = 0; index < 4; index++) result.algo.data[2] |= uint64_t{allowed.alignments[index]} << 16 * index;
        result.algo.data[3] = *found + 1;
        // An algorithm takes all the workspace that it may.
        result.workspaceSize = allowed.workspace;
        result.state = CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha, const void* a, cublasLtMatrixLayout_t of_a,
                              const void* b, cublasLtMatrixLayout_t of_b, const void* beta, const void* c, cublasLtMatrixLayout_t of_c,
                              void* d, cublasLtMatrixLayout_t of_d, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    if (!has_context()) return CUBLAS_STATUS_EXECUTION_FAILED;
    const Description& asked = description(product);
    if (std::memcmp(&layout(of_c), &layout(of_d), sizeof(Layout))) fail("a product whose result lies otherwise than what is added");
    if (algorithm->data[0] != digest(choice_of(asked, layout(of_a), layout(of_b), layout(of_c))))
        fail("a product with the algorithm of another shape");
    size_t number = algorithm->data[3];
    if (number < 1 || number > times().size()) fail("a product with an algorithm that nobody named");
    if (workspace_bytes < algorithm->data[1]) return CUBLAS_STATUS_INVALID_VALUE;
    if (reinterpret_cast<size_t>(workspace) % 256) fail("a workspace that is not aligned");
    check(reinterpret_cast<CUdeviceptr>(workspace), workspace_bytes, "the workspace of a product");
    const void* addresses[] = {a, b, c, d};
    for (int index = 0; index < 4; index++) {
        size_t alignment = algorithm->data[2] >> 16 * index & 0xffff;
        if (alignment && reinterpret_cast<size_t>(addresses[index]) % alignment)
            fail("operand %d of a product is not at a multiple of %zu, as its algorithm was promised", index, alignment);
    }
    Product whole = product_of(asked, layout(of_a), layout(of_b), layout(of_c));
    whole.a.start = reinterpret_cast<CUdeviceptr>(a);
    whole.b.start = reinterpret_cast<CUdeviceptr>(b);
    whole.c.start = reinterpret_cast<CUdeviceptr>(d);
    auto factor = [&](const void* place) -> double {
        if (asked.scale == CUDA_R_32I) return *static_cast<const int32_t*>(place);
        return *static_cast<const float*>(place);
    };
    whole.alpha = factor(alpha);
    whole.beta = factor(beta);
    if (c != d) whole.added = reinterpret_cast<CUdeviceptr>(c);
    put_product(reinterpret_cast<CUstream>(stream), whole, ("cublasLtMatmul " + std::to_string(number)).c_str());
    if (long longer = times()[number - 1]) put(reinterpret_cast<CUstream>(stream), "product's time", [=] { usleep(longer); });
    // The workspace holds anything behind a product.
    put(reinterpret_cast<CUstream>(stream), "workspace", [=] { std::memset(workspace, 0xff, std::min<size_t>(workspace_bytes, 4096)); });
    return CUBLAS_STATUS_SUCCESS;
}
