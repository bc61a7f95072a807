// Sparse MLA decode attention over selected rows of 656 bytes: a CTA takes 64 heads and a share of the
// selection, 64 rows at a time. Rows arrive by asynchronous copies, are dequantised to bfloat16, and go
// through mma.sync; a second kernel joins the shares. Production (FlashMLA) uses wgmma with shared
// dequantisation over a cluster: this kernel is an upper bound of its time, and says so in its name.
#pragma once

#include "device.cuh"
#include "ptx.cuh"

namespace hisparse {

constexpr int kAttentionThreads = 256;
constexpr int kHeadTile = 64;
constexpr int kRowTile = 64;
constexpr int kLatent = 512;                    // dimensions of the value, and of the key without rope
constexpr int kQueryDim = 576;                  // of the key
constexpr int kRowBytes656 = 656;               // 512 e4m3 | 4 float scales, one for 128 | 64 bfloat16
constexpr int kPitch = kQueryDim * 2 + 16;      // bytes; 16 more, so that 8 rows hit 32 different banks
constexpr int kWeightPitch = kRowTile * 2 + 16;

constexpr int attention_shared(int share_rows) {
    return 2 * kRowTile * kPitch + kRowTile * kRowBytes656 + kHeadTile * kWeightPitch + 4 * kHeadTile * 4 +
           share_rows * 4;
}

#ifdef HISPARSE_SM90
// 16 e4m3 values times `scale` to 16 bfloat16.
__device__ __forceinline__ void dequantise16(uint4 codes, float scale, uint4* target) {
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
    uint32_t pairs[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float low, high;
        ptx::half_pair_to_float(ptx::e4m3_pair_to_half(uint16_t(words[i / 2] >> (i % 2 * 16))), low, high);
        pairs[i] = ptx::float_pair_to_bf16(low * scale, high * scale);
    }
    target[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    target[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
}
#endif

__global__ void __launch_bounds__(kAttentionThreads, 1) attend(Attention a) {
#ifdef HISPARSE_SM90
    HISPARSE_DYNAMIC_SHARED(memory);
    unsigned char* queries = memory;                          // [64 heads][kPitch]
    unsigned char* keys = queries + kHeadTile * kPitch;       // [64 rows][kPitch]
    unsigned char* raw = keys + kRowTile * kPitch;            // [64 rows][656]
    unsigned char* weights = raw + kRowTile * kRowBytes656;   // [64 heads][kWeightPitch]
    auto* maxima = reinterpret_cast<float*>(weights + kHeadTile * kWeightPitch);  // [2][64]
    float* sums = maxima + 2 * kHeadTile;                                         // [2][64]
    int* chosen = reinterpret_cast<int*>(sums + 2 * kHeadTile);                   // [share]

    const int thread = threadIdx.x, lane = lane_id();
    const int head_warp = warp_id() % 4, half = warp_id() / 4;  // 16 heads; half of rows or of dimensions
    const i64 request = blockIdx.y;
    const int first_head = blockIdx.z * kHeadTile, heads = min(kHeadTile, int(a.heads) - first_head);
    const int tiles = int((a.k + kRowTile - 1) / kRowTile);
    const int first_tile = int(i64(tiles) * blockIdx.x / gridDim.x);
    const int last_tile = int(i64(tiles) * (blockIdx.x + 1) / gridDim.x);

    for (int i = thread; i < (last_tile - first_tile) * kRowTile; i += kAttentionThreads) {
        const int at = first_tile * kRowTile + i;
        chosen[i] = at < a.k ? a.rows[request * a.k + at] : -1;
    }
    __syncthreads();
    const auto fetch = [&](int tile) {
        constexpr int kVectors = kRowBytes656 / 16;
        const int* rows = chosen + (tile - first_tile) * kRowTile;
        for (int at = thread; at < kRowTile * kVectors; at += kAttentionThreads) {
            const int row = rows[at / kVectors];
            const uint8_t* source = a.pool + i64(max(row, 0)) * kRowBytes656 + at % kVectors * 16;
            ptx::copy16_or_zero(raw + at * 16, source, row >= 0);
        }
        ptx::copy_commit();
    };

    const uint16_t* query = a.queries + (request * a.heads + first_head) * kQueryDim;
    for (int at = thread; at < kHeadTile * (kQueryDim / 8); at += kAttentionThreads) {
        const int head = at / (kQueryDim / 8), part = at % (kQueryDim / 8);
        ptx::copy16_or_zero(queries + head * kPitch + part * 16, query + min(head, heads - 1) * kQueryDim + part * 8,
                            head < heads);
    }
    fetch(first_tile);

    // This thread's two heads are r and r + 8 of the warp's 16; its columns 8j + c and 8j + c + 1.
    const int low_head = head_warp * 16 + lane / 4, column = lane % 4 * 2;
    const float scale = float(a.scale * 1.4426950408889634);  // so that exp is exp2
    constexpr float kNone = -INFINITY;
    float top[2] = {kNone, kNone}, sum[2] = {0.0f, 0.0f};
    float output[kLatent / 2 / 8][4];  // 16 heads x 256 dimensions a warp
#pragma unroll
    for (auto& tile : output) tile[0] = tile[1] = tile[2] = tile[3] = 0.0f;

    for (int tile = first_tile; tile < last_tile; ++tile) {
        ptx::copy_wait<0>();
        __syncthreads();  // the raw rows have come, and the keys before have been used
        for (int at = thread; at < kRowTile * kLatent / 16; at += kAttentionThreads) {
            const int row = at / (kLatent / 16), part = at % (kLatent / 16);
            const unsigned char* source = raw + row * kRowBytes656;
            const float row_scale = reinterpret_cast<const float*>(source + kLatent)[part / 8];
            dequantise16(reinterpret_cast<const uint4*>(source)[part], row_scale,
                         reinterpret_cast<uint4*>(keys + row * kPitch + part * 32));
        }
        for (int at = thread; at < kRowTile * 8; at += kAttentionThreads) {
            const int row = at / 8, part = at % 8;
            *reinterpret_cast<uint4*>(keys + row * kPitch + kLatent * 2 + part * 16) =
                reinterpret_cast<const uint4*>(raw + row * kRowBytes656 + kLatent + 16)[part];
        }
        __syncthreads();
        if (tile + 1 < last_tile) fetch(tile + 1);

        // Scores of 16 heads x 32 rows.
        float score[4][4] = {};
        for (int step = 0; step < kQueryDim / 16; ++step) {
            uint32_t q[4];
            ptx::load_tiles(q, queries + (head_warp * 16 + lane % 16) * kPitch + step * 32 + lane / 16 * 16);
#pragma unroll
            for (int pair = 0; pair < 2; ++pair) {
                uint32_t key[4];  // two column tiles of 8 rows, each in two parts of 8 dimensions
                const int row = half * 32 + pair * 16 + lane / 16 * 8 + lane % 8;
                ptx::load_tiles(key, keys + row * kPitch + step * 32 + lane / 8 % 2 * 16);
                ptx::mma_bf16(score[pair * 2], q, key[0], key[1]);
                ptx::mma_bf16(score[pair * 2 + 1], q, key[2], key[3]);
            }
        }

        const int* rows = chosen + (tile - first_tile) * kRowTile + half * 32;
        float most[2] = {kNone, kNone};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                score[j][i] = rows[j * 8 + column + i % 2] >= 0 ? score[j][i] * scale : kNone;
                most[i / 2] = fmaxf(most[i / 2], score[j][i]);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            most[i] = fmaxf(most[i], __shfl_xor_sync(kFullWarp, most[i], 1));
            most[i] = fmaxf(most[i], __shfl_xor_sync(kFullWarp, most[i], 2));
            if (lane % 4 == 0) maxima[half * kHeadTile + low_head + 8 * i] = most[i];
        }
        __syncthreads();
        float shrink[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float both = fmaxf(maxima[low_head + 8 * i], maxima[kHeadTile + low_head + 8 * i]);
            const float now = fmaxf(top[i], both);
            // Nothing valid so far: any finite reference gives weights of 0.
            const float reference = now == kNone ? 0.0f : now;
            shrink[i] = ptx::exp2_fast(top[i] - reference);
            top[i] = now;
            sum[i] *= shrink[i];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float first = ptx::exp2_fast(score[j][2 * i] - reference);
                const float second = ptx::exp2_fast(score[j][2 * i + 1] - reference);
                sum[i] += first + second;
                *reinterpret_cast<uint32_t*>(weights + (low_head + 8 * i) * kWeightPitch +
                                             (half * 32 + j * 8 + column) * 2) =
                    ptx::float_pair_to_bf16(first, second);
            }
        }
#pragma unroll
        for (auto& part : output) {
            part[0] *= shrink[0], part[1] *= shrink[0];
            part[2] *= shrink[1], part[3] *= shrink[1];
        }
        __syncthreads();

        // Output of 16 heads x 256 dimensions.
#pragma unroll
        for (int step = 0; step < kRowTile / 16; ++step) {
            uint32_t w[4];
            ptx::load_tiles(w, weights + (head_warp * 16 + lane % 16) * kWeightPitch + step * 32 + lane / 16 * 16);
#pragma unroll
            for (int pair = 0; pair < kLatent / 2 / 16; ++pair) {
                uint32_t value[4];  // rows 0-7 and 8-15 of dimensions 0-7, then of 8-15
                ptx::load_tiles_transposed(value, keys + (step * 16 + lane % 16) * kPitch +
                                                      (half * 256 + pair * 16 + lane / 16 * 8) * 2);
                ptx::mma_bf16(output[pair * 2], w, value[0], value[1]);
                ptx::mma_bf16(output[pair * 2 + 1], w, value[2], value[3]);
            }
        }
    }

#pragma unroll
    for (int i = 0; i < 2; ++i) {
        sum[i] += __shfl_xor_sync(kFullWarp, sum[i], 1);
        sum[i] += __shfl_xor_sync(kFullWarp, sum[i], 2);
        if (lane % 4 == 0) sums[half * kHeadTile + low_head + 8 * i] = sum[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int head = low_head + 8 * i;
        if (head >= heads) continue;
        const float total = sums[head] + sums[kHeadTile + head];
        const float part = total > 0.0f ? 1.0f / total : 0.0f;
        const float lse = total > 0.0f ? top[i] + log2f(total) : kNone;
        const i64 at = request * a.heads + first_head + head;
        const i64 split_at = i64(blockIdx.x) * a.requests * a.heads + at;
        if (half == 0 && lane % 4 == 0) {
            if (gridDim.x == 1) {
                a.lse[at] = lse * 0.6931471805599453f;
            } else {
                a.partial_lse[split_at] = lse;
            }
        }
#pragma unroll
        for (int j = 0; j < kLatent / 2 / 8; ++j) {
            const int dimension = half * 256 + j * 8 + column;
            const float first = output[j][2 * i] * part, second = output[j][2 * i + 1] * part;
            if (gridDim.x == 1) {
                *reinterpret_cast<uint32_t*>(a.output + at * kLatent + dimension) =
                    ptx::float_pair_to_bf16(first, second);
            } else {
                *reinterpret_cast<float2*>(a.partial_output + split_at * kLatent + dimension) =
                    make_float2(first, second);
            }
        }
    }
#endif
}

constexpr int kJoinThreads = 128;

// One CTA a request and head: the shares, weighted by their sums.
__global__ void __launch_bounds__(kJoinThreads) join_shares(Attention a) {
    const i64 at = blockIdx.x, rows = a.requests * a.heads;
    float top = -INFINITY;
    for (int split = 0; split < a.splits; ++split) top = fmaxf(top, a.partial_lse[split * rows + at]);
    float total = 0.0f;
    float4 output = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int split = 0; split < a.splits; ++split) {
        const float lse = a.partial_lse[split * rows + at];
        if (lse == -INFINITY) continue;
        const float weight = ptx::exp2_fast(lse - top);
        total += weight;
        const float4 part =
            reinterpret_cast<const float4*>(a.partial_output + (split * rows + at) * kLatent)[threadIdx.x];
        output.x += weight * part.x, output.y += weight * part.y;
        output.z += weight * part.z, output.w += weight * part.w;
    }
    const float scale = total > 0.0f ? 1.0f / total : 0.0f;
    reinterpret_cast<uint2*>(a.output + at * kLatent)[threadIdx.x] =
        make_uint2(ptx::float_pair_to_bf16(output.x * scale, output.y * scale),
                   ptx::float_pair_to_bf16(output.z * scale, output.w * scale));
    if (threadIdx.x == 0) a.lse[at] = (total > 0.0f ? top + log2f(total) : -INFINITY) * 0.6931471805599453f;
}

}  // namespace hisparse
