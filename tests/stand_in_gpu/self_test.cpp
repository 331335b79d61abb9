// Whether the stand-in GPU finds what it is there for: each case does something wrong that a real device might let pass, in a process of
// its own, which must end with the message that belongs to it; and some that are right, which must end well.
#include "product.h"

#include <nvrtc.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

static CUstream first, second;

static void need(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::_Exit(3);
}
#define NEED(condition) need(condition, #condition)
#define CALL(call) NEED((call) == CUDA_SUCCESS)

static CUdeviceptr memory(size_t bytes) {
    CUdeviceptr address;
    CALL(cuMemAllocAsync(&address, bytes, first));
    return address;
}

static CUfunction kernel(const char* body) {
    // What all kernels of the program begin with ends where the first names its file.
    std::string text = "typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;\n"
                       "struct bf16 { u16 bits; }; struct f16 { u16 bits; };\n"
                       "template <class T> T narrow(float value);\ninline float widen(bf16) { return 0; }\n"
                       "\n#line 1 \"test.cu\"\nKERNEL test(float* out, u32 count) {" +
                       std::string(body) + "}\nEMULATE(test)\n";
    nvrtcProgram program;
    const char* options[] = {"--gpu-architecture=sm_80", "--std=c++17"};
    nvrtcCreateProgram(&program, text.c_str(), "test.cu", 0, nullptr, nullptr);
    if (nvrtcCompileProgram(program, 2, options) != NVRTC_SUCCESS) {
        std::string log(1 << 16, 0);
        nvrtcGetProgramLog(program, &log[0]);
        std::fprintf(stderr, "%s\n", log.c_str());
        std::_Exit(3);
    }
    size_t size;
    nvrtcGetCUBINSize(program, &size);
    std::vector<char> binary(size);
    nvrtcGetCUBIN(program, binary.data());
    CUmodule module;
    CUfunction function;
    CALL(cuModuleLoadData(&module, binary.data()));
    CALL(cuModuleGetFunction(&function, module, "test"));
    return function;
}

static CUresult launch(CUfunction function, CUdeviceptr out, unsigned count, unsigned threads) {
    void* arguments[] = {&out, &count};
    return cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, first, arguments, nullptr);
}

static float read(CUdeviceptr address) {
    float value;
    CALL(cuMemcpyDtoHAsync(&value, address, 4, first));
    return value;
}

// ---- right ---------------------------------------------------------------------------------------------------------

static void kernels_run_in_order() {
    CUdeviceptr out = memory(128);
    CUfunction function = kernel("if (threadIdx.x < count) out[threadIdx.x] = threadIdx.x;");
    CALL(launch(function, out, 32, 32));
    NEED(read(out + 31 * 4) == 31);
    CALL(cuMemFreeAsync(out, first));
    CALL(cuCtxSynchronize());
}

static void more_than_there_is_is_out_of_memory() {
    CUdeviceptr address;
    NEED(cuMemAllocAsync(&address, size_t{1} << 60, first) == CUDA_ERROR_OUT_OF_MEMORY);
    CALL(cuMemFreeAsync(memory(100), first));
}

static void what_is_waited_for_is_there() {
    std::vector<float> home(4, 2);
    CALL(cuMemHostRegister(home.data(), 16, 0));
    CUdeviceptr there = memory(16);
    CUevent given, done;
    CALL(cuEventCreate(&given, CU_EVENT_DISABLE_TIMING));
    CALL(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
    CALL(cuEventRecord(given, first));
    CALL(cuStreamWaitEvent(second, given, 0));
    CALL(cuMemcpyHtoDAsync(there, home.data(), 16, second));
    CALL(cuEventRecord(done, second));
    CALL(cuStreamWaitEvent(first, done, 0));
    NEED(read(there) == 2);
}

static void a_graph_runs_again() {
    CUdeviceptr out = memory(4);
    CUfunction function = kernel("out[0] += 1;");
    CALL(cuMemsetD8Async(out, 0, 4, first));
    CUgraph graph;
    CUgraphExec executable;
    CALL(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CALL(launch(function, out, 1, 1));
    CALL(cuStreamEndCapture(first, &graph));
    NEED(read(out) == 0);
    CALL(cuGraphInstantiate(&executable, graph, 0));
    CALL(cuGraphLaunch(executable, first));
    CALL(cuGraphLaunch(executable, first));
    NEED(read(out) == 2);
}

static uint64_t of_graphs(CUgraphMem_attribute attribute) {
    uint64_t bytes;
    CALL(cuDeviceGetGraphMemAttribute(0, attribute, &bytes));
    return bytes;
}

static CUgraphExec captured(void (*body)()) {
    CUgraph graph;
    CUgraphExec executable;
    CALL(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    body();
    CALL(cuStreamEndCapture(first, &graph));
    CALL(cuGraphInstantiate(&executable, graph, 0));
    CALL(cuGraphDestroy(graph));
    return executable;
}

static void a_graph_has_memory_of_its_own() {
    CUgraphExec executable = captured([] {
        CUdeviceptr one = memory(1 << 20);
        CALL(cuMemsetD8Async(one, 1, 1 << 20, first));
        CALL(cuMemFreeAsync(one, first));
        // The same memory again, beside some more.
        CUdeviceptr two = memory(1 << 20), three = memory(1 << 20);
        CALL(cuMemcpyDtoDAsync(three, two, 1 << 20, first));
        CALL(cuMemFreeAsync(two, first));
        CALL(cuMemFreeAsync(three, first));
    });
    NEED(of_graphs(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) == 0);
    CALL(cuGraphLaunch(executable, first));
    CALL(cuGraphLaunch(executable, first));
    CALL(cuStreamSynchronize(first));
    NEED(of_graphs(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) == 2 << 20);
    NEED(of_graphs(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0);
    NEED(of_graphs(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) >= 2 << 20);
    CALL(cuGraphExecDestroy(executable));
    NEED(of_graphs(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) >= 2 << 20);
    CALL(cuDeviceGraphMemTrim(0));
    NEED(of_graphs(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0);
}

static CUdeviceptr left_over;

static void what_a_graph_leaves_is_freed_before_it_runs_again() {
    CUgraphExec executable = captured([] { left_over = memory(64); });
    CALL(cuGraphLaunch(executable, first));
    NEED(cuGraphLaunch(executable, first) == CUDA_ERROR_INVALID_VALUE);
    CALL(cuMemFreeAsync(left_over, first));
    CALL(cuGraphLaunch(executable, first));
    CALL(cuMemFreeAsync(left_over, first));
    NEED(cuMemFreeAsync(left_over, first) == CUDA_ERROR_INVALID_VALUE);
}

static void a_graph_that_does_not_fit_is_not_launched() {
    CUgraphExec executable = captured([] { CALL(cuMemFreeAsync(memory(size_t{3} << 30), first)); });
    CUdeviceptr beside = memory(size_t{2} << 30);
    NEED(cuGraphLaunch(executable, first) == CUDA_ERROR_OUT_OF_MEMORY);
    CALL(cuMemFreeAsync(beside, first));
    CUmemoryPool pool;
    CALL(cuDeviceGetDefaultMemPool(&pool, 0));
    CALL(cuMemPoolTrimTo(pool, 0));
    CALL(cuGraphLaunch(executable, first));
}

static void a_capture_frees_only_its_own_memory() {
    CUdeviceptr outside = memory(64);
    CUgraph graph;
    CALL(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    NEED(cuMemFreeAsync(outside, first) == CUDA_ERROR_INVALID_VALUE);
    NEED(cuStreamEndCapture(first, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CALL(cuMemFreeAsync(outside, first));
}

static void a_capture_takes_nothing_from_memory_that_is_not_pinned() {
    CUdeviceptr there = memory(4);
    int value = 1;
    CUgraph graph;
    CALL(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    NEED(cuMemcpyHtoDAsync(there, &value, 4, first) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    NEED(cuStreamEndCapture(first, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void a_capture_does_not_wait() {
    CUgraph graph;
    CALL(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    NEED(cuStreamSynchronize(first) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    NEED(cuStreamEndCapture(first, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void a_thread_without_a_context_is_told() {
    CALL(cuCtxSetCurrent(nullptr));
    CUdeviceptr address;
    NEED(cuMemAllocAsync(&address, 4, first) == CUDA_ERROR_INVALID_CONTEXT);
}

static void a_block_of_too_many_threads_is_refused() {
    CUdeviceptr out = memory(4);
    NEED(launch(kernel("out[0] = 1;"), out, 1, 1025) == CUDA_ERROR_INVALID_VALUE);
}

static void every_f16_is_read_and_written() {
    stand_in::Operand half{CUDA_R_16F, false, 0, 1, 1, 1, 0};
    for (unsigned bits = 0; bits < 1 << 16; bits++) {
        uint16_t element = bits, again;
        double value = stand_in::read(half, reinterpret_cast<char*>(&element), 0);
        stand_in::write(half, reinterpret_cast<char*>(&again), 0, value);
        NEED(again == element || (value != value && (again & 0x7fff) > 0x7c00));
    }
}

// ---- wrong, to be seen as NaN --------------------------------------------------------------------------------------

static void what_nobody_waits_for_is_not_there() {
    std::vector<float> home(4, 2);
    CALL(cuMemHostRegister(home.data(), 16, 0));
    CUdeviceptr there = memory(16);
    CALL(cuMemcpyHtoDAsync(there, home.data(), 16, second));
    NEED(std::isnan(read(there)));
}

static void pinned_memory_is_read_late() {
    std::vector<float> home(4, 2);
    CALL(cuMemHostRegister(home.data(), 16, 0));
    CUdeviceptr there = memory(16);
    CALL(cuMemcpyHtoDAsync(there, home.data(), 16, first));
    home[0] = 3;
    NEED(read(there) == 3);
}

static void freed_memory_holds_nothing() {
    CUdeviceptr address = memory(4);
    CALL(cuMemsetD8Async(address, 0, 4, first));
    CALL(cuMemFreeAsync(address, first));
    CALL(cuStreamSynchronize(first));
    NEED(std::isnan(*reinterpret_cast<float*>(address)));
}

// ---- wrong, to end the program -------------------------------------------------------------------------------------

static void writing_behind_the_end() {
    CUdeviceptr out = memory(16);
    CALL(launch(kernel("out[threadIdx.x] = 1;"), out, 4, 32));
    CALL(cuMemFreeAsync(out, first));
    CALL(cuCtxSynchronize());
}

static void copying_more_than_is_there() {
    std::vector<char> home(64);
    cuMemcpyHtoDAsync(memory(32), home.data(), 64, first);
}

static void launching_with_freed_memory() {
    CUdeviceptr out = memory(16);
    CALL(cuMemFreeAsync(out, first));
    launch(kernel("out[0] = 1;"), out, 4, 32);
}

static void freeing_twice() {
    CUdeviceptr out = memory(16);
    CALL(cuMemFreeAsync(out, first));
    cuMemFreeAsync(out, first);
}

static void unpinning_under_a_copy() {
    std::vector<float> home(4, 2);
    CALL(cuMemHostRegister(home.data(), 16, 0));
    CALL(cuMemcpyHtoDAsync(memory(16), home.data(), 16, first));
    cuMemHostUnregister(home.data());
}

static void calling_what_is_not_stood_in_for() {
    CUarray array = nullptr;
    cuArrayDestroy(array);
}

struct Case {
    const char* name;
    void (*body)();
    // What it ends the program with; null where it must end well.
    const char* message;
};

#define RIGHT(name) {#name, name, nullptr}
#define WRONG(name, message) {#name, name, message}
static const Case CASES[] = {
    RIGHT(kernels_run_in_order),
    RIGHT(more_than_there_is_is_out_of_memory),
    RIGHT(what_is_waited_for_is_there),
    RIGHT(a_graph_runs_again),
    RIGHT(a_graph_has_memory_of_its_own),
    RIGHT(what_a_graph_leaves_is_freed_before_it_runs_again),
    RIGHT(a_graph_that_does_not_fit_is_not_launched),
    RIGHT(a_capture_frees_only_its_own_memory),
    RIGHT(a_capture_takes_nothing_from_memory_that_is_not_pinned),
    RIGHT(a_capture_does_not_wait),
    RIGHT(a_thread_without_a_context_is_told),
    RIGHT(a_block_of_too_many_threads_is_refused),
    RIGHT(every_f16_is_read_and_written),
    RIGHT(what_nobody_waits_for_is_not_there),
    RIGHT(pinned_memory_is_read_late),
    RIGHT(freed_memory_holds_nothing),
    WRONG(writing_behind_the_end, "behind the end of an allocation of 16 bytes"),
    WRONG(copying_more_than_is_there, "64 bytes from byte 0 of an allocation of 32"),
    WRONG(launching_with_freed_memory, "where nothing is allocated"),
    WRONG(freeing_twice, "freed twice"),
    WRONG(unpinning_under_a_copy, "unpinned while copies"),
    WRONG(calling_what_is_not_stood_in_for, "cuArrayDestroy is not stood in for"),
};

static bool passes(const Case& one) {
    int ends[2];
    if (pipe(ends) != 0) return false;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        CUcontext context;
        CALL(cuInit(0));
        CALL(cuDevicePrimaryCtxRetain(&context, 0));
        CALL(cuCtxSetCurrent(context));
        CALL(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
        CALL(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
        one.body();
        std::_Exit(0);
    }
    close(ends[1]);
    std::string text;
    char part[256];
    for (ssize_t length; (length = read(ends[0], part, sizeof part)) > 0;) text.append(part, length);
    close(ends[0]);
    int status;
    waitpid(child, &status, 0);
    bool passed = one.message ? WIFSIGNALED(status) && text.find(one.message) != std::string::npos
                              : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    std::printf("%s %s %s\n", passed ? "ok  " : "FAIL", one.name, passed ? "" : text.c_str());
    return passed;
}

int main() {
    bool all = true;
    for (const Case& one : CASES) all &= passes(one);
    return all ? 0 : 1;
}
