// The functions of the library, as abi.py calls them: 0 is success, else hisparse_error() says what
// failed. Positive values are CUDA's own codes.
#pragma once

#include "ops.h"

#define HISPARSE_API extern "C" __attribute__((visibility("default")))

namespace hisparse {
constexpr int kRefused = -1;      // arguments that no kernel takes
constexpr int kUnsupported = -2;  // this GPU cannot do it
enum Space : i64 { kGpuMemory, kHostMemory };
}  // namespace hisparse

// Bytes of Op, so that Python can tell a mismatch before anything is launched.
HISPARSE_API long long hisparse_op_bytes();
HISPARSE_API const char* hisparse_error();
// Makes `index` the GPU of this process and tells what it is.
HISPARSE_API int hisparse_open(int index, hisparse::Device* device);
HISPARSE_API int hisparse_allocate(int space, long long bytes, void** memory);
HISPARSE_API int hisparse_release(int space, void* memory);
// Copies between any two places and waits.
HISPARSE_API int hisparse_copy(void* target, const void* source, long long bytes);
// Sets GPU memory to a byte and waits.
HISPARSE_API int hisparse_set(void* target, int byte, long long bytes);
// Launches the operations one after the other, each waited for and checked.
HISPARSE_API int hisparse_run(const hisparse::Op* ops, long long count);
// Times slices of the operations; seconds[stream][launch] and what was recorded. `late` counts launches
// whose operations were not all queued when the GPU began (their times may hold gaps).
HISPARSE_API int hisparse_time(const hisparse::Op* ops, long long count, const hisparse::Timing* how,
                               double* seconds, long long* recorded, long long* late);
// Seconds of host time to issue all operations once, for each of `repeats`.
HISPARSE_API int hisparse_issue(const hisparse::Op* ops, long long count, long long repeats, double* seconds);
