/* data.h: where training tokens come from.
 *
 * A path (-i for training, -j for validation) may be
 *   a folder   the first of these that it holds: *_train*.bin and *_val*.bin (llm.c shards),
 *              train.bin and val.bin (nanoGPT), both train.txt and val.txt, input.txt, nothing but
 *              one *.txt, any other files (text, a document in each; no *.bin)
 *   a pattern  whose matches are files as below: 'fineweb_train_*.bin'
 *   a file     an llm.c shard by its first four bytes; nanoGPT's headerless uint16 if it is called
 *              train.bin or val.bin; JSON, a document or conversation in each line or element of an
 *              array (forms.h), if it ends in .jsonl, .ndjson or .json; anything else that does not
 *              end in .bin is text, one document
 * Without validation data the last tenth of every training file is held out, or every tenth of
 * several documents. Documents of folders and JSON are joined, each followed by the tokenizer's
 * end-of-text token if it has one.
 *
 * A sample is a window of T+1 tokens of one file: T inputs, and T targets one further on. Training
 * reads an endless stream of samples, and sample i is a function of (seed, i) alone. No position is
 * saved: a run resumes by continuing to count. Rank r of W takes samples (step*W + r)*B ... + B-1,
 * so the order is the same for every B and W.
 *
 * After data_open, data_check and data_skip nothing is written to a Data, so threads may share one.
 * If a file shrinks, is rewritten or becomes unreadable during training, data_batch and
 * data_validation return an Error (exit code EXIT_DISK; errors of those before are EXIT_INPUT). A
 * file that is unlinked or replaced stays readable through its open descriptor.
 *
 * Conversations (chat.h) are samples of their own: a row has as many as fit, one after another
 * (packing.c), their positions begin at 0, and only what the assistant says is a target. So are
 * prompts with their completions. In a file that holds any its texts are samples, too. */
#pragma once
#include "llmc/base/base.h"
#include "chat.h"
#include "tokenizer.h"

typedef struct Data Data;
typedef enum { DATA_TRAIN, DATA_VALIDATION } Split;

/* Opens all files and reads every token once, to find the largest id. validation: NULL or "": hold
 * out a tenth. tokenizer: for text, not kept; NULL: bytes. NULL and e: error. */
Data       *data_open(const char *train, const char *validation, const Tokenizer *tokenizer, Error *e);

/* The same, with a tokenizer that is loaded or trained first, and a cache of tokens. */
typedef struct {
    const char *train, *validation;     /* as above */
    const char *tokenizer;      /* "": a byte is a token; a tokenizer.json; a number: train one of that many tokens */
    const char *pattern;                /* how a trained one cuts text into words (bpe.h) */
    const char *trained;                /* NULL, or the tokenizer.json that an earlier start trained and saved */
    const char *chat;               /* NULL or "": the chat template beside the tokenizer.json; or the name of one */
    const char *field;                  /* NULL, "", or the key of JSON that holds the text or messages */
    const char *cache;                  /* NULL, or a folder that data_keep may have written to */
    int show;                           /* progress of long work, on stderr */
    int splits;                 /* 1: control tokens that the texts spell out are encoded as text */
    int any_bytes;              /* 1: archives, pictures and other files that are no text are read as if they were */
} DataRequest;
/* *tokenizer: NULL for bytes */
Data       *data_open_text(const DataRequest *request, Tokenizer **tokenizer, Error *e);
int         data_trains_tokenizer(const DataRequest *request);                          /* is .tokenizer a number? */
/* Writes the tokens of texts, and the tokenizer, to FOLDER/tokens.cache. data_open_text reads them
 * if the text and the tokenizer are the same. Writes nothing for bytes, for files of tokens, and if
 * the tokens came from a cache. Deleting the file costs only time. */
int         data_keep(const Data *data, const Tokenizer *tokenizer, const char *folder, Error *e);
void        data_close(Data *data);                                  /* NULL is fine */

int64_t     data_tokens(const Data *data, Split split);
int64_t     data_bytes(const Data *data, Split split);     /* of text, for bits per byte; 0: the files hold tokens */
int         data_max_id(const Data *data);                 /* over both splits */
int         data_is_text(const Data *data);
int         data_is_fallback(const Data *data);         /* the project's own text, because tinyshakespeare is missing */
int         data_has_chats(const Data *data);              /* are there conversations? */
const Chat *data_chat(const Data *data);                   /* how they are written */
const char *data_description(const Data *data);            /* one line */
/* The first conversation for training, with what is learned between [[ and ]], or as much of it as
 * `most` tokens are. 0: there is none. */
int         data_show_chat(const Data *data, const Tokenizer *t, int most, Text *out);
uint64_t    data_fingerprint(const Data *data);            /* of names without folders, sizes, first and last 64 kB */

uint64_t    data_print_without_bos(const Data *data);   /* its fingerprint before texts began with tokenizer_bos */

/* Has each split a window, and is every id below the vocabulary? Call it before what follows. */
int         data_check(Data *data, int T, int vocab, Error *e);

/* After data_check: leaves out so many percent of the training windows of T tokens (5 or more),
 * those that the text before them predicts best. The others are cut alike in all epochs, so that
 * the last tokens of each file, less than 2T, are not read. Not of conversations. */
int         data_skip(Data *data, int T, int percent, Error *e);

/* An epoch visits every window once, the same number in each. Windows start at a random phase in
 * each file, so that epochs cut the text differently. */
int64_t     data_epoch_samples(const Data *data, int T);
/* Samples first ... first+B-1; inputs, targets, positions (B,T). Targets that do not count are -1,
 * those of filler behind the last sample of a row -2, with input 0.
 * Where a position is 0 something begins that does not see what is before it; positions may be NULL
 * if the data hold no conversations. */
int         data_batch(const Data *data, int64_t first, int B, int T, uint64_t seed, int *inputs,
                       int *targets, int *positions, Error *e);
/* their targets that count; -1: error */
int64_t     data_counted(const Data *data, int64_t first, int B, int T, uint64_t seed, Error *e);

/* Validation: consecutive windows, so that every token but the first of each file is a target
 * exactly once. Past the end of a file or of the last batch, inputs are 0 and targets -2. */
int64_t     data_validation_batches(const Data *data, int B, int T);
int data_validation(const Data *data, int64_t first, int B, int T, int *inputs, int *targets, int *positions, Error *e);
