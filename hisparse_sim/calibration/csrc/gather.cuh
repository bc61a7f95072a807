// Rows of the host pool to rows of the GPU pool, straight over the host link.
#pragma once

#include "device.cuh"
#include "ptx.cuh"

namespace hisparse {

// The warps first, first + step, ... of a request's list copy kRows rows each; all loads of a warp are
// under way before its first store.
template <int kRowBytes, int kRows>
__device__ __forceinline__ void copy_rows(uint4* target, const uint4* source, const int* target_rows,
                                          const int* source_rows, int count, int first, int step) {
    constexpr int kVectors = kRowBytes / 16;
    constexpr int kLoads = (kVectors * kRows + 31) / 32;
    for (int row = first * kRows; row < count; row += step * kRows) {
        // Lane l knows row l's numbers, so that the lists cost one access and no load waits for another.
        const int rows = min(kRows, count - row);
        const int from = lane_id() < rows ? source_rows[row + lane_id()] : 0;
        const int to = lane_id() < rows ? target_rows[row + lane_id()] : 0;
        int source_row[kLoads], target_row[kLoads];
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            source_row[i] = __shfl_sync(kFullWarp, from, (i * 32 + lane_id()) / kVectors);
            target_row[i] = __shfl_sync(kFullWarp, to, (i * 32 + lane_id()) / kVectors);
        }
        uint4 value[kLoads];
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            const int at = i * 32 + lane_id();
            if (at < kVectors * rows) value[i] = __ldcg(source + i64(source_row[i]) * kVectors + at % kVectors);
        }
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            const int at = i * 32 + lane_id();
            if (at < kVectors * rows) __stcg(target + i64(target_row[i]) * kVectors + at % kVectors, value[i]);
        }
    }
}

template <int kRowBytes, int kRows>
__global__ void __launch_bounds__(kRows == 1 ? 1024 : 512) gather_rows(Gather g) {
    const i64 request = blockIdx.x;
    const int warps = blockDim.x / 32;
    copy_rows<kRowBytes, kRows>(static_cast<uint4*>(g.target), static_cast<const uint4*>(g.source),
                                g.target_rows + request * g.list, g.source_rows + request * g.list,
                                g.counts[request], blockIdx.y * warps + warp_id(), gridDim.y * warps);
}

// The same by bulk copies through shared memory: one warp a CTA keeps kBulkStages groups of 32 rows in
// flight. Lane l only ever handles row l of a group, so it alone waits before its slot is used again.
constexpr int kBulkStages = 4;

inline int gather_bulk_shared(i64 row_bytes) { return int(kBulkStages * (32 * row_bytes + 8)); }

__global__ void __launch_bounds__(32) gather_rows_bulk(Gather g) {
#ifdef HISPARSE_SM90
    HISPARSE_DYNAMIC_SHARED(shared);
    const int row_bytes = int(g.row_bytes);
    auto* barriers = reinterpret_cast<uint64_t*>(shared + kBulkStages * 32 * row_bytes);
    const i64 request = blockIdx.x;
    const int count = g.counts[request];
    const int* source_rows = g.source_rows + request * g.list;
    const int* target_rows = g.target_rows + request * g.list;
    const int lane = lane_id();

    if (lane == 0) {
        for (int stage = 0; stage < kBulkStages; ++stage) ptx::barrier_init(barriers + stage, 1);
        ptx::barrier_init_visible();
        ptx::fence_async_proxy();
    }
    __syncwarp();

    const auto slot = [&](int turn) { return shared + (turn % kBulkStages * 32 + lane) * row_bytes; };
    const auto row_of = [&](int turn) { return (int(blockIdx.y) + turn * int(gridDim.y)) * 32 + lane; };
    const auto fetch = [&](int turn) {
        const int row = row_of(turn);
        const int rows = min(32, count - (row - lane));
        if (rows <= 0) return;
        uint64_t* barrier = barriers + turn % kBulkStages;
        if (lane == 0) ptx::barrier_arrive_expect(barrier, rows * row_bytes);
        __syncwarp();
        if (lane < rows) {
            ptx::bulk_load(slot(turn), static_cast<const char*>(g.source) + i64(source_rows[row]) * row_bytes,
                           row_bytes, barrier);
        }
    };

    for (int turn = 0; turn < kBulkStages - 1; ++turn) fetch(turn);
    for (int turn = 0; row_of(turn) - lane < count; ++turn) {
        // The slot of the turn before is free when its store has read it; only then fetch into it.
        ptx::bulk_wait_read<0>();
        fetch(turn + kBulkStages - 1);
        ptx::barrier_wait(barriers + turn % kBulkStages, turn / kBulkStages & 1);
        const int row = row_of(turn);
        if (row < count) {
            ptx::fence_async_proxy();
            ptx::bulk_store(static_cast<char*>(g.target) + i64(target_rows[row]) * row_bytes, slot(turn),
                            row_bytes);
        }
        ptx::bulk_commit();
    }
    ptx::bulk_wait_all();
#endif
}

}  // namespace hisparse
