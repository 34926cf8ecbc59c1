/* trainee.c: see trainee.h. */
#include "trainee.h"
#include "llmc/base/random.h"
#include <stdlib.h>

/* model_initialize, but only the first million values of a tensor are drawn, and then repeated: drawing billions would take
 * longer than the steps. */
static void initialize(Model *m) {
    enum { DRAWN = 1 << 20 };
    const size_t size = m->dev->floatX_size;
    double *values = mem_alloc(DRAWN * sizeof *values);
    for (int i = 0; i < m->manifest.count; i++) {
        Tensor t = m->manifest.at[i];
        char *to = (char *)m->params + t.offset * size;
        const size_t all = t.count;
        if (t.count > DRAWN) t.count = DRAWN;
        manifest_initial(&t, 1, values);
        m->dev->from_double((floatX *)(void *)to, values, t.count);
        for (size_t at = t.count, more; at < all; at += more) {
            more = all - at < at ? all - at : at;
            m->dev->copy(to + at * size, to, more * size);
        }
    }
    free(values);
}

int trainee_open(Trainee *t, const Device *dev, const Config *c, Lesson l) {
    const int N = l.B * l.T;
    *t = (Trainee){ .tokens = mem_alloc((size_t)(N + 1) * sizeof *t->tokens) };
    for (int n = 0; n <= N; n++) t->tokens[n] = (int)(random_uniform(1, (uint64_t)n) * c->vocab);
    model_plan_training(&t->m, dev, c, l.B, l.T, l.recompute, 1, l.gradients, l.parallel);
    optimizer_plan(&t->o, &t->m, l.master, l.moments, l.momentum);
    if (!model_allocate(&t->m)) return 0;
    t->m.balance_coef = 0.01f;
    initialize(&t->m);
    optimizer_start(&t->o, &t->m);
    return 1;
}

void trainee_send(Trainee *t, int number) {
    const uint64_t key = (uint64_t)number;
    model_send(&t->m, t->tokens, t->tokens + 1, &key, t->m.batch.B, t->m.batch.T);
    optimizer_set(&t->o, &t->m, (AdamW){ .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1 });
}

void trainee_learn(void *model) {
    Model *m = model;
    model_learn(m, 1.0f / (float)(m->batch.N * m->dp.ranks), 1.0f / (float)m->dp.ranks);
}

void trainee_close(Trainee *t) {
    model_free(&t->m);
    free(t->tokens);
}
