// embed.cu: the embedding. Backward sorts positions by token: a row of dweight has one ordered sum.
#include "sort.cuh"

// A block has several tokens, a thread W columns at a time. Moves 2*N*C elements.
template<int W> static __global__ void embed_forward_kernel(floatX *out, const int *token,
        const floatX *weight, int N, int C) {
    const size_t n = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= N) return;
    const floatX *row = weight + (size_t)token[n] * C;
    #pragma unroll 4
    for (int c = threadIdx.x * W; c < C; c += blockDim.x * W) store(out + n*C + c, load<W>(row + c));
}
static void embed_forward(floatX *out, const int *token, const floatX *weight, int N, int C) {
    const bool w = wide(C, out, weight);
    const dim3 block = rectangle(w ? C / VECTOR : C);
    auto kernel = w ? embed_forward_kernel<VECTOR> : embed_forward_kernel<1>;
    LAUNCH(kernel, divide_up(N, block.y), block, 0, out, token, weight, N, C);
}

// The positions 0..N-1, sorted by token (`order`), are cut into pieces of 32, one per block: some
// tokens are every tenth word of a text. A run is a token's positions within a piece. A block sums
// each run, with W columns per thread and AHEAD rows in flight, and adds the sum to the token's row
// of dweight, loaded with the addends. A run that continues in a neighbouring piece is only part of
// the token's sum: at the beginning of a piece it goes to edge[piece][0], at the end to
// edge[piece][1], for embed_edges_kernel. Reads N*C elements, moves a row of reals per token.
enum { PIECE = 32, AHEAD = 4 };
__device__ static int token_at(const int *token, const int *order, size_t at, int N) {
    return at < N ? token[order[at]] : -1;          // none past the last, nor before the first, where `at` wraps around
}
template<int W> static __global__ void embed_runs_kernel(real *dweight, real *edge, const floatX *dout,
        const int *token, const int *order, int N, int C) {
    const size_t first = (size_t)blockIdx.x * PIECE;
    const int lane = threadIdx.x % 32, c = (blockIdx.y * blockDim.x + threadIdx.x) * W;
    const int n = first + lane < N ? order[first + lane] : -1, v = n >= 0 ? token[n] : -1;
    int next = __shfl_down_sync(ALL, v, 1);
    if (lane == 31) next = token_at(token, order, first + PIECE, N);
    const unsigned ends = __ballot_sync(ALL, v >= 0 && v != next);
    // the first run, from the piece before
    const bool continued = __shfl_sync(ALL, v, 0) == token_at(token, order, first - 1, N);
    const unsigned complete = continued ? ends & (ends - 1) : ends;         // where the runs that are complete here end
    real *const edges = edge + 2 * (size_t)blockIdx.x * C + c;
    Reals<W> sum = {};
    #pragma unroll 1
    for (int from = 0; from < PIECE; from += AHEAD) {
        Pack<W> d[AHEAD];
        Reals<W> old[AHEAD];
        #pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int row = __shfl_sync(ALL, n, from + i), id = __shfl_sync(ALL, v, from + i);
            d[i] = Pack<W>();
            if (row >= 0 && c < C) d[i] = load<W>(dout + (size_t)row*C + c);
            if (c < C && complete >> (from + i) & 1) old[i] = load<W>(dweight + (size_t)id*C + c);
        }
        #pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int id = __shfl_sync(ALL, v, from + i);
            const bool all = complete >> (from + i) & 1;
            for (int j = 0; j < W; j++) sum.x[j] += R(d[i].x[j]);
            if (!(ends >> (from + i) & 1)) continue;
            if (all) for (int j = 0; j < W; j++) sum.x[j] += old[i].x[j];
            if (c < C) store(all ? dweight + (size_t)id*C + c : edges, sum);
            sum = Reals<W>();
        }
    }
    if (first + PIECE < N && !(ends >> 31) && c < C) store(edges + (continued && !ends ? 0 : C), sum);
}
// A token's sum over several pieces is finished by the block of the first: dweight, plus edge 1 of
// this piece, plus edge 0 of each next piece that begins with the token.
template<int W> static __global__ void embed_edges_kernel(real *dweight, const real *edge, const int *token,
        const int *order, int N, int C) {
    const size_t first = (size_t)blockIdx.x * PIECE, after = first + PIECE;
    const int lane = threadIdx.x % 32, c = (blockIdx.y * blockDim.x + threadIdx.x) * W;
    const int v = token_at(token, order, after, N);
    if (v < 0 || token_at(token, order, after - 1, N) != v || token_at(token, order, first - 1, N) == v) return;
    const real *const edges = edge + 2 * (size_t)blockIdx.x * C + c;
    real *const to = dweight + (size_t)v*C + c;
    Reals<W> sum = {};
    if (c < C) {
        const Reals<W> old = load<W>(to), end = load<W>(edges + C);
        for (int j = 0; j < W; j++) sum.x[j] = old.x[j] + end.x[j];
    }
    for (size_t piece = 1, found = 32; found == 32; piece += 32) {
        const unsigned same = __ballot_sync(ALL, token_at(token, order, first + (piece + lane) * PIECE, N) == v);
        found = __popc(same);                               // these are the first ones, because positions are sorted
        #pragma unroll 8
        for (size_t i = 0; i < (c < C ? found : 0); i++) {
            const Reals<W> begin = load<W>(edges + 2 * (piece + i) * C);
            for (int j = 0; j < W; j++) sum.x[j] += begin.x[j];
        }
    }
    if (c < C) store(to, sum);
}
// A radix sort by token: stable, lowest digit first. Two digits of 10 bits do for a million tokens.
static void embed_backward(real *dweight, const floatX *dout, const int *token, int N, int V, int C) {
    int bits = 1;
    while (bits < 31 && V > 1 << bits) bits++;
    const int digits = (int)divide_up(bits, 10), width = (int)divide_up(bits, digits);
    const size_t pieces = divide_up(N, PIECE), edges = 2 * pieces * C;
    if (!N) return;
    real *const edge = (real *)workspace((edges + 2 * (size_t)N + DEVICE(sort_scratch)(N, 1 << width)) * sizeof(real));
    int *const scratch = (int *)(edge + edges), *order[2] = { scratch, scratch + N };
    for (int i = 0; i < digits; i++)
        DEVICE(sort)(Sorted{ order[i % 2] }, token, i ? order[1 - i % 2] : NULL, N, 1 << width, i * width,
                scratch + 2 * (size_t)N);

    const bool w = wide(C, dweight, dout);
    const size_t units = w ? C / VECTOR : C, threads = units < 256 ? divide_up(units, 32) * 32 : 256;
    const dim3 grid = dim3(pieces, divide_up(units, threads));
    const int *const sorted = order[1 - digits % 2];
    auto runs = w ? embed_runs_kernel<VECTOR> : embed_runs_kernel<1>;
    auto ends = w ? embed_edges_kernel<VECTOR> : embed_edges_kernel<1>;
    LAUNCH(runs, grid, threads, 0, dweight, edge, dout, token, sorted, N, C);
    LAUNCH(ends, grid, threads, 0, dweight, edge, token, sorted, N, C);
}

PART(embed) { d->embed_forward = embed_forward; d->embed_backward = embed_backward; }
