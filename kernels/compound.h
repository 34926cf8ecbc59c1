/* compound.h: the compound operations of kernels.h, made of other operations: for devices without
 * kernels for them, and for sizes that a device's kernels do not take. */
#pragma once
#include "kernels.h"
#ifdef __cplusplus
extern "C" {
#endif
void compound_expert_up_forward(const Device *d, OUT floatX *pre, OUT floatX *act, const floatX *inp,
                                const floatX *weight, const Plan *plan, Activation f, int C, int F, Rows inp_rows);
void compound_expert_down_backward(const Device *d, OUT floatX *dpre, OUT floatX *wact, OUT real *dweight,
                                   OUT floatX *da, const floatX *dout, const floatX *down, const floatX *pre,
                                   const real *weight, const Plan *plan, Activation f, int C, int F, Rows dout_rows);
void compound_add_norm_forward(const Device *d, OUT floatX *out, OUT real *rstd, OUT floatX *resid,
                               const floatX *residual, const Sum *s, Dropout dropout, Norm norm, int N, int C);
void compound_add_norm_backward(const Device *d, ACC floatX *dresid, ACC real *dnorm,
                                ACC real *dbias, floatX *const scratch[2], const Sum *s, const floatX *resid, Norm norm,
                                const real *rstd, int N, int C);
#ifdef __cplusplus
}
#endif
