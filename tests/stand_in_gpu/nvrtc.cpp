// The stand-in for NVRTC: compiles a kernel's source with the machine's C++ compiler behind the emulation of a GPU's threads. The
// "machine code" is a library of the host.
#include <nvrtc.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

struct _nvrtcProgram {
    std::string source, name, log, binary;
    // By the name that the source includes.
    std::map<std::string, std::string> headers;
};

static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

nvrtcResult nvrtcVersion(int* major, int* minor) {
    // None of NVIDIA's: what is kept on disk under this version is never taken for a GPU's.
    *major = 99;
    *minor = 0;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char* name, int headers, const char* const* texts,
                               const char* const* names) {
    *program = new _nvrtcProgram{source, name ? name : "", {}, {}, {}};
    for (int index = 0; index < headers; index++) (*program)->headers[names[index]] = texts[index];
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
    delete *program;
    *program = nullptr;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
    for (int index = 0; index < count; index++) {
        std::string option = options[index];
        if (option != "--gpu-architecture=sm_80" && option != "--gpu-architecture=sm_89" && option != "--gpu-architecture=sm_90a" && option != "--std=c++17") {
            program->log = "unknown option " + option;
            return NVRTC_ERROR_INVALID_OPTION;
        }
    }
    // The emulation stands before the source; what it knows of elements between the part that all kernels share and the kernels.
    size_t kernels = program->source.find("\n#line 1 \"");
    if (kernels == std::string::npos) {
        program->log = "the source has no line that tells where its kernels begin";
        return NVRTC_ERROR_COMPILATION;
    }
    const std::string gpu = EMULATION, own = OWN;
    std::string text = read(gpu + "emulation.h") + read(own + "kernel_entry.h") + program->source.substr(0, kernels + 1) +
                       read(gpu + "emulation_elements.h") + read(gpu + "emulation_warpgroup.h") + read(gpu + "emulation_stages.h") +
                       program->source.substr(kernels);
    char folder[] = "/tmp/stand-in-nvrtc-XXXXXX";
    if (!mkdtemp(folder)) return NVRTC_ERROR_OUT_OF_MEMORY;
    const std::string base = std::string(folder) + "/kernel";
    std::ofstream(base + ".cpp") << text;
    for (const auto& [name, header] : program->headers) std::ofstream(std::string(folder) + "/" + name) << header;
    const std::string command = "c++ -std=c++17 -O2 -fno-strict-aliasing -fPIC -shared -fno-gnu-unique -w -o " + base + ".so " + base + ".cpp > " + base +
                                ".log 2>&1";
    bool compiled = std::system(command.c_str()) == 0;
    program->log = read(base + ".log");
    program->binary = read(base + ".so");
    for (const char* end : {".cpp", ".so", ".log"}) std::remove((base + end).c_str());
    for (const auto& [name, header] : program->headers) std::remove((std::string(folder) + "/" + name).c_str());
    std::remove(folder);
    return compiled ? NVRTC_SUCCESS : NVRTC_ERROR_COMPILATION;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size) {
    *size = program->log.size() + 1;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
    program->log.copy(log, program->log.size());
    log[program->log.size()] = 0;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size) {
    *size = program->binary.size();
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* binary) {
    program->binary.copy(binary, program->binary.size());
    return NVRTC_SUCCESS;
}

const char* nvrtcGetErrorString(nvrtcResult) { return "an error of the stand-in for NVRTC"; }
