/* ladder.c: how fast is each rung of kernels/ladder? All have one size; their tests are run_tests ladder. */
#include "layers.h"
#include "kernels/ladder/ladder.h"
#include "tests/ops/cases.h"
#include <stdio.h>
#include <string.h>

#ifndef WITH_CUDA
void bench_ladder(const Device *dev) { (void)dev; puts("the rungs run on GPUs, and this build has no CUDA"); }
#else
static const Shape shape = { "ladder", 4, 4096, 1536, 64, 128, 8, 256, 4, 2, 128, MIXED };

/* Seconds of a call: the median of 5 batches of at least 5 ms. */
static double seconds_of(const Device *dev, const Case *c) {
    enum { RUNS = 5 };
    double took[RUNS];
    int calls = 1;
    Placed p;
    if (!case_place(&p, c, dev)) fail(EXIT_MEMORY, "%s: no memory for %s", dev->name, c->what);
    for (int i = -2; i < RUNS; i++) {                       /* two to warm up and to see how long a call takes */
        const double start = now();
        for (int call = 0; call < calls; call++) case_run(&p);
        dev->sync();
        const double each = (now() - start) / calls;
        if (i >= 0) took[i] = each;
        else calls = each < 5e-3 ? (int)(5e-3 / each) + 1 : 1;
    }
    case_release(&p);
    return median(took, RUNS);
}

static void climb(Case *c, void *device) {
    const Rung *rung;
    const double flop = case_cost(c, device).flop;
    double before = 0;
    /* Only the up projection: rows gathered from tokens, written sorted. */
    if (!strcmp(c->op, "parallel_linear_forward") && (c->from != BY_TOKEN || c->to != GROUPED)) return;
    for (int i = 0; (rung = ladder_list(i)); i++) {
        if (strcmp(c->op, rung->op)) continue;
        const Device dev = ladder_device(device, rung);
        const double time = seconds_of(&dev, c);
        if (!(before > 0)) printf("\n%s\n%10s %9s %8s\n", c->what, "ms", "TFLOP/s", "gain");
        printf("%10.3f %9.1f ", 1e3 * time, flop / time / 1e12);
        if (before > 0) printf("%7.2fx", before / time); else printf("%8s", "");
        printf("   %-40s %s\n", rung->file, rung->idea);
        fflush(stdout);
        before = time;
    }
    if (before > 0 && c->dense) {
        const double time = seconds_of(device, c->dense);
        printf("%10.3f %9.1f %8s   (one dense product of that size, by cuBLAS)\n", 1e3 * time, flop / time / 1e12, "");
    }
}

void bench_ladder(const Device *dev) {
    Device gpu = *dev;
    if (strcmp(dev->name, "cuda-bf16")) fail(EXIT_USAGE, "the rungs are for cuda-bf16: -d cuda-bf16 -e ladder");
    each_case(&shape, 0, climb, &gpu);
}
#endif
