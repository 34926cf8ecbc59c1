/* chat.h: conversations as the text that a model reads: who speaks, and when a turn ends, is
 * written as its chat template says.
 *
 * A template is a row of strings in chat.c; the Jinja programs of Hugging Face folders are not run.
 * The row for a folder is the one whose strings its program has; a program that fits no row is
 * refused where a conversation needs it. The text, and its tokens, are those of Transformers'
 * apply_chat_template (tests/reference/make_chats.py writes what tests compare with). Differences:
 * - Where a template writes today's date, training writes 26 Jul 2024, so that data do not change
 *   from day to day.
 * - gpt-oss is prompted to answer in its channel `final` at once: Transformers' prompt leaves the
 *   channel to the model, and the marks of channels are special tokens, which are not shown. What
 *   it would say in the channel `analysis` is not asked for, nor trained.
 * - Calls of tools are not rendered; a message of the role tool is, where a template knows it. */
#ifndef CHAT_H
#define CHAT_H
#include "llmc/base/json.h"
#include "tokenizer.h"

typedef struct ChatTemplate ChatTemplate;
typedef struct Chat {
    const ChatTemplate *form;           /* NULL: none is known, */
    char *why;                          /* and why; free by chat_close */
    int  ours;                          /* 1: chat_jinja wrote the folder's */
    int  unknown;                       /* 1: the folder has one, which is not in the table */
    char *bos, *eos;    /* the tokens that a text begins and ends with, of tokenizer_config.json; "" if it has none */
    int  has_bos, has_date;     /* does the folder's template write them? -1: it is not the folder's: as the row does */
    int  today;                         /* 1: dates are today's, as for a chat; 0: as for training */
} Chat;

#define CHAT_NAMES "chatml, qwen1.5, qwen2, qwen2.5, qwen3, qwen3-instruct, llama3, llama3.1, olmoe, olmo, zephyr, " \
    "granite, granite3.1, mixtral, mistral, llama2, dots1, glm4.5, ernie4.5, deepseek-v2, moonlight, harmony"
/* name: of the table, or "": the template of a folder (NULL: none), if known. 0: unknown. */
int  chat_open(Chat *c, const char *name, const char *folder, Error *e);
void chat_close(Chat *c);
const char *chat_name(const Chat *c);   /* "" if no template is known */
const char *chat_end(const Chat *c);    /* the string that ends a turn of the assistant; it may be eos */
uint64_t chat_hash(const Chat *c, uint64_t seed);   /* of all that the text of a conversation depends on besides it */
/* The template as a Jinja program that Transformers can run, for a folder that has none; free() it.
 * NULL: this one does more than put strings around messages. */
char *chat_jinja(const Chat *c);

/* A conversation is an object of JSON, {"messages": [{"role", "content"}...]}, as OpenAI's API has
 * it. A message with "weight": 0 or false is not learned. chat_talk: the conversation in a line of
 * JSONL: its root, or one built of {"conversations": [{"from", "value"}...]}; NULL: none. */
const JsonValue *chat_talk(Json *line);

/* The text of a conversation. prompt: 1: it ends where the assistant's turn begins. learned: NULL,
 * or where the answers of the assistant, with the string that ends them, begin and end in the text,
 * (2 * answers) size_t; those of weight 0 are left out. 0 and a message: it cannot be written. */
int chat_write(const Chat *c, const JsonValue *talk, int prompt, Text *text, Text *learned, Error *e);

/* The tokens of a conversation; free(*ids). counts: NULL, or *counts (tokens): 1 for tokens that
 * are learned; free it. With counts and without prompt, where a template ends an answer by the mark
 * of the next role only, that of the user follows the last one. t may not be NULL. -1 and a message
 * on error. */
int64_t chat_encode(const Chat *c, const Tokenizer *t, const JsonValue *talk, int prompt, int **ids,
                    unsigned char **counts, Error *e);

/* Which messages to leave out of a conversation that is too long: the oldest questions with their
 * answers, a quarter of them and one more, so that what remains begins in the same way for some
 * turns and a cache can keep it. A first system message stays, and so does the last question. Sets
 * *first; returns how many, 0 if none can go. */
size_t chat_oldest(const JsonValue *messages, size_t *first);
#endif
