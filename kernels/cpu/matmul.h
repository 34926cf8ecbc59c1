/* matmul.h: products that only other operations use; OpenMP's functions, without it too. */
#pragma once
#include "impl.h"
#if defined(_OPENMP)
#include <omp.h>
#else
static inline int omp_get_max_threads(void) { return 1; }
static inline int omp_in_parallel(void) { return 0; }
#endif

/* out (k,k) = x x^T of x (rows,columns), k = rows; or, transposed, x^T x, k = columns. By little
 * more than half of a product's work, with the same bits. */
void DEVICE(symmetric_product)(OUT floatX *out, const floatX *x, int rows, int columns, int transposed);
/* out (rows,columns) = a (rows,k) b (k,columns) */
void DEVICE(product)(OUT floatX *out, const floatX *a, const floatX *b, int rows, int k, int columns);
/* The elements below the diagonal of x (k,k) become those above. */
void DEVICE(complete_symmetric)(floatX *x, size_t k);
