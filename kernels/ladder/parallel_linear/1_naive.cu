// 1_naive.cu: one thread for each element of out.
//
// It finds its expert and multiplies a row of inp with a row of weight. That is correct and slow:
// every multiply-add reads two elements, and neighbouring threads read different rows of weight, so
// that 2 of every 32 bytes fetched are used at a time. The threads wait for memory.
#include "rung.cuh"

static __global__ void naive(const Product p) {
    const size_t i = global_index();
    const int row = (int)(i / p.O), column = (int)(i % p.O);
    if (row >= p.start[p.E]) return;             // a plan has room for more rows than its experts have
    const int expert = last_expert(p, row, 1, 0);
    const floatX *x = inp_at(p, row), *w = weight_at(p, expert, column);
    float sum = 0;
    for (int c = 0; c < p.C; c++) sum += R(x[c]) * R(w[c]);
    store(p, expert, row, column, sum);
}

PARALLEL_LINEAR(parallel_linear_naive) {
    const Product p = product(out, inp, weight, plan, C, O, inp_rows, out_rows);
    LAUNCH(naive, (unsigned)divide_up((size_t)p.S * O, 256), 256, 0, p);
}
