/* instructions.h: the functions of ptx.cuh, hopper/ and single kernels that are inline assembly, by
 * what the instruction does. prepare.py leaves those out. Shared memory has addresses of 32 bits,
 * from emulator::shared on. */
#pragma once
#include <cuda.h>
#include <array>
#include <initializer_list>
#include "cuda_bf16.h"

static inline uint32_t shared_address(const void *p) { return (uint32_t)((const unsigned char *)p - emulator::shared); }
static inline unsigned char *at_shared(uint32_t address) { return emulator::shared + (int32_t)address; }

/* emulator.cpp */
namespace emulator {
[[noreturn]] void defect(const char *what);
struct Barrier { int arrivals, pending, phase; long bytes; };
Barrier &barrier_at(uint32_t address);
void may_complete(Barrier &b);
/* Work of this thread in the background. Loads end in any order, the others in that of their
 * beginning. */
enum Work { LOAD, STORE, COPY };
void begin(Work kind, std::function<void(void)> work);
void commit(Work kind);
void wait(Work kind, int pending);
/* The threads of a warpgroup meet; d are their registers, x of each the first operand's if it is in
 * registers. */
typedef std::array<uint32_t, 4> Operand;
typedef std::function<void(float **d, const Operand *x)> Product;
void multiply(float *d, const uint32_t *x, Product product);
void commit_products(void);
void wait_for_products(int pending);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static inline float bf16_of(uint32_t two, int i) { return __uint_as_float(i ? two & 0xffff0000 : two << 16); }
static inline float half_of(uint16_t bits) { _Float16 h; memcpy(&h, &bits, sizeof h); return (float)h; }
static inline uint16_t to_half(float x) {
    const _Float16 h = (_Float16)x;
    uint16_t bits;
    memcpy(&bits, &h, sizeof h);
    return bits;
}
static inline float e4m3_of(int code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const float x = (code & 127) == 127 ? NAN : exponent ? ldexpf(1 + fraction / 8.0f, exponent - 7)
                                        : ldexpf(fraction / 8.0f, -6);
    return code & 128 ? -x : x;
}
static inline int to_e4m3(float x) {                                /* to nearest even; beyond 448: 448 */
    const float size = fabsf(x);
    int low = 0, high = 126;
    if (x != x) return 127;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (e4m3_of(middle) <= size) low = middle; else high = middle;
    }
    const float below = size - e4m3_of(low), above = e4m3_of(high) - size;
    return (below < above || (below == above && low % 2 == 0) ? low : high) | (signbit(x) ? 128 : 0);
}
static inline float exp2_fast(float x) { return exp2f(x); }
static inline float inverse_fast(float x) { return 1 / x; }
static inline float sqrt_approx(float x) { return sqrtf(x); }
static inline float tanh_of(float x) { return tanhf(x); }
static inline float larger(float x, float y) { x = fabsf(x), y = fabsf(y); return x != x || x > y ? x : y; }
static inline uint32_t pack_bf16(float low, float high) {
    return __nv_bfloat16(low).bits | (uint32_t)__nv_bfloat16(high).bits << 16;
}
template <bool half> static inline uint32_t packed(float low, float high) {
    return half ? to_half(low) | (uint32_t)to_half(high) << 16 : pack_bf16(low, high);
}
static inline float unpack_half(uint32_t pair, int which) { return half_of((uint16_t)(which ? pair >> 16 : pair)); }
static inline uint32_t halves_of_codes(uint32_t two) {
    return to_half(e4m3_of(two & 0xff)) | (uint32_t)to_half(e4m3_of(two >> 8 & 0xff)) << 16;
}
static inline uint32_t fp8_codes(float a, float b) { return (uint32_t)(to_e4m3(a) | to_e4m3(b) << 8); }
static inline uint2 shift_codes(uint2 codes, uint32_t factor) {
    unsigned char code[8];
    memcpy(code, &codes, sizeof code);
    for (unsigned char &c : code) c = (unsigned char)to_e4m3(half_of(to_half(e4m3_of(c) * half_of((uint16_t)factor))));
    memcpy(&codes, code, sizeof code);
    return codes;
}

/* ---- a warp's matrices (ptx.cuh) ------------------------------------------------------------- */

/* A lane gives the address of a row of 8 numbers, and has a pair of each of four matrices. */
struct Matrices { uint32_t row, *pair; };
template <bool to_memory, bool transposed> static inline void move_matrices(uint32_t first, uint32_t *pairs, int call) {
    const Matrices own = { first, pairs };
    emulator::collective(&own, call, [](const void **all) {
        for (int m = 0; m < 4; m++)
            for (int i = 0; i < 64; i++) {                          /* element (i/8, i%8) in the lanes' order */
                const int lane = i / 2, row = transposed ? i % 8 : i / 8, column = transposed ? i / 8 : i % 8;
                unsigned char *const memory = at_shared(((const Matrices *)all[m * 8 + row])->row) + column * 2;
                unsigned char *const mine = (unsigned char *)&((const Matrices *)all[lane])->pair[m] + i % 2 * 2;
                memcpy(to_memory ? memory : mine, to_memory ? mine : memory, 2);
            }
    });
}
static inline void ldmatrix(uint32_t r[4], uint32_t row) { move_matrices<false, false>(row, r, LDMATRIX); }
static inline void ldmatrix_trans(uint32_t r[4], uint32_t row) { move_matrices<false, true>(row, r, LDMATRIX_TRANS); }
static inline void stmatrix(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    uint32_t x[4] = { a, b, c, d };
    move_matrices<true, false>(row, x, STMATRIX);
}
static inline void stmatrix_trans(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    uint32_t x[4] = { a, b, c, d };
    move_matrices<true, true>(row, x, STMATRIX_TRANS);
}
static inline void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    struct Part { float *d; const uint32_t *a, *b; } mine = { d, a, b };
    emulator::collective(&mine, MMA, [](const void **all) {
        float x[16][16], y[8][16];
        for (int t = 0; t < 32; t++)
            for (int i = 0; i < 2; i++) {
                const Part *p = (const Part *)all[t];
                for (int r = 0; r < 4; r++) x[t / 4 + r % 2 * 8][t % 4 * 2 + r / 2 * 8 + i] = bf16_of(p->a[r], i);
                for (int r = 0; r < 2; r++) y[t / 4][t % 4 * 2 + r * 8 + i] = bf16_of(p->b[r], i);
            }
        for (int t = 0; t < 32; t++)
            for (int r = 0; r < 4; r++)
                for (int k = 0; k < 16; k++)
                    ((const Part *)all[t])->d[r] += x[t / 4 + r / 2 * 8][k] * y[t % 4 * 2 + r % 2][k];
    });
}

/* ---- copies and barriers (ptx.cuh, hopper/pipeline.cuh) -------------------------------------- */

static inline void store_16(void *to, uint4 x) { *(uint4 *)to = x; }
static inline void cp_async(uint32_t to, const void *from, bool valid) {
    emulator::begin(emulator::COPY,
                    [=] { if (valid) memcpy(at_shared(to), from, 16); else memset(at_shared(to), 0, 16); });
}
static inline void cp_async_commit(void) { emulator::commit(emulator::COPY); }
template <int pending> static inline void cp_async_wait(void) { emulator::wait(emulator::COPY, pending); }
static inline void named_barrier_sync(int id, int threads) { emulator::barrier(id, threads); }

static inline void barrier_init(uint32_t barrier, int arrivals) {
    emulator::barrier_at(barrier) = { arrivals, arrivals, 0, 0 };
}
static inline void barrier_arrive(uint32_t barrier) {
    emulator::Barrier &b = emulator::barrier_at(barrier);
    if (--b.pending < 0) emulator::defect("a barrier in shared memory has too many arrivals");
    emulator::may_complete(b);
}
static inline void barrier_expect(uint32_t barrier, int bytes) {
    emulator::barrier_at(barrier).bytes += bytes, barrier_arrive(barrier);
}
static inline void barrier_arrive_copied(uint32_t barrier) {
    emulator::begin(emulator::COPY, [=] { barrier_arrive(barrier); });
}
static inline void barrier_wait(uint32_t barrier, uint32_t parity) {
    while ((uint32_t)emulator::barrier_at(barrier).phase == parity) emulator::yield();
}

/* f(shared, global) for every element of a box; global: NULL outside of the matrix. Factor of 128
 * bytes are swizzled. */
template <class F> static inline void each_of_box(const CUtensorMap &map, std::array<int, 5> at, uint32_t shared, F f) {
    uint32_t i[5] = {};
    for (bool more = true; more; shared += (uint32_t)map.element_size) {
        unsigned char *global = map.base;
        for (int r = 0; r < map.rank; r++) {
            const int64_t x = (int64_t)at[r] + i[r];
            global = global && x >= 0 && x < (int64_t)map.extent[r] ? global + x * (int64_t)map.pitch[r] : NULL;
        }
        f(at_shared(shared ^ (shared >> 7 & 7) << 4), global);
        int r = 0;
        while (r < map.rank && ++i[r] == map.box[r]) i[r++] = 0;
        more = r < map.rank;
    }
}
static inline void end_load(uint32_t barrier, long bytes) {
    emulator::Barrier &b = emulator::barrier_at(barrier);
    b.bytes -= bytes;
    emulator::may_complete(b);
}
static inline void load_box(uint32_t to, const CUtensorMap *map, uint32_t barrier, std::array<int, 5> at) {
    if (to % 128) emulator::defect("a box is loaded to an address that is no multiple of 128");
    emulator::begin(emulator::LOAD, [=, map = *map] {
        long bytes = 0;
        each_of_box(map, at, to, [&](unsigned char *shared, const unsigned char *global) {
            if (global)
                memcpy(shared, global, (size_t)map.element_size); else memset(shared, 0, (size_t)map.element_size);
            bytes += map.element_size;
        });
        end_load(barrier, bytes);
    });
}
static inline void store_box(const CUtensorMap *map, uint32_t from, std::array<int, 5> at, bool add) {
    emulator::begin(emulator::STORE, [=, map = *map] {
        each_of_box(map, at, from, [&](const unsigned char *shared, unsigned char *global) {
            float x, y;
            if (!global) return;
            if (!add) { memcpy(global, shared, (size_t)map.element_size); return; }
            memcpy(&x, global, sizeof x), memcpy(&y, shared, sizeof y), x += y, memcpy(global, &x, sizeof x);
        });
    });
}
static inline void bulk_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int column, int row, int plane) {
    load_box(to, map, barrier, { column, row, plane });
}
static inline void bulk_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int column, int4 at) {
    load_box(to, map, barrier, { column, at.x, at.y, at.z, at.w });
}
static inline void bulk_load(uint32_t to, const void *from, uint32_t barrier, int bytes) {
    emulator::begin(emulator::LOAD, [=] { memcpy(at_shared(to), from, (size_t)bytes), end_load(barrier, bytes); });
}
static inline void bulk_store(const CUtensorMap *map, uint32_t from, int column, int row, int plane) {
    store_box(map, from, { column, row, plane }, false);
}
static inline void bulk_store(const CUtensorMap *map, uint32_t from, int column, int4 at) {
    store_box(map, from, { column, at.x, at.y, at.z, at.w }, false);
}
static inline void bulk_add(const CUtensorMap *map, uint32_t from, int column, int row, int plane) {
    store_box(map, from, { column, row, plane }, true);
}
static inline void bulk_commit(void) { emulator::commit(emulator::STORE); }
template <int pending> static inline void bulk_wait_read(void) { emulator::wait(emulator::STORE, pending); }
template <int pending> static inline void bulk_wait(void) { emulator::wait(emulator::STORE, pending); }

/* Counters of hopper/muon.cu. */
static inline void publish(uint32_t address, int count) { memcpy(at_shared(address), &count, sizeof count); }
static inline int observed(uint32_t address) {
    int count;
    emulator::yield();
    memcpy(&count, at_shared(address), sizeof count);
    return count;
}

/* ---- products of a warpgroup (hopper/wgmma.cuh) ---------------------------------------------- */

enum Major { K_MAJOR, MN_MAJOR };
static inline void wgmma_commit(void) { emulator::commit_products(); }
template <int pending> static inline void wgmma_wait(void) { emulator::wait_for_products(pending); }

/* Where byte `byte` of the 32 of k of row (column) n of an operand is. */
static inline const unsigned char *of_operand(uint64_t descriptor, Major major, int n, int byte) {
    const uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4, slab = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    const uint32_t eight = (uint32_t)(descriptor >> 32 & 0x3fff) << 4, i = (uint32_t)n, b = (uint32_t)byte;
    const uint32_t at = major == K_MAJOR ? start + i / 8 * eight + i % 8 * 128 + b
                                         : start + i / 64 * slab + b / 16 * eight + b / 2 % 8 * 128
                                         + i % 64 * 2 + b % 2;
    return at_shared(at ^ (at >> 7 & 7) << 4);
}
/* A factor of a product: k numbers of each of n rows (columns). */
enum Number { BF16, HALF, E4M3 };
typedef float Factor[256][32];
static inline void read_operand(Factor rows, uint64_t descriptor, Major major, Number type, int n) {
    for (int i = 0; i < n; i++)
        for (int k = 0; k < (type == E4M3 ? 32 : 16); k++) {
            uint16_t two;
            if (type == E4M3) { rows[i][k] = e4m3_of(*of_operand(descriptor, major, i, k)); continue; }
            memcpy(&two, of_operand(descriptor, major, i, 2 * k), sizeof two);
            rows[i][k] = type == HALF ? half_of(two) : bf16_of(two, 0);
        }
}
static inline void add_product(float **d, const Factor a, const Factor b, int n, int K, int accumulate) {
    for (int t = 0; t < 128; t++)
        for (int r = 0; r < n / 2; r++) {
            const int row = t / 32 * 16 + t % 32 / 4 + r / 2 % 2 * 8, column = r / 4 * 8 + t % 4 * 2 + r % 2;
            float sum = accumulate ? d[t][r] : 0;
            for (int k = 0; k < K; k++) sum += a[row][k] * b[column][k];
            d[t][r] = sum;
        }
}
static Factor left_rows, right_rows;
template <int N, Major x_major, Major y_major, bool half = false>
static inline void wgmma(float (&d)[N / 2], uint64_t x, uint64_t y, int accumulate) {
    emulator::multiply(d, NULL, [=](float **all, const emulator::Operand *) {
        read_operand(left_rows, x, x_major, half ? HALF : BF16, 64),
                       read_operand(right_rows, y, y_major, half ? HALF : BF16, N);
        add_product(all, left_rows, right_rows, N, 16, accumulate);
    });
}
template <int N, Major y_major> static inline void wgmma(float (&d)[N / 2], const uint32_t *x, uint64_t y,
                                                         int accumulate) {
    emulator::multiply(d, x, [=](float **all, const emulator::Operand *a) {
        for (int t = 0; t < 128; t++)
            for (int r = 0; r < 4; r++)
                for (int i = 0; i < 2; i++)
                    left_rows[t / 32 * 16 + t % 32 / 4 + r % 2 * 8][t % 4 * 2 + r / 2 * 8 + i] = bf16_of(a[t][r], i);
        read_operand(right_rows, y, y_major, BF16, N);
        add_product(all, left_rows, right_rows, N, 16, accumulate);
    });
}
static inline void wgmma_e4m3(float (&d)[64], uint64_t x, uint64_t y, int accumulate) {
    emulator::multiply(d, NULL, [=](float **all, const emulator::Operand *) {
        read_operand(left_rows, x, K_MAJOR, E4M3, 64), read_operand(right_rows, y, K_MAJOR, E4M3, 128);
        add_product(all, left_rows, right_rows, 128, 32, accumulate);
    });
}
static inline void load_shared(uint32_t (&x)[4], uint32_t address) { memcpy(x, at_shared(address), sizeof x); }
static inline float4 load_shared_floats(uint32_t address) {
    float4 x;
    memcpy(&x, at_shared(address), sizeof x);
    return x;
}
static inline void store_global(void *to, const uint32_t (&x)[4]) { memcpy(to, x, sizeof x); }

/* ---- a cluster of one block, as which all are emulated --------------------------------------- */

static inline void cluster_arrive(void) {}
static inline void cluster_wait(void) { __syncthreads(); }
template <typename T> static inline T *of_block(T *there, int) { return there; }

/* ---- nothing to do here ---------------------------------------------------------------------- */

static inline void let_next_start(void) {}
static inline void wait_for_previous(void) {}
static inline void prefetch_line(const void *) {}
static inline void fence_barrier_init(void) {}
static inline void fence_async_proxy(void) {}
static inline void fence_copies(void) {}
static inline void wgmma_fence(void) {}
template <int count> static inline void take_registers(void) {}
template <int count> static inline void give_registers(void) {}
