/* data_impl.h: what a Data is, for data.c, which draws samples, and data_open.c, which finds the files. */
#ifndef DATA_IMPL_H
#define DATA_IMPL_H
#include "data.h"

/* A sequence of tokens that no window leaves: a file, or its training or held-out part. Tokens of files stay on disk and are
 * read with pread (a mapped file that shrinks would kill the process). Text is tokenized once and stays in memory. */
typedef struct {
    char *path;
    int   fd;                           /* -1: not kept open */
    int   width;                        /* bytes of a token */
    void *memory;                       /* the tokens; NULL: they are in the file, from byte `start` on */
    int64_t  start, tokens;
    uint32_t max;                       /* the largest id and its first position */
    int64_t  max_at;
} Segment;

typedef struct {
    const char *name;
    uint32_t magic, version;            /* 0: the file has no header */
    int header, width;                  /* bytes of the header and of a token */
} Format;

struct Data {
    Segment *segment[2];                /* of each split */
    int   segments[2];
    int64_t tokens[2], bytes[2];
    int   descriptors, files, held_out, is_text, is_bytes, is_fallback, max_id;
    const Format *format;               /* of the first file: the others must have tokens of the same width */
    const Tokenizer *tokenizer;         /* while the data are opened */
    uint64_t fingerprint;
    char *description;
};

/* Reads bytes of the segment's file, or says what is wrong with it. */
int data_read_at(const Segment *segment, void *to, size_t bytes, int64_t at, Error *e);
/* Finds the largest id, which must be an int. */
int data_scan(Segment *segment, Error *e);
#endif
