/* bpe.h: trains a byte-level BPE tokenizer (Sennrich et al. 2016, arXiv 1508.07909; GPT-2). */
#pragma once
#include "documents.h"
#include "tokenizer.h"

#define END_OF_TEXT "<|endoftext|>"
#define BPE_PATTERNS "cl100k|gpt2"      /* how text is cut into words: as GPT-4 does, as GPT-2 does */
enum { BPE_MIN = 257, BPE_MAX = 1 << 20 };

/* A tokenizer of exactly `tokens` tokens: id 0 is END_OF_TEXT, then the 256 bytes, then merged
 * pairs, most frequent first. The same merges as the BpeTrainer of Hugging Face's library with
 * min_frequency 2; the same on any number of threads. Where the text contains END_OF_TEXT, a
 * document ends. show: progress on stderr. NULL and e: the pattern is unknown, or too few pairs
 * occur twice. */
Tokenizer *bpe_train(const Document *text, size_t documents, int tokens, const char *pattern, int show, Error *e);
