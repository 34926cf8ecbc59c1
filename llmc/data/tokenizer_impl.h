/* tokenizer_impl.h: what a Tokenizer is, for tokenizer.c and tokenizer_json.c. */
#pragma once
#include "tokenizer.h"
#include "codeset.h"
#include "pattern.h"
#include "llmc/base/text.h"

typedef struct { const char *at; size_t bytes; } Slice;
typedef struct { uint64_t pair; int rank, id; } Merge;                  /* pair: left id << 32 | right id */
/* A token that is written as text. strips: spaces before it (1) or after it (2) belong to it. */
typedef struct { char *at; size_t bytes; int id, normalized, strips, is_word, is_special; Slice content; } Added;
enum { NEVER, FIRST, ALWAYS };
enum { ADDED_MOST = 256 };              /* bytes of an added token: a position of a text costs no more steps */
#define UNDERLINE "\xE2\x96\x81"        /* U+2581, SentencePiece's space */

/* A step of the pre-tokenizer cuts each piece of text: at the matches of a pattern, which are then
 * pieces of their own, or not. Without a pattern it puts a space in front of it. */
typedef enum { ISOLATED, REMOVED, WITH_PREVIOUS, WITH_NEXT, CONTIGUOUS, BEHAVIORS } Behavior;
typedef struct { Pattern *pattern; Behavior behavior; int invert; } Step;   /* invert: what does not match counts */
/* A step of the normalizer: NFC, NFD; a text in front; what matches is replaced by a text. */
typedef struct { enum { NFC, NFD, PREPEND, REPLACE } kind; Pattern *pattern; char *text; } Change;
enum { STEPS = 8 };
#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define CL100K_PATTERN "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

struct Tokenizer {
    char *json; size_t json_bytes;
    char *chat, *answer_end;            /* tokenizer_set_chat, tokenizer_set_answer_end */
    int vocab, model_tokens, bos, eos, is_bytes;
    int behind;                         /* what the post-processor puts behind a text, or -1 */
    int splits;                         /* 1: control tokens of a text are text */
    int eos_named;                      /* eos has no usual name, but tokenizer_config.json names it */
    /* what happens to text, in this order */
    Change change[STEPS]; int changes;
    int metaspace, metaspace_prepend;   /* U+2581 for spaces, and in front */
    Step step[STEPS]; int steps;        /* each cuts the pieces of the one before */
    int byte_level, ignore_merges;
    int strip;                          /* decoding drops one space at the start */
    /* tokens */
    char *arena, *arena_end;
    Slice *symbol, *piece;              /* (vocab) what merging makes, what decoding gives */
    int *words; size_t words_mask;      /* hash table of symbols: id or -1 */
    Merge *merges; size_t merges_mask;  /* hash table of pairs; rank -1: a free entry */
    int byte_id[256], lacks_bytes;      /* lacks: some that UTF-8 never has; their id is -1 */
    Added *added; int added_count, added_start[2][257];     /* sorted: the raw and the normalized ones, then by bytes */
    int added_flags;                    /* some have strips or is_word */
    CodeSet space, letter;              /* \s, and what is_word may not be next to; if added_flags */
};

void   tokenizer_normalize(const Tokenizer *t, const char *s, size_t n, Text *out);
Merge *tokenizer_merge(const Tokenizer *t, uint64_t pair);      /* its entry, or the free one where it belongs */
uint32_t tokenizer_byte_code(int byte);                         /* the character for a byte in a byte-level file */
