// Scores of the indexer for one query token a request: pages of 64 keys against all heads with fp8
// tensor cores (wgmma), then ReLU, weights and the key's scale. A CTA is one warpgroup that walks a run
// of pages through a ring of shared memory.
#pragma once

#include "device.cuh"
#include "ptx.cuh"

namespace hisparse {

constexpr int kIndexerThreads = 128;
constexpr int kIndexerStages = 4;
constexpr int kKeyBytes = 128;
constexpr int kKeyPage = kBlockTokens * (kKeyBytes + 4);
constexpr int kKeyStage = kBlockTokens * kKeyBytes;  // keys; the scales lie behind all stages

constexpr int indexer_shared(int heads) {
    return heads * kKeyBytes + kIndexerStages * kKeyPage;
}

// 16-byte chunk `chunk` of row `row` of an operand with the 128-byte swizzle.
__device__ __forceinline__ int swizzled(int row, int chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }

// The descriptor of such an operand, 1024-byte aligned, for wgmma (PTX ISA, "Matrix descriptor format").
__device__ __forceinline__ uint64_t swizzled_operand(const void* shared) {
    constexpr uint64_t kSwizzle128 = uint64_t(1) << 62;
    constexpr uint64_t kEightRows = uint64_t(1024 >> 4) << 32;  // from one group of 8 rows to the next
    constexpr uint64_t kUnused = uint64_t(1) << 16;             // leading offset: of no meaning here
    return kSwizzle128 | kEightRows | kUnused | ((ptx::shared_address(shared) & 0x3ffff) >> 4);
}

template <int kHeads>
__global__ void __launch_bounds__(kIndexerThreads) indexer_scores(Indexer x) {
#ifdef HISPARSE_SM90A
    HISPARSE_DYNAMIC_SHARED(memory);
    unsigned char* queries = memory;
    unsigned char* keys = queries + kHeads * kKeyBytes;
    auto* scales = reinterpret_cast<float*>(keys + kIndexerStages * kKeyStage);
    const i64 request = blockIdx.y;
    const int thread = threadIdx.x;
    const int length = x.lengths[request];
    const int pages = (length + kBlockTokens - 1) / kBlockTokens;
    const int first = int(i64(pages) * blockIdx.x / gridDim.x);
    const int last = int(i64(pages) * (blockIdx.x + 1) / gridDim.x);
    if (first == last) return;
    const int* blocks = x.blocks + request * x.blocks_per_request;

    const auto fetch = [&](int page) {  // a group of copies for every page, empty behind the last
        if (page < last) {
            const uint8_t* source = x.keys + i64(blocks[page]) * kKeyPage;
            const int stage = page % kIndexerStages;
            unsigned char* target = keys + stage * kKeyStage;
#pragma unroll
            for (int i = 0; i < kKeyStage / 16 / kIndexerThreads; ++i) {
                const int at = i * kIndexerThreads + thread;
                ptx::copy16(target + swizzled(at / 8, at % 8), source + at * 16);
            }
            if (thread < kBlockTokens * 4 / 16) {
                ptx::copy16(scales + stage * kBlockTokens + thread * 4, source + kKeyStage + thread * 16);
            }
        }
        ptx::copy_commit();
    };

    const uint8_t* query = x.queries + request * kHeads * kKeyBytes;
    for (int at = thread; at < kHeads * kKeyBytes / 16; at += kIndexerThreads) {
        ptx::copy16(queries + swizzled(at / 8, at % 8), query + at * 16);
    }
    for (int page = first; page < first + kIndexerStages - 1; ++page) fetch(page);

    // Of the 64 x heads products a thread holds rows r and r + 8 and the heads 8j + c and 8j + c + 1.
    const int row = warp_id() * 16 + lane_id() / 4, column = lane_id() % 4 * 2;
    float weight[kHeads / 4];
#pragma unroll
    for (int i = 0; i < kHeads / 4; ++i) {
        weight[i] = x.weights[request * kHeads + i / 2 * 8 + column + i % 2];
    }

    for (int page = first; page < last; ++page) {
        ptx::copy_wait<kIndexerStages - 2>();
        ptx::fence_async_proxy();
        __syncthreads();  // this page has come, and the one before has been used
        fetch(page + kIndexerStages - 1);

        const int stage = page % kIndexerStages;
        const unsigned char* page_keys = keys + stage * kKeyStage;
        float product[kHeads / 2];
        ptx::wgmma_begin();
#pragma unroll
        for (int step = 0; step < kKeyBytes / 32; ++step) {
            ptx::wgmma_e4m3(product, swizzled_operand(page_keys + step * 32),
                            swizzled_operand(queries + step * 32), step);
        }
        ptx::wgmma_commit();
        ptx::wgmma_wait(product);

        float low = 0.0f, high = 0.0f;
#pragma unroll
        for (int i = 0; i < kHeads / 4; ++i) {
            const int at = i / 2 * 4 + i % 2;
            low += weight[i] * fmaxf(product[at], 0.0f);
            high += weight[i] * fmaxf(product[at + 2], 0.0f);
        }
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
            low += __shfl_xor_sync(kFullWarp, low, step);
            high += __shfl_xor_sync(kFullWarp, high, step);
        }
        if (lane_id() % 4 == 0) {
            const float* scale = scales + stage * kBlockTokens;
            float* scores = x.scores + request * x.stride + page * kBlockTokens;
            if (page * kBlockTokens + row < length) scores[row] = low * scale[row];
            if (page * kBlockTokens + row + 8 < length) scores[row + 8] = high * scale[row + 8];
        }
    }
#endif
}

}  // namespace hisparse
