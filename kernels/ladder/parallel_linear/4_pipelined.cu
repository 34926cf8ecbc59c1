// 4_pipelined.cu: the next steps are copied while this one is multiplied.
//
// cp.async copies 16 bytes from global to shared memory in the background, without registers.
// Shared memory has 4 stages: one is multiplied, up to three are being filled, and the tensor cores
// wait only if memory as a whole is too slow. A step needs one barrier, past which its copies have
// arrived for all threads, and all have finished the step before, whose stage the next copies fill.
//
// Each thread copies the same 4 rows of either operand in every step, so it looks up the addresses
// of gathered rows once per tile; then a scattered row costs no more. Missing rows are zero-filled.
#include "warp_tile.cuh"

enum { STAGES = 4, ROWS = SIDE * 4 / THREADS, SHARED = STAGES * 2 * TILE * (int)sizeof(floatX) };      // 80 KB

static __global__ __launch_bounds__(THREADS) void pipelined(const Product p) {
    extern __shared__ __align__(16) floatX shared[];        // x, then w of each stage
    const Tile t = my_tile<SIDE, SIDE>(p);
    if (t.rows <= 0) return;

    const int first = threadIdx.x / 4, chunk = threadIdx.x % 4 * 8;
    const floatX *inp[ROWS], *weight[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int r = first + i * THREADS / 4;
        inp[i] = r < t.rows ? inp_at(p, t.row + r) + chunk : NULL;
        weight[i] = t.column + r < p.O ? weight_at(p, t.expert, t.column + r) + chunk : NULL;
    }
    auto copy = [&](int step) {
        floatX *x = shared + step % STAGES * 2 * TILE + first * PITCH + chunk, *w = x + TILE;
        const bool inside = step * DEPTH + chunk < p.C;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int down = i * THREADS / 4 * PITCH;
            cp_async(shared_address(x + down), inp[i] + step * DEPTH, inside && inp[i]);
            cp_async(shared_address(w + down), weight[i] + step * DEPTH, inside && weight[i]);
        }
        cp_async_commit();                                  // past the end too: zeros
    };

    float sum[4][8][4] = {};
    for (int step = 0; step < STAGES - 1; step++) copy(step);
    for (int step = 0; step * DEPTH < p.C; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        copy(step + STAGES - 1);
        const floatX *x = shared + step % STAGES * 2 * TILE;
        multiply(sum, x, x + TILE);
    }
    store_tile(p, t, sum);
}

PARALLEL_LINEAR(parallel_linear_pipelined) {
    const Product p = product(out, inp, weight, plan, C, O, inp_rows, out_rows);
    if (!p.vectors) {                                       // cp.async needs aligned rows of whole 16 bytes
        parallel_linear_tensor_cores(out, inp, weight, plan, C, O, inp_rows, out_rows);
        return;
    }
    LAUNCH(pipelined, (tiles<SIDE, SIDE>(p)), THREADS, SHARED, p);
}
