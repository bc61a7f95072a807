// CUDA C++ on the host: a block's threads are fibers that take turns at random, warps running far ahead of
// others or in step with them, so that a missing barrier shows; blocks run one after the other. What is asynchronous on the GPU (cp.async, bulk copies)
// happens at once or as late as its wait allows, by chance, so that a missing wait shows, too.
#pragma once

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define HISPARSE_SM90 1
#define HISPARSE_SM90A 1
#define HISPARSE_DYNAMIC_SHARED(name) unsigned char* name = emulation::block.dynamic_shared

struct uint2 { uint32_t x, y; };
struct uint4 { uint32_t x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

constexpr size_t kStackBytes = 128 << 10;
constexpr unsigned kSharedBase = 1024;  // as on sm_90: the first KiB is the system's

struct Barrier {
    int expected = 0, arrived = 0, generation = 0;
};

struct Copy {
    void* target;
    const void* source;  // null: zeros
    size_t bytes;
    void perform() const { source ? (void)memcpy(target, source, bytes) : (void)memset(target, 0, bytes); }
};

using Groups = std::vector<std::vector<Copy>>;

struct Fiber {
    ucontext_t entry;
    jmp_buf where;
    int next = 0, last = 0;  // the ring of its warp's lanes that live
    void* stack = nullptr;
    Groups copies{1}, stores{1};             // committed groups, and the open one last
    std::vector<std::function<void()>> mma;  // wgmma under way
};

struct Warp {
    Barrier barrier;
    uint64_t slots[2][32][6];
    int current = 0;      // the lane to go on with
    int at_block_barrier = 0;
};

struct Block {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<int> alive;  // warps
    Barrier barrier;
    std::function<void()> body;
    unsigned char* dynamic_shared = nullptr;
    std::vector<std::function<void()>> bulk;  // loads under way
    int running = 0;
    unsigned wander = 0;  // one turn in so many goes to another warp though it need not; 0: none
    long long idle = 0;
    jmp_buf home;
    std::mt19937 random{1};
};
inline Block block;

[[noreturn]] inline void die(const char* why) {
    fprintf(stderr, "emulation: %s\n", why);
    abort();
}

inline Warp& warp() { return block.warps[block.running / 32]; }

void run_fiber();

inline void resume(int thread) {
    block.running = thread;
    Fiber& fiber = block.fibers[thread];
    threadIdx = dim3(unsigned(thread), 0, 0);
    if (fiber.stack) _longjmp(fiber.where, 1);
    fiber.stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1, 0);
    if (fiber.stack == MAP_FAILED) die("no memory for the stacks");
    getcontext(&fiber.entry);
    fiber.entry.uc_stack.ss_sp = fiber.stack;
    fiber.entry.uc_stack.ss_size = kStackBytes;
    fiber.entry.uc_link = nullptr;
    makecontext(&fiber.entry, run_fiber, 0);
    setcontext(&fiber.entry);
}

inline void resume_any_warp() { resume(block.warps[block.alive[block.random() % block.alive.size()]].current); }

inline void release(Barrier& barrier) {
    barrier.arrived = 0;
    ++barrier.generation;
    block.idle = 0;
    if (&barrier == &block.barrier) {
        for (Warp& w : block.warps) w.at_block_barrier = 0;
    }
}

inline void leave() {  // this thread is done with its block
    const int self = block.running, next = block.fibers[self].next;
    for (Barrier* barrier : {&block.barrier, &warp().barrier}) {
        if (--barrier->expected == barrier->arrived && barrier->arrived > 0) release(*barrier);
    }
    if (_setjmp(block.fibers[self].where) != 0) return;
    if (next != self) {
        const int last = block.fibers[self].last;
        block.fibers[last].next = next;
        block.fibers[next].last = last;
        resume(next);
    }
    block.alive.erase(std::find(block.alive.begin(), block.alive.end(), self / 32));
    if (block.alive.empty()) _longjmp(block.home, 1);
    resume_any_warp();
}

inline void run_fiber() {
    for (;;) {  // a block each time
        block.body();
        leave();
    }
}

// Lets others run: lanes of this warp, which run ahead of the other warps, or now and then any warp.
inline void yield(bool in_warp) {
    if (++block.idle > 100'000'000) die("deadlock");
    if (_setjmp(block.fibers[block.running].where) != 0) return;
    warp().current = block.running;
    if (in_warp && (block.wander == 0 || block.random() % block.wander != 0)) resume(block.fibers[block.running].next);
    resume_any_warp();
}

inline bool arrive(Barrier& barrier) {  // true: all are there
    if (++barrier.arrived < barrier.expected) return false;
    release(barrier);
    return true;
}

inline void wait_for_warp() {
    Barrier& barrier = warp().barrier;
    const int generation = barrier.generation;
    if (arrive(barrier)) return;
    while (barrier.generation == generation) yield(true);
}

inline void wait_for_block() {
    Warp& mine = warp();
    const int generation = block.barrier.generation;
    ++mine.at_block_barrier;
    if (arrive(block.barrier)) return;
    while (block.barrier.generation == generation) yield(mine.at_block_barrier < mine.barrier.expected);
}

// All lanes' words, after all have given theirs.
template <int kWords>
const uint64_t (*exchange(const uint64_t (&words)[kWords]))[6] {
    Warp& w = warp();
    const int turn = w.barrier.generation & 1;
    for (int i = 0; i < kWords; ++i) w.slots[turn][block.running % 32][i] = words[i];
    wait_for_warp();
    return w.slots[turn];
}

inline void run_block(int threads) {
    if (block.fibers.empty()) block.fibers.resize(1024);
    block.warps.assign(size_t(threads + 31) / 32, Warp{});
    block.alive.clear();
    block.barrier = Barrier{threads};
    block.bulk.clear();
    block.idle = 0;
    block.wander = block.random() % 2 * 32;
    for (int first = 0; first < threads; first += 32) {
        std::vector<int> lanes(size_t(std::min(32, threads - first)));
        for (size_t i = 0; i < lanes.size(); ++i) lanes[i] = first + int(i);
        std::shuffle(lanes.begin(), lanes.end(), block.random);
        Warp& w = block.warps[first / 32];
        w.barrier.expected = int(lanes.size());
        w.current = lanes[0];
        block.alive.push_back(first / 32);
        for (size_t i = 0; i < lanes.size(); ++i) {
            Fiber& fiber = block.fibers[lanes[i]];
            fiber.next = lanes[(i + 1) % lanes.size()];
            fiber.last = lanes[(i + lanes.size() - 1) % lanes.size()];
            fiber.copies.assign(1, {});
            fiber.stores.assign(1, {});
            fiber.mma.clear();
        }
    }
    if (_setjmp(block.home) == 0) resume_any_warp();
}

template <typename... Parameter>
void run_grid(void (*kernel)(Parameter...), dim3 grid, int threads, size_t shared_bytes,
              Parameter... argument) {
    static std::vector<unsigned char> memory(256 << 10);
    block.dynamic_shared = reinterpret_cast<unsigned char*>((uintptr_t(memory.data()) + 1023) & ~uintptr_t(1023));
    if (shared_bytes > 227 << 10) die("more shared memory than a CTA can have");
    gridDim = grid;
    blockDim = dim3(unsigned(threads));
    block.body = [&] { kernel(argument...); };
    for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
                memset(block.dynamic_shared, 0xcd, shared_bytes);
                run_block(threads);
            }
}

inline uint64_t bits(float x) {
    uint32_t word;
    memcpy(&word, &x, 4);
    return word;
}
inline float from_bits(uint64_t word) {
    const auto low = uint32_t(word);
    float x;
    memcpy(&x, &low, 4);
    return x;
}

}  // namespace emulation

// ---- CUDA's built-in functions -------------------------------------------------------------------------
inline void __syncthreads() { emulation::wait_for_block(); }
inline void __syncwarp() { emulation::wait_for_warp(); }
inline void __threadfence() {}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline uint32_t __float_as_uint(float x) { return uint32_t(emulation::bits(x)); }

inline unsigned __ballot_sync(unsigned, bool flag) {
    const auto all = emulation::exchange<1>({flag});
    unsigned mask = 0;
    for (int lane = 0; lane < 32; ++lane) mask |= unsigned(all[lane][0]) << lane;
    return mask;
}
inline bool __any_sync(unsigned mask, bool flag) { return __ballot_sync(mask, flag) != 0; }
inline int __shfl_sync(unsigned, int value, int lane) {
    return int(emulation::exchange<1>({uint64_t(uint32_t(value))})[lane][0]);
}
inline int __shfl_up_sync(unsigned, int value, unsigned by) {
    const int lane = int(threadIdx.x) % 32;
    const auto all = emulation::exchange<1>({uint64_t(uint32_t(value))});
    return lane >= int(by) ? int(all[lane - int(by)][0]) : value;
}
inline float __shfl_xor_sync(unsigned, float value, int mask) {
    return emulation::from_bits(emulation::exchange<1>({emulation::bits(value)})[int(threadIdx.x) % 32 ^ mask][0]);
}

template <typename T>
T atomicAdd(T* at, T value) {
    const T old = *at;
    *at = T(old + value);
    return old;
}
inline int atomicCAS(int* at, int expected, int value) {
    const int old = *at;
    if (old == expected) *at = value;
    return old;
}
template <typename T>
T __ldcg(const T* at) { return *at; }
template <typename T>
T __ldcs(const T* at) { return *at; }
template <typename T>
void __stcg(T* at, T value) { *at = value; }
template <typename T>
void __stcs(T* at, T value) { *at = value; }
