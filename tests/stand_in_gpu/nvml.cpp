// The stand-in for NVML: one GPU that tells the same each time, but for its energy. What is not here, it does not tell.
//
// The management library has no header in the toolkit: structures and numbers are those of nvml.h of driver 580.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

enum Result { DRIVER_NOT_LOADED = 9, SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

struct Utilization {
    unsigned gpu, memory;
};
struct Memory {
    unsigned long long total, free, used;
};

static int device;

extern "C" {
// With STAND_IN_GPU_NVML=0 it finds no driver.
int nvmlInit_v2() {
    const char* text = std::getenv("STAND_IN_GPU_NVML");
    return text && !std::strcmp(text, "0") ? DRIVER_NOT_LOADED : SUCCESS;
}
int nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }
int nvmlShutdown() { return SUCCESS; }
const char* nvmlErrorString(int) { return "an error of the stand-in for NVML"; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* place, void** handle) {
    unsigned domain, bus, slot;
    if (std::sscanf(place, "%x:%x:%x", &domain, &bus, &slot) != 3) return INVALID_ARGUMENT;
    // Where the stand-in for the driver says that its GPU is.
    if (domain != 0 || bus != 0x65 || slot != 0) return NOT_FOUND;
    *handle = &device;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void*, Utilization* out) {
    *out = {37, 12};
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void*, Memory* out) {
    const char* text = std::getenv("STAND_IN_GPU_BYTES");
    unsigned long long total = text && *text ? std::strtoull(text, nullptr, 10) : 4ull << 30;
    *out = {total, total / 2, total - total / 2};
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
    *milliwatts = 123000;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void*, int, unsigned* degrees) {
    *degrees = 45;
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(void*, int, unsigned* megahertz) {
    *megahertz = 1410;
    return SUCCESS;
}

// Power holds the clocks down: bit 2.
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
    *reasons = 4;
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* millijoules) {
    auto now = std::chrono::steady_clock::now().time_since_epoch();
    // 123 W.
    *millijoules = std::chrono::duration_cast<std::chrono::milliseconds>(now).count() * 123;
    return SUCCESS;
}
}
