// Runs kernels on the CPU, for tests: each thread of a block is a fiber, and one block runs at a time.
//
// Fibers run until they wait for others (barriers, warp instructions), and in another order each time, so that a missing
// barrier shows. At times those of four warps are held back until nobody else can go on. Background copies happen as late as
// the kernel allows, when it waits for them; what they overwrite is gone as early as it may be, when they are started.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <ucontext.h>
#include <utility>
#include <vector>

#define EMULATED
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __constant__ static const
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define KERNEL void

struct dim3 {
    unsigned x, y, z;
};
struct uint4 {
    unsigned x, y, z, w;
};

namespace emulation {

// A stack to go on with. The C library's contexts take a system call for each switch: too slow for a barrier.
#ifdef __x86_64__
struct Context {
    void* stack;
};

__attribute__((naked, noinline)) inline void switch_stack(void** from, void* to) {
    asm("pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15\n"
        "movq %rsp, (%rdi); movq %rsi, %rsp\n"
        "popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp; ret");
}

inline void prepare(Context& context, unsigned char* stack, size_t size, void (*enter)()) {
    uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + size) / 16 * 16;
    void** place = reinterpret_cast<void**>(top);
    // Where `ret` goes, above six registers; the stack is as behind a call there.
    place[-2] = reinterpret_cast<void*>(enter);
    context.stack = place - 8;
}

inline void go(Context& from, Context& to) { switch_stack(&from.stack, to.stack); }
#else
struct Context {
    ucontext_t context;
};

inline void prepare(Context& context, unsigned char* stack, size_t size, void (*enter)()) {
    getcontext(&context.context);
    context.context.uc_stack.ss_sp = stack;
    context.context.uc_stack.ss_size = size;
    makecontext(&context.context, enter, 0);
}

inline void go(Context& from, Context& to) { swapcontext(&from.context, &to.context); }
#endif

constexpr size_t STACK = 256 << 10;

// Threads that wait for each other.
struct Meeting {
    unsigned expected = 0, arrived = 0;
    unsigned long generation = 0;
};

struct Copy {
    void* to;
    const void* from;
    bool valid;
};

// What a thread needs of one product of a warpgroup: its two rows of the left operand, and its columns of the right one, 16 long
// each.
struct Operands {
    std::vector<float> left, right;
};

// One that is under way.
struct Product {
    float* sums;
    std::function<Operands()> read;
    Operands started;
};

// A thread's products (emulation_warpgroup.h).
struct Products {
    std::vector<Product> open;
    std::vector<std::vector<Product>> groups;
    // Sums that are under way, by where they are, and how many products still add to them.
    struct Sums {
        std::vector<float> values;
        unsigned products;
    };
    std::map<float*, Sums> sums;
    bool begun = false;
};

struct Fiber {
    Context context;
    dim3 thread;
    unsigned number;
    bool done;
    Meeting* meeting;
    unsigned long generation;
    std::vector<std::vector<Copy>> groups;
    std::vector<Copy> open;
    Products products;
    // Where it has copied to in shared memory what products may not see yet.
    std::vector<size_t> hidden;
    // What it waits for beside meetings, where it does.
    std::function<bool()> awaited;
    // Registers, where it has asked for another number of them than it began with.
    unsigned registers;
};

// What the lanes of a warp show each other, twice: who is behind a meeting may still read what was shown for it while others
// already show something for the next.
struct Shown {
    uint64_t slots[32];
    unsigned a[32][4], b[32][2];
    const void* rows[32];
};

struct Warp {
    Meeting meeting;
    Shown shown[2];

    Shown& next() { return shown[meeting.generation % 2]; }
};

inline Context scheduler;
inline std::vector<Fiber> fibers;
inline std::vector<Warp> warps;
inline Meeting block_meeting;
inline Fiber* current;
inline dim3 grid, block, block_index;
inline std::vector<unsigned char> dynamic_shared;
// Of each 16 bytes of it, whether they are hidden from products.
inline std::vector<bool> hidden;
// Registers that groups of the block have given back and no other has taken.
inline int registers_left;
// Never touched but where a fiber has been.
inline std::unique_ptr<unsigned char[]> stacks;
inline void (*body)(void**);
inline void** arguments;
inline unsigned random_state = 1;

inline unsigned random() { return random_state = random_state * 1664525u + 1013904223u; }

[[noreturn]] inline void fail(const char* what) {
    std::fprintf(stderr, "emulated kernel: %s (thread %u of block %u,%u,%u)\n", what, current ? current->number : 0,
                 block_index.x, block_index.y, block_index.z);
    std::abort();
}

inline void meet(Meeting& meeting) {
    if (++meeting.arrived == meeting.expected) {
        meeting.arrived = 0;
        meeting.generation++;
        return;
    }
    current->meeting = &meeting;
    current->generation = meeting.generation;
    go(current->context, scheduler);
    current->meeting = nullptr;
}

inline void wait_until(std::function<bool()> holds) {
    if (holds()) return;
    current->awaited = std::move(holds);
    go(current->context, scheduler);
    current->awaited = nullptr;
}

// The 16 bytes of dynamic shared memory that an address lies in, or what is behind all.
inline size_t piece(const void* place) {
    size_t offset = reinterpret_cast<uintptr_t>(place) - reinterpret_cast<uintptr_t>(dynamic_shared.data()) / 16 * 16;
    return std::min(offset / 16, hidden.size());
}

inline void hide(const void* place) {
    size_t own = piece(place);
    if (own == hidden.size() || hidden[own]) return;
    hidden[own] = true;
    current->hidden.push_back(own);
}

inline void show() {
    for (size_t own : current->hidden) hidden[own] = false;
    current->hidden.clear();
}

inline Warp& warp() { return warps[current->number / 32]; }
inline unsigned lane() { return current->number % 32; }

inline void enter() {
    body(arguments);
    current->done = true;
    if (!current->open.empty() || !current->groups.empty()) fail("ends with copies that it has not waited for");
    if (!current->products.sums.empty()) fail("ends with products that it has not waited for");
    go(current->context, scheduler);
}

inline void run_block() {
    unsigned threads = block.x * block.y * block.z;
    block_meeting = Meeting{threads, 0, 0};
    warps.assign((threads + 31) / 32, Warp{});
    for (unsigned index = 0; index < warps.size(); index++) {
        unsigned left = threads - 32 * index;
        warps[index].meeting.expected = left < 32 ? left : 32;
    }
    for (unsigned number = 0; number < threads; number++) {
        Fiber& fiber = fibers[number];
        fiber.number = number;
        fiber.thread = {number % block.x, number / block.x % block.y, number / block.x / block.y};
        fiber.done = false;
        fiber.meeting = nullptr;
        fiber.groups.clear();
        fiber.open.clear();
        fiber.products = Products{};
        fiber.hidden.clear();
        fiber.awaited = nullptr;
        fiber.registers = 0;
        prepare(fiber.context, stacks.get() + number * STACK, STACK, enter);
    }
    // What a block finds in its shared memory is whatever was there.
    std::memset(dynamic_shared.data(), 0xff, dynamic_shared.size());
    hidden.assign(dynamic_shared.size() / 16 + 2, false);
    registers_left = 0;
    unsigned groups = (threads + 127) / 128, held = groups;
    for (unsigned left = threads; left > 0;) {
        bool moved = false;
        unsigned offset = random() >> 8;
        bool backwards = random() >> 31;
        for (unsigned index = 0; index < threads; index++) {
            unsigned turn = (index + offset) % threads;
            Fiber& fiber = fibers[backwards ? threads - 1 - turn : turn];
            bool waits = fiber.meeting && fiber.meeting->generation == fiber.generation;
            if (fiber.done || waits || fiber.number / 128 == held || (fiber.awaited && !fiber.awaited())) continue;
            current = &fiber;
            go(scheduler, fiber.context);
            moved = true;
            left -= fiber.done;
        }
        if (!moved && held == groups) fail("threads wait for others that have ended or wait elsewhere");
        if (!moved) held = groups;
        else if (held == groups && groups > 1) held = (random() >> 8) % (groups + 1);
    }
}

inline void run(dim3 blocks, dim3 threads, size_t shared_bytes, void (*kernel)(void**), void** values) {
    grid = blocks, block = threads, body = kernel, arguments = values;
    size_t count = threads.x * threads.y * threads.z;
    if (fibers.size() < count) {
        fibers.resize(count);
        stacks.reset(new unsigned char[count * STACK]);
    }
    dynamic_shared.assign(shared_bytes + 16, 0);
    for (block_index.z = 0; block_index.z < grid.z; block_index.z++)
        for (block_index.y = 0; block_index.y < grid.y; block_index.y++)
            for (block_index.x = 0; block_index.x < grid.x; block_index.x++) run_block();
}

template <class... A, size_t... I> void call(void (*kernel)(A...), void** values, std::index_sequence<I...>) {
    kernel(*reinterpret_cast<std::remove_cv_t<A>*>(values[I])...);
}

template <class... A> void call(void (*kernel)(A...), void** values) {
    call(kernel, values, std::index_sequence_for<A...>{});
}

template <class V> V exchange(V value, unsigned from) {
    static_assert(sizeof(V) <= 8);
    Warp& own = warp();
    Shown& shown = own.next();
    std::memcpy(&shown.slots[lane()], &value, sizeof(V));
    meet(own.meeting);
    std::memcpy(&value, &shown.slots[from], sizeof(V));
    return value;
}

} // namespace emulation

// Makes a kernel callable from the tests.
#define EMULATE(name)                                                                                                  \
    extern "C" void emulate_##name(const unsigned* blocks, const unsigned* threads, size_t shared_bytes, void** values) { \
        emulation::run({blocks[0], blocks[1], blocks[2]}, {threads[0], threads[1], threads[2]}, shared_bytes,            \
                       [](void** values) { emulation::call(name, values); }, values);                                  \
    }

#define threadIdx (emulation::current->thread)
#define blockIdx (emulation::block_index)
#define blockDim (emulation::block)
#define gridDim (emulation::grid)
#define DYNAMIC_SHARED(name)                                                                                           \
    u8* name = reinterpret_cast<u8*>((reinterpret_cast<uintptr_t>(emulation::dynamic_shared.data()) + 15) / 16 * 16)

inline void __syncthreads() { emulation::meet(emulation::block_meeting); }
inline void __syncwarp() { emulation::meet(emulation::warp().meeting); }
template <class V> V __shfl_xor_sync(unsigned, V value, int distance) {
    return emulation::exchange(value, emulation::lane() ^ distance);
}
template <class V> V __shfl_sync(unsigned, V value, int from) { return emulation::exchange(value, from % 32); }

inline float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline float __int_as_float(int bits) { return __uint_as_float((unsigned)bits); }
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
inline float __expf(float value) { return std::exp(value); }
inline float power_of_2(float value) { return std::exp2(value); }
inline float atomicAdd(float* place, float value) {
    float old = *place;
    *place += value;
    return old;
}
template <class V> V min(V a, V b) { return a < b ? a : b; }
template <class V> V max(V a, V b) { return a > b ? a : b; }
using std::isfinite;
