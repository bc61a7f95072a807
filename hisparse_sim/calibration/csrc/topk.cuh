// The k largest scores of a row, by radix: one histogram of the top 11 bits tells the threshold's bin;
// scores above are taken, those in the bin become candidates, of which 11 and 10 more bits decide.
// One CTA a row, or several with a histogram kernel before and the last CTA to finish deciding.
#pragma once

#include "device.cuh"

namespace hisparse {

constexpr int kTopkThreads = 1024;
constexpr int kBins = 2048;
enum TopkCounter { kTaken, kCandidates, kFinished };

// Unsigned keys in the order of the scores.
__device__ __forceinline__ uint32_t key_of(float score) {
    const uint32_t bits = __float_as_uint(score);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ int top_bin(uint32_t key) { return int(key >> 21); }

// The share of a row that this CTA looks at, in whole tiles of 4 scores a thread.
struct Share {
    int begin, end;
    __device__ Share(int length) {
        constexpr int kTile = 4 * kTopkThreads;
        const int tiles = (length + kTile - 1) / kTile;
        const int each = (tiles + int(gridDim.x) - 1) / int(gridDim.x) * kTile;
        begin = min(length, int(blockIdx.x) * each);
        end = min(length, begin + each);
    }
};

// Calls visit(index, score, valid) alike in all threads of the block, so that it may use warp functions.
template <typename Visit>
__device__ __forceinline__ void for_each_score(const float* scores, Share share, Visit visit) {
    for (int base = share.begin; base < share.end; base += 4 * kTopkThreads) {
        const int first = base + 4 * int(threadIdx.x);
        float score[4];
        if (first + 3 < share.end) {
            const float4 four = *reinterpret_cast<const float4*>(scores + first);
            score[0] = four.x, score[1] = four.y, score[2] = four.z, score[3] = four.w;
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) score[i] = first + i < share.end ? scores[first + i] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) visit(first + i, score[i], first + i < share.end);
    }
}

// The bin with the k-th largest, and how many are in bins above it.
struct Threshold {
    int bin, above;
};

// `bins` are in shared memory; `scratch` too: 34 ints.
__device__ __forceinline__ Threshold find_threshold(const uint32_t* bins, int k, int* scratch) {
    // Thread t has the two bins at 2t from the top.
    const int high = kBins - 1 - 2 * int(threadIdx.x);
    const int first = int(bins[high]), both = first + int(bins[high - 1]);
    const int within = inclusive_scan(both);
    if (lane_id() == 31) scratch[warp_id()] = within;
    __syncthreads();
    if (warp_id() == 0) {
        const int total = scratch[lane_id()];
        scratch[lane_id()] = inclusive_scan(total) - total;
    }
    __syncthreads();
    const int above = scratch[warp_id()] + within - both;
    if (above < k && k <= above + both) {
        const bool in_first = k <= above + first;
        scratch[32] = in_first ? high : high - 1;
        scratch[33] = in_first ? above : above + first;
    }
    __syncthreads();
    const Threshold found{scratch[32], scratch[33]};
    __syncthreads();
    return found;
}

__device__ __forceinline__ void clear(uint32_t* bins) {
    for (int i = threadIdx.x; i < kBins; i += kTopkThreads) bins[i] = 0;
    __syncthreads();
}

// Of `count` candidates in one bin, the `k` largest; keep(true, index) is called once for each. Other CTAs
// may have written candidates, so they are read from L2.
template <typename Keep>
__device__ __forceinline__ void finish(const uint2* candidates, int count, int k, uint32_t* bins,
                                       int* scratch, int* ties, Keep keep) {
    uint32_t prefix = 0, decided = 0;  // only keys whose `decided` bits are `prefix` are still in question
    const int shifts[2] = {10, 0};
    for (int pass = 0; pass < 2; ++pass) {
        const int shift = shifts[pass];
        const uint32_t mask = pass == 0 ? 0x7ffu : 0x3ffu;
        clear(bins);
        for (int i = threadIdx.x; i < count; i += kTopkThreads) {
            const uint32_t key = __ldcg(candidates + i).x;
            if ((key & decided) == prefix) atomicAdd(bins + (key >> shift & mask), 1u);
        }
        __syncthreads();
        const Threshold found = find_threshold(bins, k, scratch);
        for (int base = 0; base < count; base += kTopkThreads) {
            const int i = base + int(threadIdx.x);
            const uint2 candidate = i < count ? __ldcg(candidates + i) : make_uint2(0, 0);
            const bool in_question = i < count && (candidate.x & decided) == prefix;
            keep(in_question && int(candidate.x >> shift & mask) > found.bin, int(candidate.y));
        }
        k -= found.above;
        prefix |= uint32_t(found.bin) << shift;
        decided |= mask << shift;
    }
    // All that are left have the same score: any k of them.
    if (threadIdx.x == 0) *ties = 0;
    __syncthreads();
    for (int base = 0; base < count; base += kTopkThreads) {
        const int i = base + int(threadIdx.x);
        const uint2 candidate = i < count ? __ldcg(candidates + i) : make_uint2(0, 0);
        const bool tied = i < count && (candidate.x & decided) == prefix;
        const int turn = append(ties, tied);
        keep(tied && turn < k, int(candidate.y));
    }
}

__global__ void __launch_bounds__(kTopkThreads, 1) topk_histogram(Topk t) {
    __shared__ uint32_t bins[kBins];
    const i64 request = blockIdx.y;
    const int length = t.lengths[request];
    if (length <= t.k) return;
    clear(bins);
    for_each_score(t.scores + request * t.stride, Share(length), [&](int, float score, bool valid) {
        if (valid) atomicAdd(bins + top_bin(key_of(score)), 1u);
    });
    __syncthreads();
    for (int i = threadIdx.x; i < kBins; i += kTopkThreads) {
        if (bins[i] != 0) atomicAdd(t.histogram + request * kBins + i, bins[i]);
    }
}

template <bool kAlone>  // the only CTA of its row: makes its own histogram, counts in shared memory
__global__ void __launch_bounds__(kTopkThreads, 1) topk_select(Topk t) {
    __shared__ uint32_t bins[kBins];
    __shared__ int scratch[34], local_counters[3], ties, is_last;
    const i64 request = blockIdx.y;
    const int length = t.lengths[request], k = int(t.k), thread = threadIdx.x;
    const float* scores = t.scores + request * t.stride;
    int* selected = t.selected + request * k;
    uint2* candidates = t.candidates + request * t.stride;
    uint32_t* histogram = t.histogram + request * kBins;
    int* counters = kAlone ? local_counters : t.counters + request * 4;

    if (length <= k) {  // no choice
        if (blockIdx.x == 0) {
            for (int i = thread; i < k; i += kTopkThreads) selected[i] = i < length ? i : -1;
        }
        return;
    }

    const Share share(length);
    if (kAlone) {
        if (thread < 3) local_counters[thread] = 0;
        clear(bins);
        for_each_score(scores, share, [&](int, float score, bool valid) {
            if (valid) atomicAdd(bins + top_bin(key_of(score)), 1u);
        });
    } else {
        for (int i = thread; i < kBins; i += kTopkThreads) bins[i] = __ldcg(histogram + i);
    }
    __syncthreads();
    const Threshold found = find_threshold(bins, k, scratch);

    const auto keep = [&](bool kept, int index) {
        const int place = append(counters + kTaken, kept);
        if (kept) selected[place] = index;
    };
    for_each_score(scores, share, [&](int index, float score, bool valid) {
        const uint32_t key = key_of(score);
        if (!__any_sync(kFullWarp, valid && top_bin(key) >= found.bin)) return;
        keep(valid && top_bin(key) > found.bin, index);
        const bool candidate = valid && top_bin(key) == found.bin;
        const int place = append(counters + kCandidates, candidate);
        if (candidate) candidates[place] = make_uint2(key, uint32_t(index));
    });

    if (!kAlone) {
        __threadfence();
        __syncthreads();
        if (thread == 0) is_last = atomicAdd(counters + kFinished, 1) == int(gridDim.x) - 1;
        __syncthreads();
        if (!is_last) return;
        __threadfence();
    }
    __syncthreads();
    finish(candidates, atomicAdd(counters + kCandidates, 0), k - found.above, bins, scratch, &ties, keep);
    if (!kAlone) {  // as found, for the next launch
        __syncthreads();
        for (int i = thread; i < kBins; i += kTopkThreads) histogram[i] = 0;
        if (thread < 3) counters[thread] = 0;
    }
}

}  // namespace hisparse
