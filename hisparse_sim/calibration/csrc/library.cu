// Memory, launches and clocks around the kernels, for one GPU and one thread.
#include <cuda_runtime.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "library.h"

namespace hisparse {

using Queue = cudaStream_t;

static char last_error[512];

static int fail(int code, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return code;
}

static int refuse(const char* why) { return fail(kRefused, "%s", why); }

#define HISPARSE_TRY(call)                                                                           \
    do {                                                                                             \
        const cudaError_t status_ = (call);                                                          \
        if (status_ != cudaSuccess) {                                                                \
            (void)cudaGetLastError();                                                                \
            return fail(int(status_), "%s: %s (%s)", #call, cudaGetErrorString(status_),             \
                        cudaGetErrorName(status_));                                                  \
        }                                                                                            \
    } while (0)

template <typename... Parameter>
static int start(void (*kernel)(Parameter...), dim3 grid, int threads, i64 shared_bytes, Queue queue,
                 const Parameter&... argument) {
    if (shared_bytes > 48 * 1024) {
        HISPARSE_TRY(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes)));
    }
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(unsigned(threads));
    config.dynamicSmemBytes = size_t(shared_bytes);
    config.stream = queue;
    HISPARSE_TRY(cudaLaunchKernelEx(&config, kernel, argument...));
    return 0;
}

}  // namespace hisparse

#include "launch.cuh"

namespace hisparse {

static int sm_major = 0;

static int launch_batch(const CopyBatch& batch, Queue queue) {
#if CUDART_VERSION >= 12080
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    size_t first = 0;
#if CUDART_VERSION >= 13000
    HISPARSE_TRY(cudaMemcpyBatchAsync(const_cast<const void**>(batch.targets), batch.sources, batch.sizes,
                                      size_t(batch.count), &attributes, &first, 1, queue));
#else
    size_t failed = 0;
    HISPARSE_TRY(cudaMemcpyBatchAsync(batch.targets, const_cast<void**>(batch.sources),
                                      const_cast<size_t*>(batch.sizes), size_t(batch.count), &attributes, &first,
                                      1, &failed, queue));
#endif
    return 0;
#else
    return fail(kUnsupported, "cudaMemcpyBatchAsync needs CUDA 12.8 or newer");
#endif
}

static int launch(const Op& op, Queue queue) {
    switch (op.kind) {
        case Kind::kCopy:
            HISPARSE_TRY(cudaMemcpyAsync(op.copy.target, op.copy.source, size_t(op.copy.bytes), cudaMemcpyDefault,
                                         queue));
            return 0;
        case Kind::kCopyPitched: {
            const CopyPitched& c = op.copy_pitched;
            HISPARSE_TRY(cudaMemcpy2DAsync(c.target, size_t(c.target_pitch), c.source, size_t(c.source_pitch),
                                           size_t(c.width), size_t(c.height), cudaMemcpyDefault, queue));
            return 0;
        }
        case Kind::kCopyBatch: return launch_batch(op.copy_batch, queue);
        case Kind::kIndexer:
            if (sm_major != 9) return fail(kUnsupported, "the indexer's kernel is for compute capability 9.0");
            return launch_kernel_of(op, queue);
        case Kind::kAttention:
        case Kind::kGatherBulk:
            if (sm_major < 9) return fail(kUnsupported, "this kernel needs compute capability 9.0 or more");
            return launch_kernel_of(op, queue);
        default: return launch_kernel_of(op, queue);
    }
}

// Holds the GPU until the host has queued everything, so that no launch gap is timed.
__global__ void wait_for_host(int* gate, int* late) {
    const volatile int* open = gate;
    const long long begin = clock64();
    while (*open == 0) {
        if (clock64() - begin > 200'000'000) {  // 0.1 s: the host is stuck behind a full queue
            *late += 1;
            return;
        }
    }
}

// The streams, events and the gate of a timing; freed at its end, whatever happened.
struct Clock {
    Queue queues[kStreams]{};
    cudaEvent_t begin[kStreams]{}, end[kStreams]{}, gate_passed{};
    int* gate = nullptr;  // host memory: [0] open, [1] launches that were late

    int open() {
        for (int s = 0; s < kStreams; ++s) {
            HISPARSE_TRY(cudaStreamCreateWithFlags(&queues[s], cudaStreamNonBlocking));
            HISPARSE_TRY(cudaEventCreate(&begin[s]));
            HISPARSE_TRY(cudaEventCreate(&end[s]));
        }
        HISPARSE_TRY(cudaEventCreateWithFlags(&gate_passed, cudaEventDisableTiming));
        HISPARSE_TRY(cudaHostAlloc(reinterpret_cast<void**>(&gate), 2 * sizeof(int), cudaHostAllocMapped));
        gate[0] = gate[1] = 0;
        return 0;
    }
    ~Clock() {
        for (int s = 0; s < kStreams; ++s) {
            if (begin[s]) cudaEventDestroy(begin[s]);
            if (end[s]) cudaEventDestroy(end[s]);
            if (queues[s]) cudaStreamDestroy(queues[s]);
        }
        if (gate_passed) cudaEventDestroy(gate_passed);
        if (gate) cudaFreeHost(gate);
    }
};

// The operations of one slice and stream: a graph, or the list itself.
struct Part {
    std::vector<const Op*> ops;
    cudaGraphExec_t graph = nullptr;

    ~Part() {
        if (graph) cudaGraphExecDestroy(graph);
    }

    int capture(Queue queue) {
        HISPARSE_TRY(cudaStreamBeginCapture(queue, cudaStreamCaptureModeThreadLocal));
        int failed = 0;
        for (const Op* op : ops) {
            if ((failed = launch(*op, queue)) != 0) break;
        }
        cudaGraph_t captured = nullptr;
        const cudaError_t ended = cudaStreamEndCapture(queue, &captured);
        if (failed == 0 && ended != cudaSuccess) {
            failed = fail(int(ended), "the operations cannot be captured: %s", cudaGetErrorString(ended));
        }
        if (failed == 0) {
            const cudaError_t made = cudaGraphInstantiate(&graph, captured, 0);
            if (made != cudaSuccess) {
                failed = fail(int(made), "the graph cannot be made: %s", cudaGetErrorString(made));
            } else {
                cudaGraphUpload(graph, queue);
            }
        }
        if (captured) cudaGraphDestroy(captured);
        (void)cudaGetLastError();
        return failed;
    }

    int start_on(Queue queue) const {
        if (graph) {
            HISPARSE_TRY(cudaGraphLaunch(graph, queue));
            return 0;
        }
        for (const Op* op : ops) {
            if (const int failed = launch(*op, queue)) return failed;
        }
        return 0;
    }
};

static double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static int time_once(Clock& clock, const Op* before, const Part* parts, const bool* used, double* took_s) {
    if (before) {
        if (const int failed = launch(*before, clock.queues[0])) return failed;
    }
    clock.gate[0] = 0;
    if (const int failed = start(wait_for_host, dim3(1), 1, 0, clock.queues[0], clock.gate, clock.gate + 1)) {
        return failed;
    }
    HISPARSE_TRY(cudaEventRecord(clock.gate_passed, clock.queues[0]));
    int failed = 0;
    for (int s = 0; s < kStreams && failed == 0; ++s) {
        if (!used[s]) continue;
        if (s > 0) HISPARSE_TRY(cudaStreamWaitEvent(clock.queues[s], clock.gate_passed, 0));
        HISPARSE_TRY(cudaEventRecord(clock.begin[s], clock.queues[s]));
        failed = parts[s].start_on(clock.queues[s]);
        if (failed == 0) HISPARSE_TRY(cudaEventRecord(clock.end[s], clock.queues[s]));
    }
    *static_cast<volatile int*>(clock.gate) = 1;
    if (failed != 0) return failed;
    for (int s = 0; s < kStreams; ++s) {
        if (!used[s]) continue;
        HISPARSE_TRY(cudaEventSynchronize(clock.end[s]));
        float took_ms = 0.0f;
        HISPARSE_TRY(cudaEventElapsedTime(&took_ms, clock.begin[s], clock.end[s]));
        took_s[s] = double(took_ms) * 1e-3;
    }
    return 0;
}

}  // namespace hisparse

using namespace hisparse;

long long hisparse_op_bytes() { return sizeof(Op); }

const char* hisparse_error() { return last_error; }

int hisparse_open(int index, Device* device) {
    int driver = 0, runtime = 0, count = 0;
    HISPARSE_TRY(cudaDriverGetVersion(&driver));
    HISPARSE_TRY(cudaRuntimeGetVersion(&runtime));
    *device = Device{};
    device->driver = driver;
    device->runtime = runtime;
    HISPARSE_TRY(cudaGetDeviceCount(&count));
    HISPARSE_TRY(cudaSetDevice(index));
    cudaDeviceProp properties{};
    HISPARSE_TRY(cudaGetDeviceProperties(&properties, index));
    snprintf(device->name, sizeof device->name, "%s", properties.name);
    char* hex = device->uuid;
    for (const char byte : properties.uuid.bytes) hex += snprintf(hex, 3, "%02x", unsigned(uint8_t(byte)));
    HISPARSE_TRY(cudaDeviceGetPCIBusId(device->pci_bus, sizeof device->pci_bus, index));
    device->major = properties.major;
    device->minor = properties.minor;
    device->sms = properties.multiProcessorCount;
    device->l2_bytes = properties.l2CacheSize;
    device->memory_bytes = i64(properties.totalGlobalMem);
    sm_major = properties.major;
    return 0;
}

int hisparse_allocate(int space, long long bytes, void** memory) {
    if (space == kHostMemory) {
        HISPARSE_TRY(cudaHostAlloc(memory, size_t(bytes), cudaHostAllocPortable | cudaHostAllocMapped));
    } else {
        HISPARSE_TRY(cudaMalloc(memory, size_t(bytes)));
    }
    return 0;
}

int hisparse_release(int space, void* memory) {
    if (space == kHostMemory) {
        HISPARSE_TRY(cudaFreeHost(memory));
    } else {
        HISPARSE_TRY(cudaFree(memory));
    }
    return 0;
}

int hisparse_copy(void* target, const void* source, long long bytes) {
    HISPARSE_TRY(cudaMemcpy(target, source, size_t(bytes), cudaMemcpyDefault));
    HISPARSE_TRY(cudaDeviceSynchronize());
    return 0;
}

int hisparse_set(void* target, int byte, long long bytes) {
    HISPARSE_TRY(cudaMemset(target, byte, size_t(bytes)));
    HISPARSE_TRY(cudaDeviceSynchronize());
    return 0;
}

int hisparse_run(const Op* ops, long long count) {
    Clock clock;
    if (const int failed = clock.open()) return failed;
    for (long long i = 0; i < count; ++i) {
        if (const int failed = hisparse::launch(ops[i], clock.queues[0])) return failed;
        HISPARSE_TRY(cudaStreamSynchronize(clock.queues[0]));
    }
    return 0;
}

int hisparse_time(const Op* ops, long long count, const Timing* how, double* seconds, long long* recorded,
                  long long* late) {
    *recorded = *late = 0;
    Clock clock;
    if (const int failed = clock.open()) return failed;
    bool used[kStreams]{};
    const auto parts = std::make_unique<Part[]>(size_t(how->slices) * kStreams);
    for (long long i = 0; i < count; ++i) {
        parts[size_t(ops[i].slice * kStreams + ops[i].stream)].ops.push_back(ops + i);
        used[ops[i].stream] = true;
    }
    if (how->graphs) {
        for (i64 p = 0; p < how->slices * kStreams; ++p) {
            if (parts[p].ops.empty()) continue;
            if (const int failed = parts[p].capture(clock.queues[p % kStreams])) return failed;
        }
    }
    HISPARSE_TRY(cudaDeviceSynchronize());
    const double stop_s = now_s() + how->most_s;
    for (i64 launch = -how->warmup; launch < how->launches; ++launch) {
        double took_s[kStreams] = {};
        const i64 slice = (launch + how->warmup) % how->slices;
        if (const int failed = time_once(clock, how->before, &parts[slice * kStreams], used, took_s)) {
            cudaDeviceSynchronize();
            return failed;
        }
        if (launch < 0) continue;
        for (int s = 0; s < kStreams; ++s) seconds[s * how->launches + launch] = took_s[s];
        *recorded = launch + 1;
        if (now_s() > stop_s) break;
    }
    HISPARSE_TRY(cudaDeviceSynchronize());
    *late = clock.gate[1];
    return 0;
}

int hisparse_issue(const Op* ops, long long count, long long repeats, double* seconds) {
    Clock clock;
    if (const int failed = clock.open()) return failed;
    for (long long repeat = -1; repeat < repeats; ++repeat) {  // the first is a warm-up
        const double begin_s = now_s();
        for (long long i = 0; i < count; ++i) {
            if (const int failed = hisparse::launch(ops[i], clock.queues[0])) return failed;
        }
        const double issued_s = now_s();
        HISPARSE_TRY(cudaStreamSynchronize(clock.queues[0]));
        if (repeat >= 0) seconds[repeat] = issued_s - begin_s;
    }
    return 0;
}
