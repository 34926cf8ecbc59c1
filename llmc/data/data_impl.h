/* data_impl.h: what a Data is, for data.c, which draws samples, and data_open.c, which finds the files. */
#ifndef DATA_IMPL_H
#define DATA_IMPL_H
#include "chat.h"
#include "data.h"
#include "documents.h"
#include "tokenizer.h"

/* Samples that share rows of T inputs and targets (packing.c). A sample of n+1 tokens has n inputs. */
typedef struct { int64_t at; int inputs; } Sample;              /* at: of its first token */
typedef struct {
    int      T;
    Sample  *sample;                    /* those of a row one after another */
    int64_t *row;                       /* (rows + 1) the first sample of each */
    int64_t  rows, cut, unanswered;     /* cut: longer than T+1 tokens. unanswered: none of the T targets counts: left out */
    int      late;                      /* a later target counts */
} Packing;

/* Tokens of conversations, 32 bits each, have two flags: the first token of a sample, and those that the loss counts. */
#define TOKEN_FIRST  0x40000000u
#define TOKEN_COUNTS 0x80000000u
#define TOKEN_ID     0x3FFFFFFFu

/* A sequence of tokens that no window leaves: a file, or its training or held-out part. Tokens of files stay on disk and are
 * read with pread (a mapped file that shrinks would kill the process). Text is tokenized once and stays in memory. */
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
} Segment;

typedef struct {
    const char *name;
    uint32_t magic, version;            /* 0: the file has no header */
    int header, width;                  /* bytes of the header and of a token */
} Format;

typedef struct { Source *at; int *use; int count; } Texts;     /* use: a Split, or BOTH: hold out a tenth */
enum { BOTH = 2 };

enum { HELD_OUT_TENTH = 1, HELD_OUT_DOCUMENTS, HELD_OUT_LAST };

struct Data {
    Segment *segment[2];                /* of each split */
    int   segments[2];
    int64_t tokens[2], bytes[2];
    int   descriptors, files, held_out, is_text, is_bytes, is_fallback, any_bytes, has_chats, max_id;
    const Format *format;               /* of the first file: the others must have tokens of the same width */
    uint64_t fingerprint;
    char *description;
    Texts texts;                        /* until they are encoded */
    uint64_t text_hash;                 /* of all bytes of the texts; 0: nothing to cache */
    uint64_t recipe_hash;               /* of how the tokenizer is trained; 0: it is loaded */
    uint64_t tokenizer_hash;            /* of its file; 0: not trained yet */
    int   cached;                       /* the tokens were read from a cache */
    Chat  chat;                         /* how conversations are written */
};

/* Reads bytes of the segment's file, or says what is wrong with it. */
int data_read_at(const Segment *segment, void *to, size_t bytes, int64_t at, Error *e);
/* Finds the largest id, which must be an int. */
int data_scan(Segment *segment, Error *e);

Segment *data_add_segment(Data *d, Split split, const char *path, int width);
void data_add_tokens(Data *d, Split split, const char *path, int fd, int width, int64_t start, int64_t tokens);

int data_too_small(const char *path, int64_t count, Error *e);          /* 0 and a message: no tenth to hold out */

/* data.c: `count` tokens as they are stored, flags included */
int  data_read_raw(const Segment *p, int64_t first, int64_t count, uint32_t *out, Error *e);

/* packing.c: finds the rows of T for a segment of conversations. 0 and a message: there are none. */
int  packing_make(Segment *p, int T, Error *e);
void packing_free(Packing *p);
/* Fills one row; the rest of it has input 0, target -1 and position 0, ... */
int  packing_row(const Segment *p, int64_t row, int T, int *inputs, int *targets, int *positions, Error *e);

/* data_text.c: makes segments of the texts. request: NULL, or what data_open_text was asked for. */
int data_encode_texts(Data *d, const DataRequest *request, Tokenizer **tokenizer, Error *e);
int data_load_tokenizer(const DataRequest *request, Tokenizer **tokenizer, Error *e);

/* token_cache.c */
int cache_read(Data *d, const char *folder, Tokenizer **tokenizer);    /* 0: there is none, or of other data */
#endif
