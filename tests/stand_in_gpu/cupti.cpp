// The stand-in for CUPTI: records of what the stand-in's queues did, and of launches, in the layouts of CUDA 13.
#include "driver.h"

#include <cupti.h>

#include <cstdlib>
#include <cstring>
#include <map>

using namespace stand_in;

static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static std::map<int, bool> enabled;

// Records that wait for a flush, each as its bytes.
static std::vector<std::vector<char>> records;
// Names stay: records point to them.
static std::map<std::string, std::string> names;

template <class R> static void keep(const R& record) {
    auto bytes = reinterpret_cast<const char*>(&record);
    records.emplace_back(bytes, bytes + sizeof record);
}

static void see(const Operation& operation, unsigned queue, uint64_t start, uint64_t end) {
    if (operation.kind == Operation::KERNEL && enabled[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL]) {
        CUpti_ActivityKernel10 record{};
        record.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
        record.start = start;
        record.end = end;
        record.streamId = queue;
        std::string& name = names[operation.name];
        name = operation.name;
        record.name = name.c_str();
        keep(record);
    } else if (operation.kind == Operation::FILL && enabled[CUPTI_ACTIVITY_KIND_MEMSET]) {
        CUpti_ActivityMemset4 record{};
        record.kind = CUPTI_ACTIVITY_KIND_MEMSET;
        record.start = start;
        record.end = end;
        record.bytes = operation.bytes;
        record.streamId = queue;
        keep(record);
    } else if (operation.kind != Operation::KERNEL && operation.kind != Operation::FILL && enabled[CUPTI_ACTIVITY_KIND_MEMCPY]) {
        CUpti_ActivityMemcpy6 record{};
        record.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
        record.copyKind = operation.kind == Operation::TO_DEVICE ? CUPTI_ACTIVITY_MEMCPY_KIND_HTOD
                          : operation.kind == Operation::TO_HOST ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOH
                                                                 : CUPTI_ACTIVITY_MEMCPY_KIND_DTOD;
        record.start = start;
        record.end = end;
        record.bytes = operation.bytes;
        record.streamId = queue;
        keep(record);
    }
}

static void see_launch(uint64_t start, uint64_t end) {
    if (!enabled[CUPTI_ACTIVITY_KIND_DRIVER]) return;
    CUpti_ActivityAPI record{};
    record.kind = CUPTI_ACTIVITY_KIND_DRIVER;
    record.cbid = CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel;
    record.start = start;
    record.end = end;
    keep(record);
}

CUptiResult cuptiGetVersion(uint32_t* version) {
    // STAND_IN_GPU_CUPTI: a version that the program may not know.
    const char* text = std::getenv("STAND_IN_GPU_CUPTI");
    *version = text && *text ? std::atoi(text) : CUPTI_API_VERSION;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetTimestamp(uint64_t* time) {
    *time = now() * 1e9;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult, const char** text) {
    *text = "an error of the stand-in for CUPTI";
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain, uint32_t function, const char** name) {
    if (function != CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel) return CUPTI_ERROR_INVALID_PARAMETER;
    *name = "cuLaunchKernel";
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested, CUpti_BuffersCallbackCompleteFunc completed) {
    request = requested;
    complete = completed;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
    LOCKED;
    enabled[kind] = true;
    observe = see;
    observe_launch = see_launch;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
    LOCKED;
    enabled[kind] = false;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t) {
    std::vector<std::vector<char>> taken;
    {
        LOCKED;
        taken.swap(records);
    }
    for (size_t next = 0; next < taken.size();) {
        uint8_t* buffer;
        size_t size, most, used = 0;
        request(&buffer, &size, &most);
        for (; next < taken.size() && used + taken[next].size() <= size; next++) {
            std::memcpy(buffer + used, taken[next].data(), taken[next].size());
            used += taken[next].size();
        }
        complete(nullptr, 0, buffer, size, used);
    }
    return CUPTI_SUCCESS;
}

static size_t bytes_of(const uint8_t* record) {
    switch (*reinterpret_cast<const uint32_t*>(record)) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy6);
    default: return sizeof(CUpti_ActivityAPI);
    }
}

CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, CUpti_Activity** record) {
    uint8_t* last = reinterpret_cast<uint8_t*>(*record);
    uint8_t* next = last ? last + bytes_of(last) : buffer;
    if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = reinterpret_cast<CUpti_Activity*>(next);
    return CUPTI_SUCCESS;
}
