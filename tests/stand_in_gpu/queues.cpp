// Queues (streams), events and graphs of the stand-in GPU.
//
// Nothing is done when it is asked for: a queue works when somebody waits for it, up to what is waited for, and drags other queues along
// only where it was told to wait for them. A missing wait then shows as data that are not there yet.
#include "driver.h"

#include <cstdarg>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// ---- the clock -----------------------------------------------------------------------------------------------------

// STAND_IN_GPU_CLOCK=R16,R32,BYTES,PRODUCT,KERNEL,WAIT makes a clock up, for the whole process: it stands still while the device's work is done
// here. By it the device begins with an operation when that was asked for and what lies before it in its queue is over, beside the host and
// the other queues, and whoever waits goes on no earlier than it ends. A product takes PRODUCT seconds and its FLOPs at R16 a second, or at
// R32 where its operands have 32 bits; a copy or fill its bytes at BYTES a second, those of both sides within the device; any other kernel
// KERNEL seconds. The host waits WAIT seconds longer for a queue than it works.
namespace {
struct MadeUp {
    double rate_16, rate_32, bytes, product, kernel, wait;
};
bool is_made_up;
MadeUp made_up;
std::atomic<int64_t> ahead_ns, frozen_ns;

__attribute__((constructor)) void read_clock() {
    const char* text = std::getenv("STAND_IN_GPU_CLOCK");
    if (!text || !*text) return;
    MadeUp& c = made_up;
    is_made_up = std::sscanf(text, "%lf,%lf,%lf,%lf,%lf,%lf", &c.rate_16, &c.rate_32, &c.bytes, &c.product, &c.kernel, &c.wait) == 6;
    if (!is_made_up) stand_in::fail("STAND_IN_GPU_CLOCK=%s is not six numbers", text);
}

int64_t clock_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * int64_t{1000000000} + time.tv_nsec;
}

double stated_seconds(const stand_in::Operation& operation) {
    using stand_in::Operation;
    if (operation.flops > 0) return made_up.product + operation.flops / (operation.in_16_bits ? made_up.rate_16 : made_up.rate_32);
    if (operation.kind == Operation::KERNEL) return made_up.kernel;
    return operation.bytes * (operation.kind == Operation::ON_DEVICE ? 2 : 1) / made_up.bytes;
}
} // namespace

// In place of the C library's, which is asked behind this one.
extern "C" int clock_gettime(clockid_t id, timespec* time) noexcept {
    long done = syscall(SYS_clock_gettime, id, time);
    if (done != 0 || id != CLOCK_MONOTONIC || !is_made_up) return done;
    int64_t now = time->tv_sec * int64_t{1000000000} + time->tv_nsec + ahead_ns;
    if (int64_t frozen = frozen_ns) now = frozen;
    time->tv_sec = now / 1000000000;
    time->tv_nsec = now % 1000000000;
    return 0;
}

namespace stand_in {

std::recursive_mutex lock;

static std::set<Queue*> queues;
static Queue legacy, per_thread;

struct Event {
    unsigned flags;
    MarkPointer mark;
};
static std::set<Event*> events;

// What a graph became when it was instantiated.
struct Executable {
    Graph graph;
    bool frees_on_launch;
};
static std::set<Graph*> graphs;
static std::set<Executable*> executables;
static int captures_under_way = 0;

void fail(const char* format, ...) {
    std::fprintf(stderr, "stand-in GPU: ");
    va_list arguments;
    va_start(arguments, format);
    std::vfprintf(stderr, format, arguments);
    va_end(arguments);
    std::fprintf(stderr, "\n");
    std::abort();
}

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Queue* queue_of(CUstream stream) {
    if (stream == nullptr || stream == CU_STREAM_LEGACY) return &legacy;
    if (stream == CU_STREAM_PER_THREAD) return &per_thread;
    Queue* queue = reinterpret_cast<Queue*>(stream);
    if (!queues.count(queue)) fail("a stream that was destroyed or never made");
    return queue;
}

static std::vector<Queue*> all_queues() {
    std::vector<Queue*> all(queues.begin(), queues.end());
    all.push_back(&legacy);
    all.push_back(&per_thread);
    return all;
}

void put(Queue* queue, Operation operation) {
    if (queue->capture) {
        queue->capture->operations.push_back(std::move(operation));
        return;
    }
    if (is_made_up) operation.asked_s = now();
    queue->pending.push_back(std::move(operation));
}

void put(CUstream stream, const char* name, std::function<void()> work) {
    LOCKED;
    put(queue_of(stream), Operation{name, std::move(work), nullptr, nullptr});
}

// Where the time goes, with STAND_IN_GPU_TIMES: printed at the end.
struct Times {
    struct Total {
        size_t calls = 0;
        double seconds = 0;
    };
    std::map<std::string, Total> by_name;
    bool wanted = std::getenv("STAND_IN_GPU_TIMES") != nullptr;
    ~Times() {
        for (auto& [name, total] : by_name) std::fprintf(stderr, "%8.3f s %7zu x %s\n", total.seconds, total.calls, name.c_str());
    }
};
static Times times;

// Each operation as it is done, with STAND_IN_GPU_LOG.
static const bool logs = std::getenv("STAND_IN_GPU_LOG") != nullptr;

std::string detail(const char* format, ...) {
    if (!logs) return {};
    char text[200];
    va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    return text;
}

void (*observe)(const Operation&, unsigned, uint64_t, uint64_t);
void (*observe_launch)(uint64_t, uint64_t);

// When a device whose clock is made up comes to the next operation of a queue.
static double comes_to(const Queue* queue, const Operation& operation) { return std::max(queue->free_s, operation.asked_s); }

static void work(const Operation& operation, Queue* queue) {
    double start = now(), end;
    if (is_made_up) {
        int64_t begun = clock_ns();
        frozen_ns = begun;
        operation.work();
        start = comes_to(queue, operation);
        end = queue->free_s = start + stated_seconds(operation);
        timespec real;
        syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &real);
        ahead_ns = std::max(begun, int64_t(end * 1e9)) - (real.tv_sec * int64_t{1000000000} + real.tv_nsec);
        frozen_ns = 0;
    } else {
        operation.work();
        end = now();
    }
    if (logs) std::fprintf(stderr, "queue %u: %s %s %zu\n", queue->number, operation.name.c_str(), operation.detail.c_str(), operation.bytes);
    if (times.wanted) {
        auto& total = times.by_name[operation.name];
        total.calls++;
        total.seconds += end - start;
    }
    if (observe && operation.kind != Operation::OTHER) observe(operation, queue->number, start * 1e9, end * 1e9);
}

static void do_next(Queue* queue) {
    Operation operation = std::move(queue->pending.front());
    queue->pending.pop_front();
    if (operation.waits_for) {
        finish(operation.waits_for);
        queue->free_s = std::max(queue->free_s, operation.waits_for->seconds);
    }
    if (operation.work) work(operation, queue);
    if (operation.reaches) {
        operation.reaches->done = true;
        operation.reaches->seconds = is_made_up ? comes_to(queue, operation) : now();
    }
}

void finish(Queue* queue) {
    while (!queue->pending.empty()) do_next(queue);
}

void finish(const MarkPointer& mark) {
    while (!mark->done) {
        if (mark->queue->pending.empty()) fail("an event that no queue comes to");
        do_next(mark->queue);
    }
}

void finish_all() {
    for (Queue* queue : all_queues()) finish(queue);
}

bool uses_host(const void* start, size_t bytes) {
    auto first = static_cast<const char*>(start);
    for (Queue* queue : all_queues())
        for (const Operation& one : queue->pending) {
            auto used = static_cast<const char*>(one.host);
            if (used && used < first + bytes && first < used + one.host_bytes) return true;
        }
    return false;
}

MarkPointer mark(Queue* queue) {
    auto mark = std::make_shared<Mark>();
    mark->queue = queue;
    mark->graph = queue->capture;
    put(queue, Operation{"event", nullptr, mark, nullptr});
    return mark;
}

void wait_for(Queue* queue, MarkPointer mark) { put(queue, Operation{"wait", nullptr, nullptr, std::move(mark)}); }

bool captures() { return captures_under_way > 0; }

// A call that waits, where its queue is being captured: the capture is lost.
static CUresult spoil(Graph* graph, CUresult error) {
    graph->failed = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return error;
}

} // namespace stand_in

using namespace stand_in;

// ---- streams -------------------------------------------------------------------------------------------------------

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    LOCKED;
    NEED_CONTEXT;
    static unsigned made = 6;
    Queue* queue = new Queue;
    queue->number = ++made;
    queue->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    queues.insert(queue);
    *stream = reinterpret_cast<CUstream>(queue);
    return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }

CUresult cuStreamDestroy(CUstream stream) {
    LOCKED;
    NEED_CONTEXT;
    Queue* queue = queue_of(stream);
    // The driver lets the work end; events of it stay.
    finish(queue);
    queues.erase(queue);
    delete queue;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
    LOCKED;
    NEED_CONTEXT;
    Queue* queue = queue_of(stream);
    if (queue->capture) return spoil(queue->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    finish(queue);
    if (is_made_up) ahead_ns += int64_t(made_up.wait * 1e9);
    return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream) {
    LOCKED;
    NEED_CONTEXT;
    Queue* queue = queue_of(stream);
    if (queue->capture) return spoil(queue->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (queue->pending.empty()) return CUDA_SUCCESS;
    // Whoever asks again and again gets on.
    do_next(queue);
    return CUDA_ERROR_NOT_READY;
}

CUresult cuStreamGetPriority(CUstream stream, int* priority) {
    LOCKED;
    queue_of(stream);
    *priority = 0;
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    LOCKED;
    NEED_CONTEXT;
    Event* one = reinterpret_cast<Event*>(event);
    if (!events.count(one)) fail("a queue waits for an event that was destroyed");
    Queue* queue = queue_of(stream);
    if (!one->mark) return CUDA_SUCCESS;
    Graph* from = one->mark->graph;
    if (from && !queue->capture) {
        // The queue joins the capture.
        queue->capture = from;
        from->members.push_back(queue);
    } else if (queue->capture && from != queue->capture) {
        return spoil(queue->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    // A graph keeps its operations in the order in which they were captured, which is one that its waits allow.
    if (!from) wait_for(queue, one->mark);
    return CUDA_SUCCESS;
}

// ---- events --------------------------------------------------------------------------------------------------------

CUresult cuEventCreate(CUevent* event, unsigned flags) {
    LOCKED;
    NEED_CONTEXT;
    Event* one = new Event{flags, nullptr};
    events.insert(one);
    *event = reinterpret_cast<CUevent>(one);
    return CUDA_SUCCESS;
}

static Event* event_of(CUevent event) {
    Event* one = reinterpret_cast<Event*>(event);
    if (!events.count(one)) fail("an event that was destroyed or never made");
    return one;
}

CUresult cuEventDestroy(CUevent event) {
    LOCKED;
    NEED_CONTEXT;
    Event* one = event_of(event);
    events.erase(one);
    delete one;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    LOCKED;
    NEED_CONTEXT;
    event_of(event)->mark = mark(queue_of(stream));
    return CUDA_SUCCESS;
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned) { return cuEventRecord(event, stream); }

CUresult cuEventSynchronize(CUevent event) {
    LOCKED;
    NEED_CONTEXT;
    Event* one = event_of(event);
    if (!one->mark) return CUDA_SUCCESS;
    if (one->mark->graph) return CUDA_ERROR_CAPTURED_EVENT;
    finish(one->mark);
    return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
    LOCKED;
    NEED_CONTEXT;
    Event* one = event_of(event);
    if (!one->mark || one->mark->done) return CUDA_SUCCESS;
    if (one->mark->graph) return CUDA_ERROR_CAPTURED_EVENT;
    do_next(one->mark->queue);
    return CUDA_ERROR_NOT_READY;
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent first, CUevent last) {
    LOCKED;
    Event *from = event_of(first), *to = event_of(last);
    if ((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING || !from->mark || !to->mark) return CUDA_ERROR_INVALID_HANDLE;
    if (from->mark->graph || to->mark->graph) return CUDA_ERROR_CAPTURED_EVENT;
    if (!from->mark->done || !to->mark->done) return CUDA_ERROR_NOT_READY;
    *milliseconds = (to->mark->seconds - from->mark->seconds) * 1e3;
    return CUDA_SUCCESS;
}

// ---- graphs --------------------------------------------------------------------------------------------------------

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
    LOCKED;
    NEED_CONTEXT;
    Queue* queue = queue_of(stream);
    if (queue == &legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (queue->capture) return CUDA_ERROR_ILLEGAL_STATE;
    queue->capture = new Graph;
    queue->capture->origin = queue;
    queue->capture->members = {queue};
    queue->capture->memory = graph_memory();
    captures_under_way++;
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    LOCKED;
    NEED_CONTEXT;
    Queue* queue = queue_of(stream);
    Graph* captured = queue->capture;
    *graph = nullptr;
    if (!captured) return CUDA_ERROR_ILLEGAL_STATE;
    if (captured->origin != queue) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    for (Queue* member : captured->members) member->capture = nullptr;
    captures_under_way--;
    if (captured->failed != CUDA_SUCCESS) {
        CUresult error = captured->failed;
        delete captured;
        return error;
    }
    graphs.insert(captured);
    *graph = reinterpret_cast<CUgraph>(captured);
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    LOCKED;
    NEED_CONTEXT;
    Graph* graph = queue_of(stream)->capture;
    *status = !graph                         ? CU_STREAM_CAPTURE_STATUS_NONE
              : graph->failed != CUDA_SUCCESS ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                              : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode**,
                                const CUgraphEdgeData**, size_t* dependencies) {
    CUresult done = cuStreamIsCapturing(stream, status);
    Graph* captured = queue_of(stream)->capture;
    if (id) *id = reinterpret_cast<cuuint64_t>(captured);
    if (graph) *graph = reinterpret_cast<CUgraph>(captured);
    if (dependencies) *dependencies = 0;
    return done;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    static thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::swap(current, *mode);
    return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
    LOCKED;
    NEED_CONTEXT;
    Graph* one = reinterpret_cast<Graph*>(graph);
    if (!graphs.count(one)) fail("a graph that was destroyed or never made");
    Executable* made = new Executable{*one, (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0};
    executables.insert(made);
    *executable = reinterpret_cast<CUgraphExec>(made);
    return CUDA_SUCCESS;
}

extern "C" CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
    return instantiate(executable, graph, flags);
}

static Executable* executable_of(CUgraphExec graph) {
    Executable* one = reinterpret_cast<Executable*>(graph);
    if (!executables.count(one)) fail("a graph that was destroyed or never instantiated");
    return one;
}

CUresult cuGraphUpload(CUgraphExec graph, CUstream) {
    LOCKED;
    NEED_CONTEXT;
    executable_of(graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
    LOCKED;
    NEED_CONTEXT;
    Executable* one = executable_of(graph);
    Queue* queue = queue_of(stream);
    if (queue->capture) return spoil(queue->capture, CUDA_ERROR_NOT_SUPPORTED);
    CUresult begun = begin_launch(one->graph.memory.get(), one->frees_on_launch);
    if (begun != CUDA_SUCCESS) return begun;
    for (Operation operation : one->graph.operations) {
        // Events of a capture order it, and are none behind it.
        operation.reaches = nullptr;
        put(queue, std::move(operation));
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode*, size_t* count) {
    LOCKED;
    *count = reinterpret_cast<Graph*>(graph)->operations.size();
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
    LOCKED;
    Graph* one = reinterpret_cast<Graph*>(graph);
    if (!graphs.erase(one)) fail("a graph that was destroyed twice");
    delete one;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec graph) {
    LOCKED;
    Executable* one = executable_of(graph);
    finish_all();
    executables.erase(one);
    delete one;
    return CUDA_SUCCESS;
}
