/* models.h: what test_model.c tries with a small model on the CPU and test_gpu.c on every GPU. */
#ifndef MODELS_H
#define MODELS_H
#include "llmc/model/config.h"
#include "kernels/kernels.h"

/* Runs optimizer steps on one batch of two full contexts. Returns the last loss; the hash of the weights, if asked.
 * how: LEAN: without master weights, and with moments in floatX; MUON: for matrices. */
enum { LEAN = 1, MUON = 2 };
double overfit(const Device *dev, const Config *c, int steps, int recompute, int how, uint64_t *hash);

/* With a cache as without one, all at once: `first` tokens of each of B sequences together, then singly to the T-th. The
 * share of tokens whose logits differ by more than the bound: in bf16 a token whose experts are nearly tied may choose others. */
double decoding_errors(const Device *dev, const Config *c, int B, int T, int first, double bound);

/* Tokens that are drawn and read on the device, many steps ahead, are those that are drawn and read one at a time; also
 * after some have been forgotten. */
int steps_agree(const Device *dev, const Config *c, int B, Sampler s);

/* A batch leaves the same gradients, bit for bit, whatever lay in all buffers before, once that has been forgotten. */
int forgets(const Device *dev, const Config *c, int B);
#endif
