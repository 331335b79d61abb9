// The device and its context, errors, modules and launches of the stand-in GPU.
//
// A module is either PTX text, whose kernels are looked for among those that build.sh compiled from candle's sources, or a library of the
// host: what the stand-in of NVRTC makes of a source.
#include "driver.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <map>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

void trim_pool_at_synchronisation();

namespace stand_in {

// An A100's, of which the program knows the data sheet by no name; with STAND_IN_GPU_HOPPER=1 an H100's, with STAND_IN_GPU_ADA=1 an
// RTX 4090's, with STAND_IN_GPU_TURING=1 a T4's.
struct Chip {
    int compute_major, compute_minor, processors, largest_shared;
};

static const Chip& chip() {
    static const Chip chip = [] {
        auto is_set = [](const char* name) { return std::string(std::getenv(name) ? std::getenv(name) : "") == "1"; };
        if (is_set("STAND_IN_GPU_HOPPER")) return Chip{9, 0, 132, 227 << 10};
        if (is_set("STAND_IN_GPU_ADA")) return Chip{8, 9, 128, 99 << 10};
        if (is_set("STAND_IN_GPU_TURING")) return Chip{7, 5, 40, 64 << 10};
        return Chip{8, 0, 108, 163 << 10};
    }();
    return chip;
}

constexpr size_t MOST_PARAMETER_BYTES = 4096;
// How describe_<kernel> (kernel_entry.h) marks a pointer.
constexpr size_t POINTER = size_t{1} << 32;

// STAND_IN_GPU_DEVICES (default 1): a process uses one of them, and all have the memory of one.
static int devices() {
    static const int count = [] {
        const char* text = std::getenv("STAND_IN_GPU_DEVICES");
        return text && *text ? std::atoi(text) : 1;
    }();
    return count;
}

static int context_object, retained, opened = -1;
static thread_local bool current;
static CUcontext the_context() { return reinterpret_cast<CUcontext>(&context_object); }

bool has_context() { return current; }

struct Module {
    void* library;
    std::map<std::string, CUfunction> functions;
};

struct Function {
    std::string name;
    void (*run)(const unsigned*, const unsigned*, size_t, void**);
    std::vector<size_t> parameters;
    int largest_shared = 48 << 10;
};

// The folder of this library.
static std::string folder() {
    Dl_info info;
    if (!dladdr(reinterpret_cast<void*>(&folder), &info)) fail("cannot tell where the libraries lie");
    std::string path = info.dli_fname;
    return path.substr(0, path.rfind('/'));
}

static void* open_library(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) fail("a module does not load: %s", dlerror());
    return library;
}

static std::vector<std::string> entries(const char* text) {
    std::vector<std::string> names;
    while ((text = std::strstr(text, ".entry "))) {
        text += std::strlen(".entry ");
        names.emplace_back(text, std::strcspn(text, "( \t\n"));
    }
    return names;
}

// The library of candle's that has these kernels.
static void* library_of(const std::vector<std::string>& names) {
    std::string kernels = folder() + "/candle";
    DIR* files = opendir(kernels.c_str());
    if (!files) fail("no folder %s", kernels.c_str());
    void* found = nullptr;
    while (dirent* file = readdir(files)) {
        if (!std::strstr(file->d_name, ".so")) continue;
        void* library = open_library(kernels + "/" + file->d_name);
        bool has_all = std::all_of(names.begin(), names.end(), [&](const std::string& name) {
            return dlsym(library, ("emulate_" + name).c_str());
        });
        if (has_all) found = library;
    }
    closedir(files);
    if (!found) fail("no library has the kernels of a module of PTX (%s ...)", names.empty() ? "" : names[0].c_str());
    return found;
}

static void* library_of(const void* image) {
    // The length of a module is not told: the sections of a library end where its header says that their table does.
    auto bytes = static_cast<const unsigned char*>(image);
    uint64_t table;
    uint16_t entry_bytes, count;
    std::memcpy(&table, bytes + 40, 8);
    std::memcpy(&entry_bytes, bytes + 58, 2);
    std::memcpy(&count, bytes + 60, 2);
    size_t length = table + size_t{entry_bytes} * count;
    int file = memfd_create("module", 0);
    for (size_t done = 0; done < length;) {
        ssize_t written = write(file, bytes + done, length - done);
        if (written <= 0) fail("a module of %zu bytes cannot be written", length);
        done += written;
    }
    return open_library("/proc/self/fd/" + std::to_string(file));
}

// STAND_IN_GPU_FAULT=LAUNCHES:CODE:FILE lets the device fail with an error of the driver behind so many launches, in the one process that
// makes the file. With STAND_IN_GPU_GONE=FILE there is no device from when that file is there.
static CUresult failed = CUDA_SUCCESS;

CUresult fault() { return failed; }

static void count_launch() {
    static long launches = 0;
    const char* text = std::getenv("STAND_IN_GPU_FAULT");
    if (!text || !*text) return;
    long when;
    int code, at = 0;
    if (std::sscanf(text, "%ld:%d:%n", &when, &code, &at) != 2 || !at) fail("STAND_IN_GPU_FAULT=%s is not LAUNCHES:CODE:FILE", text);
    if (++launches != when) return;
    int file = open(text + at, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (file < 0) return;
    close(file);
    failed = CUresult(code);
}

// STAND_IN_GPU_TRAP=NAME:CODE:LAUNCHES lets the device fail with an error of the driver at each launch of a kernel whose name has NAME, behind
// so many of them in a process. STAND_IN_GPU_HANG=NAME lets such a launch never return.
static void trap(const std::string& kernel) {
    const char* hangs = std::getenv("STAND_IN_GPU_HANG");
    if (hangs && *hangs && kernel.find(hangs) != std::string::npos)
        while (true) pause();
    const char* text = std::getenv("STAND_IN_GPU_TRAP");
    if (!text || !*text) return;
    std::string name(text, std::strcspn(text, ":"));
    int code;
    long behind;
    if (std::sscanf(text + name.size(), ":%d:%ld", &code, &behind) != 2) fail("STAND_IN_GPU_TRAP=%s is not NAME:CODE:LAUNCHES", text);
    static long launches = 0;
    if (kernel.find(name) != std::string::npos && ++launches > behind) failed = CUresult(code);
}

static bool is_gone() {
    const char* file = std::getenv("STAND_IN_GPU_GONE");
    return file && *file && access(file, F_OK) == 0;
}

} // namespace stand_in

using namespace stand_in;

// ---- device and context --------------------------------------------------------------------------------------------

CUresult cuInit(unsigned) { return is_gone() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int* version) {
    *version = 13000;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
    *count = devices();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice) {
    const char* told = std::getenv("STAND_IN_GPU_NAME");
    std::snprintf(name, length, "%s", told && *told ? told : "stand-in for a GPU");
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice) {
    std::memset(uuid, 0x5a, sizeof *uuid);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice) {
    std::snprintf(text, length, "0000:00:00.0");
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) {
    *bytes = total_bytes();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    if (device < 0 || device >= devices()) return CUDA_ERROR_INVALID_DEVICE;
    static const std::map<int, int> known = {
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, chip().largest_shared},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, chip().largest_shared + 1024},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, chip().processors},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, chip().compute_major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, chip().compute_minor},
        {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1410000},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
        {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
        {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0x65},
        {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
    };
    auto found = known.find(attribute);
    if (found == known.end()) fail("attribute %d of the device is not known", int(attribute));
    *value = found->second;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    LOCKED;
    if (device < 0 || device >= devices()) return CUDA_ERROR_INVALID_DEVICE;
    if (opened >= 0 && opened != device) fail("a process opens two devices");
    opened = device;
    retained++;
    *context = the_context();
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice) {
    LOCKED;
    if (retained-- == 0) fail("the context is released more often than retained");
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    if (context && context != the_context()) fail("a context that does not exist");
    current = context != nullptr;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = current ? the_context() : nullptr;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxSetCurrent(context); }

CUresult cuCtxPopCurrent(CUcontext* context) {
    cuCtxGetCurrent(context);
    current = false;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
    NEED_CONTEXT;
    *device = opened;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned) { return CUDA_SUCCESS; }

CUresult cuCtxSynchronize() {
    LOCKED;
    NEED_CONTEXT;
    if (captures()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    finish_all();
    trim_pool_at_synchronisation();
    return CUDA_SUCCESS;
}

// ---- errors --------------------------------------------------------------------------------------------------------

static const std::map<int, std::pair<const char*, const char*>> ERRORS = {
    {CUDA_SUCCESS, {"CUDA_SUCCESS", "no error"}},
    {CUDA_ERROR_INVALID_VALUE, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
    {CUDA_ERROR_OUT_OF_MEMORY, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
    {CUDA_ERROR_INVALID_DEVICE, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
    {CUDA_ERROR_INVALID_CONTEXT, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
    {CUDA_ERROR_INVALID_HANDLE, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
    {CUDA_ERROR_NOT_FOUND, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
    {CUDA_ERROR_NOT_READY, {"CUDA_ERROR_NOT_READY", "device not ready"}},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
     {"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"}},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
     {"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"}},
    {CUDA_ERROR_NOT_SUPPORTED, {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
     {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"}},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
     {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"}},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
     {"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"}},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
     {"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"}},
    {CUDA_ERROR_CAPTURED_EVENT, {"CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"}},
};

CUresult cuGetErrorName(CUresult error, const char** text) {
    auto found = ERRORS.find(error);
    *text = found == ERRORS.end() ? "CUDA_ERROR_UNKNOWN" : found->second.first;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
    auto found = ERRORS.find(error);
    *text = found == ERRORS.end() ? "unknown error" : found->second.second;
    return CUDA_SUCCESS;
}

// ---- modules and launches ------------------------------------------------------------------------------------------

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    LOCKED;
    NEED_CONTEXT;
    bool is_library = std::memcmp(image, "\x7f" "ELF", 4) == 0;
    void* library = is_library ? library_of(image) : library_of(entries(static_cast<const char*>(image)));
    *module = reinterpret_cast<CUmodule>(new Module{library, {}});
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
    LOCKED;
    NEED_CONTEXT;
    // Work that is queued may run its kernels still: the library stays.
    delete reinterpret_cast<Module*>(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* out, CUmodule module, const char* name) {
    LOCKED;
    NEED_CONTEXT;
    Module* one = reinterpret_cast<Module*>(module);
    CUfunction& function = one->functions[name];
    if (!function) {
        void* run = dlsym(one->library, (std::string("emulate_") + name).c_str());
        void* describe = dlsym(one->library, (std::string("describe_") + name).c_str());
        if (!run || !describe) return CUDA_ERROR_NOT_FOUND;
        size_t parameters[256];
        size_t count = reinterpret_cast<size_t (*)(size_t*)>(describe)(parameters);
        function = reinterpret_cast<CUfunction>(new Function{
            name, reinterpret_cast<void (*)(const unsigned*, const unsigned*, size_t, void**)>(run), {parameters, parameters + count}});
    }
    *out = function;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    LOCKED;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) fail("attribute %d of a kernel is set", int(attribute));
    if (value < 0 || value > chip().largest_shared) return CUDA_ERROR_INVALID_VALUE;
    reinterpret_cast<Function*>(function)->largest_shared = value;
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared_bytes, CUstream stream, void** arguments, void**) {
    LOCKED;
    Function* kernel = reinterpret_cast<Function*>(function);
    count_launch();
    trap(kernel->name);
    NEED_CONTEXT;
    double start = now();
    size_t threads = size_t{block_x} * block_y * block_z;
    bool fits = threads && threads <= 1024 && block_z <= 64 && grid_x && grid_y && grid_z && grid_x <= 0x7fffffff &&
                grid_y <= 65535 && grid_z <= 65535 && int(shared_bytes) <= kernel->largest_shared;
    if (!fits) {
        // The driver's error does not say which launch it was.
        std::fprintf(stderr, "stand-in GPU: no launch of %s: %u x %u x %u blocks of %u x %u x %u threads with %u bytes\n",
                     kernel->name.c_str(), grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes);
        return CUDA_ERROR_INVALID_VALUE;
    }
    // Arguments are taken at once, the kernel runs later.
    auto values = std::make_shared<std::vector<uint64_t>>();
    size_t bytes = 0;
    for (size_t index = 0; index < kernel->parameters.size(); index++) {
        size_t size = kernel->parameters[index] & (POINTER - 1), start = values->size();
        values->resize(start + (size + 7) / 8);
        std::memcpy(&(*values)[start], arguments[index], size);
        bytes += size;
        uint64_t address = (*values)[start];
        if (kernel->parameters[index] & POINTER && address && !is_live(address))
            fail("kernel %s: parameter %zu is %#lx, where nothing is allocated", kernel->name.c_str(), index, address);
    }
    if (bytes > MOST_PARAMETER_BYTES) return CUDA_ERROR_INVALID_VALUE;
    put(queue_of(stream), Operation{kernel->name, [=] {
        unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
        std::vector<void*> pointers;
        size_t start = 0;
        for (size_t parameter : kernel->parameters) {
            pointers.push_back(&(*values)[start]);
            start += ((parameter & (POINTER - 1)) + 7) / 8;
        }
        kernel->run(grid, block, shared_bytes, pointers.data());
    }, nullptr, nullptr, nullptr, 0, Operation::KERNEL, 0, detail("%u x %u x %u blocks of %zu threads, first value %lu", grid_x, grid_y, grid_z, threads, values->empty() ? 0 : (*values)[0])});
    if (observe_launch) observe_launch(start * 1e9, now() * 1e9);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int threads, size_t) {
    *blocks = std::max(1, 2048 / std::max(threads, 1));
    return CUDA_SUCCESS;
}

// ---- for libraries that look for the driver's calls themselves -----------------------------------------------------

CUresult cuGetExportTable(const void**, const CUuuid*) { return CUDA_ERROR_NOT_FOUND; }

CUresult cuGetProcAddress(const char* name, void** address, int, cuuint64_t, CUdriverProcAddressQueryResult* result) {
    static void* self = dlopen((folder() + "/libcuda.so.1").c_str(), RTLD_NOW);
    *address = nullptr;
    for (const char* version : {"_v4", "_v3", "_v2", ""})
        if (!*address) *address = dlsym(self, (std::string(name) + version).c_str());
    if (result) *result = *address ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *address ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
