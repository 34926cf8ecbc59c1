// fp8_rows.cu: the forward products of experts in 8 bits, and the gradient of their input (sm_90a).
// Blocks, producer, tiles and stores are those of rows.cu, the main loop is in fp8.cuh.
//
//   linear8  out = inp weight^T, bf16. With the transposed weight it is the gradient of the input.
//   up8      expert_up of expert.cu: pre as bf16, act as codes. A tile has 128 columns of gate and
//            of up, so a quad of threads has all 128 activations of a row that share a scale.
#include "fp8.cuh"
#include "kernels/cuda/expert.cuh"

#if defined(PRECISION_BF16)

typedef Layout<256, 4, 2> Rows8;

#if defined(HOPPER)
// 128 columns of this warp's 16 rows, from column n of c on. stores: of all tiles (2 slabs).
__device__ static inline void store_half(const float *sum, const Shared<Rows8> &s, const Output &c, int n, Tile tile,
                                         uint32_t slabs, int &stores) {
    const int row = tile.row + (threadIdx.x / 32 - 4) * 16;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (n >= c.columns) break;
        const uint32_t slab = slabs + (stores++ & 1) * SLAB;
        wait_slab<1>();
#pragma unroll
        for (int j = 0; j < 4; j++) put_columns(slab, j, sum + i * 32 + j * 8);
        store_slab(s, slab, c, n + i * 64, row, tile.end);
    }
}
// The codes of act, and their scales (.,F/128).
__device__ static inline void store_act(const float (&sum)[Rows8::BN / 2], const Shared<Rows8> &s, const Output &act,
                                        float *scales, Tile tile, uint32_t slabs, int &stores) {
    const int pitch = act.columns / 64, lane = threadIdx.x % 32, row = tile.row + (threadIdx.x / 32 - 4) * 16,
        r = row + lane / 4;
    float x[64];
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
        const uint32_t g = pack_bf16(sum[i], sum[i + 1]), u = pack_bf16(sum[64 + i], sum[64 + i + 1]);
#pragma unroll
        for (int h = 0; h < 2; h++) x[i + h] = slope_of<SWIGLU>(unpack_bf16(g, h), unpack_bf16(u, h)).act;
    }
    const uint32_t slab = slabs + (stores++ & 1) * SLAB;
    wait_slab<1>();
    const float2 scale = put_codes(x, s.pointer(slab));
    store_slab(s, slab, act, tile.column / 2, row, tile.end);               // as pairs of codes
    float *to = scales + (size_t)r * pitch + tile.column / 128;
    if (lane % 4 == 0 && r < tile.end) to[0] = scale.x;
    if (lane % 4 == 0 && r + 8 < tile.end) to[8 * pitch] = scale.y;
}
#endif

// up: c is pre, p.O is F, and the rest is used; a is gathered.
template <bool up> static __global__ __launch_bounds__(THREADS, 1)
void rows8(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
           const __grid_constant__ CUtensorMap c_map, const __grid_constant__ CUtensorMap act_map,
           const __grid_constant__ Product given, const float *a_scale, const float *b_scale, floatX *act,
           float *act_scale, int tiles, unsigned *work_counter) {
#if defined(HOPPER)
    extern __shared__ unsigned char raw[];
    const Shared<Rows8> s(raw);
    Product p = given;
    p.start = s.init(up ? 1 + WARPGROUP : 1, p.start, p.E);
    if (threadIdx.x < WARPGROUP) {
        give_registers<up ? 40 : 24>();
        produce_rows<FORWARD, up, up>(s, &a_map, &b_map, p, tiles, work_counter);
        return;
    }
    take_registers<up ? 232 : 240>();
    const int steps = p.C / BK, consumer = uniform(threadIdx.x / WARPGROUP) - 1, across = (up ? 2 : 1) * p.O / 128;
    const Output to_c = { &c_map, (floatX *)p.c, NULL, (up ? 2 : 1) * p.O }, to_act = { &act_map, act, NULL, p.O / 2 };
    RowScales<2> scales = { a_scale, b_scale, up ? given.a_row : NULL, steps };
    const uint32_t slabs = s.slab(0);
    Position<Rows8::STAGES> at;
    auto find = [&](void) {
        s.pipe.wait_full(at);
        const Tile tile = s.tile(at);
        if (tile.expert >= 0)
            scales.find(tile, tile.expert * across + tile.column / 128, up ? p.O / 128 : tile.column + 128 < p.O);
    };
    find();
    scales.fetch();
    for (int stores = 0;;) {
        const Tile tile = s.tile(at);
        if (tile.expert < 0) break;
        float sum[Rows8::BN / 2];
        mainloop_e4m3(sum, s, at, steps, consumer, scales, [&](void) {
            store_half(sum, s, to_c, tile.column, tile, slabs, stores);
            find();
        });
        scales.fetch();
        store_half(sum + 64, s, to_c, tile.column + (up ? p.O : 128), tile, slabs, stores);
        if (up) store_act(sum, s, to_act, act_scale, tile, slabs, stores);
    }
    if (threadIdx.x % 32 == 0) bulk_wait<0>();
#endif
}

// ---- on the host --------------------------------------------------------------------------------

static void need_map(bool made) { if (!made) CUDA_CHECK(cudaErrorInvalidValue); }

static void fp8_linear(const Device *, OUT floatX *out, Fp8 inp, Fp8 weight, const Plan *plan, int C, int O) {
    const Product p = routed8(inp, weight, out, plan, C, O);
    if (!p.rows) return;
    CUtensorMap a, b, c;
    need_map(map_rows(&a, p.a, p.rows, p.C, BM) && map_weights(&b, p, O, Rows8::BN)
             && map_rows(&c, out, p.rows, O, 16));
    const int tiles = (int)tile_count<FORWARD, BM, Rows8::BN>(p);
    LAUNCH(rows8<false>, (unsigned)min(tiles, context()->sm_count), THREADS, Rows8::bytes, a, b, c, c, p, inp.scale,
           weight.scale, NULL, NULL, tiles, context()->work_counter);
}
static void fp8_up_forward(const Device *, OUT floatX *pre, OUT Fp8 act, Fp8 inp, Fp8 weight, const Plan *plan,
                           int C, int F) {
    Product p = routed8(inp, weight, pre, plan, C, F);
    if (!p.rows) return;
    p.a_row = plan->token_of_row;
    CUtensorMap b, c, to;
    need_map(map_weights(&b, p, 2 * F, Rows8::BN / 2) && map_rows(&c, pre, p.rows, 2 * F, 16)
             && map_rows(&to, (floatX *)act.code, p.rows, F / 2, 16));
    const int tiles = (int)tile_count<FORWARD, BM, Rows8::BN / 2>(p);
    LAUNCH(rows8<true>, (unsigned)min(tiles, context()->sm_count), THREADS, Rows8::bytes, c, b, c, to, p, inp.scale,
           weight.scale, (floatX *)act.code, act.scale, tiles, context()->work_counter);
}

static int fp8_fits(int C, int F) { return context()->arch == 90 && C % FP8_BLOCK == 0 && F % FP8_BLOCK == 0; }

PART_OF(Fp8Operations, fp8_rows) {
    d->fits = fp8_fits;
    d->linear = fp8_linear;
    d->up_forward = fp8_up_forward;
}
#endif
