/* pattern_parse.h: the program that a regular expression (pattern.h) becomes. */
#pragma once
#include "codeset.h"
#include "llmc/base/base.h"

/* SET reads a character of set x. AHEAD and BEHIND read nothing: the next character, or the one
 * before, is of set x; y: or there is none. SPLIT goes on at x, and if that fails at y, both
 * relative to it. JUMP: at x. LOOK: look-ahead number x matches here, or, y, does not. */
typedef enum { SET, AHEAD, BEHIND, SPLIT, JUMP, LOOK, MATCH } Operation;
typedef struct { Operation op; int x, y; } Instruction;

enum { PATTERN_BYTES = 4096, CODE_LENGTH = 4096, PATTERN_SETS = 200, LOOKS = 4, DEPTH = 50 };
typedef struct {
    Instruction *code; int length;      /* the pattern, then each look-ahead; each ends in MATCH */
    CodeSet set[PATTERN_SETS]; int sets;
    int begin[1 + LOOKS], looks;        /* where the pattern and the look-aheads begin */
    int has_behind;
} PatternProgram;
/* is_text: no regular expression, the text itself. 0 and e: what is not supported, or wrong. */
int  pattern_parse(PatternProgram *p, const char *regex, size_t bytes, int is_text, Error *e);
void pattern_program_free(PatternProgram *p);
