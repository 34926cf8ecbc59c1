/* progress.h: how far a run has come: what resuming needs besides the weights and the optimizer's
 * state. Checkpoints store it as JSON that they do not interpret. */
#pragma once
#include "llmc/base/json.h"
#include "llmc/base/text.h"

enum { WINDOW = 128 };
typedef struct { double x[WINDOW]; int count, next; } Window;    /* the latest values of a statistic, for its z-score */

/* The best validation. step -1: none yet. tokens, length: of its sequences; 0: not noted. */
typedef struct { double loss; int64_t step, tokens, length; } Best;

typedef struct {
    int64_t  step, samples, tokens;     /* optimizer steps done, training samples and tokens used */
    int      updates, bad_steps;    /* steps that changed the weights; consecutive steps without a finite gradient */
    int      unvalidated;               /* 1: stopped in the validation of `step`, which the resumed run repeats */
    double   seconds;                   /* of training, over all sessions */
    Best     best;
    uint64_t seed, data;                /* data: its fingerprint */
    uint64_t run;                       /* a random number that all files of the run have; 0: an older program's run */
    Window   loss, norm;
    double   first, lowest;             /* loss of the first step, lowest mean of consecutive losses; 0: not known */
    int64_t  sound, diverged;           /* the last step near that mean; the step at which it was lost for good, or 0 */
} Progress;

/* Is the learned lost? RECENT consecutive losses above a bound say that a run has diverged, the
 * same number below it that it has recovered. The bound is half of the way back from the lowest
 * mean of RECENT losses to the first loss, at least 1 nat above that mean; at most a tenth, at
 * least half a nat, above the first loss or chance (ln of the vocabulary), whichever is more. A
 * spike that is shorter than RECENT steps passes, and so does the noise of warm-up. */
enum { RECENT = 16 };
typedef enum { COURSE_SAME, COURSE_DIVERGED, COURSE_RECOVERED } Course;
/* After window_score has taken the loss of step p->step + 1. chance: nats. */
Course progress_course(Progress *p, double loss, double chance);
double progress_bound(const Progress *p, double chance);
/* Losses on other data do not compare: forgets them, and the best. */
void   progress_new_data(Progress *p);

/* The z-score of x relative to the window (NAN until it is full), which a finite x then enters. */
double window_score(Window *w, double x);

/* Members of a JSON object, without braces. device: its name, for the reader's information. */
void     progress_to_json(const Progress *p, const char *device, Text *out);
/* run: a run.json. 0 and e: a member is missing, of another type, out of range, or unknown. */
int      progress_from_json(const JsonValue *run, Progress *p, Error *e);
