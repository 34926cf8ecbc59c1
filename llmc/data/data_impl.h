/* data_impl.h: what a Data is, for data.c (samples) and data_open.c (files). */
#pragma once
#include "chat.h"
#include "data.h"
#include "documents.h"
#include "segment.h"
#include "tokenizer.h"

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
    uint64_t fingerprint, without_bos;  /* without_bos: what it was before texts began with that token */
    char *description;
    Texts texts;                        /* until they are encoded */
    uint64_t text_hash;                 /* of all bytes of the texts; 0: nothing to cache */
    uint64_t recipe_hash;               /* of how the tokenizer is trained; 0: it is loaded */
    uint64_t tokenizer_hash;            /* of its file; 0: not trained yet */
    int   cached;                       /* the tokens were read from a cache */
    int   bos;                          /* what texts begin with, if the tokenizer puts one there; else -1 */
    Chat  chat;                         /* how conversations are written */
    const char *field;                  /* see form_read; "": none; while texts are encoded */
};

Segment *data_add_segment(Data *d, Split split, const char *path, int width);
void data_add_tokens(Data *d, Split split, const char *path, int fd, int width, int64_t start, int64_t tokens);

/* Windows of a text, kept or not: as many as fit at all phases 0 .. T-1; one if one fits. */
int64_t data_windows(const Segment *p, int T);
int data_too_small(const char *path, int64_t count, Error *e);          /* 0 and a message: no tenth to hold out */

/* data_text.c: makes segments of the texts. request: NULL, or what data_open_text was asked for. */
int data_encode_texts(Data *d, const DataRequest *request, Tokenizer **tokenizer, Error *e);
int data_load_tokenizer(const DataRequest *request, Tokenizer **tokenizer, Error *e);

/* token_cache.c */
int cache_read(Data *d, const char *folder, Tokenizer **tokenizer);    /* 0: there is none, or of other data */
