/* config_json.h: a Config as the config.json of a model family, and back. */
#pragma once
#include "families.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"

/* Of any family. Refuses what would change the mathematics: 0, and a message that names the key. */
int  config_from_json(Config *c, const JsonValue *root, Error *e);
/* dtype: of the weights, "F32", "BF16" or "F64". in_memory: with the padding, to resume a run. */
void config_to_json(const Config *c, const char *dtype, int in_memory, Text *out);
/* The same as `origin`, the config.json that the model came with: its keys in its order, with other
 * values only where c has them. 0 and nothing written: c is not of that family any more. */
int  config_to_json_like(const Config *c, const char *dtype, const JsonValue *origin, Text *out);
/* Adds the ids of special tokens to what config_to_json made: after a change of the family. */
void config_add_ids(Text *config, const JsonValue *origin);
const char *config_type(const char *dtype);                 /* "bfloat16", what config.json calls "BF16", and so on */
/* A config.json with another number type, "F32", "BF16", "F16" or "F64". */
void config_with_type(const JsonValue *config, const char *dtype, Text *out);
/* 1, or 0 and the keys that differ with both values. */
int  config_same(const Config *a, const Config *b, Error *difference);
