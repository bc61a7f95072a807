// The functions of ptx.cuh on the host. Layouts are those of the PTX ISA's figures: fragments of ldmatrix,
// mma.m16n8k16 and wgmma, and the swizzled matrix descriptor of wgmma.
#pragma once

#include "cuda_on_host.h"

namespace hisparse::ptx {

using emulation::block;

inline emulation::Fiber& self() { return block.fibers[block.running]; }

inline uint32_t shared_address(const void* pointer) {
    return uint32_t(static_cast<const unsigned char*>(pointer) - block.dynamic_shared) + emulation::kSharedBase;
}
inline const unsigned char* at_address(uint32_t address) {
    return block.dynamic_shared + address - emulation::kSharedBase;
}

// ---- copies that arrive at once or when they are waited for, by chance ------------------------------------
inline bool at_once() { return block.random() & 1; }
inline void finish_groups(emulation::Groups& groups, size_t pending) {
    while (groups.size() - 1 > pending) {
        for (const auto& copy : groups.front()) copy.perform();
        groups.erase(groups.begin());
    }
}
inline void copy16_or_zero(void* shared, const void* global, bool valid) {
    if (uintptr_t(shared) % 16 || uintptr_t(global) % 16) emulation::die("a copy is not aligned");
    const emulation::Copy copy{shared, valid ? global : nullptr, 16};
    at_once() ? copy.perform() : self().copies.back().push_back(copy);
}
inline void copy16(void* shared, const void* global) { copy16_or_zero(shared, global, true); }
inline void copy_commit() { self().copies.emplace_back(); }
template <int kPending>
void copy_wait() { finish_groups(self().copies, kPending); }

struct BulkBarrier {  // in the 8 bytes of an mbarrier
    int16_t pending, arrivals;
    int32_t bytes : 31;
    uint32_t phase : 1;

    void settle() {
        if (pending == 0 && bytes == 0) pending = arrivals, phase ^= 1;
    }
};
inline BulkBarrier& of(uint64_t* barrier) { return *reinterpret_cast<BulkBarrier*>(barrier); }
inline void barrier_init(uint64_t* barrier, int arrivals) {
    of(barrier) = BulkBarrier{int16_t(arrivals), int16_t(arrivals), 0, 0};
}
inline void barrier_init_visible() {}
inline void barrier_arrive_expect(uint64_t* barrier, int bytes) {
    of(barrier).bytes += bytes;
    --of(barrier).pending;
    of(barrier).settle();
}
inline void barrier_wait(uint64_t* barrier, int parity) {
    while (of(barrier).phase == uint32_t(parity)) {
        if (block.bulk.empty()) {
            emulation::yield(block.random() & 1);
            continue;
        }
        const size_t any = block.random() % block.bulk.size();
        const auto load = block.bulk[any];
        block.bulk.erase(block.bulk.begin() + long(any));
        load();
    }
}
inline void bulk_load(void* shared, const void* global, int bytes, uint64_t* barrier) {
    if (uintptr_t(shared) % 16 || uintptr_t(global) % 16 || bytes % 16) emulation::die("a bulk load is not aligned");
    const auto load = [=] {
        memcpy(shared, global, size_t(bytes));
        of(barrier).bytes -= bytes;
        of(barrier).settle();
    };
    at_once() ? load() : block.bulk.push_back(load);
}
inline void bulk_store(void* global, const void* shared, int bytes) {
    if (uintptr_t(shared) % 16 || uintptr_t(global) % 16 || bytes % 16) emulation::die("a bulk store is not aligned");
    self().stores.back().push_back({global, shared, size_t(bytes)});
}
inline void bulk_commit() { self().stores.emplace_back(); }
template <int kPending>
void bulk_wait_read() { finish_groups(self().stores, kPending); }
inline void bulk_wait_all() { finish_groups(self().stores, 0); }
inline void fence_async_proxy() {}

// ---- conversions -------------------------------------------------------------------------------------------
inline float e4m3(uint8_t code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    if (exponent == 15 && fraction == 7) return NAN;
    const float size = exponent == 0 ? std::ldexp(float(fraction), -9) : std::ldexp(float(8 + fraction), exponent - 10);
    return code & 0x80 ? -size : size;
}
inline uint32_t half_bits(float x) {  // for values that a half holds exactly
    const auto word = uint32_t(emulation::bits(x));
    const uint32_t size = word & 0x7fffffff;
    return (word >> 16 & 0x8000) | (size == 0 ? 0 : (size >> 13) - (112u << 10));
}
inline uint32_t e4m3_pair_to_half(uint16_t pair) {
    return half_bits(e4m3(uint8_t(pair))) | half_bits(e4m3(uint8_t(pair >> 8))) << 16;
}
inline float from_half(uint32_t half) {
    const uint32_t size = half & 0x7fff;
    const float x = size == 0 ? 0.0f : emulation::from_bits((size << 13) + (112u << 23));
    return half & 0x8000 ? -x : x;
}
inline void half_pair_to_float(uint32_t halves, float& low, float& high) {
    low = from_half(halves & 0xffff);
    high = from_half(halves >> 16);
}
inline uint32_t to_bf16(float x) {  // to the nearest, ties to even
    const auto word = uint32_t(emulation::bits(x));
    return (word + 0x7fff + (word >> 16 & 1)) >> 16;
}
inline float from_bf16(uint32_t half) { return emulation::from_bits(uint64_t(half & 0xffff) << 16); }
inline uint32_t float_pair_to_bf16(float low, float high) { return to_bf16(low) | to_bf16(high) << 16; }
inline float exp2_fast(float x) { return std::exp2(x); }

// ---- tensor cores ------------------------------------------------------------------------------------------
inline uint16_t half_at(uint64_t row, int column) {
    uint16_t value;
    memcpy(&value, reinterpret_cast<const uint16_t*>(row) + column, 2);
    return value;
}
inline void load_tiles(uint32_t (&tiles)[4], const void* row) {
    const int lane = int(threadIdx.x) % 32;
    const auto rows = emulation::exchange<1>({uint64_t(row)});
    for (int t = 0; t < 4; ++t) {
        const uint64_t mine = rows[t * 8 + lane / 4][0];
        tiles[t] = half_at(mine, lane % 4 * 2) | uint32_t(half_at(mine, lane % 4 * 2 + 1)) << 16;
    }
}
inline void load_tiles_transposed(uint32_t (&tiles)[4], const void* row) {
    const int lane = int(threadIdx.x) % 32;
    const auto rows = emulation::exchange<1>({uint64_t(row)});
    for (int t = 0; t < 4; ++t) {
        const int first = t * 8 + lane % 4 * 2;
        tiles[t] = half_at(rows[first][0], lane / 4) | uint32_t(half_at(rows[first + 1][0], lane / 4)) << 16;
    }
}
inline void mma_bf16(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const int lane = int(threadIdx.x) % 32;
    const auto all = emulation::exchange<6>({a[0], a[1], a[2], a[3], b0, b1});
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) {
            const uint64_t left = all[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            const uint64_t right = all[column * 4 + k % 8 / 2][4 + k / 8];
            sum[i] += from_bf16(uint32_t(left >> k % 2 * 16)) * from_bf16(uint32_t(right >> k % 2 * 16));
        }
    }
}

inline uint8_t operand_byte(uint64_t descriptor, int row, int k) {
    if (descriptor >> 62 != 1) emulation::die("only the 128-byte swizzle is known");
    const auto start = uint32_t(descriptor & 0x3fff) << 4, group = uint32_t(descriptor >> 32 & 0x3fff) << 4;
    const uint32_t address = start + uint32_t(row / 8) * group + uint32_t(row % 8) * 128 + uint32_t(k);
    return *at_address(address ^ (address >> 7 & 7) << 4);
}
inline void wgmma_begin() {}
template <int kCount>
void wgmma_e4m3(float (&d)[kCount], uint64_t a, uint64_t b, int add) {
    self().mma.push_back([&d, a, b, add] {
        const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32 % 4;
        static float table[256];
        if (table[0x38] == 0.0f) {
            for (int code = 0; code < 256; ++code) table[code] = e4m3(uint8_t(code));
        }
        for (int i = 0; i < kCount; ++i) {
            const int row = warp * 16 + lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            float sum = add ? d[i] : 0.0f;
            for (int k = 0; k < 32; ++k) sum += table[operand_byte(a, row, k)] * table[operand_byte(b, column, k)];
            d[i] = sum;
        }
    });
}
inline void wgmma_commit() {}
template <int kCount>
void wgmma_wait(float (&)[kCount]) {
    for (const auto& instruction : self().mma) instruction();
    self().mma.clear();
}

}  // namespace hisparse::ptx
