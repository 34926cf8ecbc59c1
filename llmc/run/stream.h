/* stream.h: text in and out of a generating model: a prompt becomes tokens, and tokens become text
 * on stdout.
 *
 * A token is a piece of text that may end within a character, or within what could become the stop
 * string. Such an end is kept back in the stream until the next tokens decide. */
#pragma once
#include "llmc/base/text.h"
#include "llmc/data/tokenizer.h"

typedef struct {                        /* how texts are written */
    const Tokenizer *tokenizer;         /* NULL: there is none; tokens are written as numbers */
    char *const *stops;     /* each ends a text before itself; NULL after the last, and for none of them */
    int   marked;                       /* 1: text shows which expert read it, */
    int   colored;                      /* 1: by color; 0: by [3] for expert 3 */
    int   terminal;                     /* 1: written by text_show, as a terminal may show it */
    int   answers;                      /* 1: texts are answers in a chat; leading spaces are not printed */
} TextStyle;

typedef struct {                        /* one text on its way out */
    const TextStyle *style;
    Text   text, experts;   /* bytes not yet printed; if marked, (int) the expert of each byte, or its token (View) */
    size_t prompt;                      /* how many of them are prompt, in which no stop string is searched */
    int    strip;                       /* 1: at the start of a text, where some tokenizers add a space */
    int    ended, color;                /* color: the expert whose color is on; -1: none */
    char   last;                        /* the last byte printed */
} Stream;

void stream_open(Stream *o, const TextStyle *style);
void stream_close(Stream *o);
void stream_restart(Stream *o);         /* for another text; what was not printed is dropped */

/* Add to the text. prompt: bytes as they are, or, if marked, the tokens ids (count) with the expert
 * of each. generated: a token that the model drew; ends the text where the first of the stop
 * strings begins. */
void stream_prompt(Stream *o, const char *text, size_t bytes, const int *ids, const int *experts, int count);
void stream_read(Stream *o, int token);         /* a token of the prompt that is part of the text */
void stream_generated(Stream *o, int token, int expert);

/* How many bytes of the text later tokens cannot change; end: the text is complete. stream_drop
 * removes bytes that were written. */
size_t stream_ready(const Stream *o, int end);
void stream_drop(Stream *o, size_t bytes);
void stream_print(Stream *o, int end);  /* writes and drops them */
/* Writes what stdout holds, or fails with EXIT_DISK. Where its reader has gone (`| head`), the
 * program ends by SIGPIPE, as others in a pipe do. */
void stream_flush(void);

/* A list of stop strings, NULL after the last; NULL: it is empty. stops_add: returns it with one
 * more, a copy, unless that is "" or there. stops_option: adds what a user wrote as -st: one
 * string, in which \n, \t and \\ are new line, tab and backslash, or a list in JSON, ["a", "b"].
 * stops_find: where in a text (bytes) from `from` on the first begins; `bytes` if none does. */
char **stops_add(char **stops, const char *text, size_t bytes);
char **stops_option(char **stops, const char *text);
size_t stops_find(char *const *stops, const char *text, size_t from, size_t bytes);
void   stops_free(char **stops);

/* The prompt of -i: the text itself; - is stdin, @name a file. free() it. */
char *prompt_read(const char *prompt, size_t *bytes);
/* What stdin has, or its next line with its end. Returns its bytes; -1: the end, or an error
 * (errno). More than MOST_INPUT bytes end the program: a device has no end. */
enum { MOST_INPUT = 64 << 20 };
long stdin_read(Text *text, int line);
/* The tokens of a text; free(*ids). begin: 1: the text begins a context: adds the token with which
 * the model's texts begin, and makes sure that there is at least one token. Without a tokenizer,
 * the text must be numbers below vocab: 0 and e if it is not. */
int   prompt_tokens(const Tokenizer *t, int vocab, const char *text, size_t bytes, int begin, int **ids,
                    size_t *count, Error *e);
/* The same, the last `most`, with a warning; returns how many. An error ends the program. */
int   prompt_encode(const Tokenizer *t, int vocab, const char *text, size_t bytes, int begin, int most, int **ids);
