/* jinja_value.h: what running a chat template is made of: memory with a limit, values as Python has
 * them, and strings that remember the origins of their bytes. */
#pragma once
#include "llmc/base/json.h"
#include "origin.h"
#include <setjmp.h>
#include <string.h>

/* ---- memory and errors ---------------------------------------------------------------------- */

enum { JINJA_MEMORY = 64 << 20, JINJA_DEPTH = 200 };
/* Text that is written, with its origins; of those that are open, `up` is the one around. */
typedef struct Out { Text text, origins; size_t counted; struct Out *up; } Out;      /* counted: of Work.used */
/* What parsing or running uses. An error is a long jump to `failed`. */
typedef struct Work {
    Block   *blocks;
    size_t   used;                      /* bytes, with those of finished texts */
    int64_t  steps, most_steps;
    int      line, depth;
    Out     *out;                       /* what is open, the innermost first */
    int      message, in_generation;    /* whose iteration this is (0: none's); depth of generation blocks */
    Error   *e;
    jmp_buf  failed;
} Work;
void *work_alloc(Work *w, size_t bytes);        /* not zeroed */
/* An array of n elements with memory for one more, of `bytes` bytes each: `at`, or a copy. */
void *work_grow(Work *w, void *at, size_t n, size_t *capacity, size_t bytes);
void  work_free(Work *w);                       /* all of its memory */
void  work_step(Work *w, size_t n);             /* n units of work are done: fails if it takes too long */
void  work_enter(Work *w);                      /* a level deeper; the caller subtracts it from depth */
_Noreturn void work_fail(Work *w, const char *format, ...) PRINTF(2, 3);        /* names the line */

/* ---- values ---------------------------------------------------------------------------------- */

/* A string; not NUL-terminated. The origin of a byte is `origin`, or with origins its own. */
typedef struct { const char *at; size_t bytes; const uint32_t *origins; uint32_t origin; } Str;
typedef enum { UNDEFINED, NONE, BOOLEAN, INTEGER, FLOAT, STRING, LIST, TUPLE, DICT, SPACE, LOOP, MACRO, METHOD,
               FUNCTION } Kind;
typedef enum { O_ADD, O_SUBTRACT, O_MULTIPLY, O_DIVIDE, O_FLOOR, O_MODULO, O_POWER, O_CONCATENATE,
               O_EQUAL, O_UNEQUAL, O_LESS, O_LESS_EQUAL, O_GREATER, O_GREATER_EQUAL, O_IN, O_NOT_IN } Operator;
typedef struct List List;
typedef struct Dict Dict;
typedef struct Loop Loop;
typedef struct Macro Macro;
typedef struct Method Method;
typedef struct Value {
    Kind kind;
    union {
        const char *why;                /* UNDEFINED: the error, if it is used */
        int64_t integer;                /* INTEGER, BOOLEAN */
        double  number;
        Str     string;
        List   *list;                   /* LIST, TUPLE */
        Dict   *dict;                   /* DICT, SPACE: a namespace */
        Loop   *loop;
        Macro  *macro;
        Method *method;
        const char *name;               /* FUNCTION */
    } is;
} Value;
struct List { Value *at; size_t n, capacity; };
typedef struct { Value key, value; } Pair;
struct Dict { Pair *at; size_t n, capacity; int message; };     /* message: 1 + its number, if it is one */
struct Loop { const List *items; size_t at; int depth; };
struct Method { Value of; const char *name; };

#define VALUE(k, field, x) ((Value){ .kind = k, .is.field = (x) })
static inline Value value_int(int64_t i) { return VALUE(INTEGER, integer, i); }
static inline Value value_bool(int b) { return VALUE(BOOLEAN, integer, b != 0); }
static inline Value value_string(Str s) { return VALUE(STRING, string, s); }
static inline Value value_none(void) { return VALUE(NONE, integer, 0); }
static inline Str str_of(const char *text) { return (Str){ .at = text, .bytes = strlen(text) }; }

Value value_undefined(Work *w, const char *format, ...) PRINTF(2, 3);
Value value_list(Work *w, Kind kind);                   /* LIST or TUPLE, empty */
Value value_dict(Work *w, Kind kind);                   /* DICT or SPACE, empty */
void  list_add(Work *w, List *l, Value v);
void  dict_put(Work *w, Dict *d, Value key, Value value);
Value *dict_find(Work *w, const Dict *d, Value key);    /* NULL: it has none */
const char *value_kind(const Value *v);                 /* as Python names it */
int   value_truth(const Value *v);
int   value_equal(Work *w, const Value *a, const Value *b);
int   value_order(Work *w, const Value *a, const Value *b);         /* < 0, 0, > 0; fails if they have none */
int   value_has(Work *w, const Value *in, const Value *v);          /* v in `in` */
int   value_compares(Work *w, const Value *a, const Value *b, Operator op);     /* O_EQUAL to O_NOT_IN */
size_t value_length(Work *w, const Value *v);
Value value_items(Work *w, const Value *v);             /* what a loop over v goes through, as a list */
void  need_defined(Work *w, const Value *v);
int64_t need_int(Work *w, const Value *v, const char *what);
/* JSON as values; strings are not copied. origin: of strings, in the members of messages but
 * "role". */
Value value_of_json(Work *w, const JsonValue *v, uint32_t origin, int depth);

/* ---- strings --------------------------------------------------------------------------------- */

Str  str_part(Str s, size_t from, size_t bytes);
int  str_is(Str s, const char *text);
int  str_same(Str a, Str b);
size_t str_find(Work *w, Str in, Str s, size_t from);       /* bytes before it, or SIZE_MAX */
size_t str_length(Str s);                               /* in characters */
size_t str_offset(Str s, size_t characters);            /* in bytes, of this character */
void out_begin(Work *w, Out *o);                        /* what is written from now on goes into it, */
Str  out_end(Work *w);                                  /* until now */
void out_take(Work *w, Text *text, Text *origins);      /* the same, appended to these, an origin for each byte */
void out_add(Work *w, Str s);                   /* bytes without an origin get that of what is being done */
void out_put(Work *w, Str s);                           /* the same, but they stay without */
void out_text(Work *w, const char *text);
void out_repr(Work *w, const Value *v);                 /* as Python's repr */
void out_value(Work *w, const Value *v);                /* as Python's str */
Str  value_text(Work *w, const Value *v);               /* the same as a string */
typedef struct { int64_t indent; int ascii, sorted; Str item, key; } JsonStyle;      /* indent < 0: on one line */
void out_json(Work *w, const Value *v, const JsonStyle *style, int depth);
