// The C ABI between abi.py and the kernels: an operation is one launch, described by plain data.
// Every field is 8 bytes wide, so that both sides agree without padding rules. "GPU" pointers are
// device memory, "host" pointers pinned host memory that the GPU can read (mapped, unified addresses).
#pragma once

#include <cstddef>
#include <cstdint>

namespace hisparse {

using i64 = int64_t;

constexpr int kBlockTokens = 64;  // tokens a page; FlashMLA and the indexer cache force it

enum class Kind : i64 {
    kNull,
    kFill,
    kStream,
    kCopy,
    kCopyPitched,
    kCopyBatch,
    kSegments,
    kGather,
    kGatherBulk,
    kResolve,
    kTopk,
    kIndexer,
    kAttention,
};

// target word = (hash(word index, seed) & keep) | ones, in `chunks` runs of chunk_bytes, stride_bytes apart.
struct Fill {
    uint32_t* target;
    i64 chunk_bytes, stride_bytes, chunks, keep, ones, seed;
};

enum Direction : i64 { kRead, kWrite, kReadWrite };

// One pass over GPU memory: the bandwidth of HBM.
struct Stream {
    void* target;
    const void* source;
    i64 bytes, direction, ctas;
};

// One cudaMemcpyAsync.
struct Copy {
    void* target;
    const void* source;
    i64 bytes;
};

// One cudaMemcpy2DAsync.
struct CopyPitched {
    void* target;
    const void* source;
    i64 target_pitch, source_pitch, width, height;
};

// One cudaMemcpyBatchAsync; the three arrays are ordinary host memory.
struct CopyBatch {
    void** targets;
    const void** sources;
    const size_t* sizes;
    i64 count;
};

// `count` runs of `bytes`, each from its offset in source to its offset in target, by loads and stores.
struct Segments {
    void* target;
    const void* source;
    const i64* target_offsets;
    const i64* source_offsets;
    i64 bytes, count, ctas;
};

// Row source_rows[r][i] of the host pool to row target_rows[r][i] of the GPU pool, i < counts[r].
struct Gather {
    void* target;
    const void* source;
    const int* target_rows;  // [requests, list]
    const int* source_rows;  // [requests, list]
    const int* counts;       // [requests]
    i64 requests, list, row_bytes, ctas, threads, rows_per_warp;
};

// Which of the selected rows are on the GPU, which slots the others take, and the new LRU order.
struct Resolve {
    const int* selected;         // [requests, k] positions, all different, -1: none
    const int* host_blocks;      // [requests, blocks] host block of each page
    const int* resident_blocks;  // [requests, blocks] GPU block of each page, -1: not on the GPU
    const int* hot_blocks;       // [requests, hot_rows / 64] GPU block behind each run of slots
    int* owners;                 // [requests, hot_rows] host row in each slot, -1: empty
    int16_t* lru;                // [requests, hot_rows] slots, oldest first
    int* rows;                   // out [requests, k] GPU row of each selected position, -1: none
    int* miss_sources;           // out [requests, k] host rows to fetch
    int* miss_targets;           // out [requests, k] GPU rows they go to
    int* miss_counts;            // out [requests]
    unsigned long long* totals;  // in, out [3] resident, hit and missed rows, added up
    i64 requests, k, hot_rows, blocks;
    // Fused: the same CTA also fetches the rows. row_bytes 0: metadata only.
    void* gpu_pool;
    const void* host_pool;
    i64 row_bytes;
};

// Indices of the k largest scores of each row, in any order; -1 behind those of a shorter row.
struct Topk {
    const float* scores;  // [requests, stride]
    const int* lengths;   // [requests]
    int* selected;        // out [requests, k]
    uint32_t* histogram;  // scratch [requests, 2048], zero before and after
    int* counters;        // scratch [requests, 4], zero before and after
    uint2* candidates;    // scratch [requests, stride]
    i64 requests, stride, k, ctas;  // ctas a request; 1: one launch, more: two
};

// score[t] = scale[t] * sum over heads of weight[h] * max(0, q[h] . key[t]).
struct Indexer {
    const uint8_t* queries;    // e4m3 [requests, heads, 128]
    const float* weights;      // [requests, heads], the scale of the query folded in
    const uint8_t* keys;       // pages of 64 x 128 e4m3, then 64 float scales: 8448 bytes
    const int* blocks;         // [requests, blocks_per_request]
    const int* lengths;        // [requests]
    float* scores;             // out [requests, stride]
    i64 requests, heads, blocks_per_request, stride, ctas;
};

// Attention of one query token over the selected rows: 512 e4m3, 4 float scales, 64 bfloat16 each.
struct Attention {
    const uint16_t* queries;   // bfloat16 [requests, heads, 576]
    const uint8_t* pool;       // rows of 656 bytes
    const int* rows;           // [requests, k], -1: none
    uint16_t* output;          // out, bfloat16 [requests, heads, 512]
    float* lse;                // out [requests, heads], natural logarithm
    float* partial_output;     // scratch [splits, requests, heads, 512]
    float* partial_lse;        // scratch [splits, requests, heads], base 2
    i64 requests, heads, k, splits;
    double scale;
};

struct Op {
    Kind kind;
    i64 slice;   // the graph it belongs to; slices run one after the other
    i64 stream;  // 0 or 1; the two streams of a slice run side by side
    union {
        Fill fill;
        Stream stream_pass;
        Copy copy;
        CopyPitched copy_pitched;
        CopyBatch copy_batch;
        Segments segments;
        Gather gather;
        Resolve resolve;
        Topk topk;
        Indexer indexer;
        Attention attention;
    };
};

constexpr int kStreams = 2;

struct Timing {
    i64 slices;     // launch i runs slice i % slices
    i64 launches;   // recorded launches, behind `warmup` that are not
    i64 warmup;
    i64 graphs;     // 1: each slice and stream is a CUDA graph; 0: launched one by one
    double most_s;  // stop early when this much wall time is gone
    const Op* before;  // launched ahead of each slice and not timed, such as a pass that empties the L2
};

struct Device {
    char name[256];
    char uuid[64];
    char pci_bus[64];
    i64 major, minor, sms, l2_bytes, memory_bytes, driver, runtime;
};

}  // namespace hisparse
