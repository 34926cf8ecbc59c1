/* calls.h: calls of functions in what a model wrote: one or several of
 *   <tool_call>{"name": "...", "arguments": {...}}</tool_call>
 * the form that Hermes, Qwen2.5 and Qwen3 were trained on. */
#pragma once
#include "llmc/base/text.h"

/* Does a chat template ask for this form? */
int calls_known(const char *chat_template);

/* Appends to calls what OpenAI's API calls tool_calls, a list in JSON, and to rest the text without
 * them. id: begins the names of calls. numbered: 1: with "index", as in streams. Returns how many
 * there are; 0: none, or not all of them have the form: then nothing is appended. */
int calls_read(const char *text, size_t bytes, const char *id, int numbered, Text *calls, Text *rest);
