/* trainee.c: see trainee.h. */
#include "trainee.h"
#include "../llmc/random.h"
#include <stdlib.h>

int trainee_open(Trainee *t, const Device *dev, const Config *c, int B, int T) {
    *t = (Trainee){ .tokens = mem_alloc((size_t)(B * T + 1) * sizeof *t->tokens) };
    for (int n = 0; n <= B * T; n++) t->tokens[n] = (int)(random_uniform(1, (uint64_t)n) * c->vocab);
    model_plan_training(&t->m, dev, c, B, T, 0, 1, NULL);
    optimizer_plan(&t->o, &t->m, 1, REAL_MOMENTS);
    if (!model_allocate(&t->m)) return 0;
    t->m.balance_coef = 0.01f;
    model_initialize(&t->m, 1);
    optimizer_start(&t->o, &t->m);
    return 1;
}

void trainee_send(Trainee *t, int number) {
    const uint64_t key = (uint64_t)number;
    model_send(&t->m, t->tokens, t->tokens + 1, &key, t->m.B, t->m.T);
    optimizer_set(&t->o, &t->m, (AdamW){ .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1 });
}

void trainee_learn(void *model) {
    Model *m = model;
    model_learn(m, 1.0f / (float)m->N, 1);
}

void trainee_close(Trainee *t) {
    model_free(&t->m);
    free(t->tokens);
}
