/* train_moe.c: trains a sparse mixture-of-experts language model.
 *
 *   settings -> data -> model -> ranks -> loop { batch, forward, loss, backward, update } -> checkpoint
 *
 * main() is at the end and reads as the list above. Everything after `ranks` is done by each rank in a thread of its
 * own, in step with the others (llmc/parallel.h); rank 0 alone writes and prints. What a model is: llmc/model.c. What its
 * layers compute: llmc/attention.c, llmc/moe.c, llmc/route.c. The arithmetic: kernels/kernels.h. */
#define _POSIX_C_SOURCE 200809L
#include "llmc/check.h"
#include "llmc/data.h"
#include "llmc/decode.h"
#include "llmc/device.h"
#include "llmc/hf.h"
#include "llmc/log.h"
#include "llmc/options.h"
#include "llmc/parallel.h"
#include "llmc/random.h"
#include "llmc/report.h"
#include "llmc/schedule.h"
#include "llmc/world.h"
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* ---- settings ------------------------------------------------------------------------------------------ */

typedef struct {
    const char *train, *val, *tokenizer, *model, *scores, *activation, *out, *schedule, *device, *moments, *gradients, *rounding;
    int64_t steps, total, warmup, val_every, val_batches, sample_every, save_every, major, seed;
    int   batch, seq, sample_length, keep, keep_best, resume, allow_data, recompute, record, forced, overfit, check,
          max_bad, show_loads, master, sharded, ordered, copies, ranks, process, processes, port, join_seconds, silence_seconds;
    const char *address;
    float lr, final_lr, decay, clip, beta1, beta2, dropout, balance, z, bias_rate;
} Settings;

#define AT(field) offsetof(Settings, field)
static const Option options[] = {
    /* group       letter name               kind          field              default                low   high   choices      what it is */
    { "data",      "i",  "train",            OPTION_TEXT,  AT(train),         "data/tinyshakespeare", 0,    0,     NULL,
      "training data: text file, folder, llm.c or nanoGPT tokens" },
    { "data",      "j",  "val",              OPTION_TEXT,  AT(val),           "",                    0,    0,     NULL,
      "validation data; none: a tenth of the training data" },
    { "data",      "tk", "tokenizer",        OPTION_TEXT,  AT(tokenizer),     "",                    0,    0,     NULL,
      "tokenizer.json for text; none: every byte is a token" },
    { "data",      "ad", "allow-data-change", OPTION_INT,  AT(allow_data),    "0",                   0,    1,     NULL,
      "1: resume although the data are not the ones the run began with" },
    { "model",     "e",  "model",            OPTION_TEXT,  AT(model),         "m4",                  0,    0,     NULL,
      "descriptor such as m4, d12, m12:e64k8f256, or a folder with a model to go on from" },
    { "model",     "rs", "router-scores",    OPTION_TEXT,  AT(scores),        "topk-softmax",        0,    0,     "topk-softmax|softmax-topk|sigmoid",
      "how a router makes weights of its logits" },
    { "model",     "fa", "activation",       OPTION_TEXT,  AT(activation),    "swiglu",              0,    0,     "swiglu|gelu|relu2",
      "nonlinearity of the experts" },
    { "output",    "o",  "out",              OPTION_TEXT,  AT(out),           "out",                 0,    0,     NULL,
      "folder for checkpoints and logs" },
    { "output",    "y",  "resume",           OPTION_INT,   AT(resume),        "0",                   0,    1,     NULL,
      "1: go on with the run in the folder; 0, when given: discard it" },
    { "batch",     "b",  "batch",            OPTION_INT,   AT(batch),         "8",                   1,    1e6,   NULL,
      "sequences per micro-batch (B) of a rank; unless given, ranks share the default" },
    { "batch",     "t",  "seq",              OPTION_INT,   AT(seq),           "128",                 1,    262144, NULL,       "tokens per sequence (T)" },
    { "batch",     "d",  "total",            OPTION_LONG,  AT(total),         "0",                   0,    1e12,  NULL,
      "tokens per step, a multiple of B*T: gradients accumulate; 0: B*T" },
    { "schedule",  "x",  "steps",            OPTION_LONG,  AT(steps),         "1600",                -1,   1e12,  NULL,
      "optimizer steps; -1: one epoch; 0: print the plan and stop" },
    { "schedule",  "k",  "schedule",         OPTION_TEXT,  AT(schedule),      "cosine",              0,    0,     SCHEDULES,   "course of the learning rate" },
    { "schedule",  "l",  "lr",               OPTION_FLOAT, AT(lr),            "1e-3",                0,    10,    NULL,        "peak learning rate" },
    { "schedule",  "u",  "warmup",           OPTION_LONG,  AT(warmup),        "100",                 0,    1e12,  NULL,        "steps to reach it" },
    { "schedule",  "q",  "final-lr",         OPTION_FLOAT, AT(final_lr),      "0.1",                 0,    1,     NULL,
      "last learning rate, as a fraction of the peak" },
    { "optimizer", "c",  "decay",            OPTION_FLOAT, AT(decay),         "0.1",                 0,    10,    NULL,        "weight decay of matrices" },
    { "optimizer", "cg", "clip",             OPTION_FLOAT, AT(clip),          "1.0",                 0,    1e9,   NULL,
      "largest global gradient norm; 0: no clipping" },
    { "optimizer", "w1", "beta1",            OPTION_FLOAT, AT(beta1),         "0.9",                 0,    0.99999, NULL,
      "AdamW: decay of the mean of gradients" },
    { "optimizer", "w2", "beta2",            OPTION_FLOAT, AT(beta2),         "0.99",                0,    0.99999, NULL,
      "AdamW: decay of the mean of squared gradients" },
    { "optimizer", "mw", "master-weights",   OPTION_INT,   AT(master),        "1",                   0,    1,     NULL,
      "bf16: 1: keep the weights in f32 as well; 0: round updates stochastically, 4 bytes a parameter less" },
    { "optimizer", "mo", "moments",          OPTION_TEXT,  AT(moments),       "f32",                 0,    0,     "f32|bf16",
      "bf16: AdamW's two running means; bf16 is 4 bytes a parameter less" },
    { "optimizer", "mg", "gradients",        OPTION_TEXT,  AT(gradients),     "bf16",                0,    0,     "f32|bf16",
      "bf16: bf16 for gradients of layers' matrices if a step is one micro-batch of one rank: 2 bytes a parameter less" },
    { "optimizer", "dr", "dropout",          OPTION_FLOAT, AT(dropout),       "0",                   0,    0.99,  NULL,
      "dropout of the embedding and of what each block adds" },
    { "optimizer", "mb", "max-bad-steps",    OPTION_INT,   AT(max_bad),       "10",                  1,    1e6,   NULL,
      "stop after so many steps in a row without a finite gradient" },
    { "routing",   "ra", "balance",          OPTION_FLOAT, AT(balance),       "0.01",                0,    100,   NULL,
      "weight of the load-balance loss" },
    { "routing",   "rz", "zloss",            OPTION_FLOAT, AT(z),             "0.001",               0,    100,   NULL,        "weight of the router z-loss" },
    { "routing",   "rb", "bias-rate",        OPTION_FLOAT, AT(bias_rate),     "0",                   0,    1,     NULL,
      "balance by a selection bias that moves so much a step (try 1e-3 with -ra 0)" },
    { "routing",   "rt", "rounding",         OPTION_TEXT,  AT(rounding),      "off",                 0,    0,     "off|nearest|stochastic|score|balanced|up|down",
      "in training, give every MLP expert a multiple of 128 rows" },
    { "routing",   "rf", "force-balance",    OPTION_INT,   AT(forced),        "0",                   0,    1,     NULL,
      "1: route round robin, for speed measurements; does not learn to route" },
    { "watching",  "v",  "val-every",        OPTION_LONG,  AT(val_every),     "200",                 1,    1e12,  NULL,        "steps between validations" },
    { "watching",  "m",  "val-batches",      OPTION_LONG,  AT(val_batches),   "-1",                  -1,   1e12,  NULL,
      "batches of a validation; -1: the whole split" },
    { "watching",  "s",  "sample-every",     OPTION_LONG,  AT(sample_every),  "400",                 0,    1e12,  NULL,
      "steps between samples of text; 0: none" },
    { "watching",  "g",  "sample-length",    OPTION_INT,   AT(sample_length), "256",                 1,    1e6,   NULL,        "tokens of a sample" },
    { "watching",  "vt", "load-table",       OPTION_INT,   AT(show_loads),    "0",                   0,    1,     NULL,
      "1: show the load of every expert at each validation" },
    { "saving",    "n",  "save-every",       OPTION_LONG,  AT(save_every),    "0",                   0,    1e12,  NULL,
      "steps between checkpoints; 0: only at the end and when stopped" },
    { "saving",    "nk", "keep",             OPTION_INT,   AT(keep),          "2",                   1,    1e6,   NULL,        "newest checkpoints to keep" },
    { "saving",    "nm", "major",            OPTION_LONG,  AT(major),         "0",                   0,    1e12,  NULL,
      "keep those of every so many steps for ever; 0: none" },
    { "saving",    "nb", "best",             OPTION_INT,   AT(keep_best),     "1",                   0,    1,     NULL,
      "1: keep the weights with the best validation loss in OUT/best" },
    { "machine",   "dv", "device",           OPTION_TEXT,  AT(device),        "auto",                0,    0,     NULL,
      "auto, cpu, cuda, or a device by name, such as cpu-bf16" },
    { "machine",   "r",  "recompute",        OPTION_INT,   AT(recompute),     "0",                   0,    2,     NULL,
      "recompute in backward, for memory: 0 nothing, 1 norms, 2 whole layers" },
    { "machine",   "gr", "graph",            OPTION_INT,   AT(record),        "1",                   0,    2,     NULL,
      "record a step's work once and replay it: 0 never, 1 on a GPU, 2 also on several" },
    { "machine",   "z",  "zero",             OPTION_INT,   AT(sharded),       "1",                   0,    1,     NULL,
      "1: ranks share the optimizer's state (ZeRO-1); 0: each has all of it" },
    { "machine",   "ce", "copy-engines",     OPTION_INT,   AT(copies),        "1",                   0,    1,     NULL,
      "1: GPUs of one process exchange by copy engines where they can; 0: by NCCL's kernels" },
    { "machine",   "rp", "reproducible",     OPTION_INT,   AT(ordered),       "0",                   0,    1,     NULL,
      "1: with the same -b and -d, the same bits on any number of ranks; slower" },
    { "machine",   "sd", "seed",             OPTION_LONG,  AT(seed),          "1337",                0,    9e15,  NULL,
      "of weights, order of the data, dropout and samples" },
    { "checks",    "a",  "overfit",          OPTION_INT,   AT(overfit),       "0",                   0,    1,     NULL,
      "1: train on the first batch again and again; the loss must go to zero" },
    { "checks",    "gc", "gradient-check",   OPTION_INT,   AT(check),         "0",                   0,    1,     NULL,
      "1: compare every gradient of this model with finite differences, and stop" },
    /* From here on: where a run runs, not what it is. Neither kept in checkpoints nor the same in all processes. */
    { "ranks",     "ng", "gpus",             OPTION_INT,   AT(ranks),         "0",                   0,    1024,  NULL,
      "ranks of this process, a GPU each (-dv cpu: a share of the cores); 0: all GPUs" },
    { "ranks",     "pn", "processes",        OPTION_INT,   AT(processes),     "0",                   0,    1e6,   NULL,
      "processes of the run; 0: as torchrun, mpirun, mpiexec or srun say" },
    { "ranks",     "pr", "process",          OPTION_INT,   AT(process),       "-1",                  -1,   1e6,   NULL,
      "which of them this is, from 0" },
    { "ranks",     "ps", "address",          OPTION_TEXT,  AT(address),       "",                    0,    0,     NULL,
      "host of process 0" },
    { "ranks",     "pp", "port",             OPTION_INT,   AT(port),          "0",                   0,    65535, NULL,
      "and its port" },
    { "ranks",     "pw", "join-seconds",     OPTION_INT,   AT(join_seconds),  "300",                 1,    1e6,   NULL,
      "how long to wait for all processes to start" },
    { "ranks",     "pt", "silence-seconds",  OPTION_INT,   AT(silence_seconds), "10",                1,    1e6,   NULL,
      "a process that is silent for so long is lost" },
};
enum { OPTIONS = sizeof options / sizeof *options };
static int kept_options(void) {
    int n = 0;
    while (n < OPTIONS && strcmp(options[n].group, "ranks")) n++;
    return n;
}

static const char usage[] =
    "train_moe: trains a sparse mixture-of-experts language model.\n"
    "  ./train_moe                                   tinyshakespeare, a small model, into out/\n"
    "  ./train_moe -i book.txt -e m6 -x 2000         another text, a larger model\n"
    "  ./train_moe -y 1                              go on after an interruption, with the same settings\n"
    "  ./train_moe -ng 4                             on four GPUs (without -ng: on all that there are)\n"
    "  ./train_moe -x 0 -e m12:e64k8f256             what would it take? parameters and memory, nothing is run";

/* ---- what a run consists of, for one rank. Data, tokenizer and checkpoint are shared by all of a process ---- */

typedef struct {
    Settings   s;
    char       given[OPTIONS];
    Tokenizer *tokenizer;               /* NULL: the data are ids of an unknown tokenizer */
    Data      *data;
    Launch     launch;                  /* which process this is, of how many */
    World     *world;
    Parallel   parallel;                /* which rank, of how many */
    DeviceShare share;                  /* the devices of this process */
    int        leads;                   /* 1: rank 0, or while there are no ranks yet process 0 */
    const Device *dev;
    Config     config;
    Model      model;
    Optimizer  optimizer;
    Decoder    decoder;                 /* for samples; shares the weights */
    Progress   progress;
    Log        log;
    Replay     replay_micro[2][2], replay_update; /* of micro-batches: [sets or adds][sums gradients over ranks besides] */
    int        records;                 /* 1: steps are recorded */
    Checkpoint *from;                   /* what is resumed, until it is loaded */
    int        micro_batches, samples_wanted;     /* micro_batches: of each rank */
    int       *inputs, *targets;        /* (micro_batches,B,T) */
    uint64_t  *keys;                    /* (micro_batches) of their dropout */
    char      *options_json;
    double     started, session;        /* program start; seconds trained in this session */
    int64_t    first_step, waits;       /* waits for the device in the steps of this session */
    int        speaks_for;              /* 1: the rank that hears of signals to this process */
    int        failed_saves, locked, restored, finished;
} Run;

/* Settings of one invocation, which are not taken over from the run that is resumed. */
static const char *const not_restored[] = { "out", "resume", "allow-data-change", "gradient-check" };

static void restore_settings(Run *r, const JsonValue *saved) {
    r->restored = 1;
    for (const JsonValue *v = json_first(saved); v; v = v->next) {
        int keep = 0;
        for (size_t i = 0; i < sizeof not_restored / sizeof *not_restored; i++)
            keep |= !strcmp(v->key, not_restored[i]);
        for (int i = 0; i < kept_options() && !keep; i++) {
            char number[64];
            if (strcmp(v->key, options[i].name)) continue;
            snprintf(number, sizeof number, json_is(v, JSON_INT) ? "%.0f" : "%.9g", json_double(v, 0));
            options_default(options, OPTIONS, &r->s, r->given, options[i].letter,
                            json_is(v, JSON_STRING) ? text_format("%s", json_string(v, "")) : number);
        }
    }
}

/* A run that was killed before its first checkpoint has left its settings in the first line of its log. */
static void restore_settings_from_log(Run *r) {
    Error e;
    size_t bytes;
    char *path = text_format("%s/log.jsonl", r->s.out), *text = file_read(path, &bytes, &e);
    Json *start = text ? json_parse(text, strcspn(text, "\n"), &e) : NULL;
    if (start) restore_settings(r, json_get(json_root(start), "options"));
    json_free(start);
    free(text);
    free(path);
}

/* Where this process stands among others. The launcher's settings may say, or the user's. */
static void find_launch(Run *r) {
    const Settings *s = &r->s;
    Launch said = { .launcher = "flags", .process = s->process, .processes = s->processes, .port = s->port };
    Error e;
    snprintf(said.address, sizeof said.address, "%s", s->address);
    if (!launch_find(&r->launch, &said, launch_getenv, &e)) fail(EXIT_USAGE, "%s", e.text);
    r->leads = r->launch.process == 0;
}

static void lock_folder(Run *r) {
    Error e;
    if (!r->leads) return;
    if (!checkpoint_lock(r->s.out, &e)) fail(strstr(e.text, "in use") ? EXIT_USAGE : EXIT_DISK, "%s", e.text);
    r->locked = 1;
}

/* Whose run is in the folder, and may it be touched? Nothing is written before this says so. */
static void open_folder(Run *r) {
    Settings *s = &r->s;
    Error e;
    const int said = option_given(options, OPTIONS, r->given, "y");
    if (s->check || (s->steps == 0 && option_given(options, OPTIONS, r->given, "x"))) return;
    if (is_file(s->out)) fail(EXIT_DISK, "%s is a file; -o needs a folder, or the name of a new one", s->out);
    const Holding there = checkpoint_exists(s->out);
    if (!there) return;                     /* then it is made when all else is known to be good: claim_folder */
    if (!said)
        fail(EXIT_USAGE, "%s holds another run or model. To go on with it: -y 1. "
             "To discard it and start over: -y 0. To keep it: another folder with -o", s->out);
    if (there == HOLDS_MODEL && s->resume)
        fail(EXIT_CHECKPOINT, "%s holds a model, but no state to resume from. "
             "To train it further: -e %s and another folder with -o. To discard it: -y 0", s->out, s->out);
    lock_folder(r);
    if (there == HOLDS_STATE && s->resume) {
        if (!(r->from = checkpoint_open(s->out, &e))) fail(EXIT_CHECKPOINT, "%s", e.text);
        restore_settings(r, checkpoint_options(r->from));
    } else if (s->resume) {
        warn("%s: no checkpoint was saved yet; starting from the beginning", s->out);
        restore_settings_from_log(r);
    }
}

/* The run begins: nothing that can be known beforehand is wrong with it. What was in the folder goes only now. */
static void claim_folder(Run *r) {
    Error e;
    if (!r->locked) {
        lock_folder(r);
        if (checkpoint_exists(r->s.out)) fail(EXIT_USAGE, "%s: another run has begun here meanwhile", r->s.out);
    } else if (!checkpoint_clear(r->s.out, &e)) fail(EXIT_DISK, "%s", e.text);
}

static void choose_device(Run *r) {
    char why_cpu[256];
    r->share = (DeviceShare){ .local = r->launch.local, .locals = r->launch.locals, .count = r->s.ranks };
    r->dev = device_choose(r->s.device, &r->share, why_cpu);
    if (*why_cpu && r->leads) printf("training on the CPU: %s\n", why_cpu);
}

/* What suits the machine and the data, where the user said nothing; the table's own defaults are for text on a CPU. */
static void set_defaults(Run *r) {
    static const struct { const char *letter, *text_gpu, *tokens_cpu, *tokens_gpu; } suits[] = {
        { "e",  "m6",  "m12", "m12" },    { "b",  "64",   "4",    "16" },
        { "t",  "256", "1024", "1024" },  { "d",  "0",    "0",    "524288" },
        { "x",  "800", "-1",  "-1" },     { "l",  "2e-3", "6e-4", "6e-4" },
        { "u",  "100", "700", "700" },    { "w2", "0.99", "0.95", "0.95" },
        { "c",  "1",   "0.1", "0.1" },    { "q",  "0",   "0.1", "0.1" },
        { "dr", "0.3", "0",   "0" },      { "v",  "25",   "250",  "250" },
        { "m",  "-1",  "20",  "20" },     { "s",  "400",  "1000", "1000" },
    };
    const int gpu = r->dev->is_gpu, text = data_is_text(r->data);
    if (text && !gpu) return;
    for (size_t i = 0; i < sizeof suits / sizeof *suits; i++)
        options_default(options, OPTIONS, &r->s, r->given, suits[i].letter,
                        text ? suits[i].text_gpu : gpu ? suits[i].tokens_gpu : suits[i].tokens_cpu);
}

static void open_data(Run *r) {
    Error e;
    Settings *s = &r->s;
    Tokenizer *tokenizer = NULL;
    if (*s->tokenizer && !(tokenizer = tokenizer_load(s->tokenizer, &e))) fail(EXIT_INPUT, "%s", e.text);
    if (!(r->data = data_open(s->train, s->val, tokenizer, &e))) fail(EXIT_INPUT, "%s", e.text);
    r->tokenizer = tokenizer ? tokenizer : data_is_text(r->data) ? tokenizer_bytes() : NULL;
    if (!r->restored) set_defaults(r);
    if (data_is_fallback(r->data))
        warn("tinyshakespeare is not here: training on this project's own text instead. "
             "The losses are NOT tinyshakespeare's. To fetch it: sh data/tinyshakespeare/fetch.sh");
}

static void described(const Settings *s, Config *c) {
    Error e;
    if (!config_parse(c, s->model, &e)) fail(EXIT_USAGE, "%s", e.text);
    if (c->experts > 1 || c->attention_experts > 1) c->scores = scores_by_name(s->scores);
    c->activation = activation_by_name(s->activation);
}

static void choose_model(Run *r) {
    Error e;
    Config *c = &r->config;
    const Settings *s = &r->s;
    const int is_model = is_folder(s->model);
    const int kind_given = option_given(options, OPTIONS, r->given, "rs")
                        || option_given(options, OPTIONS, r->given, "fa");
    if (!r->tokenizer && data_max_id(r->data) >= 1 << 24)
        fail(EXIT_INPUT, "%s: token id %d; ids up to %d are believed to be ids",
             s->train, data_max_id(r->data), (1 << 24) - 1);
    const int vocab = r->tokenizer ? tokenizer_vocab(r->tokenizer) : data_max_id(r->data) + 1;
    if (r->from) {
        if (!checkpoint_config(r->from, c, &e)) fail(EXIT_CHECKPOINT, "%s: %s", checkpoint_path(r->from), e.text);
    } else if (is_model) {
        if (kind_given) fail(EXIT_USAGE, "-e %s: the model in this folder says itself what -rs and -fa are", s->model);
        if (!hf_load_config(s->model, c, &e)) fail(EXIT_INPUT, "%s", e.text);
        if (r->tokenizer && vocab > c->vocab)
            fail(EXIT_INPUT, "%s: its vocabulary has %d tokens, the data need %d", s->model, c->vocab, vocab);
    } else {
        described(s, c);
        /* products like multiples of 128 */
        c->vocab = r->tokenizer && vocab <= 256 ? vocab : (vocab + 127) / 128 * 128;
        c->context = s->seq;
        if (!config_check(c, &e)) fail(EXIT_USAGE, "model %s: %s", s->model, e.text);
    }
    /* what the user says must be what is there */
    if (r->from && (kind_given || option_given(options, OPTIONS, r->given, "e")) && !is_model) {
        Config said;
        described(s, &said);
        said.vocab = c->vocab;
        said.context = c->context;
        if (!config_same(c, &said, &e))
            fail(EXIT_CHECKPOINT, "%s is another model than -e %s: %s", checkpoint_path(r->from), s->model, e.text);
    }
    if (s->seq > c->context) {
        if (is_model || r->from) warn("sequences of %d tokens; the model was made for %d", s->seq, c->context);
        c->context = s->seq;
    }
    c->rounding = rounding_by_name(s->rounding);
    if (c->rounding && c->experts == 1) fail(EXIT_USAGE, "-rt %s: the MLP of this model has no experts", s->rounding);
    if (!data_check(r->data, s->seq, c->vocab, &e)) fail(EXIT_INPUT, "%s", e.text);
}

/* ---- the plan ------------------------------------------------------------------------------------------ */

static int64_t samples_per_step(const Run *r) { return (int64_t)r->s.batch * r->parallel.ranks * r->micro_batches; }
static int64_t tokens_per_step(const Run *r) { return samples_per_step(r) * r->s.seq; }

/* Steps stay as large as they were when a run goes on with another number of ranks. */
static void fit_batch(Run *r) {
    Settings *s = &r->s;
    const int was = s->batch;
    const int64_t of_one = (int64_t)s->seq * r->parallel.ranks;
    if (!r->restored || option_given(options, OPTIONS, r->given, "b") || s->total % of_one) return;
    while (s->total / of_one % s->batch) s->batch--;
    if (s->batch < was && r->leads)
        printf("-b %d instead of %d: steps of %lld tokens on %d ranks\n", s->batch, was, (long long)s->total,
               r->parallel.ranks);
}

/* What -mo and -mg say. */
static Stored stored_as(const char *type) { return strcmp(type, "bf16") ? AS_REAL : AS_FLOATX; }

static void plan(Run *r) {
    Settings *s = &r->s;
    const int ranks = r->parallel.ranks;
    if (s->total) fit_batch(r);
    else if (!option_given(options, OPTIONS, r->given, "b") && !r->restored)      /* the default batch is a step's: it is shared */
        s->batch = s->batch > ranks ? s->batch / ranks : 1;
    const int64_t micro = (int64_t)s->batch * s->seq * ranks;
    if (micro / ranks > 1 << 28)
        fail(EXIT_USAGE, "-b %d -t %d: a micro-batch of more than %d tokens", s->batch, s->seq, 1 << 28);
    if (s->total == 0) s->total = micro;
    if (!r->restored && !option_given(options, OPTIONS, r->given, "d"))
        s->total = s->total < micro ? micro : s->total / micro * micro;
    if (s->total % micro)
        fail(EXIT_USAGE, "-d %lld: must be a multiple of B*T = %d*%d%s = %lld", (long long)s->total, s->batch, s->seq,
             ranks > 1 ? ", times the ranks," : "", (long long)micro);
    if (s->total / micro > 1 << 20)
        fail(EXIT_USAGE, "-d %lld: more than %d micro-batches a step", (long long)s->total, 1 << 20);
    r->micro_batches = (int)(s->total / micro);
    if (s->steps < 0 && !(s->steps = data_epoch_samples(r->data, s->seq) / samples_per_step(r)))
        fail(EXIT_INPUT, "%s: an epoch is %lld sequences, less than the %lld of one step. "
             "Smaller steps (-b, -t, -d), or a number of them (-x)",
             s->train, (long long)data_epoch_samples(r->data, s->seq), (long long)samples_per_step(r));
    model_plan_training(&r->model, r->dev, &r->config, s->batch, s->seq, s->recompute, r->micro_batches,
                        stored_as(s->gradients), ranks > 1 || s->ordered ? &r->parallel : NULL);
    if (s->ordered && r->dev->floatX_size == 2 && (!s->master || stored_as(s->moments) == AS_FLOATX))
        fail(EXIT_USAGE, "-rp 1: not with -mw 0 or -mo bf16, which round by the place in memory; "
             "with more ranks there is more padding");
    if (stored_as(s->moments) == AS_FLOATX && r->dev->floatX_size != 2)
        fail(EXIT_USAGE, "-mo bf16: %s does not store bf16. -mo f32, or another device (-dv)", r->dev->name);
    optimizer_plan(&r->optimizer, &r->model, s->master, stored_as(s->moments));
    if (r->tokenizer)
        r->model.used_vocab = tokenizer_vocab(r->tokenizer) < r->config.vocab ? tokenizer_vocab(r->tokenizer)
                                                                              : r->config.vocab;
}

/* The memory that other values of some options would need. */
static size_t memory_with(const Run *r, int batch, int recompute, int master, Stored kind) {
    Model m;
    Optimizer o;
    model_plan_training(&m, r->dev, &r->config, batch, r->s.seq, recompute, r->micro_batches * r->s.batch / batch,
                        stored_as(r->s.gradients), r->model.parallel);
    optimizer_plan(&o, &m, master, kind);
    const size_t total = m.arena.total;
    model_free(&m);
    return total;
}

static void print_plan(const Run *r) {
    const Config *c = &r->config;
    const Arena *a = &r->model.arena;
    const size_t total = r->model.manifest.learnable, active = config_active(c, total);
    const int ranks = r->parallel.ranks;
    char descriptor[128];
    config_descriptor(c, descriptor);
    puts("+--------------------------------------------------------------------");
    options_print(options, OPTIONS, &r->s, r->given);
    printf("| data: %s\n", data_description(r->data));
    printf("|   training tokens     | %lld   validation tokens %lld\n",
           (long long)data_tokens(r->data, DATA_TRAIN), (long long)data_tokens(r->data, DATA_VALIDATION));
    printf("| model: %s, %s\n", descriptor, family_name(config_family(c)));
    printf("|   parameters          | %zu in %d tensors, %zu active on a token (%.0f %%)\n",
           total, r->model.manifest.count, active, 100.0 * (double)active / (double)total);
    printf("|   experts             | %d MLP, %d per token, width %d; %d attention, %d per token\n",
           c->experts, c->topk, c->width, c->attention_experts, c->attention_topk);
    printf("|   layers, channels    | %d, %d; %d x %d query heads of %d, %d kv heads; vocabulary %d\n",
           c->layers, c->channels, c->query_heads, c->kv_heads, c->head_size, c->kv_heads, c->vocab);
    printf("|   tokens per step     | %lld = %d x %d x %d micro-batches x %d rank%s; %.2f Mflop a token\n",
           (long long)tokens_per_step(r), r->s.batch, r->s.seq, r->micro_batches, ranks, ranks > 1 ? "s" : "",
           config_flops(c, r->s.seq) / 1e6);
    if (ranks > 1)
        printf("| ranks: %d in %d process%s (launcher: %s)\n", ranks, r->launch.processes,
               r->launch.processes > 1 ? "es" : "", r->launch.launcher);
    printf("| memory on %s%s\n", r->dev->name, ranks > 1 ? ", of each rank" : "");
    for (int i = 0; i < MEM_CATEGORIES; i++)
        if (a->category[i])
            printf("|   %-27s | %10.2f MB\n", mem_category_name[i], (double)a->category[i] / 1e6);
    if (r->parallel.sharded)
        printf("|   (optimizer state shared by %d ranks: %.2f MB less on each)\n", ranks,
               (double)a->category[MEM_OPTIMIZER] * (ranks - 1) / 1e6);
    printf("|   %-27s | %10.2f MB", "total", (double)a->total / 1e6);
    const size_t free_memory = r->dev->memory();
    if (free_memory) printf(" of %.0f MB free", (double)free_memory / 1e6);
    puts("\n+--------------------------------------------------------------------");
    fflush(stdout);
}

/* Ends the program with the options that would make the run fit, what saves most first. */
static _Noreturn void out_of_memory(const Run *r) {
    enum { WAYS = 4 };
    const size_t room = r->dev->memory(), need = r->model.arena.total;
    const Settings *s = &r->s;
    int b = s->batch / 2;
    while (b > 1 && memory_with(r, b, s->recompute, s->master, stored_as(s->moments)) > room) b /= 2;
    char smaller[96];
    snprintf(smaller, sizeof smaller, "-b %d (with -d %lld the step stays the same)", b, (long long)tokens_per_step(r));
    struct { const char *options; int batch, recompute, lean; size_t bytes; } way[WAYS] = {
        { "-mw 0 -mo bf16", s->batch, s->recompute, 1, 0 }, { "-r 2", s->batch, 2, 0, 0 },
        { "-r 2 -mw 0 -mo bf16", s->batch, 2, 1, 0 },       { smaller, b, s->recompute, 0, 0 } };
    for (int i = 0; i < WAYS; i++)
        if (way[i].batch && (!way[i].lean || r->dev->floatX_size == 2))
            way[i].bytes = memory_with(r, way[i].batch, way[i].recompute, way[i].lean ? 0 : s->master,
                                       way[i].lean ? AS_FLOATX : stored_as(s->moments));
    Text hint = { 0 };
    for (int best; best = -1, room; way[best].bytes = 0) {
        for (int i = 0; i < WAYS; i++)
            if (way[i].bytes && way[i].bytes <= room && (best < 0 || way[i].bytes < way[best].bytes)) best = i;
        if (best < 0) break;
        text_add(&hint, "%s %s: %.1f MB", hint.at ? "," : "This would fit:", way[best].options, (double)way[best].bytes / 1e6);
    }
    fail(EXIT_MEMORY, "%s does not have the %.1f MB that this run needs%s. %s", r->dev->name, (double)need / 1e6,
         r->model.arena.category[MEM_KEPT] > need / 2 ? ", most of it activations" : "",
         hint.at ? hint.at : "Try a smaller batch (-b), shorter sequences (-t), -r 2, or a smaller model (-e)");
}

static void allocate(Run *r) {
    const Settings *s = &r->s;
    const size_t N = (size_t)(tokens_per_step(r) / r->parallel.ranks), room = r->dev->memory();
    const size_t sharing = r->dev->is_gpu ? 1 : (size_t)r->share.count;
    if ((room && r->model.arena.total > room / sharing) || !model_allocate(&r->model)) out_of_memory(r);
    r->samples_wanted = s->sample_every > 0;
    if (r->samples_wanted && r->leads
        && !decoder_open(&r->decoder, r->dev, &r->config, 1, s->seq > 2 ? s->seq : 2, &r->model))
        out_of_memory(r);
    r->model.balance_coef = s->balance;
    r->model.z_coef = s->z;
    r->model.forced = s->forced;
    r->inputs = mem_alloc(N * sizeof *r->inputs);
    r->targets = mem_alloc(N * sizeof *r->targets);
    r->keys = mem_alloc((size_t)r->micro_batches * sizeof *r->keys);
    for (int i = 0; i < 4; i++) r->replay_micro[i / 2][i % 2].off = !r->records;
    r->replay_update.off = !r->records;
    parallel_share(&r->model);
    const double rows = (double)s->batch * s->seq * r->config.topk / r->config.experts;
    if (r->config.rounding && rows < 2 * ROW_TILE && r->leads)
        warn("-rt %s: an expert has %.0f rows on average, less than two tiles of %d: rounding sends a large part of them "
             "elsewhere. Larger micro-batches (-b, -t) or fewer experts would do", s->rounding, rows, ROW_TILE);
    if (s->forced && r->leads)
        warn("-rf 1: experts are dealt out round robin; this measures speed and learns no routing");
}

static void start_or_resume(Run *r) {
    const Settings *s = &r->s;
    Progress *p = &r->progress;
    Error e;
    if (r->from) {
        if (!checkpoint_load(r->from, &r->model, &r->optimizer, p, &e))
            fail(EXIT_CHECKPOINT, "%s: %s", checkpoint_path(r->from), e.text);
        if (p->data != data_fingerprint(r->data) && !s->allow_data)
            fail(EXIT_CHECKPOINT, "%s was trained on other data than %s (names, sizes or contents differ). "
                 "To go on all the same: --allow-data-change 1", checkpoint_path(r->from), s->train);
        if (p->seed != (uint64_t)s->seed && r->leads)
            warn("seed %lld, but the run began with %llu", (long long)s->seed, (unsigned long long)p->seed);
        if (r->leads) printf("resuming %s at step %lld\n", checkpoint_path(r->from), (long long)p->step);
    } else {
        *p = (Progress){ .best_step = -1, .seed = (uint64_t)s->seed, .data = data_fingerprint(r->data) };
        if (!is_folder(s->model)) model_initialize(&r->model, (uint64_t)s->seed);
        else if (!hf_load_weights(&r->model, s->model, &e)) fail(EXIT_INPUT, "%s", e.text);
        optimizer_start(&r->optimizer, &r->model);
        world_barrier(r->parallel.peers);                    /* no rank has anything to complain of */
        if (r->leads) claim_folder(r);
    }
    p->data = data_fingerprint(r->data);
    r->first_step = p->step;
}

/* ---- one step ------------------------------------------------------------------------------------------ */

static AdamW adamw(const Settings *s, int64_t step) {
    return (AdamW){ .lr = s->lr * (float)schedule_rate(s->schedule, (long)step, (long)s->steps, (long)s->warmup,
                                                       (double)s->final_lr),
                    .beta1 = s->beta1, .beta2 = s->beta2, .eps = 1e-8f, .decay = s->decay, .clip = s->clip,
                    .key = random_key(~(uint64_t)s->seed, (uint64_t)step) };
}

/* All that a step needs of the host, sent before its work begins. */
static void send_step(Run *r) {
    const Settings *s = &r->s;
    Error e;
    const int64_t step = r->progress.step, first = s->overfit ? 0 : r->progress.samples;
    const size_t N = (size_t)s->batch * (size_t)s->seq;
    for (int micro = 0; micro < r->micro_batches; micro++) {
        const int64_t turn = (int64_t)micro * r->parallel.ranks + r->parallel.rank;      /* ranks deal them out */
        const size_t at = (size_t)micro * N;
        if (!data_batch(r->data, first + turn * s->batch, s->batch, s->seq, (uint64_t)s->seed,
                        r->inputs + at, r->targets + at, &e))
            fail(EXIT_DISK, "%s", e.text);
        r->keys[micro] = random_key((uint64_t)s->seed,
                                    (uint64_t)(step * r->micro_batches * r->parallel.ranks + turn));
    }
    model_send(&r->model, r->inputs, r->targets, r->keys, s->batch, s->seq);
    optimizer_set(&r->optimizer, &r->model, adamw(s, step));
}
static void micro_batch(void *run) {
    Run *r = run;
    model_learn(&r->model, 1.0f / (float)tokens_per_step(r), 1.0f / (float)(r->micro_batches * r->parallel.ranks));
}
static void update(void *run) {
    Run *r = run;
    Model *m = &r->model;
    optimizer_update(&r->optimizer, m);
    if (r->records) parallel_gather_weights(m, 0);
    for (int i = 0, experts, at; i < m->routers && r->s.bias_rate > 0; i++) {
        at = router_width(m, i, &experts);
        m->dev->router_bias(real_at(m, m->bias, (size_t)at), m->load + at, r->s.bias_rate,
                            experts);
    }
}
static void train_step(Run *r) {
    Model *m = &r->model;
    char doing[64];
    snprintf(doing, sizeof doing, "step %lld", (long long)r->progress.step + 1);
    if (m->dev->doing) m->dev->doing(doing);
    send_step(r);
    m->dropout = r->s.dropout;
    m->rounds = 1;
    model_start_step(m);
    for (int micro = 0; micro < r->micro_batches; micro++) {
        model_begin_micro(m, micro);
        replay_run(&r->replay_micro[!m->fresh][m->parallel && m->last_micro], m->dev, model_state(m), micro_batch, r);
        model_end_micro(m, micro);
    }
    replay_run(&r->replay_update, m->dev, 0, update, r);
    if (!r->records) parallel_gather_weights(m, 1);
}

/* The one place where a step is read back. */
static StepStats step_stats(Run *r, double start, int *bad_tensor) {
    Model *m = &r->model;
    StepStats t = { .step = r->progress.step + 1 };
    Found f = model_found(m);
    for (int i = 0; i < m->turns; i++) t.loss += f.step_losses[i] / (double)tokens_per_step(r);
    t.norm = optimizer_norm(&r->optimizer, f.squares, bad_tensor);
    for (int i = 0; i < 2 * m->routers && !m->ordered; i++) f.losses[i] /= r->parallel.ranks;
    if (m->routers) router_stats(&t, m, f.load, f.losses);
    found_free(&f);
    t.lr = (double)adamw(&r->s, r->progress.step).lr;
    const double seconds = now() - start;               /* a GPU has only finished when its results are here */
    t.ms = 1e3 * seconds;
    t.tok_s = (double)tokens_per_step(r) / seconds;
    r->session += seconds;
    t.eta = r->session / (double)(t.step - r->first_step) * (double)(r->s.steps - t.step);
    return t;
}

/* ---- watching ------------------------------------------------------------------------------------------ */

/* Of the rows of all tiles that a step's last micro-batch multiplied on this rank, those that belong to no token: as tokens
 * chose, and as it was rounded. */
static void show_tile_waste(Run *r) {
    const Model *m = &r->model;
    const Config *c = &m->config;
    const size_t bytes = ((size_t)c->experts + 1) * sizeof(int);
    int *chosen = mem_alloc(bytes), *start = mem_alloc(bytes);
    double rows[2] = { 0, 0 }, tiles[2] = { 0, 0 };
    for (int l = 0; l < c->layers; l++) {
        m->dev->download(chosen, m->acts[l].mlp.own_load, (size_t)c->experts * sizeof(int));
        m->dev->download(start, m->acts[l].mlp.plan.start, bytes);
        for (int e = 0; e < c->experts; e++)
            for (int i = 0; i < 2; i++) {
                const int count = i ? start[e + 1] - start[e] : chosen[e];
                rows[i] += count;
                tiles[i] += (count + ROW_TILE - 1) / ROW_TILE * ROW_TILE;
            }
    }
    free(chosen);
    free(start);
    for (int i = 0; i < 2; i++) tiles[i] = tiles[i] > 0 ? 1 - rows[i] / tiles[i] : 0;
    log_line(&r->log, "tile waste %.1f %% as chosen, %.1f %% as rounded | %.0f rows an expert", 100 * tiles[0], 100 * tiles[1],
             rows[0] / c->layers / c->experts);
    char *event = text_format("{\"event\": \"tiles\", \"step\": %lld, \"waste_chosen\": %.4f, \"waste_rounded\": %.4f}",
                              (long long)r->progress.step, tiles[0], tiles[1]);
    log_event(&r->log, event);
    free(event);
}

static int validate(Run *r, int show_loads) {                       /* 1 if it is the best so far */
    const Settings *s = &r->s;
    Model *m = &r->model;
    Progress *p = &r->progress;
    Error e;
    double total = 0, count = 0, sum;
    int64_t batches = data_validation_batches(r->data, s->batch, s->seq);
    if (s->val_batches >= 0 && s->val_batches < batches) batches = s->val_batches;
    const int N = s->batch * s->seq;
    m->dropout = 0;
    m->rounds = 0;
    if (m->routers) m->dev->zero(m->own_load, (size_t)m->routers * (size_t)router_experts(&m->config) * sizeof(int));
    for (int64_t i = r->parallel.rank; i < batches; i += r->parallel.ranks) {       /* ranks deal the batches out */
        if (!data_validation(r->data, i * s->batch, s->batch, s->seq, r->inputs, r->targets, &e))
            fail(EXIT_DISK, "%s", e.text);
        for (int n = 0; n < N; n++) count += r->targets[n] >= 0;
        model_batch(m, r->inputs, r->targets, s->batch, s->seq);
        model_forward(m);
        model_loss(m, 1, 0);
        m->dev->reals_to_double(&sum, m->loss_sum, 1);
        total += sum;
    }
    parallel_sum_loads(m);
    parallel_await_loads(m);
    total = parallel_sum(&r->parallel, total);
    count = parallel_sum(&r->parallel, count);
    if (count <= 0) return 0;
    const double loss = total / count;
    const double bytes = (double)data_bytes(r->data, DATA_VALIDATION);
    const double tokens = (double)data_tokens(r->data, DATA_VALIDATION);
    const int best = loss < p->best_loss || p->best_step < 0;
    if (best && isfinite(loss)) { p->best_loss = loss; p->best_step = p->step; }
    log_validation(&r->log, p->step, loss, bytes > 0 ? loss * tokens / bytes / log(2) : 0, p->best_loss, p->best_step);
    if (m->routers && r->leads) {
        int experts, loads = router_width(m, m->routers, &experts), *load = mem_alloc((size_t)loads * sizeof *load);
        m->dev->download(load, m->load, (size_t)loads * sizeof *load);
        log_loads(&r->log, p->step, m, load, show_loads);
        free(load);
    }
    return best && isfinite(loss);
}

static void show_sample(Run *r) {
    Decoder *d = &r->decoder;
    const uint64_t key = random_key((uint64_t)r->s.seed, (uint64_t)r->progress.step);
    const int room = d->model.cache_room, newline = r->tokenizer ? tokenizer_id(r->tokenizer, "\n") : 0;
    const int eos = r->tokenizer ? tokenizer_eos(r->tokenizer) : -1;
    int *tokens = mem_alloc((size_t)r->s.sample_length * sizeof *tokens);
    int count = 0, token = eos >= 0 ? eos : newline >= 0 ? newline : 0;
    parallel_await_all_weights(&r->model);
    decoder_reset(d);
    decoder_draw(d, (Sampler){ .temperature = 0.8f, .top_p = 0.95f }, &key);
    while (count < r->s.sample_length) {
        if (d->length == room) {                                     /* the context is full: keep its last half */
            const int half = room / 2;
            decoder_reset(d);
            decoder_feed(d, tokens + count - half, half);
        } else decoder_feed(d, &token, 1);
        decoder_sample(d, &token);
        tokens[count++] = token;
    }
    if (r->tokenizer) {
        size_t bytes;
        char *text = tokenizer_decode(r->tokenizer, tokens, (size_t)count, &bytes);
        log_sample(&r->log, r->progress.step, text, bytes);
        free(text);
    } else {
        Text ids = { 0 };
        for (int i = 0; i < count; i++) text_add(&ids, "%d ", tokens[i]);
        log_sample(&r->log, r->progress.step, ids.at, ids.length);
        free(ids.at);
    }
    free(tokens);
}

static int save_here(Run *r) {
    Error e;
    const Settings *s = &r->s;
    r->progress.updates = r->optimizer.updates;
    if (!r->leads) { optimizer_lend(&r->optimizer, &r->model); return 1; }
    if (checkpoint_save(s->out, &r->model, &r->optimizer, &r->progress, r->tokenizer, r->options_json,
                        s->keep, s->major, &e)) {
        r->failed_saves = 0;
        log_line(&r->log, "saved step %lld in %s", (long long)r->progress.step, s->out);
        return 1;
    }
    warn("checkpoint of step %lld was not saved, the one before it is untouched: %s",
         (long long)r->progress.step, e.text);
    if (++r->failed_saves == 3) fail(EXIT_DISK, "three checkpoints in a row could not be saved: %s", e.text);
    return 0;
}
static int save(Run *r) { return world_min(r->parallel.peers, save_here(r)); }

/* ---- requests from outside: stop after this step, or save and go on ------------------------------------ */

static volatile sig_atomic_t stop_request, save_request;
static void on_signal(int number) {
    if (number == SIGUSR1) { save_request = 1; return; }
    if (stop_request && number == SIGINT) _exit(128 + SIGINT);
    stop_request = 1;
}
static void listen_to_signals(void) {
    struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigemptyset(&act.sa_mask);
    const int numbers[] = { SIGINT, SIGTERM, SIGUSR1, SIGUSR2 };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaction(numbers[i], &act, NULL);
    signal(SIGHUP, SIG_IGN);
}
/* Run with stdout closed, a file opened later would be number 1, and the text for the terminal would go into it. */
static void open_standard_files(void) {
    int fd;
    while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}
static int stop_file(const Run *r) {                         /* a request is good for one stop: it is taken away */
    char *path = text_format("%s/STOP", r->s.out);
    const int there = is_file(path);
    if (there) unlink(path);
    free(path);
    return there;
}

/* What any process was asked for. All ranks come to the same answer, here, after the same step; what comes in later
 * counts for the next. */
enum { STOP = 1, SAVE = 2 };
static int requests(const Run *r) {
    const int saves = r->speaks_for && save_request;
    int asked = (stop_request || (r->leads && stop_file(r)) ? STOP : 0) | (saves ? SAVE : 0);
    if (saves) save_request = 0;
    if (!world_max(r->parallel.peers, asked)) return 0;
    asked = world_max(r->parallel.peers, asked & STOP) | world_max(r->parallel.peers, asked & SAVE);
    return asked;
}

/* ---- the loop ------------------------------------------------------------------------------------------ */

static void log_start(Run *r) {
    const size_t total = r->model.manifest.learnable;
    char descriptor[128], when[32] = "";
    time_t t = time(NULL);
    Text line = { 0 };
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime(&t));
    config_descriptor(&r->config, descriptor);
    text_add(&line, "{\"event\": \"start\", \"time\": \"%s\", \"version\": \"%s\", \"device\": \"%s\", "
             "\"model\": \"%s\", \"family\": \"%s\", \"parameters\": %zu, \"active\": %zu, \"data\": ",
             when, MOE_VERSION, r->dev->name, descriptor, family_name(config_family(&r->config)), total,
             config_active(&r->config, total));
    text_add_json(&line, data_description(r->data), strlen(data_description(r->data)));
    text_add(&line, ", \"ranks\": %d, \"fallback\": %s, \"train_tokens\": %lld, \"val_tokens\": %lld, \"options\": %s}",
             r->parallel.ranks, data_is_fallback(r->data) ? "true" : "false",
             (long long)data_tokens(r->data, DATA_TRAIN),
             (long long)data_tokens(r->data, DATA_VALIDATION), r->options_json);
    if (r->first_step == 0) log_event(&r->log, line.at);
    else {
        char *resume = text_format("{\"event\": \"resume\", \"step\": %lld, \"ranks\": %d}", (long long)r->first_step,
                                   r->parallel.ranks);
        log_event(&r->log, resume);
        free(resume);
    }
    free(line.at);
}

/* Of all tensors, without the padding between them, which depends on the number of ranks. */
static uint64_t fingerprint(const Model *m) {
    const size_t size = m->dev->floatX_size;
    char *weights = mem_alloc(m->manifest.total * size);
    uint64_t h = 0;
    parallel_await_all_weights(m);
    m->dev->download(weights, m->params, m->manifest.total * size);
    for (int i = 0; i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        h = hash_bytes(h, weights + t->offset * size, t->count * size);
    }
    free(weights);
    return h;
}

/* A gradient that is not finite changed nothing on the device; say so, and give up when it goes on. */
static void bad_step(Run *r, const StepStats *t, int tensor) {
    const char *name = r->model.manifest.at[tensor].name;
    Progress *p = &r->progress;
    p->bad_steps++;
    model_forget(&r->model);
    char *event = text_format("{\"event\": \"skip\", \"step\": %lld, \"tensor\": \"%s\"}", (long long)t->step, name);
    log_event(&r->log, event);
    free(event);
    if (r->leads)
        warn("step %lld: the gradient of %s is not finite (loss %g): no update; %d in a row",
             (long long)t->step, name, t->loss, p->bad_steps);
    if (p->bad_steps >= r->s.max_bad)
        fail(EXIT_NUMERICS, "%d steps in a row without a finite gradient, the last on samples %lld to %lld. "
             "The last good checkpoint in %s is untouched. "
             "A lower learning rate (-l) or stronger clipping (-cg) may help", p->bad_steps, (long long)(p->samples),
             (long long)(p->samples + samples_per_step(r) - 1), r->s.out);
}

/* How long a step may take before a rank is taken for lost: what is begun for the first time takes its time. */
static double step_limit(const Run *r) {
    const int64_t done = r->progress.step - r->first_step;
    const double limit = done ? 10 * r->session / (double)done : 0;
    return done < 3 ? 0 : limit > 60 ? limit : 60;
}

static int train(Run *r) {                                           /* 1: ran to the end; 0: stopped on request */
    const Settings *s = &r->s;
    Progress *p = &r->progress;
    Error e;
    int64_t saved = -1;
    if (r->speaks_for) listen_to_signals();
    while (p->step < s->steps) {
        const double start = now();
        int bad_tensor;
        world_phase(r->parallel.peers, "a training step", step_limit(r));
        const Waits before = r->dev->waits();
        train_step(r);
        StepStats t = step_stats(r, start, &bad_tensor);
        const Waits after = r->dev->waits();
        r->waits += after.syncs - before.syncs + after.reads - before.reads;
        const int last = t.step == s->steps, validates = last || t.step % s->val_every == 0;
        const int samples = r->samples_wanted && (last || t.step % s->sample_every == 0);
        const double loss_z = window_score(&p->loss, t.loss), norm_z = window_score(&p->norm, t.norm);
        log_step(&r->log, &t, s->steps, loss_z, norm_z, validates || samples || t.step == r->first_step + 1);
        if (bad_tensor >= 0) bad_step(r, &t, bad_tensor); else p->bad_steps = 0;
        p->step = t.step;
        p->samples += samples_per_step(r);
        p->tokens += tokens_per_step(r);
        p->seconds += now() - start;

        world_phase(r->parallel.peers, "what comes between steps", 0);
        if (validates && r->config.rounding) show_tile_waste(r);
        if (validates && validate(r, s->show_loads) && s->keep_best && r->leads
            && !checkpoint_save_best(s->out, &r->model, p->step, r->tokenizer, &e))
            warn("the best weights were not saved: %s", e.text);
        if (samples && r->leads) show_sample(r);
        const int asked = requests(r), stop = asked & STOP;
        if (last || asked || (s->save_every && t.step % s->save_every == 0))
            if (save(r)) saved = p->step;
        if (stop && !last) {
            if (saved != p->step) fail(EXIT_DISK, "stopped on request, but the checkpoint could not be saved");
            return 0;
        }
    }
    if (saved != p->step && r->first_step < s->steps)
        fail(EXIT_DISK, "the last checkpoint could not be saved in %s", s->out);
    return 1;
}

static void summary(Run *r) {
    const Progress *p = &r->progress;
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    const uint64_t weights = fingerprint(&r->model);
    log_end(&r->log, p, weights);
    if (p->best_step >= 0)
        log_line(&r->log, "best val loss    | %.6f at step %lld", p->best_loss, (long long)p->best_step);
    log_line(&r->log, "time             | %.1f s from the start of the program; %.1f s of training in all",
             now() - r->started, p->seconds);
    log_line(&r->log, "tokens           | %lld, %.0f a second",
             (long long)p->tokens, p->seconds > 0 ? (double)p->tokens / p->seconds : 0);
    log_line(&r->log, "peak memory      | %.1f MB", (double)use.ru_maxrss / 1e3);
    if (r->waits != p->step - r->first_step)
        log_line(&r->log, "host waits       | %.2f a step; 1 is right, for its results",
                 (double)r->waits / (double)(p->step - r->first_step));
    log_line(&r->log, "weights          | fingerprint %016llx", (unsigned long long)weights);
    if (data_is_fallback(r->data))
        log_line(&r->log, "NOTE             | trained on this project's own text: "
                 "these losses are not tinyshakespeare's");
}

/* -gc 1: this model with few tokens, in f64, against finite differences; then this device against its more exact
 * twin. */
static int gradient_check(const Run *r) {
    const Settings *s = &r->s;
    Check c = { .config = r->config, .B = 2, .T = s->seq < 12 ? s->seq : 12, .recompute = s->recompute,
                .samples = r->config.channels > 512 ? 3 : 12, .balance = s->balance, .z = s->z,
                .dropout = s->dropout, .seed = (uint64_t)s->seed };
    c.config.tile = 4;                                      /* few tokens */
    double worst, worst_device = 0;
    puts("gradient check: every tensor against finite differences, cpu-f64");
    int bad = check_gradients(&c, 1e-6, stdout, 1, &worst);
    if (bad < 0) fail(EXIT_MEMORY, "not enough memory to check this model in f64");
    const int rough = r->dev->floatX_size == 2;
    const Device *twin = device_find(rough && r->dev->is_gpu ? "cpu-bf16" : "cpu-f64");
    const double bound = !rough ? 1e-4 : r->dev->is_gpu ? 2e-2 : 0.5;
    if (r->dev != twin) {
        printf("%s against %s\n", r->dev->name, twin->name);
        bad += check_devices(&c, r->dev, twin, bound, stdout, 0, &worst_device);
    }
    printf("gradient check %s: %d bad tensors; worst error %.1e in f64, %.1e on %s\n",
           bad ? "FAILED" : "passed", bad, worst, worst_device, r->dev->name);
    return bad ? EXIT_NUMERICS : EXIT_DONE;
}

/* ---- the ranks ------------------------------------------------------------------------------------------ */

/* Meets the other processes and makes sure that all are about to do the same. Without training, nobody is needed. */
static void join_ranks(Run *r) {
    const Settings *s = &r->s;
    Text settings = { 0 };
    Error e;
    options_json(options, kept_options(), s, &settings);
    settings.length--;                                      /* the closing brace */
    text_add(&settings, ", \"device of the ranks\": \"%s\", \"fingerprint of the data\": \"%016llx\", "
             "\"resumed from\": ", r->dev->name, (unsigned long long)data_fingerprint(r->data));
    const char *from = r->from ? checkpoint_path(r->from) : "";
    text_add_json(&settings, from, strlen(from));
    text_add(&settings, "}");
    const WorldOptions o = { .launch = r->launch, .ranks = r->share.count, .version = MOE_VERSION,
                             .settings = settings.at, .join_seconds = s->join_seconds,
                             .silence_seconds = s->silence_seconds };
    r->parallel.ranks = r->share.count * r->launch.processes;
    if (!s->check && s->steps != 0) {
        if (!(r->world = world_join(&o, &e))) fail(EXIT_PEER, "%s", e.text);
        r->parallel.ranks = world_size(r->world);
    }
    r->parallel.sharded = s->sharded && r->parallel.ranks > 1;
    r->parallel.ordered = s->ordered;
    r->records = s->record >= (r->parallel.ranks > 1 ? 2 : 1);
    r->parallel.shares = s->copies && r->dev->is_gpu && r->launch.processes == 1 && !r->records;
    free(settings.at);
}

static void begin_log(Run *r) {
    Error e;
    Text json = { 0 };
    options_json(options, kept_options(), &r->s, &json);
    r->options_json = json.at;
    if (!r->leads) { log_silence(&r->log); return; }
    if (!log_open(&r->log, r->s.out, r->first_step > 0 ? r->first_step : -1, &e)) fail(EXIT_DISK, "%s", e.text);
    log_start(r);
    if (r->progress.step >= r->s.steps)
        log_line(&r->log, "this run of %lld steps is complete; -x with more steps continues it", (long long)r->s.steps);
}
static void end_log(Run *r) {
    Error e;
    if (!r->leads) return;
    summary(r);
    if (!report_write(r->s.out, &e)) warn("%s", e.text);
    const int best = r->s.keep_best && r->progress.best_step >= 0;
    if (r->finished)
        log_line(&r->log, "\nread what it learned:  make infer_moe && ./infer_moe %s%s -i \"ROMEO:\"",
                 r->s.out, best ? "/best" : "");
    else
        log_line(&r->log, "\nstopped on request; to go on:  ./train_moe -o %s -y 1", r->s.out);
    log_close(&r->log);
}

/* All that one rank does, in a thread of its own; `all` holds a copy of the Run for each that this process drives. */
static void run_rank(void *all, int local) {
    Run *r = (Run *)all + local;
    parallel_connect(&r->parallel, r->dev, r->share.first + local, r->world, local);
    r->leads = r->parallel.rank == 0;
    r->speaks_for = local == 0;
    plan(r);
    allocate(r);
    start_or_resume(r);
    begin_log(r);
    r->finished = train(r);
    end_log(r);
    parallel_disconnect(&r->parallel);
}

int main(int argc, char **argv) {
    static Run run, *ranks;
    Run *r = &run;
    threads_settle(argv);
    r->started = now();
    signal(SIGPIPE, SIG_IGN);                               /* `| head` must not end a run, */
    signal(SIGXFSZ, SIG_IGN);                               /* nor a limit on file sizes: that is a full disk */
    open_standard_files();
    options_parse(options, OPTIONS, &r->s, r->given, argc, argv, usage, NULL, 0);
    find_launch(r);
    open_folder(r);
    choose_device(r);
    open_data(r);
    choose_model(r);
    join_ranks(r);
    plan(r);
    if (r->leads) print_plan(r);
    if (r->s.check) return gradient_check(r);
    if (r->s.steps == 0) return EXIT_DONE;

    model_free(&r->model);                                  /* every rank makes its own */
    ranks = mem_alloc((size_t)r->share.count * sizeof *ranks);
    for (int i = 0; i < r->share.count; i++) ranks[i] = *r;
    parallel_run(r->share.count, run_rank, ranks);
    checkpoint_close(r->from);
    world_leave(r->world);
    return ranks[0].finished ? EXIT_DONE : EXIT_STOPPED;
}
