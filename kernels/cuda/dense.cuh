// dense.cuh: dense products by NVIDIA's cuBLASLt, where it is installed. For matmul.cu.
#pragma once
#include "impl.cuh"

// c = a b + (add ? c : 0), matrices by columns as in BLAS: a is m x k, or k x m if transposed; b is
// k x n, or n x k. Matrices are contiguous. c holds reals if c_real, else floatX. batch: the number
// of products of this size, whose matrices are consecutive in memory. Returns false, having done
// nothing, if the library or an algorithm for this case is missing.
bool dense_product(void *c, bool c_real, bool add, const floatX *a, bool a_transposed, const floatX *b,
                   bool b_transposed, int m, int n, int k, int batch = 1);
