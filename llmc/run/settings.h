/* settings.h: what a user can set about training. A setting is a field here and a row of the table
 * in settings.c; all else follows from the row (options.h). */
#pragma once
#include "kernels/kernels.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/model/optim.h"
#include "llmc/model/schedule.h"
#include "options.h"

enum { SETTINGS = 90 };
/* Values of choices, in the order of their words in the table. */
typedef enum { ADAMW, MUON } Updates;
typedef enum { IN_GRADIENTS_IF_FIT, IN_GRADIENTS, IN_MOMENTUM } Accumulate;
typedef enum { DECAY_PLAIN, DECAY_CAUTIOUS, DECAY_SQUARED } DecayKind;
typedef enum { BIAS_BY_SIGN, BIAS_RELATIVE } BiasLaw;
typedef enum { PRECISE, FP8_IF_FASTER, FP8_ALWAYS, FP8_AND_HEAD } Precision;
typedef enum { KEEP_STATE, KEEP_WEIGHTS, KEEP_NOTHING } Kept;
typedef enum { SAVE_AUTO, SAVE_F32, SAVE_BF16, SAVE_F16, SAVE_F64 } SavedType;

/* In the order of the table's groups. */
typedef struct {
    const char *train, *val, *tokenizer, *pattern, *chat, *field;
    int         splits, allow_data, any_bytes, skip, new_rows;
    const char *model, *upcycle, *scores;
    Activation  activation;
    const char *out;
    int         resume;
    int64_t     resume_step;
    int         allow_run, batch, seq;
    int64_t     total;
    const char *stages;
    int64_t     steps;
    int         plans;                      /* -x 0: a plan of these steps, and no run */
    Schedule    schedule;
    float       lr, final_lr, decay_part, further;
    int64_t     warmup;
    Updates     optimizer;
    DecayKind   cautious;
    float       momentum, decay, clip, beta1, beta2, dropout, value_rate, bigram_rate, row_decay;
    int         ahead, period, master, max_bad;
    Accumulate  accumulate;
    float       most;
    Dtype       moments, gradients;         /* f32: REAL; bf16: FLOATX; int8: INT8 */
    float       balance, z, bias_rate;
    BiasLaw     bias_law;
    int         rounding, forced;           /* rounding 1: nearest */
    int64_t     val_every, val_batches, sample_every;
    int         val_short, sample_length, show_loads;
    int64_t     save_every, major;
    float       save_seconds, shard;
    int         keep, keep_best;
    Kept        kept;
    SavedType   saved_type;
    const char *device;
    int         recompute;
    Precision   precision;
    int         record, level, node, copies, ordered;
    int64_t     seed;
    int         overfit, check;
    const char *address, *gpu_memory;
    float       host_memory;
    int         ranks, processes, process, port, join_seconds, silence_seconds, show_all;
    const char *preset;                     /* whose model -e is (presets.h); NULL: of none */
    char        given[SETTINGS];            /* 1: given by the user */
} Settings;

void settings_parse(Settings *s, int argc, char **argv);        /* errors end the program with EXIT_USAGE */
int  settings_given(const Settings *s, const char *letter);
/* Less text than this is seen many times: a small model. More is seen about once. */
enum { LARGE_TEXT = 10000000 };
/* Sets what the user did not give to defaults for this machine and this many tokens of training
 * data. The table's defaults are for little text on a CPU. Without -e this may be a preset. */
void settings_suit(Settings *s, const Device *dev, int64_t tokens);
void settings_plain_momentum(Settings *s);      /* for a run without lookahead: -wm, unless given, becomes its square */
void settings_preset(const char *name, int64_t tokens, Text *out);  /* the command line that it stands for there */
int  settings_fp8(const Settings *s, const Device *dev);        /* are a preset's experts in 8 bits? only on GPUs */
/* The same for a folder's model of these channels and this context; chats: on conversations. */
void settings_fine_tune(Settings *s, int gpu, int channels, int context, int chats);
void settings_fit_rows(Settings *s, int64_t rows);      /* then, of conversations that fill `rows` rows of -t tokens */
void settings_fit_steps(Settings *s);       /* a warm-up that was not given takes an eighth of them at most */
void settings_print(const Settings *s);         /* what was given or chosen, and what matters always; -as: all */
/* The settings that describe the run, as JSON: stored in checkpoints, equal in all processes, and
 * restored on resuming unless the user gives others. */
void settings_json(const Settings *s, Text *out);
void settings_write(const Settings *s, Text *out);      /* those for -cf, less those of one invocation (-o, -y, ...) */
void settings_given_json(const Settings *s, Text *out);         /* the names of those that the user gave */
void settings_shown_json(const Settings *s, Text *out);         /* of those that settings_print shows */
int  settings_restore(Settings *s, const JsonValue *saved, Error *e); /* 0: one is unknown or invalid: s unchanged */
MuonOptions settings_muon(const Settings *s);                   /* of -wo, -w..., -ga and -cm */
