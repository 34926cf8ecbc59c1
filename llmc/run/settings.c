/* settings.c: see settings.h. */
#include "settings.h"
#include "device.h"
#include "presets.h"
#include "llmc/data/bpe.h"
#include "llmc/data/chat.h"
#include "llmc/data/data.h"
#include "llmc/files/hf.h"
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(Settings, field)
static const Option options[] = {
    /* group       letter name               kind          field              default, range */
    { "data",      "i",  "train",            OPTION_TEXT,  AT(train),         "data/tinyshakespeare", 0,    0,     NULL,
      "training data: text, JSON of texts or conversations, a folder of them, llm.c or nanoGPT tokens" },
    { "data",      "j",  "val",              OPTION_TEXT,  AT(val),           "",                    0,    0,     NULL,
      "validation data; not given: a tenth of the training data" },
    { "data",      "tk", "tokenizer",        OPTION_TEXT,  AT(tokenizer),     "",                    0,    0,     NULL,
      "for text: a tokenizer.json, or a number: train a BPE of that many tokens on it; not given: every "
      "byte is a token" },
    { "data",      "tp", "token-pattern",    OPTION_TEXT,  AT(pattern),       "cl100k",              0, 0, BPE_PATTERNS,
      "how the BPE of -tk NUMBER cuts text into words: as GPT-4 or as GPT-2" },
    { "data",      "ct", "chat-template",    OPTION_TEXT,  AT(chat),          "",                    0,    0,     NULL,
      "how conversations are written; not given: by the template in the folder of -e. A Jinja file, a folder, or one "
      "of " CHAT_NAMES },
    { "data",      "tf", "text-field",       OPTION_TEXT,  AT(field),         "",                    0,    0,     NULL,
      "the key of JSON data that holds the text, or the messages, of each record; not given: the form says it "
      "(docs/finetune.md)" },
    { "data",      "sp", "split-special-tokens", OPTION_INT, AT(splits),      "0",                   0,    1,     NULL,
      "1: control tokens that texts or messages spell out, such as <|im_end|>, are encoded as text; 0: as control "
      "tokens" },
    { "data",      "ad", "allow-data-change", OPTION_INT,  AT(allow_data),    "0",                   0,    1,     NULL,
      "1: resume even if the data changed" },
    { "data",      "ab", "any-bytes",        OPTION_INT,   AT(any_bytes),     "0",                   0,    1,     NULL,
      "1: train on the bytes of files that are no text: archives, pictures, binaries" },
    { "data",      "sk", "skip",             OPTION_INT,   AT(skip),          "0",                   -1,   90,   "auto",
      "leave out so many percent of the training text: the windows of -t tokens that the text before them "
      "predicts best, which teach least; auto: what -x would not read, at most 20, and 0 from 10^9 "
      "tokens on" },
    { "model",     "e",  "model",            OPTION_TEXT,  AT(model),         "m4:u1z2",             0,    0,     NULL,
      "descriptor such as m4, d12, m12:e64k8f256; a preset, plain or race, for much text on a GPU; or a folder with a "
      "model to train further" },
    { "model",     "nr", "new-rows",     OPTION_INT,   AT(new_rows),      "0",                   0,    1,     NULL,
      "1: for tokens (-tk) that the model of a folder has no rows for they are added, each the mean of the others" },
    { "model",     "up", "upcycle",      OPTION_TEXT,  AT(upcycle),       "",                    0,    0,     NULL,
      "make the dense model of -e FOLDER a mixture; e8k2: 8 experts, 2 per token, each a copy of its MLP" },
    { "model",     "rs", "router-scores",    OPTION_TEXT,  AT(scores),        "topk-softmax",        0,    0,
      "topk-softmax|softmax-topk|sigmoid|sigmoid-each", "how a router turns logits into weights" },
    { "model",     "fa", "activation",       OPTION_CHOICE, AT(activation),    "swiglu", 0, 0, "swiglu|gelu|relu2",
      "nonlinearity of the experts" },
    { "output",    "o",  "out",              OPTION_TEXT,  AT(out),           "out",                 0,    0,     NULL,
      "folder for checkpoints and logs" },
    { "output",    "y",  "resume",           OPTION_INT,   AT(resume),        "0",                   -1,   1,   "auto",
      "1: continue the run in the folder; auto: the same if there is one, else begin it, as launchers do; 0, if given: "
      "discard what is in the folder" },
    { "output",    "ys", "resume-step",      OPTION_LONG,  AT(resume_step),   "0",                   0,    1e12,  NULL,
      "with -y 1: continue from the newest checkpoint of this step or before, and discard later ones; 0: from the "
      "newest" },
    { "output",    "ar", "allow-run-change", OPTION_INT,   AT(allow_run),     "0",                   0,    1,     NULL,
      "1: resume even from a checkpoint of another run" },
    { "batch",     "b",  "batch",            OPTION_INT,   AT(batch),         "24",                  1,    1e6,   NULL,
      "sequences per micro-batch and rank (B); the default is split across the ranks" },
    { "batch",     "t",  "seq",              OPTION_INT,   AT(seq),           "128",                 1,    262144, NULL,
      "tokens per sequence (T)" },
    { "batch",     "d",  "total",            OPTION_LONG,  AT(total),         "0",                   0,    1e12,  NULL,
      "tokens per step, a multiple of B*T (more than B*T: gradients accumulate); 0: B*T" },
    { "batch",     "ds", "batch-stages",     OPTION_TEXT,  AT(stages),        "",                    0,    0,     NULL,
      "1:2:3: the first third of the steps has the tokens of -d, the second twice as many, the last three times as "
      "many; rates grow with the square root" },
    { "schedule",  "x",  "steps",            OPTION_LONG,  AT(steps),         "400",                 -1000, 1e12, NULL,
      "optimizer steps; -1: one epoch, -2: two; 0: print the plan and exit" },
    { "schedule",  "k",  "schedule",         OPTION_CHOICE, AT(schedule),      "wsd",                 0,    0,
      SCHEDULES,   "learning-rate schedule" },
    { "schedule",  "l",  "lr",               OPTION_FLOAT, AT(lr),            "8e-3",                0,    10,    NULL,
      "peak learning rate; with -wo adamw 1e-3 is the default, with -up 3e-4, for a folder's model 2e-5 * "
      "2048 / channels, twice that with -wo muon" },
    { "schedule",  "u",  "warmup",           OPTION_LONG,  AT(warmup),        "20",                 0,    1e12,  NULL,
      "steps to reach the peak; the default takes at most an eighth of -x" },
    { "schedule",  "q",  "final-lr",         OPTION_FLOAT, AT(final_lr),      "0",                   0,    1,     NULL,
      "final learning rate, as a fraction of the peak" },
    { "schedule",  "kd", "decay-part",       OPTION_FLOAT, AT(decay_part),    "0.9",                 0.001, 1,   NULL,
      "-k wsd: the last part of the steps, in which the rate falls in a straight line to the final one" },
    { "schedule",  "ft", "further-targets",  OPTION_FLOAT, AT(further),       "0",                   0,    10,    NULL,
      "also learn to predict the second next token, with this weight, and the third, with half of it (try 0.5); both "
      "fall to 0, in the first two thirds of the run. Losses that are printed are of the next token alone. 0: no" },
    { "optimizer", "wo", "optimizer",        OPTION_CHOICE, AT(optimizer),     "muon",               0, 0, "adamw|muon",
      "what updates the layers' matrices; embedding, head, norms, biases and routers are always updated by adamw" },
    { "optimizer", "wm", "momentum",         OPTION_FLOAT, AT(momentum),      "0.8",                0.01, 0.99999, NULL,
      "Muon: decay rate of the momentum; the default of plain momentum (-wl 0, -ga momentum) is its square" },
    { "optimizer", "wl", "lookahead",        OPTION_INT,   AT(ahead),         "1",                   0,    1,     NULL,
      "Muon: 1: the update looks one gradient ahead (Nesterov); 0: plain momentum" },
    { "optimizer", "wp", "expert-period",    OPTION_INT,   AT(period),        "1",                1, MUON_PERIODS, NULL,
      "Muon: each expert is updated in every N-th step only, at N times the rate" },
    { "optimizer", "wn", "row-decay",        OPTION_FLOAT, AT(row_decay),     "0.9",                 0, 0.99999,  NULL,
      "Muon: rows of an update (columns, where there are more) are made equally long, by means of their squares with "
      "this decay rate (NorMuon, try 0.9); 0: no" },
    { "optimizer", "ga", "accumulate",       OPTION_CHOICE, AT(accumulate),    "auto", 0, 0, "auto|gradients|momentum",
      "Muon: where gradients of its matrices are added up; momentum: no gradients of them are kept, which saves 2 or 4 "
      "bytes per parameter and changes the update (docs/numerics.md); auto: that where nothing else fits" },
    { "optimizer", "cm", "clip-multiple",    OPTION_FLOAT, AT(most),          "4",                   0,    1e9,   NULL,
      "-ga momentum: a tensor's gradient of a micro-batch is at most this many times as long as its mean; 0: any "
      "length. -cg is then of what AdamW updates" },
    { "optimizer", "c",  "decay",            OPTION_FLOAT, AT(decay),         "0.5",                 0,    10,    NULL,
      "weight decay of matrices" },
    { "optimizer", "ck", "decay-kind",       OPTION_CHOICE, AT(cautious),     "plain", 0, 0, "plain|cautious|squared",
      "cautious: only elements that the update makes smaller decay, too; squared: that, and the decay falls with the "
      "square of the rate" },
    { "optimizer", "cg", "clip",             OPTION_FLOAT, AT(clip),          "1.0",                 0,    1e9,   NULL,
      "largest global gradient norm; 0: no clipping" },
    { "optimizer", "w1", "beta1",            OPTION_FLOAT, AT(beta1),         "0.9",                 0,   0.99999, NULL,
      "AdamW: decay rate of the first moment" },
    { "optimizer", "w2", "beta2",            OPTION_FLOAT, AT(beta2),         "0.99",                0,   0.99999, NULL,
      "AdamW: decay rate of the second moment" },
    { "optimizer", "wv", "value-rate",       OPTION_FLOAT, AT(value_rate),    "75",                  0,    1e6,   NULL,
      "multiple of the learning rate for tables of values (field v)" },
    { "optimizer", "wb", "bigram-rate",      OPTION_FLOAT, AT(bigram_rate),   "0.3",                  0,    1e6,   NULL,
      "the same for the table of bigrams (field t)" },
    { "optimizer", "mw", "master-weights",   OPTION_INT,   AT(master),        "1",                   0,    1,     NULL,
      "bf16 devices: 1: f32 master copy of the weights; 0: stochastic rounding, 4 bytes per parameter less" },
    { "optimizer", "mo", "moments",          OPTION_CHOICE, AT(moments),       "f32",             0, 0, "f32|bf16|int8",
      "bf16 devices: type of AdamW's two moments and Muon's one; bf16 takes 2 bytes less for each; int8, any device: "
      "Muon's in 8 bits with a scale for each 64, which takes 3 bytes less, and AdamW's as with bf16" },
    { "optimizer", "mg", "gradients",        OPTION_CHOICE, AT(gradients),     "bf16",                0,  0, "f32|bf16",
      "bf16 devices: type of the layers' weight gradients; bf16 (2 bytes per parameter less) takes effect if a step is "
      "one micro-batch on one rank" },
    { "optimizer", "dr", "dropout",          OPTION_FLOAT, AT(dropout),       "0",                   0,    0.99,  NULL,
      "dropout of the embedding and of each sub-layer's output" },
    { "optimizer", "mb", "max-bad-steps",    OPTION_INT,   AT(max_bad),       "10",                  1,    1e6,   NULL,
      "stop after N consecutive non-finite gradients" },
    { "routing",   "ra", "balance",          OPTION_FLOAT, AT(balance),       "0.003",               0,    100,   NULL,
      "weight of the load-balance loss" },
    { "routing",   "rz", "zloss",            OPTION_FLOAT, AT(z),             "0.001",               0,    100,   NULL,
      "weight of the router z-loss" },
    { "routing",   "rb", "bias-rate",        OPTION_FLOAT, AT(bias_rate),     "0",                   0,    1,     NULL,
      "balance by a selection bias that moves by this much per step (try 0.03 with -rl relative and -ra 0)" },
    { "routing",   "rl", "bias-law",         OPTION_CHOICE, AT(bias_law),      "sign",            0, 0, "sign|relative",
      "-rb moves the bias by its rate whatever the load, or in proportion to the load's distance from the mean" },
    { "routing",   "rt", "rounding",         OPTION_CHOICE, AT(rounding),      "off",               0, 0, "off|nearest",
      "in training, round every MLP expert's rows to the nearest multiple of 128" },
    { "routing",   "rf", "force-balance",    OPTION_INT,   AT(forced),        "0",                   0,    1,     NULL,
      "benchmark only: 1 forces round-robin routing" },
    { "reports",   "v",  "val-every",        OPTION_LONG,  AT(val_every),     "200",                 1,    1e12,  NULL,
      "steps between validations" },
    { "reports",   "m",  "val-batches",      OPTION_LONG,  AT(val_batches),   "-1",                  -1,   1e12,  NULL,
      "batches per validation, from the beginning of the split; -1: the whole split, the default unless it is long" },
    { "reports",   "vs", "val-short",        OPTION_INT,   AT(val_short),     "20",                  0,    1000,  NULL,
      "short validations of a run, between those of -v: of the first tokens of the split, as many as cost 3 % of the "
      "time; their losses and loads are for the report. 0, the default where -v is given: none" },
    { "reports",   "s",  "sample-every",     OPTION_LONG,  AT(sample_every),  "150",                 0,    1e12,  NULL,
      "steps between text samples; 0: none" },
    { "reports",   "g",  "sample-length",    OPTION_INT,   AT(sample_length), "256",                 1,    1e6,   NULL,
      "tokens per sample" },
    { "reports",   "vt", "load-table",       OPTION_INT,   AT(show_loads),    "0",                   0,    1,     NULL,
      "1: print the load of every expert at each validation" },
    { "saving",    "n",  "save-every",       OPTION_LONG,  AT(save_every),    "0",                   0,    1e12,  NULL,
      "steps between checkpoints; 0: not by steps. One is also saved by time (-nt), when stopped, and at the end" },
    { "saving",    "nt", "save-seconds",     OPTION_FLOAT, AT(save_seconds),  "120",                 0,    1e9,   NULL,
      "seconds between checkpoints (half of that before the first), each of which replaces the one before; "
      "0: not by time" },
    { "saving",    "nk", "keep",             OPTION_INT,   AT(keep),          "2",                   1,    1e6,   NULL,
      "how many of the newest checkpoints to keep" },
    { "saving",    "nm", "major",            OPTION_LONG,  AT(major),         "0",                   0,    1e12,  NULL,
      "also keep every N-th step's checkpoint permanently; 0: none" },
    { "saving",    "nb", "best",             OPTION_INT,   AT(keep_best),     "1",                   0,    1,     NULL,
      "1: keep the weights with the best validation loss in OUT/best" },
    { "saving",    "sv", "saved",            OPTION_CHOICE, AT(kept),          "state", 0, 0, "state|weights|none",
      "state: checkpoints to resume from, and the model; weights: the model alone, from which no run resumes (-e OUT "
      "trains it further); none: not even at the end" },
    { "saving",    "sw", "save-type",    OPTION_CHOICE, AT(saved_type),    "auto", 0, 0, "auto|f32|bf16|f16|f64",
      "number type of the model in OUT and OUT/best at the end; auto: as in the folder of -e, else the device's" },
    { "saving",    "ss", "shard-size",   OPTION_FLOAT, AT(shard),         "50",                  0,    1e6,   NULL,
      "gigabytes of the largest file of weights at the end; a larger model has several and an index; 0: "
      "always one file" },
    { "machine",   "dv", "device",           OPTION_TEXT,  AT(device),        "auto",                0,    0,     NULL,
      "auto, cpu, cuda, or a device by name, such as cpu-bf16" },
    { "machine",   "r",  "recompute",        OPTION_INT,   AT(recompute),     "auto",                -1,   2,    "auto",
      "recompute in backward, to save memory: 0 nothing, 1 norms, 2 whole layers; auto: nothing if that fits, else the "
      "parts that cost least" },
    { "machine",   "pe", "expert-precision", OPTION_CHOICE, AT(precision),  "bf16", 0, 0, "bf16|fp8|fp8-all|fp8-head",
      "products of the MLP's experts while training; fp8: in 8 bits (docs/numerics.md) for sizes where that was "
      "measured to be faster; fp8-all: for all sizes; fp8-head: the head, too. Hopper and, slowly, CPUs" },
    { "machine",   "gr", "graph",            OPTION_INT,   AT(record),        "1",                   0,    2,     NULL,
      "record a step's work once and replay it: 0 never, 1 on one GPU, 2 also on several" },
    { "machine",   "z",  "zero",             OPTION_INT,   AT(level),         "auto",                -1,   3,    "auto",
      "what ranks shard: 0 nothing, 1 the optimizer's state (ZeRO-1), 2 also gradients, 3 also weights; auto: the "
      "lowest from 1 on that fits" },
    { "machine",   "zn", "node-ranks",       OPTION_INT,   AT(node),          "auto",                -1,   1e6,  "auto",
      "-z shards over nodes of this many ranks, which have copies of each other; 0: over all ranks; auto: -z 2 and 3 "
      "over the ranks of a host" },
    { "machine",   "ce", "copy-engines",     OPTION_INT,   AT(copies),        "1",                   0,    1,     NULL,
      "1: GPUs of one process exchange by copy engines where possible; 0: by NCCL's kernels" },
    { "machine",   "rp", "reproducible",     OPTION_INT,   AT(ordered),       "0",                   0,    1,     NULL,
      "1: with the same -b and -d, the same bits on any number of ranks; slower" },
    { "machine",   "sd", "seed",             OPTION_LONG,  AT(seed),          "1337",                0,    9e15,  NULL,
      "of weights, data order, dropout and samples" },
    { "checks",    "a",  "overfit",          OPTION_INT,   AT(overfit),       "0",                   0,    1,     NULL,
      "1: train on the first batch only; the loss must approach zero" },
    { "checks",    "gc", "gradient-check",   OPTION_INT,   AT(check),         "0",                   0,    1,     NULL,
      "1: compare every gradient of this model with finite differences, and exit" },
    /* Where a run runs, not what it is: not in checkpoints, not the same in all processes. */
    { "ranks",     "ng", "gpus",             OPTION_INT,   AT(ranks),         "0",                   0,    1024,  NULL,
      "ranks of this process, one per GPU (-dv cpu: they divide the cores); 0: all GPUs" },
    { "ranks",     "pn", "processes",        OPTION_INT,   AT(processes),     "0",                   0,    1e6,   NULL,
      "number of processes; 0: from torchrun, mpirun, mpiexec or srun" },
    { "ranks",     "pr", "process",          OPTION_INT,   AT(process),       "-1",                  -1,   1e6,   NULL,
      "number of this process, from 0" },
    { "ranks",     "ps", "address",          OPTION_TEXT,  AT(address),       "",                    0,    0,     NULL,
      "host name of process 0, which listens there only; several machines need MOE_SECRET (docs/cluster.md)" },
    { "ranks",     "pp", "port",             OPTION_INT,   AT(port),          "0",                   0,    65535, NULL,
      "port of process 0" },
    { "ranks",     "pw", "join-seconds",     OPTION_INT,   AT(join_seconds),  "300",                 1,    1e6,   NULL,
      "how long to wait for all processes to start" },
    { "ranks",     "pt", "silence-seconds",  OPTION_INT,   AT(silence_seconds), "10",                1,    1e6,   NULL,
      "a process that is silent for longer is lost" },
    { "ranks",     "hm", "host-memory",      OPTION_FLOAT, AT(host_memory),   "0",                   0,    1e6,   NULL,
      "gigabytes of the host's memory that this process may take; a copy of what is saved is made only if it fits into "
      "them. 0: into three quarters of what is free" },
    { "ranks",     "gm", "gpu-memory",       OPTION_TEXT,  AT(gpu_memory),    "",                    0,    0,     NULL,
      "gigabytes below which the memory of a run is held, on each GPU, or of each rank on a CPU: 40, or what a GPU of "
      "this name has (h100). With -x 0: plan for a GPU you don't have, by its name, GB, or GB:GB/s:TFLOP/s of bf16 "
      "(80:2000:312)" },
    { "planning",  "as", "all-settings",     OPTION_INT,   AT(show_all),      "0",                   0,    1,     NULL,
      "1: the start table has every setting, not only those that were given or chosen" },
};
_Static_assert(sizeof options / sizeof *options == SETTINGS, "SETTINGS in settings.h is the number of rows");
static int kept_options(void) {
    int n = 0;
    while (n < SETTINGS && strcmp(options[n].group, "ranks")) n++;
    return n;
}

static const char usage[] =
    "train_moe: trains a sparse mixture-of-experts language model.\n"
    "  ./train_moe                                   tinyshakespeare, a small model, into out/\n"
    "  ./train_moe -i book.txt -e m6 -x 2000         another text, a larger model\n"
    "  ./train_moe -i texts -tk 16384                a folder of texts, and a tokenizer trained on them\n"
    "  ./train_moe -e FOLDER -i chats.jsonl -o tuned fine-tunes a model on conversations; then ./infer_moe "
    "tuned -m chat\n"
    "  ./train_moe -y 1                              continue after an interruption, with the same settings\n"
    "  ./train_moe -ng 4                             on four GPUs (without -ng: on all of them)\n"
    "  ./train_moe -x 0 -e m12:e64k8f256             the plan: parameters and memory; trains nothing\n"
    "  ./train_moe -x 0 -e m12 -gm h100              the plan for a GPU you don't have\n"
    "  ./train_moe -cf out/settings.txt -o again     repeats a run: every run writes its settings to this file\n"
    "  ./train_moe --help model                      how -e describes a model\n"
    "  ./train_moe --help -i book.txt                this text, with the values that hold for this data "
    "on this machine";
static const char defaults_of[] =
    "Brackets contain the defaults for less than 10 million tokens on a CPU. On a GPU, or for more text, some differ:\n"
    "./train_moe --help -i DATA shows those that hold there.";

static void explain(Options o, const char *topic);
static Options table(const Settings *s) { return (Options){ options, SETTINGS, (void *)s, (char *)s->given, explain }; }

/* A preset's word gives way to its model: that is what a run is resumed and repeated with. */
static void take_preset(Settings *s) {
    const Suit suit = is_folder(s->model) ? SUITS : preset_named(s->model);
    if (suit == SUITS) return;
    s->preset = preset_name[suit];
    s->model = suited[0].of[suit];
}
/* -x 0 plans the run that there would be without it: the steps are those of -cf, or the default. */
static void take_plan(Settings *s, int argc, char **argv) {
    int n = 0;
    char **rest = mem_alloc((size_t)argc * sizeof *rest);
    for (int a = 0; a < argc; a++)
        if (!strcmp(argv[a], "-x") || !strcmp(argv[a], "--steps")) a++;
        else if (strncmp(argv[a], "--steps=", 8)) rest[n++] = argv[a];
    options_parse(table(s), n, rest, usage, NULL, 0);
    free(rest);
    s->plans = 1;
    if (s->steps) return;
    const Option *row = option_row(table(s), "x");              /* 0 in the file, too */
    s->given[row - options] = 0;
    options_default(table(s), "x", row->init);
}
void settings_parse(Settings *s, int argc, char **argv) {
    s->preset = NULL;
    s->plans = 0;
    options_parse(table(s), argc, argv, usage, NULL, 0);
    if (!s->steps) take_plan(s, argc, argv);
    take_preset(s);
}
int  settings_given(const Settings *s, const char *letter) { return option_given(table(s), letter); }
static const char *const always[] = { "i", "e", "o", "b", "t", "x", "l", "wo", NULL };
void settings_print(const Settings *s) {
    options_print(table(s), s->show_all ? NULL : always);
    if (!s->show_all) printf("|   all %d with -as 1%s\n", SETTINGS, s->plans ? "" : ", and in OUT/settings.txt");
}
void settings_json(const Settings *s, Text *out) {
    Options kept = table(s);
    kept.count = kept_options();
    options_json(kept, out);
}
/* Settings of one invocation: not restored from the run that is resumed. */
static const char *const not_restored[] = { "out", "resume", "resume-step", "allow-run-change",
                                             "allow-data-change", "gradient-check" };
static int is_restored(const char *name) { return !text_is_among(name, not_restored); }
void settings_write(const Settings *s, Text *out) {
    Option kept[SETTINGS];
    int n = 0;
    for (int i = 0; i < kept_options(); i++) {
        /* a model of a folder says itself what its routers and activation are */
        const int of_model = !strcmp(options[i].letter, "rs") || !strcmp(options[i].letter, "fa");
        if (is_restored(options[i].name) && !(of_model && is_folder(s->model))) kept[n++] = options[i];
    }
    options_write((Options){ kept, n, (void *)s, NULL, NULL }, out);
}
void settings_given_json(const Settings *s, Text *out) { options_names_json(table(s), NULL, out); }
void settings_shown_json(const Settings *s, Text *out) {
    Options kept = table(s);
    kept.count = kept_options();
    options_names_json(kept, always, out);
}

int settings_restore(Settings *s, const JsonValue *saved, Error *e) {
    const int kept = kept_options();
    Settings all = *s;
    if (!json_is(saved, JSON_OBJECT)) return error_set(e, "the options of the run are missing");
    if (s->skip < 0) s->given[option_row(table(s), "sk") - options] = 0;       /* -sk auto: what the run has */
    for (const JsonValue *v = json_first(saved); v; v = v->next) {
        int i = 0;
        while (i < kept && strcmp(v->key, options[i].name)) i++;
        if (i == kept && option_removed(v->key, json_int(v, 1) != 0)) continue;
        if (i == kept) return error_set(e, "no option is called \"%.100s\"; is the run of a newer program?", v->key);
        Settings one = all;
        const int read = option_read(&options[i], &one, v, e);
        if (!read && !(s->given[i] && option_value_removed(&options[i], json_string(v, "")))) return 0;
        if (!s->given[i] && is_restored(v->key)) all = one;
    }
    for (int i = 0; i < kept; i++) {                        /* copies of the texts: they outlive the JSON */
        const char **text = (const char **)(void *)((char *)&all + options[i].field);
        const char *const *was = (const char *const *)(const void *)((const char *)s + options[i].field);
        if (options[i].kind == OPTION_TEXT && *text != *was) *text = text_format("%s", *text);
    }
    *s = all;
    return 1;
}

/* ---- presets, and what else suits ------------------------------------------------------------ */

void settings_preset(const char *name, int64_t tokens, Text *out) {
    for (int i = 0; i < SUITED; i++) {
        const char *value = preset_value(i, preset_named(name), tokens), *letter = suited[i].letter;
        const Option *row = option_row(table(&(Settings){ 0 }), letter);
        if (strcmp(value, row->init) && strcmp(row->group, "reports"))
            text_add(out, "%s-%s %s", i ? " " : "", letter, value);
    }
}
static void explain_presets(Text *out) {
    text_add(out, "\nTwo words stand for a model and for options with which it learns fast, on a GPU, from %d million "
             "tokens or more.\nWith %d million or more their steps are larger: the start-up table says how. Options "
             "given beside them take\nprecedence (docs/recipe.md).\n", LARGE_TEXT / 1000000, LONG_TEXT / 1000000);
    for (Suit i = PLAIN; i < SUITS; i++) {
        text_add(out, "\n  %-6s %s\n         ", preset_name[i], preset_purpose[i]);
        settings_preset(preset_name[i], LARGE_TEXT, out);
        text_add(out, "\n");
    }
}

int settings_fp8(const Settings *s, const Device *dev) {
    return dev->is_gpu && dev->fp8 && dev->fp8->fits(FP8_BLOCK, FP8_BLOCK) && s->activation == SWIGLU;
}
/* Number types that this device does not have, or that other options exclude, are left alone. */
static int is_possible(const Settings *s, const Device *dev, const char *letter) {
    if (!strcmp(letter, "pe")) return settings_fp8(s, dev);
    if (!strcmp(letter, "mw") || !strcmp(letter, "mo")) return dev->floatX_size == 2 && !s->ordered;
    return 1;
}
/* The options' own are of new models. */
static const char *const of_folders[][2] = { { "wo", "adamw" }, { "k", "cosine" }, { "kd", "0.2" }, { "u", "50" },
                                             { "q", "0.1" }, { "wn", "0" }, { "c", "0.1" }, { "ra", "0.01" } };
void settings_suit(Settings *s, const Device *dev, int64_t tokens) {
    const int large = tokens >= LARGE_TEXT, gpu = dev->is_gpu, folder = is_folder(s->model);
    if (settings_given(s, "v")) options_default(table(s), "vs", "0");
    for (size_t i = 0; folder && i < sizeof of_folders / sizeof *of_folders; i++)
        options_default(table(s), of_folders[i][0], of_folders[i][1]);
    if (!s->preset && large && gpu && !settings_given(s, "e")) s->preset = preset_name[PLAIN];
    const Suit suit = s->preset ? preset_named(s->preset) : large ? gpu ? PLAIN : MUCH_ON_CPU : LITTLE_ON_GPU;
    const SuitedModels most = s->preset ? OWN : folder ? ANY : DESCRIBED;
    for (int i = 0; i < SUITED && (s->preset || gpu || large); i++)
        if (suited[i].models <= most && is_possible(s, dev, suited[i].letter))
            options_default(table(s), suited[i].letter, preset_value(i, suit, s->preset ? tokens : 0));
    if (folder && *s->upcycle) options_default(table(s), "l", "3e-4");
    else if (s->optimizer != MUON) options_default(table(s), "l", !gpu ? "1e-3" : large ? "6e-4" : "2e-3");
    if (!s->ahead) settings_plain_momentum(s);
}
/* With the square of its rate the newest gradient counts as much as with the lookahead: 1 - b^2. */
void settings_plain_momentum(Settings *s) {
    char rate[32];
    snprintf(rate, sizeof rate, "%.4g", (double)s->momentum * s->momentum);
    options_default(table(s), "wm", rate);
}

/* The rate is that of OLMoE's instruction tuning, 2e-5 at 2048 channels, two epochs (arXiv
 * 2409.02060), in inverse proportion to the channels, as a matrix of more inputs needs smaller
 * steps (arXiv 2203.03466); twice that with Muon, which then learns as much in a step (docs/LOG.md,
 * "A folder's rate with Muon"). No weight decay and no dropout: the weights come from much more
 * text. Conversations are not to be cut, so rows are long. */
void settings_fine_tune(Settings *s, int gpu, int channels, int context, int chats) {
    char rate[32], row[32];
    const double best = (s->optimizer == MUON ? 4e-5 : 2e-5) * 2048 / channels;
    const int wanted = gpu ? 2048 : 512;
    snprintf(rate, sizeof rate, "%.2g", best < 1e-3 ? best : 1e-3);
    snprintf(row, sizeof row, "%d", wanted < context ? wanted : context);
    const char *const defaults[][2] = { { "l", rate }, { "u", "10" }, { "q", "0" }, { "c", "0" }, { "dr", "0" },
                                        { "t", row }, { "d", "0" }, { "x", "-2" }, { "v", "50" }, { "m", "-1" } };
    const size_t all = sizeof defaults / sizeof *defaults, of_any = 5;      /* the others only for conversations */
    for (size_t i = 0; i < (chats ? all : of_any); i++) options_default(table(s), defaults[i][0], defaults[i][1]);
}
/* Of few rows 20 steps an epoch and less warm-up. */
void settings_fit_rows(Settings *s, int64_t rows) {
    char text[32];
    snprintf(text, sizeof text, "%d", rows < 40 ? 1 : rows < 160 ? (int)rows / 20 : 8);
    options_default(table(s), "b", text);
    const int64_t steps = s->steps > 0 ? s->steps : -s->steps * rows / s->batch;
    snprintf(text, sizeof text, "%d", steps && steps < 100 ? (int)steps / 10 : 10);
    options_default(table(s), "u", text);
}
void settings_fit_steps(Settings *s) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)s->steps / 8);
    if (s->steps > 0 && s->steps / 8 < s->warmup) options_default(table(s), "u", text);
}

/* --help -i DATA: the values that a run would have. */
static void explain_here(Options o) {
    Settings *s = o.settings;
    Error e;
    char why_cpu[256] = "";
    LocalDevices local = { .count = 1 };
    const int absent = *s->gpu_memory || (!strncmp(s->device, "cuda", 4) && !device_usable(s->device));
    const Device *dev = absent ? device_imagine(s->device, s->gpu_memory, 1, &e)
                               : device_choose(s->device, &local, why_cpu);
    if (!dev) fail_with(&e, EXIT_USAGE);
    Config c;
    Tokenizer *bytes;
    take_preset(s);
    const int is_model = is_folder(s->model);
    const DataRequest request = { .train = s->train, .validation = s->val, .tokenizer = "",
                                  .chat = *s->chat ? s->chat : "chatml", .field = s->field, .any_bytes = 1 };
    if (is_model && !hf_load_config(s->model, &c, &e)) fail_with(&e, EXIT_INPUT);
    Data *data = data_open_text(&request, &bytes, &e);
    if (!data) fail_with(&e, EXIT_INPUT);
    /* a token of a BPE is about four bytes */
    const int64_t tokens = data_tokens(data, DATA_TRAIN) / ((*s->tokenizer || is_model) && data_is_text(data) ? 4 : 1);
    settings_suit(s, dev, tokens);
    if (is_model && (!*s->upcycle || data_has_chats(data)))
        settings_fine_tune(s, dev->is_gpu, c.channels, c.context, data_has_chats(data));
    if (is_model && data_has_chats(data)) settings_fit_rows(s, tokens / s->seq + 1);
    char *text = text_format("%s\nBrackets contain what holds here: for %s: about %lld training "
                             "tokens (%s), on %s%s%s.", usage, s->train, (long long)tokens, tokens < LARGE_TEXT
                             ? "less than 10 million, which are seen many times: a small model"
                             : "10 million or more, which are seen about once: a larger model, shorter validations",
                             dev->name, *why_cpu ? ", because " : "", why_cpu);
    options_help(o, text, 1);
    data_close(data);
    free(text);
}
static void explain(Options o, const char *topic) {
    if (!strcmp(topic, "model")) {
        Text t = { 0 };
        config_explain(&t);
        explain_presets(&t);
        fputs(t.at, stdout);
        free(t.at);
    } else if (*topic) fail(EXIT_USAGE, "--help %s: there is no such topic; there is: model", topic);
    else if (settings_given(o.settings, "i")) explain_here(o);
    else {
        char *text = text_format("%s\n%s", usage, defaults_of);
        options_help(o, text, 0);
        free(text);
    }
}

MuonOptions settings_muon(const Settings *s) {
    return s->optimizer == MUON ? (MuonOptions){ s->momentum, s->period, s->row_decay, !s->ahead,
                                                           s->accumulate == IN_MOMENTUM, s->most }
                                        : (MuonOptions){ 0 };
}
