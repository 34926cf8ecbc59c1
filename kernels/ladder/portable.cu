// portable.cu: the rungs before the last, which are kernels/cuda/ as it runs on GPUs that are not Hopper. On a Hopper its
// operations are told that they are on something older; they choose by context()->arch.
#include "../cuda/impl.cuh"
extern "C" {
#include "ladder.h"
void DEVICE(matmul)(Device *d);
void DEVICE(attention)(Device *d);
}

#define AS_IF_OLDER(part, call) do { \
        Device d; \
        const int arch = context()->arch; \
        context()->arch = 80; \
        DEVICE(part)(&d); \
        d.call; \
        context()->arch = arch; \
    } while (0)

PARALLEL_LINEAR(parallel_linear_portable) {
    AS_IF_OLDER(matmul, parallel_linear_forward(out, inp, weight, bias, plan, C, O, inp_rows, out_rows));
}
ATTENTION(attention_portable) {
    AS_IF_OLDER(attention, attention_forward(out, lse, q, kv, order, B, T, G, Q, D));
}
