/* fp8.c: which passes of the experts' products are faster in 8 bits, by size. */
#include "model.h"

/* What was measured: times in bf16 / times in 8 bits of the experts' forward pass, with the coding of the weights, which one micro-batch
 * a step pays alone, and of their backward pass; rows: of one expert. Lines as `bench_moe -d cuda-bf16 -e layers` prints them. */
static const struct { int C, F, rows; double forward, backward; } measured[] = {
    {  768,  256, 2560, 1.03, 0.93 },       /* one H200 */
    {  768,  512, 2560, 1.01, 0.97 },
    {  768, 1024, 2560, 1.05, 1.02 },
    { 1536,  256, 1536, 1.02, 1.04 },
    { 1536,  512, 1536, 1.04, 1.13 },
    { 1536, 1024, 1536, 1.04, 1.19 },
    { 2048,  768, 4096, 1.24, 1.18 },
    { 2048, 1024, 4096, 1.25, 1.24 },
    { 4096,  256, 2048, 1.07, 1.05 },
    { 4096,  512, 2048, 1.14, 1.16 },
    { 4096, 1024, 2048, 1.15, 1.26 },
    { 4096, 2048, 2048, 1.17, 1.30 },
};

/* Larger products gain more. So of the sizes measured that are nowhere larger than this one, the largest decides. Without one it is bf16.
 * The same on every device, so that a CPU computes what a GPU does. */
int fp8_passes(const Config *c, int N) {
    const double rows = (double)N * c->topk / c->experts;
    double most = 0;
    int passes = 0;
    if (c->experts == 1) return 0;
    if (!(c->fp8 & FP8_WHERE_FASTER)) return c->fp8;
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
        const double work = (double)measured[i].C * measured[i].F * measured[i].rows;
        if (measured[i].C > c->channels || measured[i].F > c->width || measured[i].rows > rows || work < most) continue;
        most = work;
        passes = (measured[i].forward > 1 ? FP8_FORWARD : 0) | (measured[i].backward > 1 ? FP8_BACKWARD : 0);
    }
    return passes;
}
