/* converse.h: a conversation with a model, in the words of its chat template. Before every answer
 * all of it is encoded again, as Transformers does, but what the cache holds is not read again. */
#pragma once
#include "generate.h"
#include "llmc/data/chat.h"

typedef struct {
    Chat         chat;                  /* form NULL: no template is known */
    Json        *json;                  /* the memory of the conversation */
    JsonValue   *talk, *messages;       /* {"messages": [...]}; the first is the system's, if there is one */
    char       **text;                  /* what the messages say; owned */
    size_t       texts;
    size_t       controls;              /* control tokens that the messages spell out */
    int          forgotten;             /* messages that were dropped because the context was full */
} Conversation;

/* name, folder: as for chat_open. system: the system message, or "". 0 and e: unknown name. */
int  converse_open(Conversation *v, const char *name, const char *folder, const char *system, Error *e);
void converse_close(Conversation *v);
void converse_reset(Conversation *v);   /* forgets all but the system message */

/* Adds what ends an answer to the tokens. Returns the stop string if no token does; else "". */
const char *converse_end(const Conversation *v, const Tokenizer *t, int *ids, int *count);

/* The user says text (bytes); the answer is printed, at most `limit` tokens (<= 0: as many as fit).
 * If the context is full, the oldest messages are dropped. 0 and e: nothing was said or changed. */
int  converse_say(Conversation *v, Generator *g, const char *text, size_t bytes, int limit, Error *e);
