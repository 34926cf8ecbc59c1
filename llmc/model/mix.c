/* mix.c: see mix.h. */
#include "mix.h"
#include "sublayers.h"

Mix mix_of(const Model *m, int l) {
    return (Mix){ m->mixed.first, m->mixed.extra, config_mixes(&m->config) ? m->lp[l].stream : NULL };
}
void mix_pass(Model *m, int l, floatX *x) {
    const Mix mix = mix_of(m, l);
    if (mix.scalars) m->dev->mix_forward(x, mix, m->batch.N, m->config.channels);
}

void mix_begin(Model *m) {
    const Device *dev = m->dev;
    const Batch *b = &m->batch;
    const Mixed *s = &m->mixed;
    const int N = b->N, C = m->config.channels;
    if (s->first) {
        dev->rmsnorm_forward(s->first, s->first_rstd, m->encoded, norm_of(m, m->p.embed_norm), N, C);
        dev->copy(m->encoded, s->first, (size_t)N * (size_t)C * dev->floatX_size);
    }
    if (s->extra) {
        dev->bigram_rows(s->row, s->before, s->seen, b->tokens, b->position, m->cache ? m->cache_row : NULL, N, b->T,
                         config_bigram_rows(&m->config));
        dev->embed_forward(s->extra, s->row, m->p.bigram, N, C);
        dev->flip_signs(s->extra, b->tokens, s->before, N, C);
    }
}

void mix_clear(Model *m) {
    const size_t bytes = (size_t)m->batch.N * (size_t)m->config.channels * m->dev->floatX_size;
    for (int i = 0; i < 2; i++) if (m->s.dstream[i]) m->dev->zero(m->s.dstream[i], bytes);
}
void mix_backward(Model *m, int l, const floatX *x) {
    const Mix mix = mix_of(m, l);
    if (mix.scalars)
        m->dev->mix_backward(m->s.dresid, m->s.dstream[0], m->s.dstream[1], m->lg[l].stream, x, mix, m->batch.N,
                             m->config.channels);
}
/* The stream of layer 0 began with first, so both gradients are its. */
void mix_end(Model *m, const floatX *embedded) {
    const Device *dev = m->dev;
    const int N = m->batch.N, C = m->config.channels;
    const size_t n = (size_t)N * (size_t)C;
    if (m->mixed.extra) {
        dev->flip_signs(m->s.dstream[1], m->batch.tokens, m->mixed.before, N, C);
        dev->embed_backward(m->g.bigram, m->s.dstream[1], m->mixed.row, N, config_bigram_rows(&m->config), C);
    }
    if (!m->mixed.first) return;
    dev->residual(m->s.dstream[0], m->s.dstream[0], m->s.dresid, (Dropout){ 0 }, n);
    dev->zero(m->s.dresid, n * dev->floatX_size);
    dev->rmsnorm_backward(m->s.dresid, m->g.embed_norm, m->s.dstream[0], embedded, norm_of(m, m->p.embed_norm),
                          m->mixed.first_rstd, N, C);
}
