/* schedule.h: what changes in the course of a run, as a function of the step: the rate,
 * the batch, targets. */
#pragma once
#include "llmc/base/base.h"
#define SCHEDULES "cosine|linear|constant|wsd"
typedef enum { COSINE, LINEAR, CONSTANT, WSD } Schedule;     /* in the order of the words */

/* A factor of the peak rate: linear warm-up over `warmup` steps to 1, then cosine or a straight
 * line down to `final`; constant; or wsd (warm-up, stable, decay): 1, and in the last `decay` of
 * the steps after warm-up a straight line to `final`. step counts from 0; the lines end at `steps`,
 * one after the last. */
double schedule_rate(Schedule s, long step, long steps, long warmup, double final, double decay);

/* Weights of the second and the third next token as targets (Model.further_weight) when the part
 * `done` of a run is done: first and first / 2. The third's falls to 0 in the first third of the
 * run, then the second's in the second: the further away, the sooner the model is too small for it.
 * Source: modded-nanogpt, github.com/KellerJordan/modded-nanogpt */
void schedule_further(double done, double first, float weight[2]);

/* A run has stages of equally many steps; those of stage i have times[i] times the tokens of the
 * first stage's. count is 1 without stages. Source: as schedule_further. */
enum { MOST_STAGES = 8 };
typedef struct { int count, most, times[MOST_STAGES]; } Stages;        /* most: the largest of times */
int     stages_parse(Stages *s, const char *text, Error *e);    /* "1:2:3"; "": none. 0: what is wrong with it */
int     stages_at(const Stages *s, int64_t step, int64_t steps);        /* times, in this step of so many */
int64_t stages_before(const Stages *s, int64_t step, int64_t steps);    /* their sum over the steps before */
