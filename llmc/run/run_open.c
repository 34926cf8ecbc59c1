/* run_open.c: the start of a run (run.h): settings, folder, device, data, model, ranks. */
#include "run.h"
#include "presets.h"
#include "llmc/files/config_json.h"
#include "llmc/files/foreign.h"
#include "llmc/files/hf.h"
#include "llmc/ranks/secret.h"
#include <stdlib.h>
#include <string.h>

/* ---- folder and settings --------------------------------------------------------------------- */

/* The first line of the log: which run the folder's is, and its settings. NULL and e: it is damaged
 * or missing; e has a code if it cannot be read. */
static Json *first_line(const char *path, Error *e) {
    size_t bytes;
    char *text = file_read(path, &bytes, e);
    Json *start = NULL;
    if (!text) { error_exit(e, EXIT_DISK, "%s", e->text); return NULL; }
    const size_t line = strcspn(text, "\n");
    error_set(e, "it has no end");
    if (line < bytes && json_sealed(text, line, e)) start = json_parse(text, line, e);
    free(text);
    return start;
}
/* A run that was killed before its first checkpoint has its settings in the log's first line. */
static void restore_settings_from_log(Run *r) {
    Error e;
    char *path = text_format("%s/log.jsonl", r->s.out);
    Json *start = first_line(path, &e);
    if (!start && e.code == EXIT_DISK) fail_with(&e, EXIT_DISK);
    r->restored = start && settings_restore(&r->s, json_get(json_root(start), "options"), &e);
    if (!r->restored)
        fail(EXIT_CHECKPOINT, "%s: its first line, which has the settings of the run, is damaged: %s. "
             "No checkpoint was saved yet. To start over with settings that you give: -y 0", path, e.text);
    json_free(start);
    free(path);
}
/* Which run is the folder's? 0: of an older program, or its log is lost. */
static uint64_t identity(const Run *r) {
    Error e;
    uint64_t run = 0;
    char *path = text_format("%s/log.jsonl", r->s.out);
    Json *start = is_file(path) ? first_line(path, &e) : NULL;
    const JsonValue *v = start ? json_get(json_root(start), "run") : NULL;
    if (v && !json_read_hex(v, "run", &run, &e)) run = 0;
    if (!start && is_file(path) && r->leads)
        warn("%s: its first line, which says which run the checkpoints must be of, is damaged: %s", path, e.text);
    json_free(start);
    free(path);
    return run;
}

/* Are the members of run.json that this folder reads usable, and are they of this run (of)? */
static int usable(const JsonValue *run, const void *of, Error *e) {
    const uint64_t expected = *(const uint64_t *)of;
    Progress p;
    Settings s = { 0 };
    memset(s.given, 1, sizeof s.given);                     /* read and checked, but not kept */
    if (!progress_from_json(run, &p, e) || !settings_restore(&s, json_get(run, "options"), e)) return 0;
    return !expected || !p.run || p.run == expected
        || error_set(e, "it is of another run, %016llx; this folder's log is of %016llx. To resume from it anyway: "
                     "--allow-run-change 1", (unsigned long long)p.run, (unsigned long long)expected);
}
static void open_checkpoint(Run *r) {
    Settings *s = &r->s;
    Error e;
    char *newest = step_path(s->out, checkpoint_newest(s->out, s->resume_step));
    r->identity = identity(r);
    const uint64_t expected = s->allow_run ? 0 : r->identity;
    const Wanted wanted = { usable, &expected, s->resume_step };
    run_announce(r, "checking", newest, checkpoint_bytes(newest));
    free(newest);
    if (!(r->from = checkpoint_open(s->out, &wanted, &e))
        || !(r->restored = settings_restore(s, checkpoint_options(r->from), &e))) fail_with(&e, EXIT_CHECKPOINT);
}

/* Reading much takes seconds, in which nothing else would be said. */
void run_announce(const Run *r, const char *what, const char *folder, double bytes) {
    if (r->leads && bytes > 2e9) text_print(stdout, "%s %s, %.1f GB\n", what, folder, 1e-9 * bytes);
    fflush(stdout);
}

void run_find_launch(Run *r) {
    const Settings *s = &r->s;
    Launch flags = { .launcher = "flags", .process = s->process, .processes = s->processes, .port = s->port };
    Error e;
    snprintf(flags.address, sizeof flags.address, "%s", s->address);
    if (!launch_find(&r->launch, &flags, launch_getenv, &e)) fail_with(&e, EXIT_USAGE);
    if (!s->check && !s->plans && !secret_check(&r->launch, launch_getenv, &e)) fail_with(&e, EXIT_USAGE);
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
    if (run_only_plans(r) && s->resume == 1)
        fail(EXIT_USAGE, "-x 0 prints the plan of a new run: it cannot be combined with -y 1");
    if (s->resume_step && !s->resume)
        fail(EXIT_USAGE, "-ys %lld is where a run is continued: it needs -y 1", (long long)s->resume_step);
    if (s->check || run_only_plans(r)) return;
    if (!*s->out) fail(EXIT_USAGE, "-o needs the name of a folder");
    if (is_file(s->out)) fail(EXIT_DISK, "%s is a file; -o needs a folder, or the name of a new one", s->out);
    const Holding holding = checkpoint_exists(s->out, &e);
    if (holding == HOLDS_UNKNOWN) fail_with(&e, EXIT_DISK);
    if (!holding) {                         /* claim_folder makes it once everything else has been checked */
        if (s->resume == 1)
            fail(EXIT_USAGE, "%s: there is no run to continue (-y 1). Another folder: -o. To begin one: without -y; "
                 "-y auto does either", s->out);
        if (s->resume && r->leads) text_print(stdout, "%s: no run to continue (-y auto): a new one begins\n", s->out);
        return;
    }
    if (!settings_given(s, "y"))
        fail(EXIT_USAGE, "%s holds another run or model. To continue it: -y 1. "
             "To discard it and start over: -y 0. To keep it: another folder with -o", s->out);
    if (holding == HOLDS_MODEL && s->resume)
        fail(EXIT_CHECKPOINT, "%s holds a model, but no state to resume from. "
             "To train it further: -e %s and another folder with -o. To discard it: -y 0", s->out, s->out);
    if (!(holding == HOLDS_STATE && s->resume) && model_is_in(s->model, s->out))
        fail(EXIT_USAGE, "-e %s would be discarded with what is in %s before the trained model is saved: another "
             "folder with -o", s->model, s->out);
    lock_folder(r);
    if (holding == HOLDS_STATE && s->resume) open_checkpoint(r);
    else if (s->resume) {
        if (s->resume_step)
            fail(EXIT_CHECKPOINT, "-ys %lld: %s holds no checkpoint", (long long)s->resume_step, s->out);
        warn("%s: no checkpoint was saved yet; starting from the beginning", s->out);
        restore_settings_from_log(r);
    }
}

/* The start of a new run, after all checks. Only now the folder's previous contents are removed. */
void run_claim_folder(Run *r) {
    Error e;
    if (!r->locked) {
        lock_folder(r);
        const Holding holding = checkpoint_exists(r->s.out, &e);
        if (holding == HOLDS_UNKNOWN) fail_with(&e, EXIT_DISK);
        if (holding) fail(EXIT_USAGE, "%s: another run has started here in the meantime", r->s.out);
    } else if (!checkpoint_clear(r->s.out, &e)) fail_with(&e, EXIT_DISK);
}

/* ---- device, data, model --------------------------------------------------------------------- */

void run_choose_device(Run *r) {
    char why_cpu[256];
    Error e;
    const int names = *r->s.gpu_memory != 0;
    const int gpu = !strncmp(r->s.device, "cuda", 4), automatic = !strcmp(r->s.device, "auto");
    r->local_devices = (LocalDevices){ .local = r->launch.local, .locals = r->launch.locals, .count = r->s.ranks };
    r->elsewhere = run_only_plans(r) && ((names && (gpu || automatic)) || (gpu && !device_usable(r->s.device)));
    if (r->elsewhere) {
        if (!(r->dev = device_imagine(r->s.device, r->s.gpu_memory, r->s.ranks, &e))) fail_with(&e, EXIT_USAGE);
        r->local_devices.count = r->dev->count();
        return;
    }
    r->dev = device_choose(r->s.device, &r->local_devices, why_cpu);
    if (*why_cpu && r->leads) printf("training on the CPU: %s\n", why_cpu);
    if (names && !device_limit(r->s.gpu_memory, r->dev, &r->limit, &e)) fail_with(&e, EXIT_USAGE);
}

/* Did it start from a model of a folder (-e)? That may have been removed since. */
static int starts_from_model(const Run *r) {
    Config described;
    Error e;
    return is_folder(r->s.model) || (r->from && !config_parse(&described, r->s.model, &e));
}

/* Without -tk: the tokenizer of the model of -e; of a resumed run, its own copy. NULL: none. */
static char *own_tokenizer(const Run *r) {
    const Settings *s = &r->s;
    if (*s->tokenizer || !starts_from_model(r)) return NULL;
    char *copy = text_format("%s/tokenizer.json", s->out), *first = text_format("%s/tokenizer.json", s->model);
    const int has_copy = r->from && checkpoint_has_tokenizer(r->from, copy), has_first = is_there(first);
    if (r->from && !has_copy && !has_first && is_there(copy))
        fail(EXIT_CHECKPOINT, "%s is damaged, and %s, from which it was copied, is not there", copy, first);
    char *path = has_copy ? text_format("%s", copy) : has_first ? text_format("%s", first) : NULL;
    free_each(copy, first);
    return path;
}

/* What ends an answer is saved; and the template that -ct names, with a model that has none. */
static void keep_chat_template(Run *r) {
    Error e;
    Chat own;
    if (data_has_chats(r->data) && r->tokenizer)
        tokenizer_set_answer_end(r->tokenizer, chat_end(data_chat(r->data)));
    if (!*r->s.chat || !data_has_chats(r->data)
        || !chat_open(&own, "", r->from ? r->s.out : is_folder(r->s.model) ? r->s.model : NULL, &e)) return;
    if (own.ours || (!own.form && !own.unknown)) tokenizer_set_chat(r->tokenizer, chat_jinja(data_chat(r->data)));
    chat_close(&own);
}
/* A preset that the user names is for much text and a GPU. */
static void check_preset(const Run *r) {
    const Settings *s = &r->s;
    const int64_t tokens = data_tokens(r->data, DATA_TRAIN);
    if (is_folder(s->model) && preset_named(s->model) != SUITS && r->leads)
        warn("-e %s is the model of the folder of this name here, not the preset (--help model)", s->model);
    if (!s->preset || !settings_given(s, "e")) return;
    if (tokens < LARGE_TEXT && !run_only_plans(r) && !s->check && !s->overfit)
        fail(EXIT_USAGE, "-e %s is for %d million training tokens or more, which are read once; %s has %lld, and it "
             "would learn them by heart. Without -e, model and options suit this text", s->preset,
             LARGE_TEXT / 1000000, s->train, (long long)tokens);
    if (!r->leads) return;
    if (!r->dev->is_gpu)
        warn("-e %s is for a GPU: on %s a step of %lld tokens takes minutes, and 8 bits make it slower, so experts are "
             "not in 8 bits unless -pe says so. Without -e, model and options suit this machine", s->preset,
             r->dev->name, (long long)s->total);
    else if (!settings_fp8(s, r->dev) && !settings_given(s, "pe"))
        warn("-e %s: no experts in 8 bits (-pe), which need a Hopper GPU such as an H100, and swiglu: a step takes "
             "longer", s->preset);
}
void run_open_data(Run *r) {
    Error e, why;
    Settings *s = &r->s;
    char *trained = text_format("%s/tokenizer.json", s->out), *own = own_tokenizer(r);
    Tokenizer *readable = own ? tokenizer_load(own, &why) : NULL;
    const DataRequest request = { .train = s->train, .validation = s->val, .tokenizer = readable ? own : s->tokenizer,
                                  .pattern = s->pattern, .chat = s->chat, .field = s->field, .cache = s->out,
                                  .show = r->leads, .any_bytes = s->any_bytes, .splits = s->splits,
                                  .trained = r->from && checkpoint_has_tokenizer(r->from, trained) ? trained : NULL };
    if (r->from && is_there(s->tokenizer) && !s->allow_data && !checkpoint_has_tokenizer(r->from, s->tokenizer))
        fail(EXIT_CHECKPOINT, "%s is not the tokenizer of the run in %s, which is %s. To continue anyway: "
             "--allow-data-change 1", s->tokenizer, s->out, trained);
    if (!(r->data = data_open_text(&request, &r->tokenizer, &e))) fail_with(&e, EXIT_INPUT);
    if (r->from && r->tokenizer && data_trains_tokenizer(&request)
        && tokenizer_vocab(r->tokenizer) != strtol(s->tokenizer, NULL, 10))
        fail(EXIT_USAGE, "-tk %s: the run in %s goes on with its own tokenizer, of %d tokens. Another one needs "
             "a new run (-o)", s->tokenizer, s->out, tokenizer_vocab(r->tokenizer));
    if (r->from && r->tokenizer && !tokenizer_is_bytes(r->tokenizer) && !s->allow_data
        && !checkpoint_has_tokens(r->from, r->tokenizer))
        fail(EXIT_CHECKPOINT, "a file beside %s names tokens that the run in %s began without: an older program did "
             "not read them. To go on with them: --allow-data-change 1; without them: remove them from that file "
             "(tokenizer_config.json, special_tokens_map.json or added_tokens.json)", own ? own : s->tokenizer, s->out);
    if (own && !readable && data_is_text(r->data))
        fail(EXIT_INPUT, "%s. Encode the text with its own program and train on the tokens (*.bin), or name another "
             "tokenizer (-tk)", why.text);
    if (own && !readable && r->leads) warn("%s; it is copied as it is", why.text);
    tokenizer_free(readable);
    free_each(trained, own);
    r->origin = starts_from_model(r)
        ? hf_origin_open(r->from ? s->out : s->model, is_folder(s->model) ? s->model : s->out) : NULL;
    if (!r->tokenizer && data_is_text(r->data)) r->tokenizer = tokenizer_bytes();
    keep_chat_template(r);
    if (!r->restored) {
        settings_suit(&r->s, r->dev, data_tokens(r->data, DATA_TRAIN));
        check_preset(r);
    }
    if (data_is_fallback(r->data))
        warn("tinyshakespeare is missing: training on this project's own text instead. "
             "The losses are NOT tinyshakespeare's. To fetch it: sh data/tinyshakespeare/fetch.sh");
}

/* What -rs and -fa set, and the configuration that -e describes, with them. */
static void describe_kinds(const Settings *s, Config *c) {
    if (c->experts > 1 || c->attention_experts > 1) scores_by_name(s->scores, &c->scores);
    c->activation = s->activation;
}
static void describe_config(const Settings *s, Config *c) {
    Error e;
    Error why;
    if (!config_parse(c, s->model, &e)) fail_with(foreign_model(s->model, &why) ? &e : &why, EXIT_USAGE);
    describe_kinds(s, c);
}

/* A resumed run: the model is the checkpoint's, and one that the user gives must be the same. The
 * -e with which the run began means that model, whatever a descriptor's defaults are now. */
static void resume_config(Run *r, int given) {
    Error e;
    Config *c = &r->config, requested;
    const char *path = checkpoint_path(r->from);
    *c = checkpoint_config(r->from);
    if (settings_given(&r->s, "up"))
        fail(EXIT_USAGE, "-up makes the model of a new run; %s has its model, and goes on without", path);
    if (!given) return;
    const JsonValue *word = json_get(checkpoint_options(r->from), "model");
    const int same = json_is(word, JSON_STRING) && !strcmp(word->is.string, r->s.model);
    requested = *c;
    if (is_folder(r->s.model)) {
        if (same) return;
        if (!hf_load_config(r->s.model, &requested, &e)
            || (*r->s.upcycle && requested.experts == 1 && !family_upcycle(&requested, r->s.upcycle, &e)))
            fail_with(&e, EXIT_INPUT);
    } else if (same) describe_kinds(&r->s, &requested);
    else describe_config(&r->s, &requested);
    requested.vocab = c->vocab;
    requested.padding = c->padding;
    requested.choice_bias = c->choice_bias;
    requested.context = c->context;
    if (!config_same(c, &requested, &e))
        fail(EXIT_CHECKPOINT, "%s is another model than -e %s: %s", path, r->s.model, e.text);
}

/* The model in a folder (-e). */
static void load_config(Run *r) {
    const Settings *s = &r->s;
    Config *c = &r->config;
    Error e;
    if (!hf_load_config(s->model, c, &e)) fail_with(&e, EXIT_INPUT);
    const int more = r->tokenizer ? tokenizer_vocab(r->tokenizer) - config_ids(c) : 0;
    if (more > 0 && (!s->new_rows || *s->upcycle))
        fail(EXIT_INPUT, "%s: its vocabulary has %d tokens, the data need %d. -nr 1 adds rows for them%s", s->model,
             config_ids(c), config_ids(c) + more, *s->upcycle ? ", but not with -up: in a run before" : "");
    if (more > 0 && c->bigram)
        fail(EXIT_INPUT, "-nr 1: which rows of its table of bigrams (t) a pair has depends on the size of the "
             "vocabulary, so %s takes no new tokens. A model without the table does; or train one with this tokenizer "
             "(-tk) from the start", s->model);
    const int planned = run_only_plans(r) && !hf_has_weights(s->model);             /* by its config.json alone */
    if (planned)
        warn("%s has no weights: this is the plan by its config.json%s", s->model, r->tokenizer
             && tokenizer_is_bytes(r->tokenizer) ? ", and of a text of bytes, as it has no tokenizer.json either" : "");
    else if (!hf_check_weights(r->dev, c, s->model, &e)) fail_with(&e, EXIT_INPUT);
    r->dense = *c;
    r->new_rows = more > 0 ? more : 0;
    c->vocab += r->new_rows, c->padding += r->new_rows;             /* rows that no file has, until it is read */
    if (*s->upcycle && !family_upcycle(c, s->upcycle, &e)) fail_with(&e, EXIT_USAGE);
    if (!r->restored && (!*s->upcycle || data_has_chats(r->data)))
        settings_fine_tune(&r->s, r->dev->is_gpu, c->channels, c->context, data_has_chats(r->data));
    char *theirs = text_format("%s/tokenizer.json", s->model);
    if (!planned && r->tokenizer && !*s->tokenizer && !is_there(theirs) && c->vocab > tokenizer_vocab(r->tokenizer))
        fail(EXIT_INPUT, "%s is missing, and of bytes this model "
             "has learned nothing. To make it of the folder's other files: python3 -c \"import transformers as t; "
             "t.AutoTokenizer.from_pretrained('FOLDER').save_pretrained('FOLDER')\"; or name one (-tk)", theirs);
    if (*s->tokenizer && is_there(theirs) && r->leads)
        warn("-tk %s replaces the model's own tokenizer: if its ids mean other text, the model has to learn them again",
             s->tokenizer);
    free(theirs);
    if (s->bias_rate > 0 && !c->choice_bias && c->family && c->family != FAMILY_SMOE)
        fail(EXIT_USAGE, "-rb %g: a %s has no bias for choosing experts, so what is trained could not be saved as one. "
             "Balance it by a loss (-rl)", (double)s->bias_rate, family_name(c->family));
}

/* -pe: can this model and device do it? */
static void check_precision(const Run *r) {
    const Config *c = &r->config;
    const int C = (c->channels + FP8_BLOCK - 1) / FP8_BLOCK * FP8_BLOCK,
        F = (c->width + FP8_BLOCK - 1) / FP8_BLOCK * FP8_BLOCK;
    if (!c->fp8) return;
    if (c->experts == 1 || c->activation != SWIGLU)
        fail(EXIT_USAGE, "-pe fp8: the MLP of this model has %s, and only swiglu experts can compute in 8 "
             "bits. -pe bf16", c->experts == 1 ? "no experts" : "experts of another kind (-fa)");
    if (!r->dev->fp8 || !r->dev->fp8->fits(FP8_BLOCK, FP8_BLOCK))
        fail(EXIT_USAGE, "-pe fp8: %s has no products of 8 bits; GPUs since Hopper have, and, slowly, CPUs (-dv "
             "cpu). -pe bf16", r->dev->name);
    if (C != c->channels || F != c->width)
        fail(EXIT_USAGE, "-pe fp8: channels and the experts' width must be multiples of %d, and this model has %d and "
             "%d. -pe bf16, or a model with c%df%d", FP8_BLOCK, c->channels, c->width, C, F);
    if (c->fp8_head && c->vocab % FP8_BLOCK)
        fail(EXIT_USAGE, "-pe fp8-head: a vocabulary of %d is no multiple of %d. -pe fp8-all", c->vocab, FP8_BLOCK);
}
void run_choose_model(Run *r) {
    Error e;
    Config *c = &r->config;
    const Settings *s = &r->s;
    const int is_model = is_folder(s->model), kind_given = settings_given(s, "rs") || settings_given(s, "fa");
    if (!r->tokenizer && data_max_id(r->data) >= 1 << 24)
        fail(EXIT_INPUT, "%s: token id %d; at most %d is allowed", s->train, data_max_id(r->data), (1 << 24) - 1);
    if (!r->from && !is_model && *s->upcycle)
        fail(EXIT_USAGE, "-up %s needs a dense model in a folder: -e FOLDER", s->upcycle);
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
    c->rounding = s->rounding;
    c->fp8 = s->precision == FP8_IF_FASTER ? FP8_WHERE_FASTER : s->precision >= FP8_ALWAYS ? FP8_ALL : 0;
    c->fp8_head = s->precision == FP8_AND_HEAD;
    check_precision(r);
    if (c->rounding && c->experts == 1) fail(EXIT_USAGE, "-rt nearest: the MLP of this model has no experts");
    if (!data_check(r->data, s->seq, config_ids(c) + r->new_rows, &e)) fail_with(&e, EXIT_INPUT);
    run_skip_windows(r);
    if (is_model && !r->restored && data_has_chats(r->data))
        settings_fit_rows(&r->s, data_epoch_samples(r->data, s->seq));
}

void run_skip_windows(Run *r) {
    const Settings *s = &r->s;
    Error e;
    if (s->skip <= 0) return;
    run_announce(r, "choosing windows of", s->train, 2.0 * (double)data_tokens(r->data, DATA_TRAIN));
    if (!data_skip(r->data, s->seq, s->skip, &e)) fail_with(&e, EXIT_INPUT);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* How many ranks are a node (-zn); if that does not divide those of a resumed run, a host. */
static void find_nodes(Run *r) {
    Error e;
    const int ranks = r->parallel.ranks, divides = r->s.node > 0 && ranks % r->s.node == 0;
    r->node = ranks;
    if (ranks == 1 || r->s.node == 0) return;
    if (r->s.node > 0 && !divides && (!r->restored || settings_given(&r->s, "zn")))
        fail(EXIT_USAGE, "-zn %d: %d ranks are not nodes of %d ranks each. -zn must divide their number; -zn 0 "
             "shards over all", r->s.node, ranks, r->s.node);
    if (r->s.node > 0 && !divides) r->s.node = -1;
    if (divides) r->node = r->s.node;
    if (divides || r->s.level == 0 || r->s.level == 1) return;
    const int locals = r->launch.locals * r->local_devices.count;
    const int host = r->processes ? group_host_ranks(r->processes, &e) : locals && ranks % locals == 0 ? locals : ranks;
    if (!host && r->s.level >= 2)
        fail(EXIT_USAGE, "-z %d shards over the ranks of each host, but %s. -zn 0 shards over all ranks, -zn N over "
             "each N of them", r->s.level, e.text);
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
    GroupOptions o = { .launch = r->launch, .ranks = r->local_devices.count, .version = MOE_VERSION, .settings =
                       settings.at, .join_seconds = s->join_seconds, .silence_seconds = s->silence_seconds };
    r->parallel.ranks = r->local_devices.count * r->launch.processes;
    if (!s->check && !s->plans) {
        char *const secret = r->launch.processes > 1
            ? secret_find(&r->launch, s->out, launch_getenv, s->join_seconds, &e) : NULL;
        if (!secret && r->launch.processes > 1) fail_with(&e, EXIT_USAGE);
        o.secret = secret;
        if (!(r->processes = group_join(&o, &e))) fail_with(&e, EXIT_PEER);
        r->parallel.ranks = group_size(r->processes);
        free(secret);
    }
    r->parallel.ordered = s->ordered;
    r->records = s->record >= (r->parallel.ranks > 1 ? 2 : 1);
    r->parallel.by_matrix = settings_muon(s).momentum > 0;
    find_nodes(r);
    free(settings.at);
}
