/* tokenizer.h: text to token ids and back, from the tokenizer.json of a Hugging Face folder or byte
 * by byte.
 *
 * Two families of byte-pair encoding (BPE) are read; anything else is refused with the name of what
 * is not supported:
 *   byte-level  GPT-2, OLMoE, Granite, Qwen, Llama-3: text is cut into words by patterns
 *               (pattern.h), words into bytes, and pairs are merged within a word. Every byte
 *               string can be encoded, valid UTF-8 or not; if a file has no tokens for bytes that
 *               UTF-8 never has (OLMoE, GPT-NeoX), such a byte becomes U+FFFD.
 *   SentencePiece  Llama-2, Mixtral, JetMoE: spaces become U+2581, characters are merged, rare ones
 *                  fall back to bytes.
 * Decoding is the concatenation of pieces. Encoding and decoding give the same bytes back, except
 * where the file's normalizer changes them, a step of its pre_tokenizer removes some or puts a
 * space in front, or an added token takes the spaces around it (lstrip, rstrip). SentencePiece
 * gives a space for U+2581, and its newer spelling (Metaspace) has the same ids for a text with and
 * without one leading space, and gives back the one without. What encodes adds no token in front of
 * a text, but for documents: tokenizer_begin does. */
#pragma once
#include "jobs.h"
#include "meter.h"
#include "llmc/base/base.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"

typedef struct Tokenizer Tokenizer;
Tokenizer *tokenizer_bytes(void);                                               /* 256 tokens, id = byte */
/* Of a tokenizer.json, and the files beside it that name more tokens. */
Tokenizer *tokenizer_load(const char *path, Error *e);
Tokenizer *tokenizer_load_text(const char *json, size_t bytes, Error *e);       /* of its text */
void       tokenizer_free(Tokenizer *t);
/* The text that tokenizer_load reads: that of the file, with the added tokens of the files beside
 * it (tokenizer_files.c); free() it. *eos: NULL, or the end of a text that they name, or NULL. */
char *tokenizer_read(const char *path, size_t *bytes, char **eos, Error *e);

/* The special tokens that Transformers 5.24 gives to chat templates, {"bos_token": "<s>", ...}, in
 * memory; strings are those of config and map, which must live as long: tokenizer_config.json and
 * special_tokens_map.json, or NULL. The second counts more, but nothing where the first has
 * added_tokens_decoder. */
JsonValue *tokenizer_specials(Json *memory, const JsonValue *config, const JsonValue *map);

const char *tokenizer_json(const Tokenizer *t, size_t *bytes);           /* what to save as tokenizer.json */
/* a chat template to be saved beside it; NULL: none. It takes it */
void   tokenizer_set_chat(Tokenizer *t, char *jinja);
const char *tokenizer_chat(const Tokenizer *t);
/* the string that ends an answer in conversations that the model learns; NULL: it learns none */
void   tokenizer_set_answer_end(Tokenizer *t, const char *end);
const char *tokenizer_answer_end(const Tokenizer *t);
uint64_t tokenizer_hash(const Tokenizer *t);            /* of that text, and of how control tokens are encoded */
int    tokenizer_is_bytes(const Tokenizer *t);
int    tokenizer_vocab(const Tokenizer *t);                              /* ids are 0 .. vocab-1 */
int    tokenizer_eos(const Tokenizer *t);                   /* of a document, by its usual names; -1 if there is none */
int    tokenizer_ends(const Tokenizer *t, int *ids, int most);  /* all that end a text or a turn; returns how many */
int    tokenizer_bos(const Tokenizer *t);                           /* what the file adds in front of a text, or -1 */
int    tokenizer_first(const Tokenizer *t);     /* what begins a text without tokens: bos, else eos, else a newline */
int    tokenizer_id(const Tokenizer *t, const char *piece);              /* -1 if no token is exactly this */

/* Control tokens: special ones, such as <|im_end|>, which a text may spell out. As in Transformers,
 * they are encoded as themselves, whoever wrote them; after split_controls(t, 1), as the text that
 * they are, its split_special_tokens. given: NULL, or for each byte 1 if it is a user's; others are
 * a chat template's, whose control tokens are always themselves. count, first: of those in the
 * user's bytes, or partly in them, and the id of the first. */
typedef struct { const unsigned char *given; size_t count; int first; } Controls;
void   controls_add(Controls *to, const Controls *more);                /* to may be NULL */
void   tokenizer_split_controls(Tokenizer *t, int splits);
int    tokenizer_splits_controls(const Tokenizer *t);
/* Can it tell whose a control token is? Not if the normalizer changes the text before that. */
int    tokenizer_finds_controls(const Tokenizer *t);

/* Returns the number of ids; free(*ids). */
size_t tokenizer_encode(const Tokenizer *t, const char *text, size_t bytes, int **ids);
/* The same of a part of it. What comes before an added token and what follows do not change each
 * other's ids: seams, or NULL, gets all places where one ends, and `from` is 0 or such a place.
 * controls: NULL: all bytes are a user's, and nothing is counted. */
typedef struct { size_t bytes, ids; } TokenSeam;                        /* both of the part before it */
size_t tokenizer_encode_part(const Tokenizer *t, const char *text, size_t from, size_t end, int **ids, Text *seams,
                             Controls *controls);
/* Puts the token in front of a text's ids that the tokenizer puts there, if any (tokenizer_bos); if
 * the text needs one, tokenizer_first. One rule for all texts that a model reads, but those of chat
 * templates, which write it themselves. Returns the new count. */
size_t tokenizer_begin(const Tokenizer *t, int **ids, size_t count, int needs_one);
/* Many documents on all cores, each begun so, and followed by the token `end` (-1: by none). *ids:
 * uint16_t or uint32_t, as wide as tokenizer_width says; free(*ids). The same ids on any number of
 * threads. */
size_t tokenizer_encode_documents(const Tokenizer *t, const Document *documents, size_t count, int end, Meter *meter,
                                  void **ids, Controls *controls);
int    tokenizer_width(const Tokenizer *t);
/* The bytes of a token; none for special tokens and unused ids. */
const char *tokenizer_piece(const Tokenizer *t, int id, size_t *bytes);
/* The text that an added token stands for, special or not; NULL: it is no such token. */
const char *tokenizer_added(const Tokenizer *t, int id, size_t *bytes);
/* The same, but of a special token what it stands for in a text. */
const char *tokenizer_shown(const Tokenizer *t, int id, size_t *bytes);
/* The bytes of all of them, NUL at the end; free it. */
char  *tokenizer_decode(const Tokenizer *t, const int *ids, size_t n, size_t *bytes);
