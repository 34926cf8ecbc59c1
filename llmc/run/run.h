/* run.h: a training run, from its settings to a model that can be trained (run.c), and what is seen of it while it is (follow.c).
 * The training itself: train_moe.c. */
#ifndef RUN_H
#define RUN_H
#include "llmc/data/data.h"
#include "llmc/model/decode.h"
#include "log.h"
#include "llmc/model/parallel.h"
#include "settings.h"
#include "llmc/ranks/group.h"
#include "llmc/model/replay.h"
#include "device.h"

/* What a run consists of, for one rank. Data, tokenizer and checkpoint are shared by all of a process. */
typedef struct {
    Settings   s;
    Tokenizer *tokenizer;               /* NULL: the data are ids of an unknown tokenizer */
    Data      *data;
    Launch     launch;                  /* which process this is, of how many */
    ProcessGroup     *processes;
    Parallel   parallel;                /* which rank, of how many */
    LocalDevices local_devices;                  /* the devices of this process */
    int        leads;                   /* 1: rank 0, or while there are no ranks yet process 0 */
    const Device *dev;
    Config     config;
    Model      model;
    Optimizer  optimizer;
    Decoder    decoder;                 /* for samples; shares the weights */
    Progress   progress;
    Log        log;
    Replay     replay_micro[PHASES], replay_update;
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

static inline int64_t samples_per_step(const Run *r) { return (int64_t)r->s.batch * r->parallel.ranks * r->micro_batches; }
static inline int64_t tokens_per_step(const Run *r) { return samples_per_step(r) * r->s.seq; }

/* In this order. What is wrong ends the program, with a message and before anything is written. */
void run_find_launch(Run *r);           /* which process this is among how many */
void run_open_folder(Run *r);           /* whose run is in it, and may it be touched? */
void run_choose_device(Run *r);
void run_open_data(Run *r);
void run_choose_model(Run *r);
void run_join_ranks(Run *r);            /* all processes have come, and are about to do the same */
void run_plan(Run *r);                  /* batch, model and optimizer; no memory yet */
void run_print_plan(const Run *r);
void run_allocate(Run *r);
void run_start_or_resume(Run *r);       /* weights, state and progress; from here on the folder is this run's */

/* What is seen of it. */
void run_begin_log(Run *r);
void run_bad_step(Run *r, const StepStats *t, int tensor);  /* whose gradient is not finite; gives up when it goes on */
int  run_validate(Run *r);                                  /* 1: the best so far */
void run_show_tile_waste(Run *r);
void run_show_sample(Run *r);
int  run_save(Run *r);                                      /* a checkpoint; 0: not, on any rank */
void run_end_log(Run *r);
#endif
