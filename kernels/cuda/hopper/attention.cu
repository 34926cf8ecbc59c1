// hopper/attention.cu: causal attention with Hopper's instructions (sm_90a, bf16, heads of 64 or
// 128 elements; other sizes, formulas and packed rows: attention.cu).
//
//   blocks      One block an SM. It draws work tiles until none is left, those with most work
//               first, so that all SMs finish at about the same time. The result does not depend on
//               which SM computes a tile.
//   warpgroups  One producer, of which one thread issues all copies, always ahead of their use; two
//               or three consumers, with 64 rows (or keys) each.
//   work tiles  forward and backward_q: 64 query rows for each consumer; key/value tiles stream
//               past them in order. backward_kv: 64 keys and values for each of two consumers;
//               boxes of 64 query rows stream past them.
//   copies      A tensor map knows q as {column, head of the query group, token, group, sequence}:
//               one box is 64 packed rows in either order of heads. Rows past the last one arrive
//               as zeros and are not stored. If Q is not a power of two, a box holds as many whole
//               tokens as fit into 64 rows.
//   softmax     takes as long as a product: an SM issues 16 exp2 or 4096 flop per clock. The two
//               overlap: the scores of the next tile are queued before the softmax of this one, and
//               the warpgroups fill each other's gaps.
//   registers   P and dS are computed in the registers from which the next wgmma reads them.
//   reach       LIMITED kernels, instances of their own: each tile of rows begins at the first key
//               that it sees, each tile of keys ends at the last row that sees it; only tiles that
//               some row sees in part are masked.
//   backward    Two kernels, 7 products instead of 5: backward_q owns query rows and computes dq,
//               backward_kv owns keys and computes dk and dv. (One kernel that adds dq in memory,
//               tile after tile in a fixed order, was no faster: docs/LOG.md.)
//
// Shared memory, from a multiple of 1024 bytes on, in KB for D = 64 | 128. A box is 64 rows.
//
//   forward, 112 | 192 in all
//      q                 out               k, of 128 keys     v
//      1 box a consumer  1 box a consumer  2 stages           2 stages
//      24 | 32           24 | 32           32 | 64            32 | 64
//   backward_q, 184 | 224
//      q                 do                out, later dq      k, of 64 keys       v
//      2 | 1 stages      2 | 1 stages      1 box a consumer   4 stages            4 stages
//      48 | 32           48 | 32           24 | 32            32 | 64             32 | 64
//   backward_kv, 145.5 | 225.5
//      k, v of 128 keys  q                 do                 dk, dv              lse, delta
//      2 | 1 stages      3 stages, 1 box   3 stages, 1 box    2 boxes a consumer  3 stages
//      64 | 64           24 | 48           24 | 48            32 | 64             1.5
//
// A work tile's timeline; wgmma runs behind the warpgroup's arithmetic (exp2). n: last k, v:
//
//   producer    | k0 | q | v0 | k1 | v1 | k2, when S0 is released | v2 | ... | k0 of the next
//   forward
//      wgmma    | S0 |    | S1 | O += P0 v0 | S2 | O += P1 v1 | ...       | O += Pn vn |
//      exp2          | P0 |    | P1         |    | P2         | ...  | Pn |            | store out
//   backward_q
//      wgmma    | S0 | dP0 |     | S1 | dP1 | dQ += dS0 k0 |     | S2 | dP2 | dQ += dS1 k1 | ...
//      exp2          | P0  | dS0 |    | P1                 | dS1 |    | P2                 | dS2
//   backward_kv
//      wgmma    | S0 | dP0 | dV += P0 do | dK += dS0 q | S1 | dP1 | dV += P1 do | dK += dS1 q | ...
//      exp2          | P0  | dS0         |             |    | P1  | dS1         |             | ...
#include "pipeline.cuh"
#include "wgmma.cuh"

#if defined(PRECISION_BF16)

// A (sequence, key/value head) pair's packed rows, and the boxes they are copied in. HEADS_TILED:
// rows evenly spaced, fold 1. HEADS_GROUPED: a token's Q rows are a dimension, fold Q.
struct Packing {
    HeadOrder order;
    int T, G, Q;
    int pairs;                                  // B*G
    int rows;                                   // of a pair: T*Q
    int fold, box_rows, boxes;                  // rows in a box: 64, or a little less; boxes of a pair
    const int *reach, *last;                    // (B,T), of LIMITED kernels: kernels.h; the last token that sees a key
};

// The order of work tiles. Pairs are taken in groups whose keys fit into L2: `larger` groups of
// group + 1 pairs, then groups of `group`. Within a group, all pairs' largest tiles come first.
struct Schedule { int tiles, group, larger; unsigned *counter; };      // tiles: of a pair; counter: 0 between kernels
struct WorkTile { int tile, g, b, pair; };                              // tile -1: no work is left

// What backward_q leaves for backward_kv: lse (base 2; no row: infinite, so p is 0) and delta.
struct BoxStats { float lse[64], delta[64]; };
// Where the box's row is in them: backward_kv's thread reads its four columns of 16 at once.
[[maybe_unused]] __device__ static inline int stats_index(int row) { return row/16*16 + row%8/2*4 + row/8%2*2 + row%2; }

#if defined(HOPPER)

template <bool b> struct Bool { static constexpr bool value = b; };

// ---- work tiles ---------------------------------------------------------------------------------

// As draw_work (pipeline.cuh), but a block's first tile is drawn, too: blocks that start late,
// beside a communication kernel, should find less work. A block draws until past the last tile.
__device__ static inline unsigned draw_tile(Packing h, Schedule schedule) {
    return atomicInc(schedule.counter, (unsigned)(h.pairs * schedule.tiles) + gridDim.x - 1);
}
__device__ static inline WorkTile work_tile(unsigned number, Packing h, Schedule schedule) {
    if (number >= (unsigned)(h.pairs * schedule.tiles)) return { -1, 0, 0, 0 };
    const int at = (int)number / schedule.tiles, in_larger = schedule.larger * (schedule.group + 1);
    const int width = schedule.group + (at < in_larger);
    const int first = at < in_larger ? at / width * width : in_larger + (at - in_larger) / width * width;
    const int in = (int)number - first*schedule.tiles, pair = first + in % width;
    return { schedule.tiles - 1 - in / width, pair % h.G, pair / h.G, pair };
}

// Index of lse of packed row r.
__device__ static inline size_t lse_index(Packing h, WorkTile w, int r) {
    const int t = r / h.Q, j = r - t*h.Q;
    return ((size_t)w.b*h.T + t)*h.G*h.Q + (h.order == HEADS_TILED ? j*h.G + w.g : w.g*h.Q + j);
}
// How many key tiles the packed rows before `row` see, at least in part.
__device__ static inline int visible_tiles(Packing h, int row, int keys) {
    return (min(row, h.rows) - 1) / h.Q / keys + 1;
}

// The first key that packed row `row` sees. Of a row before the first, or past the last: theirs.
template <bool LIMITED> __device__ static inline int first_key(Packing h, WorkTile w, int row) {
    if (!LIMITED) return 0;
    const int t = min(max(row, 0) / h.Q, h.T - 1);
    return t - h.reach[(size_t)w.b*h.T + t];
}
// The packed rows before the first that no longer sees the key. Past the last key: all rows.
template <bool LIMITED> __device__ static inline int rows_until_unseen(Packing h, WorkTile w, int key) {
    return LIMITED ? (h.last[(size_t)w.b*h.T + min(key, h.T - 1)] + 1) * h.Q : h.rows;
}

// ---- copies -------------------------------------------------------------------------------------

// A box of packed rows, slab by slab of 64 columns.
template <int D> __device__ static inline void
load_box(uint32_t to, const CUtensorMap *map, uint32_t barrier, int box, Packing h, WorkTile w) {
    #pragma unroll
    for (int d = 0; d < D; d += 64)
        bulk_load(to + d*128, map, barrier, d, make_int4(0, box * h.box_rows / h.fold, w.g, w.b));
}
// A tile of KEYS keys (which 0) or values (1), from key `key` on.
template <int D, int KEYS> __device__ static inline void
load_keys(uint32_t to, const CUtensorMap *map, uint32_t barrier, int key, int which, WorkTile w) {
    #pragma unroll
    for (int d = 0; d < D; d += 64) bulk_load(to + d*KEYS*2, map, barrier, d, make_int4(key, w.g, which, w.b));
}
// 64 rows of D from a consumer's registers to swizzled slabs of 64 columns, 8 KB, in shared memory.
template <int D> __device__ static inline void stage_rows(uint32_t slab, const float (&x)[D / 2]) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
    #pragma unroll
    for (int i = 0; i < D / 2; i += 8)
        stmatrix(slab + i/32 * 8192 + swizzled(row, i/4 % 8 + lane/16), pack_bf16(x[i], x[i + 1]),
                 pack_bf16(x[i + 2], x[i + 3]), pack_bf16(x[i + 4], x[i + 5]), pack_bf16(x[i + 6], x[i + 7]));
}
// From there to global memory. By one thread, after consumer_sync.
template <int D> __device__ static inline void store_rows(const CUtensorMap *map, uint32_t slab, int4 at) {
    #pragma unroll
    for (int d = 0; d < D; d += 64) bulk_store(map, slab + d*128, d, at);
}
__device__ static inline void consumer_sync(int consumer) { named_barrier_sync(1 + consumer, 128); }
// A consumer's box, through its buffer in shared memory, unread after the first barrier.
template <int D> __device__ static inline void
store_box(const CUtensorMap *map, uint32_t buffer, const float (&x)[D / 2], int consumer, int box, Packing h,
          WorkTile w) {
    consumer_sync(consumer);
    stage_rows<D>(buffer, x);
    fence_async_proxy();
    consumer_sync(consumer);
    if (threadIdx.x % 128) return;
    store_rows<D>(map, buffer, make_int4(0, box*h.box_rows / h.fold, w.g, w.b));
    bulk_commit();
}

// ---- products: element 4n + 2h + c of d is row lane/4 + 8h, column 8n + lane%4*2 + c of the
//      warp's 16 rows -----------------------------------------------------------------------------

// Queues d = a b^T: 64 rows of a, N of b, D columns, both in shared memory in slabs of 64 columns.
template <int N, int D> __device__ static inline void product_abt(float (&d)[N / 2], uint32_t a, uint32_t b) {
    const uint64_t x = descriptor(a, K_MAJOR), y = descriptor(b, K_MAJOR);
    pin(d);
    wgmma_fence();
    #pragma unroll
    for (int k = 0; k < D / 16; k++)
        wgmma<N, K_MAJOR, K_MAJOR>(d, advance(x, k/4*8192 + k%4*32), advance(y, k/4*N*128 + k%4*32), k > 0);
    wgmma_commit();
}
// Queues d += a b: K columns of a, in registers, and K rows of b.
template <int D, int K> __device__ static inline void product_ab(float (&d)[D / 2], uint32_t (&a)[K / 4], uint32_t b) {
    const uint64_t y = descriptor(b, MN_MAJOR, K*128);
    pin(d);
    pin(a);
    wgmma_fence();
    #pragma unroll
    for (int k = 0; k < K / 16; k++) wgmma<D, MN_MAJOR>(d, &a[4*k], advance(y, k*2048), 1);
    wgmma_commit();
}
// Results of one product as operand a of the next.
template <int COUNT> __device__ static inline void pack_operand(uint32_t (&a)[COUNT / 2], const float (&d)[COUNT]) {
    #pragma unroll
    for (int i = 0; i < COUNT / 2; i++) a[i] = pack_bf16(d[2*i], d[2*i + 1]);
}

// ---- tiles of query rows: what forward and backward_q have in common ----------------------------
//
// If the boxes of a pair are not a multiple of CONSUMERS, the first work tile, which has least
// work, lacks some: boxes before the first one of the pair have negative numbers.

// A block as all roles see it: shared addresses, and pipelines. L: Forward<D> or BackwardQ<D>.
template <class L> struct RowsBlock {
    uint32_t base;
    Pipeline<L::STAGES> q;
    Pipeline<L::KV_STAGES> k, v;
    Pipeline<1> out;                            // BackwardQ
    WorkTile *work;                             // [2]: of work tile n in n & 1; full and empty with q
    static constexpr int BARRIERS = 2 * (L::STAGES + 2*L::KV_STAGES + 1);

    __device__ RowsBlock(unsigned char *raw, uint64_t *barriers, WorkTile *w) : work(w) {
        base = (shared_address(raw) + 1023) & ~1023u;
        q = { shared_address(barriers) };
        k = { q.barriers + L::STAGES*16 }, v = { k.barriers + L::KV_STAGES*16 };
        out = { v.barriers + L::KV_STAGES*16 };
        if (threadIdx.x == 0) {
            q.init(L::CONSUMERS * 4), k.init(L::CONSUMERS * 4), v.init(L::CONSUMERS * 4), out.init(L::CONSUMERS * 4);
            fence_barrier_init();
        }
        __syncthreads();
    }
    __device__ uint32_t k_tile(int kv) const { return base + L::k + kv % L::KV_STAGES * L::tile; }
    __device__ uint32_t v_tile(int kv) const { return base + L::v + kv % L::KV_STAGES * L::tile; }
    // Key/value tiles that other consumers need, but this one does not.
    __device__ void skip_tiles(int &kv, int tiles) const { for (; tiles > 0; tiles--, kv++) k.skip(kv), v.skip(kv); }
};

template <class L> __device__ static inline int first_box(Packing h, Schedule schedule, WorkTile w) {
    return h.boxes - (schedule.tiles - w.tile) * L::CONSUMERS;
}
template <class L> __device__ static inline int end_tile(Packing h, Schedule schedule, WorkTile w) {
    return visible_tiles(h, (first_box<L>(h, schedule, w) + L::CONSUMERS) * h.box_rows, L::KEYS);
}
// A consumer's box, and what its rows see of the work tile's key/value tiles begin .. end - 1:
// something of first .. used - 1, all of full .. unmasked - 1. last: of this thread's two rows,
// from its first column.
struct KeyRange { int box, begin, end, first, used, full, unmasked, last[2]; };
template <class L, bool LIMITED> __device__ static inline KeyRange
key_range(Packing h, Schedule schedule, WorkTile w, int consumer) {
    const int first = first_box<L>(h, schedule, w), box = first + consumer, lane = threadIdx.x % 32;
    const int row = box*h.box_rows + threadIdx.x % 128 / 32 * 16 + lane/4, next = (box + 1) * h.box_rows;
    return { box, first_key<LIMITED>(h, w, first*h.box_rows) / L::KEYS, end_tile<L>(h, schedule, w),
             first_key<LIMITED>(h, w, box*h.box_rows) / L::KEYS, visible_tiles(h, next, L::KEYS),
             (first_key<LIMITED>(h, w, next - 1) + L::KEYS - 1) / L::KEYS, (box*h.box_rows / h.Q + 1) / L::KEYS,
             { row / h.Q - lane%4*2, (row + 8) / h.Q - lane%4*2 } };
}
// LIMITED: a warp leaves the first keys of its 16 rows in shared memory, for registers are short.
// first_keys: of the consumer's 64 rows.
template <bool LIMITED> __device__ static inline void keep_first_keys(int *first_keys, Packing h, WorkTile w, int box) {
    const int in = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32;
    if (!LIMITED) return;
    __syncwarp();
    if (threadIdx.x % 32 < 16) first_keys[in] = first_key<LIMITED>(h, w, box*h.box_rows + in);
    __syncwarp();
}
// Of a tile's scores, or weights, those of keys before the first that a row sees become `value`.
template <int KEYS, int COUNT> __device__ static inline void
mask_before(float (&s)[COUNT], float value, const int *first_keys, int tile) {
    const int *of = first_keys + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, from = tile*KEYS + threadIdx.x%4*2;
    const int first[2] = { of[0] - from, of[8] - from };
    #pragma unroll
    for (int i = 0; i < COUNT; i++) if (i/4*8 + i%2 < first[i/2%2]) s[i] = value;
}

// The producer, one thread. n counts work tiles, kv key/value tiles; load_rows(n, w, box) issues
// the copies of the n-th work tile's boxes from `box` on, load_later those of rows needed later.
template <int D, bool LIMITED, class L, class LoadRows, class LoadLater> __device__ static inline void
produce(const RowsBlock<L> &b, const CUtensorMap *kv_map, Packing h, Schedule schedule, LoadRows load_rows,
        LoadLater load_later) {
    unsigned number = draw_tile(h, schedule);
    for (int n = 0, kv = 0;; n++) {
        const WorkTile w = work_tile(number, h, schedule);
        const int box = first_box<L>(h, schedule, w), begin = first_key<LIMITED>(h, w, box*h.box_rows) / L::KEYS;
        auto load_k = [&](int i) {
            b.k.acquire(kv, L::tile);
            load_keys<D, L::KEYS>(b.k_tile(kv), kv_map, b.k.full(kv), i*L::KEYS, 0, w);
        };
        auto load_v = [&](int i) {
            b.v.acquire(kv, L::tile);
            load_keys<D, L::KEYS>(b.v_tile(kv), kv_map, b.v.full(kv), i*L::KEYS, 1, w);
        };
        if (w.tile >= 0) {
            number = draw_tile(h, schedule);                            // early: known when this tile is loaded
            load_k(begin);
        }
        b.q.wait_empty(n);
        b.work[n & 1] = w;
        if (w.tile < 0) { barrier_arrive(b.q.full(n)); break; }
        load_rows(n, w, box);
        load_v(begin);
        load_later(n, w, box);
        kv++;
        const int end = end_tile<L>(h, schedule, w);
        for (int i = begin + 1; i < end; i++, kv++) load_k(i), load_v(i);
    }
}
#endif

// ---- forward ------------------------------------------------------------------------------------

template <int D> struct Forward {                                       // sizes and offsets in bytes
    static constexpr int KEYS = 128, KV_STAGES = 2, STAGES = 1, CONSUMERS = D == 64 ? 3 : 2,
                                 THREADS = 128 * (CONSUMERS + 1);
    static constexpr int box = 64 * D * 2, tile = KEYS * D * 2;
    static constexpr int q = 0, out = CONSUMERS * box, k = 2 * out, v = k + KV_STAGES * tile,
                                 bytes = v + KV_STAGES * tile + 1024;
};

#if defined(HOPPER)
// The producer, one thread.
template <int D, bool LIMITED> __device__ static inline void
forward_produce(const RowsBlock<Forward<D>> &b, const CUtensorMap *q_map, const CUtensorMap *kv_map, Packing h,
                Schedule schedule) {
    typedef Forward<D> L;
    auto load_rows = [&](int n, WorkTile w, int box) {
        barrier_expect(b.q.full(n), L::CONSUMERS * h.box_rows * D * 2);
        #pragma unroll
        for (int i = 0; i < L::CONSUMERS; i++) load_box<D>(b.base + L::q + i*L::box, q_map, b.q.full(n), box + i, h, w);
    };
    auto nothing_later = [](int, WorkTile, int) {};
    produce<D, LIMITED>(b, kv_map, h, schedule, load_rows, nothing_later);
}

// The running softmax of a thread's two rows: top is the largest score so far times c, at first a
// number below all, not -infinity, from which scores of -infinity cannot be subtracted (a row may
// see nothing of its first tile); sum is of this thread's columns; shrink is what the last tile
// scaled earlier sums by.
struct Softmax { float top[2] = { -0x1p100f, -0x1p100f }, sum[2] = {}, shrink[2]; };

// One more tile of scores: s becomes p.
template <bool masked, int COUNT> __device__ static inline void
softmax_tile(float (&s)[COUNT], Softmax &state, const int (&last)[2], float c) {
    float max[4];
    if (masked)
        #pragma unroll
        for (int i = 0; i < COUNT; i++) if (i/4*8 + i%2 > last[i/2%2]) s[i] = -INFINITY;
    #pragma unroll
    for (int i = 0; i < COUNT; i++) max[i%4] = i < 4 ? s[i] : fmaxf(max[i%4], s[i]);
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        const float m = fmaxf(warp_max<4>(fmaxf(max[2*h], max[2*h + 1])) * c, state.top[h]);
        state.shrink[h] = exp2_fast(state.top[h] - m);
        state.top[h] = m;
        state.sum[h] *= state.shrink[h];
    }
    #pragma unroll
    for (int i = 0; i < COUNT; i++) {
        s[i] = exp2_fast(s[i] * c - state.top[i/2%2]);
        state.sum[i/2%2] += s[i];
    }
}

// A consumer's box: o = the sum of p v over the keys that its rows see, not divided by that of p.
template <int D, bool LIMITED> __device__ static inline void
forward_mainloop(float (&o)[D / 2], Softmax &state, const RowsBlock<Forward<D>> &b, uint32_t q, KeyRange range, float c,
                 const int *first_keys, int n, int &kv) {
    enum { KEYS = Forward<D>::KEYS };
    float s[KEYS / 2];
    uint32_t p[KEYS / 4];
    auto queue_scores = [&](int at) { b.k.wait_full(at), product_abt<KEYS, D>(s, q, b.k_tile(at)); };
    auto queue_values = [&](int at) { b.v.wait_full(at), product_ab<D, KEYS>(o, p, b.v_tile(at)); };
    auto softmax = [&](int i) {
        const int last[2] = { range.last[0] - i*KEYS, range.last[1] - i*KEYS };
        if (LIMITED && i < range.full) mask_before<KEYS>(s, -INFINITY, first_keys, i);
        if (i < range.unmasked) softmax_tile<false>(s, state, last, c);
        else                    softmax_tile<true>(s, state, last, c);
    };
    queue_scores(kv);
    wgmma_wait<0>();
    pin(s);
    b.k.release(kv);
    softmax(range.first);
    pack_operand(p, s);
    for (int i = range.first + 1; i < range.used; i++) {
        kv++;
        queue_scores(kv);
        queue_values(kv - 1);
        wgmma_wait<1>();                                                // the scores
        pin(s);
        b.k.release(kv);
        softmax(i);
        wgmma_wait<0>();
        pin(o);
        b.v.release(kv - 1);
        if (__any_sync(ALL, state.shrink[0] != 1 || state.shrink[1] != 1))      // maxima soon stop rising
            #pragma unroll
            for (int j = 0; j < D / 2; j++) o[j] *= state.shrink[j/2%2];
        pack_operand(p, s);
    }
    b.q.release(n);
    queue_values(kv);
    wgmma_wait<0>();
    pin(o);
    b.v.release(kv++);
}
// out = o / sum of p, lse = log of the sum of exp.
template <int D> __device__ static inline void
forward_epilogue(float (&o)[D / 2], Softmax &state, const CUtensorMap *out_map, float *lse, uint32_t out, int box,
                 int consumer, Packing h, WorkTile w) {
    const int thread = threadIdx.x % 128, lane = thread % 32;
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        float &sum = state.sum[i];
        sum += __shfl_xor_sync(ALL, sum, 1);
        sum += __shfl_xor_sync(ALL, sum, 2);
        const int in = thread/32*16 + lane/4 + 8*i, r = box*h.box_rows + in;
        if (lane%4 == 0 && in < h.box_rows && r < h.rows) lse[lse_index(h, w, r)] = (state.top[i] + log2f(sum)) * LN2;
        sum = 1 / sum;
    }
    #pragma unroll
    for (int j = 0; j < D / 2; j++) o[j] *= state.sum[j/2%2];
    if (thread == 0) bulk_wait_read<0>();                               // the last store has read the buffer
    store_box<D>(out_map, out, o, consumer, box, h, w);
}
#endif

// Reads 32 KB * D/64 from L2 for 64 * CONSUMERS rows and 128 keys; 4*D flop per visible pair.
template <int D, bool LIMITED> __global__ static void __launch_bounds__(Forward<D>::THREADS, 1)
attention_forward_kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap kv_map,
                         const __grid_constant__ CUtensorMap out_map, float *lse, Packing h, Schedule schedule) {
#if defined(HOPPER)
    typedef Forward<D> L;
    extern __shared__ unsigned char raw[];
    __shared__ uint64_t barriers[RowsBlock<L>::BARRIERS];
    __shared__ WorkTile work[2];
    __shared__ int first_keys_of[LIMITED ? L::CONSUMERS * 64 : 1];
    const int consumer = uniform(threadIdx.x / 128) - 1;                // -1: the producer
    const RowsBlock<L> b(raw, barriers, work);

    if (consumer < 0) {
        give_registers<L::CONSUMERS == 2 ? 40 : 32>();
        if (threadIdx.x == 0) forward_produce<D, LIMITED>(b, &q_map, &kv_map, h, schedule);
        return;
    }

    take_registers<L::CONSUMERS == 2 ? 232 : 160>();
    int *const first_keys = first_keys_of + (LIMITED ? consumer*64 : 0);
    const uint32_t q = b.base + L::q + consumer*L::box, out = b.base + L::out + consumer*L::box;
    const float c = LOG2E / sqrtf((float)D);
    for (int n = 0, kv = 0;; n++) {
        b.q.wait_full(n);
        WorkTile w = work[n & 1];
        w.tile = uniform(w.tile);
        if (w.tile < 0) break;
        const KeyRange range = key_range<L, LIMITED>(h, schedule, w, consumer);
        if (range.box < 0) {
            b.q.release(n);
            b.skip_tiles(kv, range.end - range.begin);
            continue;
        }
        float o[D / 2];
        #pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] = 0;
        Softmax state;
        keep_first_keys<LIMITED>(first_keys, h, w, range.box);
        b.skip_tiles(kv, range.first - range.begin);
        forward_mainloop<D, LIMITED>(o, state, b, q, range, c, first_keys, n, kv);
        b.skip_tiles(kv, range.end - range.used);
        forward_epilogue<D>(o, state, &out_map, lse, out, range.box, consumer, h, w);
    }
    if (threadIdx.x % 128 == 0) bulk_wait<0>();
#endif
}

// ---- backward: dq -------------------------------------------------------------------------------

template <int D> struct BackwardQ {                                     // sizes and offsets in bytes
    static constexpr int KEYS = 64, KV_STAGES = 4, STAGES = D == 64 ? 2 : 1, CONSUMERS = D == 64 ? 3 : 2;
    static constexpr int THREADS = 128 * (CONSUMERS + 1), box = 64 * D * 2, tile = KEYS * D * 2;
    static constexpr int q = 0, dout = CONSUMERS * box * STAGES, out = 2 * dout, k = out + CONSUMERS * box;
    static constexpr int v = k + KV_STAGES * tile, bytes = v + KV_STAGES * tile + 1024;
};

#if defined(HOPPER)
// The dot product of row `row` of two boxes, for the 4 lanes of the row.
template <int D> __device__ static inline float row_dot(uint32_t a, uint32_t b, int row) {
    float sum = 0;
    #pragma unroll
    for (int i = 0; i < D / 32; i++) {
        const uint32_t at = i/2*8192 + swizzled(row, i%2*4 + threadIdx.x%4);
        const Vec x = load_shared(a + at), y = load_shared(b + at);
        #pragma unroll
        for (int e = 0; e < VECTOR; e++) sum += R(x.x[e]) * R(y.x[e]);
    }
    sum += __shfl_xor_sync(ALL, sum, 1);
    return sum + __shfl_xor_sync(ALL, sum, 2);
}
// lse, in powers of two, and delta of this thread's two rows; also left in `stats` for backward_kv.
template <int D> __device__ static inline void
row_stats(float (&lse2)[2], float (&delta)[2], BoxStats &stats, const float *lse, uint32_t dout, uint32_t out, int box,
          Packing h, WorkTile w) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        const int in = threadIdx.x%128/32*16 + lane/4 + 8*i, r = box*h.box_rows + in;
        const bool exists = in < h.box_rows && r < h.rows;
        lse2[i] = exists ? lse[lse_index(h, w, r)] * LOG2E : INFINITY;
        delta[i] = row_dot<D>(dout, out, in);
        if (lane%4 == 0) stats.lse[stats_index(in)] = lse2[i], stats.delta[stats_index(in)] = exists ? delta[i] : 0;
    }
}
// The producer, one thread.
template <int D, bool LIMITED> __device__ static inline void
backward_q_produce(const RowsBlock<BackwardQ<D>> &b, const CUtensorMap *q_map, const CUtensorMap *dout_map,
                   const CUtensorMap *out_map, const CUtensorMap *kv_map, Packing h, Schedule schedule) {
    typedef BackwardQ<D> L;
    auto load_rows = [&](int n, WorkTile w, int box) {
        barrier_expect(b.q.full(n), L::CONSUMERS * 2 * h.box_rows * D * 2);
        for (int i = 0; i < L::CONSUMERS; i++) {
            const uint32_t to = b.base + (n % L::STAGES * L::CONSUMERS + i)*L::box;
            load_box<D>(to + L::q, q_map, b.q.full(n), box + i, h, w);
            load_box<D>(to + L::dout, dout_map, b.q.full(n), box + i, h, w);
        }
    };
    auto load_out = [&](int n, WorkTile w, int box) {
        b.out.acquire(n, L::CONSUMERS * h.box_rows * D * 2);
        for (int i = 0; i < L::CONSUMERS; i++)
            load_box<D>(b.base + L::out + i*L::box, out_map, b.out.full(n), box + i, h, w);
    };
    produce<D, LIMITED>(b, kv_map, h, schedule, load_rows, load_out);
}
// A consumer's box: dq = the sum of ds k over the keys that its rows see.
template <int D, bool LIMITED> __device__ static inline void
backward_q_mainloop(float (&dq)[D / 2], const float (&lse2)[2], const float (&delta)[2],
                    const RowsBlock<BackwardQ<D>> &b, uint32_t q, uint32_t dout, KeyRange range, float c,
                    const int *first_keys, int &kv) {
    enum { KEYS = BackwardQ<D>::KEYS };
    float s[KEYS / 2], dp[KEYS / 2];
    uint32_t ds[KEYS / 4];
    auto queue_scores = [&](int at) {
        b.k.wait_full(at);
        product_abt<KEYS, D>(s, q, b.k_tile(at));
        b.v.wait_full(at);
        product_abt<KEYS, D>(dp, dout, b.v_tile(at));
    };
    auto step = [&](int i, auto last) {                                 // last: no scores after these
        #pragma unroll
        for (int j = 0; j < KEYS / 2; j++) s[j] = exp2_fast(s[j] * c - lse2[j/2%2]);
        if (i >= range.unmasked)
            #pragma unroll
            for (int j = 0; j < KEYS / 2; j++) if (j/4*8 + j%2 > range.last[j/2%2] - i*KEYS) s[j] = 0;
        wgmma_wait<0>();                                                // dp, and dq of the last step
        pin(dp), pin(dq), pin(ds);
        b.v.release(kv);
        if (i > range.first) b.k.release(kv - 1);
        if (LIMITED && i < range.full) mask_before<KEYS>(s, 0, first_keys, i);
        #pragma unroll
        for (int j = 0; j < KEYS / 2; j++) s[j] *= dp[j] - delta[j/2%2];
        pack_operand(ds, s);
        if constexpr (!last.value) queue_scores(kv + 1);
        product_ab<D, KEYS>(dq, ds, b.k_tile(kv));
        if constexpr (!last.value) {
            wgmma_wait<2>();                                            // the next s
            pin(s);
        }
        kv++;
    };
    queue_scores(kv);
    wgmma_wait<1>();
    pin(s);
    for (int i = range.first; i + 1 < range.used; i++) step(i, Bool<false>());
    step(range.used - 1, Bool<true>());
    wgmma_wait<0>();
    pin(dq);
    b.k.release(kv - 1);
}
#endif

// p = exp(q k^T / sqrt(D) - lse), dp = do v^T, ds = p (dp - delta), delta = do . out, dq += ds k
// (staged where out was). The next keys' s and dp are queued before dq. 6*D flop per pair.
template <int D, bool LIMITED> __global__ static void __launch_bounds__(BackwardQ<D>::THREADS, 1)
attention_backward_q_kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap dout_map,
                            const __grid_constant__ CUtensorMap out_map, const __grid_constant__ CUtensorMap kv_map,
                            const __grid_constant__ CUtensorMap dq_map, BoxStats *stats, const float *lse, Packing h,
                            Schedule schedule) {
#if defined(HOPPER)
    typedef BackwardQ<D> L;
    extern __shared__ unsigned char raw[];
    __shared__ uint64_t barriers[RowsBlock<L>::BARRIERS];
    __shared__ WorkTile work[2];
    __shared__ int first_keys_of[LIMITED ? L::CONSUMERS * 64 : 1];
    const int consumer = uniform(threadIdx.x / 128) - 1, thread = threadIdx.x % 128;
    const RowsBlock<L> b(raw, barriers, work);

    if (consumer < 0) {
        give_registers<L::CONSUMERS == 2 ? 40 : 32>();
        if (threadIdx.x == 0) backward_q_produce<D, LIMITED>(b, &q_map, &dout_map, &out_map, &kv_map, h, schedule);
        return;
    }

    take_registers<L::CONSUMERS == 2 ? 232 : 160>();
    int *const first_keys = first_keys_of + (LIMITED ? consumer*64 : 0);
    const uint32_t out = b.base + L::out + consumer*L::box;
    const float c = LOG2E / sqrtf((float)D);
    for (int n = 0, kv = 0;; n++) {
        b.q.wait_full(n);
        WorkTile w = work[n & 1];
        w.tile = uniform(w.tile);
        if (w.tile < 0) break;
        const uint32_t q = b.base + L::q + (n % L::STAGES * L::CONSUMERS + consumer)*L::box, dout = q + L::dout - L::q;
        KeyRange range = key_range<L, LIMITED>(h, schedule, w, consumer);
        if (range.box < 0) {
            b.q.release(n), b.out.skip(n);
            b.skip_tiles(kv, range.end - range.begin);
            continue;
        }
        float dq[D / 2] = {}, lse2[2], delta[2];
        pin(dq);
        b.out.wait_full(n);
        row_stats<D>(lse2, delta, stats[(size_t)w.pair*h.boxes + range.box], lse, dout, out, range.box, h, w);
        keep_first_keys<LIMITED>(first_keys, h, w, range.box);
        b.skip_tiles(kv, range.first - range.begin);
        backward_q_mainloop<D, LIMITED>(dq, lse2, delta, b, q, dout, range, c, first_keys, kv);
        if (LIMITED) {                                                  // rather than kept in registers
            w = work[n & 1];
            range.end = end_tile<L>(h, schedule, w), range.box = first_box<L>(h, schedule, w) + consumer;
        }
        b.q.release(n);
        b.skip_tiles(kv, range.end - range.used);
        #pragma unroll
        for (int j = 0; j < D / 2; j++) dq[j] *= c * LN2;
        store_box<D>(&dq_map, out, dq, consumer, range.box, h, w);
        if (thread == 0) bulk_wait_read<0>();                           // before the next out may arrive there
        __syncwarp();
        b.out.release(n);
    }
    if (thread == 0) bulk_wait<0>();
#endif
}

// ---- backward: dk and dv ------------------------------------------------------------------------

template <int D> struct BackwardKV {                                    // sizes and offsets in bytes
    static constexpr bool AHEAD = D == 64;                      // are there registers to queue the next scores early?
    static constexpr int STAGES = 3, KV_STAGES = D == 64 ? 2 : 1, THREADS = 384, box = 64 * D * 2;
    static constexpr int k = 0, q = KV_STAGES * 4 * box, dout = q + STAGES * box, out = dout + STAGES * box;
    static constexpr int stats = out + 4 * box, bytes = stats + STAGES * (int)sizeof(BoxStats) + 1024;
};

#if defined(HOPPER)
template <int D> struct KeysBlock {
    typedef BackwardKV<D> L;
    uint32_t base;
    Pipeline<L::KV_STAGES> kv;                  // keys and values of a work tile: k of both consumers, v of both
    Pipeline<L::STAGES> rows;                   // boxes of q and do, and their stats
    WorkTile *work;                             // [2]: of work tile n in n & 1; full and empty with kv
    static constexpr int BARRIERS = 2 * (L::KV_STAGES + L::STAGES);

    __device__ KeysBlock(unsigned char *raw, uint64_t *barriers, WorkTile *w, Packing h) : work(w) {
        base = (shared_address(raw) + 1023) & ~1023u;
        kv = { shared_address(barriers) };
        rows = { kv.barriers + L::KV_STAGES*16 };
        if (threadIdx.x == 0) {
            kv.init(8), rows.init(8);
            fence_barrier_init();
        }
        if (h.box_rows < 64) {                                      // rows that no copy fills are operands too: zeros
            unsigned char *tiles = raw + (base - shared_address(raw));
            for (int i = L::q + threadIdx.x*16; i < L::out; i += L::THREADS*16)
                *(int4 *)(tiles + i) = make_int4(0, 0, 0, 0);
            fence_async_proxy();
        }
        __syncthreads();
    }
    __device__ uint32_t q_box(int r) const { return base + L::q + r % L::STAGES * L::box; }
    __device__ uint32_t dout_box(int r) const { return base + L::dout + r % L::STAGES * L::box; }
    __device__ uint32_t stats(int r) const { return base + L::stats + r % L::STAGES * (int)sizeof(BoxStats); }
    // The first box with a row that sees a key from `key` on.
    __device__ static int first_box(int key, Packing h) { return key * h.Q / h.box_rows; }
    // The box after the last one with a row that sees the key.
    template <bool LIMITED> __device__ static int end_box(int key, Packing h, WorkTile w) {
        return LIMITED ? (rows_until_unseen<LIMITED>(h, w, key) - 1) / h.box_rows + 1 : h.boxes;
    }
};

// The producer, one thread. n counts work tiles, r boxes of rows.
template <int D, bool LIMITED> __device__ static inline void
backward_kv_produce(const KeysBlock<D> &b, const CUtensorMap *q_map, const CUtensorMap *dout_map,
                    const CUtensorMap *kv_map, const BoxStats *stats, Packing h, Schedule schedule) {
    typedef BackwardKV<D> L;
    unsigned number = draw_tile(h, schedule);
    for (int n = 0, r = 0;; n++) {
        WorkTile w = work_tile(number, h, schedule);
        if (w.tile >= 0) {
            number = draw_tile(h, schedule);
            w.tile = schedule.tiles - 1 - w.tile;                       // most rows see the first keys
        }
        const int end = w.tile < 0 ? 0 : b.template end_box<LIMITED>(w.tile*128 + 127, h, w);
        b.kv.wait_empty(n);
        b.work[n & 1] = w;
        if (w.tile < 0) { barrier_arrive(b.kv.full(n)); break; }
        barrier_expect(b.kv.full(n), 4 * L::box);
        #pragma unroll
        for (int i = 0; i < 4; i++)
            load_keys<D, 64>(b.base + L::k + (n % L::KV_STAGES * 4 + i)*L::box, kv_map, b.kv.full(n),
                             w.tile*128 + i%2*64, i/2, w);
        for (int box = b.first_box(w.tile*128, h); box < end; box++, r++) {
            b.rows.acquire(r, 2 * h.box_rows * D * 2 + (int)sizeof(BoxStats));
            load_box<D>(b.q_box(r), q_map, b.rows.full(r), box, h, w);
            load_box<D>(b.dout_box(r), dout_map, b.rows.full(r), box, h, w);
            bulk_load(b.stats(r), stats + (size_t)w.pair*h.boxes + box, b.rows.full(r), (int)sizeof(BoxStats));
        }
    }
}

// A consumer's keys from k0 on: dk, dv over boxes box .. end - 1. k, v: keys, values (shared).
// work: the work tile, in shared memory.
template <int D, bool LIMITED> __device__ static inline void
backward_kv_mainloop(float (&dk)[D / 2], float (&dv)[D / 2], const KeysBlock<D> &b, uint32_t k, uint32_t v, int k0,
                     int box, int end, float c, Packing h, const WorkTile &work, int &r) {
    constexpr bool AHEAD = BackwardKV<D>::AHEAD;
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const int all_see = rows_until_unseen<LIMITED>(h, work, k0);        // rows before this one see the first key
    float p[32], dp[32]; uint32_t p_operand[16], ds_operand[16];
    auto queue_scores = [&](int at) { b.rows.wait_full(at), product_abt<64, D>(p, k, b.q_box(at)); };
    auto step = [&](int i, auto last) {                                 // last: no scores after these
        const uint32_t stats = b.stats(r) + lane%4 * 16;
        if constexpr (AHEAD) wgmma_wait<0>();
        else queue_scores(r);
        product_abt<64, D>(dp, v, b.dout_box(r));
        if constexpr (!AHEAD) wgmma_wait<1>();
        pin(p);
        #pragma unroll
        for (int j = 0; j < 32; j += 8) {
            const float4 lse = load_shared_floats(stats + 8*j);
            #pragma unroll
            for (int e = 0; e < 8; e++)
                p[j + e] = exp2_fast(p[j + e] * c - (e < 4 ? e%2 ? lse.y : lse.x : e%2 ? lse.w : lse.z));
        }
        if ((k0 + 63) * h.Q > i * h.box_rows)                           // the first row does not see the last key
            #pragma unroll
            for (int j = 0; j < 32; j++)
                if ((k0 + warp*16 + lane/4 + j/2%2*8) * h.Q > i * h.box_rows + j/4*8 + lane%4*2 + j%2) p[j] = 0;
        if (LIMITED && (i + 1) * h.box_rows > all_see) {                // the last row does not see the first key
            const int key = k0 + warp*16 + lane/4, from = i*h.box_rows + lane%4*2;
            const int until[2] = { rows_until_unseen<LIMITED>(h, work, key) - from,
                                   rows_until_unseen<LIMITED>(h, work, key + 8) - from };
            #pragma unroll
            for (int j = 0; j < 32; j++) if (j/4*8 + j%2 >= until[j/2%2]) p[j] = 0;
        }
        pack_operand(p_operand, p);
        product_ab<D, 64>(dv, p_operand, b.dout_box(r));
        wgmma_wait<1>();                                                // dp
        pin(dp);
        #pragma unroll
        for (int j = 0; j < 32; j += 8) {
            const float4 delta = load_shared_floats(stats + 8*j + (int)offsetof(BoxStats, delta));
            #pragma unroll
            for (int e = 0; e < 8; e++)
                p[j + e] *= dp[j + e] - (e < 4 ? e%2 ? delta.y : delta.x : e%2 ? delta.w : delta.z);
        }
        pack_operand(ds_operand, p);
        product_ab<D, 64>(dk, ds_operand, b.q_box(r));
        if constexpr (last.value || !AHEAD) wgmma_wait<0>();
        else {
            queue_scores(r + 1);
            wgmma_wait<1>();                                            // dv and dk
        }
        pin(dv);
        pin(dk);
        b.rows.release(r++);
    };
    if (box >= end) return;
    if (AHEAD) queue_scores(r);
    for (; box + 1 < end; box++) step(box, Bool<false>());
    step(box, Bool<true>());
}
#endif

// Scores are transposed, keys down and rows across, so p^T and ds^T are the next operands a:
//     p^T = exp(k q^T / sqrt(D) - lse), dp^T = v do^T, ds^T = p^T (dp^T - delta), dv += p^T do,
//     dk += ds^T q.  8*D flop per pair.
template <int D, bool LIMITED> __global__ static void __launch_bounds__(BackwardKV<D>::THREADS, 1)
attention_backward_kv_kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap dout_map,
                             const __grid_constant__ CUtensorMap kv_map, const __grid_constant__ CUtensorMap dkv_map,
                             const BoxStats *stats, Packing h, Schedule schedule) {
#if defined(HOPPER)
    typedef BackwardKV<D> L;
    extern __shared__ unsigned char raw[];
    __shared__ uint64_t barriers[KeysBlock<D>::BARRIERS];
    __shared__ WorkTile work[2];
    const int consumer = uniform(threadIdx.x / 128) - 1, thread = threadIdx.x % 128;
    const KeysBlock<D> b(raw, barriers, work, h);

    if (consumer < 0) {
        give_registers<56>();
        if (threadIdx.x == 0) backward_kv_produce<D, LIMITED>(b, &q_map, &dout_map, &kv_map, stats, h, schedule);
        return;
    }

    take_registers<224>();
    const uint32_t out = b.base + L::out + consumer*2*L::box;           // dk, then dv
    const float c = LOG2E / sqrtf((float)D);
    for (int n = 0, r = 0;; n++) {
        b.kv.wait_full(n);
        const int tile = uniform(work[n & 1].tile);
        if (tile < 0) break;
        const uint32_t k = b.base + L::k + (n % L::KV_STAGES * 4 + consumer)*L::box, v = k + 2*L::box;
        const int k0 = tile*128 + consumer*64;
        float dk[D / 2], dv[D / 2];
        #pragma unroll
        for (int i = 0; i < D / 2; i++) dk[i] = dv[i] = 0;
        pin(dk), pin(dv);

        int box = b.first_box(tile*128, h);
        const int loaded = b.template end_box<LIMITED>(tile*128 + 127, h, work[n & 1]);
        const int end = b.template end_box<LIMITED>(k0 + 63, h, work[n & 1]);
        const int first = min(b.first_box(k0, h), loaded);              // rows before see none of this consumer's keys
        for (; box < first; box++) b.rows.skip(r++);
        backward_kv_mainloop<D, LIMITED>(dk, dv, b, k, v, k0, box, end, c, h, work[n & 1], r);
        if (LIMITED) for (box = max(first, end); box < loaded; box++) b.rows.skip(r++);
        const WorkTile w = work[n & 1];                                 // read before it may be overwritten
        b.kv.release(n);

        #pragma unroll
        for (int j = 0; j < D / 2; j++) dk[j] *= c * LN2;
        if (thread == 0) bulk_wait_read<0>();
        consumer_sync(consumer);
        stage_rows<D>(out, dk);
        stage_rows<D>(out + L::box, dv);
        fence_async_proxy();
        consumer_sync(consumer);
        if (thread == 0) {
            store_rows<D>(&dkv_map, out, make_int4(k0, w.g, 0, w.b));
            store_rows<D>(&dkv_map, out + L::box, make_int4(k0, w.g, 1, w.b));
            bulk_commit();
        }
    }
    if (thread == 0) bulk_wait<0>();
#endif
}

// ---- the host's side ----------------------------------------------------------------------------

// The packed rows of x (B,T,Q*G,D) as a map {column, within fold, fold, key/value head, sequence}.
static bool map_rows(CUtensorMap *map, const void *x, Packing h, int D) {
    const uint64_t d = (uint64_t)D, G = (uint64_t)h.G, Q = (uint64_t)h.Q, fold = (uint64_t)h.fold,
        rows = (uint64_t)h.rows;
    const uint64_t extent[] = { d, fold, rows / fold, G, (uint64_t)(h.pairs / h.G) };
    const uint64_t folded[] = { d, Q*G*d, Q*d, rows*G*d }, even[] = { G*d, G*d, d, rows*G*d };
    const uint32_t box[] = { 64, (uint32_t)h.fold, (uint32_t)(h.box_rows / h.fold), 1, 1 };
    return tensor_map_of(map, x, 2, 5, extent, h.fold > 1 ? folded : even, box);
}
// kv (B,T,2,G,D) as a map {column, key, key/value head, key or value, sequence}.
static bool map_keys(CUtensorMap *map, const void *x, Packing h, int D, int keys) {
    const uint64_t d = (uint64_t)D, G = (uint64_t)h.G, T = (uint64_t)h.T;
    const uint64_t extent[] = { d, T, G, 2, (uint64_t)(h.pairs / h.G) };
    const uint64_t pitch[] = { 2*G*d, d, G*d, T*2*G*d };
    const uint32_t box[] = { 64, (uint32_t)keys, 1, 1, 1 };
    return tensor_map_of(map, x, 2, 5, extent, pitch, box);
}
static Packing packing_of(HeadOrder order, int B, int T, int G, int Q, const int *reach) {
    const int fold = order == HEADS_TILED ? 1 : Q, box_rows = 64 / fold * fold;
    return { order, T, G, Q, B*G, T*Q, fold, box_rows, (int)divide_up((size_t)T*Q, (size_t)box_rows), reach, NULL };
}
// last (B,T): the last token that sees a key. A search, for first keys never decrease.
__global__ static void last_token_kernel(int *last, const int *reach, int B, int T) {
    const size_t i = global_index();
    if (i >= (size_t)B*T) return;
    const int key = (int)(i % T), *of = reach + (i - key);
    int sees = key, unseen = T;
    while (unseen - sees > 1) {
        const int t = (sees + unseen) / 2;
        (t - of[t] <= key ? sees : unseen) = t;
    }
    last[i] = sees;
}
// Tiles of `size` out of `count` boxes or keys of a pair. A group has up to four tiles for every
// SM: few enough for its keys to stay in L2, and enough for the largest tiles of the last group to
// be done before its small ones run out. Groups differ by at most a pair: no small last one.
static Schedule schedule_of(Packing h, int count, int size) {
    const int tiles = (int)divide_up((size_t)count, (size_t)size);
    const size_t all = (size_t)h.pairs * (size_t)tiles, groups = divide_up(all, (size_t)4 * context()->sm_count);
    const int n = groups < (size_t)h.pairs ? (int)groups : h.pairs;
    return { tiles, h.pairs / n, h.pairs % n, context()->work_counter };
}
static unsigned blocks_for(Packing h, Schedule schedule) {
    return (unsigned)min(schedule.tiles * h.pairs, context()->sm_count);
}
static bool can_use(const void *a, const void *b, const void *c, const void *d, int B, int T, int Q, int D) {
    return context()->arch == 90 && (D == 64 || D == 128) && Q <= 64 && B > 0 && T > 0
        && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) % 16 == 0;
}

// False: the driver cannot make the maps; nothing was done.
template <int D> static bool launch_forward(floatX *out, float *lse, const floatX *q, const floatX *kv, Packing h) {
    typedef Forward<D> L;
    CUtensorMap q_map, kv_map, out_map;
    if (!map_rows(&q_map, q, h, D) || !map_rows(&out_map, out, h, D) || !map_keys(&kv_map, kv, h, D, L::KEYS))
        return false;
    const Schedule schedule = schedule_of(h, h.boxes, L::CONSUMERS);
    auto *kernel = h.reach ? attention_forward_kernel<D, true> : attention_forward_kernel<D, false>;
    LAUNCH(kernel, blocks_for(h, schedule), L::THREADS, L::bytes, q_map, kv_map, out_map, lse, h, schedule);
    return true;
}
template <int D> static bool launch_backward(floatX *dq, floatX *dkv, const floatX *dout, const floatX *out,
                                             const float *lse, const floatX *q, const floatX *kv, Packing h) {
    typedef BackwardQ<D> LQ;
    typedef BackwardKV<D> LKV;
    CUtensorMap q_map, dout_map, out_map, dq_map, kv_map, dkv_map;
    if (!map_rows(&q_map, q, h, D) || !map_rows(&dout_map, dout, h, D) || !map_rows(&out_map, out, h, D)
        || !map_rows(&dq_map, dq, h, D) || !map_keys(&kv_map, kv, h, D, 64) || !map_keys(&dkv_map, dkv, h, D, 64))
        return false;
    const Schedule by_rows = schedule_of(h, h.boxes, LQ::CONSUMERS), by_keys = schedule_of(h, h.T, 128);
    const size_t boxes = (size_t)h.boxes * h.pairs, tokens = (size_t)h.pairs / h.G * h.T;
    BoxStats *stats = (BoxStats *)workspace(boxes * sizeof *stats + tokens * sizeof *h.last);
    int *last = (int *)(stats + boxes);
    h.last = last;
    auto *for_q = h.reach ? attention_backward_q_kernel<D, true> : attention_backward_q_kernel<D, false>;
    auto *for_kv = h.reach ? attention_backward_kv_kernel<D, true> : attention_backward_kv_kernel<D, false>;
    if (h.reach) LAUNCH(last_token_kernel, (unsigned)divide_up(tokens, 256), 256, 0, last, h.reach, h.pairs / h.G, h.T);
    LAUNCH(for_q, blocks_for(h, by_rows), LQ::THREADS, LQ::bytes,
           q_map, dout_map, out_map, kv_map, dq_map, stats, lse, h, by_rows);
    LAUNCH(for_kv, blocks_for(h, by_keys), LKV::THREADS, LKV::bytes,
           q_map, dout_map, kv_map, dkv_map, stats, h, by_keys);
    return true;
}

static Device portable;         // attention.cu, for other sizes

static void attention_forward(floatX *out, float *lse, const floatX *q, const floatX *kv, const int *reach,
                              HeadOrder order, int B, int T, int G, int Q, int D) {
    const Packing h = packing_of(order, B, T, G, Q, reach);
    if (!can_use(out, q, kv, NULL, B, T, Q, D)
        || !(D == 64 ? launch_forward<64>(out, lse, q, kv, h) : launch_forward<128>(out, lse, q, kv, h)))
        portable.attention_forward(out, lse, q, kv, reach, order, B, T, G, Q, D);
}
static void attention_backward(floatX *dq, floatX *dkv, const floatX *dout, const floatX *out, const float *lse,
                               const floatX *q, const floatX *kv, const int *reach, HeadOrder order, int B, int T,
                               int G, int Q, int D) {
    const Packing h = packing_of(order, B, T, G, Q, reach);
    if (!can_use(dq, dkv, dout, out, B, T, Q, D) || !can_use(q, kv, NULL, NULL, B, T, Q, D)
        || !(D == 64 ? launch_backward<64>(dq, dkv, dout, out, lse, q, kv, h)
                     : launch_backward<128>(dq, dkv, dout, out, lse, q, kv, h)))
        portable.attention_backward(dq, dkv, dout, out, lse, q, kv, reach, order, B, T, G, Q, D);
}

PART(attention_hopper) {
    portable = *d;
    d->attention_forward = attention_forward;
    d->attention_backward = attention_backward;
}
#else
PART(attention_hopper) { (void)d; }
#endif
