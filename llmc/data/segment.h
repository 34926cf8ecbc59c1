/* segment.h: tokens in a file or in memory, and the rows of conversations. */
#pragma once
#include "llmc/base/base.h"

/* Samples that share rows of T inputs and targets (packing.c): n inputs of n+1 tokens. */
typedef struct { int64_t at; int inputs; } Sample;              /* at: of its first token */
typedef struct {
    int      T;
    Sample  *sample;                    /* those of a row one after another */
    int64_t *row;                       /* (rows + 1) the first sample of each */
    int64_t  rows, cut, unanswered;     /* cut: longer than T+1. unanswered: no target counts: left out */
    int      late;                      /* a later target counts */
} Packing;

/* Flags in tokens of conversations (32 bits): the first of a sample, and what the loss counts. */
#define TOKEN_FIRST  0x40000000u
#define TOKEN_COUNTS 0x80000000u
#define TOKEN_ID     0x3FFFFFFFu

/* A sequence of tokens that no window leaves: a file, or its training or held-out part. Tokens of
 * files stay on disk and are read with pread (a mapped file that shrinks would kill the process).
 * Text is tokenized once and stays in memory. */
typedef struct {
    char *path;
    int   fd;                           /* -1: not kept open */
    int   width;                        /* bytes of a token */
    void *memory;                       /* the tokens; NULL: they are in the file, from byte `start` on */
    int64_t  start, tokens, bytes;      /* bytes: of text */
    uint32_t max;                       /* the largest id and its first position */
    int64_t  max_at;
    int   is_chats;                     /* tokens have flags, and windows are rows of */
    Packing packing;
    int64_t *kept;                      /* NULL, or the windows of kept_T tokens that training reads (skip.c) */
    int64_t  kept_windows;
    int      kept_T;
} Segment;

/* Reads bytes of the segment's file, or says what is wrong with it. */
int data_read_at(const Segment *segment, void *to, size_t bytes, int64_t at, Error *e);
/* Finds the largest id, which must be an int. */
int data_scan(Segment *segment, Error *e);

/* `count` tokens as they are stored, flags included. */
int  data_read_raw(const Segment *p, int64_t first, int64_t count, uint32_t *out, Error *e);
/* Their ids, none larger than when the file was opened, so that none exceeds the embedding. */
int  data_read_tokens(const Segment *p, int64_t first, int64_t count, int *out, Error *e);

/* packing.c: the rows of T of a segment of conversations. 0 and a message: there are none. */
int  packing_make(Segment *p, int T, Error *e);
void packing_free(Packing *p);
enum { NO_TOKEN = -2 };                 /* the target of what fills a row */
/* Fills one row; the rest of it has input 0, target NO_TOKEN and position 0, ... */
int  packing_row(const Segment *p, int64_t row, int T, int *inputs, int *targets, int *positions, Error *e);
