/* converse.h: a conversation with a model, in the words of its chat template. Before every answer
 * the whole conversation is written and encoded again, as Transformers does; what the cache already
 * holds of it is not read again. */
#ifndef CONVERSE_H
#define CONVERSE_H
#include "generate.h"
#include "llmc/data/chat.h"

typedef struct {
    Chat         chat;                  /* form NULL: no template is known */
    ChatMessage *message;               /* the first is the system's, if there is one; texts are owned */
    size_t       count;
    int          forgotten;             /* messages that were dropped because the context was full */
} Conversation;

/* name, folder: as for chat_open. system: the system message, "": none. 0 and a message if the name
 * is unknown. */
int  converse_open(Conversation *v, const char *name, const char *folder, const char *system, Error *e);
void converse_close(Conversation *v);
void converse_reset(Conversation *v);   /* forgets all but the system message */

/* Adds what ends an answer to the tokens that end a text. Returns the stop string that is needed
 * because no token does; "": none. */
const char *converse_end(const Conversation *v, const Tokenizer *t, int *ids, int *count);

/* The user says text (bytes); the answer is printed, at most `limit` tokens (0 or less: as many as
 * fit). If the context is full, the oldest messages are dropped. 0 and a message if this one cannot
 * be said; then nothing changes. */
int  converse_say(Conversation *v, Generator *g, const char *text, size_t bytes, int limit, Error *e);
#endif
