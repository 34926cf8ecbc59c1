/* json.h: a strict JSON parser, a text builder for writing, and the UTF-8 both need.
 *
 * A document becomes a tree of JsonValue that lives until json_free. Strict means RFC 8259 and nothing else: valid
 * UTF-8, paired surrogates, no duplicate keys, no leading zeros, nothing after the value, at most JSON_DEPTH levels.
 * Time is linear in the text (n log n in the keys of one object), the stack is constant. Integers of 64 bits are
 * exact; other numbers are doubles and must be finite. Neither reading nor writing looks at the locale. */
#ifndef JSON_H
#define JSON_H
#include "base.h"

enum { JSON_DEPTH = 64 };
typedef enum { JSON_NULL, JSON_BOOL, JSON_INT, JSON_DOUBLE, JSON_STRING, JSON_ARRAY, JSON_OBJECT } JsonType;
typedef struct Json Json;
typedef struct JsonValue {
    JsonType type;
    uint32_t key_length;
    const char *key;                    /* of a member of an object, NUL at the end; else NULL */
    const struct JsonValue *next;       /* the next element or member; NULL after the last */
    size_t length;                      /* bytes of a string, elements of an array, members of an object */
    union {
        int64_t integer;                /* JSON_INT, JSON_BOOL */
        double number;                  /* JSON_DOUBLE */
        const char *string;             /* JSON_STRING: NUL at the end, but \u0000 is legal inside */
        struct {
            const struct JsonValue *first;              /* as written */
            const struct JsonValue *const *sorted;      /* members by key, if there are many */
        } children;
    } is;
} JsonValue;

Json *json_parse(const char *text, size_t bytes, Error *e);
void  json_free(Json *json);
const JsonValue *json_root(const Json *json);

/* All of these accept NULL and values of another type, so that lookups can be chained:
 *   for (const JsonValue *v = json_first(json_get(root, "shape")); v; v = v->next) ... json_int(v, -1) ... */
const JsonValue *json_first(const JsonValue *container);
const JsonValue *json_get(const JsonValue *object, const char *key);                    /* NULL if it is not there */
const JsonValue *json_find(const JsonValue *object, const char *key, size_t bytes);     /* the same for any bytes */
int         json_is(const JsonValue *v, JsonType type);
int64_t     json_int(const JsonValue *v, int64_t otherwise);
double      json_double(const JsonValue *v, double otherwise);                          /* of integers too */
int         json_bool(const JsonValue *v, int otherwise);
const char *json_string(const JsonValue *v, const char *otherwise);           /* otherwise, too, if a NUL is inside */

/* Text that grows. Start with {0}; `at` ends with a NUL once something was added; free() it. */
typedef struct { char *at; size_t length, room; } Text;
void text_add(Text *t, const char *format, ...) PRINTF(2, 3);
void text_add_bytes(Text *t, const void *data, size_t bytes);
void text_add_string(Text *t, const char *string);                  /* as it is, per cent signs and all */
void text_add_json(Text *t, const char *string, size_t bytes);      /* quoted and escaped; bad UTF-8 becomes U+FFFD */
void text_add_double(Text *t, double x);                            /* shortest that reads back; null if not finite */

/* UTF-8 without surrogates, overlong forms or codes above U+10FFFF. */
size_t utf8_decode(const char *text, size_t bytes, uint32_t *code);     /* bytes of the first character; 0: malformed */
size_t utf8_encode(uint32_t code, char *text);                          /* writes 1 to 4 bytes, returns how many */
size_t utf8_valid(const char *text, size_t bytes);                      /* length of the longest well-formed prefix */
size_t utf8_complete(const char *text, size_t bytes);           /* length without a character that is still growing */
#endif
