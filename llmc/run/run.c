/* run.c: the start of a run, in the order of run.h. */
#include "run.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/data/meter.h"
#include "llmc/files/families.h"
#include "llmc/files/hf.h"
#include "llmc/model/check.h"
#include "llmc/model/plan.h"
#include "llmc/model/recompute.h"
#include "llmc/ranks/secret.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- folder and settings --------------------------------------------------------------------------------- */

/* A run that was killed before its first checkpoint: its settings are in the first line of its log. */
static void restore_settings_from_log(Run *r) {
    Error e;
    size_t bytes;
    char *path = text_format("%s/log.jsonl", r->s.out), *text = file_read(path, &bytes, &e);
    if (!text) fail(EXIT_DISK, "%s", e.text);
    const size_t line = strcspn(text, "\n");
    Json *start = NULL;
    error_set(&e, "it has no end");
    r->restored = line < bytes && json_sealed(text, line, &e) && (start = json_parse(text, line, &e))
               && settings_restore(&r->s, json_get(json_root(start), "options"), &e);
    if (!r->restored)
        fail(EXIT_CHECKPOINT, "%s: its first line, which has the settings of the run, is damaged: %s. "
             "No checkpoint was saved yet. To start over with settings that you give: -y 0", path, e.text);
    json_free(start);
    free(text);
    free(path);
}

/* Are the members of run.json that this room reads usable? */
static int usable(const JsonValue *run, Error *e) {
    Progress p;
    Settings s = { 0 };
    memset(s.given, 1, sizeof s.given);                     /* read and checked, but not kept */
    return progress_from_json(run, &p, e) && settings_restore(&s, json_get(run, "options"), e);
}

/* Reading much takes seconds, in which nothing else would be said. */
static void announce(const Run *r, const char *what, const char *folder, double bytes) {
    if (r->leads && bytes > 2e9) text_print(stdout, "%s %s, %.1f GB\n", what, folder, 1e-9 * bytes);
    fflush(stdout);
}

static int only_plans(const Run *r) { return r->s.steps == 0 && settings_given(&r->s, "x"); }

void run_find_launch(Run *r) {
    const Settings *s = &r->s;
    Launch flags = { .launcher = "flags", .process = s->process, .processes = s->processes, .port = s->port };
    Error e;
    snprintf(flags.address, sizeof flags.address, "%s", s->address);
    if (!launch_find(&r->launch, &flags, launch_getenv, &e)) fail(EXIT_USAGE, "%s", e.text);
    if (!s->check && s->steps != 0 && !secret_check(&r->launch, launch_getenv, &e)) fail(EXIT_USAGE, "%s", e.text);
    r->leads = r->launch.process == 0;
}

static void lock_folder(Run *r) {
    Error e;
    if (!r->leads) return;
    if (!checkpoint_lock(r->s.out, &e)) fail_with(&e, EXIT_DISK);
    r->locked = 1;
}

/* Is the folder from which a model is read one of those that a new run clears? */
static int model_is_in(const char *model, const char *out) {
    char *best = text_format("%s/best", out);
    const int is = is_same_folder(model, out) || is_same_folder(model, best);
    free(best);
    return is;
}

void run_open_folder(Run *r) {
    Settings *s = &r->s;
    Error e;
    if (only_plans(r) && s->resume) fail(EXIT_USAGE, "-x 0 prints the plan of a new run: it cannot be combined with -y 1");
    if (s->check || only_plans(r)) return;
    if (!*s->out) fail(EXIT_USAGE, "-o needs the name of a folder");
    if (is_file(s->out)) fail(EXIT_DISK, "%s is a file; -o needs a folder, or the name of a new one", s->out);
    const Holding holding = checkpoint_exists(s->out, &e);
    if (holding == HOLDS_UNKNOWN) fail(EXIT_DISK, "%s", e.text);
    if (!holding) {                         /* claim_folder makes it once everything else has been checked */
        if (s->resume && r->leads) text_print(stdout, "%s: no run to continue; a new one begins\n", s->out);
        return;
    }
    if (!settings_given(s, "y"))
        fail(EXIT_USAGE, "%s holds another run or model. To continue it: -y 1. "
             "To discard it and start over: -y 0. To keep it: another folder with -o", s->out);
    if (holding == HOLDS_MODEL && s->resume)
        fail(EXIT_CHECKPOINT, "%s holds a model, but no state to resume from. "
             "To train it further: -e %s and another folder with -o. To discard it: -y 0", s->out, s->out);
    if (!(holding == HOLDS_STATE && s->resume) && model_is_in(s->model, s->out))
        fail(EXIT_USAGE, "-e %s would be discarded with what is in %s before the trained model is saved: another folder with -o", s->model, s->out);
    lock_folder(r);
    if (holding == HOLDS_STATE && s->resume) {
        char *newest = step_path(s->out, checkpoint_newest(s->out));
        announce(r, "checking", newest, checkpoint_bytes(newest));
        free(newest);
        if (!(r->from = checkpoint_open(s->out, usable, &e))
            || !(r->restored = settings_restore(s, checkpoint_options(r->from), &e))) fail(EXIT_CHECKPOINT, "%s", e.text);
    } else if (s->resume) {
        warn("%s: no checkpoint was saved yet; starting from the beginning", s->out);
        restore_settings_from_log(r);
    }
}

/* The start of a new run, after all checks. Only now the folder's previous contents are removed. */
static void claim_folder(Run *r) {
    Error e;
    if (!r->locked) {
        lock_folder(r);
        const Holding holding = checkpoint_exists(r->s.out, &e);
        if (holding == HOLDS_UNKNOWN) fail(EXIT_DISK, "%s", e.text);
        if (holding) fail(EXIT_USAGE, "%s: another run has started here in the meantime", r->s.out);
    } else if (!checkpoint_clear(r->s.out, &e)) fail(EXIT_DISK, "%s", e.text);
}

/* ---- device, data, model --------------------------------------------------------------------------------- */

void run_choose_device(Run *r) {
    char why_cpu[256];
    Error e;
    const int plans = only_plans(r), names = *r->s.gpu_memory != 0;
    const int gpu = !strncmp(r->s.device, "cuda", 4), automatic = !strcmp(r->s.device, "auto");
    r->local_devices = (LocalDevices){ .local = r->launch.local, .locals = r->launch.locals, .count = r->s.ranks };
    if (names && (!plans || !(gpu || automatic)))
        fail(EXIT_USAGE, "-gm is for the plan of a run on a GPU: it needs -x 0, and -dv cuda or none");
    if (plans && (names || (gpu && !device_usable(r->s.device)))) {
        if (!(r->dev = device_imagine(r->s.device, r->s.gpu_memory, r->s.ranks, &e))) fail(EXIT_USAGE, "%s", e.text);
        r->local_devices.count = r->dev->count();
        return;
    }
    r->dev = device_choose(r->s.device, &r->local_devices, why_cpu);
    if (*why_cpu && r->leads) printf("training on the CPU: %s\n", why_cpu);
}

/* Did it start from a model of a folder (-e)? That may have been removed since. */
static int starts_from_model(const Run *r) {
    Config described;
    Error e;
    return is_folder(r->s.model) || (r->from && !config_parse(&described, r->s.model, &e));
}

/* The tokenizer of a run that names none (-tk): that of the model it starts from; of a resumed run, its own copy. NULL: none. */
static char *own_tokenizer(const Run *r) {
    const Settings *s = &r->s;
    if (*s->tokenizer || !starts_from_model(r)) return NULL;
    char *copy = text_format("%s/tokenizer.json", s->out), *first = text_format("%s/tokenizer.json", s->model);
    const int has_copy = r->from && checkpoint_has_tokenizer(r->from, copy), has_first = is_file(first);
    if (r->from && !has_copy && !has_first && is_file(copy))
        fail(EXIT_CHECKPOINT, "%s is damaged, and %s, from which it was copied, is not there", copy, first);
    char *path = has_copy ? text_format("%s", copy) : has_first ? text_format("%s", first) : NULL;
    free(copy);
    free(first);
    return path;
}

/* The template that -ct names is saved with a model that came with none. */
static void keep_chat_template(Run *r) {
    Error e;
    Chat own;
    if (!*r->s.chat || !data_has_chats(r->data) || !chat_open(&own, "", r->from ? r->s.out : is_folder(r->s.model) ? r->s.model : NULL, &e)) return;
    if (own.ours || (!own.form && !own.unknown)) tokenizer_set_chat(r->tokenizer, chat_jinja(data_chat(r->data)));
    chat_close(&own);
}

void run_open_data(Run *r) {
    Error e, why;
    Settings *s = &r->s;
    char *trained = text_format("%s/tokenizer.json", s->out), *own = own_tokenizer(r);
    Tokenizer *readable = own ? tokenizer_load(own, &why) : NULL;
    const DataRequest request = { .train = s->train, .validation = s->val, .tokenizer = readable ? own : s->tokenizer,
                                  .pattern = s->pattern, .chat = s->chat, .cache = s->out, .show = r->leads, .any_bytes = s->any_bytes,
                                  .trained = r->from && checkpoint_has_tokenizer(r->from, trained) ? trained : NULL };
    if (r->from && is_file(s->tokenizer) && !s->allow_data && !checkpoint_has_tokenizer(r->from, s->tokenizer))
        fail(EXIT_CHECKPOINT, "%s is not the tokenizer of the run in %s, which is %s. To continue anyway: --allow-data-change 1",
             s->tokenizer, s->out, trained);
    if (!(r->data = data_open_text(&request, &r->tokenizer, &e))) fail(EXIT_INPUT, "%s", e.text);
    if (r->from && r->tokenizer && data_trains_tokenizer(&request) && tokenizer_vocab(r->tokenizer) != strtol(s->tokenizer, NULL, 10))
        fail(EXIT_USAGE, "-tk %s: the run in %s goes on with its own tokenizer, of %d tokens. Another one needs a new run (-o)",
             s->tokenizer, s->out, tokenizer_vocab(r->tokenizer));
    if (own && !readable && data_is_text(r->data))
        fail(EXIT_INPUT, "%s. Encode the text with its own program and train on the tokens (*.bin), or name another tokenizer (-tk)", why.text);
    if (own && !readable && r->leads) warn("%s; it is copied as it is", why.text);
    tokenizer_free(readable);
    free(trained);
    free(own);
    r->origin = starts_from_model(r) ? hf_origin_open(r->from ? s->out : s->model, is_folder(s->model) ? s->model : s->out) : NULL;
    if (!r->tokenizer && data_is_text(r->data)) r->tokenizer = tokenizer_bytes();
    keep_chat_template(r);
    if (!r->restored) settings_suit(&r->s, r->dev->is_gpu, data_tokens(r->data, DATA_TRAIN));
    if (data_is_fallback(r->data))
        warn("tinyshakespeare is missing: training on this project's own text instead. "
             "The losses are NOT tinyshakespeare's. To fetch it: sh data/tinyshakespeare/fetch.sh");
}

/* What -rs and -fa set, and the configuration that -e describes, with them. */
static void describe_kinds(const Settings *s, Config *c) {
    if (c->experts > 1 || c->attention_experts > 1) c->scores = scores_by_name(s->scores);
    c->activation = activation_by_name(s->activation);
}
static void describe_config(const Settings *s, Config *c) {
    Error e;
    if (!config_parse(c, s->model, &e)) fail(EXIT_USAGE, "%s", e.text);
    describe_kinds(s, c);
}

/* A resumed run: the model is the checkpoint's, and one that the user gives must be the same. The -e with which the run began always
 * means that model, even if the defaults of a descriptor's fields have changed since. */
static void resume_config(Run *r, int given) {
    Error e;
    Config *c = &r->config, asked;
    const char *path = checkpoint_path(r->from);
    *c = checkpoint_config(r->from);
    if (settings_given(&r->s, "up")) fail(EXIT_USAGE, "-up makes the model of a new run; %s has its model, and goes on without", path);
    if (!given) return;
    const JsonValue *word = json_get(checkpoint_options(r->from), "model");
    const int same = json_is(word, JSON_STRING) && !strcmp(word->is.string, r->s.model);
    asked = *c;
    if (is_folder(r->s.model)) {
        if (same) return;
        if (!hf_load_config(r->s.model, &asked, &e) || (*r->s.upcycle && asked.experts == 1 && !config_upcycle(&asked, r->s.upcycle, &e)))
            fail(EXIT_INPUT, "%s", e.text);
    } else if (same) describe_kinds(&r->s, &asked);
    else describe_config(&r->s, &asked);
    asked.vocab = c->vocab;
    asked.padding = c->padding;
    asked.choice_bias = c->choice_bias;
    asked.context = c->context;
    if (!config_same(c, &asked, &e))
        fail(EXIT_CHECKPOINT, "%s is another model than -e %s: %s", path, r->s.model, e.text);
}

/* The model in a folder (-e). */
static void load_config(Run *r) {
    const Settings *s = &r->s;
    Config *c = &r->config;
    Error e;
    if (!hf_load_config(s->model, c, &e)) fail(EXIT_INPUT, "%s", e.text);
    if (r->tokenizer && tokenizer_vocab(r->tokenizer) > c->vocab)
        fail(EXIT_INPUT, "%s: its vocabulary has %d tokens, the data need %d", s->model, c->vocab, tokenizer_vocab(r->tokenizer));
    if (!hf_check_weights(r->dev, c, s->model, &e)) fail(EXIT_INPUT, "%s", e.text);
    r->dense = *c;
    if (*s->upcycle && !config_upcycle(c, s->upcycle, &e)) fail(EXIT_USAGE, "%s", e.text);
    if (!r->restored && (!*s->upcycle || data_has_chats(r->data)))
        settings_fine_tune(&r->s, r->dev->is_gpu, c->channels, c->context, data_has_chats(r->data));
    char *theirs = text_format("%s/tokenizer.json", s->model);
    if (r->tokenizer && !*s->tokenizer && !is_file(theirs) && c->vocab > tokenizer_vocab(r->tokenizer))
        fail(EXIT_INPUT, "%s is missing, and of bytes this model has learned nothing. To make it of the folder's other files: python3 -c \"import "
             "transformers as t; t.AutoTokenizer.from_pretrained('FOLDER').save_pretrained('FOLDER')\"; or name one (-tk)", theirs);
    if (*s->tokenizer && is_file(theirs) && r->leads)
        warn("-tk %s replaces the model's own tokenizer: if its ids mean other text, the model has to learn them again", s->tokenizer);
    free(theirs);
    if (s->bias_rate > 0 && !c->choice_bias && c->family && c->family != FAMILY_SMOE)
        fail(EXIT_USAGE, "-rb %g: a %s has no bias for choosing experts, so what is trained could not be saved as one. "
             "Balance it by a loss (-rl)", (double)s->bias_rate, family_name((Family)c->family));
}

/* -pe: can this model and device do it? */
static void check_precision(const Run *r) {
    const Config *c = &r->config;
    const int C = (c->channels + FP8_BLOCK - 1) / FP8_BLOCK * FP8_BLOCK, F = (c->width + FP8_BLOCK - 1) / FP8_BLOCK * FP8_BLOCK;
    if (!c->fp8) return;
    if (c->experts == 1 || c->activation != SWIGLU)
        fail(EXIT_USAGE, "-pe fp8: the MLP of this model has %s, and only swiglu experts can compute in 8 bits. -pe bf16",
             c->experts == 1 ? "no experts" : "experts of another kind (-fa)");
    if (!r->dev->fp8_fits(FP8_BLOCK, FP8_BLOCK))
        fail(EXIT_USAGE, "-pe fp8: %s has no products of 8 bits; GPUs since Hopper have, and, slowly, CPUs (-dv cpu). -pe bf16", r->dev->name);
    if (C != c->channels || F != c->width)
        fail(EXIT_USAGE, "-pe fp8: channels and the experts' width must be multiples of %d, and this model has %d and %d. "
             "-pe bf16, or a model with c%df%d", FP8_BLOCK, c->channels, c->width, C, F);
}

void run_choose_model(Run *r) {
    Error e;
    Config *c = &r->config;
    const Settings *s = &r->s;
    const int is_model = is_folder(s->model), kind_given = settings_given(s, "rs") || settings_given(s, "fa");
    if (!r->tokenizer && data_max_id(r->data) >= 1 << 24)
        fail(EXIT_INPUT, "%s: token id %d; at most %d is allowed", s->train, data_max_id(r->data), (1 << 24) - 1);
    if (!r->from && !is_model && *s->upcycle) fail(EXIT_USAGE, "-up %s needs a dense model in a folder: -e FOLDER", s->upcycle);
    if (r->from) resume_config(r, (kind_given && !is_model) || settings_given(s, "e"));
    else if (is_model) {
        if (kind_given) fail(EXIT_USAGE, "-e %s: this folder's config.json defines what -rs and -fa set", s->model);
        load_config(r);
    } else {
        describe_config(s, c);
        c->vocab = r->tokenizer ? tokenizer_vocab(r->tokenizer) : data_max_id(r->data) + 1;
        c->context = s->seq;
        if (!config_check(c, &e)) fail(EXIT_USAGE, "model %s: %s", s->model, e.text);
    }
    if (!r->from) {
        c->choice_bias |= s->bias_rate > 0 && (c->experts > 1 || c->attention_experts > 1);
        config_pad_vocab(c);
    }
    if (s->seq > c->context) {
        if (is_model || r->from) warn("sequences of %d tokens, but the model was trained for %d", s->seq, c->context);
        c->context = s->seq;
    }
    c->rounding = rounding_by_name(s->rounding);
    c->fp8 = !strcmp(s->precision, "fp8") ? FP8_WHERE_FASTER : !strcmp(s->precision, "fp8-all") ? FP8_ALL : 0;
    check_precision(r);
    if (c->rounding && c->experts == 1) fail(EXIT_USAGE, "-rt %s: the MLP of this model has no experts", s->rounding);
    if (!data_check(r->data, s->seq, config_ids(c), &e)) fail(EXIT_INPUT, "%s", e.text);
    if (is_model && !r->restored && data_has_chats(r->data)) settings_fit_rows(&r->s, data_epoch_samples(r->data, s->seq));
}

/* ---- ranks ------------------------------------------------------------------------------------------------- */

/* How many ranks are a node (-zn). A run that is resumed on ranks which its nodes do not divide has those of its hosts. */
static void find_nodes(Run *r) {
    Error e;
    const int ranks = r->parallel.ranks, divides = r->s.node > 0 && ranks % r->s.node == 0;
    r->node = ranks;
    if (ranks == 1 || r->s.node == 0) return;
    if (r->s.node > 0 && !divides && (!r->restored || settings_given(&r->s, "zn")))
        fail(EXIT_USAGE, "-zn %d: %d ranks are not nodes of %d ranks each. -zn must divide their number; -zn 0 shards over all", r->s.node, ranks, r->s.node);
    if (r->s.node > 0 && !divides) r->s.node = -1;
    if (divides) r->node = r->s.node;
    if (divides || r->s.level == 0 || r->s.level == 1) return;
    const int locals = r->launch.locals * r->local_devices.count;
    const int host = r->processes ? group_host_ranks(r->processes, &e) : locals && ranks % locals == 0 ? locals : ranks;
    if (!host && r->s.level >= 2)
        fail(EXIT_USAGE, "-z %d shards over the ranks of each host, but %s. -zn 0 shards over all ranks, -zn N over each N of them", r->s.level, e.text);
    if (host > 1) r->node = host;
}

/* If there is nothing to train, no other process is needed. */
void run_join_ranks(Run *r) {
    const Settings *s = &r->s;
    Text settings = { 0 };
    Error e;
    settings_json(s, &settings);
    settings.length--;                                      /* the closing brace */
    text_add(&settings, ", \"device of the ranks\": \"%s\", \"fingerprint of the data\": \"%016llx\", "
             "\"fingerprint of the tokenizer\": \"%016llx\", \"resumed from\": ", r->dev->name,
             (unsigned long long)data_fingerprint(r->data),
             (unsigned long long)(r->tokenizer ? tokenizer_hash(r->tokenizer) : 0));
    const char *from = r->from ? checkpoint_path(r->from) : "";
    text_add_json(&settings, from, strlen(from));
    text_add(&settings, "}");
    GroupOptions o = { .launch = r->launch, .ranks = r->local_devices.count, .version = MOE_VERSION, .settings = settings.at,
                       .join_seconds = s->join_seconds, .silence_seconds = s->silence_seconds };
    r->parallel.ranks = r->local_devices.count * r->launch.processes;
    if (!s->check && s->steps != 0) {
        char *const secret = r->launch.processes > 1 ? secret_find(&r->launch, s->out, launch_getenv, s->join_seconds, &e) : NULL;
        if (!secret && r->launch.processes > 1) fail_with(&e, EXIT_USAGE);
        o.secret = secret;
        if (!(r->processes = group_join(&o, &e))) fail(EXIT_PEER, "%s", e.text);
        r->parallel.ranks = group_size(r->processes);
        free(secret);
    }
    r->parallel.ordered = s->ordered;
    r->records = s->record >= (r->parallel.ranks > 1 ? 2 : 1);
    r->parallel.by_matrix = settings_muon(s).momentum > 0;
    find_nodes(r);
    free(settings.at);
}

/* ---- the plan ------------------------------------------------------------------------------------------- */

/* A run resumed on another number of ranks keeps its tokens per step: the batch is reduced until it divides them. */
static void fit_batch(Run *r) {
    Settings *s = &r->s;
    const int before = s->batch;
    const int64_t unit = (int64_t)s->seq * r->parallel.ranks;           /* tokens of a batch of 1 on all ranks */
    if (!r->restored || settings_given(s, "b") || s->total % unit) return;
    while (s->total / unit % s->batch) s->batch--;
    if (s->batch < before && r->leads)
        printf("-b %d instead of %d: the steps of this run have %lld tokens (-d), of sequences of %d on %d rank%s\n", s->batch, before,
               (long long)s->total, s->seq, r->parallel.ranks, r->parallel.ranks > 1 ? "s" : "");
}

/* A validation that the user did not set reads at most this many tokens of the split. */
enum { VALIDATED_CPU = 1 << 17, VALIDATED_GPU = 20 << 16 };
static void bound_validation(Run *r) {
    const int64_t all = data_validation_batches(r->data, r->s.batch, r->s.seq);
    const int64_t most = (r->dev->is_gpu ? VALIDATED_GPU : VALIDATED_CPU) / ((int64_t)r->s.batch * r->s.seq);
    if (!r->restored && !settings_given(&r->s, "m")) r->s.val_batches = all <= most ? -1 : most > 1 ? most : 1;
}

/* The choices of a plan that cost or save memory. */
typedef struct { int batch, automatic, master, level, shards; Recompute recompute; Dtype moments; } Economy;   /* automatic: -r auto */
static Economy as_set(const Run *r) {
    return (Economy){ r->s.batch, 0, r->s.master, r->parallel.level, r->parallel.shards, r->recompute, dtype_by_name(r->s.moments) };
}
static void set_sharding(const Run *r, Parallel *p, int level, int shards) {
    p->level = level;
    p->shards = shards;
    p->one_process = r->s.copies && r->dev->is_gpu && !r->records && r->local_devices.count % parallel_shards(p) == 0;
}
/* The memory that a plan with these choices needs; with -r auto, on a device of this capacity. chosen: NULL, or what is recomputed. */
static size_t memory_with(const Run *r, Economy e, size_t capacity, Recompute *chosen) {
    Model m;
    Optimizer o;
    Parallel p = r->parallel;
    set_sharding(r, &p, e.level, e.shards);
    if (e.automatic) e.recompute = recompute_numbered(0);
    model_plan_training(&m, r->dev, &r->config, e.batch, r->s.seq, &e.recompute, r->micro_batches * r->s.batch / e.batch,
                        dtype_by_name(r->s.gradients), p.ranks > 1 || p.ordered ? &p : NULL);
    optimizer_plan(&o, &m, e.master, e.moments, settings_muon(&r->s));
    const int length = r->s.seq > 2 ? r->s.seq : 2;
    const size_t kept = m.arena.total, samples = r->s.sample_every > 0 ? decoder_bytes(r->dev, &r->config, 1, length, &m) : 0;
    if (e.automatic && kept + samples > capacity) e.recompute = recompute_choose(&m, kept + samples - capacity);
    const size_t total = e.automatic ? kept - recompute_saves(&m, e.recompute) : kept;
    if (chosen) *chosen = e.recompute;
    model_free(&m);
    return total;
}
/* Ranks of this process that use the memory of one device. */
static size_t ranks_on_device(const Run *r) { return r->dev->is_gpu ? 1 : (size_t)r->local_devices.count; }
static size_t rank_memory(const Run *r) { return r->dev->memory() / ranks_on_device(r); }       /* 0: unknown */
/* The least that a rank has, and which has it. All ranks call this. */
static size_t least_memory(const Run *r, int *which) {
    const int ranks = r->parallel.group ? r->parallel.ranks : 1;
    double least = 0, *all = mem_alloc((size_t)ranks * sizeof *all);
    all[0] = (double)rank_memory(r);
    if (ranks > 1) group_gather(r->parallel.group, all, all[0]);
    for (int i = *which = 0; i < ranks; i++) if (all[i] > 0 && (least <= 0 || all[i] < least)) least = all[i], *which = i;
    free(all);
    return (size_t)least;
}

/* As options: -z 3, and over which ranks, if there are nodes. */
static const char *sharding_name(const Run *r, int level, int shards, char name[48]) {
    const int ranks = r->parallel.ranks;
    snprintf(name, 48, "-z %d", level);
    if (level > 0 && shards < ranks) snprintf(name, 48, "-z %d -zn %d", level, shards);
    else if (level > 1 && r->node < ranks) snprintf(name, 48, "-z %d -zn 0", level);
    return name;
}
/* The choices of -z and -zn, in order of preference. -z auto: level 1 over all ranks, which sends least and has the smallest optimizer
 * state of a rank; then levels 2 and 3 within a node; then those over all ranks. */
enum { SHARDINGS = 5 };
static int shardings(const Run *r, int level[SHARDINGS], int shards[SHARDINGS]) {
    static const struct { int level, over_all; } order[SHARDINGS] = { { 1, 1 }, { 2, 0 }, { 3, 0 }, { 2, 1 }, { 3, 1 } };
    const int all = r->parallel.ranks, hosts = r->s.node < 0 && r->node < all;
    if (r->s.level >= 0) {              /* it is given */
        level[0] = r->s.level;
        shards[0] = r->s.node < 0 && r->s.level < 2 ? all : r->node;
        return 1;
    }
    const int count = hosts ? SHARDINGS : 3;
    for (int i = 0; i < count; i++) {
        level[i] = order[i].level;
        shards[i] = r->s.node < 0 && order[i].over_all ? all : r->node;
    }
    return count;
}
/* The first of these that fits on every rank; if none does, the one that takes least. */
static void choose_level(Run *r) {
    int level[SHARDINGS], shards[SHARDINGS], which = 0;
    const int count = shardings(r, level, shards), planned = r->parallel.level, over = r->parallel.shards;     /* by this rank's memory alone */
    const size_t capacity = rank_memory(r);
    char name[48], before[48];
    Economy e = as_set(r);
    size_t fewest = 0;
    for (int i = 0; i < count && capacity; i++) {
        e.level = level[i], e.shards = shards[i];
        const size_t bytes = memory_with(r, e, 0, NULL);
        if (!fewest || bytes < fewest) which = i, fewest = bytes;
        if (bytes <= capacity) break;
    }
    if (r->parallel.group) which = group_max(r->parallel.group, which);
    if (r->parallel.group && r->leads && (level[which] != planned || shards[which] != over))
        printf("%s instead of %s: that is what fits on all ranks\n", sharding_name(r, level[which], shards[which], name),
               sharding_name(r, planned, over, before));
    set_sharding(r, &r->parallel, level[which], shards[which]);
}

/* -r auto: recomputes nothing if that fits on every rank, else the cheapest parts that make it fit. */
static void choose_recompute(Run *r) {
    int which;
    const size_t capacity = r->s.recompute < 0 ? least_memory(r, &which) : 0;
    Economy e = as_set(r);
    e.automatic = 1;
    if (capacity) memory_with(r, e, capacity, &r->recompute);
}

/* Slots of the tokens of a micro-batch, in the layer that has the most. */
static int64_t most_slots(const Config *c, int N) {
    const int64_t mlp = mlp_slots(c, N, 1), attention = c->attention_experts > 1 ? (int64_t)N * c->query_heads : 0;
    return mlp > attention ? mlp : attention;
}

void run_plan(Run *r) {
    Settings *s = &r->s;
    const int ranks = r->parallel.ranks;
    if (s->total) fit_batch(r);
    else if (!settings_given(s, "b") && !r->restored)      /* the default batch is split across the ranks */
        s->batch = s->batch > ranks ? s->batch / ranks : 1;
    const int64_t micro = (int64_t)s->batch * s->seq * ranks;
    if (micro / ranks > 1 << 28)
        fail(EXIT_USAGE, "-b %d -t %d: a micro-batch of more than %d tokens", s->batch, s->seq, 1 << 28);
    const int64_t slots = most_slots(&r->config, s->batch * s->seq);
    if (micro > INT_MAX || slots > INT_MAX)
        fail(EXIT_USAGE, "-b %d -t %d: a micro-batch of %lld tokens on all ranks, and %lld slots of experts on each; at most %d of either. "
             "A smaller -b, with the same -d, makes it several", s->batch, s->seq, (long long)micro, (long long)slots, INT_MAX);
    if (s->total == 0) s->total = micro;
    if (!r->restored && !settings_given(s, "d"))
        s->total = s->total < micro ? micro : s->total / micro * micro;
    if (s->total % micro && r->restored && !settings_given(s, "d")) {
        int b = s->batch;
        while (b > 1 && s->total % ((int64_t)b * s->seq * ranks)) b--;
        const int fits = s->total % ((int64_t)b * s->seq * ranks) == 0;
        fail(EXIT_USAGE, "the steps of this run have %lld tokens (-d), which must be a multiple of B*T = %d*%d%s. %s%d%s",
             (long long)s->total, s->batch, s->seq, ranks > 1 ? ", times the ranks" : "", fits ? "-b " : "Give other sequences than -t ",
             fits ? b : s->seq, fits ? " would do; or give another -d" : ", or -d");
    }
    if (s->total % micro)
        fail(EXIT_USAGE, "-d %lld: must be a multiple of B*T = %d*%d%s = %lld", (long long)s->total, s->batch, s->seq,
             ranks > 1 ? ", times the ranks," : "", (long long)micro);
    if (s->total / micro > 1 << 20)
        fail(EXIT_USAGE, "-d %lld: more than %d micro-batches a step", (long long)s->total, 1 << 20);
    r->micro_batches = (int)(s->total / micro);
    bound_validation(r);
    if (s->steps < 0 && !(s->steps = -s->steps * data_epoch_samples(r->data, s->seq) / samples_per_step(r)))
        fail(EXIT_INPUT, "%s: an epoch has %lld sequences, less than the %lld of one step. "
             "Use smaller steps (-b, -t, -d), or set their number (-x)",
             s->train, (long long)data_epoch_samples(r->data, s->seq), (long long)samples_per_step(r));
    r->recompute = recompute_numbered(s->recompute);
    if (ranks > 1) choose_level(r);
    choose_recompute(r);
    model_plan_training(&r->model, r->dev, &r->config, s->batch, s->seq, &r->recompute, r->micro_batches,
                        dtype_by_name(s->gradients), ranks > 1 || s->ordered ? &r->parallel : NULL);
    if (s->ordered && r->dev->floatX_size == 2 && (!s->master || dtype_by_name(s->moments) == FLOATX))
        fail(EXIT_USAGE, "-rp 1: not with -mw 0 or -mo bf16. Their stochastic rounding depends on positions in memory, "
             "which depend on the number of ranks");
    if (dtype_by_name(s->moments) == FLOATX && r->dev->floatX_size != 2)
        fail(EXIT_USAGE, "-mo bf16: %s does not store bf16. -mo f32, or another device (-dv)", r->dev->name);
    optimizer_plan(&r->optimizer, &r->model, s->master, dtype_by_name(s->moments), settings_muon(s));
    const int ids = config_ids(&r->config), named = r->tokenizer ? tokenizer_vocab(r->tokenizer) : ids;
    r->model.used_vocab = named < ids && data_max_id(r->data) < named ? named : ids;
}

/* The next smaller batch to try: at most half, and it divides the sequences of a step. 0: there is none. */
static int smaller_batch(const Run *r, int batch) {
    const int64_t sequences = (int64_t)r->s.batch * r->micro_batches;
    for (batch /= 2; batch > 1 && sequences % batch; ) batch--;
    return batch;
}
/* The options with which the run would fit, the largest saving first. free() it. */
static char *would_fit(const Run *r, size_t capacity) {
    enum { REMEDIES = 6 };
    const int could = r->s.recompute == 0 || r->s.recompute == 1;           /* more may be recomputed than is */
    Economy now = as_set(r);
    now.automatic = r->s.recompute < 0;
    Economy few = now, lean = now, again = now, both = now, shards = now, all = now;
    do few.batch = smaller_batch(r, few.batch); while (few.batch > 1 && memory_with(r, few, capacity, NULL) > capacity);
    lean.master = both.master = 0, lean.moments = both.moments = FLOATX;
    again.automatic = both.automatic = all.automatic = 1;
    shards.level = all.level = MOST_SHARDED, shards.shards = all.shards = r->parallel.ranks;
    char smaller[96];
    snprintf(smaller, sizeof smaller, "-b %d (with -d %lld the step stays the same)", few.batch, (long long)tokens_per_step(r));
    struct { const char *options; Economy with; int again; size_t bytes; } remedy[REMEDIES] = {
        { "-mw 0 -mo bf16", lean, 0, 0 }, { "-r auto", again, 1, 0 }, { "-r auto -mw 0 -mo bf16", both, 1, 0 }, { smaller, few, 0, 0 },
        { r->node < r->parallel.ranks ? "-z 3 -zn 0" : "-z 3", shards, 0, 0 },
        { r->node < r->parallel.ranks ? "-z 3 -zn 0 -r auto" : "-z 3 -r auto", all, 1, 0 } };
    for (int i = 0; i < REMEDIES; i++) {
        const Economy *with = &remedy[i].with;
        const int needs_bf16 = with->moments != now.moments, needs_ranks = with->level != now.level || with->shards != now.shards;
        if (with->batch && (!needs_bf16 || r->dev->floatX_size == 2) && (!needs_ranks || r->parallel.ranks > 1) && (could || !remedy[i].again))
            remedy[i].bytes = memory_with(r, *with, capacity, NULL);
    }
    Text hint = { 0 };
    for (int best; best = -1, capacity; remedy[best].bytes = 0) {
        for (int i = 0; i < REMEDIES; i++)
            if (remedy[i].bytes && remedy[i].bytes <= capacity && (best < 0 || remedy[i].bytes < remedy[best].bytes)) best = i;
        if (best < 0) break;
        text_add(&hint, "%s %s: %.1f MB", hint.at ? "," : "This would fit:", remedy[best].options,
                 (double)remedy[best].bytes / 1e6);
    }
    if (!hint.at) text_add(&hint, "Try a smaller batch (-b), shorter sequences (-t), %s%sor a smaller model (-e)", could ? "-r 2, " : "",
                           r->parallel.ranks > 1 ? "more ranks with -z 3, " : "");
    return hint.at;
}
/* rank: a rank without enough memory; capacity: what it has. */
static _Noreturn void out_of_memory(const Run *r, int rank, double capacity) {
    const size_t need = r->model.arena.total;
    char where[96] = "", has[96] = "", name[48];
    if (r->parallel.ranks > 1) snprintf(where, sizeof where, "rank %d of %d: ", rank, r->parallel.ranks);
    if (r->parallel.ranks > 1 && capacity > 0)
        snprintf(has, sizeof has, " with %s; it has %.1f MB", sharding_name(r, r->parallel.level, r->parallel.shards, name), capacity / 1e6);
    fail(EXIT_MEMORY, "%s%s does not have the %.1f MB that this run needs%s%s. %s%s", where, r->dev->name, (double)need / 1e6, has,
         r->model.arena.category[MEM_KEPT] > need / 2 ? ", most of it activations" : "",
         r->s.recompute < 0 ? "Backward already recomputes all that it can (-r auto). " : "", would_fit(r, (size_t)capacity));
}
/* Ranks tell each other what they have, so that all end with the same message if one has too little. */
static void check_memory(const Run *r) {
    int which;
    const size_t least = least_memory(r, &which);
    if (least && r->model.arena.total > least) out_of_memory(r, which, (double)least);
}
/* What each level would take. */
static void print_levels(const Run *r) {
    static const char *const sharded[] = { "nothing", "optimizer state", "optimizer state and gradients", "optimizer state, gradients and weights" };
    Economy e = as_set(r);
    const int ranks = r->parallel.ranks, shards = parallel_shards(&r->parallel);
    char name[48];
    Text line = { 0 };                      /* printed as a whole: what it counts may run out of memory */
    text_add(&line, "|   (%s sharded over %d ranks%s", sharded[e.level], shards, shards < ranks ? " of a node, alike in each of " : "");
    if (shards < ranks) text_add(&line, "%d nodes", ranks / shards);
    text_add(&line, ", %s; in all", sharding_name(r, e.level, shards, name));
    for (int nodes = 0; nodes <= (r->node < ranks); nodes++)
        for (e.level = nodes ? r->s.node > 0 ? 1 : 2 : 0; e.level <= MOST_SHARDED; e.level++) {
            e.shards = nodes ? r->node : ranks;
            text_add(&line, "%s %s: %.2f MB", e.level || nodes ? "," : "", sharding_name(r, e.level, e.shards, name), (double)memory_with(r, e, 0, NULL) / 1e6);
        }
    printf("%s)\n", line.at);
    free(line.at);
}

/* Ranks of this process's machine. */
static size_t ranks_here(const Run *r) { return (size_t)(r->local_devices.count * (r->launch.locals > 0 ? r->launch.locals : 1)); }
void run_plan_saves(Run *r) {
    Saver *s = saver_open(&r->model, &r->optimizer);
    const size_t room = saver_room(s), host = device_find("cpu-f32")->memory(), each = room + (r->dev->is_gpu ? 0 : r->model.arena.total);
    saver_close(s);
    r->save_room = !*r->s.gpu_memory && host && each * ranks_here(r) > host / 4 * 3 ? 0 : room;
}
/* What is recomputed; in a plan that is only printed, also what could be. */
static void print_recompute(const Run *r, int plans) {
    Text t = { 0 };
    recompute_describe(&r->model, r->recompute, &t);
    if (t.at && r->s.recompute < 0) printf("|   (-r auto recomputes %s)\n", t.at);
    else if (t.at) printf("|   (-r %d recomputes %s)\n", r->s.recompute, t.at);
    t.length = 0;
    recompute_list(&r->model, &t);
    if (plans && r->config.layers > 1) printf("|   (recomputing would save: %s)\n", t.at);
    free(t.at);
}

/* The end of the plan: does it fit? */
static void print_fit(const Run *r) {
    const size_t total = r->model.arena.total, capacity = rank_memory(r);
    const int plans = only_plans(r);
    print_recompute(r, plans);
    printf("|   %-27s | %10.2f MB", "total", (double)total / 1e6);
    if (capacity) printf(" of %.0f MB%s", (double)capacity / 1e6, *r->s.gpu_memory ? "" : " free");
    else if (plans && r->dev->is_gpu) printf("; for which GPU? -gm h100, or -gm 80 (GB), says whether it fits");
    if (plans && capacity && total > capacity) {
        char *const hint = would_fit(r, capacity);
        printf("\n|   DOES NOT FIT. %s", hint);
        free(hint);
    }
    putchar('\n');
    if (r->save_room)
        printf("|   a copy for saves, host      | %10.2f MB%s: steps wait for the copy only\n", (double)r->save_room / 1e6,
               *r->s.gpu_memory ? ", if it has them for each rank" : "");
    else puts("|   a copy for saves, host      |       none: it would leave too little memory, so steps wait for saves");
}

/* Which part of the validation split is read, and how much work a kill would lose. */
static void print_intervals(const Run *r) {
    const Settings *s = &r->s;
    const int64_t all = data_tokens(r->data, DATA_VALIDATION), used = s->val_batches * s->batch * s->seq;
    if (s->val_batches > 0 && used < all)
        printf("|   validation reads    | the first %lld of its %lld tokens (-m -1: all)\n", (long long)used, (long long)all);
    Text t = { 0 };
    if (s->save_seconds > 0)
        text_add(&t, "%g s of work (-nt), %g s before the first checkpoint", (double)s->save_seconds, (double)s->save_seconds / 2);
    if (s->save_every) text_add(&t, "%s%lld steps (-n)", t.at ? ", or " : "", (long long)s->save_every);
    if (!t.at) text_add(&t, "all work: checkpoints are saved only at the end and when stopped (-nt, -n)");
    printf("|   kill -9 would lose  | %s%s\n", s->save_seconds > 0 || s->save_every ? "at most " : "", t.at);
    free(t.at);
}

static void print_precision(const Model *m) {
    printf("|   experts in e4m3     | %s, of %.0f rows an expert\n",
           m->fp8_passes ? "all products" : "none: smaller than what was measured to be faster (-pe fp8-all)",
           (double)m->batch.N * m->config.topk / m->config.experts);
}
void run_print_plan(const Run *r) {
    const Config *c = &r->config;
    const Arena *a = &r->model.arena;
    const size_t total = r->model.manifest.learnable, active = config_active(c, total);
    const int ranks = r->parallel.ranks;
    char descriptor[128];
    config_descriptor(c, descriptor);
    puts("+--------------------------------------------------------------------");
    settings_print(&r->s);
    text_print(stdout, "| data: %s\n", data_description(r->data));
    printf("|   training tokens     | %lld   validation tokens %lld\n",
           (long long)data_tokens(r->data, DATA_TRAIN), (long long)data_tokens(r->data, DATA_VALIDATION));
    print_intervals(r);
    printf("| model: %s, %s\n", descriptor, family_name(config_family(c)));
    if (config_family(c) == FAMILY_SMOE)
        puts("|   form                | smoe, of this project: Transformers opens it with trust_remote_code=True (modeling_smoe.py)");
    if (*r->s.upcycle && !r->from)
        text_print(stdout, "|   upcycled            | every expert is a copy of an MLP of %s, a dense %s; routers are new\n", r->s.model,
                   family_name(config_family(&r->dense)));
    printf("|   parameters          | %zu in %d tensors, %zu active per token (%.0f %%)\n",
           total, r->model.manifest.count, active, 100.0 * (double)active / (double)total);
    printf("|   experts             | %d MLP, %d per token, width %d; %d attention, %d per token\n",
           c->experts, c->topk, c->width, c->attention_experts, c->attention_topk);
    if (c->fp8) print_precision(&r->model);
    printf("|   layers, channels    | %d, %d; %d x %d query heads of %d, %d kv heads; vocabulary %d\n",
           c->layers, c->channels, c->query_heads, c->kv_heads, c->head_size, c->kv_heads, c->vocab);
    if (c->kv_rank)
        printf("|   latent attention    | latents of %d for keys and values, %d for queries (0: none); %d of a head rotated, values of %d\n",
               c->kv_rank, c->query_rank, c->rotated, config_value_size(c));
    printf("|   tokens per step     | %lld = %d x %d x %d micro-batches x %d rank%s; %.2f Mflop per token\n",
           (long long)tokens_per_step(r), r->s.batch, r->s.seq, r->micro_batches, ranks, ranks > 1 ? "s" : "",
           config_flops(c, r->s.seq) / 1e6);
    if (ranks > 1)
        printf("| ranks: %d in %d process%s (launcher: %s)\n", ranks, r->launch.processes,
               r->launch.processes > 1 ? "es" : "", r->launch.launcher);
    printf("| memory on %s%s\n", r->dev->name, ranks > 1 ? ", per rank" : "");
    for (int i = 0; i < MEM_CATEGORIES; i++)
        if (a->category[i])
            printf("|   %-27s | %10.2f MB\n", mem_category_name[i], (double)a->category[i] / 1e6);
    if (ranks > 1) print_levels(r);
    print_fit(r);
    puts("+--------------------------------------------------------------------");
    fflush(stdout);
}

/* This model with few tokens: cpu-f64 against finite differences, then this device against a more exact one. At least two tokens, as
 * a query that sees one key has no gradient. */
int run_check_gradients(const Run *r) {
    const Settings *s = &r->s;
    Check c = { .config = r->config, .B = 2, .T = s->seq < 2 ? 2 : s->seq < 12 ? s->seq : 12, .recompute = r->recompute,
                .samples = r->config.channels > 512 ? 3 : 12, .balance = s->balance, .z = s->z,
                .dropout = s->dropout, .seed = (uint64_t)s->seed };
    c.config.tile = 4;                                      /* suits few tokens */
    c.config.fp8 = 0;                                       /* backward takes a rounding as the identity, a difference does not */
    double worst, worst_device = 0;
    printf("gradient check: every tensor against finite differences, cpu-f64%s\n", r->config.fp8 ? ", without -pe fp8" : "");
    int bad = check_gradients(&c, 1e-6, stdout, 1, &worst);
    if (bad < 0) fail(EXIT_MEMORY, "not enough memory to check this model in f64");
    const int is_bf16 = r->dev->floatX_size == 2;
    const Device *exact = device_find(is_bf16 && r->dev->is_gpu ? "cpu-bf16" : "cpu-f64");
    const double bound = !is_bf16 ? 1e-4 : r->dev->is_gpu ? 2e-2 : 0.5;
    if (r->dev != exact) {
        printf("%s against %s\n", r->dev->name, exact->name);
        bad += check_devices(&c, r->dev, exact, bound, stdout, 0, &worst_device);
    }
    printf("gradient check %s: %d bad tensors; worst error %.1e in f64, %.1e on %s\n",
           bad ? "FAILED" : "passed", bad, worst, worst_device, r->dev->name);
    return bad ? EXIT_NUMERICS : EXIT_DONE;
}

/* ---- memory and weights -------------------------------------------------------------------------------------- */

void run_allocate(Run *r) {
    const Settings *s = &r->s;
    const size_t N = (size_t)(tokens_per_step(r) / r->parallel.ranks);
    check_memory(r);
    if (!model_allocate(&r->model)) out_of_memory(r, r->parallel.rank, (double)rank_memory(r));
    r->shows_samples = s->sample_every > 0 && (r->leads || r->model.dp.level >= 3);      /* of sharded weights all ranks have a part */
    if (r->shows_samples && !decoder_open(&r->decoder, r->dev, &r->config, 1, s->seq > 2 ? s->seq : 2, &r->model))
        out_of_memory(r, r->parallel.rank, (double)rank_memory(r));
    r->model.balance_coef = s->balance;
    r->model.z_coef = s->z;
    r->model.forced = s->forced;
    r->saver = saver_open(&r->model, &r->optimizer);
    if (!group_min(r->parallel.group, r->save_room > 0)) {
        if (r->leads && r->save_room) warn("the host of another rank has no room for a copy of what is saved: steps wait for saves");
        r->save_room = 0;
    }
    if (r->save_room) saver_make_room(r->saver);
    r->inputs = mem_alloc(N * sizeof *r->inputs);
    r->targets = mem_alloc(N * sizeof *r->targets);
    r->positions = mem_alloc(N * sizeof *r->positions);
    r->keys = mem_alloc((size_t)r->micro_batches * sizeof *r->keys);
    for (int i = 0; i < PHASES; i++) r->replay_micro[i].off = !r->records;
    for (int i = 0; i < MUON_PERIODS; i++) r->replay_update[i].off = !r->records;
    parallel_register_memory(&r->model);
    const double rows = (double)s->batch * s->seq * r->config.topk / r->config.experts;
    if (r->config.rounding && rows < 2 * ROW_TILE && r->leads)
        warn("-rt %s: an expert has %.0f rows on average, less than two tiles of %d: rounding reroutes a large part "
             "of them. Larger micro-batches (-b, -t) or fewer experts avoid this", s->rounding, rows, ROW_TILE);
    if (s->forced && r->leads)
        warn("-rf 1: routing is round robin, for benchmarks; the routers learn nothing");
}

/* Completes a save that was interrupted. 0: the best weights are lost. */
static int publish_again(Run *r) {
    const Progress *p = &r->progress;
    Error e;
    if (!r->leads) return 1;
    if (!checkpoint_publish(r->from, &r->model, r->tokenizer, r->origin, &e))
        warn("%s is not up to date with %s: %s", r->s.out, checkpoint_path(r->from), e.text);
    if (!r->s.keep_best || p->best.step < 0 || checkpoint_best(r->from, p->best.step, &r->model, r->tokenizer, r->origin, &e)) return 1;
    warn("the best weights are lost: %s; the next validation saves its weights as the best", e.text);
    return 0;
}

static void draw_weights(Run *r) {
    Model *m = &r->model;
    Meter meter;
    meter_begin(&meter, r->leads, "drawing the initial weights", (int64_t)(m->manifest.learnable * m->dev->floatX_size), "MB");
    for (int i = 0; i < m->manifest.count; i++) {
        model_initialize_tensor(m, i, (uint64_t)r->s.seed);
        meter_add(&meter, (int64_t)(m->manifest.at[i].count * m->dev->floatX_size));
    }
    parallel_gather_weights(m, 0);
    meter_end(&meter);
}

/* Routers start with random values. All experts are equal at first, so their choice does not matter yet. */
static void upcycle(Run *r) {
    Error e;
    config_pad_vocab(&r->dense);
    for (int i = 0; i < r->model.manifest.count; i++)
        if (r->model.manifest.at[i].kind == TENSOR_ROUTER) model_initialize_tensor(&r->model, i, (uint64_t)r->s.seed);
    parallel_gather_weights(&r->model, 0);
    if (!hf_load_upcycled(&r->model, &r->dense, r->s.model, &e)) fail(EXIT_INPUT, "%s", e.text);
}

void run_start_or_resume(Run *r) {
    const Settings *s = &r->s;
    Progress *p = &r->progress;
    Error e;
    if (r->from) {
        announce(r, "reading", checkpoint_path(r->from), checkpoint_bytes(checkpoint_path(r->from)));
        if (!checkpoint_load(r->from, &r->model, &r->optimizer, &e))
            fail(EXIT_CHECKPOINT, "%s: %s", checkpoint_path(r->from), e.text);
        if (!progress_from_json(checkpoint_run(r->from), p, &e)) fail(EXIT_CHECKPOINT, "%s: %s", checkpoint_path(r->from), e.text);
        if (p->data != data_fingerprint(r->data) && !s->allow_data)
            fail(EXIT_CHECKPOINT, "%s was trained on other data than %s (names, sizes or contents differ). "
                 "To continue anyway: --allow-data-change 1", checkpoint_path(r->from), s->train);
        if (p->seed != (uint64_t)s->seed && r->leads)
            warn("from here on the seed is %lld; the run began with %llu", (long long)s->seed, (unsigned long long)p->seed);
        if (r->leads) text_print(stdout, "resuming %s at step %lld\n", checkpoint_path(r->from), (long long)p->step);
    } else {
        *p = (Progress){ .best = { .step = -1 }, .seed = (uint64_t)s->seed, .data = data_fingerprint(r->data) };
        if (is_folder(s->model)) announce(r, "reading", s->model, (double)(r->model.manifest.learnable * r->dev->floatX_size));
        if (!is_folder(s->model)) draw_weights(r);
        else if (*s->upcycle) upcycle(r);
        else if (!hf_load_weights(&r->model, s->model, &e)) fail(EXIT_INPUT, "%s", e.text);
        optimizer_start(&r->optimizer, &r->model);
        group_barrier(r->parallel.group);                    /* wait until every rank has validated its input */
        if (r->leads) claim_folder(r);
    }
    if (r->from && p->data != data_fingerprint(r->data) && p->best.step >= 0) {         /* losses on other data do not compare */
        if (r->leads) warn("the data changed, so the best validation loss so far (%.6f) counts no more", p->best.loss);
        p->best.step = -1;
    }
    if (r->from && !group_min(r->parallel.group, publish_again(r))) p->best.step = -1;
    r->lost_best = -1;
    if (r->leads && !data_keep(r->data, r->tokenizer, s->out, &e)) warn("%s; the next start encodes the text again", e.text);
    p->data = data_fingerprint(r->data);
    r->first_step = p->step;
}
