// embed.cu: the embedding.
#include "sort.cuh"

// A block is a rectangle of tokens and units of W columns. Moves 2*N*C elements.
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

// The positions 0..N-1, sorted by token (`order`), are cut into pieces of 32, one to a block: some tokens are every
// tenth word of a text, others occur once. A run is what a piece has of one token, in order. The block adds up each
// run, a thread W columns of it with AHEAD rows under way, and adds that to the token's row of dweight; but a run that
// goes on beyond the piece has to wait for the other parts: what a piece begins with and the one before has too goes
// to edge[piece][0], what it ends with and the next one has too to edge[piece][1]. The rows of dweight are under way
// with those that are added. Reads N*C elements, reads and writes one row of reals for each token that occurs.
enum { RUN = 32, AHEAD = 4 };
__device__ static int token_at(const int *token, const int *order, size_t at, int N) {
    return at < N ? token[order[at]] : -1;                  // before the first (that is: at huge) and past the last: none
}
template<int W> static __global__ void embed_runs_kernel(real *dweight, real *edge, const floatX *dout,
        const int *token, const int *order, int N, int C) {
    const size_t first = (size_t)blockIdx.x * RUN;
    const int lane = threadIdx.x % 32, c = (blockIdx.y * blockDim.x + threadIdx.x) * W;
    const int n = first + lane < N ? order[first + lane] : -1, v = n >= 0 ? token[n] : -1;
    int next = __shfl_down_sync(ALL, v, 1);
    if (lane == 31) next = token_at(token, order, first + RUN, N);
    const unsigned ends = __ballot_sync(ALL, v >= 0 && v != next);
    const bool joined = __shfl_sync(ALL, v, 0) == token_at(token, order, first - 1, N);        // with the piece before
    const unsigned whole = joined ? ends & (ends - 1) : ends;                   // runs that are all here end there
    real *const edges = edge + 2 * (size_t)blockIdx.x * C + c;
    Reals<W> sum = {};
    #pragma unroll 1
    for (int from = 0; from < RUN; from += AHEAD) {
        Pack<W> d[AHEAD];
        Reals<W> old[AHEAD];
        #pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int row = __shfl_sync(ALL, n, from + i), word = __shfl_sync(ALL, v, from + i);
            d[i] = Pack<W>();
            if (row >= 0 && c < C) d[i] = load<W>(dout + (size_t)row*C + c);
            if (c < C && whole >> (from + i) & 1) old[i] = *(const Reals<W> *)(dweight + (size_t)word*C + c);
        }
        #pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int word = __shfl_sync(ALL, v, from + i);
            const bool all = whole >> (from + i) & 1;
            for (int j = 0; j < W; j++) sum.x[j] += R(d[i].x[j]);
            if (!(ends >> (from + i) & 1)) continue;
            if (all) for (int j = 0; j < W; j++) sum.x[j] += old[i].x[j];
            if (c < C) *(Reals<W> *)(all ? dweight + (size_t)word*C + c : edges) = sum;
            sum = Reals<W>();
        }
    }
    if (first + RUN < N && !(ends >> 31) && c < C) *(Reals<W> *)(edges + (joined && !ends ? 0 : C)) = sum;
}
// A run that goes on beyond its piece is finished by the block of the piece it begins in: its end there, and the
// beginnings of the pieces that follow, as many as begin with the same token.
template<int W> static __global__ void embed_edges_kernel(real *dweight, const real *edge, const int *token,
        const int *order, int N, int C) {
    const size_t first = (size_t)blockIdx.x * RUN, after = first + RUN;
    const int lane = threadIdx.x % 32, c = (blockIdx.y * blockDim.x + threadIdx.x) * W;
    const int v = token_at(token, order, after, N);
    if (v < 0 || token_at(token, order, after - 1, N) != v || token_at(token, order, first - 1, N) == v) return;
    const real *const edges = edge + 2 * (size_t)blockIdx.x * C + c;
    Reals<W> *const to = (Reals<W> *)(dweight + (size_t)v*C + c);
    Reals<W> sum = {};
    if (c < C) {
        const Reals<W> old = *to, end = *(const Reals<W> *)(edges + C);
        for (int j = 0; j < W; j++) sum.x[j] = old.x[j] + end.x[j];
    }
    for (size_t piece = 1, found = 32; found == 32; piece += 32) {
        const unsigned same = __ballot_sync(ALL, token_at(token, order, first + (piece + lane) * RUN, N) == v);
        found = __popc(same);                               // the first ones: sorted
        #pragma unroll 8
        for (size_t i = 0; i < (c < C ? found : 0); i++) {
            const Reals<W> begin = *(const Reals<W> *)(edges + 2 * (piece + i) * C);
            for (int j = 0; j < W; j++) sum.x[j] += begin.x[j];
        }
    }
    if (c < C) *to = sum;
}
// Sorting by token: digit after digit, the lowest first, each time stably. Digits have at most 10 bits, so
// two do for any vocabulary up to a million.
static void embed_backward(real *dweight, const floatX *dout, const int *token, int N, int V, int C) {
    int bits = 1;
    while (bits < 31 && V > 1 << bits) bits++;
    const int digits = (int)divide_up(bits, 10), width = (int)divide_up(bits, digits);
    const size_t pieces = divide_up(N, RUN), edges = 2 * pieces * C;
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
