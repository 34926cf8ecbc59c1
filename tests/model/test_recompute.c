/* test_recompute.c: recomputing by parts. A step has the same bits whatever is recomputed, each
 * part takes as many bytes less as the plan says, and the choice for a budget is the cheapest. */
#include "models.h"
#include "trainee.h"
#include "tests/test.h"
#include "llmc/model/plan.h"
#include "llmc/model/recompute.h"
#include <limits.h>

/* Every kind of sub-layer: mixtures and plain ones of attention and of MLPs, shared experts with
 * and without a gate, norms of queries and keys, values by token, a window, one block for all
 * layers, rounded routing, 8 bits; and, after these, the published families'. */
static const struct { const char *descriptor; int rounding, fp8; } kinds[] = {
    { "m4:c16h4d4e4k2f12a4x2n0", 0, 0 },     { "m3:c16h4d4q2e6k2f8a1s1n1", 0, 0 },  { "d3:c16h4d4f20n0", 0, 0 },
    { "u3:c16h6d4q2e4k2f12a4x3n0", 0, 0 },   { "m3:c16h6d4q2e4k2f12a4x3n1z2i100v1l5w150y100", 0, 0 },
    { "m3:c16h4d4e5k2f12a1n2", 1, 0 }, { "m3:c128h4e4k2f128a4x2n0", 0, FP8_ALL },
    { "m2:c128h4e4k2f128n0", 0, FP8_FORWARD }, { "m3:c20h4d4q2e4k2f12v2g1t2p1", 0, 0 }, { "m1:c16h4e4k2f12n0", 0, 0 },
};
enum { KINDS = sizeof kinds / sizeof *kinds, T = 12 };
static const char *kind(int i, Config *c) {
    const char *descriptor = i < KINDS ? kinds[i].descriptor : family_case(i - KINDS, NULL);
    if (!descriptor) return NULL;
    *c = trainee_config(descriptor, 29, T);
    if (i >= KINDS) { family_case(i - KINDS, c); return descriptor; }
    c->rounding = kinds[i].rounding, c->tile = 4, c->fp8 = kinds[i].fp8;
    return descriptor;
}

static uint64_t trained(const char *device, const Config *c, Recompute again) {
    return trainee_trained(device_find(device), c, (TraineeOptions){ .B = 2, .T = T, .micro_batches = 2,
                           .recompute = again, .seed = 3, .balance = 0.1f, .z = 0.01f, .dropout = 0.1f }, 1);
}

/* Every set of parts in all layers (bf16: a few); each part in one layer beside another in two. */
static void same_bits(const char *device, const char *descriptor, const Config *c) {
    const uint64_t kept = trained(device, c, recompute_parts(0, 0));
    const unsigned step = strstr(device, "bf16") ? 6 : 1;
    int differ = 0;
    for (unsigned parts = 1; parts < 1u << LAYER_PARTS; parts += step)
        differ += trained(device, c, recompute_parts(parts, INT_MAX)) != kept;
    check(!differ, "%s %s: %d sets of recomputed parts change a bit", device, descriptor, differ);
    for (int p = 0; p < LAYER_PARTS; p++) {
        Recompute mixed = recompute_parts(1u << p, 1);
        mixed.layers[(p + 1) % LAYER_PARTS] = 2;
        check(trained(device, c, mixed) == kept,
              "%s %s: part %d of one layer and the next of two, recomputed, change no bit", device, descriptor, p);
    }
}

static size_t planned(const char *device, const Config *c, Recompute again, Model *keep) {
    Model m;
    model_plan_training(&m, device_find(device), c, 2, T, &again, 2, REAL, NULL);
    const size_t total = m.arena.total;
    if (keep) *keep = m;
    else model_free(&m);
    return total;
}

static double largest(const Model *m) {
    double most = 0;
    for (int p = 0; p < LAYER_PARTS; p++) {
        const double cost = recompute_costs(m, recompute_parts(1u << p, INT_MAX)) / (m->config.layers - 1);
        if (cost > most) most = cost;
    }
    return most;
}
/* Of all choices, that many layers of each part: the least work of those that save enough. */
static double cheapest(const Model *m, size_t bytes) {
    const int n = m->config.layers;
    double least = 1e9;
    int all = 1;
    for (int p = 0; p < LAYER_PARTS; p++) all *= n;
    for (int i = 0; i < all; i++) {
        Recompute r;
        for (int p = 0, left = i; p < LAYER_PARTS; p++, left /= n) r.layers[p] = left % n;
        if (recompute_saves(m, r) >= bytes && recompute_costs(m, r) < least) least = recompute_costs(m, r);
    }
    return least;
}
static void choice(const Model *m, const char *descriptor) {
    const size_t most = recompute_saves(m, recompute_numbered(2));
    for (int i = 0; i <= 4; i++) {
        const size_t wanted = most * (size_t)i / 4;
        const Recompute r = recompute_choose(m, wanted);
        check(recompute_saves(m, r) >= wanted, "%s: the choice saves %zu bytes, of %zu", descriptor,
              recompute_saves(m, r), wanted);
        check(recompute_costs(m, r) <= cheapest(m, wanted) + largest(m), "%s: no other costs less by more than a layer "
              "of one part: %.3f, %.3f", descriptor, recompute_costs(m, r), cheapest(m, wanted));
        check(i || !recompute_saves(m, r), "%s: where nothing must be saved, nothing is recomputed", descriptor);
    }
    const Recompute all = recompute_choose(m, most + 1);
    check(recompute_saves(m, all) == most, "%s: more than there is: all is recomputed", descriptor);
}
static void plans(const char *device, const char *descriptor, const Config *c) {
    Model m;
    const size_t kept = planned(device, c, recompute_parts(0, 0), &m);
    for (int p = 0; p < LAYER_PARTS; p++) for (int n = 0; n <= c->layers; n++) {
        const Recompute r = recompute_parts(1u << p, n);
        const size_t less = planned(device, c, r, NULL);
        check(less + recompute_saves(&m, r) == kept, "%s %s: part %d of %d layers saves %zu bytes, "
              "the plan says %zu", device, descriptor, p, n, kept - less, recompute_saves(&m, r));
    }
    const double all = recompute_costs(&m, recompute_numbered(2));
    check(c->layers == 1 ? all == 0 : all > 0.05 && all < 2, "%s: whole layers cost %.2f of a step", descriptor, all);
    choice(&m, descriptor);
    model_free(&m);
}

static void words(void) {
    const Config c = trainee_config("m12:e64k8f256", 256, 1024);
    Model m;
    Text t = { 0 };
    Recompute r = recompute_parts(1u << PART_UP, 5);
    model_plan_training(&m, device_find("cpu-bf16"), &c, 4, 1024, NULL, 1, FLOATX, NULL);
    recompute_describe(&m, recompute_parts(0, 0), &t);
    check(!t.at, "nothing recomputed, nothing said");
    recompute_describe(&m, r, &t);
    check(!strncmp(t.at, "up projections of 5 of 12 layers: 167.77 MB less, about ", 56), "%s", t.at);
    t.length = 0;
    r.layers[PART_NORMS] = r.layers[PART_ATTENTION] = 99;
    recompute_describe(&m, r, &t);
    check(!strncmp(t.at, "norms of 11, attention of 11 and up projections of 5 of 12 layers: ", 67), "%s", t.at);
    t.length = 0;
    recompute_describe(&m, recompute_numbered(2), &t);
    check(!strncmp(t.at, "11 of 12 layers: ", 17), "%s", t.at);
    free(t.at), model_free(&m);
}

void test_recompute(void) {
    Config c;
    const char *descriptor;
    for (int i = 0; (descriptor = kind(i, &c)); i++) {
        PART(same_bits("cpu-f32", descriptor, &c));
        PART(same_bits("cpu-bf16", descriptor, &c));
        PART(plans(i % 2 ? "cpu-f32" : "cpu-bf16", descriptor, &c));
    }
    PART(words());
}
