/* cost.c: what a case computes and moves: its call, on a device that reports costs. */
#include "cases.h"
#include <stdlib.h>
#include <string.h>

static const Case *costed;
static Cost cost;

static double distinct(double N, double V) {
    const double *token = costed->buffer[case_find(costed, "token")].value;
    char *seen = mem_alloc((size_t)V + 1);
    double count = 0;
    for (size_t n = 0; n < (size_t)N; n++) { count += !seen[(size_t)token[n]]; seen[(size_t)token[n]] = 1; }
    free(seen);
    return count;
}
static double visible(int B, int T) {
    const double *position = costed->buffer[case_find(costed, "position")].value;
    double count = 0;
    (void)T;
    for (int b = 0; b < B; b++)
        count += costed->window && position[b] >= costed->window ? costed->window : position[b] + 1;
    return count;
}

static const Device *unused;                /* so that all parameters are used */
#define COUNT(name, operation, parameters, arguments, flop_, bytes_) \
    static void count_##name parameters { \
        if (unused) unused->operation arguments; \
        if (!strcmp(costed->op, #name)) cost.flop = flop_, cost.bytes = bytes_; \
    }
#define OPERATION(name, parameters, arguments, flop, bytes, ...) COUNT(name, name, parameters, arguments, flop, bytes)
#define COMPOUND OPERATION
#define FP8(name, parameters, arguments, flop, bytes, ...) \
    COUNT(fp8_##name, fp8->name, parameters, arguments, flop, bytes)
#include "kernels/operations.h"

Cost case_cost(const Case *c, const Device *dev) {
    Device counting = *dev;
    Fp8Operations fp8 = { 0 };
    void *at[MOST_BUFFERS] = { NULL };
#define OPERATION(name, ...) counting.name = count_##name;
#define COMPOUND OPERATION
#define FP8(name, ...) fp8.name = count_fp8_##name;
#include "kernels/operations.h"
    costed = c, counting.fp8 = &fp8;
    cost = (Cost){ 0, 0 };
    unit.fx = (double)dev->floatX_size, unit.re = (double)dev->real_size, unit.elements = unit.by_muon = 0;
    for (int i = 0; i < c->count; i++) unit.elements += (double)c->segment[i].count;
    unit.gradient_bytes = unit.elements * (double)dtype_size(dev, c->gradients);
    for (int i = 0; i < c->buffers; i++) if (c->buffer[i].name) at[i] = &counting;     /* is there, and never read */
    c->call(&counting, c, at);
    return cost;
}
