// Which selected rows are on the GPU, which slots the missing ones take: exact LRU, one CTA a request.
//
// 1. Translate positions to host rows; pages that are resident are answered at once. Nothing left: done.
// 2. Put the rest into a hash table; walk the hot buffer in LRU order: a slot whose row is wanted is a
//    hit, the others are stale, oldest first.
// 3. The misses, in the order of the selection, take the oldest stale slots.
// 4. New LRU order: stale slots that were not taken, those just taken, the hits.
#pragma once

#include "gather.cuh"

namespace hisparse {

constexpr int kResolveThreads = 1024;
constexpr int kMostHotRows = 32 * kResolveThreads;  // a bit of hit_bits a chunk; and slots are int16
constexpr int kMostSelected = 32 * kResolveThreads;

__host__ __device__ constexpr int chunks_of(i64 items) {
    return int((items + kResolveThreads - 1) / kResolveThreads);
}
__host__ __device__ constexpr int hash_slots(i64 k) {  // a power of two, at most half full
    int slots = 64;
    while (slots < 2 * k) slots *= 2;
    return slots;
}

struct ResolveShared {
    int *keys, *wanted, *hot_counts, *hot_totals, *miss_counts, *miss_totals, *scalars;
    int16_t *places, *victims, *order;

    __host__ __device__ static i64 bytes(i64 k, i64 hot_rows) {
        const i64 ints = hash_slots(k) + k + 33 * (chunks_of(hot_rows) + chunks_of(k)) + 4;
        const i64 shorts = hash_slots(k) + k + hot_rows;
        return 4 * ints + 2 * shorts;
    }

    __device__ ResolveShared(unsigned char* memory, int k, int hot_rows) {
        const int hot_chunks = chunks_of(hot_rows), miss_chunks = chunks_of(k), slots = hash_slots(k);
        keys = reinterpret_cast<int*>(memory);
        wanted = keys + slots;
        hot_counts = wanted + k;
        hot_totals = hot_counts + 32 * hot_chunks;
        miss_counts = hot_totals + hot_chunks;
        miss_totals = miss_counts + 32 * miss_chunks;
        scalars = miss_totals + miss_chunks;
        places = reinterpret_cast<int16_t*>(scalars + 4);
        victims = places + slots;
        order = victims + k;
    }
};

__device__ __forceinline__ unsigned hash_of(int row, int slots) {
    return (unsigned(row) * 2654435769u) >> 7 & unsigned(slots - 1);
}

__device__ __forceinline__ int row_in(const int* blocks, int position) {
    return blocks[position / kBlockTokens] * kBlockTokens + position % kBlockTokens;
}

template <int kRowBytes>  // 0: leave the rows to another kernel
__global__ void __launch_bounds__(kResolveThreads) resolve(Resolve r) {
    HISPARSE_DYNAMIC_SHARED(memory);
    const int k = int(r.k), hot_rows = int(r.hot_rows), slots = hash_slots(k), thread = threadIdx.x;
    const i64 request = blockIdx.x;
    const ResolveShared shared(memory, k, hot_rows);
    int *pending = shared.scalars, *resident = shared.scalars + 1;
    int* rows = r.rows + request * k;
    const int* host_blocks = r.host_blocks + request * r.blocks;
    const int* resident_blocks = r.resident_blocks + request * r.blocks;
    const int* hot_blocks = r.hot_blocks + request * (hot_rows / kBlockTokens);
    int* owners = r.owners + request * hot_rows;
    int16_t* lru = r.lru + request * hot_rows;

    for (int i = thread; i < slots; i += kResolveThreads) shared.keys[i] = -1;
    if (thread < 4) shared.scalars[thread] = 0;
    __syncthreads();

    for (int base = 0; base < k; base += kResolveThreads) {
        const int i = base + thread;
        const int position = i < k ? r.selected[request * k + i] : -1;
        const int block = position >= 0 ? resident_blocks[position / kBlockTokens] : -1;
        const bool is_wanted = position >= 0 && block < 0;
        int host_row = -1;
        if (is_wanted) {
            host_row = row_in(host_blocks, position);
            unsigned at = hash_of(host_row, slots);
            while (atomicCAS(shared.keys + at, -1, host_row) != -1) at = (at + 1) & unsigned(slots - 1);
            shared.places[at] = int16_t(i);
        }
        if (i < k) {
            shared.wanted[i] = host_row;
            rows[i] = block >= 0 ? block * kBlockTokens + position % kBlockTokens : -1;
        }
        append(pending, is_wanted);
        append(resident, block >= 0);
    }
    __syncthreads();
    const int asked = *pending;
    if (asked == 0) {  // all on the GPU: the LRU order stays
        if (thread == 0) {
            r.miss_counts[request] = 0;
            atomicAdd(r.totals, static_cast<unsigned long long>(*resident));
        }
        return;
    }

    StableRanks stale_ranks{shared.hot_counts, shared.hot_totals};
    uint32_t hit_bits = 0;
    constexpr int kAhead = 4;  // chunks whose slots and owners are under way together
    for (int first = 0; first < chunks_of(hot_rows); first += kAhead) {
        int slot[kAhead], owner[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            const int i = (first + j) * kResolveThreads + thread;
            slot[j] = i < hot_rows ? lru[i] : -1;
        }
#pragma unroll
        for (int j = 0; j < kAhead; ++j) owner[j] = slot[j] >= 0 ? owners[slot[j]] : -1;
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            const int chunk = first + j;
            if (chunk >= chunks_of(hot_rows)) break;
            bool hit = false;
            if (owner[j] >= 0) {
                unsigned at = hash_of(owner[j], slots);
                int key = shared.keys[at];
                while (key != -1 && key != owner[j]) {
                    at = (at + 1) & unsigned(slots - 1);
                    key = shared.keys[at];
                }
                hit = key == owner[j];
                if (hit) {
                    const int place = shared.places[at];
                    shared.wanted[place] = -1;
                    rows[place] = row_in(hot_blocks, slot[j]);
                    hit_bits |= 1u << chunk;
                }
            }
            if (slot[j] >= 0) shared.order[chunk * kResolveThreads + thread] = int16_t(slot[j]);
            stale_ranks.publish(chunk, slot[j] >= 0 && !hit);
        }
    }
    stale_ranks.scan(chunks_of(hot_rows));

    int stale = 0;
    for (int chunk = 0; chunk < chunks_of(hot_rows); ++chunk) stale += shared.hot_totals[chunk];
    const int hits = hot_rows - stale, misses = asked - hits;

    for (int chunk = 0; chunk < chunks_of(hot_rows); ++chunk) {
        const int i = chunk * kResolveThreads + thread;
        const bool is_stale = i < hot_rows && (hit_bits >> chunk & 1) == 0;
        const int rank = stale_ranks.rank(chunk, is_stale);
        if (i >= hot_rows) continue;
        const int16_t slot = shared.order[i];
        if (!is_stale) {
            lru[stale + i - rank] = slot;  // the hits keep their order, behind all others
        } else if (rank < misses) {
            shared.victims[rank] = slot;
            lru[stale - misses + rank] = slot;
        } else {
            lru[rank - misses] = slot;
        }
    }

    StableRanks miss_ranks{shared.miss_counts, shared.miss_totals};
    for (int chunk = 0; chunk < chunks_of(k); ++chunk) {
        const int i = chunk * kResolveThreads + thread;
        miss_ranks.publish(chunk, i < k && shared.wanted[i] >= 0);
    }
    miss_ranks.scan(chunks_of(k));  // and makes the victims visible
    for (int chunk = 0; chunk < chunks_of(k); ++chunk) {
        const int i = chunk * kResolveThreads + thread;
        const int host_row = i < k ? shared.wanted[i] : -1;
        const int rank = miss_ranks.rank(chunk, host_row >= 0);
        if (host_row < 0) continue;
        const int slot = shared.victims[rank];
        const int gpu_row = row_in(hot_blocks, slot);
        owners[slot] = host_row;
        rows[i] = gpu_row;
        r.miss_sources[request * k + rank] = host_row;
        r.miss_targets[request * k + rank] = gpu_row;
    }
    if (thread == 0) {
        r.miss_counts[request] = misses;
        atomicAdd(r.totals, static_cast<unsigned long long>(*resident));
        atomicAdd(r.totals + 1, static_cast<unsigned long long>(hits));
        atomicAdd(r.totals + 2, static_cast<unsigned long long>(misses));
    }

    if constexpr (kRowBytes > 0) {
        __syncthreads();  // the list of misses is complete
        copy_rows<kRowBytes, 1>(static_cast<uint4*>(r.gpu_pool), static_cast<const uint4*>(r.host_pool),
                                r.miss_targets + request * k, r.miss_sources + request * k, misses, warp_id(),
                                kResolveThreads / 32);
    }
}

}  // namespace hisparse
