/* run_time.c: the time of a run that is only planned (run.h): tokens per second, hours, tokens for
 * each parameter. Counted and divided by rates: llmc/model/cost.h. */
#include "run.h"
#include "llmc/base/text.h"
#include "llmc/model/cost.h"
#include <math.h>

/* Of a GPU that is not here by its name; of this machine measured. 0: neither. */
static int find_rates(const Run *r, Rates *rates) {
    const Settings *s = &r->s;
    if (r->elsewhere && *s->gpu_memory) return device_rates(s->gpu_memory, r->config.head_size, rates);
    if (r->elsewhere) return 0;
    return rates_measure(r->dev, &r->config, s->seq, rates);
}
/* Of all ranks. Sums of gradients run beside backward; what of them is not hidden was 1 to 4 % on
 * the GPUs of a host. Ranks on a CPU share it. */
static StepCost step_cost(const Run *r, const Rates *rates) {
    const Settings *s = &r->s;
    const double busy = r->dev->is_gpu ? 1 : r->local_devices.count, shown = r->parallel.ranks > 1 ? 0.97 : 1;
    const Work w = { .B = s->batch, .T = s->seq, .micro_batches = r->micro_batches, .recompute = r->recompute,
                     .gradients = s->gradients, .moments = s->moments, .master = s->master, .muon = settings_muon(s),
                     .dropout = s->dropout, .rounds = r->config.rounding };
    StepCost c = cost_of_step(&r->config, r->dev, &w, rates);
    c.passes *= busy / shown, c.forward *= busy;
    c.update *= busy / (r->parallel.level > 0 ? parallel_shards(&r->parallel) : 1);
    return c;
}
/* Seconds of so many steps with their validations. */
static double run_seconds(const Run *r, const StepCost *c, int64_t steps) {
    const Settings *s = &r->s;
    const int64_t all = data_validation_batches(r->data, s->batch, s->seq),
        batches = s->val_batches >= 0 && s->val_batches < all ? s->val_batches : all,
        validations = (steps + s->val_every - 1) / s->val_every;
    return (double)steps * (c->passes + c->update) + (double)(validations * batches) / r->parallel.ranks * c->forward;
}
double run_time_on(const Run *r, const char *gpu, int gpus, Recompute again, int batch) {
    Run there = *r;
    Rates rates;
    if (!device_rates(gpu, r->config.head_size, &rates)) return 0;
    const double micro_batches = (double)samples_per_step(r) / batch / gpus;    /* of each; may be below 1 */
    there.s.batch = batch;
    there.recompute = again;
    there.micro_batches = micro_batches > 1 ? (int)micro_batches : 1;
    there.parallel.ranks = there.parallel.shards = gpus;
    there.parallel.level = gpus > 1 ? MOST_SHARDED : 0;
    StepCost c = step_cost(&there, &rates);
    c.passes *= micro_batches / there.micro_batches;
    return run_seconds(&there, &c, r->s.steps);
}
int run_estimate(const Run *r, Text *out) {
    Rates rates;
    char left[32];
    if (!find_rates(r, &rates)) return 0;
    const StepCost c = step_cost(r, &rates);
    const double tokens = (double)tokens_per_step(r), step = c.passes + c.update;
    const double total = (double)r->model.manifest.learnable, active = (double)config_active(&r->config, (size_t)total);
    const int64_t epoch = data_epoch_samples(r->data, r->s.seq) / samples_per_step(r), steps = r->s.steps,
        enough = (int64_t)ceil(20 * total / tokens);                    /* 20 tokens per parameter, arXiv 2203.15556 */
    const double rate = 1e-12 * c.flop * r->parallel.ranks / step;
    text_add(out, "%.0f tokens/s, %.4g %s per step, %.*f TFLOP/s\n", tokens / step, step < 10 ? 1e3 * step : step,
             step < 10 ? "ms" : "s", rate < 1 ? 4 : rate < 100 ? 1 : 0, rate);
    duration_text(left, run_seconds(r, &c, steps));
    text_add(out, "%lld steps take %s: %.3g tokens per parameter, %.3g per active one\n", (long long)steps, left,
             (double)steps * tokens / total, (double)steps * tokens / active);
    duration_text(left, run_seconds(r, &c, epoch));
    if (epoch > 0 && epoch != steps)
        text_add(out, "an epoch, %lld step%s, takes %s\n", (long long)epoch, epoch > 1 ? "s" : "", left);
    duration_text(left, run_seconds(r, &c, enough));
    text_add(out, "20 tokens per parameter, %lld steps, take %s\n", (long long)enough, left);
    text_add(out, "estimated%s; within 15 %% of the runs it was compared with%s", r->elsewhere
             ? " from its bandwidth and its rate of bf16" : " from rates measured now",
             r->dev->is_gpu ? ", all on an H200. Networks between machines are not counted" : " on an idle machine");
    return 1;
}
