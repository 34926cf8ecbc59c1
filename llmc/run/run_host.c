/* run_host.c: what a run takes of the host's memory and of a disk (run.h), and whether there is
 * memory for a copy of what is saved. Weights of files are read in pieces, and no copy of them is
 * kept: what is large is that copy; on a CPU the model, too. */
#include "run.h"
#include "llmc/files/hf.h"

size_t run_host_memory(const Run *r, size_t copy_bytes, Text *list) {
    const size_t most = (size_t)run_most_micro_batches(r), N = most * (size_t)r->s.batch * (size_t)r->s.seq,
        ranks = (size_t)r->local_devices.count, saved = r->saves.bytes,
        pieces = copy_bytes || !r->dev->is_gpu ? 0 : saved < SAVE_PIECE ? saved : SAVE_PIECE;
    const struct { const char *what; size_t bytes; } parts[] = {
        { "this program and the data", (size_t)run_peak_memory() },
        { "the model", r->dev->is_gpu ? 0 : ranks * r->memory },
        { "batches", ranks * (N * 3 * sizeof *r->inputs + most * sizeof *r->keys) },
        { "loading weights", ranks * hf_host_bytes(&r->model) },
        { "the snapshot", ranks * copy_bytes }, { "pieces of saves", ranks * pieces } };
    size_t total = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        total += parts[i].bytes;
        if (list && parts[i].bytes)
            text_add(list, "%s%s %.1f", list->at ? ", " : "", parts[i].what, (double)parts[i].bytes / 1e6);
    }
    return total;
}

/* Ranks of this process's machine. */
static size_t ranks_here(const Run *r) {
    return (size_t)(r->local_devices.count * (r->launch.locals > 0 ? r->launch.locals : 1));
}
void run_plan_saves(Run *r) {
    Saver *s = saver_open(&r->model, r->s.kept == KEEP_STATE ? &r->optimizer : NULL);
    const size_t bytes = r->saves.bytes = r->s.kept == KEEP_NOTHING ? 0 : saver_copy_bytes(s),
        host = device_find("cpu-f32")->memory(), each = bytes + (r->dev->is_gpu ? 0 : r->model.arena.total),
        limit = (size_t)(1e9 * (double)r->s.host_memory), least = run_host_memory(r, 0, NULL);
    const int fits = limit ? run_host_memory(r, bytes, NULL) <= limit
                   : r->elsewhere || !host || each * ranks_here(r) <= host / 4 * 3;
    saver_close(s);
    if (limit && least > limit && !run_only_plans(r))
        fail(EXIT_MEMORY, "-hm %g: this run takes at least %.1f MB of the host's memory", (double)r->s.host_memory,
             (double)least / 1e6);
    r->saves.copy_bytes = fits ? bytes : 0;
}

double run_disk_bytes(const Run *r, OUT double *available) {
    const Settings *s = &r->s;
    const double state = (double)r->saves.bytes * r->parallel.ranks,
        weights = (double)(r->model.manifest.learnable * r->dev->floatX_size);
    const int again = s->save_every || s->save_seconds > 0, shards = s->shard > 0 && weights > 1e9 * (double)s->shard;
    *available = r->elsewhere ? -1 : file_space(s->out);
    return s->kept == KEEP_NOTHING ? 0 : (again ? s->keep + 1 : 1) * state + (2 * s->keep_best + shards) * weights;
}
