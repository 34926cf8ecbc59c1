/* settings.h: what a user can set about training: a field here and a row of the table in settings.c, which is all that parsing,
 * --help, the start table, the log, checkpoints and resuming need (options.h). */
#ifndef SETTINGS_H
#define SETTINGS_H
#include "kernels/kernels.h"
#include "options.h"
#include "llmc/base/text.h"
#include "llmc/base/json.h"

enum { SETTINGS = 58 };
typedef struct {
    const char *train, *val, *tokenizer, *model, *scores, *activation, *out, *schedule, *device, *moments, *gradients, *optimizer, *rounding;
    int64_t steps, total, warmup, val_every, val_batches, sample_every, save_every, major, seed;
    int   batch, seq, sample_length, keep, keep_best, resume, allow_data, recompute, record, forced, overfit, check,
          max_bad, show_loads, master, sharded, ordered, copies, ranks, process, processes, port, join_seconds, silence_seconds;
    const char *address;
    float lr, final_lr, decay, clip, momentum, beta1, beta2, dropout, balance, z, bias_rate;
    char given[SETTINGS];               /* 1: by the user */
} Settings;

/* Any mistake ends the program with EXIT_USAGE and a message. */
void settings_parse(Settings *s, int argc, char **argv);
int  settings_given(const Settings *s, const char *letter);
/* What suits the machine and the data, where the user said nothing; the table's own defaults are for text on a CPU. */
void settings_suit(Settings *s, int gpu, int text);
void settings_print(const Settings *s);
/* Those that are kept in checkpoints, must be the same in all processes, and come back when a run is resumed unless the user
 * gives them. */
void settings_json(const Settings *s, Text *out);
void settings_restore(Settings *s, const JsonValue *saved);
float muon_momentum(const Settings *s);                         /* 0: AdamW updates all */
Dtype dtype_by_name(const char *type);                         /* what -mo and -mg say */
#endif
