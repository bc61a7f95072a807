// The library's functions with all kernels run on the host: for checks of what they compute. It has no
// clock: nothing that it runs may be taken for a measurement.
#include "cuda_on_host.h"

#define HISPARSE_PTX_INSTEAD "ptx_on_host.h"

#include "library.h"

namespace hisparse {

using Queue = int;

static char last_error[512];

static int fail(int code, const char* why) {
    snprintf(last_error, sizeof last_error, "%s", why);
    return code;
}
static int refuse(const char* why) { return fail(kRefused, why); }

template <typename... Parameter>
static int start(void (*kernel)(Parameter...), dim3 grid, int threads, i64 shared_bytes, Queue,
                 const Parameter&... argument) {
    emulation::run_grid(kernel, grid, threads, size_t(shared_bytes), argument...);
    return 0;
}

}  // namespace hisparse

#include "launch.cuh"

using namespace hisparse;

static int run_one(const Op& op) {
    switch (op.kind) {
        case Kind::kCopy: memcpy(op.copy.target, op.copy.source, size_t(op.copy.bytes)); return 0;
        case Kind::kCopyPitched:
            for (i64 row = 0; row < op.copy_pitched.height; ++row) {
                memcpy(static_cast<char*>(op.copy_pitched.target) + row * op.copy_pitched.target_pitch,
                       static_cast<const char*>(op.copy_pitched.source) + row * op.copy_pitched.source_pitch,
                       size_t(op.copy_pitched.width));
            }
            return 0;
        case Kind::kCopyBatch:
            for (i64 i = 0; i < op.copy_batch.count; ++i) {
                memcpy(op.copy_batch.targets[i], op.copy_batch.sources[i], op.copy_batch.sizes[i]);
            }
            return 0;
        default: return launch_kernel_of(op, 0);
    }
}

long long hisparse_op_bytes() { return sizeof(Op); }
const char* hisparse_error() { return last_error; }
int hisparse_open(int, Device* device) {
    *device = Device{};
    snprintf(device->name, sizeof device->name, "host emulation");
    device->major = 9, device->sms = 1, device->l2_bytes = 1, device->memory_bytes = 1;
    return 0;
}
int hisparse_allocate(int, long long bytes, void** memory) {
    *memory = aligned_alloc(4096, (size_t(bytes) + 4095) / 4096 * 4096);
    return *memory ? 0 : fail(2, "no memory");
}
int hisparse_release(int, void* memory) {
    free(memory);
    return 0;
}
int hisparse_copy(void* target, const void* source, long long bytes) {
    memcpy(target, source, size_t(bytes));
    return 0;
}
int hisparse_set(void* target, int byte, long long bytes) {
    memset(target, byte, size_t(bytes));
    return 0;
}
int hisparse_run(const Op* ops, long long count) {
    for (long long i = 0; i < count; ++i) {
        if (const int failed = run_one(ops[i])) return failed;
    }
    return 0;
}
int hisparse_time(const Op*, long long, const Timing*, double*, long long*, long long*) {
    return fail(kUnsupported, "the emulation has no clock");
}
int hisparse_issue(const Op*, long long, long long, double*) {
    return fail(kUnsupported, "the emulation has no clock");
}
// The order in which threads take turns.
HISPARSE_API void hisparse_shuffle(unsigned seed) { emulation::block.random.seed(seed); }
