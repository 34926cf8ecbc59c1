/* infer_moe.c: generates text with a trained model. Also measures perplexity on a file, answers
 * multiple-choice questions, and shows which expert processes which token.
 *
 *   load -> prompt -> prefill -> loop { draw a token, read it, print } -> speed
 *
 * main() is at the end. The loop: llmc/run/generate.c. Text in and out: llmc/run/stream.h. Views of
 * experts: llmc/run/view.h. stdout carries only the text; messages go to stderr. */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "llmc/base/random.h"
#include "llmc/data/kinds.h"
#include "llmc/data/meter.h"
#include "llmc/files/hf.h"
#include "llmc/model/batch.h"
#include "llmc/model/codes.h"
#include "llmc/model/pass.h"
#include "llmc/model/plan.h"
#include "llmc/model/relay.h"
#include "llmc/ranks/threads.h"
#include "llmc/run/converse.h"
#include "llmc/run/device.h"
#include "llmc/run/evaluate.h"
#include "llmc/run/web.h"

/* ---- options: one table (llmc/run/options.h) ------------------------------------------------- */

typedef struct {
    const char *prompt, *chat, *stop, *tokenizer, *file, *questions, *details, *device, *address;
    enum { GENERATE, CHAT, WEB } mode;
    enum { COLOR_AUTO, COLOR_ALWAYS, COLOR_NEVER } color;
    enum { WEIGHTS_AUTO, WEIGHTS_BF16, WEIGHTS_FP8 } weights;
    int     splits, tokens, sequences, context, echo, verbose, layer, top_k, port, gpus;
    float   temperature, top_p, min_p, penalty;
    int64_t seed;
} Settings;

static const Option table[] = {
#define FIELD(name) offsetof(Settings, name)
    { "text",     "i",  "prompt",        OPTION_TEXT,   FIELD(prompt),      "",           0, 0,       NULL,
      "prompt; -: read stdin; @name: read a file. In a chat: the system message" },
    { "text",     "n",  "tokens",        OPTION_INT,    FIELD(tokens),      "256",       -1, INT_MAX, NULL,
      "tokens to generate; 0: until the context is full; -1: no limit" },
    { "text",     "r",  "sequences",     OPTION_INT,    FIELD(sequences),   "1",          1, 4096,    NULL,
      "texts generated in parallel" },
    { "text",     "m",  "mode",          OPTION_CHOICE, FIELD(mode),        "generate",   0, 0,     "generate|chat|web",
      "chat answers every line of stdin; /help, /reset, /quit. web serves a page to talk to the model, and an API in "
      "OpenAI's forms" },
    { "text",     "ct", "chat-template", OPTION_TEXT,   FIELD(chat),        "",           0, 0,       NULL,
      "how a chat is written; not given: by the template in the folder; without one each line is continued. A Jinja "
      "file, a folder, or one of " CHAT_NAMES },
    { "text",     "st", "stop",          OPTION_TEXT,   FIELD(stop),        "",           0, 0,       NULL,
      "a text ends before this string (\\n: newline), or the first of several, [\"a\", \"b\"]; default where a chat "
      "continues lines: an empty line" },
    { "text",     "sp", "split-special-tokens", OPTION_INT, FIELD(splits),  "0",          0, 1,       NULL,
      "1: control tokens that a prompt, message or file spells out, such as <|im_end|>, are encoded as text; 0: as "
      "control tokens" },
    { "text",     "e",  "echo",          OPTION_INT,    FIELD(echo),        "1",          0, 1,       NULL,
      "1: print the prompt, too" },
    { "sampling", "t",  "temperature",   OPTION_FLOAT,  FIELD(temperature), "0.8",        0, 100,     NULL,
      "0: always the most likely token" },
    { "sampling", "p",  "top-p",         OPTION_FLOAT,  FIELD(top_p),       "0.95",       0, 1,       NULL,
      "draw from the most likely tokens with this total probability" },
    { "sampling", "mp", "min-p",         OPTION_FLOAT,  FIELD(min_p),       "0",          0, 1,       NULL,
      "draw from tokens with at least this fraction of the largest probability" },
    { "sampling", "k",  "top-k",         OPTION_INT,    FIELD(top_k),       "0",          0, INT_MAX, NULL,
      "draw from the k most likely tokens; 0: from all" },
    { "sampling", "rp", "repetition-penalty", OPTION_FLOAT, FIELD(penalty), "1",       0.01, 100,     NULL,
      "logits of tokens that the text has, prompt included, are divided by it, negative ones multiplied; 1: as they "
      "are" },
    { "sampling", "s",  "seed",          OPTION_LONG,   FIELD(seed),        "-1",        -1, 9e15,    NULL,
      "same seed, same text; -1: from the clock" },
    { "model",    "c",  "context",       OPTION_INT,    FIELD(context),     "0",          0, 1 << 24, NULL,
      "tokens the model sees; 0: as many as in training" },
    { "model",    "z",  "tokenizer",     OPTION_TEXT,   FIELD(tokenizer),   "",           0, 0,       NULL,
      "a tokenizer.json instead of the checkpoint's" },
    { "model",    "dv", "device",        OPTION_TEXT,   FIELD(device),      "auto",       0, 0,       NULL,
      "auto, cpu, cuda, or a device by name: cpu-bf16" },
    { "model",    "pe", "precision",     OPTION_CHOICE, FIELD(weights),     "auto",       0, 0,     "auto|bf16|fp8",
      "weights of experts, projections and head: fp8: coded in 8 bits (docs/numerics.md); bf16: in the device's type; "
      "auto: so, but experts in 4 bits (MXFP4) stay as they are" },
    { "model",    "ng", "gpus",          OPTION_INT,    FIELD(gpus),        "1",          1, 1024,    NULL,
      "distribute the layers over this many GPUs, for a model larger than one GPU (-dv cpu: the CPU stands for "
      "all)" },
    { "page",     "wa", "address",       OPTION_TEXT,   FIELD(address),     "127.0.0.1",  0, 0,       NULL,
      "address of this machine for -m web; at one that others can reach, the printed link contains a secret "
      "token" },
    { "page",     "wp", "port",          OPTION_INT,    FIELD(port),        "8080",       0, 65535,   NULL,
      "port of the page; 0: any that is free" },
    { "views",    "x",  "perplexity",    OPTION_TEXT,   FIELD(file),        "",           0, 0,       NULL,
      "instead of generating: perplexity and bits per byte of a file" },
    { "views",    "ev", "evaluate",      OPTION_TEXT,   FIELD(questions),   "",           0, 0,       NULL,
      "instead of generating: answer the multiple-choice questions of a file (HellaSwag, ARC, OpenBookQA, "
      "MMLU, or JSON of context, choices, answer)" },
    { "views",    "eo", "details",       OPTION_TEXT,   FIELD(details),     "",           0, 0,       NULL,
      "a file to write: for each question of -ev a line of JSON with the log-likelihood of every choice" },
    { "views",    "v",  "verbose",       OPTION_INT,    FIELD(verbose),     "1",          0, 3,       NULL,
      "0 quiet, 1 speed, 2 text colored by MLP expert, 3 each expert's favourite tokens" },
    { "views",    "vl", "layer",         OPTION_INT,    FIELD(layer),       "-1",        -1, 10000,   NULL,
      "the layer that -v 2 and -v 3 show, from 0; -1: the last" },
    { "views",    "co", "color",         OPTION_CHOICE, FIELD(color),       "auto",       0, 0,     "auto|always|never",
      "auto: on a terminal, unless NO_COLOR is set; without color [3] marks expert 3" },
#undef FIELD
};
enum { OPTIONS = sizeof table / sizeof *table };

static const char usage[] =
    "usage: infer_moe [checkpoint folder] [options]\n"
    "Generates text with a trained model. Without a folder: from out/best or out, or else the newest checkpoint "
    "below this folder.";

static void check_options(Options o) {
    static const char *const generating[] = { "i", "n", "r", "m", "ct", "st", "e", "t", "p", "mp", "k", "rp", "s" };
    const Settings *s = o.settings;
    const int chat = s->mode == CHAT, web = s->mode == WEB;
    const char *measures = *s->file ? "x" : *s->questions ? "ev" : NULL;
    for (size_t i = 0; measures && i < sizeof generating / sizeof *generating; i++)
        if (option_given(o, generating[i]))
            fail(EXIT_USAGE, "-%s measures a file and generates nothing: it cannot be combined with -%s", measures,
                 generating[i]);
    for (int i = 0; i < 3; i++) {
        static const char *const files[] = { "x", "ev", "eo" };
        if (option_given(o, files[i]) && !*(i == 0 ? s->file : i == 1 ? s->questions : s->details))
            fail(EXIT_USAGE, "-%s needs the name of a file", files[i]);
    }
    if (*s->file && *s->questions) fail(EXIT_USAGE, "-x and -ev measure different things: one at a time");
    if (*s->details && !*s->questions) fail(EXIT_USAGE, "-eo is for the questions of -ev");
    if (*s->questions && s->verbose > 1)
        fail(EXIT_USAGE, "-v %d shows the experts of a text: it cannot be combined with -ev", s->verbose);
    if (s->sequences > 1 && chat) fail(EXIT_USAGE, "a chat has one sequence: -m chat cannot be combined with -r");
    if (s->sequences > 1 && s->tokens < 0)
        fail(EXIT_USAGE, "sequences are printed one after another: with -n -1 the second (-r) would never be printed");
    if (s->sequences > 1 && s->verbose > 1)
        fail(EXIT_USAGE, "-v %d shows the experts of one sequence: it cannot be combined with -r", s->verbose);
    if (chat && !strcmp(s->prompt, "-"))
        fail(EXIT_USAGE, "a chat reads its lines from stdin: -m chat cannot be combined with -i -");
    if (web && s->sequences > 1)
        fail(EXIT_USAGE, "-m web serves one text to each request: it cannot be combined with -r");
    if (web && s->verbose > 1)
        fail(EXIT_USAGE, "the page of -m web shows the experts: it cannot be combined with -v %d", s->verbose);
    if (s->gpus > 1 && s->verbose > 1) fail(EXIT_USAGE, "-v %d shows the experts of a model on one device: it cannot "
                                            "be combined with -ng", s->verbose);
    if (s->gpus > 1 && web) fail(EXIT_USAGE, "the page of -m web shows the experts of a model on one device: it cannot "
                                 "be combined with -ng");
    if (!web && (option_given(o, "wa") || option_given(o, "wp")))
        fail(EXIT_USAGE, "-wa and -wp are for the page of -m web");
    if (chat && option_given(o, "e")) fail(EXIT_USAGE, "a chat prints no prompt: -m chat cannot be combined with -e");
    if (!chat && !web && *s->chat) fail(EXIT_USAGE, "-ct %s is for chats: -m chat or -m web", s->chat);
    if (*s->file && s->verbose == 2) fail(EXIT_USAGE, "-x prints no text to color: use -v 3, or -i @file -v 2");
    if (option_given(o, "vl") && s->verbose < 2) fail(EXIT_USAGE, "-vl is for the expert views: -v 2 or -v 3");
    if (option_given(o, "co") && s->verbose != 2) fail(EXIT_USAGE, "-co is for text colored by expert: -v 2");
}

typedef struct {
    Settings   s;
    TextStyle  style;
    char      *folder, **stops;
    Config     config;
    Tokenizer *tokenizer;               /* NULL: there is none, and text is ids */
    Generator  g;
    int        first_gpu;       /* the one that this thread drives; those after it have layers before its own (-ng) */
    Conversation talk;                  /* of -m chat; no template: lines are continued */
} Session;

static volatile sig_atomic_t interrupts;
static void on_interrupt(int signal_number) {
    (void)signal_number;
    if (++interrupts > 1) _exit(130);
}
static void listen_to_interrupts(void) { sigaction(SIGINT, &(struct sigaction){ .sa_handler = on_interrupt }, NULL); }

static void message(const Session *q, const char *format, ...) PRINTF(2, 3);
static void message(const Session *q, const char *format, ...) {
    va_list args;
    if (!q->s.verbose) return;
    fflush(stdout);
    va_start(args, format);
    text_vprint(stderr, format, args);
    va_end(args);
}

enum { GPT2_TOKENS = 50257 };

/* ---- load ------------------------------------------------------------------------------------ */

/* A missing tokenizer is replaced; one that is damaged or belongs to another model is an error. */
static Tokenizer *find_tokenizer(const Session *q) {
    Error e;
    Tokenizer *t;
    const int vocab = config_ids(&q->config);
    char *path = *q->s.tokenizer ? text_format("%s", q->s.tokenizer) : text_format("%s/tokenizer.json", q->folder);
    if (*q->s.tokenizer || is_there(path)) {
        if (!(t = tokenizer_load(path, &e))) fail_with(&e, EXIT_INPUT);
        if (tokenizer_vocab(t) > vocab)
            fail(EXIT_INPUT, "%s has %d tokens, the model only %d: it belongs to another model", path,
                 tokenizer_vocab(t), vocab);
    } else {
        t = vocab == 256 ? tokenizer_bytes() : NULL;
        warn("%s is missing: %s (-z names a tokenizer)", path,
             t ? "the 256 tokens are used as bytes" : "tokens are written and read as numbers");
    }
    free(path);
    if (t) tokenizer_split_controls(t, q->s.splits);
    return t;
}

/* The devices of a model, in the order of its layers; the caller drives the last of them. */
static int devices_of(const Model *m) { return m->relay ? relay_devices(m->relay) : 1; }
static const Model *device_model(const Model *m, int d) { return d < devices_of(m) - 1 ? relay_model(m->relay, d) : m; }
static double device_memory(const Session *q, const Model *m, int d) {
    return (double)(d < devices_of(m) - 1 ? relay_memory(m->relay, d) : q->g.dev->memory());
}
static void list_devices(const Session *q, const Model *m, int memory) {
    for (int d = 0; d < devices_of(m); d++) {
        const Model *x = device_model(m, d);
        const int number = d < devices_of(m) - 1 ? q->first_gpu + 1 + d : q->first_gpu;
        if (x->to - x->from > 1) fprintf(stderr, "layers %d to %d", x->from, x->to - 1);
        else fprintf(stderr, "layer %d", x->from);
        fprintf(stderr, " on %s %d: %.1f MB", q->g.dev->is_gpu ? "GPU" : "pretended device", number,
                (double)x->arena.total / 1e6);
        fprintf(stderr, memory ? " of %.1f MB free\n" : "\n", device_memory(q, m, d) / 1e6);
    }
}
/* The least number of GPUs like this one that would do; 0: none would. */
static int devices_enough(const Session *q, const Model *m) {
    size_t dealt = 0, each = 0;
    const double have = device_memory(q, m, devices_of(m) - 1);
    for (int d = 0; d < devices_of(m); d++) {
        const Arena *a = &device_model(m, d)->arena;
        const size_t own = a->category[MEM_WEIGHTS] + a->category[MEM_CACHE];
        dealt += own;
        if (a->total - own > each) each = a->total - own;
    }
    for (int n = 1; n <= q->config.layers && q->g.dev->is_gpu && !q->config.universal; n++)
        if ((double)each + 1.1 * (double)dealt / n <= have) return n;       /* 1.1: layers are not dealt out evenly */
    return 0;
}
static _Noreturn void out_of_memory(const Session *q, const Model *m) {
    const Arena *a = &m->arena;
    const int enough = devices_enough(q, m);
    if (m->relay) list_devices(q, m, 1);
    for (int i = 0; i < MEM_CATEGORIES && !m->relay; i++)
        if (a->category[i]) fprintf(stderr, "%12.1f MB  %s\n", (double)a->category[i] / 1e6, mem_category_name[i]);
    char more[64] = "";
    if (enough > devices_of(m)) snprintf(more, sizeof more, "-ng %d deals its layers out to %d GPUs. ", enough, enough);
    fail(EXIT_MEMORY, "%s does not have the %.1f MB that this needs%s. %s%s", q->g.dev->name, (double)a->total / 1e6,
         m->relay ? " on each device" : "", more,
         a->category[MEM_WEIGHTS] > a->total / 2
             ? q->g.dev->floatX_size > 2 ? "Most of it is weights: a bf16 device (-dv) halves them"
                                         : "Most of it is weights: on a GPU -pe fp8 halves them"
         : q->s.sequences > 1 ? "Fewer sequences (-r) or a shorter context (-c) need less"
         : "A shorter context (-c) needs less");
}

/* -pe: what weights are kept as. */
static void choose_weights(Session *q) {
    Model m;
    if (q->s.weights == WEIGHTS_FP8) q->config.weights = OF_FP8;
    if (q->s.weights != WEIGHTS_BF16 && hf_in_mxfp4(q->g.dev, &q->config, q->folder)) q->config.experts_in = OF_MXFP4;
    model_plan_inference(&m, q->g.dev, &q->config, 1, 1, 0, NULL);
    const Tensor *t = codes_misfit(&m);
    if (t)
        fail(EXIT_USAGE, "-pe fp8: 8 bits need rows of a multiple of 16 elements, and those of %s have %d. -pe bf16",
             t->name, codes_shape(t, 1));
    model_free(&m);
}
static void load(Session *q, const char *wanted) {
    Error e;
    char name[128], why_cpu[256];
    LocalDevices local = { .count = q->s.gpus };
    q->folder = hf_find_model(wanted, &e);
    if (!q->folder) fail(EXIT_CHECKPOINT, "%s%s", e.text, wanted ? "" : ". To train one: ./train_moe");
    if (!hf_load_config(q->folder, &q->config, &e)) fail_with(&e, EXIT_CHECKPOINT);
    config_pad_vocab(&q->config);
    q->g.dev = device_choose(q->s.device, &local, why_cpu);
    q->first_gpu = local.first;
    if (!hf_check_weights(q->g.dev, &q->config, q->folder, &e)) fail_with(&e, EXIT_CHECKPOINT);
    choose_weights(q);
    q->tokenizer = find_tokenizer(q);
    const int trained = q->config.context;
    if (!q->s.context) q->s.context = trained;
    if (q->s.context < 2) fail(EXIT_USAGE, "-c %d: a context of at least 2 tokens is needed", q->s.context);
    if (q->s.context > trained)
        warn("the model was trained for %d tokens: its output for longer contexts may be nonsense", trained);
    if ((int64_t)q->s.sequences * q->s.context > INT_MAX)
        fail(EXIT_USAGE, "-r %d times -c %d: at most %d positions", q->s.sequences, q->s.context, INT_MAX);
    if (q->s.gpus > 1) {
        const size_t cache = *q->s.file || *q->s.questions ? 0 : (size_t)q->s.sequences * (size_t)q->s.context;
        q->g.relay = relay_open(q->g.dev, local.first + 1, &q->config, q->s.gpus, cache, why_cpu);
        if (!q->g.relay)
            fail(EXIT_USAGE, "-ng %d: the layers of this model cannot be dealt out: %s", q->s.gpus, why_cpu);
    }
    config_descriptor(&q->config, name);
    message(q, "model %s (%s), context %d, %s%s%s\n", q->folder, name, q->s.context, q->g.dev->name,
            q->config.weights ? ", weights in 8 bits" : "", q->config.experts_in ? ", experts in 4 bits" : "");
}

static int load_part(Model *m, void *session) {
    Error e;
    const Session *q = session;
    if (!hf_load_weights(m, q->folder, &e)) fail_with(&e, EXIT_CHECKPOINT);
    return 1;
}
/* Into an allocated model; then its experts can be watched. */
static void load_weights(Session *q, Model *m) {
    const Settings *s = &q->s;
    const int layers = q->config.layers, shown = s->layer < 0 ? layers - 1 : s->layer;
    if (m->relay && s->verbose) list_devices(q, m, 0);
    load_part(m, q);
    if (m->relay) relay_each(m->relay, load_part, q);
    if (s->verbose < 2) return;
    if (shown >= layers) fail(EXIT_USAGE, "-vl %d: the model has layers 0 to %d", shown, layers - 1);
    if (!m->routers) fail(EXIT_USAGE, "-v %d shows experts, but this model is dense", s->verbose);
    if (q->config.attention_experts == 1 && !config_has_experts(&q->config, shown))
        fail(EXIT_USAGE, "-v %d shows experts, but layer %d has none: -vl chooses another", s->verbose, shown);
    view_open(&q->g.view, q->g.dev, m, shown);
}
static void report_view(const Session *q) {
    if (q->s.verbose == 2) view_legend(&q->g.view, q->style.colored);
    if (q->s.verbose == 3) view_favourites(&q->g.view, q->tokenizer);
}

/* ---- generate -------------------------------------------------------------------------------- */

static void open_generator(Session *q, int capacity) {
    const Settings *s = &q->s;
    Generator *g = &q->g;
    g->sampler = (Sampler){ .temperature = s->temperature, .top_p = s->top_p, .min_p = s->min_p, .top_k = s->top_k };
    g->penalty = s->penalty;
    g->seed = (uint64_t)s->seed;
    g->end_tokens = hf_end_tokens(q->folder, q->tokenizer, g->end_token);
    if (q->talk.chat.form) {
        const char *end = converse_end(&q->talk, q->tokenizer, g->end_token, &g->end_tokens);
        q->style.stops = q->stops = stops_add(q->stops, end, strlen(end));
        q->style.answers = 1;
    }
    g->sequences = s->sequences;
    g->interrupted = &interrupts;
    if (!generator_open(g, &q->config, capacity, &q->style)) out_of_memory(q, &g->d.model);
    load_weights(q, &g->d.model);
    listen_to_interrupts();
}

static void report(const Session *q) {
    if (q->s.verbose) generator_report(&q->g, stderr);
    if (q->g.view.main) report_view(q);
}

static void generate(Session *q) {
    size_t bytes;
    int *ids;
    char *text = prompt_read(q->s.prompt, &bytes);
    const int context = q->s.context, n = q->s.tokens, B = q->s.sequences;
    const int count = prompt_encode(q->tokenizer, config_ids(&q->config), text, bytes, 1, context, &ids);
    open_generator(q, n > 0 && n < context - count ? count + n : context);
    generator_read(&q->g, ids, count, q->s.echo ? text : NULL, bytes);
    if (B > 1) printf("--- 1 of %d\n", B);
    stream_print(&q->g.stream[0], 0);
    generator_write(&q->g, n, n >= 0);
    for (int b = 0; b < B; b++) {
        if (b) printf("--- %d of %d\n", b + 1, B);
        stream_print(&q->g.stream[b], 1);
        if (q->g.stream[b].last != '\n') putchar('\n');
    }
    report(q);
    generator_close(&q->g);
    free(ids);
    free(text);
}

/* ---- chat: lines of stdin, as the chat template writes them, or as they are without it ---- */

static void end_answer(const Stream *o) {
    if (o->last != '\n') putchar('\n');
    stream_flush();
}
/* What -sp makes of control tokens that text spells out. */
static const char *controls_become(const Session *q) {
    return q->s.splits ? "text" : "control tokens (-sp 1: as text)";
}

static void answer_message(Session *q, const char *line, size_t bytes) {
    Error e;
    const int forgotten = q->talk.forgotten;
    const size_t controls = q->talk.controls;
    while (bytes && (line[bytes - 1] == '\n' || line[bytes - 1] == '\r')) bytes--;
    if (!bytes) return;
    if (!converse_say(&q->talk, &q->g, line, bytes, q->s.tokens, &e)) { warn("%s", e.text); return; }
    end_answer(&q->g.stream[0]);
    if (q->talk.controls > controls)
        message(q, "%zu control tokens in messages are read as %s\n", q->talk.controls - controls,
                controls_become(q));
    if (q->talk.forgotten > forgotten)
        message(q, "no room for an answer in the context of %d tokens: the oldest %d messages are forgotten\n",
                q->g.capacity, q->talk.forgotten - forgotten);
}

static void continue_line(Session *q, const char *line, size_t bytes) {
    Generator *g = &q->g;
    Stream *o = &g->stream[0];
    int *ids;
    const int count = prompt_encode(q->tokenizer, config_ids(&q->config), line, bytes, !g->d.length,
                                    g->capacity / 2, &ids);
    stream_restart(o);
    if (count) generator_read(g, ids, count, NULL, bytes);
    generator_write(g, q->s.tokens, 1);
    stream_print(o, 1);
    end_answer(o);
    free(ids);
}

static int is_command(const char *line, const char *command) {
    const size_t n = strlen(command);
    return !strncmp(line, command, n) && !line[n + strspn(line + n, " \r\n")];
}

/* The folder with the chat template: that of the tokenizer of -z, else the model's. free() it. */
static char *template_folder(const Session *q) {
    char *path = text_format("%s", *q->s.tokenizer ? q->s.tokenizer : q->folder),
        *slash = *q->s.tokenizer ? strrchr(path, '/') : NULL;
    if (slash) *slash = 0;
    else if (*q->s.tokenizer) strcpy(path, ".");
    return path;
}
/* The chat template of -ct or of the folder. An unknown one is an error: answers would be bad. */
static void find_template(Session *q) {
    Error e;
    size_t bytes;
    char *system = prompt_read(q->s.prompt, &bytes), *path = template_folder(q);
    if (!converse_open(&q->talk, q->s.chat, path, system, &e)) fail_with(&e, EXIT_USAGE);
    if (!q->talk.chat.form && q->talk.chat.unknown)
        fail(EXIT_INPUT, "%s; -ct NAME chooses one of " CHAT_NAMES, q->talk.chat.why);
    if (q->talk.chat.form && !q->tokenizer) fail(EXIT_INPUT, "a chat needs a tokenizer (-z)");
    free(system);
    free(path);
}

static void help_in_chat(const Session *q) {
    fprintf(stderr, "A line is %s.\n"
            "  /reset   forgets the conversation\n"
            "  /quit    ends, as does the end of the input\n"
            "  Ctrl-C   interrupts an answer; twice: ends\n"
            "Options of the command line set the rest: ./infer_moe --help\n", q->talk.chat.form ? "a message, which is "
            "answered" : "text, which is continued up to the stop string (-st)");
}
static void chat(Session *q) {
    Generator *g = &q->g;
    size_t bytes;
    int *ids = NULL;
    Text text = { 0 };
    char *prompt = prompt_read(q->s.prompt, &bytes);
    const int talks = q->talk.chat.form != NULL;
    const int count = bytes
        && !talks ? prompt_encode(q->tokenizer, config_ids(&q->config), prompt, bytes, 1, q->s.context, &ids) : 0;
    const int interactive = isatty(0);
    open_generator(q, q->s.context);
    if (interactive) message(q, "%s%s; /reset forgets all, /quit ends, Ctrl-C interrupts, /help\n",
                             talks ? "chat template " : "the model continues every line", chat_name(&q->talk.chat));
    for (;;) {
        if (count && !g->d.length) generator_read(g, ids, count, NULL, bytes);
        if (interactive) fputs("> ", stderr);
        errno = 0;
        const long n = stdin_read(&text, 1);
        char *const line = text.at;
        if (n < 0 && errno == EINTR) {
            clearerr(stdin);
            fputs("\n(Ctrl-C again, or /quit, ends)\n", stderr);
            continue;
        }
        if (n < 0 && ferror(stdin)) fail(EXIT_DISK, "stdin cannot be read: %s", strerror(errno));
        if (n < 0 || is_command(line, "/quit")) break;
        interrupts = 0;
        if (is_command(line, "/help")) help_in_chat(q);
        else if (is_command(line, "/reset")) { generator_reset(g); converse_reset(&q->talk); }
        else if (talks) answer_message(q, line, (size_t)n);
        else continue_line(q, line, (size_t)n);
    }
    if (interactive) fputc('\n', stderr);
    interrupts = 0;
    report(q);
    generator_close(g);
    free_each(text.at, ids, prompt);
}

/* ---- web: a page to talk to the model -------------------------------------------------------- */

static void serve(Session *q, Options o) {
    Error e;
    size_t bytes;
    char *prompt = prompt_read(q->s.prompt, &bytes), *path = template_folder(q);
    Chat chat = { 0 };
    if (q->tokenizer && !chat_open(&chat, q->s.chat, path, &e)) fail_with(&e, EXIT_USAGE);
    free(path);
    if (!chat.form && chat.unknown)
        warn("%s; -ct NAME chooses one of " CHAT_NAMES ". The page continues texts only", chat.why);
    chat.today = 1;
    open_generator(q, q->s.context);
    signal(SIGTERM, on_interrupt);
    char *name = api_name(q->folder);
    const Web w = { .address = q->s.address, .port = q->s.port, .g = &q->g, .verbose = q->s.verbose,
                    .api = { .name = name, .options = o, .tokenizer = q->tokenizer, .chat = &chat, .prompt = prompt } };
    message(q, "Ctrl-C ends the server\n");
    if (!web_serve(&w, &e)) fail(EXIT_USAGE, "%s (-wa, -wp)", e.text);
    interrupts = 0;
    generator_close(&q->g);
    chat_close(&chat);
    free_each(name, prompt);
}

/* ---- perplexity ------------------------------------------------------------------------------ */

/* The file is cut into consecutive windows of the model's context. Within a window every token is
 * predicted from those before it; the last one predicts the first token of the next window. */
static void measure_perplexity(Session *q) {
    const Device *dev = q->g.dev;
    Error e;
    Model m;
    size_t bytes, first_bytes;
    int *ids;
    if (!q->tokenizer) fail(EXIT_INPUT, "-x needs a tokenizer (-z)");
    char *text = file_read(q->s.file, &bytes, &e);
    if (!text) fail(EXIT_INPUT, "-x %s", e.text);
    if (kind_is_json(text, bytes))
        warn("%s looks like JSON; what is measured is all of its text, with names and braces", q->s.file);
    Controls controls = { 0 };
    const size_t own = tokenizer_encode_part(q->tokenizer, text, 0, bytes, &ids, NULL, &controls),
        tokens = tokenizer_begin(q->tokenizer, &ids, own, 0);
    if (controls.count)
        warn("%s spells out %zu control tokens, encoded as %s", q->s.file, controls.count,
             controls_become(q));
    if (tokens < 2) fail(EXIT_INPUT, "-x %s: %zu tokens; at least two are needed", q->s.file, tokens);
    free(tokenizer_decode(q->tokenizer, ids, 1, &first_bytes));

    const size_t N = tokens - 1, context = (size_t)q->s.context, T = N < context ? N : context;
    const size_t windows = N / T, most = 4096 / T > 1 ? 4096 / T : 1, B = windows < most ? windows : most;
    model_plan_dealt(&m, dev, &q->config, (int)B, (int)T, 0, q->g.relay);
    if (!model_allocate(&m)) out_of_memory(q, &m);
    load_weights(q, &m);

    const double start = now();
    Meter meter;
    double loss, sum = 0;
    meter_begin(&meter, q->s.verbose, "measuring", (int64_t)N, "tokens");
    for (size_t i = 0, n; i < N; i += n) {                  /* B windows, or one, or the rest of the file */
        const size_t left = N - i, t = left < T ? left : T, b = left >= B * T ? B : 1;
        n = b * t;
        model_batch(&m, ids + i, ids + i + 1, (int)b, (int)t);
        model_forward(&m);
        model_loss(&m, 0);
        dev->reals_to_double(&loss, m.loss_sum, 1);
        sum += loss;
        if (q->g.view.main) view_read(&q->g.view, ids + i, (int)n, NULL);
        meter_add(&meter, (int64_t)n);
    }
    meter_clear(&meter);
    const double mean = sum / (double)N, time = now() - start;
    if (!isfinite(mean)) fail(EXIT_NUMERICS, "the loss of %s is not finite: the weights are damaged", q->s.file);
    text_print(stdout, "%s: tokens %zu  loss %.6f nats/token  perplexity %.4f  bits/byte %.6f\n", q->s.file, N, mean,
           exp(mean), sum / log(2) / (double)(bytes - first_bytes));
    message(q, "measured in %.1f s, %.0f tokens/s, in windows of %zu tokens\n", time, (double)N / time, T);
    if (q->g.view.main) report_view(q);
    view_close(&q->g.view);
    model_free(&m);
    free(ids);
    free(text);
}

/* ---- questions ------------------------------------------------------------------------------- */

/* A standard error needs answers of both kinds, and enough of them. 1: it is printed. */
static int print_accuracy(const char *name, int64_t right, int64_t questions) {
    enum { ENOUGH = 20 };
    const int known = questions >= ENOUGH && right && right < questions;
    printf("  %s %.4f", name, (double)right / (double)questions);
    if (known) printf(" +- %.4f", evaluate_error(right, questions));
    else printf(" (%lld of %lld)", (long long)right, (long long)questions);
    return known;
}
static int print_evaluation(const Session *q, const Questions *all, const Evaluation *v) {
    static const char *const names[MEASURES] = { "accuracy", "per token", "per character" };
    int errors = 0;
    text_print(stdout, "%s: questions %lld", q->s.questions, (long long)v->questions);
    if (v->questions < (int64_t)all->count) printf(" of %zu, then interrupted", all->count);
    for (int by = 0; by < MEASURES && v->questions; by++)
        if (by != PER_CHARACTER || v->has_characters)
            errors |= print_accuracy(names[by], v->right[by], v->questions);
    putchar('\n');
    return errors;
}
/* The file is read and checked before anything is allocated. */
static void answer_questions(Session *q) {
    Error e;
    Model m;
    Questions all;
    Evaluation v;
    size_t cut;
    FileWriter *details = NULL;
    const Settings *s = &q->s;
    if (!questions_read(&all, s->questions, q->tokenizer, config_ids(&q->config), &e)
        || !questions_cut(&all, s->questions, s->context, &cut, &e)) fail(EXIT_INPUT, "-ev %s", e.text);
    if (cut) warn("%zu questions are longer than the %d tokens that the model sees (-c): the beginnings of their "
                  "contexts are cut", cut, s->context);
    if (all.binary && q->tokenizer && tokenizer_vocab(q->tokenizer) != GPT2_TOKENS)
        warn("%s has tokens of GPT-2, but the model's tokenizer is another: the result means nothing", s->questions);
    if (*s->details && !(details = file_create(s->details, &e))) fail(EXIT_DISK, "-eo %s", e.text);
    evaluate_plan(&m, q->g.dev, &q->config, &all, q->g.relay);
    if (!model_allocate(&m)) out_of_memory(q, &m);
    load_weights(q, &m);
    listen_to_interrupts();
    const double start = now();
    if (!evaluate(&m, &all, &interrupts, s->verbose > 0, details, &v, &e)) fail(EXIT_NUMERICS, "-ev %s", e.text);
    if (details && !file_finish(details, &e)) fail(EXIT_DISK, "-eo %s", e.text);
    const int errors = print_evaluation(q, &all, &v);
    message(q, "answered in %.1f s, %.1f questions/s%s\n", now() - start, (double)v.questions / (now() - start),
            errors ? "; +- is one standard error" : "");
    model_free(&m);
    questions_free(&all);
}

/* ---- main ------------------------------------------------------------------------------------ */

static const struct { const char *key, *letter, *drawn; } follows[] = {
    { "temperature", "t", "1" }, { "top_p", "p", "1" }, { "top_k", "k", "50" }, { "min_p", "mp", NULL },
    { "repetition_penalty", "rp", NULL } };
/* What generation_config.json says besides, other than what changes nothing, is named. */
static void name_unread(const JsonValue *root) {
    /* read elsewhere, or of no effect on which tokens are drawn */
    static const char *const harmless[] = { "do_sample", "eos_token_id", "stop_strings", "bos_token_id", "pad_token_id",
        "decoder_start_token_id", "max_length", "max_new_tokens", "max_time", "length_penalty", "early_stopping",
        "renormalize_logits", "use_cache", "cache_implementation", "cache_config", "prefill_chunk_size", "low_memory",
        "compile_config", "disable_compile", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
        "assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind", "target_lookbehind",
        "prompt_lookup_num_tokens", "max_matching_ngram_size", "return_legacy_cache", "return_dict_in_generate",
        "num_return_sequences", "transformers_version", "trust_remote_code", "remove_invalid_values" },
        *const neutral_at_1[] = { "typical_p", "top_h", "num_beams", "num_beam_groups", "guidance_scale",
                                  "encoder_repetition_penalty" };
    for (const JsonValue *v = json_first(root); v; v = v->next) {
        const int is_number = json_is(v, JSON_INT) || json_is(v, JSON_DOUBLE);
        double neutral = 0;
        int known = *v->key == '_' || !strncmp(v->key, "output_", 7);
        for (size_t i = 0; i < sizeof follows / sizeof *follows; i++) known |= !strcmp(v->key, follows[i].key);
        for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) known |= !strcmp(v->key, harmless[i]);
        for (size_t i = 0; i < sizeof neutral_at_1 / sizeof *neutral_at_1; i++)
            if (!strcmp(v->key, neutral_at_1[i])) neutral = 1;
        if (known || json_is(v, JSON_NULL) || (json_is(v, JSON_BOOL) && !json_bool(v, 0)) || (is_number
            && json_double(v, neutral) == neutral) || (!is_number && !json_is(v, JSON_BOOL) && !v->length)) continue;
        warn("generation_config.json: %.80s is not followed; it is for programs that read it, such as Transformers",
             v->key);
    }
}
/* Settings of sampling in the folder's generation_config.json are defaults, as they are in
 * Transformers: so are those that the file does not have, if it says that tokens are drawn. */
static void follow_folder(Session *q, Options o) {
    Error e;
    Text said = { 0 };
    int readable = 1;
    Json *json = json_read_beside(q->folder, "generation_config.json", &readable, &e);
    if (!readable) fail_with(&e, EXIT_INPUT);
    const JsonValue *root = json ? json_root(json) : NULL, *draws = json_get(root, "do_sample");
    const int greedy = draws && !json_bool(draws, 1);
    for (size_t i = 0; i < sizeof follows / sizeof *follows; i++) {
        const Option *row = option_row(o, follows[i].letter);
        const JsonValue *v = json_get(root, follows[i].key);
        const int is_given = v && !json_is(v, JSON_NULL), is_limit = strcmp(follows[i].letter, "rp") != 0;
        char value[64];
        if (option_given(o, row->letter) || (greedy && is_limit && i) || (!is_given && !greedy && !draws)) continue;
        if (greedy && !i) options_default(o, "t", "0");
        else if (is_given && !option_read(row, o.settings, v, &e))
            fail(EXIT_INPUT, "%s/generation_config.json: %s: %s; -%s sets another", q->folder, follows[i].key, e.text,
                 row->letter);
        else if (!is_given && follows[i].drawn) options_default(o, row->letter, follows[i].drawn);
        else if (!is_given) continue;
        option_value(row, o.settings, value, sizeof value);
        text_add(&said, "%s%s %s (-%s%s)", said.length ? ", " : "", row->name, value, row->letter,
                 is_given || greedy ? "" : ", Transformers' default");
    }
    const JsonValue *stops = json_get(root, "stop_strings"),
        *stop = json_is(stops, JSON_ARRAY) ? json_first(stops) : stops;
    for (; stop && !option_given(o, "st"); stop = stop == stops ? NULL : stop->next) {
        if (!json_is(stop, JSON_STRING) || !stop->length) continue;
        q->stops = stops_add(q->stops, stop->is.string, stop->length);
        text_add(&said, "%sstop %s (-st)", said.length ? ", " : "", stop->is.string);
    }
    if (said.length) message(q, "as in generation_config.json: %s\n", said.at);
    name_unread(root);
    json_free(json);
    free(said.at);
}

/* What follows from the options and the terminal: stop strings, a seed from the clock, colors. */
static void prepare(Session *q, Options o) {
    Settings *s = &q->s;
    if (s->mode == CHAT) find_template(q);
    const char *stop = s->mode == CHAT && !q->talk.chat.form && !option_given(o, "st") ? "\\n\\n" : s->stop;
    const char *none = getenv("NO_COLOR");
    q->stops = stops_option(q->stops, stop);
    const int web = s->mode == WEB, from_clock = s->seed < 0 && !web;     /* the page: a new one for each text */
    if (from_clock) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        s->seed = (int64_t)(random_key((uint64_t)t.tv_sec, (uint64_t)t.tv_nsec) % 1000000000);
    }
    if (!*s->file && !*s->questions && !web && (from_clock || s->verbose))
        fprintf(stderr, "seed %lld\n", (long long)s->seed);
    const int terminal = isatty(1), colors = terminal && !(none && *none);
    q->style = (TextStyle){ .tokenizer = q->tokenizer, .stops = q->stops, .marked = s->verbose == 2,
                            .terminal = terminal,
                            .colored = s->color == COLOR_ALWAYS || (s->color == COLOR_AUTO && colors) };
}

int main(int argc, char **argv) {
    static Session session;
    Session *q = &session;
    char given[OPTIONS];
    const Options options = { table, OPTIONS, &q->s, given, NULL };
    const char *folder = NULL;
    process_protect();
    threads_settle(argv);
    options_parse(options, argc, argv, usage, &folder, 1);
    check_options(options);
    load(q, folder);
    if (!*q->s.file && !*q->s.questions) follow_folder(q, options);
    prepare(q, options);

    if (*q->s.file) measure_perplexity(q);
    else if (*q->s.questions) answer_questions(q);
    else if (q->s.mode == CHAT) chat(q);
    else if (q->s.mode == WEB) serve(q, options);
    else generate(q);

    relay_close(q->g.relay);
    converse_close(&q->talk);
    tokenizer_free(q->tokenizer);
    free(q->folder);
    stops_free(q->stops);
    stream_flush();
    if (ferror(stdout)) fail(EXIT_DISK, "cannot write the text: %s", strerror(errno));
    return interrupts ? 130 : EXIT_DONE;
}
