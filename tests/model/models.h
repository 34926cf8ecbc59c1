/* models.h: what test_model.c does with small models on the CPU and test_gpu.c on every GPU. */
#pragma once
#include "llmc/model/config.h"
#include "kernels/kernels.h"

/* Models with what published families have and no descriptor says: the i-th, made of c, which has
 * the right sizes for its descriptor (returned; NULL past the last). */
const char *family_case(int i, Config *c);

/* Trains on one batch of two contexts. Returns the last loss, NaN without memory. hash: NULL, or of
 * weights and state. how: LEAN: no master weights, moments in floatX; MUON: for matrices. */
enum { LEAN = 1, MUON = 2 };
double overfit(const Device *dev, const Config *c, int steps, int how, uint64_t *hash);

/* Decodes B sequences of T tokens with a cache, the first `first` tokens at once and the others one
 * by one. Returns the fraction of tokens whose logits differ from those of one pass without a cache
 * by more than the bound. (In bf16 a token whose experts are nearly tied may choose others.) */
double decoding_errors(const Device *dev, const Config *c, int B, int T, int first, double bound);

/* 1: tokens that the device draws and reads many steps ahead are the same as if they were drawn and
 * read one at a time, also after a rewind. */
int steps_agree(const Device *dev, const Config *c, int B, Sampler s);

/* The error of the gradients of two rows of several samples against the sum of those of each sample
 * alone. *loss: of the loss. */
double packing_error(const Device *dev, const Config *c, int further, double *loss);

/* 1: after model_clear_activations a batch has the same gradients, whatever the buffers held. */
int forgets(const Device *dev, const Config *c, int B);
