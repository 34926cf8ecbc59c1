/* options.h: every setting of a program is one row of a table. The table drives parsing, --help, the start-up table,
 * the copy in the log and in the checkpoint. To add a setting: a field in the program's struct and a row. */
#ifndef OPTIONS_H
#define OPTIONS_H
#include "llmc/base/base.h"
#include "llmc/base/text.h"

typedef enum { OPTION_INT, OPTION_LONG, OPTION_FLOAT, OPTION_TEXT } OptionKind;
typedef struct {
    const char *group, *letter, *name;  /* -letter, --name */
    OptionKind kind;
    size_t field;                       /* int, int64_t, float or const char * */
    const char *init;                   /* the default, as the user would write it */
    double low, high;                   /* of numbers, both allowed */
    const char *choices;                /* of texts: "cosine|linear", or NULL for any text */
    const char *help;
} Option;

/* Sets every field to its default, then reads the command line. `given[i]` tells which options the user gave. `words`
 * takes up to max_words arguments that are not options. Any mistake ends the program with EXIT_USAGE and a message;
 * --help and --version print and end it with 0. */
void options_parse(const Option *table, int count, void *settings, char *given, int argc, char **argv,
                   const char *usage, const char **words, int max_words);

/* What is left for a setting that the user did not give: a default that depends on the machine or the data. */
void options_default(const Option *table, int count, void *settings, const char *given, const char *letter,
                     const char *value);

void options_print(const Option *table, int count, const void *settings, const char *given);  /* the start-up table */
void options_json(const Option *table, int count, const void *settings, Text *out);         /* {"name": value, ...} */
int  option_given(const Option *table, int count, const char *given, const char *letter);
/* as the user would write it */
void option_value(const Option *option, const void *settings, char *text, size_t capacity);
#endif
