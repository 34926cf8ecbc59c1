/* compound.c: see compound.h. */
#include "compound.h"

void compound_expert_up_forward(const Device *d, OUT floatX *pre, OUT floatX *act, const floatX *inp,
                                const floatX *weight, const Plan *plan, Activation f, int C, int F, Rows inp_rows) {
    d->parallel_linear_forward(pre, inp, weight, plan, C, IS_GATED(f) ? 2 * F : F, inp_rows, GROUPED);
    d->activation_forward(act, pre, f, plan->S, F);
}

void compound_expert_down_backward(const Device *d, OUT floatX *dpre, OUT floatX *wact, OUT real *dweight,
                                   OUT floatX *da, const floatX *dout, const floatX *down, const floatX *pre,
                                   const real *weight, const Plan *plan, Activation f, int C, int F, Rows dout_rows) {
    d->parallel_linear_backward_input(da, dout, down, plan, F, C, GROUPED, dout_rows);
    d->activation_backward(dpre, wact, dweight, da, pre, weight, plan, GROUPED, f, plan->S, F);
}

/* `out` holds the branch until the norm overwrites it. */
void compound_add_norm_forward(const Device *d, OUT floatX *out, OUT real *rstd, OUT floatX *resid,
                               const floatX *residual, const Sum *s, Dropout dropout, Norm norm, int N, int C) {
    const floatX *branch = s->rows;
    if (s->plan) {
        d->combine_forward(out, s->rows, s->weight, s->bias, s->plan, C, GROUPED);
        branch = out;
    }
    d->residual(resid, residual, branch, dropout, (size_t)N * (size_t)C);
    if (s->mix) d->mix_forward(resid, *s->mix, N, C);
    d->rmsnorm_forward(out, rstd, resid, norm, N, C);
}

void compound_add_norm_backward(const Device *d, ACC floatX *dresid, ACC real *dnorm,
                                ACC real *dbias, floatX *const scratch[2], const Sum *s, const floatX *resid, Norm norm,
                                const real *rstd, int N, int C) {
    floatX *sum = scratch[0];
    const floatX *dout = sum;
    if (s->plan) d->combine_forward(sum, s->rows, NULL, NULL, s->plan, C, GROUPED);
    else if (s->rows && s->terms) d->copy(sum, s->rows, (size_t)N * (size_t)C * d->floatX_size);
    else if (s->rows) dout = s->rows;
    for (int i = 0; i < s->terms; i++)
        d->matmul_backward_input(sum, s->term[i].dout, s->term[i].weight, N, C, s->term[i].O,
                                 s->rows || i > 0 ? ADD : SET);
    if (s->narrow) d->columns_add(sum, s->narrow, N, C, 0, s->narrow_width);
    d->rmsnorm_backward(dresid, dnorm, dout, resid, norm, rstd, N, C);
    if (dbias) d->bias_backward(dbias, dresid, N, C);
}
