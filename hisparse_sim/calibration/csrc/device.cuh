// What the kernels share: warp and block helpers on plain CUDA built-ins. The PTX is in ptx.cuh.
#pragma once

#include "ops.h"

#ifdef __CUDACC__
// What the architecture being compiled for has: bulk copies and fp8 conversions; wgmma. Both are true for
// the host's pass, which only needs the names.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define HISPARSE_SM90 1
#endif
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HISPARSE_SM90A 1
#endif
#define HISPARSE_DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]
#endif

namespace hisparse {

constexpr unsigned kFullWarp = 0xffffffffu;

__device__ __forceinline__ int lane_id() { return threadIdx.x & 31; }
__device__ __forceinline__ int warp_id() { return threadIdx.x >> 5; }
__device__ __forceinline__ unsigned lanes_below() { return (1u << lane_id()) - 1u; }

// This lane's rank among the lanes of the warp with `flag`, behind all that `counter` held before.
// All lanes must call it.
__device__ __forceinline__ int append(int* counter, bool flag) {
    const unsigned mask = __ballot_sync(kFullWarp, flag);
    int base = 0;
    if (lane_id() == 0 && mask != 0) base = atomicAdd(counter, __popc(mask));
    return __shfl_sync(kFullWarp, base, 0) + __popc(mask & lanes_below());
}

__device__ __forceinline__ int inclusive_scan(int value) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(kFullWarp, value, step);
        if (lane_id() >= step) value += below;
    }
    return value;
}

// Ranks of flagged items in their order, for a block of 1024 threads and items in chunks of 1024:
// publish() every chunk, then scan() once, then rank() chunk after chunk.
struct StableRanks {
    int* counts;  // shared [chunks, 32]: flags of each warp, after scan() those of the warps before it
    int* totals;  // shared [chunks]
    int before = 0;

    __device__ void publish(int chunk, bool flag) {
        const unsigned mask = __ballot_sync(kFullWarp, flag);
        if (lane_id() == 0) counts[chunk * 32 + warp_id()] = __popc(mask);
    }

    __device__ void scan(int chunks) {  // synchronises before and after
        __syncthreads();
        if (warp_id() < chunks) {
            const int mine = warp_id() * 32 + lane_id();
            const int count = counts[mine];
            const int sum = inclusive_scan(count);
            counts[mine] = sum - count;
            if (lane_id() == 31) totals[warp_id()] = sum;
        }
        __syncthreads();
    }

    // The flagged items before this thread's item of `chunk`.
    __device__ int rank(int chunk, bool flag) {
        const unsigned mask = __ballot_sync(kFullWarp, flag);
        const int rank = before + counts[chunk * 32 + warp_id()] + __popc(mask & lanes_below());
        before += totals[chunk];
        return rank;
    }
};

}  // namespace hisparse
