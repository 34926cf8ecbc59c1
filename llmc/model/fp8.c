/* fp8.c: which sizes of experts are faster in 8 bits. */
#include "fp8.h"

/* All sizes that were measured are, forward and backward (docs/numerics.md has the figures), and larger products gain more. So a size is,
 * if it is nowhere smaller than one of these, the smallest measured; rows: of one expert in a micro-batch. */
static const struct { int C, F, rows; } faster[] = {
    {  768, 256, 2560 },                    /* one H200 */
    { 1536, 256, 1536 },
};

/* The same on every device, so that a CPU computes what a GPU does. */
int fp8_passes(const Config *c, int N) {
    const double rows = (double)N * c->topk / c->experts;
    if (c->experts == 1) return 0;
    if (!(c->fp8 & FP8_WHERE_FASTER)) return c->fp8;
    for (size_t i = 0; i < sizeof faster / sizeof *faster; i++)
        if (c->channels >= faster[i].C && c->width >= faster[i].F && rows >= faster[i].rows) return FP8_ALL;
    return 0;
}
