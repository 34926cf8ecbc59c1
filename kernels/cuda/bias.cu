// bias.cu: biases, of all rows or of each expert.
#include "columns.cuh"

// ---- bias_forward -------------------------------------------------------------------------------

// Thread i has W elements of a row. Moves 2*N*C elements.
template<int W> static __global__ void __launch_bounds__(256) bias_kernel(floatX *x, const floatX *bias,
        size_t units, int C) {
    const size_t i = global_index() * W;
    if (i >= units * W) return;
    Reals<W> sum = unpack(load<W>(x + i));
    const Reals<W> b = unpack(load<W>(bias + i % C));
    for (int j = 0; j < W; j++) sum.x[j] += b.x[j];
    store(x + i, pack(sum));
}
static void bias_forward(floatX *x, const floatX *bias, int N, int C) {
    const bool w = wide(C, x, bias);
    const size_t units = (size_t)N * C / (w ? VECTOR : 1);
    auto kernel = w ? bias_kernel<VECTOR> : bias_kernel<1>;
    LAUNCH(kernel, (unsigned)divide_up(units, 256), 256, 0, x, bias, units, C);
}

// ---- bias_backward ------------------------------------------------------------------------------

// Sums of columns. A block has 32 packs of columns, BIAS_ROWS rows at a time, 4 loads in flight.
// Its sum over every gridDim.y-th group of rows is a row of `partial` (gridDim.y,C). Reads N*C.
enum { BIAS_ROWS = 32 };
template<int W> static __global__ void bias_backward_kernel(real *partial, const floatX *dout, int N, int C) {
    __shared__ real part[BIAS_ROWS][32 * W];
    const int c = (blockIdx.x * 32 + threadIdx.x) * W;
    real sum[W] = {};
    let_next_start();
    if (c < C) {
        #pragma unroll 4
        for (size_t n = blockIdx.y * BIAS_ROWS + threadIdx.y; n < N; n += gridDim.y * BIAS_ROWS) {
            const Pack<W> d = load<W>(dout + n*C + c);
            for (int i = 0; i < W; i++) sum[i] += R(d.x[i]);
        }
    }
    for (int i = 0; i < W; i++) part[threadIdx.y][threadIdx.x * W + i] = sum[i];
    __syncthreads();
    const int column = threadIdx.y * 32 + threadIdx.x, to = blockIdx.x * 32 * W + column;
    if (column >= 32 * W || to >= C) return;
    real total = 0;
    for (int y = 0; y < BIAS_ROWS; y++) total += part[y][column];
    partial[(size_t)blockIdx.y * C + to] = total;
}
static void bias_backward(real *dbias, const floatX *dout, int N, int C) {
    enum { BLOCKS = 2 * MULTIPROCESSORS };
    const bool w = wide(C, dout);
    const size_t across = divide_up(w ? C / VECTOR : C, 32), most = across < BLOCKS ? BLOCKS / across : 1;
    const size_t groups = divide_up(N, 64), down = groups < most ? groups : most;
    if (!N) return;
    real *const partial = (real *)workspace(down * C * sizeof(real));
    auto kernel = w ? bias_backward_kernel<VECTOR> : bias_backward_kernel<1>;
    LAUNCH(kernel, dim3(across, down), dim3(32, BIAS_ROWS), 0, partial, dout, N, C);
    add_partial(dbias, NULL, partial, down, C);
}

// ---- biases of experts --------------------------------------------------------------------------

// Blocks (x,e) share the rows of expert e; x: about 8 rows per thread with balanced experts.
static dim3 blocks_of(const Plan *plan, dim3 block) {
    return dim3((unsigned)divide_up(plan->S, (size_t)plan->E * block.y * 8), plan->E);
}

// A thread has W columns. Moves 2*S*O elements.
template<int W> static __global__ void expert_bias_kernel(floatX *x, const floatX *bias, const int *start, int O) {
    const int e = blockIdx.y, end = start[e + 1], first = start[e] + blockIdx.x * blockDim.y + threadIdx.y;
    for (int c = threadIdx.x * W; c < O; c += blockDim.x * W) {
        const Reals<W> b = unpack(load<W>(bias + (size_t)e*O + c));
        #pragma unroll 4
        for (size_t row = first; row < end; row += gridDim.x * blockDim.y) {
            Reals<W> sum = unpack(load<W>(x + row*O + c));
            for (int i = 0; i < W; i++) sum.x[i] += b.x[i];
            store(x + row*O + c, pack(sum));
        }
    }
}
static void expert_bias_forward(floatX *x, const floatX *bias, const Plan *plan, int O) {
    const bool w = wide(O, x, bias);
    const dim3 block = rectangle(w ? O / VECTOR : O);
    LAUNCH((w ? expert_bias_kernel<VECTOR> : expert_bias_kernel<1>), blocks_of(plan, block), block, 0, x, bias,
           plan->start, O);
}

// dout's row for a row of the plan, and its weight (NULL: 1). token_of_row NULL: dout is GROUPED.
struct RowsOfExpert { const floatX *dout; const int *token_of_row, *slot_of_row; const real *weight; };
__device__ static inline const floatX *row_at(const RowsOfExpert &r, size_t row, int O) {
    return r.dout + (r.token_of_row ? r.token_of_row[row] : row) * O;
}
// Blocks (columns,e): 32 packs of columns, and EXPERT_ROWS rows of the expert at a time.
enum { EXPERT_ROWS = 8 };
template<int W> static __global__ void expert_dbias_kernel(real *dbias, RowsOfExpert rows, const int *start, int O) {
    __shared__ real part[EXPERT_ROWS][32 * W];
    const int e = blockIdx.y, end = start[e + 1], c = (blockIdx.x * 32 + threadIdx.x) * W;
    real sum[W] = {};
    if (c < O) {
        #pragma unroll 4
        for (size_t row = start[e] + threadIdx.y; row < end; row += EXPERT_ROWS) {
            const Reals<W> d = unpack(load<W>(row_at(rows, row, O) + c));
            const real w = rows.weight ? rows.weight[rows.slot_of_row[row]] : 1;
            for (int i = 0; i < W; i++) sum[i] += w * d.x[i];
        }
    }
    for (int i = 0; i < W; i++) part[threadIdx.y][threadIdx.x * W + i] = sum[i];
    __syncthreads();
    for (int column = threadIdx.y * 32 + threadIdx.x; column < 32 * W; column += 32 * EXPERT_ROWS) {
        const int to = blockIdx.x * 32 * W + column;
        real total = 0;
        for (int y = 0; y < EXPERT_ROWS; y++) total += part[y][column];
        if (to < O) dbias[(size_t)e*O + to] += total;
    }
}
// dweight += <dout, bias[e]> of each row.
template<int W> static __global__ void expert_dweight_kernel(real *dweight, RowsOfExpert rows, const floatX *bias,
                                                             const int *start, int O) {
    const int e = blockIdx.y, end = start[e + 1];
    for (int first = start[e] + blockIdx.x * blockDim.y; first < end; first += gridDim.x * blockDim.y) {
        const int row = first + threadIdx.y;            // threads of a warp stay together, since row_sum needs them all
        real dot = 0;
        for (int c = threadIdx.x * W; c < O && row < end; c += blockDim.x * W) {
            const Reals<W> d = unpack(load<W>(row_at(rows, row, O) + c)), b = unpack(load<W>(bias + (size_t)e*O + c));
            for (int i = 0; i < W; i++) dot += d.x[i] * b.x[i];
        }
        dot = row_sum(dot);
        if (threadIdx.x == 0 && row < end) dweight[rows.slot_of_row[row]] += dot;
    }
}
static void expert_bias_backward(real *dbias, real *dweight, const floatX *dout, const floatX *bias, const real *weight,
        const Plan *plan, int O, Rows dout_rows) {
    const bool w = wide(O, dout, bias);
    const RowsOfExpert rows = { dout, dout_rows == BY_TOKEN ? plan->token_of_row : NULL, plan->slot_of_row, weight };
    LAUNCH((w ? expert_dbias_kernel<VECTOR> : expert_dbias_kernel<1>),
           dim3((unsigned)divide_up(w ? O / VECTOR : O, 32), plan->E), dim3(32, EXPERT_ROWS), 0, dbias, rows,
           plan->start, O);
    if (!dweight) return;
    const dim3 block = row_threads(w ? O / VECTOR : O, 4, 256);
    LAUNCH((w ? expert_dweight_kernel<VECTOR> : expert_dweight_kernel<1>), blocks_of(plan, block), block, 0, dweight,
           rows, bias, plan->start, O);
}

PART(bias) {
    d->bias_forward = bias_forward;                d->bias_backward = bias_backward;
    d->expert_bias_forward = expert_bias_forward;  d->expert_bias_backward = expert_bias_backward;
}
