// rope.cu: rotary positions.
#include "impl.cuh"

// A block has several rows. A unit is W pairs of one head: W elements of its lower half and W of
// its upper half. Moves 2*N*heads*D elements; the table stays in the cache. A thread waits for a
// position, then for its part of the table; 32 registers allow as many threads as possible.
template<int W> static __global__ void __launch_bounds__(256, 8) rope_kernel(floatX *x, const real *table,
        const int *position, int direction, int N, int stride, int heads, int D) {
    const size_t n = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    const int half = D / 2, units = half / W;               // of a head
    if (n >= N) return;
    const real *angles = table + (size_t)position[n] * D;   // cos and sin of each
    for (int u = threadIdx.x; u < heads * units; u += blockDim.x) {
        const int i = u % units * W;
        floatX *low = x + n * stride + (size_t)(u / units) * D + i, *high = low + half;
        const Reals<2*W> t = load<2*W>(angles + 2*i);
        Reals<W> a = unpack(load<W>(low)), b = unpack(load<W>(high));
        rotate(a, b, t.x, direction);
        store(low, pack(a));
        store(high, pack(b));
    }
}
static void rope(floatX *x, const real *table, const int *position, int direction, int N,
        int stride, int heads, int D) {
    const bool w = wide(D / 2, x, table) && stride % VECTOR == 0;
    const size_t units = (size_t)heads * (D / 2 / (w ? VECTOR : 1));
    const dim3 block = units < 256 ? dim3(units, 256 / units) : dim3(256);
    auto kernel = w ? rope_kernel<VECTOR> : rope_kernel<1>;
    LAUNCH(kernel, divide_up(N, block.y), block, 0, x, table, position, direction, N, stride, heads, D);
}

PART(rope) { d->rope = rope; }
