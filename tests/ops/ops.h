/* ops.h: what the tests of operations share. */
#pragma once
#include "cases.h"
#include "tests/test.h"

/* ---- oracle.c ---- */
/* What the operation must make of v: v[i] holds buffer i, NULL where there is none; UPDATE and
 * OUTPUT buffers are overwritten. Frees and NULLs an output that it leaves to another test. Returns
 * 0 if the operation has no definition here. */
int      oracle_compute(const Case *c, double **v);
double   oracle_bound(const Buffer *b, const Device *dev);      /* relative; 0: the same bits */
void     oracle_compare(const Buffer *b, const double *got, const double *want, double bound, const char *who,
                        const char *what);
uint64_t splitmix64(uint64_t state);

/* ---- test_ops.c ---- */
int  allocate_case(CaseOnDevice *p, const Case *c, const Device *dev);  /* case_allocate, or a failed check and 0 */

/* ---- gradients.c, pytorch.c, properties.c ---- */
void check_differences(Case *c, const Device *dev, int elements); /* by finite differences; elements: also one by one */
void check_pytorch(const Device *dev);                          /* tests/reference/ops.safetensors */
void check_rounded_update(const Device *dev);                   /* AdamW and Muon that round stochastically */
void check_sharded_update(const Device *dev);
void check_singular_values(const Device *dev);                  /* of what orthogonalize makes */
void check_rounded_routing(const Device *dev, int try);
void check_unused_rows(const Device *dev);
void check_new_heads(const Device *dev);                        /* of devices with DecodeOperations */
void check_decoded_mlp(const Device *dev);
