/* settings.h: what a user can set about training. A setting is a field here and a row of the table in settings.c; parsing,
 * --help, the start-up table, the log, checkpoints and resuming follow from the row (options.h). */
#ifndef SETTINGS_H
#define SETTINGS_H
#include "kernels/kernels.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/model/optim.h"
#include "options.h"

enum { SETTINGS = 70 };
typedef struct {
    const char *train, *val, *tokenizer, *pattern, *chat, *model, *upcycle, *scores, *activation, *out, *schedule, *device, *moments,
               *gradients, *optimizer, *precision, *rounding, *bias_law, *saved_type, *address, *gpu_memory;
    int64_t steps, total, warmup, val_every, val_batches, sample_every, save_every, major, seed;
    int   batch, seq, sample_length, keep, keep_best, resume, allow_data, any_bytes, recompute, record, forced, overfit, check, period,
          max_bad, show_loads, master, level, node, ordered, copies, ranks, process, processes, port, join_seconds, silence_seconds;
    float save_seconds, lr, final_lr, decay, clip, momentum, beta1, beta2, dropout, balance, z, bias_rate, shard;
    char given[SETTINGS];               /* 1: given by the user */
} Settings;

/* Errors end the program with EXIT_USAGE and a message. */
void settings_parse(Settings *s, int argc, char **argv);
int  settings_given(const Settings *s, const char *letter);
/* Sets what the user did not give to defaults for this machine and this many tokens of training data. The table's defaults are for
 * little text on a CPU. */
void settings_suit(Settings *s, int gpu, int64_t tokens);
/* The same for a model of a folder with `channels` channels and a context of `context` tokens; chats: on conversations. */
void settings_fine_tune(Settings *s, int gpu, int channels, int context, int chats);
void settings_fit_rows(Settings *s, int64_t rows);              /* then, of conversations that fill `rows` rows of -t tokens */
void settings_print(const Settings *s);
/* The settings that describe the run, as JSON: stored in checkpoints, equal in all processes, and restored on resuming unless
 * the user gives others. */
void settings_json(const Settings *s, Text *out);
/* The same settings as a file that -cf reads, less those of one invocation (-o, -y, ...). */
void settings_write(const Settings *s, Text *out);
void settings_given_json(const Settings *s, Text *out);         /* the names of those that the user gave */
int  settings_restore(Settings *s, const JsonValue *saved, Error *e);     /* 0: one is unknown or invalid; s is unchanged */
MuonOptions settings_muon(const Settings *s);                   /* of -wo, -wm and -wp */
Dtype dtype_by_name(const char *type);                         /* of -mo and -mg: bf16 is FLOATX, f32 is REAL */
#endif
