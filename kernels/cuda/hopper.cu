// hopper.cu: the products of matmul.cu by Hopper's own instructions (sm_90a, bf16). What they compute, and which operand is
// which in the three kinds, stands there; instructions in hopper.cuh; here is how the SMs are kept busy.
//
//   block        384 threads, one block to an SM, which makes tile after tile (tile i, i + blocks, ...): what a tile costs
//                besides its multiplications, finding it, filling the pipeline, storing it, happens while others multiply.
//   producer     The first warpgroup brings operands to shared memory, always some steps of 64 of k ahead, also across
//                tiles. Boxes come by bulk copy: one thread orders them. Gathered rows come by cp.async, 16 bytes a thread,
//                each row from where it lies; rows past the expert's last are zeros, for which nothing is read. (Reading some
//                valid row instead is the expensive way: all SMs would ask for the same line of L2.)
//   consumers    Two warpgroups, each with 64 x 256 sums of the tile, which is 128 x 256: a smaller one cannot be fed, as
//                shared memory gives 128 bytes a clock. While the tensor cores work on a step its successor is queued.
//   barriers     For every stage of the ring one "full" and one "empty". What the tile is travels with its first stage.
//   store        A warpgroup turns its sums into bf16 (or keeps floats, for the gradients of weights) slab by slab in shared
//                memory, from where bulk stores take them. The last tile of an expert may not write into the rows of the
//                next, and rows that are scattered have no box: those are stored row by row, 128 bytes of each.
//
// Gradients of weights sum over the rows of an expert, so rows are k: both operands lie across, tails of the expert are zeros
// in one of the operands, and sums are added to what is there by the memory itself. The gathered operand takes the side of
// 128; if that is the input, the tile is made transposed and stored so.
#include "product.cuh"
#include "hopper.cuh"

#if defined(PRECISION_BF16)

enum { BM = 128, BK = 64, THREADS = 384, A_BYTES = BM * BK * 2, SLAB = 8192 };
template <int BN> struct Ring {
    static constexpr int stages = BN == 256 ? 4 : 6, stage = A_BYTES + BN * BK * 2;
    static constexpr int slabs = stages * stage;                                // 2 of 8 KB for each consumer
    static constexpr int barriers = slabs + 4 * SLAB, info = barriers + stages * 16, bytes = info + stages * 16 + 1024;
};

#if defined(HOPPER)
// The block's shared memory and the barriers in it.
template <int BN> struct Shared {
    uint32_t base;
    unsigned char *generic;
    __device__ Shared(unsigned char *raw) {
        const uint32_t at = shared_address(raw), skip = -at & 1023;             // the swizzle counts from multiples of 1024
        base = at + skip, generic = raw + skip;
    }
    __device__ uint32_t a(int stage) const { return base + stage * Ring<BN>::stage; }
    __device__ uint32_t b(int stage) const { return a(stage) + A_BYTES; }
    __device__ uint32_t slab(int consumer, int i) const { return base + Ring<BN>::slabs + (consumer * 2 + i) * SLAB; }
    __device__ uint32_t full(int stage) const { return base + Ring<BN>::barriers + stage * 16; }
    __device__ uint32_t empty(int stage) const { return full(stage) + 8; }
    __device__ int4 &info(int stage) const { return *(int4 *)(generic + Ring<BN>::info + stage * 16); }
    __device__ void open(int producers) const {
        if (threadIdx.x == 0) {
            for (int i = 0; i < Ring<BN>::stages; i++) barrier_init(full(i), producers), barrier_init(empty(i), 8);
            barrier_init_done();
        }
        __syncthreads();
    }
};
// Where in the ring somebody is.
template <int BN> struct Position {
    int stage = 0;
    uint32_t parity = 0;
    __device__ void next(void) { if (++stage == Ring<BN>::stages) stage = 0, parity ^= 1; }
};

// A consumer multiplies `steps` stages: sum (64 x BN) = a b. The first stage is full already.
template <int BN, int a_across, int b_across>
__device__ static inline void multiply_steps(float (&sum)[BN / 2], const Shared<BN> &s, Position<BN> &at, int steps, int mine) {
    const bool speaks = threadIdx.x % 32 == 0;                                  // for its warp
    int before = -1;
    for (int step = 0; step < steps; step++, at.next()) {
        if (step) barrier_wait(s.full(at.stage), at.parity);
        const uint32_t a = s.a(at.stage) + mine * 8192, b = s.b(at.stage);
        pin(sum);
        wgmma_fence();
#pragma unroll
        for (int k16 = 0; k16 < 4; k16++)
            wgmma<BN, a_across, b_across>(sum, operand(a + k16 * (a_across ? 2048 : 32), !a_across),
                                          operand(b + k16 * (b_across ? 2048 : 32), !b_across), step | k16);
        wgmma_commit();
        wgmma_wait<1>();                                                        // the step before is done
        if (before >= 0 && speaks) barrier_arrive(s.empty(before));
        before = at.stage;
    }
    wgmma_wait<0>();
    pin(sum);
    if (speaks) barrier_arrive(s.empty(before));
}
#endif

// FORWARD and INPUT: tiles of rows of one expert. tiles: of the worst case.
template <Kind kind, int BN, bool gather> static __global__ __launch_bounds__(THREADS, 1)
void grouped_rows(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                  const __grid_constant__ CUtensorMap c_map, const Product p, int tiles) {
#if defined(HOPPER)
    extern __shared__ unsigned char raw[];
    const Shared<BN> s(raw);
    const int k = kind == FORWARD ? p.C : p.O, columns = columns_of<kind>(p), steps = (k + BK - 1) / BK;
    const int thread = threadIdx.x % 128;
    s.open(gather ? 1 + 128 : 1);
    Position<BN> at;

    if (threadIdx.x < 128) {
        give_registers<gather ? 56 : 40>();
        if (!gather && threadIdx.x >= 32) return;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const Place to = place_of<kind, BM, BN>(p, tile);
            if (to.m < 0) continue;
            const int chunk = thread % 8, first = to.first + to.m, end = to.first + to.rows;
            const floatX *row[8];
            if (gather)
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const int r = first + thread / 8 + 16 * i;
                    row[i] = r < end ? p.a + (size_t)p.a_row[r] * k + chunk * 8 : NULL;
                }
            for (int step = 0; step < steps; step++, at.next()) {
                barrier_wait(s.empty(at.stage), at.parity ^ 1);
                if (thread == 0) {
                    s.info(at.stage) = make_int4(to.expert, first, end, to.n);
                    barrier_expect(s.full(at.stage), BN * BK * 2 + (gather ? 0 : A_BYTES));
                    if (kind == FORWARD) bulk_load(s.b(at.stage), &b_map, s.full(at.stage), step * BK, to.n, to.expert);
                    else for (int c = 0; c < BN; c += 64)
                        bulk_load(s.b(at.stage) + c * 128, &b_map, s.full(at.stage), to.n + c, step * BK, to.expert);
                    if (!gather) bulk_load(s.a(at.stage), &a_map, s.full(at.stage), step * BK, first, 0);
                }
                if (gather) {
                    const bool inside = step * BK + chunk * 8 < k;
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        const int r = thread / 8 + 16 * i;
                        cp_async(s.a(at.stage) + r * 128 + ((chunk ^ r % 8) << 4), row[i] ? row[i] + step * BK : p.a, inside && row[i]);
                    }
                    barrier_arrive_copied(s.full(at.stage));
                }
            }
        }
        barrier_wait(s.empty(at.stage), at.parity ^ 1);                         // no more tiles: a stage that says so
        if (thread == 0) s.info(at.stage).x = -1, barrier_arrive(s.full(at.stage));
        if (gather) barrier_arrive(s.full(at.stage));
        return;
    }

    take_registers<gather ? 224 : 232>();
    const int mine = threadIdx.x / 128 - 1, warp = thread / 32, lane = thread % 32;
    for (int turn = 0;;) {
        barrier_wait(s.full(at.stage), at.parity);
        const int4 to = s.info(at.stage);                                       // expert, first row, last + 1, column
        if (to.x < 0) break;
        float sum[BN / 2];
        multiply_steps<BN, 0, kind == INPUT>(sum, s, at, steps, mine);

        const int first = to.y + mine * 64;                                     // of this consumer's 64 rows
        const bool box = !p.c_row && first + 64 <= to.z;
#pragma unroll
        for (int c = 0; c < BN / 64; c++) {
            const int n = to.w + c * 64;
            if (n >= columns) break;
            const uint32_t slab = s.slab(mine, turn++ & 1);
            if (thread == 0) bulk_wait_read<1>();                               // the store before the last has left its slab
            meet(1 + mine, 128);
            const int r = warp * 16 + lane % 16;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float *x = &sum[c * 32 + j * 8];
                if (kind == FORWARD && p.bias) {
                    const int column = n + j * 16 + lane % 4 * 2;
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        const int q = column + i / 4 * 8 + i % 2;
                        if (q < columns) x[i] += R(p.bias[(size_t)to.x * columns + q]);
                    }
                }
                stmatrix(slab + r * 128 + (((2 * j + lane / 16) ^ r % 8) << 4), pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]),
                         pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
            }
            if (box) publish();
            meet(1 + mine, 128);
            if (box) {
                if (thread == 0) bulk_store(&c_map, slab, n, first, 0), bulk_commit();
            } else if (n + thread % 8 * 8 < columns)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int row = thread / 8 + 16 * i, chunk = thread % 8;
                    if (first + row >= to.z) break;
                    const size_t where = p.c_row ? p.c_row[first + row] : first + row;
                    *(int4 *)((floatX *)p.c + where * columns + n + chunk * 8) =
                        *(const int4 *)(s.generic + (slab - s.base) + row * 128 + ((chunk ^ row % 8) << 4));
                }
        }
    }
    if (thread == 0) bulk_wait<0>();
#endif
}

// WEIGHT: c[e] += the sum over the rows of e of left^T right, left (.,P), right (.,Q), in tiles of 128 of P x 256 of Q.
// c (E,P,Q), or transposed (E,Q,P). Row i of left lies at left_row[i], or at i if that is NULL; of right, gather or not.
typedef struct {
    const floatX *left, *right;
    const int *left_row, *right_row, *start;
    int E, rows, P, Q;
} Outer;

template <bool gather, bool transposed> static __global__ __launch_bounds__(THREADS, 1)
void grouped_weight(const __grid_constant__ CUtensorMap right_map, const __grid_constant__ CUtensorMap c_map, const Outer p) {
#if defined(HOPPER)
    enum { BN = 256 };
    extern __shared__ unsigned char raw[];
    const Shared<BN> s(raw);
    const int across = (p.Q + BN - 1) / BN, down = (p.P + BM - 1) / BM, tiles = p.E * across * down;
    const int thread = threadIdx.x % 128;
    s.open(1 + 128);
    Position<BN> at;

    if (threadIdx.x < 128) {
        give_registers<gather ? 88 : 56>();
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const int e = tile / (across * down), m = tile % down * BM, n = tile % (across * down) / down * BN;
            const int first = p.start ? p.start[e] : 0, end = p.start ? p.start[e + 1] : p.rows;
            // A thread copies 16 bytes of 8 of the 64 rows of a step of left, and of 16 of them of right.
            const int chunk = thread % 16, wide = thread % 32;
            const floatX *left = p.left + m + chunk * 8, *right = p.right + n + wide * 8;
            const bool in_left = m + chunk * 8 < p.P, in_right = n + wide * 8 < p.Q;
            int left_row[8], right_row[16];
            auto find = [&](int k) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const int r = k + thread / 16 + 8 * i;
                    left_row[i] = r >= end || !in_left ? -1 : p.left_row ? p.left_row[r] : r;
                }
                if (gather)
#pragma unroll
                    for (int i = 0; i < 16; i++) {
                        const int r = k + thread / 32 + 4 * i;
                        right_row[i] = r >= end || !in_right ? -1 : p.right_row[r];
                    }
            };
            find(first);
            for (int k = first; k < end; k += BK, at.next()) {
                barrier_wait(s.empty(at.stage), at.parity ^ 1);
                if (thread == 0) {
                    s.info(at.stage) = make_int4(e, m, n, (end - first + BK - 1) / BK);
                    if (gather) barrier_arrive(s.full(at.stage));
                    else {
                        barrier_expect(s.full(at.stage), BN * BK * 2);
                        for (int c = 0; c < BN; c += 64)
                            bulk_load(s.b(at.stage) + c * 128, &right_map, s.full(at.stage), n + c, k, 0);
                    }
                }
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const int r = thread / 16 + 8 * i;
                    cp_async(s.a(at.stage) + chunk / 8 * 8192 + r * 128 + ((chunk % 8 ^ r % 8) << 4),
                             left + (int64_t)max(left_row[i], 0) * p.P, left_row[i] >= 0);
                }
                if (gather)
#pragma unroll
                    for (int i = 0; i < 16; i++) {
                        const int r = thread / 32 + 4 * i;
                        cp_async(s.b(at.stage) + wide / 8 * 8192 + r * 128 + ((wide % 8 ^ r % 8) << 4),
                                 right + (int64_t)max(right_row[i], 0) * p.Q, right_row[i] >= 0);
                    }
                barrier_arrive_copied(s.full(at.stage));
                find(k + BK);
            }
        }
        barrier_wait(s.empty(at.stage), at.parity ^ 1);
        if (thread == 0) s.info(at.stage).x = -1, barrier_arrive(s.full(at.stage));
        barrier_arrive(s.full(at.stage));
        return;
    }

    take_registers<gather ? 208 : 224>();
    const int mine = threadIdx.x / 128 - 1, warp = thread / 32, g = thread % 32 / 4, q = thread % 4;
    for (int turn = 0;;) {
        barrier_wait(s.full(at.stage), at.parity);
        const int4 to = s.info(at.stage);                                       // expert, first of P, of Q, steps
        if (to.x < 0) break;
        float sum[BN / 2];
        multiply_steps<BN, 1, 1>(sum, s, at, to.w, mine);

        // 32 columns of the tile at a time: 64 x 32 floats, or the two halves of P of their transpose, 32 x 32 each.
        const int m = to.y + mine * 64;
#pragma unroll
        for (int c = 0; c < BN / 32; c++) {
            const int n = to.z + c * 32;
            if (n >= p.Q || m >= p.P) break;
            const uint32_t slab = s.slab(mine, turn++ & 1);
            unsigned char *out = s.generic + (slab - s.base);
            if (thread == 0) bulk_wait_read<1>();
            meet(1 + mine, 128);
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float *x = &sum[c * 16 + j * 4 + h * 2];
                    const int row = warp * 16 + h * 8 + g, column = j * 8 + q * 2;
                    if (!transposed)
                        *(float2 *)(out + row * 128 + ((column / 4 ^ row % 8) << 4) + column % 4 * 4) = make_float2(x[0], x[1]);
                    else
#pragma unroll
                        for (int i = 0; i < 2; i++)
                            *(float *)(out + row / 32 * 4096 + (column + i) * 128 + ((row % 32 / 4 ^ (column + i) % 8) << 4)
                                       + row % 4 * 4) = x[i];
                }
            publish();
            meet(1 + mine, 128);
            if (thread == 0) {
                if (!transposed) bulk_add(&c_map, slab, n, m, to.x);
                else {
                    bulk_add(&c_map, slab, m, n, to.x);
                    if (m + 32 < p.P) bulk_add(&c_map, slab + 4096, m + 32, n, to.x);
                }
                bulk_commit();
            }
        }
    }
    if (thread == 0) bulk_wait<0>();
#endif
}

// ---- the host's side ----------------------------------------------------------------------------------------------------

static bool can_use(const Product &p) {
    return context()->arch == 90 && p.C % 8 == 0 && p.O % 8 == 0 && p.rows >= BM && !p.add
        && ((uintptr_t)p.a | (uintptr_t)p.b | (uintptr_t)p.c) % 16 == 0;
}

template <Kind kind, int BN, bool gather> static bool launch_rows(const Product &p) {
    const int k = kind == FORWARD ? p.C : p.O, columns = columns_of<kind>(p);
    const uint64_t C = (uint64_t)p.C, O = (uint64_t)p.O, rows = (uint64_t)p.rows;
    CUtensorMap a, b, c;
    if (!tensor_map(&a, gather ? p.c : p.a, 2, gather ? (uint64_t)columns : (uint64_t)k, rows, 1, gather ? columns : k, 0, 64, BM)
        || !tensor_map(&b, p.b, 2, C, O, (uint64_t)p.E, C, C * O, 64, kind == FORWARD ? BN : BK)
        || !tensor_map(&c, p.c, 2, (uint64_t)columns, rows, 1, columns, 0, 64, 64)) return false;
    auto *kernel = grouped_rows<kind, BN, gather>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Ring<BN>::bytes));
    const int tiles = (int)blocks_for<kind, BM, BN>(p);
    LAUNCH(kernel, (unsigned)min(tiles, context()->sm_count), THREADS, Ring<BN>::bytes, a, b, c, p, tiles);
    return true;
}
template <Kind kind> static bool rows_product(const Product &p) {
    if (!can_use(p)) return false;
    const bool wide = columns_of<kind>(p) > 128 && blocks_for<kind, BM, 256>(p) > (unsigned)context()->sm_count;
    if (p.a_row) return wide ? launch_rows<kind, 256, true>(p) : launch_rows<kind, 128, true>(p);
    return wide ? launch_rows<kind, 256, false>(p) : launch_rows<kind, 128, false>(p);
}
bool hopper_forward(const Product &p) { return rows_product<FORWARD>(p); }
bool hopper_input(const Product &p)   { return rows_product<INPUT>(p); }

template <bool gather, bool transposed> static bool launch_weight(const Outer &o, void *c) {
    const uint64_t P = (uint64_t)o.P, Q = (uint64_t)o.Q, width = transposed ? P : Q, height = transposed ? Q : P;
    CUtensorMap right, out;
    if (!tensor_map(&right, o.right, 2, Q, (uint64_t)o.rows, 1, Q, 0, 64, BK)
        || !tensor_map(&out, c, 4, width, height, (uint64_t)o.E, width, P * Q, 32, transposed ? 32 : 64)) return false;
    auto *kernel = grouped_weight<gather, transposed>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Ring<256>::bytes));
    const size_t tiles = o.E * divide_up(P, BM) * divide_up(Q, 256);
    LAUNCH(kernel, (unsigned)min(tiles, (size_t)context()->sm_count), THREADS, Ring<256>::bytes, right, out, o);
    return true;
}
bool hopper_weight(const Product &p) {
    if (!can_use(p)) return false;
    const bool transposed = p.b_row && !p.a_row;                                // c is (O,C): a's side is O
    Outer o = {};
    o.start = p.start, o.E = p.E, o.rows = p.rows;
    o.left  = transposed ? p.b : p.a, o.left_row  = transposed ? p.b_row : p.a_row, o.P = transposed ? p.C : p.O;
    o.right = transposed ? p.a : p.b, o.right_row = transposed ? p.a_row : p.b_row, o.Q = transposed ? p.O : p.C;
    if (o.right_row) return launch_weight<true, false>(o, p.c);
    return transposed ? launch_weight<false, true>(o, p.c) : launch_weight<false, false>(o, p.c);
}
#endif
