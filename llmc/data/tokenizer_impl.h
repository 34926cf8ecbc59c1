/* tokenizer_impl.h: what a Tokenizer is, for tokenizer.c and tokenizer_json.c. */
#ifndef TOKENIZER_IMPL_H
#define TOKENIZER_IMPL_H
#include "tokenizer.h"
#include "pretokenizer.h"
#include "llmc/base/text.h"

typedef struct { const char *at; size_t bytes; } Slice;
typedef struct { uint64_t pair; int rank, id; } Merge;                  /* pair: left id << 32 | right id */
typedef struct { char *at; size_t bytes; int id, normalized; Slice content; } Added;   /* at: the text it stands for */
enum { NEVER, FIRST, ALWAYS };
enum { ADDED_MOST = 256 };              /* bytes of an added token: a position of a text costs no more steps */

struct Tokenizer {
    char *json; size_t json_bytes;
    char *chat, *answer_end;            /* tokenizer_set_chat, tokenizer_set_answer_end */
    int vocab, model_vocab, bos, eos, is_bytes;
    /* what happens to text, in this order */
    int nfc, prepend, replace;          /* normalizers: NFC; U+2581 before it; U+2581 for spaces */
    int metaspace, metaspace_prepend;   /* the newer spelling of the last two */
    PreTokenizer scanner[8]; int scanners;              /* each cuts the words of the one before */
    int byte_level, ignore_merges;
    int strip;                          /* decoding drops one space at the start */
    /* tokens */
    char *arena, *arena_end;
    Slice *symbol, *piece;              /* (vocab) what merging makes, what decoding gives */
    int *words; size_t words_mask;      /* hash table of symbols: id or -1 */
    Merge *merges; size_t merges_mask;  /* hash table of pairs; rank -1: a free entry */
    int byte_id[256], lacks_bytes;      /* lacks: some that UTF-8 never has; their id is -1 */
    Added *added; int added_count, added_start[2][257];     /* sorted: the raw and the normalized ones, then by bytes */
};

void   tokenizer_normalize(const Tokenizer *t, const char *s, size_t n, Text *out);
Merge *tokenizer_merge(const Tokenizer *t, uint64_t pair);      /* its entry, or the free one where it belongs */
uint32_t tokenizer_byte_code(int byte);                         /* the character for a byte in a byte-level file */
#endif
