/* log.h: what a run says. One list of step statistics feeds the terminal, main.log (llm.c's keys) and log.jsonl. */
#ifndef LOG_H
#define LOG_H
#include <stdio.h>
#include "llmc/files/checkpoint.h"
#include "llmc/base/json.h"

typedef struct {                        /* one optimizer step */
    int64_t step;                       /* 1 for the first */
    double loss, norm, lr, ms, tok_s;   /* nats per token; global gradient norm */
    double balance, z, att_balance;     /* means over the routers of a kind; 0: the model has none */
    double max_load;                    /* largest load of an expert over the mean of its router */
    int    dead, experts;               /* experts without a token, of all */
    double eta;                         /* seconds to the last step */
} StepStats;

typedef struct {
    FILE *main, *json;                  /* NULL: that file could not be written any more */
    char *folder;
    int   silent;                       /* of a rank that leaves the talking to rank 0 */
    int   terminal;                     /* stdout is one: the line of the current step is refreshed in place */
    int   open_line;
    long  lost;                         /* lines that could not be written */
    double shown;                       /* when the line was last refreshed */
    double *curve;  int points;         /* (points,2) step and loss, for the terminal's curve */
} Log;

/* Opens folder/main.log and folder/log.jsonl. resume_step >= 0: goes on after that step; lines of later steps, which a
 * resumed run takes again, are cut. */
int  log_open(Log *l, const char *folder, int64_t resume_step, Error *e);
void log_silence(Log *l);                                   /* instead: what is logged goes nowhere */
void log_close(Log *l);
void log_event(Log *l, const char *json_object);            /* a line of log.jsonl */

/* loss_z, norm_z: z-scores, NAN while there are too few values. last: a step whose line must stay. */
void log_step(Log *l, const StepStats *s, int64_t steps, double loss_z, double norm_z, int keep_line);
void log_validation(Log *l, int64_t step, double loss, double bits_per_byte, double best, int64_t best_step);
void log_loads(Log *l, int64_t step, const Model *m, const int *load, int show);
void log_sample(Log *l, int64_t step, const char *text, size_t bytes);
void log_end(Log *l, const Progress *p, uint64_t fingerprint);  /* on a terminal, also the curve of the loss */
void log_line(Log *l, const char *format, ...) PRINTF(2, 3);    /* to stdout, below the refreshed line */

/* The z-score of x against the window (NAN until it is full), then x joins it if it is finite. */
double window_score(Window *w, double x);

/* Statistics of all routers from their downloaded loads (routers, E) and losses (routers, 2). */
void router_stats(StepStats *s, const Model *m, const int *load, const double *losses);
const char *router_name(const Model *m, int router, char text[48]);
/* offset of its loads in `load`; its number of experts */
int  router_width(const Model *m, int router, int *experts);
#endif
