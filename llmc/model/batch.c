/* batch.c: see batch.h. */
#include "batch.h"
#include "gradients.h"
#include "routers.h"
#include <stdlib.h>
#include <string.h>

/* Uploads how many keys before its own each of `count` tokens sees through a window. */
static void upload_reach(const Model *m, int *reach, const int *position, size_t count) {
    const int most = m->config.window - 1;
    if (most < 0) return;
    int *host = mem_alloc(count * sizeof *host);
    for (size_t n = 0; n < count; n++) host[n] = position[n] < most ? position[n] : most;
    m->dev->upload(reach, host, count * sizeof *host);
    free(host);
}
static void upload_position(Model *m, const int *position, size_t count) {
    m->dev->upload(m->batch.position, position, count * sizeof *position);
    upload_reach(m, m->batch.reach, position, (size_t)m->batch.N);
}
void model_position(Model *m, const int *position) { upload_position(m, position, (size_t)m->batch.N); }

static void set_shape(Model *m, int B, int T) {
    const size_t N = (size_t)B * (size_t)T;
    int *position = mem_alloc((N + 1) * sizeof *position);     /* the last is 0 */
    m->batch.B = B, m->batch.T = T, m->batch.N = B * T;
    m->batch.packed = 0;
    for (size_t n = 0; n < N; n++) position[n] = (int)(n % (size_t)T);
    upload_position(m, position, N + 1);
    free(position);
    const int starts[] = { 0, m->head_rows, 0, (int)N % m->head_rows };
    if (m->head8.start) m->dev->upload(m->head8.start, starts, sizeof starts);
}
/* Those that are no filler. */
static int count_tokens(const int *targets, int N) {
    int count = 0;
    for (int n = 0; n < N; n++) count += targets[n] != FILLER;
    return count;
}
void model_batch(Model *m, const int *tokens, const int *targets, int B, int T) {
    set_shape(m, B, T);
    const int counted = targets ? count_tokens(targets, m->batch.N) : m->batch.N;
    m->batch.filled = counted < m->batch.N;
    m->dev->upload(m->dp.own_tokens, &counted, sizeof counted);
    m->dev->upload(m->batch.tokens, tokens, (size_t)m->batch.N * sizeof *tokens);
    if (targets) m->dev->upload(m->batch.targets, targets, (size_t)m->batch.N * sizeof *targets);
}
void model_pack(Model *m, const int *position) {
    m->batch.packed = 1;
    model_position(m, position);
}
void model_scale_loss(Model *m, double scale) {
    const double all[] = { scale, scale * (double)m->further_weight[0], scale * (double)m->further_weight[1] };
    m->dev->reals_from_double(m->batch.loss_scale, all, 3);
}

void model_send(Model *m, const int *tokens, const int *targets, const int *positions, const uint64_t *keys, int B,
                int T) {
    Batch *b = &m->batch;
    set_shape(m, B, T);
    const size_t all = (size_t)b->micro_batches * (size_t)b->N;
    m->dev->upload(b->step_tokens, tokens, all * sizeof *tokens);
    m->dev->upload(b->step_targets, targets, all * sizeof *targets);
    b->packed = b->filled = positions != NULL;
    if (positions) {
        m->dev->upload(b->step_positions, positions, all * sizeof *positions);
        upload_reach(m, b->step_reaches, positions, all);
    }
    m->dev->upload(b->step_keys, keys, (size_t)b->micro_batches * sizeof *keys);
    int *counted = mem_alloc((size_t)b->micro_batches * sizeof *counted);
    for (int i = 0; i < b->micro_batches; i++) counted[i] = count_tokens(targets + (size_t)i * (size_t)b->N, b->N);
    m->dev->upload(b->step_counted, counted, (size_t)b->micro_batches * sizeof *counted);
    free(counted);
}

void model_set_phase(Model *m, Phase phase) {
    m->batch.phase = phase;
    for (int i = 0; i < m->manifest.range_count && phase & PHASE_FIRST && m->dp.level < 2; i++)
        model_clear_gradients(m, i);
}
/* If ordered, or with sharded gradients, those of a micro-batch are made apart and then added. */
void model_begin_micro(Model *m, int micro) {
    Batch *b = &m->batch;
    const size_t N = (size_t)b->N, first = (size_t)micro * N;
    m->dev->copy(b->tokens, b->step_tokens + first, N * sizeof *b->tokens);
    m->dev->copy(b->targets, b->step_targets + first, N * sizeof *b->targets);
    if (b->packed) m->dev->copy(b->position, b->step_positions + first, N * sizeof *b->position);
    if (b->packed && m->config.window) m->dev->copy(b->reach, b->step_reaches + first, N * sizeof *b->reach);
    m->dev->copy(b->key, b->step_keys + micro, sizeof *b->key);
    m->dev->copy(m->dp.own_tokens, b->step_counted + micro, sizeof *b->step_counted);
    if (micro == 0 && (m->dp.ranks > 1 || b->micro_batches < b->all_micro_batches))
        m->dev->zero(m->results.step_losses, (size_t)b->all_micro_batches * m->dev->real_size);
    const int shards = m->dp.level >= 2, apart = m->dp.ordered || shards;
    if (micro == 0 && apart)
        m->dev->zero(shards ? m->grads : m->dp.sums,
                     shards ? m->manifest.gradient_bytes / (size_t)m->dp.shards
                            : m->manifest.total * m->dev->real_size);
    model_set_phase(m, (Phase)((micro == 0 || apart ? PHASE_FIRST : 0)
                               | (micro == b->micro_batches - 1 ? PHASE_LAST : 0)));
}
void model_end_micro(Model *m, int micro) {
    const int index = micro * m->dp.ranks + (m->dp.parallel ? m->dp.parallel->rank : 0);
    m->dev->copy(real_at(m, m->results.step_losses, (size_t)index), m->loss_sum, m->dev->real_size);
}

StepResults model_results(const Model *m) {
    const size_t Re = m->dev->real_size, before_load = (size_t)((char *)m->results.load - m->results.base);
    const size_t reals = before_load / Re, load = router_offset(m, m->routers) * sizeof(int);
    char *host = mem_alloc(before_load + load);
    StepResults r = { .step_losses = mem_alloc(reals * sizeof *r.step_losses), .load = mem_alloc(load) };
    m->dev->download(host, m->results.base, before_load + load);
    for (size_t i = 0; i < reals; i++)
        r.step_losses[i] = Re == sizeof(double) ? ((double *)host)[i] : (double)((float *)host)[i];
    r.losses = r.step_losses + m->batch.all_micro_batches;
    r.grad_sq_norms = r.losses + 2 * m->routers;
    memcpy(r.load, host + before_load, load);
    free(host);
    return r;
}
void results_free(StepResults *r) {
    free_each(r->step_losses, r->load);
}
uint64_t model_state(const Model *m) {
    const double all[] = { m->batch.B, m->batch.T, m->forced, m->rounds, m->fp8, m->used_vocab, m->batch.phase,
                           m->batch.packed, m->batch.filled, m->further, (double)m->dropout, (double)m->balance_coef,
                           (double)m->z_coef };
    return hash_bytes(0, all, sizeof all);
}
void model_clear_activations(Model *m) {
    for (int i = 0; i < m->arena.count; i++) {
        const ArenaEntry *a = &m->arena.at[i];
        if (a->category == MEM_KEPT || a->category == MEM_SHARED) m->dev->zero(*a->pointer, a->bytes);
    }
}
