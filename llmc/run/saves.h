/* saves.h: what a run saves while it is trained: checkpoints, by steps, by the clock and request,
 * and its best weights. All ranks call these in the same order, but for saves_due, saves_busy. */
#pragma once
#include "llmc/files/checkpoint.h"
#include "llmc/model/parallel.h"
#include "log.h"
#include "progress.h"
#include "settings.h"

typedef struct {
    const Settings *s;
    Progress *p;        /* its step is what is saved; its best goes back to an earlier one if that cannot be saved */
    Log      *log;
    const Parallel *parallel;
    Snapshot  what;                     /* of the run; step and progress are set by each save */
    Saver    *saver;
    size_t    bytes;                    /* of a checkpoint, that this rank writes */
    size_t    copy_bytes;               /* of host memory for a copy of what a rank saves; 0: steps wait */
    int       copies;                   /* 1: saves make a copy */
    enum { NO_SAVE, SAVES_STATE, SAVES_BEST } under_way;
    int64_t   late;                     /* the step of one that was put off; 0: none */
    int       timed;                    /* 1: it was asked for by the clock, and may fail without consequences */
    int64_t   step, due;                /* that it saves, and was to save: an earlier one, if it was put off; else 0 */
    double    paused;                   /* seconds that the steps waited for it */
    double    at, cost;             /* time of the last save, or of the first step; seconds that it cost, 0: none yet */
    int64_t   saved_step;               /* of this session; -1: none. -sv none: the last that was due */
    Saved     saved;                    /* what the last save has saved */
    int       failed;                   /* saves in a row */
    int64_t   lost_best;                /* the step of the best weights, if they could not be saved; else -1 */
    int       best_is_last;             /* 1: the weights of the last step are the best */
    Best      best_before;              /* which counts again if those that are being saved cannot be */
    int       has_fingerprint;
    uint64_t  fingerprint;              /* of the weights of the last step */
} Saves;

/* copy_bytes: as in the struct, of this rank. */
void saves_open(Saves *v, const Settings *s, Progress *p, Log *log, const Parallel *parallel, Snapshot what,
                size_t copy_bytes);
int  saves_due(const Saves *v);         /* 1: rank 0's clock asks for a checkpoint (-nt) */
/* A checkpoint of this step, written while training goes on (checkpoint.h), unless this waits. If
 * the one before is not complete after PATIENCE seconds, it is put off until that is. */
enum { PATIENCE = 5 };
void saves_begin(Saves *v, int timed, int waits);
int  saves_put_off(const Saves *v);     /* 1: one was put off, and can begin now */
int  saves_busy(const Saves *v);        /* 1: this rank is still writing */
void saves_follow(Saves *v, int waits); /* when no rank is: the next part of the save, or its end; or waits for that */
int  saves_best(Saves *v, Best before); /* these weights, as the best; 0: they could not be saved */
uint64_t saves_fingerprint(Saves *v);   /* of all weights, for rank 0 */
void saves_newest(const char *out, char text[64]);         /* "the checkpoint of step 400", for messages */
