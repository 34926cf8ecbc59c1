/* mix.h: what some models do to the residual stream x before a layer reads it, with scalars s, b
 * and c of the layer:
 *
 *     x = exp(s) x + b first + (1 + c) extra
 *
 *     first   norm(embedding), with which x then also begins; otherwise exp(s) is 1
 *     extra   a row of a table for the pair of the token before and this one, with signs that
 *             depend on the pair. 0 at first, so that c has a gradient later only
 *
 * pass.c calls these; for other models they do nothing.
 * Source: modded-nanogpt's records, github.com/KellerJordan/modded-nanogpt. */
#pragma once
#include "model.h"

Mix  mix_of(const Model *m, int l);         /* of layer l. Without scalars: the stream passes as it is */
/* From the embedding in m->encoded to first and extra, and to the stream that layer 0 gets. */
void mix_begin(Model *m);
void mix_pass(Model *m, int l, floatX *x);   /* in place; elsewhere add_norm_forward does it */
/* m->s.dresid, the gradient of x, which layer l gets, becomes that of the stream before. */
void mix_backward(Model *m, int l, const floatX *x);
void mix_clear(Model *m);                    /* before the backward of all layers, */
/* and after: m->s.dresid becomes the gradient of the embedding, embedded: what mix_begin got. */
void mix_end(Model *m, const floatX *embedded);
