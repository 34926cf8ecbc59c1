/* schedule.h: the learning rate as a function of the step. */
#ifndef SCHEDULE_H
#define SCHEDULE_H
#define SCHEDULES "cosine|linear|constant|wsd"
typedef enum { COSINE, LINEAR, CONSTANT, WSD } Schedule;     /* in the order of the words */

/* A factor of the peak rate: linear warm-up over `warmup` steps to 1, then cosine or a straight
 * line down to `final`; constant; or wsd (warm-up, stable, decay): 1 until the last fifth, then a
 * straight line to `final`. step counts from 0; the lines end at `steps`, one after the last. */
double schedule_rate(Schedule s, long step, long steps, long warmup, double final);
#endif
