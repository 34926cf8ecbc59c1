/* run.h: a training run: how it starts, from settings to a model that can be trained (run_open.c,
 * run_plan.c, run_start.c), and what it shows and reports meanwhile (run_validate.c, run_record.c).
 * What it saves: saves.h. The training itself: train_moe.c. */
#pragma once
#include "llmc/data/data.h"
#include "llmc/model/parallel.h"
#include "llmc/model/replay.h"
#include "llmc/ranks/group.h"
#include "device.h"
#include "generate.h"
#include "report.h"
#include "saves.h"

/* Seconds that the parts of the start took, by their names; one of them is running. */
enum { START_PARTS = 16 };
typedef struct { struct { const char *name; double seconds; } part[START_PARTS]; int count, running; } StartTimes;

/* A run, for one rank. The ranks of a process share data, tokenizer and checkpoint. */
typedef struct {
    Settings      s;
    Tokenizer    *tokenizer;            /* NULL: the data are ids of an unknown tokenizer */
    HfOrigin     *origin;               /* what the model came with, if it is one of a folder; else NULL */
    Data         *data;
    Launch        launch;               /* which process this is, of how many */
    ProcessGroup *processes;
    Parallel      parallel;             /* which rank this is, of how many */
    LocalDevices  local_devices;        /* the devices of this process */
    int           leads;                /* 1: rank 0; before there are ranks, process 0 */
    int           takes_signals;        /* 1: the rank that reports its process's signals */
    const Device *dev;
    int           elsewhere;            /* 1: dev is a GPU that is not here, for a plan */
    size_t        limit;                /* bytes that each rank may take of its device (-gm); 0: what it has */
    Config        config, dense;    /* dense: of the model in a folder whose MLPs became experts (-up); else unused */
    Recompute     recompute;            /* what -r means here */
    Model         model;
    Optimizer     optimizer;
    size_t        memory;               /* bytes of a rank's device that the plan takes, for samples, too */
    Generator     samples;              /* uses the model's weights */
    TextStyle     sample_style;
    Progress      progress;
    Log           log;
    Report       *report;               /* of rank 0 */
    char        **arguments;            /* the command line, then NULL */
    Replay        replay_micro[PHASES], replay_update[MUON_PERIODS];    /* of a micro-batch, of a slice's update */
    int           records;              /* 1: steps are recorded and replayed */
    Checkpoint   *from;                 /* the checkpoint that is resumed, or NULL */
    uint64_t      identity;             /* of the run that the folder's log has; 0: none */
    int           node;                 /* ranks of a node, or all (-zn) */
    Stages        stages;               /* of the batch (-ds) */
    int           first_micro_batches;  /* of a step of the first stage, on each rank */
    int           micro_batches;        /* of this step */
    int          *inputs, *targets, *positions;     /* (run_most_micro_batches,B,T) */
    int           new_rows;             /* of the vocabulary, that the folder's model does not have */
    int64_t       counted;              /* targets of the step that count, of all ranks: its loss is their mean */
    uint64_t     *keys;                 /* (run_most_micro_batches) of their dropout */
    double        started, session;     /* time of the program's start; seconds trained in this session */
    StartTimes    start_times;
    double        validated;            /* seconds that the last validation took; 0: none yet */
    Saves         saves;
    int64_t       first_step, waits;    /* of this session; how often the host waited for the device in its steps */
    int           shows_samples;
    int           locked;               /* 1: this process holds the folder's lock */
    int           lacks_gradients;      /* 1: there is no memory to keep them, so they are added to the momentum */
    int           restored;             /* 1: settings are those of the run that is resumed */
    int           finished;             /* 1: ran to the end; 0: stopped on request */
} Run;

static inline int run_most_micro_batches(const Run *r) { return r->first_micro_batches * r->stages.most; }
static inline int64_t samples_per_step(const Run *r) {
    return (int64_t)r->s.batch * r->parallel.ranks * r->micro_batches;
}
static inline int64_t tokens_per_step(const Run *r) { return samples_per_step(r) * r->s.seq; }
static inline int run_only_plans(const Run *r) { return r->s.plans; }

/* The start, in this order. Errors end the program with a message, before anything is written. */
void run_find_launch(Run *r);           /* which process this is, of how many */
void run_open_folder(Run *r);           /* does the folder hold another run, and may it be changed? */
void run_choose_device(Run *r);
void run_open_data(Run *r);
void run_choose_model(Run *r);
void run_join_ranks(Run *r);            /* connects to the other processes, which must have the same settings */
void run_plan(Run *r);                  /* batch, model and optimizer; allocates nothing */
void run_skip_windows(Run *r);          /* -sk, as a number */
void run_skip_unread(Run *r);           /* -sk auto, after run_plan: what the steps would not read */
void run_plan_saves(Run *r);            /* does the host have memory for a copy of what is saved? */
/* Bytes of the host's memory that this process takes, with a copy of so many on each of its ranks:
 * measured so far, and counted for what comes. list: NULL, or receives its parts. */
size_t run_host_memory(const Run *r, size_t copy_bytes, Text *list);
void run_print_plan(const Run *r);
/* The most bytes of a disk that its saves take at a time. available: those that are free; below 0:
 * not known. */
double run_disk_bytes(const Run *r, OUT double *available);
int  run_estimate(const Run *r, Text *out);  /* lines of the plan: how long it would take. 0: no rates are known */
/* Seconds that its steps take on so many GPUs of this name (device_rates), in such batches. */
double run_time_on(const Run *r, const char *gpu, int gpus, Recompute again, int batch);
int  run_check_gradients(const Run *r);     /* -gc 1, instead of training; returns an exit code */
void run_allocate(Run *r);
void run_start_or_resume(Run *r);       /* weights, state and progress; from here on the folder belongs to this run */
/* Parts of it that another file has. */
void run_announce(const Run *r, const char *what, const char *folder, double bytes);    /* before many bytes are read */
void run_claim_folder(Run *r);
void run_check_memory(const Run *r);    /* fails with the same message on all ranks */
_Noreturn void run_out_of_memory(const Run *r);

/* The next part of the start begins, or one goes on that was interrupted. */
void run_time_start(Run *r, const char *name);
void run_report_start(Run *r);          /* after the first step, the last part: where the time went, in the log */

/* Reports. */
void run_begin_log(Run *r);
void run_forewarn(Run *r, const StepStats *t);      /* once, on a CPU: of a run that would take half a day or more */
/* Says that the run has diverged, or recovered, and what can be done. Before p->step is t->step. */
void run_follow_course(Run *r, const StepStats *t);
double run_chance(const Run *r);                    /* the loss of guessing, in nats: ln of the vocabulary */
void run_bad_step(Run *r, const StepStats *t, int tensor);  /* of a gradient that is not finite; fails after too many */
double run_seconds_left(const Run *r, int64_t step);  /* after `step`: of the steps and the validations that are left */
void run_validate_short(Run *r, int loads);     /* for the report, with loads; only if run_short_batches */
int64_t run_short_batches(const Run *r, int64_t *every);    /* of a short validation; every: its interval. 0: none */
int  run_validate(Run *r);                      /* saves the best weights; 0: a request to stop came before the end */
void run_show_sample(Run *r);
void run_report(Run *r);                                    /* renews report.html every few seconds */
double run_peak_memory(void);                               /* of this process, in bytes */
void run_end_log(Run *r);
