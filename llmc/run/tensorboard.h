/* tensorboard.h: event files, which `tensorboard --logdir FOLDER` opens. A file is a list of records, each an Event of TensorFlow's
 * event.proto; every session of a run adds a file, and a record says from which step on it replaces what earlier ones wrote. */
#ifndef TENSORBOARD_H
#define TENSORBOARD_H
#include "llmc/base/text.h"

typedef struct Board Board;

/* A new file in the folder, for the steps after `step`. NULL and e: it cannot be made. */
Board *board_open(const char *folder, int64_t step, Error *e);
void   board_close(Board *b);

/* Adds a record for a step: board_begin, values, board_end, which writes it. If it cannot be written, it is dropped and the file
 * stays whole; that is said once, and the next record is tried again. All do nothing if b is NULL. */
void board_begin(Board *b, int64_t step);
void board_scalar(Board *b, const char *tag, double x);
void board_counts(Board *b, const char *tag, const int *count, int n);         /* a histogram: how often each of 0 to n-1 was */
void board_text(Board *b, const char *tag, const char *text, size_t bytes);    /* shown as it is, in lines */
void board_end(Board *b);
#endif
