// pipeline.cuh: what feeds Hopper's tensor cores (sm_90a): barriers, rings of stages, bulk copies.
// One function for each instruction that C++ has no word for. Kernels that use these functions
// guard their bodies with HOPPER: their files compile for every architecture.
//
// What is new since Ampere, in the order in which a kernel meets it:
//
//   bulk copies  (TMA) One thread issues the copy of a whole box of a matrix: "columns x.. of rows
//                y.. of this map to shared memory". The map (CUtensorMap, made on the host)
//                describes the matrix. Outside elements are read as zeros, and not stored. The
//                engine swizzles (wgmma.cuh).
//   barriers     An mbarrier in shared memory counts arrivals and bytes in flight. A phase ends
//                when all expected arrivals and announced bytes are there; a wait names its parity,
//                first 0.
//   setmaxnreg   A block's producer gives registers up, the consumers take them.
#pragma once
#include "kernels/cuda/ptx.cuh"
#include <cuda.h>                                   // the types of tensor maps; the driver library is not linked

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER
#endif

// A map of a row-major bf16 matrix of any rank up to 5: extents and box innermost first;
// consecutive elements of dimension i + 1 are pitch[i] elements apart. Copies move boxes whose
// innermost side is 64 (128 swizzled bytes). Address and pitches are multiples of 16 bytes. For
// floats element_size is 4 and that side 32. Returns false if the driver cannot make the map.
bool tensor_map_of(CUtensorMap *map, const void *base, int element_size, int rank, const uint64_t *extent,
                   const uint64_t *pitch, const uint32_t *box);
// The same for `columns` x `rows` x `planes`, rows `pitch`, planes `plane` elements apart.
static inline bool tensor_map(CUtensorMap *map, const void *base, int element_size, uint64_t columns, uint64_t rows,
                              uint64_t planes, uint64_t pitch, uint64_t plane, int box_columns, int box_rows) {
    const uint64_t extent[] = { columns, rows, planes }, pitches[] = { pitch, planes > 1 ? plane : rows * pitch };
    const uint32_t box[] = { (uint32_t)box_columns, (uint32_t)box_rows, 1 };
    return tensor_map_of(map, base, element_size, 3, extent, pitches, box);
}

#if defined(HOPPER)

// ---- barriers in shared memory ------------------------------------------------------------------

__device__ static inline void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}
// After barrier_init: shows barriers to the copy engine and, with __syncthreads, to threads.
__device__ static inline void fence_barrier_init(void) {
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async;" ::: "memory");
}
__device__ static inline void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
// One arrival, which also announces `bytes` that bulk copies will bring.
__device__ static inline void barrier_expect(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
// One arrival, made by the hardware when all this thread's cp.async so far have landed.
__device__ static inline void barrier_arrive_copied(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(barrier) : "memory");
}
__device__ static inline void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n\t.reg .pred done;\n"
                 "again:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t@!done bra.uni again;\n\t}"
                 :: "r"(barrier), "r"(parity) : "memory");
}

// ---- the pipeline: a ring of stages -------------------------------------------------------------
//
// A stage is a buffer in shared memory with two barriers. The producer waits for "empty", fills it,
// and arrives on "full", as do landing copies. Consumers wait for "full", read, arrive on "empty".

// Lanes of a warp that arrive on "empty". After __syncwarp one is enough; but compute-sanitizer's
// racecheck does not see the order of the others' reads, so in its build all arrive.
#if defined(RACECHECK)
enum { RELEASING_LANES = 32 };
#else
enum { RELEASING_LANES = 1 };
#endif
__device__ static inline bool releases(void) { return threadIdx.x % 32 < RELEASING_LANES; }

// A producer's or consumer's position in the ring: stage and phase. The phase's parity changes with
// each round. An int converts to the position of that iteration: iteration i uses stage i % STAGES.
template <int STAGES> struct Position {
    int stage = 0;
    uint32_t phase = 0;
    __device__ Position(void) {}
    __device__ Position(int iteration) : stage(iteration % STAGES), phase(iteration / STAGES & 1) {}
    __device__ void advance(void) { if (++stage == STAGES) stage = 0, phase ^= 1; }
};

// The barriers take 16 bytes a stage from the address `barriers` on, a multiple of 8.
template <int STAGES> struct Pipeline {
    typedef Position<STAGES> At;
    uint32_t barriers;
    __device__ uint32_t full(At at) const { return barriers + at.stage * 16; }
    __device__ uint32_t empty(At at) const { return full(at) + 8; }
    // By one thread; then fence_barrier_init. producers: arrivals for "full", besides bytes.
    __device__ void init(int consumer_warps, int producers = 1) const {
        for (int i = 0; i < STAGES; i++)
            barrier_init(full(i), producers), barrier_init(empty(i), consumer_warps * RELEASING_LANES);
    }
    // The producer's side. acquire: of a stage that one thread fills by bulk copies.
    __device__ void wait_empty(At at) const { barrier_wait(empty(at), at.phase ^ 1); }
    __device__ void acquire(At at, int bytes) const { wait_empty(at), barrier_expect(full(at), bytes); }
    // The consumers' side.
    __device__ void wait_full(At at) const { barrier_wait(full(at), at.phase); }
    __device__ void arrive_empty(At at) const { if (releases()) barrier_arrive(empty(at)); }
    __device__ void release(At at) const { __syncwarp(), arrive_empty(at); }       // after the warp's ordinary reads
    __device__ void skip(At at) const { wait_full(at), release(at); }           // a stage that this warp does not need
};

// ---- the work counter ---------------------------------------------------------------------------

// A persistent kernel's blocks take `count` pieces of work in order: first that of its own number,
// then draws from a counter in memory (Context.work_counter), up to a number >= count. With at most
// `count` blocks, these are `count` draws, after which the counter is 0 again.
__device__ static inline int draw_work(unsigned *counter, int count) {
    return (int)(gridDim.x + atomicInc(counter, (unsigned)count - 1));
}

// ---- bulk copies: a box at (column, row, plane) of a map ----------------------------------------

__device__ static inline void bulk_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int column, int row,
                                        int plane) {
    asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
            "%4, %5}], [%2];"
                 :: "r"(to), "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(plane) : "memory");
}
__device__ static inline void bulk_store(const CUtensorMap *map, uint32_t from, int column, int row, int plane) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
                 :: "l"(map), "r"(from), "r"(column), "r"(row), "r"(plane) : "memory");
}
// Of a map of rank 5. `at`: the other coordinates.
__device__ static inline void bulk_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int column, int4 at) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
                 :: "r"(to), "l"(map), "r"(barrier), "r"(column), "r"(at.x), "r"(at.y), "r"(at.z),
                 "r"(at.w) : "memory");
}
__device__ static inline void bulk_store(const CUtensorMap *map, uint32_t from, int column, int4 at) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];"
                 :: "l"(map), "r"(from), "r"(column), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w) : "memory");
}
// Without a map: consecutive bytes, a multiple of 16.
__device__ static inline void bulk_load(uint32_t to, const void *from, uint32_t barrier, int bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier) : "memory");
}
// Global memory += the box in shared memory; L2 adds.
__device__ static inline void bulk_add(const CUtensorMap *map, uint32_t from, int column, int row, int plane) {
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4}], [%1];"
                 :: "l"(map), "r"(from), "r"(column), "r"(row), "r"(plane) : "memory");
}
// The stores since the last commit become a group. Waits count groups of this thread: all but its
// newest `pending` have read their shared memory (bulk_wait_read), or are complete (bulk_wait).
__device__ static inline void bulk_commit(void) { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int pending> __device__ static inline void bulk_wait_read(void) {
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(pending) : "memory");
}
template <int pending> __device__ static inline void bulk_wait(void) {
    asm volatile("cp.async.bulk.wait_group %0;" :: "n"(pending) : "memory");
}
// Shows this thread's writes to shared memory to bulk copies and wgmma after the next barrier.
__device__ static inline void fence_async_proxy(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- registers ----------------------------------------------------------------------------------

// Sets the number of registers of each thread of the calling warpgroup, up or down.
template <int count> __device__ static inline void take_registers(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(count));
}
template <int count> __device__ static inline void give_registers(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(count));
}
#endif
