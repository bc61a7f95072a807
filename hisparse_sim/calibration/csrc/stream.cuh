// Passes over memory: fill with known words, read, write and copy at full bandwidth, runs of pages by SM.
#pragma once

#include "device.cuh"

namespace hisparse {

__device__ __forceinline__ uint32_t scrambled(uint32_t x) {  // a bijection: no two words alike
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

__global__ void __launch_bounds__(512) null_kernel() {}

__global__ void __launch_bounds__(512) fill_words(Fill f) {
    const i64 words = f.chunk_bytes / 4;
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x; i < words * f.chunks; i += step) {
        const i64 word = (i / words) * (f.stride_bytes / 4) + i % words;
        f.target[word] = (scrambled(uint32_t(word) + uint32_t(f.seed)) & uint32_t(f.keep)) | uint32_t(f.ones);
    }
}

template <int kDirection>
__global__ void __launch_bounds__(512) stream_pass(Stream s) {
    constexpr int kUnroll = 8;
    const i64 vectors = s.bytes / 16;
    const i64 tile = i64(blockDim.x) * kUnroll;
    const uint4* source = static_cast<const uint4*>(s.source);
    uint4* target = static_cast<uint4*>(s.target);
    uint32_t seen = 0;
    for (i64 base = blockIdx.x * tile + threadIdx.x; base < vectors; base += gridDim.x * tile) {
        uint4 value[kUnroll];
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
            const i64 at = base + i64(i) * blockDim.x;
            value[i] = make_uint4(uint32_t(at), 1, 2, 3);
            if (kDirection != kWrite && at < vectors) value[i] = __ldcg(source + at);
        }
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
            const i64 at = base + i64(i) * blockDim.x;
            if (kDirection == kRead) {
                seen += value[i].x ^ value[i].y ^ value[i].z ^ value[i].w;
            } else if (at < vectors) {
                __stcs(target + at, value[i]);
            }
        }
    }
    // As good as never true, but the compiler can't know: without a use there would be no load.
    if (kDirection == kRead && seen == 0x5ca1ab1eu) target[0] = make_uint4(seen, seen, seen, seen);
}

// Runs of `bytes` from one place to another: pages to host memory, as an SM kernel moves them.
__global__ void __launch_bounds__(512) copy_segments(Segments s) {
    constexpr int kUnroll = 4;
    const int vectors = int(s.bytes / 16);
    for (i64 segment = blockIdx.x; segment < s.count; segment += gridDim.x) {
        const auto* source = reinterpret_cast<const uint4*>(static_cast<const char*>(s.source) +
                                                            s.source_offsets[segment]);
        auto* target = reinterpret_cast<uint4*>(static_cast<char*>(s.target) + s.target_offsets[segment]);
        for (int base = threadIdx.x; base < vectors; base += blockDim.x * kUnroll) {
            uint4 value[kUnroll];
#pragma unroll
            for (int i = 0; i < kUnroll; ++i) {
                const int at = base + i * int(blockDim.x);
                if (at < vectors) value[i] = __ldcg(source + at);
            }
#pragma unroll
            for (int i = 0; i < kUnroll; ++i) {
                const int at = base + i * int(blockDim.x);
                if (at < vectors) __stcg(target + at, value[i]);
            }
        }
    }
}

}  // namespace hisparse
