// dense.cuh: dense products by NVIDIA's cuBLASLt, where it is installed. For matmul.cu.
#pragma once
#include "impl.cuh"

// c = a b + (add ? c : 0), contiguous matrices by columns as in BLAS: a is m x k, or k x m if
// transposed; b is k x n, or n x k. c holds reals if c_real, else floatX. batch: products of this
// size, consecutive in memory. False, and nothing done: no library or algorithm for this case.
bool dense_product(void *c, bool c_real, bool add, const floatX *a, bool a_transposed, const floatX *b,
                   bool b_transposed, int m, int n, int k, int batch = 1);
