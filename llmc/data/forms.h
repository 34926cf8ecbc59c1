/* forms.h: what a record of a data file means. Many programs write their data as JSON, each with
 * other keys; here is what the known ones stand for. A record is
 *   a text          {"text"}, or the field that the user names: all of it is learned
 *   a conversation  {"messages"} (OpenAI, TRL), {"conversations"} (ShareGPT), {"instruction",
 *                   "input", "output"} (Alpaca) and others: written by a chat template; learned is
 *                   what the assistant says, in messages whose weight is not 0
 *   a pair          {"prompt", "completion"}, two strings: the second is learned; no template
 * Every key of a record and of a message is used, or known to mean nothing to training, or refused
 * by name: nothing that changes meaning is left out without a word. (Beside a text, keys that no
 * form has are the data set's own and left out.) A key that is null is taken for absent. */
#pragma once
#include "llmc/base/json.h"

typedef struct { const char *at; size_t bytes; } Words;

/* One of these is set; all of it lives as long as the record's Json. chat: {"messages": [...],
 * "tools": [...], "chat_template_kwargs": {...}} as OpenAI and Transformers have them; the last two
 * may be missing. A message is {"role": system, developer, user, assistant or tool, "content": a
 * string (null beside calls)} and, if given, "tool_calls", "reasoning_content", "thinking" and
 * other keys as they were, which chat.h refuses if the template does not read them, and "weight":
 * 0, not to be learned, or 1. */
typedef struct {
    const JsonValue *chat;
    Words text, prompt, completion;     /* .at NULL: it is another kind */
} Form;

/* A larger number: some records are read in another way than before, so that runs and kept tokens
 * of then are not gone on with. 0: before this file. 2: a token that joins the end of an answer
 * with what follows is learned. */
enum { FORMS_VERSION = 2 };

/* record: from json_parse_record. field: NULL or "", or the key of the text or the list of
 * messages; keys besides that are not of a system's message or of tools are then left out. 0 and a
 * message: it is none. */
int  form_read(Form *f, Json *record, const char *field, Error *e);
/* Messages, and tools or NULL, as f->chat; in the memory of json. */
int  form_read_chat(Form *f, Json *json, const JsonValue *messages, const JsonValue *tools, Error *e);
int  form_is_harmless(const JsonValue *member);         /* do data sets have such keys for their own purposes? */
int  forms_held(const char *text, size_t bytes);        /* is it several records, of which the first has a form? */
