// From an operation to its launch: grids, shared memory and template arguments, in one place for checks,
// timings and the host emulation. Include after a definition of
//   template <typename Kernel, typename Argument>
//   int start(Kernel kernel, dim3 grid, int threads, i64 shared_bytes, Queue queue, const Argument&);
// and of refuse(text), which records why nothing was launched.
#pragma once

#include "attention.cuh"
#include "gather.cuh"
#include "indexer.cuh"
#include "resolver.cuh"
#include "stream.cuh"
#include "topk.cuh"

namespace hisparse {

inline dim3 grid_of(i64 x, i64 y = 1, i64 z = 1) { return dim3(unsigned(x), unsigned(y), unsigned(z)); }

template <int kRowBytes>
int launch_gather(const Gather& g, Queue queue) {
    const dim3 grid = grid_of(g.requests, g.ctas);
    if (g.threads % 32 != 0 || g.threads < 32 || g.threads > (g.rows_per_warp == 1 ? 1024 : 512)) {
        return refuse("a gather has whole warps, at most 1024 threads a CTA, 512 with 4 rows a warp");
    }
    if (g.rows_per_warp == 1) return start(gather_rows<kRowBytes, 1>, grid, int(g.threads), 0, queue, g);
    if (g.rows_per_warp == 4) return start(gather_rows<kRowBytes, 4>, grid, int(g.threads), 0, queue, g);
    return refuse("a gather keeps 1 or 4 rows a warp in flight");
}

inline int launch(const Gather& g, Queue queue) {
    if (g.row_bytes == 576) return launch_gather<576>(g, queue);
    if (g.row_bytes == 656) return launch_gather<656>(g, queue);
    if (g.row_bytes == 1152) return launch_gather<1152>(g, queue);
    return refuse("a gather takes rows of 576, 656 or 1152 bytes");
}

inline int launch(const Resolve& r, Queue queue) {
    if (r.k < 1 || r.k > r.hot_rows || r.hot_rows >= kMostHotRows || r.hot_rows % kBlockTokens != 0) {
        return refuse("a resolver takes 1 to hot_rows rows, and hot_rows below 32768 in whole blocks");
    }
    const i64 shared = ResolveShared::bytes(r.k, r.hot_rows);
    const auto with = [&](auto kernel) {
        return start(kernel, grid_of(r.requests), kResolveThreads, shared, queue, r);
    };
    if (r.row_bytes == 0) return with(resolve<0>);
    if (r.row_bytes == 576) return with(resolve<576>);
    if (r.row_bytes == 656) return with(resolve<656>);
    if (r.row_bytes == 1152) return with(resolve<1152>);
    return refuse("a resolver fetches rows of 576, 656 or 1152 bytes, or none (0)");
}

inline int launch(const Topk& t, Queue queue) {
    if (t.stride % 4 != 0) return refuse("scores lie in rows of whole 16 bytes");
    const dim3 grid = grid_of(t.ctas, t.requests);
    if (t.ctas == 1) return start(topk_select<true>, grid, kTopkThreads, 0, queue, t);
    const int failed = start(topk_histogram, grid, kTopkThreads, 0, queue, t);
    return failed != 0 ? failed : start(topk_select<false>, grid, kTopkThreads, 0, queue, t);
}

inline int launch(const Attention& a, Queue queue) {
    const i64 tiles = (a.k + kRowTile - 1) / kRowTile;
    if (a.splits < 1 || a.splits > tiles) return refuse("a share of the selection is 64 rows at least");
    const i64 share = (tiles + a.splits - 1) / a.splits * kRowTile;
    const dim3 grid = grid_of(a.splits, a.requests, (a.heads + kHeadTile - 1) / kHeadTile);
    const int failed = start(attend, grid, kAttentionThreads, attention_shared(int(share)), queue, a);
    if (failed != 0 || a.splits == 1) return failed;
    return start(join_shares, grid_of(a.requests * a.heads), kJoinThreads, 0, queue, a);
}

inline int launch(const Indexer& x, Queue queue) {
    const dim3 grid = grid_of(x.ctas, x.requests);
    const auto with = [&](auto kernel) {
        return start(kernel, grid, kIndexerThreads, indexer_shared(int(x.heads)), queue, x);
    };
    if (x.heads == 32) return with(indexer_scores<32>);
    if (x.heads == 64) return with(indexer_scores<64>);
    return refuse("the indexer has 32 or 64 heads");
}

inline int launch(const Fill& f, Queue queue) {
    const i64 ctas = (f.chunk_bytes / 4 * f.chunks + 511) / 512;
    return start(fill_words, grid_of(ctas < 1024 ? ctas : 1024), 512, 0, queue, f);
}

inline int launch(const Stream& s, Queue queue) {
    const auto with = [&](auto kernel) { return start(kernel, grid_of(s.ctas), 512, 0, queue, s); };
    if (s.direction == kRead) return with(stream_pass<kRead>);
    if (s.direction == kWrite) return with(stream_pass<kWrite>);
    return with(stream_pass<kReadWrite>);
}

// Everything that is a kernel; copies by the copy engines are the caller's.
inline int launch_kernel_of(const Op& op, Queue queue) {
    switch (op.kind) {
        case Kind::kNull: return start(null_kernel, grid_of(1), 32, 0, queue);
        case Kind::kFill: return launch(op.fill, queue);
        case Kind::kStream: return launch(op.stream_pass, queue);
        case Kind::kSegments: return start(copy_segments, grid_of(op.segments.ctas), 512, 0, queue, op.segments);
        case Kind::kGather: return launch(op.gather, queue);
        case Kind::kGatherBulk:
            return start(gather_rows_bulk, grid_of(op.gather.requests, op.gather.ctas), 32,
                         gather_bulk_shared(op.gather.row_bytes), queue, op.gather);
        case Kind::kResolve: return launch(op.resolve, queue);
        case Kind::kTopk: return launch(op.topk, queue);
        case Kind::kIndexer: return launch(op.indexer, queue);
        case Kind::kAttention: return launch(op.attention, queue);
        default: return refuse("an operation of an unknown kind");
    }
}

}  // namespace hisparse
