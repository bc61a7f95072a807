// As much of the CUDA runtime as library.cu uses, on the host. Work is queued and done when somebody waits,
// in the order it was queued; a stream's clock counts what it has done, a microsecond for each launch, so
// that a "time" is a number of launches.
#pragma once

#include <deque>
#include <map>

#include "cuda_on_host.h"

#define CUDART_VERSION 13000

enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorInvalidValue = 1 };
enum { cudaHostAllocPortable = 1, cudaHostAllocMapped = 2, cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
enum { cudaStreamCaptureModeThreadLocal = 1, cudaMemcpyDefault = 4, cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaMemcpySrcAccessOrder { cudaMemcpySrcAccessOrderStream = 1 };

namespace emulation {

using Work = std::function<void()>;

struct Graph {
    std::vector<Work> work;
};
struct Stream {
    long long done = 0;
    Graph* capturing = nullptr;
};
struct Event {
    long long at = 0;
};

inline std::deque<Work> queued;
inline std::map<const void*, size_t> most_shared;
inline std::map<void*, std::pair<void*, size_t>> allocated;

inline cudaError_t drain() {
    while (!queued.empty()) {
        const Work work = queued.front();
        queued.pop_front();
        work();
    }
    return cudaSuccess;
}
inline cudaError_t submit(Stream* stream, Work work, int counts = 1) {
    if (stream->capturing) {
        stream->capturing->work.push_back(work);
    } else {
        queued.push_back([=] {
            work();
            stream->done += counts;
        });
    }
    return cudaSuccess;
}

}  // namespace emulation

using cudaStream_t = emulation::Stream*;
using cudaEvent_t = emulation::Event*;
using cudaGraph_t = emulation::Graph*;
using cudaGraphExec_t = emulation::Graph*;

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
};
struct cudaMemcpyAttributes {
    cudaMemcpySrcAccessOrder srcAccessOrder;
};
struct cudaDeviceProp {
    char name[256] = "host emulation";
    struct { char bytes[16]; } uuid{};
    int major = 9, minor = 0, multiProcessorCount = 1, l2CacheSize = 1;
    size_t totalGlobalMem = 1;
};

inline long long clock64() {
    static long long now = 0;
    return now += 10'000'000;
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "an error of the emulation"; }
inline const char* cudaGetErrorName(cudaError_t) { return "emulation"; }
inline cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
inline cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) { return *p = cudaDeviceProp{}, cudaSuccess; }
inline cudaError_t cudaDeviceGetPCIBusId(char* bus, int size, int) { return snprintf(bus, size, "none"), cudaSuccess; }

template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel kernel, int, int bytes) {
    emulation::most_shared[reinterpret_cast<const void*>(kernel)] = size_t(bytes);
    return cudaSuccess;
}
template <typename... Parameter, typename... Argument>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameter...), const Argument&... argument) {
    const size_t shared = config->dynamicSmemBytes;
    if (shared > 48 << 10 && emulation::most_shared[reinterpret_cast<const void*>(kernel)] < shared) {
        return cudaErrorInvalidValue;
    }
    return emulation::submit(config->stream, [=, grid = config->gridDim, threads = int(config->blockDim.x)] {
        emulation::run_grid(kernel, grid, threads, shared, Parameter(argument)...);
    });
}

// Ends where a page without access begins, so that whatever goes over its end faults at once.
inline cudaError_t cudaMalloc(void** memory, size_t bytes) {
    const size_t page = 4096, pages = (bytes + page - 1) / page * page;
    void* whole = mmap(nullptr, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED || mprotect(static_cast<char*>(whole) + pages, page, PROT_NONE) != 0) {
        return cudaErrorMemoryAllocation;
    }
    *memory = static_cast<char*>(whole) + pages - (bytes + 15) / 16 * 16;
    emulation::allocated[*memory] = {whole, pages + page};
    return cudaSuccess;
}
template <typename T>
cudaError_t cudaHostAlloc(T** memory, size_t bytes, int) { return cudaMalloc(reinterpret_cast<void**>(memory), bytes); }
inline cudaError_t cudaFree(void* memory) {
    const auto [whole, bytes] = emulation::allocated.at(memory);
    emulation::allocated.erase(memory);
    return munmap(whole, bytes), cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
inline cudaError_t cudaDeviceSynchronize() { return emulation::drain(); }
inline cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes, int) {
    emulation::drain();
    return memmove(target, source, bytes), cudaSuccess;
}
inline cudaError_t cudaMemset(void* target, int byte, size_t bytes) {
    emulation::drain();
    return memset(target, byte, bytes), cudaSuccess;
}

inline cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, int, cudaStream_t stream) {
    return emulation::submit(stream, [=] { memmove(target, source, bytes); });
}
inline cudaError_t cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source, size_t source_pitch,
                                     size_t width, size_t height, int, cudaStream_t stream) {
    return emulation::submit(stream, [=] {
        for (size_t row = 0; row < height; ++row) {
            memcpy(static_cast<char*>(target) + row * target_pitch,
                   static_cast<const char*>(source) + row * source_pitch, width);
        }
    });
}
inline cudaError_t cudaMemcpyBatchAsync(const void** targets, const void** sources, const size_t* sizes, size_t count,
                                        cudaMemcpyAttributes*, size_t*, size_t, cudaStream_t stream) {
    if (stream->capturing) return cudaErrorInvalidValue;
    for (size_t i = 0; i < count; ++i) {  // the arrays may go once the call is back
        emulation::submit(stream, [=, to = const_cast<void*>(targets[i]), from = sources[i], bytes = sizes[i]] {
            memcpy(to, from, bytes);
        }, i == 0);
    }
    return cudaSuccess;
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, int) {
    return *stream = new emulation::Stream, cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    emulation::drain();
    return delete stream, cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return emulation::drain(); }
inline cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new emulation::Event, cudaSuccess; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, int) { return cudaEventCreate(event); }
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
    emulation::drain();
    return delete event, cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return emulation::submit(stream, [=] { event->at = stream->done; }, 0);
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, int) { return cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return emulation::drain(); }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
    return *ms = float(end->at - begin->at) * 1e-3f, cudaSuccess;
}

inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int) {
    return stream->capturing = new emulation::Graph, cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    *graph = stream->capturing;
    return stream->capturing = nullptr, cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, int) {
    return *exec = new emulation::Graph(*graph), cudaSuccess;
}
inline cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    for (const auto& work : graph->work) emulation::submit(stream, work);
    return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    emulation::drain();
    return delete graph, cudaSuccess;
}
