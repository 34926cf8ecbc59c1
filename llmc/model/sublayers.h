/* sublayers.h: the two sub-layers of layer l, attention.c and moe.c, and what they may have besides.
 *
 * Forward returns the output for x; backward, with dout the gradient of that output, the gradient of x.
 * All of these are (N,C), and so are resid and out, the residual stream before and after. */
#ifndef SUBLAYERS_H
#define SUBLAYERS_H
#include "model.h"

/* ---- attention.c ------------------------------------------------------------------------------ */
Sum  attention_layer_forward (Model *m, int l, const floatX *x);
void attention_heads (Model *m, int l, const floatX *x);    /* steps 3 and 4 of the forward, */
void attention_mix   (Model *m, int l);                     /* 5, */
Sum  attention_output(Model *m, int l);                     /* and 6; backward may call each of them again */
void attention_output_backward(Model *m, int l, const floatX *dout);     /* backward of 7 and 6, */
Sum  attention_input_backward(Model *m, int l, const floatX *x, float scale);    /* then of 5 to 1 */

/* ---- latent.c: steps 3 and 4 of latent attention; backward: adds to dx ------------------------ */
void latent_heads(Model *m, int l, const floatX *x);
void latent_heads_backward(Model *m, int l, const floatX *x, ACC Sum *dx);

/* ---- heads.c ---------------------------------------------------------------------------------- */
/* C channels in, G*D in the heads of one expert, Q*G*D in all query heads of a token, and V of D in a head's values. */
typedef struct { int N, C, G, Q, D, V, mixture; HeadOrder order; } HeadSizes;
HeadSizes head_sizes(const Model *m);
Norm head_norm(const Model *m, const floatX *weight);
void rotate(Model *m, HeadSizes z, floatX *q, floatX *kv, int direction);
void norm_rotate(Model *m, int l, HeadSizes z);
void norm_rotate_backward(Model *m, int l, HeadSizes z);
void norm_all(Model *m, int l, HeadSizes z);
void norm_all_backward(Model *m, int l, HeadSizes z);
void add_values(Model *m, int l, HeadSizes z);
void add_values_backward(Model *m, int l, HeadSizes z);
const floatX *mixed_values(Model *m, int l, HeadSizes z);
void mixed_values_backward(Model *m, int l, HeadSizes z, const floatX *dout);

/* ---- moe.c ------------------------------------------------------------------------------------ */
Sum  moe_layer_forward (Model *m, int l, const floatX *x);
void moe_recompute_up(Model *m, int l, const floatX *x);        /* recomputes the up projections, with the routing of the forward */
Sum  moe_layer_backward(Model *m, int l, const floatX *dout, const floatX *x, float scale);

/* ---- mlp.c ------------------------------------------------------------------------------------ */
typedef struct { const floatX *up, *down; void *dup, *ddown; floatX *pre; int F; } DenseMlp;    /* pre (N,2F) or (N,F) */
DenseMlp dense_mlp(const Model *m, int l);
DenseMlp shared_expert(const Model *m, int l);
int  pre_width(const Model *m, int F);
void mlp_up(Model *m, DenseMlp mlp, const floatX *x);
void mlp_forward(Model *m, DenseMlp mlp, floatX *out, const floatX *x);
void mlp_backward(Model *m, DenseMlp mlp, const Route *gate, Sum *dx, const floatX *dout, const floatX *x, Write how);
void gate_forward(Model *m, int l, const floatX *x);
void gate_backward(Model *m, int l, Sum *dx, const floatX *x, Write how);

/* ---- fp8.c ------------------------------------------------------------------------------------ */
int  in_8_bits(const Model *m, int l, int passes);
const ExpertCodes *codes_of(const Model *m, int l);
void moe_encode_weights(Model *m, int l, int backward);     /* to 8 bits, if this pass needs codes that are not there yet */
void up_in_8_bits(Model *m, int l, const floatX *x);
void backward_in_8_bits(Model *m, int l, const floatX *dout, const floatX *x, Write how);

/* ---- layer_decode.c --------------------------------------------------------------------------- */
void attention_layer_decode(Model *m, int l, OUT floatX *out, const floatX *resid);
void moe_layer_decode(Model *m, int l, OUT floatX *out, const floatX *resid);
#endif
