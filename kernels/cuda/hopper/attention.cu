// attention_hopper.cu: causal attention by Hopper's own instructions (sm_90a, bf16, heads of 64 or 128 elements).
// What is computed, and what packed rows are, stands in attention.cu, which does whatever these kernels cannot; the
// instructions are in pipeline.cuh and wgmma.cuh; here is how the tensor cores are kept busy.
//
//   block        one to an SM, which takes one tile of work after the other until there is none: a producer
//                warpgroup, of which one thread orders all copies, always ahead of their use, and two or three
//                consumer warpgroups, which own 64 rows (or keys) each. Tiles are handed out by a counter, those with
//                most work first, so that the SMs end together. Which SM makes a tile changes no bit of it.
//   copies       The copy engine knows q as {column, head of the group, token, group, sequence}, so that one box is
//                64 packed rows of whichever order of heads, and rows past the end come as zeros and are not written.
//                With Q heads to a group, Q not a power of two, a box holds as many whole tokens as fit in 64 rows:
//                h.fill rows.
//   softmax      takes as long as a product: exp2 is had 16 times a clock, while the tensor cores do 4096 flop. So it
//                has to run while they multiply: the scores of the next tile are queued before the weights of this
//                one are made, and the warpgroups, in no fixed order, fill each other's gaps.
//   registers    p and ds are made where the next product wants its first factor: in registers. They never go to
//                shared memory.
//   backward     two kernels, one that owns queries and makes dq, one that owns keys and makes dk and dv, 7 products
//                instead of 5: no sum has two owners. (One kernel, which adds dq in memory, tile after tile in a fixed
//                order, was no faster: docs/LOG.md.)
#include "pipeline.cuh"
#include "wgmma.cuh"

#if defined(PRECISION_BF16)

// pairs: B*G; count: packed rows of a pair, T*Q; fold: rows of a token, if they lie at another distance than tokens do,
// else 1; fill: rows in a box, 64 or a little less; boxes: of a pair.
struct Heads { HeadOrder order; int T, G, Q, pairs, count, fold, fill, boxes; };

// The work on a (sequence, key/value head) pair is cut into `tiles`. Pairs are taken `group` at a time, in the first `more`
// groups one more, and of a group's tiles the largest first: so their keys stay in L2.
struct Order { int tiles, group, more; };
struct Work { int tile, g, b, pair; };
[[maybe_unused]] static __device__ unsigned next_number;        // 0 between kernels: the last to ask sets it back

// What backward keeps of a box of rows between its two kernels: lse in powers of two, and delta. Rows that do not
// exist have an infinite lse, which makes their p zero.
struct Stats { float lse[64], delta[64]; };
// Where in them row `in` of the box is: a thread of hopper_keys reads its four columns of 16 at once.
[[maybe_unused]] __device__ static inline int stat_of(int in) { return in/16*16 + in%8/2*4 + in/8%2*2 + in%2; }

#if defined(HOPPER)

// The same number in all lanes of a warp, said so that the compiler knows. Without it the descriptors of wgmma would be
// computed by every thread and then moved to the warp's registers, one by one, between the instructions.
__device__ static inline int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

// The next piece of work; tile -1 if there is none. Every block asks until it has got that answer, once.
__device__ static inline unsigned take_number(Heads h, Order o) {
    return atomicInc(&next_number, (unsigned)(h.pairs * o.tiles) + gridDim.x - 1);
}
__device__ static inline Work work_of(unsigned number, Heads h, Order o) {
    if (number >= (unsigned)(h.pairs * o.tiles)) return { -1, 0, 0, 0 };
    const int at = (int)number / o.tiles, wide = o.more * (o.group + 1), width = o.group + (at < wide);
    const int first = at < wide ? at / width * width : wide + (at - wide) / width * width, in = (int)number - first*o.tiles;
    const int pair = first + in % width;
    return { o.tiles - 1 - in / width, pair % h.G, pair / h.G, pair };
}

template <bool b> struct Bool { static constexpr bool value = b; };

// The producer orders a box of rows, slab by slab: of the packed rows from `box` on, or of the keys (which 0) or
// values (1).
template <int D> __device__ static inline void
load_rows(uint32_t to, const CUtensorMap *map, uint32_t barrier, int box, Heads h, Work w) {
    #pragma unroll
    for (int d = 0; d < D; d += 64)
        bulk_load(to + d*128, map, barrier, d, make_int4(0, box * h.fill / h.fold, w.g, w.b));
}
template <int D, int KEYS> __device__ static inline void
load_keys(uint32_t to, const CUtensorMap *map, uint32_t barrier, int key, int which, Work w) {
    #pragma unroll
    for (int d = 0; d < D; d += 64) bulk_load(to + d*KEYS*2, map, barrier, d, make_int4(key, w.g, which, w.b));
}

// Element i of an accumulator, i = 4n + 2h + c, is in row lane/4 + 8h and column 8n + lane%4*2 + c of its warp's 16
// rows.

// d = a b^T for 64 rows of a and N of b, D columns each, in slabs of 64 columns.
template <int N, int D> __device__ static inline void multiply_along(float (&d)[N / 2], uint32_t a, uint32_t b) {
    const uint64_t x = descriptor(a, K_MAJOR), y = descriptor(b, K_MAJOR);
    pin(d);
    wgmma_fence();
    #pragma unroll
    for (int k = 0; k < D / 16; k++)
        wgmma<N, K_MAJOR, K_MAJOR>(d, advance(x, k/4*8192 + k%4*32), advance(y, k/4*N*128 + k%4*32), k > 0);
    wgmma_commit();
}
// d += a b for COUNT columns of a, in registers, and as many rows of b.
template <int D, int COUNT> __device__ static inline void
multiply_registers(float (&d)[D / 2], uint32_t (&a)[COUNT / 4], uint32_t b) {
    const uint64_t y = descriptor(b, MN_MAJOR, COUNT*128);
    pin(d);
    pin(a);
    wgmma_fence();
    #pragma unroll
    for (int k = 0; k < COUNT / 16; k++) wgmma<D, MN_MAJOR>(d, &a[4*k], advance(y, k*2048), 1);
    wgmma_commit();
}
// Sums to factors of the next product.
template <int COUNT> __device__ static inline void round_pairs(uint32_t (&p)[COUNT / 2], const float (&s)[COUNT]) {
    #pragma unroll
    for (int i = 0; i < COUNT / 2; i++) p[i] = pack_bf16(s[2*i], s[2*i + 1]);
}
// 64 rows of D from registers to slabs of 64 columns, 8 KB each, as bulk copies want them.
template <int D> __device__ static inline void place_rows(uint32_t slab, const float (&x)[D / 2]) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
    #pragma unroll
    for (int i = 0; i < D / 2; i += 8)
        stmatrix(slab + i/32 * 8192 + row*128 + ((i/4 % 8 + lane/16 ^ row % 8) << 4), pack_bf16(x[i], x[i + 1]),
                 pack_bf16(x[i + 2], x[i + 3]), pack_bf16(x[i + 4], x[i + 5]), pack_bf16(x[i + 6], x[i + 7]));
}
// The product of row `row` of two tiles, of 64 rows in slabs of 64 columns: the 4 lanes of the row get it.
template <int D> __device__ static inline float row_product(uint32_t a, uint32_t b, int row) {
    float sum = 0;
    #pragma unroll
    for (int i = 0; i < D / 32; i++) {
        const uint32_t at = i/2*8192 + row*128 + ((i%2*4 + threadIdx.x%4 ^ row%8) << 4);
        const Vec x = load_shared(a + at), y = load_shared(b + at);
        #pragma unroll
        for (int e = 0; e < VECTOR; e++) sum += R(x.x[e]) * R(y.x[e]);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}
// Where lse of packed row r is.
__device__ static inline size_t lse_at(Heads h, Work w, int r) {
    const int t = r / h.Q, j = r - t*h.Q;
    return ((size_t)w.b*h.T + t)*h.G*h.Q + (h.order == HEADS_TILED ? j*h.G + w.g : w.g*h.Q + j);
}
// Tiles of keys that the packed rows before `row` see, some of them.
__device__ static inline int key_tiles(Heads h, int row, int keys) { return (min(row, h.count) - 1) / h.Q / keys + 1; }

// One more tile of scores for the softmax of this thread's two rows: s becomes p, top the largest score so far times
// c, and sum, of this thread's columns, is scaled by shrink like all that was summed before. last: the last column
// that a row sees, counted from this thread's first.
template <bool masked, int COUNT> __device__ static inline void
soften(float (&s)[COUNT], float (&top)[2], float (&sum)[2], float (&shrink)[2], const int (&last)[2], float c) {
    float max[4];
    if (masked)
        #pragma unroll
        for (int i = 0; i < COUNT; i++) if (i/4*8 + i%2 > last[i/2%2]) s[i] = -INFINITY;
    #pragma unroll
    for (int i = 0; i < COUNT; i++) max[i%4] = i < 4 ? s[i] : fmaxf(max[i%4], s[i]);
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        float m = fmaxf(max[2*h], max[2*h + 1]);
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        m = fmaxf(m * c, top[h]);
        shrink[h] = exp2_fast(top[h] - m);
        top[h] = m;
        sum[h] *= shrink[h];
    }
    #pragma unroll
    for (int i = 0; i < COUNT; i++) {
        s[i] = exp2_fast(s[i] * c - top[i/2%2]);
        sum[i/2%2] += s[i];
    }
}

// ---- tiles of rows: what forward and the first half of backward have in common --------------------------------------------
//
// A tile is a box of 64 rows for each consumer, past which the keys and values that they see come in tiles of their own,
// first to last, so that blocks of one pair read the same ones at about the same time. If a pair's boxes do not make up
// whole tiles, the first tile lacks some, which has least work; boxes before the first have negative numbers.

// Of a consumer: its box; how many tiles of keys come past, how many of them its rows see some of, and how many all of;
// the last keys that this thread's two rows see, counted from its first column.
struct View { int box, all, end, whole, sees[2]; };

template <class At> __device__ static inline int first_box(Heads h, Order o, Work w) {
    return h.boxes - (o.tiles - w.tile) * At::CONSUMERS;
}
template <class At> __device__ static inline View view_of(Heads h, Order o, Work w, int mine) {
    const int first = first_box<At>(h, o, w), box = first + mine, lane = threadIdx.x % 32;
    const int row = box*h.fill + threadIdx.x % 128 / 32 * 16 + lane/4;
    return { box, key_tiles(h, (first + At::CONSUMERS) * h.fill, At::KEYS), key_tiles(h, (box + 1) * h.fill, At::KEYS),
             (box*h.fill / h.Q + 1) / At::KEYS, { row / h.Q - lane%4*2, (row + 8) / h.Q - lane%4*2 } };
}

// The producer: tiles of rows in q_ring, of keys and values in theirs. rows(n, w, box) orders the n-th tile's boxes, and
// more(n, w, box) what is needed later.
template <int D, class At, class Rows, class More> __device__ static inline void
bring(const CUtensorMap *kv_map, uint32_t base, Pipeline<At::STAGES> q_ring, Pipeline<At::TILES> k_ring, Pipeline<At::TILES> v_ring,
      Work *work, Heads h, Order order, Rows rows, More more) {
    unsigned number = take_number(h, order);
    for (int n = 0, turn = 0;; n++) {
        const Work w = work_of(number, h, order);
        const int box = first_box<At>(h, order, w);
        auto load = [&](Pipeline<At::TILES> ring, int tiles, int i, int which) {
            ring.acquire(turn, At::tile);
            load_keys<D, At::KEYS>(base + tiles + turn % At::TILES * At::tile, kv_map, ring.full(turn), i*At::KEYS, which, w);
        };
        if (w.tile >= 0) {
            number = take_number(h, order);
            load(k_ring, At::k, 0, 0);
        }
        q_ring.wait_empty(n);
        work[n & 1] = w;
        if (w.tile < 0) { barrier_arrive(q_ring.full(n)); break; }
        rows(n, w, box);
        load(v_ring, At::v, 0, 1);
        more(n, w, box);
        turn++;
        for (int i = 1, end = key_tiles(h, (box + At::CONSUMERS) * h.fill, At::KEYS); i < end; i++, turn++) {
            load(k_ring, At::k, i, 0);
            load(v_ring, At::v, i, 1);
        }
    }
}
#endif

// ---- forward ------------------------------------------------------------------------------------------------------------

template <int D> struct Forward {
    static constexpr int KEYS = 128, TILES = 2, STAGES = 1, CONSUMERS = D == 64 ? 3 : 2, THREADS = 128 * (CONSUMERS + 1);
    static constexpr int box = 64 * D * 2, tile = KEYS * D * 2;                 // bytes of a consumer's rows, of a tile of keys
    static constexpr int q = 0, out = CONSUMERS * box, k = 2 * out, v = k + 2 * tile, bytes = v + 2 * tile + 1024;
};

// hopper_forward: a consumer stops at the last key that its own rows see. 4*D flop per visible (row, key) pair, 32 KB *
// D/64 read from L2 for 64 * CONSUMERS rows and 128 keys.
template <int D> __global__ static void __launch_bounds__(Forward<D>::THREADS, 1)
hopper_forward(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap kv_map,
               const __grid_constant__ CUtensorMap out_map, float *lse, Heads h, Order order) {
#if defined(HOPPER)
    typedef Forward<D> At;
    enum { KEYS = At::KEYS, CONSUMERS = At::CONSUMERS };
    extern __shared__ unsigned char raw[];
    __shared__ uint64_t barriers[10];
    __shared__ Work work[2];
    const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
    const Pipeline<1> q_ring = { shared_address(barriers) };
    const Pipeline<2> k_ring = { q_ring.barriers + 16 }, v_ring = { q_ring.barriers + 48 };
    const int mine = uniform(threadIdx.x / 128) - 1, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    if (threadIdx.x == 0) {
        q_ring.init(CONSUMERS * 4), k_ring.init(CONSUMERS * 4), v_ring.init(CONSUMERS * 4);
        fence_barrier_init();
    }
    __syncthreads();

    if (mine < 0) {
        give_registers<CONSUMERS == 2 ? 40 : 32>();
        auto rows = [&](int n, Work w, int box) {
            barrier_expect(q_ring.full(n), CONSUMERS * h.fill * D * 2);
            #pragma unroll
            for (int i = 0; i < CONSUMERS; i++) load_rows<D>(base + At::q + i*At::box, &q_map, q_ring.full(n), box + i, h, w);
        };
        auto none = [](int, Work, int) {};
        if (threadIdx.x == 0) bring<D, At>(&kv_map, base, q_ring, k_ring, v_ring, work, h, order, rows, none);
        return;
    }

    take_registers<CONSUMERS == 2 ? 232 : 160>();
    const uint32_t q_mine = base + At::q + mine*At::box, out_mine = base + At::out + mine*At::box;
    const float c = LOG2E / sqrtf((float)D);
    for (int n = 0, turn = 0;; n++) {
        q_ring.wait_full(n);
        Work w = work[n & 1];
        w.tile = uniform(w.tile);
        if (w.tile < 0) break;
        const View view = view_of<At>(h, order, w, mine);
        auto pass = [&](int tiles) { for (; tiles > 0; tiles--, turn++) k_ring.skip(turn), v_ring.skip(turn); };
        if (view.box < 0) {
            q_ring.release(n);
            pass(view.all);
            continue;
        }
        float o[D / 2], s[KEYS / 2], top[2] = { -INFINITY, -INFINITY }, sum[2] = {}, shrink[2];
        uint32_t p[KEYS / 4];
        #pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] = 0;

        auto scores = [&](int at) {
            k_ring.wait_full(at);
            multiply_along<KEYS, D>(s, q_mine, base + At::k + at % 2 * At::tile);
        };
        auto values = [&](int at) {
            v_ring.wait_full(at);
            multiply_registers<D, KEYS>(o, p, base + At::v + at % 2 * At::tile);
        };
        auto weigh = [&](int i) {
            const int last[2] = { view.sees[0] - i*KEYS, view.sees[1] - i*KEYS };
            if (i < view.whole) soften<false>(s, top, sum, shrink, last, c);
            else                soften<true>(s, top, sum, shrink, last, c);
        };
        scores(turn);
        wgmma_wait<0>();
        pin(s);
        k_ring.release(turn);
        weigh(0);
        round_pairs(p, s);
        for (int i = 1; i < view.end; i++) {
            turn++;
            scores(turn);
            values(turn - 1);
            wgmma_wait<1>();
            pin(s);
            k_ring.release(turn);
            weigh(i);
            wgmma_wait<0>();
            pin(o);
            v_ring.release(turn - 1);
            if (__any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1))      // maxima soon stop rising
                #pragma unroll
                for (int j = 0; j < D / 2; j++) o[j] *= shrink[j/2%2];
            round_pairs(p, s);
        }
        q_ring.release(n);
        values(turn);
        wgmma_wait<0>();
        pin(o);
        v_ring.release(turn++);
        pass(view.all - view.end);                                      // for the others' rows

        #pragma unroll
        for (int i = 0; i < 2; i++) {
            sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
            sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
            const int in = warp*16 + lane/4 + 8*i, r = view.box*h.fill + in;
            if (lane%4 == 0 && in < h.fill && r < h.count)
                lse[lse_at(h, w, r)] = (top[i] + log2f(sum[i])) * LN2;
            sum[i] = 1 / sum[i];
        }
        #pragma unroll
        for (int j = 0; j < D / 2; j++) o[j] *= sum[j/2%2];
        if (thread == 0) bulk_wait_read<0>();
        named_barrier_sync(1 + mine, 128);
        place_rows<D>(out_mine, o);
        fence_async_proxy();
        named_barrier_sync(1 + mine, 128);
        if (thread == 0) {
            #pragma unroll
            for (int d = 0; d < D; d += 64)
                bulk_store(&out_map, out_mine + d*128, d, make_int4(0, view.box*h.fill / h.fold, w.g, w.b));
            bulk_commit();
        }
    }
    if (thread == 0) bulk_wait<0>();
#endif
}

// ---- backward -----------------------------------------------------------------------------------------------------------

template <int D> struct Queries {
    static constexpr int KEYS = 64, TILES = 4, STAGES = D == 64 ? 2 : 1, CONSUMERS = D == 64 ? 3 : 2;
    static constexpr int THREADS = 128 * (CONSUMERS + 1), box = 64 * D * 2, tile = KEYS * D * 2;
    static constexpr int q = 0, dout = CONSUMERS * box * STAGES, out = 2 * dout, k = out + CONSUMERS * box;
    static constexpr int v = k + TILES * tile, bytes = v + TILES * tile + 1024;
};

// hopper_queries: of rows it needs q, do and out:  p = exp(q k^T / sqrt(D) - lse), dp = do v^T, ds = p (dp - delta),
// dq += ds k.  delta = do . out is made on the way and left in `stats` for hopper_keys. The place of out is also that
// from which dq is stored. s and dp of the next keys are queued before dq of these, so that the exponentials wait for
// nothing else. 6*D flop per pair.
template <int D> __global__ static void __launch_bounds__(Queries<D>::THREADS, 1)
hopper_queries(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap dout_map,
               const __grid_constant__ CUtensorMap out_map, const __grid_constant__ CUtensorMap kv_map,
               const __grid_constant__ CUtensorMap dq_map, Stats *stats, const float *lse, Heads h, Order order) {
#if defined(HOPPER)
    typedef Queries<D> At;
    enum { KEYS = At::KEYS, STAGES = At::STAGES, TILES = At::TILES, CONSUMERS = At::CONSUMERS };
    extern __shared__ unsigned char raw[];
    __shared__ uint64_t barriers[2 + 4*TILES + 2*STAGES];
    __shared__ Work work[2];
    const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
    const Pipeline<1> out_ring = { shared_address(barriers) };
    const Pipeline<TILES> k_ring = { out_ring.barriers + 16 }, v_ring = { k_ring.barriers + TILES*16 };
    const Pipeline<STAGES> q_ring = { v_ring.barriers + TILES*16 };
    const int mine = uniform(threadIdx.x / 128) - 1, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    if (threadIdx.x == 0) {
        q_ring.init(CONSUMERS * 4), out_ring.init(CONSUMERS * 4), k_ring.init(CONSUMERS * 4), v_ring.init(CONSUMERS * 4);
        fence_barrier_init();
    }
    __syncthreads();

    if (mine < 0) {
        give_registers<CONSUMERS == 2 ? 40 : 32>();
        auto rows = [&](int n, Work w, int box) {
            barrier_expect(q_ring.full(n), CONSUMERS * 2 * h.fill * D * 2);
            for (int i = 0; i < CONSUMERS; i++) {
                const uint32_t to = base + (n % STAGES * CONSUMERS + i)*At::box;
                load_rows<D>(to + At::q, &q_map, q_ring.full(n), box + i, h, w);
                load_rows<D>(to + At::dout, &dout_map, q_ring.full(n), box + i, h, w);
            }
        };
        auto outs = [&](int n, Work w, int box) {
            const uint32_t to = base + At::out;
            out_ring.acquire(n, CONSUMERS * h.fill * D * 2);
            for (int i = 0; i < CONSUMERS; i++) load_rows<D>(to + i*At::box, &out_map, out_ring.full(n), box + i, h, w);
        };
        if (threadIdx.x == 0) bring<D, At>(&kv_map, base, q_ring, k_ring, v_ring, work, h, order, rows, outs);
        return;
    }

    take_registers<CONSUMERS == 2 ? 232 : 160>();
    const uint32_t out_mine = base + At::out + mine*At::box;
    const float c = LOG2E / sqrtf((float)D);
    for (int n = 0, turn = 0;; n++) {
        q_ring.wait_full(n);
        Work w = work[n & 1];
        w.tile = uniform(w.tile);
        if (w.tile < 0) break;
        const uint32_t q_mine = base + At::q + (n % STAGES * CONSUMERS + mine)*At::box, dout_mine = q_mine + At::dout - At::q;
        const View view = view_of<At>(h, order, w, mine);
        auto pass = [&](int tiles) { for (; tiles > 0; tiles--, turn++) k_ring.skip(turn), v_ring.skip(turn); };
        if (view.box < 0) {
            q_ring.release(n), out_ring.skip(n);
            pass(view.all);
            continue;
        }
        float dq[D / 2], s[KEYS / 2], dp[KEYS / 2], top[2], delta[2];
        uint32_t ds[KEYS / 4];
        #pragma unroll
        for (int i = 0; i < D / 2; i++) dq[i] = 0;
        pin(dq);
        out_ring.wait_full(n);
        Stats &of = stats[(size_t)w.pair*h.boxes + view.box];
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            const int in = warp*16 + lane/4 + 8*i, r = view.box*h.fill + in;
            const bool exists = in < h.fill && r < h.count;
            top[i] = exists ? lse[lse_at(h, w, r)] * LOG2E : INFINITY;
            delta[i] = row_product<D>(dout_mine, out_mine, in);
            if (lane%4 == 0) of.lse[stat_of(in)] = top[i], of.delta[stat_of(in)] = exists ? delta[i] : 0;
        }
        auto scores = [&](int at) {
            k_ring.wait_full(at);
            multiply_along<KEYS, D>(s, q_mine, base + At::k + at % TILES * At::tile);
            v_ring.wait_full(at);
            multiply_along<KEYS, D>(dp, dout_mine, base + At::v + at % TILES * At::tile);
        };
        auto step = [&](int i, auto last) {                             // last: no scores after these
            #pragma unroll
            for (int j = 0; j < KEYS / 2; j++) s[j] = exp2_fast(s[j] * c - top[j/2%2]);
            if (i >= view.whole)
                #pragma unroll
                for (int j = 0; j < KEYS / 2; j++) if (j/4*8 + j%2 > view.sees[j/2%2] - i*KEYS) s[j] = 0;
            wgmma_wait<0>();
            pin(dp), pin(dq), pin(ds);
            v_ring.release(turn);
            if (i) k_ring.release(turn - 1);
            #pragma unroll
            for (int j = 0; j < KEYS / 2; j++) s[j] *= dp[j] - delta[j/2%2];
            round_pairs(ds, s);
            if constexpr (!last.value) scores(turn + 1);
            multiply_registers<D, KEYS>(dq, ds, base + At::k + turn % TILES * At::tile);
            if constexpr (!last.value) {
                wgmma_wait<2>();
                pin(s);
            }
            turn++;
        };
        scores(turn);
        wgmma_wait<1>();
        pin(s);
        for (int i = 0; i + 1 < view.end; i++) step(i, Bool<false>());
        step(view.end - 1, Bool<true>());
        wgmma_wait<0>();
        pin(dq);
        k_ring.release(turn - 1);
        q_ring.release(n);
        pass(view.all - view.end);                                      // for the others' rows
        #pragma unroll
        for (int j = 0; j < D / 2; j++) dq[j] *= c * LN2;
        named_barrier_sync(1 + mine, 128);                              // all have read their rows of out
        place_rows<D>(out_mine, dq);
        fence_async_proxy();
        named_barrier_sync(1 + mine, 128);
        if (thread == 0) {
            #pragma unroll
            for (int d = 0; d < D; d += 64)
                bulk_store(&dq_map, out_mine + d*128, d, make_int4(0, view.box*h.fill / h.fold, w.g, w.b));
            bulk_commit();
            bulk_wait_read<0>();
        }
        __syncwarp();
        out_ring.release(n);
    }
    if (thread == 0) bulk_wait<0>();
#endif
}

template <int D> struct Keys {
    static constexpr bool AHEAD = D == 64;                                      // registers for it
    static constexpr int STAGES = 3, TILES = D == 64 ? 2 : 1, box = 64 * D * 2;
    static constexpr int k = 0, q = TILES * 4 * box, dout = q + STAGES * box, out = dout + STAGES * box;
    static constexpr int stats = out + 4 * box, bytes = stats + STAGES * (int)sizeof(Stats) + 1024;
};

// hopper_keys: a tile is 64 keys and values for each of two consumers, past which the rows that see them come, 64 at
// a time, q, do and stats. The scores are made transposed, keys down and rows across, so that p^T and ds^T are first
// factors:
//     p^T = exp(k q^T / sqrt(D) - lse), dp^T = v do^T, dv += p^T do, ds^T = p^T (dp^T - delta), dk += ds^T q.
// 8*D flop per pair.
template <int D> __global__ static void __launch_bounds__(384, 1)
hopper_keys(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap dout_map,
            const __grid_constant__ CUtensorMap kv_map, const __grid_constant__ CUtensorMap dkv_map,
            const Stats *stats, Heads h, Order order) {
#if defined(HOPPER)
    typedef Keys<D> At;
    enum { STAGES = At::STAGES, TILES = At::TILES };
    extern __shared__ unsigned char raw[];
    __shared__ uint64_t barriers[2*TILES + 2*STAGES];
    __shared__ Work work[2];
    const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
    const Pipeline<TILES> k_ring = { shared_address(barriers) };
    const Pipeline<STAGES> ring = { k_ring.barriers + TILES*16 };
    const int mine = uniform(threadIdx.x / 128) - 1, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    if (threadIdx.x == 0) {
        k_ring.init(8), ring.init(8);
        fence_barrier_init();
    }
    if (h.fill < 64) {                                                  // rows that no copy brings are factors too: zeros
        unsigned char *tiles = raw + (base - shared_address(raw));
        for (int i = At::q + threadIdx.x*16; i < At::out; i += 384*16) *(int4 *)(tiles + i) = make_int4(0, 0, 0, 0);
        fence_async_proxy();
    }
    __syncthreads();

    if (mine < 0) {
        give_registers<56>();
        if (threadIdx.x) return;
        unsigned number = take_number(h, order);
        for (int n = 0, turn = 0;; n++) {
            Work w = work_of(number, h, order);
            if (w.tile >= 0) {
                number = take_number(h, order);
                w.tile = order.tiles - 1 - w.tile;                      // the first keys are seen by most
            }
            k_ring.wait_empty(n);
            work[n & 1] = w;
            if (w.tile < 0) { barrier_arrive(k_ring.full(n)); break; }
            barrier_expect(k_ring.full(n), 4 * At::box);
            #pragma unroll
            for (int i = 0; i < 4; i++)
                load_keys<D, 64>(base + At::k + (n % TILES * 4 + i)*At::box, &kv_map, k_ring.full(n),
                                 w.tile*128 + i%2*64, i/2, w);
            for (int i = w.tile*128 * h.Q / h.fill; i < h.boxes; i++, turn++) {
                const int s = turn % STAGES;
                ring.acquire(turn, 2 * h.fill * D * 2 + (int)sizeof(Stats));
                load_rows<D>(base + At::q + s*At::box, &q_map, ring.full(turn), i, h, w);
                load_rows<D>(base + At::dout + s*At::box, &dout_map, ring.full(turn), i, h, w);
                bulk_load(base + At::stats + s*(int)sizeof(Stats), stats + (size_t)w.pair*h.boxes + i, ring.full(turn),
                          (int)sizeof(Stats));
            }
        }
        return;
    }

    take_registers<224>();
    const uint32_t out_mine = base + At::out + mine*2*At::box;
    const float c = LOG2E / sqrtf((float)D);
    for (int n = 0, turn = 0;; n++) {
        k_ring.wait_full(n);
        const int tile = uniform(work[n & 1].tile);
        if (tile < 0) break;
        const uint32_t k_mine = base + At::k + (n % TILES * 4 + mine)*At::box, v_mine = k_mine + 2*At::box;
        const int k0 = tile*128 + mine*64;
        float dk[D / 2], dv[D / 2], p[32], dp[32];
        uint32_t first[16], second[16];                                 // p and ds as factors
        #pragma unroll
        for (int i = 0; i < D / 2; i++) dk[i] = dv[i] = 0;
        pin(dk), pin(dv);
        auto scores = [&](int at) {
            ring.wait_full(at);
            multiply_along<64, D>(p, k_mine, base + At::q + at % STAGES * At::box);
        };
        auto step = [&](int i, auto last) {                             // last: no scores after these
            const int s = turn % STAGES;
            const uint32_t of = base + At::stats + s*(int)sizeof(Stats) + lane%4 * 16;
            if constexpr (At::AHEAD) wgmma_wait<0>();
            else scores(turn);
            multiply_along<64, D>(dp, v_mine, base + At::dout + s*At::box);
            if constexpr (!At::AHEAD) wgmma_wait<1>();
            pin(p);
            #pragma unroll
            for (int j = 0; j < 32; j += 8) {
                const float4 lse = load_shared_floats(of + 8*j);
                #pragma unroll
                for (int e = 0; e < 8; e++) p[j + e] = exp2_fast(p[j + e] * c - (e < 4 ? e%2 ? lse.y : lse.x : e%2 ? lse.w : lse.z));
            }
            if ((k0 + 63) * h.Q > i * h.fill)                           // the first row does not see the last key
                #pragma unroll
                for (int j = 0; j < 32; j++)
                    if ((k0 + warp*16 + lane/4 + j/2%2*8) * h.Q > i * h.fill + j/4*8 + lane%4*2 + j%2) p[j] = 0;
            round_pairs(first, p);
            multiply_registers<D, 64>(dv, first, base + At::dout + s*At::box);
            wgmma_wait<1>();
            pin(dp);
            #pragma unroll
            for (int j = 0; j < 32; j += 8) {
                const float4 delta = load_shared_floats(of + 8*j + (int)offsetof(Stats, delta));
                #pragma unroll
                for (int e = 0; e < 8; e++) p[j + e] *= dp[j + e] - (e < 4 ? e%2 ? delta.y : delta.x : e%2 ? delta.w : delta.z);
            }
            round_pairs(second, p);
            multiply_registers<D, 64>(dk, second, base + At::q + s*At::box);
            if constexpr (last.value || !At::AHEAD) wgmma_wait<0>();
            else {
                scores(turn + 1);
                wgmma_wait<1>();
            }
            pin(dv);
            pin(dk);
            ring.release(turn++);
        };

        int i = tile*128 * h.Q / h.fill;
        const int seen = min(k0 * h.Q / h.fill, h.boxes);                 // the rows before see no key of mine
        for (; i < seen; i++) ring.skip(turn++);
        if (i < h.boxes) {
            if (At::AHEAD) scores(turn);
            for (; i + 1 < h.boxes; i++) step(i, Bool<false>());
            step(i, Bool<true>());
        }
        const Work w = work[n & 1];                                     // read before it may be overwritten
        k_ring.release(n);
        #pragma unroll
        for (int j = 0; j < D / 2; j++) dk[j] *= c * LN2;
        if (thread == 0) bulk_wait_read<0>();
        named_barrier_sync(1 + mine, 128);
        place_rows<D>(out_mine, dk);
        place_rows<D>(out_mine + At::box, dv);
        fence_async_proxy();
        named_barrier_sync(1 + mine, 128);
        if (thread == 0) {
            #pragma unroll
            for (int d = 0; d < D; d += 64)
                bulk_store(&dkv_map, out_mine + d*128, d, make_int4(k0, w.g, 0, w.b)),
                bulk_store(&dkv_map, out_mine + At::box + d*128, d, make_int4(k0, w.g, 1, w.b));
            bulk_commit();
        }
    }
    if (thread == 0) bulk_wait<0>();
#endif
}

// ---- the host's side ----------------------------------------------------------------------------------------------------

// The packed rows of x (B,T,Q*G,D) as a map {column, within fold, fold, key/value head, sequence}.
static bool map_rows(CUtensorMap *map, const void *x, Heads h, int D) {
    const uint64_t d = (uint64_t)D, G = (uint64_t)h.G, Q = (uint64_t)h.Q, fold = (uint64_t)h.fold, all = (uint64_t)h.count;
    const uint64_t extent[] = { d, fold, all / fold, G, (uint64_t)(h.pairs / h.G) };
    const uint64_t folded[] = { d, Q*G*d, Q*d, all*G*d }, even[] = { G*d, G*d, d, all*G*d };
    const uint32_t box[] = { 64, (uint32_t)h.fold, (uint32_t)(h.fill / h.fold), 1, 1 };
    return tensor_map_of(map, x, 2, 5, extent, h.fold > 1 ? folded : even, box);
}
// kv (B,T,2,G,D) as a map {column, key, key/value head, key or value, sequence}.
static bool map_keys(CUtensorMap *map, const void *x, Heads h, int D, int keys) {
    const uint64_t d = (uint64_t)D, G = (uint64_t)h.G, T = (uint64_t)h.T;
    const uint64_t extent[] = { d, T, G, 2, (uint64_t)(h.pairs / h.G) };
    const uint64_t pitch[] = { 2*G*d, d, G*d, T*2*G*d };
    const uint32_t box[] = { 64, (uint32_t)keys, 1, 1, 1 };
    return tensor_map_of(map, x, 2, 5, extent, pitch, box);
}
static Heads heads_of(HeadOrder order, int B, int T, int G, int Q) {
    const int fold = order == HEADS_TILED ? 1 : Q, fill = 64 / fold * fold;
    return { order, T, G, Q, B*G, T*Q, fold, fill, (int)divide_up((size_t)T*Q, (size_t)fill) };
}
// A group has up to four tiles for every SM: so few that its keys are still in L2 when they are read again, yet enough for
// the largest tiles of the last group to be done before its small ones run out. Groups are equal, give or take a pair, or
// the last could be a remainder that leaves most SMs idle.
static Order order_of(Heads h, int count, int tile) {
    const int tiles = (int)divide_up((size_t)count, (size_t)tile);
    const size_t all = (size_t)h.pairs * (size_t)tiles, groups = divide_up(all, (size_t)4 * context()->sm_count);
    const int n = groups < (size_t)h.pairs ? (int)groups : h.pairs;
    return { tiles, h.pairs / n, h.pairs % n };
}
static unsigned blocks_for(Heads h, Order o) { return (unsigned)min(o.tiles * h.pairs, context()->sm_count); }
static bool can_use(const void *a, const void *b, const void *c, const void *d, int B, int T, int Q, int D) {
    return context()->arch == 90 && (D == 64 || D == 128) && Q <= 64 && B > 0 && T > 0
        && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) % 16 == 0;
}

template <int D> static bool launch_forward(floatX *out, float *lse, const floatX *q, const floatX *kv, Heads h) {
    typedef Forward<D> At;
    CUtensorMap q_map, kv_map, out_map;
    if (!map_rows(&q_map, q, h, D) || !map_rows(&out_map, out, h, D) || !map_keys(&kv_map, kv, h, D, At::KEYS))
        return false;
    const Order order = order_of(h, h.boxes, At::CONSUMERS);
    auto *kernel = hopper_forward<D>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, At::bytes));
    LAUNCH(kernel, blocks_for(h, order), At::THREADS, At::bytes, q_map, kv_map, out_map, lse, h, order);
    return true;
}

static Device portable;                                 // attention.cu's functions, for what these kernels cannot do

static void attention_forward(floatX *out, float *lse, const floatX *q, const floatX *kv, HeadOrder order,
                              int B, int T, int G, int Q, int D) {
    const Heads h = heads_of(order, B, T, G, Q);
    if (!can_use(out, q, kv, NULL, B, T, Q, D)
        || !(D == 64 ? launch_forward<64>(out, lse, q, kv, h) : launch_forward<128>(out, lse, q, kv, h)))
        portable.attention_forward(out, lse, q, kv, order, B, T, G, Q, D);
}

template <int D> static bool launch_backward(floatX *dq, floatX *dkv, const floatX *dout, const floatX *out, const float *lse,
                                             const floatX *q, const floatX *kv, Heads h) {
    CUtensorMap q_map, dout_map, out_map, dq_map, kv_map, dkv_map;
    if (!map_rows(&q_map, q, h, D) || !map_rows(&dout_map, dout, h, D) || !map_rows(&out_map, out, h, D)
        || !map_rows(&dq_map, dq, h, D) || !map_keys(&kv_map, kv, h, D, 64) || !map_keys(&dkv_map, dkv, h, D, 64))
        return false;
    const Order by_rows = order_of(h, h.boxes, Queries<D>::CONSUMERS), by_keys = order_of(h, h.T, 128);
    Stats *stats = (Stats *)workspace((size_t)h.boxes * h.pairs * sizeof *stats);
    auto *queries = hopper_queries<D>;
    auto *keys = hopper_keys<D>;
    CUDA_CHECK(cudaFuncSetAttribute(queries, cudaFuncAttributeMaxDynamicSharedMemorySize, Queries<D>::bytes));
    CUDA_CHECK(cudaFuncSetAttribute(keys, cudaFuncAttributeMaxDynamicSharedMemorySize, Keys<D>::bytes));
    LAUNCH(queries, blocks_for(h, by_rows), Queries<D>::THREADS, Queries<D>::bytes,
           q_map, dout_map, out_map, kv_map, dq_map, stats, lse, h, by_rows);
    LAUNCH(keys, blocks_for(h, by_keys), 384, Keys<D>::bytes,
           q_map, dout_map, kv_map, dkv_map, stats, h, by_keys);
    return true;
}
static void attention_backward(floatX *dq, floatX *dkv, const floatX *dout, const floatX *out, const float *lse,
                               const floatX *q, const floatX *kv, HeadOrder order, int B, int T, int G, int Q, int D) {
    const Heads h = heads_of(order, B, T, G, Q);
    if (!can_use(dq, dkv, dout, out, B, T, Q, D) || !can_use(q, kv, NULL, NULL, B, T, Q, D)
        || !(D == 64 ? launch_backward<64>(dq, dkv, dout, out, lse, q, kv, h)
                     : launch_backward<128>(dq, dkv, dout, out, lse, q, kv, h)))
        portable.attention_backward(dq, dkv, dout, out, lse, q, kv, order, B, T, G, Q, D);
}

PART(attention_hopper) {
    portable = *d;
    d->attention_forward = attention_forward;
    d->attention_backward = attention_backward;
}
#else
PART(attention_hopper) { (void)d; }
#endif
