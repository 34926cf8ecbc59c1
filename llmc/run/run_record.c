/* run_record.c: what a run reports (run.h): the log's beginning and end, bad steps, the page. */
#define _DEFAULT_SOURCE
#include "run.h"
#include "card.h"
#include "llmc/files/export.h"
#include "llmc/files/families.h"
#include "llmc/model/batch.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* ---- start ----------------------------------------------------------------------------------- */

static void add_string(Text *e, const char *key, const char *string) { event_text(e, key, string, strlen(string)); }

static char *command_line(char **arguments) {
    Text t = { 0 };
    for (char **a = arguments; *a; a++) {
        if (a != arguments) text_add_string(&t, " ");
        text_add_word(&t, *a);
    }
    return t.at;
}
/* What follows `name` and a colon in a file of such lines; "": nothing. */
static void read_line(const char *path, const char *name, char value[200]) {
    char line[256];
    Error e;
    uint64_t bytes;
    FILE *f = file_stream(path, &bytes, &e);
    *value = 0;
    while (f && !*value && fgets(line, sizeof line, f)) {
        const char *at = strncmp(line, name, strlen(name)) ? NULL : strchr(line, ':');
        if (at) snprintf(value, 200, "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
    }
    if (f) fclose(f);
}
/* Model of the processor, system and architecture. */
static char *machine_name(void) {
    char model[200];
    struct utsname u;
    read_line("/proc/cpuinfo", "model name", model);
    const char *processor = model + strspn(model, " "), *between = *model ? ", " : "";
    return uname(&u) < 0 ? text_format("%s", processor)
                         : text_format("%s%s%s %s, %s", processor, between, u.sysname, u.release, u.machine);
}
/* What a session begins with: when, by which command, on which machine. */
static void add_session(Run *r, Text *e) {
    char when[32] = "";
    const time_t t = time(NULL);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime(&t));
    char *command = command_line(r->arguments), *machine = machine_name();
    Text given = { 0 }, shown = { 0 };
    settings_given_json(&r->s, &given);
    settings_shown_json(&r->s, &shown);
    add_string(e, "time", when);
    add_string(e, "version", MOE_VERSION);
    add_string(e, "device", r->dev->name);
    add_string(e, "command", command);
    event_json(e, "given", given.at);
    event_json(e, "shown", shown.at);
    add_string(e, "machine", machine);
    event_int(e, "cores", sysconf(_SC_NPROCESSORS_ONLN));
    event_double(e, "memory", (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE));
    add_string(e, "compiler", __VERSION__ ", " COMPILER_FLAGS);
    event_int(e, "ranks", r->parallel.ranks);
    free_each(command, machine, given.at, shown.at);
}
/* Of this process, in bytes. What getrusage says may be its parent's: that survives exec. */
double run_peak_memory(void) {
    struct rusage use;
    char kilobytes[200];
    read_line("/proc/self/status", "VmHWM", kilobytes);
    if (*kilobytes) return 1024 * strtod(kilobytes, NULL);
#ifdef __APPLE__
    const double unit = 1;
#else
    const double unit = 1024;
#endif
    return getrusage(RUSAGE_SELF, &use) ? NAN : unit * (double)use.ru_maxrss;
}

static Text start_event(Run *r) {
    const size_t total = r->model.manifest.learnable;
    char descriptor[128];
    config_descriptor(&r->config, descriptor);
    Text e = event("start");
    add_session(r, &e);
    add_string(&e, "model", descriptor);
    add_string(&e, "family", family_name(config_family(&r->config)));
    event_int(&e, "parameters", (int64_t)total);
    event_int(&e, "vocabulary", config_ids(&r->config));
    event_int(&e, "active", (int64_t)config_active(&r->config, total));
    add_string(&e, "data", data_description(r->data));
    event_json(&e, "fallback", data_is_fallback(r->data) ? "true" : "false");
    event_int(&e, "train_tokens", data_tokens(r->data, DATA_TRAIN));
    event_int(&e, "val_tokens", data_tokens(r->data, DATA_VALIDATION));
    event_json(&e, "options", r->saves.what.options);
    if (r->progress.run) {
        char digits[17];
        snprintf(digits, sizeof digits, "%016llx", (unsigned long long)r->progress.run);
        add_string(&e, "run", digits);
    }
    json_seal(&e);
    return e;
}
static void log_resume(Run *r) {
    Text e = event("resume");
    event_int(&e, "step", r->first_step);
    add_session(r, &e);
    event_json(&e, "options", r->saves.what.options);
    log_event(&r->log, &e);
}

/* OUT/settings.txt: what -cf reads to repeat this run. */
static void write_settings(const Run *r) {
    Error e;
    Text t = { 0 };
    text_add(&t, "# settings of the run in this folder, written when it starts. To repeat it: ./train_moe -cf "
             "FOLDER/settings.txt -o ANOTHER\n");
    settings_write(&r->s, &t);
    char *path = text_format("%s/settings.txt", r->s.out);
    if (!file_write(path, t.at, t.length, &e)) warn("%s", e.text);
    free_each(path, t.at);
}
void run_begin_log(Run *r) {
    Error e;
    Text json = { 0 };
    settings_json(&r->s, &json);
    r->saves.what.options = json.at;
    if (!r->leads) { log_silence(&r->log); return; }
    Text start = start_event(r);
    if (!log_open(&r->log, r->s.out, r->first_step > 0 ? r->first_step : -1, start.at, &e)) fail_with(&e, EXIT_DISK);
    free(start.at);
    if (r->first_step) log_resume(r);
    if (r->s.accumulate == IN_MOMENTUM)
        log_line(&r->log, "norms are of the gradients of what AdamW updates (-ga momentum%s)",
                 r->lacks_gradients ? ", chosen by the plan" : "");
    write_settings(r);
    r->report = report_open(r->s.out);
    r->saves.at = now();
    if (r->progress.step >= r->s.steps && !r->progress.unvalidated)
        log_line(&r->log, "this run of %lld steps is complete; -x with more steps continues it", (long long)r->s.steps);
}

/* ---- where the time of the start goes -------------------------------------------------------- */

/* Until it changes, `seconds` of the running part is minus the time at which it began. */
void run_time_start(Run *r, const char *name) {
    StartTimes *s = &r->start_times;
    const double t = now();
    int i = 0;
    if (s->count) s->part[s->running].seconds += t;
    while (i < s->count && strcmp(s->part[i].name, name)) i++;
    if (i == s->count) s->part[s->count++].name = name;
    s->part[i].seconds -= i ? t : r->started;
    s->running = i;
}
/* A short start is only an event of the log. */
void run_report_start(Run *r) {
    enum { LONG = 5 };                                      /* seconds */
    StartTimes *s = &r->start_times;
    double all = 0;
    Text line = { 0 }, e = event("begun");
    s->part[s->running].seconds += now();
    for (int i = 0; i < s->count; i++) {
        const double seconds = s->part[i].seconds;
        all += seconds;
        event_double(&e, s->part[i].name, seconds);
        if (seconds >= 0.05) text_add(&line, "%s %s %.1f", line.at ? "," : "", s->part[i].name, seconds);
    }
    event_double(&e, "seconds", all);
    log_event(&r->log, &e);
    if (all >= LONG) log_line(&r->log, "the start took %.1f s:%s", all, line.at);
    free(line.at);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* The first steps include warm-up. */
void run_forewarn(Run *r, const StepStats *t) {
    if (r->dev->is_gpu || t->step != r->first_step + 3 || t->eta < 12 * 3600.0) return;
    log_line(&r->log, "at %.3g s a step this run takes about %.1f days on this CPU. A smaller model (-e m4), "
                      "fewer steps (-x) or fewer tokens a step (-d) end sooner; Ctrl-C stops it, and -y 1 resumes it",
                      t->ms / 1e3, t->eta / 86400);
}

double run_chance(const Run *r) { return log(config_ids(&r->config)); }

/* The step of the checkpoint of before it diverged; -1: there is none to resume from. */
static int64_t way_back(const Run *r) {
    const int64_t sound = r->progress.sound;
    return r->s.kept == KEEP_STATE ? checkpoint_newest(r->s.out, sound ? sound : -1) : -1;
}
/* From where can it go on as it was before? */
static void say_way_back(const Run *r, int64_t step, Text *out) {
    if (step < 0) {
        text_add(out, "No checkpoint of before is there. A lower learning rate than -l %g may help, more warm-up (-u) "
                 "or stronger clipping (-cg)", (double)r->s.lr);
        return;
    }
    text_add(out, "To go on from the checkpoint of step %lld, before that, with half of the rate: ./train_moe -o ",
             (long long)step);
    text_add_word(out, r->s.out);
    text_add(out, " -y 1 -ys %lld -l %g", (long long)step, (double)r->s.lr / 2);
}
void run_follow_course(Run *r, const StepStats *t) {
    Progress *p = &r->progress;
    const double chance = run_chance(r);
    const Course course = progress_course(p, t->loss, chance);
    if (course == COURSE_SAME || !r->leads) return;
    const double bound = progress_bound(p, chance);
    const int64_t from = way_back(r);
    Text e = event(course == COURSE_DIVERGED ? "diverged" : "recovered"), way = { 0 };
    event_int(&e, "step", t->step);
    event_double(&e, "loss", t->loss);
    event_double(&e, "bound", bound);
    event_double(&e, "lowest", p->lowest);
    event_double(&e, "first", p->first);
    event_double(&e, "chance", chance);
    event_int(&e, "sound", p->sound);
    event_int(&e, "checkpoint", from);
    log_event(&r->log, &e);
    if (course == COURSE_RECOVERED) {
        log_line(&r->log, "step %lld: the run has recovered: the last %d losses were all below %.4g",
                 (long long)t->step, RECENT, bound);
        return;
    }
    say_way_back(r, from, &way);
    warn("step %lld: the run has DIVERGED: its last %d losses, now %.4g, were all above %.4g; their lowest mean was "
         "%.4g, the first loss %.4g, that of guessing %.4g. %s", (long long)t->step, RECENT, t->loss, bound, p->lowest,
         p->first, chance, way.at);
    free(way.at);
}

/* The device has skipped the update. */
void run_bad_step(Run *r, const StepStats *t, int tensor) {
    const char *name = r->model.manifest.at[tensor].name;
    Progress *p = &r->progress;
    p->bad_steps++;
    model_clear_activations(&r->model);
    Text e = event("skip");
    event_int(&e, "step", t->step);
    add_string(&e, "tensor", name);
    log_event(&r->log, &e);
    if (r->leads)
        warn("step %lld: the gradient of %s is not finite (loss %g): the update is skipped; %d in a row",
             (long long)t->step, name, t->loss, p->bad_steps);
    if (p->bad_steps < r->s.max_bad) return;
    char newest[64];
    saves_follow(&r->saves, 1);
    saves_newest(r->s.out, newest);
    fail(EXIT_NUMERICS, "%d steps in a row without a finite gradient, the last on samples %lld to %lld. %s holds %s. "
         "A lower learning rate (-l) or stronger clipping (-cg) may help", p->bad_steps, (long long)(p->samples),
         (long long)(p->samples + samples_per_step(r) - 1), r->s.out, newest);
}

/* A page that cannot be written is tried again when due; of the last one it is reported. */
void run_report(Run *r) {
    Error e;
    if (r->leads && report_due(r->report)) report_update(r->report, 1, &e);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void log_summary(Run *r, uint64_t weights) {
    const Progress *p = &r->progress;
    log_end(&r->log, p, weights, run_peak_memory());
    if (p->best.step >= 0)
        log_line(&r->log, "best val loss    | %.6f at step %lld", p->best.loss, (long long)p->best.step);
    log_line(&r->log, "time             | %.1f s since the program started; %.1f s of training in all sessions",
             now() - r->started, p->seconds);
    log_line(&r->log, "tokens           | %lld, %.0f per second",
             (long long)p->tokens, p->seconds > 0 ? (double)p->tokens / p->seconds : 0);
    log_line(&r->log, "peak memory      | %.1f MB", run_peak_memory() / 1e6);
    if (r->waits != p->step - r->first_step)
        log_line(&r->log, "host waits       | %.2f per step; expected: 1, for its results",
                 (double)r->waits / (double)(p->step - r->first_step));
    if (p->diverged) {
        Text way = { 0 };
        say_way_back(r, way_back(r), &way);
        log_line(&r->log, "DIVERGED         | since step %lld; the lowest mean loss was %.4g. %s",
                 (long long)p->diverged, p->lowest, way.at);
        free(way.at);
    }
    log_line(&r->log, "weights          | fingerprint %016llx", (unsigned long long)weights);
    if (data_is_fallback(r->data))
        log_line(&r->log, "NOTE             | trained on this project's own text: "
                 "these losses are not tinyshakespeare's");
}

/* The final form of the model in OUT and OUT/best (-sw, -ss). Checkpoints keep exact weights. */
static void export_model(Run *r) {
    static const char *const types[] = { [SAVE_AUTO] = NULL, [SAVE_F32] = "F32", [SAVE_BF16] = "BF16",
                                         [SAVE_F16] = "F16", [SAVE_F64] = "F64" };
    const ExportForm form = { .type = types[r->s.saved_type], .shard = (uint64_t)((double)r->s.shard * 1e9) };
    Error e;
    int files, of_best;
    char *best = text_format("%s/best", r->s.out);
    if (!export_weights(r->s.out, form, r->origin, &files, &e) || !export_weights(best, form, r->origin, &of_best, &e))
        fail(EXIT_DISK, "the model is saved in %s, but not as -sw and -ss ask: %s", r->s.out, e.text);
    const Family family = config_family(&r->config);
    log_line(&r->log, "saved as         | %s%s%.0d%s", family_name(family), files > 1 ? ", in " : "",
             files > 1 ? files : 0, files > 1 ? " files and their index" : family == FAMILY_SMOE
             ? ", which Transformers opens with trust_remote_code=True" : "");
    free(best);
}
/* One for each folder with a model; a card that cannot be written costs nothing else. */
static void write_cards(Run *r) {
    Text t = { 0 };
    char *best = text_format("%s/best", r->s.out);
    const char *const folders[] = { r->s.out, best };
    card_text(r, &t);
    for (int i = 0; i < 2; i++) {
        Error e;
        const int written = is_folder(folders[i]) ? card_write(folders[i], t.at, &e) : 1;
        if (written < 0) warn("the model card: %s", e.text);
        if (!written)
            text_print(stdout, "%s/README.md was edited, so it stays as it is, with the losses it has\n", folders[i]);
    }
    free_each(best, t.at);
}

/* A line, or the first words of a long one, that a text may begin with. 0: it has none. */
static size_t begin_of_line(const char *line, size_t bytes) {
    enum { MOST = 40 };
    size_t n = 0, words = 0;
    for (char shown[5]; n < bytes && line[n] != '\n' && n < MOST; ) {
        const size_t step = text_show(line + n, bytes - n, shown);
        if (strncmp(line + n, shown, step) || shown[step] || line[n] == '\t') break;  /* a terminal shows another */
        if (line[n] == ' ') words = n;
        n += step;
    }
    return n == bytes || line[n] != '\n' ? words : n;
}
/* " -i PROMPT" from the validation text: its first whole line, or its first ids. */
static void add_prompt(Run *r, Text *command) {
    enum { MOST = 1024 };
    const int T = r->s.seq;
    const int64_t windows = data_validation_batches(r->data, 1, T);
    int ids[MOST], n = 0;
    Error e;
    for (int64_t w = 0; w < windows && n < MOST; w++) {
        if (!data_validation(r->data, w, 1, T, r->inputs, r->targets, r->positions, &e)) return;
        for (int i = 0; i < T && n < MOST && r->targets[i] != -2; i++) ids[n++] = r->inputs[i];
    }
    if (!r->tokenizer && n > 2) text_add(command, " -i \"%d %d %d\"", ids[0], ids[1], ids[2]);
    size_t bytes = 0;
    char *text = r->tokenizer ? tokenizer_decode(r->tokenizer, ids, (size_t)n, &bytes) : NULL;
    for (size_t at = 0; at < bytes; at++) {
        const size_t words = !at || text[at - 1] == '\n' ? begin_of_line(text + at, bytes - at) : 0;
        if (words < 3 || (!at && words + 1 < bytes)) continue;          /* the first line may begin in the middle */
        text_add_string(command, " -i ");
        text[at + words] = 0;
        text_add_word(command, text + at);
        break;
    }
    free(text);
}
void run_end_log(Run *r) {
    Error e;
    const uint64_t weights = saves_fingerprint(&r->saves);
    if (!r->leads) return;
    if (r->s.kept != KEEP_NOTHING) export_model(r);
    if (r->s.kept != KEEP_NOTHING) write_cards(r);
    log_summary(r, weights);
    if (!report_update(r->report, 0, &e)) warn("%s", e.text);
    report_close(r->report);
    Text folder = { 0 };
    const char *make = is_file("infer_moe") ? "" : "make infer_moe && ";
    const int talks = data_has_chats(r->data) && *chat_name(data_chat(r->data));        /* few are for validation */
    char *best = text_format("%s%s", r->s.out, r->s.keep_best && r->progress.best.step >= 0 && !talks ? "/best" : "");
    text_add_word(&folder, r->finished ? best : r->s.out);
    if (r->s.kept == KEEP_NOTHING) log_line(&r->log, "\nno weights were saved (-sv none)");
    else if (r->finished && talks) log_line(&r->log, "\nto talk to it:  %s./infer_moe %s -m chat", make, folder.at);
    else if (r->finished) {
        add_prompt(r, &folder);
        log_line(&r->log, "\nto generate text:  %s./infer_moe %s%s", make, folder.at,
                 r->tokenizer ? "" : "      (ids of tokens; -z names a tokenizer)");
    }
    else if (r->s.kept == KEEP_WEIGHTS)
        log_line(&r->log, "\nstopped on request; to train these weights further:  ./train_moe -e %s -o ANOTHER",
                 folder.at);
    else log_line(&r->log, "\nstopped on request; to continue:  ./train_moe -o %s -y 1", folder.at);
    free_each(folder.at, best);
    log_close(&r->log);
}
