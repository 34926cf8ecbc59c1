/* log.h: the log of a run: terminal, main.log (llm.c's keys), log.jsonl (an object per line). */
#pragma once
#include <stdio.h>
#include "llmc/base/text.h"
#include "llmc/model/routers.h"
#include "progress.h"

typedef struct {                        /* one optimizer step */
    int64_t step, steps;                /* from 1; of the run */
    double loss, norm, lr, ms, tok_s;   /* nats per token; global gradient norm */
    double loss_z, norm_z;              /* z-scores; NAN while there are too few values */
    RouterStats routers;
    double eta;                         /* seconds to the last step */
} StepStats;

typedef struct {
    int64_t step, best_step;
    double  loss, bits_per_byte, best;  /* bits_per_byte 0: unknown */
} ValidationStats;

typedef struct {
    FILE *main, *json;
    char *folder;
    int   silent;                       /* 1: of a rank other than 0: nothing is written */
    int   terminal;                     /* stdout is a terminal: the line of the current step is refreshed */
    int   open_line;                    /* 1: the refreshed line has no newline yet */
    long  lost;                         /* lines that could not be written */
    double refreshed;                   /* time of the last refresh */
    double *curve;  int points;         /* (points,2) step and loss, for the terminal's curve */
} Log;

/* Opens folder/main.log and folder/log.jsonl. resume_step >= 0: continues after that step; later
 * lines are removed. Otherwise, or if there is none, log.jsonl is created with the line `start`: a
 * run that is killed before its first checkpoint is restarted from it. */
int  log_open(Log *l, const char *folder, int64_t resume_step, const char *start, Error *e);
void log_silence(Log *l);                                   /* instead of log_open: nothing is written */
void log_close(Log *l);

/* A line of log.jsonl: {"event": name, "key": value, ...}. log_event writes and frees it. */
Text event(const char *name);
void event_int(Text *e, const char *key, int64_t x);
void event_double(Text *e, const char *key, double x);      /* null if not finite */
void event_text(Text *e, const char *key, const char *text, size_t bytes);
void event_json(Text *e, const char *key, const char *json);
void log_event(Log *l, Text *e);

void log_step(Log *l, const StepStats *s, int keep_line);   /* keep_line: the next step must not overwrite it */
/* On a terminal, before there is a time to show: what the session's first step does. */
void log_first_step(Log *l, int64_t step, int64_t steps, int micro, int micro_batches, int64_t tokens);
void duration_text(char text[32], double seconds);       /* "3:07" minutes and seconds, "5h03", "2.4 days" */
void log_validation(Log *l, const ValidationStats *v);
/* load (routers, E). show: also a table on the terminal. */
void log_loads(Log *l, int64_t step, const Model *m, const int *load, int show);
void log_sample(Log *l, int64_t step, const char *text, size_t bytes);
void log_end(Log *l, const Progress *p, uint64_t fingerprint, double peak_memory);  /* draws the loss on a terminal */
void log_line(Log *l, const char *format, ...) PRINTF(2, 3);                /* to stdout, below the refreshed line */
