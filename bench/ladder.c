/* ladder.c: how fast is each rung of kernels/ladder? All have one size; their tests are run_tests
 * ladder. */
#include "layers.h"
#include "kernels/ladder/ladder.h"
#include "tests/ops/cases.h"
#include <stdio.h>
#include <string.h>

/* for a GPU, and for a CPU */
static const Shape shape = { "ladder", 4, 4096, 1536, 64, 128, 8, 256, 4, 2, 128, MIXED },
                   little = { "ladder", 1, 512, 2048, 64, 8, 2, 256, 1, 1, 64, MIXED };

/* Seconds of a call: the median of 5 batches of at least 5 ms. */
static double seconds_of(const Device *dev, const Case *c) {
    enum { RUNS = 5 };
    double took[RUNS];
    int calls = 1;
    CaseOnDevice p;
    if (!case_allocate(&p, c, dev)) fail(EXIT_MEMORY, "%s: no memory for %s", dev->name, c->what);
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
    const Device *base = device;
    const double flop = case_cost(c, device).flop, unit = base->is_gpu ? 1e12 : 1e9;
    double before = 0;
    /* Only the up projection: rows gathered from tokens, written sorted. */
    if (!strcmp(c->op, "parallel_linear_forward") && (c->from != BY_TOKEN || c->to != GROUPED)) return;
    if (!case_fits(c, device)) return;
    for (int i = 0; (rung = ladder_list(i)); i++) {
        if (strcmp(c->op, rung->op) || strcmp(base->name, rung->base)) continue;
        const Device dev = ladder_device(device, rung);
        const double time = seconds_of(&dev, c);
        if (!(before > 0)) printf("\n%s\n%10s %9s %8s\n", c->what, "ms", base->is_gpu ? "TFLOP/s" : "GFLOP/s", "gain");
        printf("%10.3f %9.1f ", 1e3 * time, flop / time / unit);
        if (before > 0) printf("%7.2fx", before / time); else printf("%8s", "");
        printf("   %-40s %s\n", rung->file, rung->idea);
        fflush(stdout);
        before = time;
    }
    if (before > 0 && c->dense && base->is_gpu) {
        const double time = seconds_of(device, c->dense);
        printf("%10.3f %9.1f %8s   (one dense product of that size, by cuBLAS)\n", 1e3 * time, flop / time / 1e12, "");
    }
}

void bench_ladder(const Device *dev) {
    Device base = *dev;
    if (strcmp(dev->name, "cuda-bf16") && strcmp(dev->name, "cpu-f32"))
        fail(EXIT_USAGE, "the rungs are for cuda-bf16 and cpu-f32: -d cpu-f32 -e ladder");
    each_case(dev->is_gpu ? &shape : &little, 0, "", climb, &base);
}
