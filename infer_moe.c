/* infer_moe.c: text from a trained model. Load; read the prompt (prefill); then again and again:
 * sample a token, read it (decode). Also what a trained model is asked besides text: the perplexity of
 * a file, and which expert reads which token.
 *
 * stdout carries the text and nothing else, so it can be piped; what the program has to say about it goes to stderr.
 * The text of sequence b is a function of the weights, the prompt, the sampling options and (seed, b). */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "llmc/model/decode.h"
#include "llmc/run/device.h"
#include "llmc/files/hf.h"
#include "llmc/run/options.h"
#include "llmc/base/random.h"
#include "llmc/run/view.h"
#include "llmc/base/text.h"
#include "llmc/ranks/threads.h"

/* ---- options: one table (llmc/run/options.h) --------------------------------------------------------------- */

typedef struct {
    const char *prompt, *mode, *stop, *tokenizer, *file, *device, *color;
    int     tokens, sequences, context, echo, verbose, layer, top_k;
    float   temperature, top_p, min_p;
    int64_t seed;
} Settings;

static const Option table[] = {
#define FIELD(name) offsetof(Settings, name)
    { "text",     "i",  "prompt",      OPTION_TEXT,  FIELD(prompt),      "",         0, 0, NULL, "prompt; - reads stdin, @file a file" },
    { "text",     "n",  "tokens",      OPTION_INT,   FIELD(tokens),      "256",     -1, INT_MAX, NULL,
      "tokens to generate; 0: until the context is full, -1: endless" },
    { "text",     "r",  "sequences",   OPTION_INT,   FIELD(sequences),   "1",        1, 4096, NULL, "texts generated side by side" },
    { "text",     "m",  "mode",        OPTION_TEXT,  FIELD(mode),        "generate", 0, 0, "generate|chat", "chat answers every line of stdin; /reset, /quit" },
    { "text",     "st", "stop",        OPTION_TEXT,  FIELD(stop),        "",         0, 0, NULL,
      "end a text where this would appear (\\n: newline); in chat an empty line" },
    { "text",     "e",  "echo",        OPTION_INT,   FIELD(echo),        "1",        0, 1, NULL, "1: print the prompt too" },
    { "sampling", "t",  "temperature", OPTION_FLOAT, FIELD(temperature), "0.8",      0, 100, NULL, "0: always the most likely token" },
    { "sampling", "p",  "top-p",       OPTION_FLOAT, FIELD(top_p),       "0.95",     0, 1, NULL,
      "of the most likely tokens that together have this probability" },
    { "sampling", "mp", "min-p",       OPTION_FLOAT, FIELD(min_p),       "0",        0, 1, NULL, "of tokens with this share of the largest probability" },
    { "sampling", "k",  "top-k",       OPTION_INT,   FIELD(top_k),       "0",        0, INT_MAX, NULL, "of the k most likely tokens; 0: of all" },
    { "sampling", "s",  "seed",        OPTION_LONG,  FIELD(seed),        "-1",      -1, 9e15, NULL, "same seed, same text; -1: from the clock" },
    { "model",    "c",  "context",     OPTION_INT,   FIELD(context),     "0",        0, 1 << 24, NULL, "tokens the model sees; 0: what it was trained for" },
    { "model",    "z",  "tokenizer",   OPTION_TEXT,  FIELD(tokenizer),   "",         0, 0, NULL, "another tokenizer.json than the checkpoint's" },
    { "model",    "dv", "device",      OPTION_TEXT,  FIELD(device),      "auto",     0, 0, NULL, "auto, cpu, cuda, or by name: cpu-bf16" },
    { "views",    "x",  "perplexity",  OPTION_TEXT,  FIELD(file),        "",         0, 0, NULL,
      "instead of generating: perplexity and bits per byte of a file" },
    { "views",    "v",  "verbose",     OPTION_INT,   FIELD(verbose),     "1",        0, 3, NULL,
      "0 quiet, 1 speed, 2 text colored by MLP expert, 3 each expert's favourite tokens" },
    { "views",    "vl", "layer",       OPTION_INT,   FIELD(layer),       "-1",      -1, 10000, NULL, "whose experts -v 2 and -v 3 show, from 0; -1: the last" },
    { "views",    "co", "color",       OPTION_TEXT,  FIELD(color),       "auto",     0, 0,
      "auto|always|never", "auto: on a terminal, unless NO_COLOR is set; else [3] marks expert 3" },
#undef FIELD
};
enum { OPTIONS = sizeof table / sizeof *table };

static const char usage[] =
    "usage: infer_moe [checkpoint folder] [options]\n"
    "Text from a trained model; without a folder, from out/best or out, or else the newest checkpoint "
    "below this folder.";

static void check_options(const Settings *s, const char *given) {
    static const char *const generating[] = { "i", "n", "r", "m", "st", "e", "t", "p", "mp", "k", "s" };
    const int chat = !strcmp(s->mode, "chat");
    for (size_t i = 0; *s->file && i < sizeof generating / sizeof *generating; i++)
        if (option_given(table, OPTIONS, given, generating[i]))
            fail(EXIT_USAGE, "-x measures a file and generates nothing: -%s does not go with it", generating[i]);
    if (option_given(table, OPTIONS, given, "x") && !*s->file) fail(EXIT_USAGE, "-x needs the name of a file");
    if (s->sequences > 1 && chat)
        fail(EXIT_USAGE, "a chat has one sequence: -r does not go with -m chat");
    if (s->sequences > 1 && s->tokens < 0)
        fail(EXIT_USAGE, "sequences are printed one after another: -n -1 never comes to the second (-r)");
    if (s->sequences > 1 && s->verbose > 1)
        fail(EXIT_USAGE, "-v %d shows the experts of one sequence: -r does not go with it", s->verbose);
    if (chat && !strcmp(s->prompt, "-"))
        fail(EXIT_USAGE, "a chat reads its lines from stdin: -i - does not go with -m chat");
    if (chat && option_given(table, OPTIONS, given, "e"))
        fail(EXIT_USAGE, "a chat has no prompt to print: -e does not go with -m chat");
    if (*s->file && s->verbose == 2)
        fail(EXIT_USAGE, "-x prints no text to color: use -v 3, or -i @file -v 2");
    if (option_given(table, OPTIONS, given, "vl") && s->verbose < 2)
        fail(EXIT_USAGE, "-vl is for the expert views: -v 2 or -v 3");
    if (option_given(table, OPTIONS, given, "co") && s->verbose != 2)
        fail(EXIT_USAGE, "-co is for text colored by expert: -v 2");
}

/* ---- what all parts share ------------------------------------------------------------------------------ */

typedef struct {                /* a text on its way out */
    Text   text, paint;         /* bytes not yet printed; (int) the expert of each */
    size_t prompt;              /* how many of them are prompt, where no stop string is looked for */
    int    strip;               /* at the start of a text: some tokenizers put a space there that is not part of it */
    int    done, color;         /* ended; the expert whose color is on, -1: none */
    char   last;                /* the last byte printed */
} Stream;

typedef struct {
    Settings   s;
    char      *folder;
    Config     config;
    Tokenizer *tokenizer;               /* NULL: there is none, and text is ids */
    const Device *dev;
    View       view;                    /* main NULL: no experts are watched */
    Decoder    d;
    Stream    *stream;                  /* (r) */
    int       *window;                  /* (r,room) the tokens in the cache */
    int        capacity;                    /* positions of the cache */
    int        rounds, slides;          /* times the cache was emptied (the sampler draws anew); because it was full */
    char      *stop;
    size_t     stop_bytes;
    int        colored, terminal;
    int64_t    prompt_tokens, steps, tokens;    /* read; passes of decoding, and tokens they made in all sequences */
    int64_t    positions;                       /* of the cache that these passes have looked at, in each sequence */
    double     prompt_time, time;
} Run;

static void say(const Run *r, const char *format, ...) PRINTF(2, 3);
static void say(const Run *r, const char *format, ...) {
    va_list args;
    if (!r->s.verbose) return;
    fflush(stdout);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
}

/* ---- load ---------------------------------------------------------------------------------------------- */

static int has_model(const char *folder) {
    static const char *const weights[] = { "model.safetensors", "model.safetensors.index.json" };
    int found = 0;
    for (int i = 0; i < 2; i++) {
        char *config = text_format("%s/config.json", folder), *path = text_format("%s/%s", folder, weights[i]);
        found |= is_file(config) && is_file(path);
        free(config);
        free(path);
    }
    return found;
}

static int later(struct timespec a, struct timespec b) {
    return a.tv_sec > b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec > b.tv_nsec);
}

/* The folder below this one whose weights were written last. */
static char *newest_model(void) {
    static const char *const patterns[] = { "*/model.safetensors", "*/best/model.safetensors" };
    struct timespec latest = { 0 };
    char *folder = NULL;
    for (int k = 0; k < 2; k++) {
        glob_t found;
        struct stat s;
        if (glob(patterns[k], 0, NULL, &found)) continue;
        for (size_t i = 0; i < found.gl_pathc; i++) {
            char *path = text_format("%s", found.gl_pathv[i]);
            path[strlen(path) - strlen("/model.safetensors")] = 0;
            if (has_model(path) && !stat(found.gl_pathv[i], &s) && (!folder || later(s.st_mtim, latest))) {
                free(folder);
                folder = path;
                latest = s.st_mtim;
            } else free(path);
        }
        globfree(&found);
    }
    return folder;
}

static char *find_model(const char *asked) {
    char *best = text_format("%s/best", asked ? asked : "out"), *folder = NULL;
    if (asked && has_model(asked)) folder = text_format("%s", asked);
    else if (has_model(best)) folder = text_format("%s", best);
    else if (!asked) folder = has_model("out") ? text_format("out") : newest_model();
    if (!folder && asked)
        fail(EXIT_CHECKPOINT, "%s: %s; a checkpoint is a folder with config.json and model.safetensors",
             asked, is_folder(asked) ? "there is no model in this folder"
                  : is_file(asked) ? "this is a file" : "no such folder");
    if (!folder)
        fail(EXIT_CHECKPOINT, "there is no model here, neither in out/best or out nor in any other folder. "
                              "To train one: ./train_moe");
    free(best);
    return folder;
}

/* A tokenizer that is missing can be done without; one that is damaged or belongs to another model cannot. */
static Tokenizer *find_tokenizer(const Run *r) {
    Error e;
    Tokenizer *t;
    const int vocab = r->config.vocab;
    char *path = *r->s.tokenizer ? text_format("%s", r->s.tokenizer) : text_format("%s/tokenizer.json", r->folder);
    if (*r->s.tokenizer || is_file(path)) {
        if (!(t = tokenizer_load(path, &e))) fail(EXIT_INPUT, "%s", e.text);
        if (tokenizer_vocab(t) > vocab)
            fail(EXIT_INPUT, "%s has %d tokens, the model only %d: it belongs to another model", path,
                 tokenizer_vocab(t), vocab);
    } else {
        t = vocab == 256 ? tokenizer_bytes() : NULL;
        warn("%s is not there: %s (-z names a tokenizer)", path,
             t ? "the 256 tokens are taken for bytes" : "tokens are written and read as numbers");
    }
    free(path);
    return t;
}

static _Noreturn void out_of_memory(const Run *r, const Arena *a) {
    for (int i = 0; i < MEM_CATEGORIES; i++)
        if (a->category[i]) fprintf(stderr, "%12.1f MB  %s\n", (double)a->category[i] / 1e6, mem_category_name[i]);
    fail(EXIT_MEMORY, "%s does not have the %.1f MB that this takes. %s", r->dev->name, (double)a->total / 1e6,
         a->category[MEM_WEIGHTS] > a->total / 2 ? "Most of it is weights: a bf16 device (-dv) halves them"
         : r->s.sequences > 1 ? "Fewer sequences (-r) or a shorter context (-c) take less"
         : "A shorter context (-c) takes less");
}

static void load_weights(const Run *r, Model *m) {
    Error e;
    if (!hf_load_weights(m, r->folder, &e)) fail(EXIT_CHECKPOINT, "%s", e.text);
    if (r->tokenizer) m->used_vocab = tokenizer_vocab(r->tokenizer);
}

static void load(Run *r, const char *asked) {
    Error e;
    char name[128], why_cpu[256];
    r->folder = find_model(asked);
    if (!hf_load_config(r->folder, &r->config, &e)) fail(EXIT_CHECKPOINT, "%s", e.text);
    LocalDevices one = { .count = 1 };
    r->dev = device_choose(r->s.device, &one, why_cpu);
    r->tokenizer = find_tokenizer(r);
    const int trained = r->config.context;
    if (!r->s.context) r->s.context = trained;
    if (r->s.context < 2) fail(EXIT_USAGE, "-c %d: a context of at least 2 tokens is needed", r->s.context);
    if (r->s.context > trained)
        warn("the model was trained for %d tokens: what it makes of more may be nonsense", trained);
    if ((int64_t)r->s.sequences * r->s.context > INT_MAX)
        fail(EXIT_USAGE, "-r %d times -c %d: at most %d positions", r->s.sequences, r->s.context, INT_MAX);
    config_descriptor(&r->config, name);
    say(r, "model %s (%s), context %d, %s\n", r->folder, name, r->s.context, r->dev->name);
}

/* ---- views: which expert read which token (llmc/run/view.h) ------------------------------------------------- */

static void open_view(Run *r, Model *m) {
    const int layers = r->config.layers;
    if (r->s.verbose < 2) return;
    if (r->s.layer >= layers) fail(EXIT_USAGE, "-vl %d: the model has layers 0 to %d", r->s.layer, layers - 1);
    if (!m->routers) fail(EXIT_USAGE, "-v %d shows experts, but this model is dense", r->s.verbose);
    view_open(&r->view, r->dev, m, r->s.layer < 0 ? layers - 1 : r->s.layer);
}

static void report_view(const Run *r) {
    if (r->s.verbose == 2) view_legend(&r->view, r->colored);
    if (r->s.verbose == 3) view_favourites(&r->view, r->tokenizer);
}

/* ---- text out ------------------------------------------------------------------------------------------- *
 * A token is a piece of text that may end within a character, or within what could become the stop string. Such an
 * end waits in the stream until what follows decides. */

static void stream_add(const Run *r, Stream *o, const char *text, size_t bytes, int expert) {
    text_add_bytes(&o->text, text, bytes);
    for (size_t i = 0; r->s.verbose == 2 && i < bytes; i++) text_add_bytes(&o->paint, &expert, sizeof expert);
}

static void stream_token(const Run *r, Stream *o, int token, int expert) {
    size_t bytes;
    char *text = !r->tokenizer ? text_format(" %d", token)
        : o->strip ? tokenizer_decode(r->tokenizer, &token, 1, &bytes) : NULL;
    const char *piece = text ? text : tokenizer_piece(r->tokenizer, token, &bytes);
    if (!r->tokenizer) bytes = strlen(text);
    if (bytes) o->strip = 0;
    stream_add(r, o, piece, bytes, expert);
    free(text);
}

/* Cuts the text where the stop string begins and ends it there. `bytes`: how many are new. */
static void stream_stop(const Run *r, Stream *o, size_t bytes) {
    const size_t back = bytes + r->stop_bytes, length = o->text.length;
    for (size_t i = length > o->prompt + back ? length - back : o->prompt;
         r->stop_bytes && i + r->stop_bytes <= length; i++)
        if (!memcmp(o->text.at + i, r->stop, r->stop_bytes)) {
            o->text.length = i;
            o->done = 1;
            return;
        }
}

/* How many bytes at the end might be the beginning of a stop string. */
static size_t stream_held(const Run *r, const Stream *o) {
    for (size_t n = r->stop_bytes; n-- > 1; )
        if (n <= o->text.length - o->prompt && !memcmp(o->text.at + o->text.length - n, r->stop, n)) return n;
    return 0;
}

static void stream_color(const Run *r, Stream *o, int expert) {
    if (expert == o->color) return;
    if (r->colored && expert >= 0) printf("\033[38;5;%dm", view_color(expert));
    else if (r->colored) printf("\033[0m");
    else if (expert >= 0) printf("[%d]", expert);
    o->color = expert;
}

/* Prints what is certain. At the end of a text that is everything, but not a part of a character. */
static void stream_print(const Run *r, Stream *o, int end) {
    const size_t certain = o->text.length - (end ? 0 : stream_held(r, o)), ready = utf8_complete(o->text.at, certain);
    for (size_t i = 0; i < ready; i++) {
        const unsigned char c = (unsigned char)o->text.at[i];
        int expert;
        if (r->s.verbose == 2 && (c & 0xC0) != 0x80) {
            memcpy(&expert, o->paint.at + i * sizeof expert, sizeof expert);
            stream_color(r, o, expert);
        }
        /* a model must not steer a terminal */
        putchar(r->terminal && (c < 32 || c == 127) && c != '\n' && c != '\t' ? '?' : c);
        o->last = (char)c;
    }
    if (end) stream_color(r, o, -1);
    if (fflush(stdout) && errno != EINTR) fail(EXIT_DISK, "cannot write the text: %s", strerror(errno));
    o->text.length -= ready;
    o->prompt -= o->prompt < ready ? o->prompt : ready;
    if (o->text.length) memmove(o->text.at, o->text.at + ready, o->text.length);
    if (r->s.verbose == 2 && o->text.length)
        memmove(o->paint.at, o->paint.at + ready * sizeof(int), o->text.length * sizeof(int));
    o->paint.length = r->s.verbose == 2 ? o->text.length * sizeof(int) : 0;
}

/* ---- reading tokens ------------------------------------------------------------------------------------ */

/* Tokens of every sequence (r,count), which fit. expert: the first choices of the coloring router, or NULL. While
 * experts are watched, passes are cut so that none overwrites the choices of another; there is one sequence then. */
static void feed(Run *r, const int *tokens, int count, int *expert) {
    const int watched = expert && r->view.main;
    for (int t = 0, n; t < count; t += n) {
        n = !watched ? count : r->d.length ? 1 : count < r->d.chunk ? count : r->d.chunk;
        if (!decoder_feed(&r->d, tokens + t, n))
            fail(EXIT_MEMORY, "%d tokens do not fit into a context of %d", count, r->capacity);
        if (watched) view_read(&r->view, tokens + t, n, expert + t);
    }
}

/* Makes room in a full context by reading its last half again as if the text began there. Cached keys and values cannot
 * simply be moved down: the cached ones were made with the half that is now forgotten still in view. */
static void slide(Run *r) {
    const int B = r->s.sequences, length = r->d.length, keep = length < r->capacity / 2 ? length : r->capacity / 2;
    int *last = mem_alloc((size_t)B * (size_t)keep * sizeof *last);
    for (int b = 0; b < B; b++) {
        int *window = r->window + (size_t)b * (size_t)r->capacity;
        memmove(window, window + length - keep, (size_t)keep * sizeof *window);
        memcpy(last + (size_t)b * (size_t)keep, window, (size_t)keep * sizeof *window);
    }
    decoder_reset(&r->d);
    feed(r, last, keep, NULL);
    r->rounds++;
    r->slides++;
    free(last);
}

static void read_tokens(Run *r, const int *tokens, int count, int *expert) {
    if (count > r->capacity - r->d.length) slide(r);
    for (int b = 0; b < r->s.sequences; b++)
        memcpy(r->window + (size_t)b * (size_t)r->capacity + r->d.length, tokens + (size_t)b * (size_t)count,
               (size_t)count * sizeof *tokens);
    feed(r, tokens, count, expert);
}

/* The tokens of a text; free(*ids). begin: it is the beginning of one, where some models expect a token that says so,
 * and where every model needs at least one token to go on from. */
static int encode(const Run *r, const char *text, size_t bytes, int begin, int most, int **ids) {
    size_t count = 0;
    if (r->tokenizer) count = tokenizer_encode(r->tokenizer, text, bytes, ids);
    else {
        *ids = mem_alloc((bytes + 1) * sizeof **ids);
        for (char *end; text += strspn(text, " \t\r\n"), *text; text = end) {
            const long id = strtol(text, &end, 10);
            if (end == text || id < 0 || id >= r->config.vocab)
                fail(EXIT_INPUT, "without a tokenizer the prompt must be numbers from 0 to %d",
                     r->config.vocab - 1);
            (*ids)[count++] = (int)id;
        }
    }
    const int bos = begin && r->tokenizer ? tokenizer_bos(r->tokenizer) : -1;
    const int eos = r->tokenizer ? tokenizer_eos(r->tokenizer) : 0;
    if (bos >= 0 || (begin && !count)) {
        int *newline = NULL, first = bos >= 0 ? bos : eos;
        if (first < 0) first = tokenizer_encode(r->tokenizer, "\n", 1, &newline) ? newline[0] : 0;
        free(newline);
        *ids = mem_grow(*ids, (count + 1) * sizeof **ids);
        memmove(*ids + 1, *ids, count++ * sizeof **ids);
        (*ids)[0] = first;
    }
    if (count > (size_t)most) {
        warn("%zu tokens are more than fit: only the last %d are read", count, most);
        memmove(*ids, *ids + (count - (size_t)most), (size_t)most * sizeof **ids);
        count = (size_t)most;
    }
    return (int)count;
}

/* The prompt as given, from stdin or from a file. */
static char *read_prompt(const char *prompt, size_t *bytes) {
    Error e;
    Text text = { 0 };
    char part[4096], *whole;
    if (*prompt == '@') {
        if (!(whole = file_read(prompt + 1, bytes, &e))) fail(EXIT_INPUT, "-i %s: %s", prompt, e.text);
        return whole;
    }
    text_add_bytes(&text, "", 0);
    if (strcmp(prompt, "-")) text_add_string(&text, prompt);
    else for (size_t n; (n = fread(part, 1, sizeof part, stdin)); ) text_add_bytes(&text, part, n);
    *bytes = text.length;
    return text.at;
}

/* ---- generate ------------------------------------------------------------------------------------------ */

static volatile sig_atomic_t interrupts;
static void on_interrupt(int signal_number) {
    (void)signal_number;
    if (++interrupts > 1) _exit(130);
}

static void open_decoder(Run *r, int capacity) {
    const size_t B = (size_t)r->s.sequences;
    struct sigaction action = { .sa_handler = on_interrupt };
    r->capacity = capacity;
    if (!decoder_open(&r->d, r->dev, &r->config, r->s.sequences, capacity, NULL)) out_of_memory(r, &r->d.model.arena);
    load_weights(r, &r->d.model);
    open_view(r, &r->d.model);
    r->stream = mem_alloc(B * sizeof *r->stream);
    r->window = mem_alloc(B * (size_t)capacity * sizeof *r->window);
    for (size_t b = 0; b < B; b++) r->stream[b].color = -1;
    sigaction(SIGINT, &action, NULL);
}
static void close_decoder(Run *r) {
    for (int b = 0; b < r->s.sequences; b++) { free(r->stream[b].text.at); free(r->stream[b].paint.at); }
    free(r->stream);
    free(r->window);
    view_close(&r->view);
    decoder_close(&r->d);
}

/* Reads the same tokens in every sequence. text: what to print of them; NULL: nothing. */
static void prefill(Run *r, const int *ids, int count, const char *text, size_t bytes) {
    const size_t B = (size_t)r->s.sequences, n = (size_t)count;
    int *tokens = mem_alloc(B * n * sizeof *tokens), *expert = mem_alloc(n * sizeof *expert);
    const double start = now();
    for (size_t b = 0; b < B; b++) memcpy(tokens + b * n, ids, n * sizeof *ids);
    read_tokens(r, tokens, count, expert);
    r->prompt_time += now() - start;
    r->prompt_tokens += (int64_t)(B * n);
    for (size_t b = 0; b < B; b++) {
        Stream *o = &r->stream[b];
        o->strip = !bytes || (text && r->s.verbose == 2);
        for (size_t i = 0; text && bytes && r->s.verbose == 2 && i < n; i++) stream_token(r, o, ids[i], expert[i]);
        if (text && r->s.verbose != 2) stream_add(r, o, text, bytes, -1);
        o->prompt = o->text.length;
    }
    free(tokens);
    free(expert);
}

static int all_done(const Run *r) {
    for (int b = 0; b < r->s.sequences; b++) if (!r->stream[b].done) return 0;
    return 1;
}

/* From here on tokens are drawn anew: what is drawn is a function of the seed, the sequence and how often. */
static void set_sampler(Run *r) {
    const Settings *s = &r->s;
    uint64_t *key = mem_alloc((size_t)s->sequences * sizeof *key);
    for (int b = 0; b < s->sequences; b++)
        key[b] = random_key(random_key((uint64_t)s->seed, (uint64_t)b), (uint64_t)r->rounds);
    decoder_draw(&r->d, (Sampler){ .temperature = s->temperature, .top_p = s->top_p, .min_p = s->min_p,
                                   .top_k = s->top_k }, key);
    free(key);
}

/* A token of every sequence has been read. Sequences that have ended stay in the batch, unheard, until all have. */
static void take(Run *r, const int *tokens, int expert, int eos) {
    for (int b = 0; b < r->s.sequences; b++) {
        Stream *o = &r->stream[b];
        const size_t length = o->text.length;
        if (o->done) continue;
        r->tokens++;
        if (tokens[b] == eos) o->done = 1;
        else {
            stream_token(r, o, tokens[b], expert);
            stream_stop(r, o, o->text.length - length);
        }
    }
    r->steps++;
}

/* A full context: a token is drawn from what is there, and read when there is room again. */
static void step_over(Run *r, int *tokens, int *expert) {
    decoder_sample(&r->d, tokens);
    read_tokens(r, tokens, 1, expert);
    set_sampler(r);
}

/* Draws and reads tokens, and prints what the first sequence has of text. A GPU is kept busy: it is told to make a dozen
 * tokens more before the last dozen is looked at, so that it never waits for the host. If the text then turns out to have
 * ended before, what was read in vain is forgotten. */
static void decode(Run *r, int ends) {
    enum { DOZEN = 12 };
    const Settings *s = &r->s;
    Decoder *d = &r->d;
    const size_t B = (size_t)s->sequences;
    const int eos = ends && r->tokenizer ? tokenizer_eos(r->tokenizer) : -1, ahead = r->dev->is_gpu && !r->view.main;
    int *tokens = mem_alloc(B * DOZEN * sizeof *tokens), count[2] = { 0 }, expert = -1;
    int64_t left = s->tokens > 0 ? s->tokens : INT64_MAX;           /* to be queued */
    int read = d->length;                                           /* positions whose tokens have been looked at */
    const double start = now();
    set_sampler(r);
    for (int slot = 0; !interrupts && !all_done(r); slot ^= 1) {
        const int capacity = r->capacity - d->length, most = ahead ? DOZEN : 1, n = most < capacity ? most : capacity;
        const int older = ahead ? slot ^ 1 : slot;
        count[slot] = left < n ? (int)left : n;
        left -= count[slot];
        if (count[slot]) decoder_queue(d, count[slot], slot);
        else if (!count[older]) {
            if (!left || s->tokens == 0) break;
            step_over(r, tokens, &expert);
            left--;
            take(r, tokens, expert, eos);
            r->positions += read = d->length;
        }
        if (count[older]) decoder_collect(d, tokens, older);
        if (count[older] && r->view.main) view_read(&r->view, tokens, 1, &expert);
        for (int i = 0; i < count[older] && !all_done(r); i++, read++) {
            for (size_t b = 0; b < B; b++) r->window[b * (size_t)r->capacity + (size_t)read] = tokens[(size_t)i * B + b];
            take(r, tokens + (size_t)i * B, expert, eos);
            r->positions += read + 1;
        }
        count[older] = 0;
        stream_print(r, &r->stream[0], 0);
    }
    r->time += now() - start;
    if (read < d->length) {
        for (size_t b = 0; b < B; b++) tokens[b] = r->window[b * (size_t)r->capacity + (size_t)read - 1];
        decoder_rewind(d, tokens, read);
    }
    free(tokens);
}

static double per(double x, double y) { return y > 0 ? x / y : 0; }

/* Bytes that a token of one sequence has to bring to where it is computed: the weights it uses, which of a table of embeddings
 * that is not the head too is next to nothing, and the keys and values of what was before it. */
static double bytes_per_token(const Run *r) {
    const Config *c = &r->config;
    const double weights = (double)config_active(c, r->d.model.manifest.learnable)
                         - (c->tied ? 0 : (double)c->vocab * c->channels);
    const double row = 2.0 * c->layers * c->kv_heads * c->head_size;
    return (weights + row * per((double)r->positions, (double)r->steps)) * (double)r->dev->floatX_size;
}

/* What memory can do: bytes read and written by large copies, a second. 0: there is no room to find out. */
static double copy_rate(const Device *dev) {
    enum { TIMES = 20 };
    const size_t bytes = (size_t)1 << 28;
    char *a = dev->alloc(2 * bytes);
    double start = 0;
    for (int i = -2; a && i < TIMES; i++) {
        if (i <= 0) { dev->sync(); start = now(); }
        dev->copy(a, a + bytes, bytes);
    }
    dev->sync();
    const double time = now() - start;
    dev->release(a);
    return a ? per(2.0 * TIMES * (double)bytes, time) : 0;
}

static void report(const Run *r) {
    const double bytes = bytes_per_token(r), rate = per(bytes * (double)r->steps, r->time);
    say(r, "prompt %lld tokens, %.0f tokens/s | generated %lld tokens, %.0f tokens/s, %.2f ms/token",
        (long long)r->prompt_tokens, per((double)r->prompt_tokens, r->prompt_time), (long long)r->tokens,
        per((double)r->tokens, r->time), per(1000 * r->time, (double)r->steps));
    if (r->s.sequences == 1) say(r, " of %.1f MB of weights and cache: %.1f GB/s", bytes / 1e6, rate / 1e9);
    if (r->s.sequences == 1 && r->dev->is_gpu && r->s.verbose && r->steps) {
        const double copy = copy_rate(r->dev);
        if (copy > 0) say(r, ", %.1f%% of the %.0f GB/s of a copy", 100 * rate / copy, copy / 1e9);
    }
    if (r->slides)
        say(r, " | the context of %d was full %d time%s, and its last half read again", r->capacity, r->slides,
            r->slides > 1 ? "s" : "");
    else if (r->d.length == r->capacity && !r->s.tokens) say(r, " | the context of %d is full (-n -1 goes on)", r->capacity);
    say(r, "\n");
    if (r->view.main) report_view(r);
}

static void generate(Run *r) {
    size_t bytes;
    int *ids;
    char *text = read_prompt(r->s.prompt, &bytes);
    const int count = encode(r, text, bytes, 1, r->s.context, &ids), n = r->s.tokens, B = r->s.sequences;
    open_decoder(r, n > 0 && n < r->s.context - count ? count + n : r->s.context);
    prefill(r, ids, count, r->s.echo ? text : NULL, bytes);
    if (B > 1) printf("--- 1 of %d\n", B);
    stream_print(r, &r->stream[0], 0);
    decode(r, n >= 0);
    for (int b = 0; b < B; b++) {
        if (b) printf("--- %d of %d\n", b + 1, B);
        stream_print(r, &r->stream[b], 1);
        if ((B > 1 || r->terminal) && r->stream[b].last != '\n') putchar('\n');
    }
    report(r);
    close_decoder(r);
    free(ids);
    free(text);
}

/* ---- chat ----------------------------------------------------------------------------------------------- *
 * What is read is text like any other: a line goes into the context as it is, and the model continues it. */

static void answer(Run *r, const char *line, size_t bytes) {
    Stream *o = &r->stream[0];
    int *ids;
    const int count = encode(r, line, bytes, !r->d.length, r->capacity / 2, &ids);
    o->text.length = o->paint.length = o->prompt = 0;
    o->done = o->last = 0;
    if (count) prefill(r, ids, count, NULL, bytes);
    decode(r, 1);
    stream_print(r, o, 1);
    if (o->last != '\n') putchar('\n');
    if (fflush(stdout) && errno != EINTR) fail(EXIT_DISK, "cannot write the text: %s", strerror(errno));
    free(ids);
}

static int is_command(const char *line, const char *command) {
    const size_t n = strlen(command);
    return !strncmp(line, command, n) && !line[n + strspn(line + n, " \r\n")];
}

static void chat(Run *r) {
    size_t bytes, capacity = 0;
    int *ids = NULL;
    char *line = NULL, *prompt = read_prompt(r->s.prompt, &bytes);
    const int interactive = isatty(0), count = bytes ? encode(r, prompt, bytes, 1, r->s.context, &ids) : 0;
    open_decoder(r, r->s.context);
    if (interactive) say(r, "the model goes on from every line; /reset forgets, /quit ends, Ctrl-C interrupts\n");
    for (;;) {
        if (count && !r->d.length) prefill(r, ids, count, NULL, bytes);
        if (interactive) fputs("> ", stderr);
        errno = 0;
        const ssize_t n = getline(&line, &capacity, stdin);
        if (n < 0 && errno == EINTR) {
            clearerr(stdin);
            fputs("\n(Ctrl-C again, or /quit, ends)\n", stderr);
            continue;
        }
        if (n < 0 || is_command(line, "/quit")) break;
        interrupts = 0;
        if (is_command(line, "/reset")) {
            decoder_reset(&r->d);
            r->rounds++;
        } else answer(r, line, (size_t)n);
    }
    if (interactive) fputc('\n', stderr);
    interrupts = 0;
    report(r);
    close_decoder(r);
    free(line);
    free(ids);
    free(prompt);
}

/* ---- perplexity ----------------------------------------------------------------------------------------- *
 * The file is cut into windows of the model's context, one after another; within each every token is
 * predicted from those before it, and the last predicts the first token of the next window. The file's
 * first token is given, not predicted. */

static void measure(Run *r) {
    Error e;
    Model m;
    size_t bytes, first_bytes;
    int *ids;
    if (!r->tokenizer) fail(EXIT_INPUT, "-x needs a tokenizer (-z)");
    char *text = file_read(r->s.file, &bytes, &e);
    if (!text) fail(EXIT_INPUT, "-x %s", e.text);
    const size_t tokens = tokenizer_encode(r->tokenizer, text, bytes, &ids);
    if (tokens < 2) fail(EXIT_INPUT, "-x %s: %zu tokens; at least two are needed", r->s.file, tokens);
    free(tokenizer_decode(r->tokenizer, ids, 1, &first_bytes));

    const size_t N = tokens - 1, context = (size_t)r->s.context, T = N < context ? N : context;
    const size_t most = N / T, few = 4096 / T > 1 ? 4096 / T : 1, B = most < few ? most : few;
    model_plan_inference(&m, r->dev, &r->config, (int)B, (int)T, 0, NULL);
    if (!model_allocate(&m)) out_of_memory(r, &m.arena);
    load_weights(r, &m);
    open_view(r, &m);

    const double start = now();
    double loss, sum = 0;
    for (size_t i = 0, n; i < N; i += n) {                  /* B windows, or one, or what is left */
        const size_t left = N - i, t = left < T ? left : T, b = left >= B * T ? B : 1;
        n = b * t;
        model_batch(&m, ids + i, ids + i + 1, (int)b, (int)t);
        model_forward(&m);
        model_loss(&m, 1, 0);
        r->dev->reals_to_double(&loss, m.loss_sum, 1);
        sum += loss;
        if (r->view.main) view_read(&r->view, ids + i, (int)n, NULL);
        if (isatty(2)) say(r, "\r%3.0f%%\r", 100 * (double)(i + n) / (double)N);
    }
    const double mean = sum / (double)N, time = now() - start;
    if (!isfinite(mean)) fail(EXIT_NUMERICS, "the loss of %s is not finite: the weights are broken", r->s.file);
    printf("%s: tokens %zu  loss %.6f nats/token  perplexity %.4f  bits/byte %.6f\n", r->s.file, N, mean, exp(mean),
           sum / log(2) / (double)(bytes - first_bytes));
    say(r, "%.1f s, %.0f tokens/s, windows of %zu\n", time, (double)N / time, T);
    if (r->view.main) report_view(r);
    view_close(&r->view);
    model_free(&m);
    free(ids);
    free(text);
}

/* ---- main ---------------------------------------------------------------------------------------------- */

/* Fills in what is not a plain copy of an option: \n in the stop string, the seed of the
 * clock, whether colors can be shown. */
static void prepare(Run *r, const char *given) {
    Settings *s = &r->s;
    const char *stop = !strcmp(s->mode, "chat") && !option_given(table, OPTIONS, given, "st") ? "\\n\\n" : s->stop;
    const char *none = getenv("NO_COLOR");
    r->stop = mem_alloc(strlen(stop) + 1);
    for (; *stop; stop++) {
        const int escaped = *stop == '\\' && (stop[1] == 'n' || stop[1] == 't' || stop[1] == '\\');
        if (escaped) stop++;
        r->stop[r->stop_bytes++] = (char)(escaped && *stop == 'n' ? '\n' : escaped && *stop == 't' ? '\t' : *stop);
    }
    const int drawn = s->seed < 0;
    if (drawn) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        s->seed = (int64_t)(random_key((uint64_t)t.tv_sec, (uint64_t)t.tv_nsec) % 1000000000);
    }
    if (!*s->file && (drawn || s->verbose)) fprintf(stderr, "seed %lld\n", (long long)s->seed);
    r->terminal = isatty(1);
    r->colored = !strcmp(s->color, "always") || (!strcmp(s->color, "auto") && r->terminal && !(none && *none));
}

int main(int argc, char **argv) {
    static Run r;
    char given[OPTIONS];
    const char *folder = NULL;
    threads_settle(argv);
    options_parse(table, OPTIONS, &r.s, given, argc, argv, usage, &folder, 1);
    check_options(&r.s, given);
    load(&r, folder);
    prepare(&r, given);

    if (*r.s.file) measure(&r);
    else if (!strcmp(r.s.mode, "chat")) chat(&r);
    else generate(&r);

    tokenizer_free(r.tokenizer);
    free(r.folder);
    free(r.stop);
    if (fflush(stdout) || ferror(stdout)) fail(EXIT_DISK, "cannot write the text: %s", strerror(errno));
    return interrupts ? 130 : EXIT_DONE;
}
