/* jinja_parse.h: a chat template as a tree. */
#pragma once
#include "jinja_value.h"

typedef enum {
    /* expressions */
    X_CONSTANT, X_NAME, X_LIST, X_TUPLE, X_DICT, X_ATTRIBUTE, X_INDEX, X_SLICE, X_CALL, X_ARGUMENT, X_FILTER, X_TEST,
    X_NOT, X_MINUS, X_PLUS, X_OPERATION, X_AND, X_OR, X_COMPARE, X_IF,
    /* statements */
    S_TEXT, S_PRINT, S_IF, S_FOR, S_SET, S_CAPTURE, S_MACRO, S_CALL, S_FILTER, S_GENERATION, S_BREAK, S_CONTINUE, S_WITH
} NodeKind;
/* X_LIST, X_TUPLE: a: the first item. X_DICT: a: a key, its b: the value. X_INDEX: a[b]. X_SLICE:
 * its bounds a, b, c. X_CALL: a(b...). X_ARGUMENT: name (NULL) = a; op 1: all items of a.
 * X_FILTER, X_TEST: of a (NULL: what a block wrote), with b...; a test with op 1 is negated.
 * X_COMPARE: a, then b with op, ... X_IF: b if a else c (NULL). S_IF: a, body b, else c. S_FOR:
 * targets a in b if c, body d, else e. S_SET: a = b. S_CAPTURE: a = what body b writes, through
 * filters c. S_MACRO: name, parameters a, body b. S_CALL: a with the body b of parameters c.
 * S_FILTER: a of what b writes. S_WITH: S_SETs a, body b. */
typedef struct Node {
    NodeKind kind;
    int line, op;
    const char *name;                   /* one for each name: compare pointers */
    Value value;                        /* of X_CONSTANT; a string for S_TEXT */
    struct Node *a, *b, *c, *d, *e, *next;
} Node;
/* is_key: an attribute or a string; is_read: a variable whose value is asked for */
typedef struct Name { struct Name *next; int is_key, is_read; char text[]; } Name;
typedef struct Jinja Jinja;
struct Jinja { Work work; Node *program; Name *names; int has_generation; };
int jinja_parse(Jinja *j, const char *text, size_t bytes);       /* 0: work.e says why */
const char *jinja_name(const Jinja *j, const char *text);        /* NULL: the program has no such name */
