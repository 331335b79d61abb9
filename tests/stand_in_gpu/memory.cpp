// Memory of the stand-in GPU: the default pool, direct allocations, pinned memory of the host, copies.
//
// STAND_IN_GPU_BYTES (default 4 GiB) is what the device has, and more is out of memory. Memory that is new or freed holds NaN. Behind each
// allocation lies a strip that must still hold it when the allocation is freed.
#include "driver.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <sys/mman.h>

namespace stand_in {

constexpr size_t GRAIN = 512, STRIP = 512, LARGE_PAGE = 2 << 20, SEGMENT = 32 << 20;
// What a context takes for itself.
constexpr size_t CONTEXT_BYTES = 64 << 20;
constexpr int POISON = 0xff;

struct Block {
    size_t size;      // with the strip
    size_t requested; // 0: free
    size_t segment;
    // Who freed it; null for nobody or several.
    Queue* freed_by;
    bool freed_by_several;
};

struct Pool {
    std::map<size_t, Block> blocks;
    std::set<std::pair<size_t, size_t>> free;
    std::map<size_t, size_t> segments;
    uint64_t used = 0, used_high = 0, reserved = 0, reserved_high = 0, threshold = 0;
    int reuse[3] = {1, 1, 1};
};
static Pool pool;
// Direct allocations and those of graphs: address to (requested, size).
static std::map<size_t, std::pair<size_t, size_t>> direct;
static size_t direct_bytes = 0;
static uint64_t graph_used = 0, graph_high = 0;
static std::map<const char*, size_t> pinned;

static size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

size_t total_bytes() {
    static const size_t total = [] {
        const char* text = std::getenv("STAND_IN_GPU_BYTES");
        return text && *text ? std::strtoull(text, nullptr, 10) : size_t{4} << 30;
    }();
    return total;
}

size_t free_bytes() {
    size_t taken = CONTEXT_BYTES + pool.reserved + direct_bytes;
    return taken < total_bytes() ? total_bytes() - taken : 0;
}

static size_t map_memory(size_t size) {
    void* start = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) fail("the host has no %zu bytes to stand in for memory of the device", size);
    std::memset(start, POISON, size);
    return reinterpret_cast<size_t>(start);
}

static void check_strip(size_t start, size_t requested, size_t size) {
    auto bytes = reinterpret_cast<const unsigned char*>(start);
    for (size_t at = requested; at < size; at++)
        if (bytes[at] != POISON)
            fail("something wrote %zu bytes behind the end of an allocation of %zu bytes", at - requested, requested);
}

// ---- the pool ------------------------------------------------------------------------------------------------------

static void trim(uint64_t keep) {
    for (auto one = pool.segments.begin(); one != pool.segments.end() && pool.reserved > keep;) {
        auto block = pool.blocks.find(one->first);
        if (block->second.requested || block->second.size != one->second) {
            ++one;
            continue;
        }
        pool.free.erase({block->second.size, block->first});
        pool.blocks.erase(block);
        munmap(reinterpret_cast<void*>(one->first), one->second);
        pool.reserved -= one->second;
        one = pool.segments.erase(one);
    }
}

static bool add_segment(size_t size) {
    size_t bytes = round_up(size, SEGMENT);
    if (bytes > free_bytes()) bytes = round_up(size, LARGE_PAGE);
    if (bytes > free_bytes()) {
        finish_all();
        trim(0);
    }
    if (bytes > free_bytes()) return false;
    size_t start = map_memory(bytes);
    pool.segments[start] = bytes;
    pool.blocks[start] = Block{bytes, 0, start, nullptr, false};
    pool.free.insert({bytes, start});
    pool.reserved += bytes;
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
    return true;
}

static CUresult allocate(CUdeviceptr* address, size_t bytes, Queue* queue) {
    size_t size = round_up(bytes, GRAIN) + STRIP;
    auto found = pool.free.lower_bound({size, 0});
    if (found == pool.free.end()) {
        if (!add_segment(size)) return CUDA_ERROR_OUT_OF_MEMORY;
        found = pool.free.lower_bound({size, 0});
    }
    size_t start = found->second;
    pool.free.erase(found);
    Block& block = pool.blocks[start];
    if (block.freed_by_several || (block.freed_by && block.freed_by != queue)) {
        // Another queue may still use it: the driver makes this one wait.
        finish_all();
    }
    if (block.size > size) {
        Block rest = block;
        rest.size -= size;
        pool.blocks[start + size] = rest;
        pool.free.insert({rest.size, start + size});
    }
    block = Block{size, bytes, block.segment, nullptr, false};
    pool.used += size - STRIP;
    pool.used_high = std::max(pool.used_high, pool.used);
    *address = start;
    return CUDA_SUCCESS;
}

static void join(std::map<size_t, Block>::iterator first, std::map<size_t, Block>::iterator second) {
    Block &a = first->second, &b = second->second;
    if (a.requested || b.requested || a.segment != b.segment || first->first + a.size != second->first) return;
    pool.free.erase({a.size, first->first});
    pool.free.erase({b.size, second->first});
    a.size += b.size;
    a.freed_by_several |= b.freed_by_several || (a.freed_by && b.freed_by && a.freed_by != b.freed_by);
    if (!a.freed_by) a.freed_by = b.freed_by;
    pool.free.insert({a.size, first->first});
    pool.blocks.erase(second);
}

static void release(std::map<size_t, Block>::iterator one, Queue* queue) {
    size_t start = one->first, requested = one->second.requested, size = one->second.size;
    put(queue, Operation{"free", [=] {
                             check_strip(start, requested, size);
                             std::memset(reinterpret_cast<void*>(start), POISON, size);
                         }});
    pool.used -= size - STRIP;
    one->second = Block{size, 0, one->second.segment, queue, false};
    pool.free.insert({size, start});
    if (auto next = std::next(one); next != pool.blocks.end()) join(one, next);
    if (one != pool.blocks.begin()) join(std::prev(one), one);
}

// ---- what others ask -----------------------------------------------------------------------------------------------

// The allocation that holds an address: its start and how much was asked for.
static std::pair<size_t, size_t> allocation_of(size_t address) {
    auto of_pool = pool.blocks.upper_bound(address);
    if (of_pool != pool.blocks.begin()) {
        auto& [start, block] = *--of_pool;
        if (block.requested && address <= start + block.requested) return {start, block.requested};
    }
    auto other = direct.upper_bound(address);
    if (other != direct.begin()) {
        auto& [start, sizes] = *--other;
        if (address <= start + sizes.first) return {start, sizes.first};
    }
    return {0, 0};
}

bool is_live(CUdeviceptr address) { return allocation_of(address).first != 0; }

void check(CUdeviceptr start, size_t bytes, const char* what) {
    LOCKED;
    if (!bytes) return;
    auto [first, length] = allocation_of(start);
    if (!first) fail("%s: %zu bytes at %#llx, where nothing is allocated", what, bytes, start);
    if (start + bytes > first + length)
        fail("%s: %zu bytes from byte %zu of an allocation of %zu", what, bytes, size_t(start - first), length);
}

bool is_pinned(const void* start, size_t bytes) {
    auto first = static_cast<const char*>(start);
    auto one = pinned.upper_bound(first);
    if (one != pinned.begin()) {
        auto [begin, length] = *std::prev(one);
        if (first + bytes <= begin + length) return true;
        if (first < begin + length) fail("a copy of %zu bytes of which only a part is pinned", bytes);
    }
    if (one != pinned.end() && first + bytes > one->first) fail("a copy of %zu bytes of which only a part is pinned", bytes);
    return false;
}

static size_t allocate_directly(size_t bytes) {
    size_t size = round_up(bytes, LARGE_PAGE) + STRIP;
    if (size > free_bytes()) {
        finish_all();
        trim(0);
    }
    if (size > free_bytes()) return 0;
    size_t start = map_memory(size);
    direct[start] = {bytes, size};
    direct_bytes += size;
    return start;
}

static void free_directly(std::map<size_t, std::pair<size_t, size_t>>::iterator one) {
    auto [start, sizes] = *one;
    check_strip(start, sizes.first, sizes.second);
    munmap(reinterpret_cast<void*>(start), sizes.second);
    direct_bytes -= sizes.second;
    direct.erase(one);
}

CUdeviceptr graph_memory(size_t bytes) {
    size_t start = allocate_directly(bytes);
    if (start) graph_high = std::max(graph_high, graph_used += bytes);
    return start;
}

void free_graph_memory(CUdeviceptr address) {
    auto one = direct.find(address);
    if (one == direct.end()) return;
    free_directly(one);
}

} // namespace stand_in

using namespace stand_in;

// ---- allocations ---------------------------------------------------------------------------------------------------

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
    LOCKED;
    NEED_CONTEXT;
    Queue* queue = queue_of(stream);
    *address = 0;
    if (!bytes) return CUDA_SUCCESS;
    if (!queue->capture) return allocate(address, bytes, queue);
    *address = graph_memory(bytes);
    if (!*address) return CUDA_ERROR_OUT_OF_MEMORY;
    queue->capture->allocations.push_back({*address, bytes, false, false});
    return CUDA_SUCCESS;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool, CUstream stream) {
    return cuMemAllocAsync(address, bytes, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    LOCKED;
    NEED_CONTEXT;
    Queue* queue = queue_of(stream);
    if (!address) return CUDA_SUCCESS;
    auto of_pool = pool.blocks.find(address);
    bool from_pool = of_pool != pool.blocks.end() && of_pool->second.requested;
    auto other = direct.find(address);
    if (!from_pool && other == direct.end()) fail("memory at %#llx was freed twice or never allocated", address);
    if (queue->capture) {
        for (auto& one : queue->capture->allocations)
            if (one.address == address && !one.freed_within) {
                size_t start = address, requested = one.bytes, size = other->second.second;
                put(queue, Operation{"free", [=] {
                                         check_strip(start, requested, size);
                                         std::memset(reinterpret_cast<void*>(start), POISON, size);
                                     }});
                one.freed_within = true;
                graph_used -= requested;
                return CUDA_SUCCESS;
            }
        // Only memory of the graph itself.
        queue->capture->failed = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (from_pool) release(of_pool, queue);
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
    LOCKED;
    NEED_CONTEXT;
    if (captures()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *address = allocate_directly(bytes);
    return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFree(CUdeviceptr address) {
    LOCKED;
    NEED_CONTEXT;
    if (!address) return CUDA_SUCCESS;
    finish_all();
    auto other = direct.find(address);
    if (other != direct.end()) {
        free_directly(other);
        return CUDA_SUCCESS;
    }
    return cuMemFreeAsync(address, nullptr);
}

CUresult cuMemGetInfo(size_t* free, size_t* total) {
    LOCKED;
    NEED_CONTEXT;
    *free = free_bytes();
    *total = total_bytes();
    return CUDA_SUCCESS;
}

// ---- the pool's counters -------------------------------------------------------------------------------------------

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice) {
    *out = reinterpret_cast<CUmemoryPool>(&pool);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice device) { return cuDeviceGetDefaultMemPool(out, device); }

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
    LOCKED;
    if (handle != reinterpret_cast<CUmemoryPool>(&pool)) fail("a memory pool that does not exist");
    uint64_t* counter = static_cast<uint64_t*>(value);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *counter = pool.threshold; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *counter = pool.reserved; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *counter = pool.reserved_high; break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *counter = pool.used; break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *counter = pool.used_high; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
    LOCKED;
    if (handle != reinterpret_cast<CUmemoryPool>(&pool)) fail("a memory pool that does not exist");
    uint64_t wanted = *static_cast<uint64_t*>(value);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool.threshold = wanted; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        if (wanted) return CUDA_ERROR_INVALID_VALUE;
        pool.reserved_high = pool.reserved;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (wanted) return CUDA_ERROR_INVALID_VALUE;
        pool.used_high = pool.used;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemPoolTrimTo(CUmemoryPool, size_t keep) {
    LOCKED;
    finish_all();
    trim(keep);
    return CUDA_SUCCESS;
}

// Without a threshold a pool gives back what is free at each synchronisation.
void trim_pool_at_synchronisation() {
    if (pool.reserved > pool.threshold) trim(pool.threshold);
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice, CUgraphMem_attribute attribute, void* value) {
    LOCKED;
    bool high = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    *static_cast<uint64_t*>(value) = high ? graph_high : graph_used;
    return CUDA_SUCCESS;
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice, CUgraphMem_attribute, void* value) {
    LOCKED;
    if (*static_cast<uint64_t*>(value)) return CUDA_ERROR_INVALID_VALUE;
    graph_high = graph_used;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice) { return CUDA_SUCCESS; }

// ---- pinned memory of the host -------------------------------------------------------------------------------------

CUresult cuMemHostRegister(void* start, size_t bytes, unsigned) {
    LOCKED;
    NEED_CONTEXT;
    if (!bytes || !start) return CUDA_ERROR_INVALID_VALUE;
    auto first = static_cast<const char*>(start);
    auto next = pinned.upper_bound(first);
    bool overlaps = next != pinned.end() && next->first < first + bytes;
    if (next != pinned.begin()) overlaps |= std::prev(next)->first + std::prev(next)->second > first;
    if (overlaps) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    pinned[first] = bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* start) {
    LOCKED;
    NEED_CONTEXT;
    auto one = pinned.find(static_cast<const char*>(start));
    if (one == pinned.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    if (uses_host(start, one->second)) fail("host memory is unpinned while copies of it are under way");
    pinned.erase(one);
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** start, size_t bytes, unsigned flags) {
    LOCKED;
    NEED_CONTEXT;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *start = std::aligned_alloc(4096, round_up(bytes, 4096));
    std::memset(*start, POISON, round_up(bytes, 4096));
    return cuMemHostRegister(*start, bytes, flags);
}

CUresult cuMemAllocHost(void** start, size_t bytes) { return cuMemHostAlloc(start, bytes, 0); }

CUresult cuMemFreeHost(void* start) {
    LOCKED;
    NEED_CONTEXT;
    finish_all();
    CUresult done = cuMemHostUnregister(start);
    if (done == CUDA_SUCCESS) std::free(start);
    return done == CUDA_SUCCESS ? done : CUDA_ERROR_INVALID_VALUE;
}

// ---- copies --------------------------------------------------------------------------------------------------------

static void* at(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    LOCKED;
    NEED_CONTEXT;
    Queue* queue = queue_of(stream);
    if (!bytes) return CUDA_SUCCESS;
    check(to, bytes, "a copy to the device");
    if (is_pinned(from, bytes) || queue->capture) {
        put(queue, Operation{"copy to the device", [=] { std::memcpy(at(to), from, bytes); }, nullptr, nullptr, from, bytes,
                             Operation::TO_DEVICE, bytes});
        return CUDA_SUCCESS;
    }
    // The driver has taken pageable memory before it returns.
    auto taken = std::make_shared<std::vector<char>>(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    put(queue, Operation{"copy to the device", [=] { std::memcpy(at(to), taken->data(), bytes); }, nullptr, nullptr, nullptr, 0,
                         Operation::TO_DEVICE, bytes});
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
    LOCKED;
    NEED_CONTEXT;
    Queue* queue = queue_of(stream);
    if (!bytes) return CUDA_SUCCESS;
    check(from, bytes, "a copy from the device");
    bool late = is_pinned(to, bytes) || queue->capture;
    put(queue, Operation{"copy from the device", [=] { std::memcpy(to, at(from), bytes); }, nullptr, nullptr, to, bytes,
                         Operation::TO_HOST, bytes});
    if (!late) finish(queue);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    LOCKED;
    NEED_CONTEXT;
    Queue* queue = queue_of(stream);
    if (!bytes) return CUDA_SUCCESS;
    check(from, bytes, "the source of a copy");
    check(to, bytes, "the target of a copy");
    if (from < to + bytes && to < from + bytes) fail("a copy of %zu bytes whose ends overlap", bytes);
    put(queue, Operation{"copy", [=] { std::memcpy(at(to), at(from), bytes); }, nullptr, nullptr, nullptr, 0, Operation::ON_DEVICE, bytes});
    return CUDA_SUCCESS;
}

// The plain forms go through the legacy queue, which other queues that are not blocking do not wait for.
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
    CUresult done = cuMemcpyHtoDAsync(to, from, bytes, nullptr);
    return done == CUDA_SUCCESS ? cuStreamSynchronize(nullptr) : done;
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
    CUresult done = cuMemcpyDtoHAsync(to, from, bytes, nullptr);
    return done == CUDA_SUCCESS ? cuStreamSynchronize(nullptr) : done;
}

CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    CUresult done = cuMemcpyDtoDAsync(to, from, bytes, nullptr);
    return done == CUDA_SUCCESS ? cuStreamSynchronize(nullptr) : done;
}

template <class V> static CUresult fill(CUdeviceptr start, V value, size_t count, CUstream stream) {
    LOCKED;
    NEED_CONTEXT;
    Queue* queue = queue_of(stream);
    check(start, count * sizeof(V), "a memset");
    put(queue, Operation{"memset", [=] { std::fill_n(static_cast<V*>(at(start)), count, value); }, nullptr, nullptr, nullptr, 0,
                         Operation::FILL, count * sizeof(V)});
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr start, unsigned char value, size_t count, CUstream stream) {
    return fill<uint8_t>(start, value, count, stream);
}
CUresult cuMemsetD16Async(CUdeviceptr start, unsigned short value, size_t count, CUstream stream) {
    return fill<uint16_t>(start, value, count, stream);
}
CUresult cuMemsetD32Async(CUdeviceptr start, unsigned value, size_t count, CUstream stream) {
    return fill<uint32_t>(start, value, count, stream);
}
CUresult cuMemsetD8(CUdeviceptr start, unsigned char value, size_t count) {
    CUresult done = fill<uint8_t>(start, value, count, nullptr);
    return done == CUDA_SUCCESS ? cuStreamSynchronize(nullptr) : done;
}
