/* matmul.h: products that only other operations use. */
#ifndef MATMUL_H
#define MATMUL_H
#include "impl.h"

/* out (k,k) = x x^T of x (rows,columns), k = rows; or, transposed, x^T x, k = columns. By little more than half of a product's work, with
 * the same bits. */
void DEVICE(symmetric_product)(OUT floatX *out, const floatX *x, int rows, int columns, int transposed);
/* out (rows,columns) = a (rows,k) b (k,columns) */
void DEVICE(product)(OUT floatX *out, const floatX *a, const floatX *b, int rows, int k, int columns);
/* The elements below the diagonal of x (k,k) become those above. */
void DEVICE(complete_symmetric)(floatX *x, size_t k);
#endif
