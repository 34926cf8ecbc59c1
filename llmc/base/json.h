/* json.h: a strict JSON parser. A document becomes a tree of JsonValue that lives until json_free.
 * Strict means RFC 8259 and nothing else: valid UTF-8, paired surrogates, no duplicate keys, no
 * leading zeros, nothing after the value, at most JSON_DEPTH levels. Time is linear in the text
 * (n log n in the keys of an object), stack use constant. Integers of 64 bits are exact; other
 * numbers are doubles and must be finite. The locale has no influence. */
#pragma once
#include "text.h"

enum { JSON_DEPTH = 64 };
typedef enum { JSON_NULL, JSON_BOOL, JSON_INT, JSON_DOUBLE, JSON_STRING, JSON_ARRAY, JSON_OBJECT } JsonType;
typedef struct Json Json;
typedef struct JsonValue {
    JsonType type;
    uint32_t key_length;
    const char *key;                    /* of a member of an object, NUL-terminated; else NULL */
    const struct JsonValue *next;       /* the next element or member; NULL after the last */
    size_t length;                      /* bytes of a string, elements of an array, members of an object */
    union {
        int64_t integer;                /* JSON_INT, JSON_BOOL */
        double number;                  /* JSON_DOUBLE */
        const char *string;             /* JSON_STRING: NUL-terminated, but \u0000 is legal inside */
        struct {
            const struct JsonValue *first;              /* in the order of the text */
            const struct JsonValue *const *sorted;      /* members by key, if there are many; else NULL */
            struct JsonValue *last;                     /* of a container that json_append has filled */
        } children;
    } is;
} JsonValue;

Json *json_parse(const char *text, size_t bytes, Error *e);
/* Of a data file: messages do not name its first line; NaN, Infinity and -Infinity, which Python's
 * json reads and writes, are doubles. */
Json *json_parse_record(const char *text, size_t bytes, Error *e);
Json *json_read_file(const char *folder, const char *name, Error *e);           /* NULL and e on error */
/* The same of a file that need not be there: without it NULL; on error *ok becomes 0, too. */
Json *json_read_beside(const char *folder, const char *name, int *ok, Error *e);
void  json_free(Json *json);
const JsonValue *json_root(const Json *json);

/* Building, in the memory of a Json; keys and strings are not copied and must live as long.
 * json_parse_inner: the root of a text of its own.
 * json_empty: a Json without a text and a root. json_make: null, 0, an empty array or object.
 * json_copy: a value, or NULL, that can be appended elsewhere; what it contains is not copied.
 * json_append: key: NULL for arrays; a member of this key may not be there. json_cut: takes `count`
 * elements out of an array, from number `first` on. */
Json *json_empty(void);
char *json_keep(Json *json, const char *text, size_t bytes);                    /* a copy, with a NUL */
const JsonValue *json_parse_inner(Json *json, const char *text, size_t bytes, Error *e);
JsonValue *json_make(Json *json, JsonType type);
JsonValue *json_make_string(Json *json, const char *text, size_t bytes);        /* a NUL must follow it */
JsonValue *json_copy(Json *json, const JsonValue *v);
JsonValue *json_append(JsonValue *container, const char *key, JsonValue *v);        /* returns v */
void json_cut(JsonValue *array, size_t first, size_t count);

/* All of these accept NULL and values of another type, so that lookups can be chained:
 *   for (const JsonValue *v = json_first(json_get(root, "shape")); v; v = v->next) ... */
int json_is_null(const JsonValue *v);                                                   /* or not there */
int json_is_empty(const JsonValue *v);                             /* or a string, array or object without anything */
const JsonValue *json_first(const JsonValue *container);
const JsonValue *json_get(const JsonValue *object, const char *key);                    /* NULL if it is missing */
const JsonValue *json_given(const JsonValue *object, const char *key);          /* also if it is null, or key NULL */
const JsonValue *json_find(const JsonValue *object, const char *key, size_t bytes);     /* a key that may contain NUL */
int         json_is(const JsonValue *v, JsonType type);
int64_t     json_int(const JsonValue *v, int64_t otherwise);
double      json_double(const JsonValue *v, double otherwise);                          /* accepts integers, too */
int         json_bool(const JsonValue *v, int otherwise);
const char *json_string(const JsonValue *v, const char *otherwise);    /* `otherwise` also if the string contains NUL */

/* Appends the text of a value; members on lines of their own, indented by 2 * depth + 2 spaces. */
void json_write(Text *to, const JsonValue *v, int depth);

/* Checked reading of values that a file must have. 1; or 0 and an error that names the value, if it
 * is missing, has another type, or lies outside low..high (both included). read_double accepts
 * integers, too. read_hex: a string of up to 16 digits. */
int json_read_int(const JsonValue *v, const char *name, int64_t low, int64_t high, int64_t *x, Error *e);
int json_read_double(const JsonValue *v, const char *name, double low, double high, double *x, Error *e);
int json_read_hex(const JsonValue *v, const char *name, uint64_t *x, Error *e);
int json_read_string(const JsonValue *v, const char *name, const char **x, Error *e);

/* A seal is the last member of an object, "crc32c": the CRC-32C of all text before it. json_seal
 * adds it and the closing brace. json_sealed: 0 and e if it is wrong; 1: right or absent. */
void json_seal(Text *t);
int  json_sealed(const char *text, size_t bytes, Error *e);
