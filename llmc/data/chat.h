/* chat.h: conversations as the text that a model reads, written by its chat template: a Jinja
 * program (jinja.h) of a Hugging Face folder, of a file, or of templates.txt, by its name. The
 * text, and its tokens, are those of Transformers' apply_chat_template. Where a template writes
 * today's date, training has 26 Jul 2024, so that data do not change from day to day.
 *
 * What is learned follows from one rendering, which knows the message that each byte came from: of
 * an answer, all from the end of the generation prompt to the string that ends the answer, or what
 * {% generation %} marks, if the template has it.
 *
 * A conversation is an object of JSON, {"messages": [{"role", "content", ...}...], "tools", ...},
 * as OpenAI's API has it. The template gets all keys of its messages, "tools", "documents" and the
 * members of "chat_template_kwargs". A key that the template does not read, and that may matter, is
 * an error, and so is a message of which nothing is written. A message with "weight": 0 or false is
 * not learned. */
#pragma once
#include "jinja.h"
#include "tokenizer.h"

typedef struct Chat {
    Jinja *form, *with_tools;           /* NULL: none is known; with_tools: another one for conversations with tools */
    char *text, *tools, *name;          /* of the programs; "own": of a folder or file */
    char *why;                          /* form NULL: why */
    int   ours;                         /* 1: the folder's is one of templates.txt */
    int   unknown;                      /* 1: the folder has one, which is no program that can be run */
    Json *config, *map, *memory;        /* tokenizer_config.json, special_tokens_map.json, and what is made of them */
    JsonValue *tokens;                  /* variables: {"bos_token": "<s>", ...} */
    /* the generation prompt; what ends an answer; "", or a next role's mark that does */
    char *prompt, *end, *mark;
    int   takes_parts;                  /* 1: contents must be lists of parts */
    int   today;                        /* 1: dates are today's, as for a chat; 0: as for training */
} Chat;

#define CHAT_NAMES "chatml, qwen1.5, qwen2, qwen2.5, qwen3, qwen3-instruct, llama3, llama3.1, olmoe, olmo, zephyr, " \
    "granite, granite3.1, mixtral, mistral, llama2, dots1, glm4.5, ernie4.5, deepseek-v2, moonlight, harmony"
/* name: of templates.txt, a file, or a folder that has a template; or "": the template of `folder`
 * (NULL: none), if it has one. Special tokens are those of `folder`. 0: there is no such template.
 * */
int  chat_open(Chat *c, const char *name, const char *folder, Error *e);
void chat_close(Chat *c);
const char *chat_name(const Chat *c);   /* "" if no template is known */
const char *chat_end(const Chat *c);    /* the string that ends a turn of the assistant; it may be eos */
uint64_t chat_hash(const Chat *c, uint64_t seed);   /* of all that the text of a conversation depends on besides it */
/* The program, for a folder that has none; free() it. NULL: no template is known. */
char *chat_jinja(const Chat *c);

/* The text of a conversation. prompt: 1: it ends where the assistant's turn begins. learned: NULL,
 * or where what is learned begins and ends in the text, pairs of size_t, one after another. 0 and a
 * message: it cannot be written. */
int chat_write(const Chat *c, const JsonValue *talk, int prompt, Text *text, Text *learned, Error *e);

/* The tokens of a conversation; free(*ids). counts: NULL, or *counts (tokens): 1 for tokens that
 * are learned; free it. With counts and without prompt, where a template ends an answer by the mark
 * of the next role only, that of the user follows the last one. t may not be NULL. controls: NULL,
 * or what is counted of control tokens that the conversation itself contains. -1 and a message on
 * error. */
int64_t chat_encode(const Chat *c, const Tokenizer *t, const JsonValue *talk, int prompt, int **ids,
                    unsigned char **counts, Controls *controls, Error *e);

/* Which messages to leave out of a conversation that is too long: the oldest questions with their
 * answers, a quarter of them and one more, so that what remains begins in the same way for some
 * turns and a cache can keep it. A first system message stays, and so does the last question. Sets
 * *first; returns how many, 0 if none can go. */
size_t chat_oldest(const JsonValue *messages, size_t *first);
