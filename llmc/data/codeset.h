/* codeset.h: sets of characters (code points), as sorted ranges that neither touch nor overlap. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { CODE_MAX = 0x10FFFF };
typedef struct { uint32_t first, last; } CodeRange;             /* both are in it */
typedef struct { CodeRange *at; size_t count, capacity; } CodeSet;      /* start with {0}; free(at) */

/* Unsorted until codeset_sort, which all others need. */
void codeset_add(CodeSet *s, uint32_t first, uint32_t last);
void codeset_sort(CodeSet *s);
void codeset_join(CodeSet *s, const CodeSet *other);            /* adds all of it */
void codeset_invert(CodeSet *s);
void codeset_cross(CodeSet *s, const CodeSet *other);           /* keeps what is in both */
int  codeset_has(const CodeSet *s, uint32_t code);
