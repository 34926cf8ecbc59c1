/* jinja_method.h: attributes, indices, and the methods of strings, lists and dicts. */
#pragma once
#include "jinja_value.h"

/* What a call, a filter or a test is given: positions first, then names, each once. */
typedef struct { Value *at; const char **name; int n, named; } Args;
const Value *arg(const Args *a, int number, const char *name);          /* NULL: not given */
const Value *arg_needed(Work *w, const Args *a, int number, const char *name, const char *of);

int   method_known(Kind kind, const char *name);
Value method_call(Work *w, const Method *m, const Args *a);
Value str_format(Work *w, Str format, const Value *v);              /* format % v */
Value value_attribute(Work *w, const Value *v, const char *name);   /* v.name */
Value value_index(Work *w, const Value *v, const Value *key);       /* v[key] */
