/* options.h: every setting of a program is a row of a table, which drives parsing, --help, the
 * start-up table and the copies in logs and checkpoints. To add one: a field and a row. */
#pragma once
#include "llmc/base/base.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"

/* CHOICE: one of the words of `choices`, kept as its number, as in an enum of the same order. */
typedef enum { OPTION_INT, OPTION_LONG, OPTION_FLOAT, OPTION_TEXT, OPTION_CHOICE } OptionKind;
typedef struct {
    const char *group, *letter, *name;  /* -letter, --name */
    OptionKind kind;
    size_t field;                   /* offset of an int, int64_t, float, const char * or enum in the program's struct */
    const char *init;                   /* the default, as the user would write it */
    double low, high;                   /* range of a number, both ends included */
    const char *choices;                /* "cosine|linear"; NULL: any text. Of an INT: a word for `low`, or NULL */
    const char *help;
} Option;

typedef struct Options {
    const Option *rows;
    int   count;
    void *settings;                     /* the program's struct */
    char *given;                        /* (count) not 0: given by the user */
    void (*help)(struct Options o, const char *topic);      /* prints --help [TOPIC], "" for none; NULL: options_help */
} Options;

/* Sets every field to its default, then reads the command line and the file of settings that it
 * names (-cf). words: takes up to max_words arguments that are not options. Errors end the program
 * with EXIT_USAGE and a message; --help and --version print and exit with 0. */
void options_parse(Options o, int argc, char **argv, const char *usage, const char **words, int max_words);
void options_help(Options o, const char *usage, int as_set);    /* lists all; as_set: with values, not defaults */

/* A file of settings: lines "name = value" with long or short names, lines that begin with #, empty
 * lines. read: the text ends with a NUL, is changed, and must stay: settings point into it; the
 * command line takes precedence; 0 and e: the line that is wrong. */
int  options_read(Options o, char *text, size_t bytes, Error *e);
void options_write(Options o, Text *out);

void options_default(Options o, const char *letter, const char *value);     /* sets it if the user did not */

/* 1: an earlier version had this option (a letter or a name), and what a run learns did not depend
 * on it. It is ignored, with a warning if it was in use. */
int  option_removed(const char *option, int in_use);
/* Had an earlier version this value of the option? What to do instead, or NULL. */
const char *option_value_removed(const Option *option, const char *value);

/* Sets an option from JSON: type, range and choices are checked. A text is not copied. */
int  option_read(const Option *option, void *settings, const JsonValue *value, Error *e);

const Option *option_row(Options o, const char *letter);        /* the table must have this letter */
int  option_given(Options o, const char *letter);
/* The start-up table. always: NULL: every option; else those that the user gave, those that have
 * another value than the table's default, and these letters, which end with NULL. */
void options_print(Options o, const char *const *always);
void options_json(Options o, Text *out);             /* {"name": value, ...} */
void options_names_json(Options o, const char *const *always, Text *out);   /* ["name", ...] of these; NULL: given */
void option_value(const Option *option, const void *settings, char *text, size_t capacity);    /* as a user writes it */
