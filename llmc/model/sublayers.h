/* sublayers.h: the two sub-layers of layer l, attention.c and moe.c, and what else models have.
 *
 * Forward returns the output for x; backward, with dout the gradient of that output, that of x.
 * All of these are (N,C), and so are resid and out, the residual stream before and after. */
#pragma once
#include "model.h"

static inline int is_mixture(const Config *c) { return c->attention_experts > 1; }          /* of attention heads */
static inline HeadOrder head_order(const Config *c) { return is_mixture(c) ? HEADS_TILED : HEADS_GROUPED; }
static inline Norm norm_of(const Model *m, const floatX *weight) {
    return (Norm){ weight, (float)m->config.norm_eps };
}
static inline int pre_width(const Config *c, int F) { return IS_GATED(c->activation) ? 2 * F : F; }

Sum  attention_layer_forward(Model *m, int l, const floatX *x);
void attention_heads (Model *m, int l, const floatX *x);    /* its steps 3 and 4, */
void attention_mix   (Model *m, int l);                     /* 5, */
Sum  attention_output(Model *m, int l);                     /* 6, 7; backward may call each of them again */
void attention_output_backward(Model *m, int l, const floatX *dout);            /* 7, 6, */
Sum  attention_input_backward(Model *m, int l, const floatX *x, float scale);   /* then 5 to 1 */

Sum  moe_layer_forward (Model *m, int l, const floatX *x);
Sum  moe_layer_backward(Model *m, int l, const floatX *dout, const floatX *x, float scale);
void moe_recompute_up(Model *m, int l, const floatX *x);    /* its step 3, with the routing of the forward */

/* heads.c: in steps 3, 4 and 5 of attention */
void heads_add(Model *m, int l);
void heads_add_backward(Model *m, int l);
void heads_norm_rotate(Model *m, int l);
void heads_norm_rotate_backward(Model *m, int l);
void heads_empty_key(Model *m, int l);
void heads_empty_key_backward(Model *m, int l);

/* values.c: in step 3 of attention; dx: to which backward adds */
void values_add(Model *m, int l, const floatX *x);
void values_add_backward(Model *m, int l, const floatX *x, ACC Sum *dx, Write how);

/* latent.c: instead of steps 3 and 4, and of 6; dx: to which backward adds */
void latent_heads(Model *m, int l, const floatX *x);
void latent_heads_backward(Model *m, int l, const floatX *x, ACC Sum *dx, Write how);
Sum  latent_output(Model *m, int l);
void latent_output_backward(Model *m, int l, const floatX *dout, Write how);

/* mlp.c: instead of experts; and beside them, from their outputs to the sum of all */
Sum  dense_forward(Model *m, int l, const floatX *x);
Sum  dense_backward(Model *m, int l, const floatX *dout, const floatX *x, Write how);
void dense_up(Model *m, int l, const floatX *x);            /* only pre */
Sum  shared_forward(Model *m, int l, const floatX *x, Sum routed);
void shared_backward(Model *m, int l, ACC Sum *dx, const floatX *dout, const floatX *x, Write how);
void shared_up(Model *m, int l, const floatX *x);

/* fp8.c: instead of experts' steps 3 and 4, 5, and 6 to 3. 0: they are not in 8 bits */
int  encoded_up(Model *m, int l, const floatX *x);
int  encoded_down(Model *m, int l);
int  encoded_backward(Model *m, int l, const floatX *dout, const floatX *x, Write how);
void encode_experts(Model *m, int l, int backward);         /* their weights, if this pass needs new codes */
/* instead of the head's products and loss of a chunk of rows, from `first` on */
int  encoded_logits(Model *m, int first, int rows);
int  encoded_cross_entropy(Model *m, int first, int rows);  /* with gradient */
int  encoded_logits_backward(Model *m, int first, int rows, Write how);

/* layer_decode.c: when text is generated. attention_to_past, in step 5. 1: that is done */
int  attention_to_past(Model *m, int l);
/* How many tokens at a time layer_decode and head_decode can do of this batch; 0: they cannot. */
int  layers_decode(const Model *m);
void layer_decode(Model *m, int l, const floatX *resid);    /* from the stream before the layer to its out */
void head_decode(Model *m, OUT floatX *logits, Norm norm);  /* (N,V), before they are divided or capped */
