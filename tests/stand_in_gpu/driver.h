// What the parts of the stand-in GPU share: queues of work, memory, and how a fault shows.
//
// The stand-in is a set of libraries that a program loads instead of NVIDIA's, so that the code around the kernels runs on a machine
// without a GPU. It is meant to find faults: what a real device may do late is done as late as it may, what it may leave undefined is
// filled with NaN, and what a driver would not notice ends the program with a message.
#pragma once

#include <cuda.h>

#include <cstdarg>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace stand_in {

// A place in a queue that somebody may wait for.
struct Mark {
    struct Queue* queue;
    bool done = false;
    double seconds = 0;
    // The graph that was being captured, if one was.
    struct Graph* graph = nullptr;
};
using MarkPointer = std::shared_ptr<Mark>;

// What a queue does next: work, or a mark to reach or to wait for.
struct Operation {
    std::string name;
    std::function<void()> work;
    MarkPointer reaches, waits_for;
    // Memory of the host that the work reads or writes when it runs.
    const void* host = nullptr;
    size_t host_bytes = 0;
    // What a profile tells of it.
    enum Kind { OTHER, KERNEL, TO_DEVICE, TO_HOST, ON_DEVICE, FILL } kind = OTHER;
    size_t bytes = 0;
    // What STAND_IN_GPU_LOG says behind its name.
    std::string detail = {};
    // Of a product, for a clock that is made up.
    double flops = 0;
    bool in_16_bits = false;
    // When it was asked for, by a clock that is made up.
    double asked_s = 0;
};

// Where set, sees what a queue did, with its number and nanoseconds, and each launch of a kernel, with those it took.
extern void (*observe)(const Operation&, unsigned queue, uint64_t start, uint64_t end);
extern void (*observe_launch)(uint64_t start, uint64_t end);

struct GraphMemory;

struct Graph {
    std::vector<Operation> operations;
    Queue* origin = nullptr;
    CUresult failed = CUDA_SUCCESS;
    std::vector<Queue*> members;
    // Its memory, which stays as long as it or what was instantiated from it.
    std::shared_ptr<GraphMemory> memory;
};

struct Queue {
    std::deque<Operation> pending;
    Graph* capture = nullptr;
    bool blocking = true;
    unsigned number = 0;
    // When the device is through with it, by a clock that is made up.
    double free_s = 0;
};

// One lock for all: every entry point takes it.
extern std::recursive_mutex lock;
#define LOCKED std::lock_guard<std::recursive_mutex> locked(stand_in::lock)

// Ends the program: the caller did what a device leaves undefined.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// The queue of a handle; fails for one that does not live.
Queue* queue_of(CUstream stream);
void put(Queue* queue, Operation operation);
// A detail of an operation, as printf has it; empty where nobody wants to read it.
std::string detail(const char* format, ...) __attribute__((format(printf, 1, 2)));
void put(CUstream stream, const char* name, std::function<void()> work);
MarkPointer mark(Queue* queue);
void wait_for(Queue* queue, MarkPointer mark);
// Does what is queued: all of a queue, up to a mark, or everything.
void finish(Queue* queue);
void finish(const MarkPointer& mark);
void finish_all();
// Whether queued work still uses memory of the host.
bool uses_host(const void* start, size_t bytes);
double now();

// Whether the calling thread has a context; what every call that needs one returns otherwise.
bool has_context();
// What every call answers once the device has had the fault that STAND_IN_GPU_FAULT asks for.
CUresult fault();
#define NEED_CONTEXT                                                                                                   \
    if (!stand_in::has_context()) return CUDA_ERROR_INVALID_CONTEXT;                                                   \
    if (stand_in::fault() != CUDA_SUCCESS) return stand_in::fault()

// Calls that a capture forbids, whichever thread makes them.
bool captures();

// Fails unless [start, start + bytes) lies within one allocation that nobody has freed.
void check(CUdeviceptr start, size_t bytes, const char* what);
// Whether an address lies in an allocation that nobody has freed, or just behind one.
bool is_live(CUdeviceptr address);
// Whether [start, start + bytes) is pinned; fails where only a part of it is.
bool is_pinned(const void* start, size_t bytes);
size_t total_bytes();
size_t free_bytes();
// Memory for a graph that is about to be captured. Each launch takes what it needs of the device, where that is there.
std::shared_ptr<GraphMemory> graph_memory();
CUresult begin_launch(GraphMemory* memory, bool frees_on_launch);

} // namespace stand_in
