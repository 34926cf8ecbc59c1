/* jinja_value.c: memory, values and strings of jinja.h, with the origins of their bytes. */
#define _POSIX_C_SOURCE 200809L
#include "jinja_value.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory and errors ----------------------------------------------------------------------- */

static void check_memory(Work *w) {
    if (w->used > JINJA_MEMORY) work_fail(w, "it needs more than %d MB", JINJA_MEMORY >> 20);
}
void *work_alloc(Work *w, size_t bytes) {
    w->used += block_more(w->blocks, bytes);
    check_memory(w);
    return block_alloc(&w->blocks, bytes);
}
void *work_grow(Work *w, void *at, size_t n, size_t *capacity, size_t bytes) {
    if (n < *capacity) return at;
    void *more = work_alloc(w, (*capacity = 2 * *capacity + 4) * bytes);
    if (n) memcpy(more, at, n * bytes);
    return more;
}
void work_free(Work *w) { block_free(&w->blocks); }
void work_step(Work *w, size_t n) {
    w->steps += (int64_t)n;
    if (w->steps > w->most_steps) work_fail(w, "it takes too long");
}
void work_enter(Work *w) {
    work_step(w, 1);
    if (++w->depth > JINJA_DEPTH) work_fail(w, "it is nested too deeply");
}
_Noreturn void work_fail(Work *w, const char *format, ...) {
    va_list args;
    char what[512];
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    for (Out *o = w->out; o; o = o->up) free_each(o->text.at, o->origins.at);
    w->out = NULL;
    error_set(w->e, "line %d of the chat template: %s", w->line, what);
    longjmp(w->failed, 1);
}

/* ---- values ---------------------------------------------------------------------------------- */

Value value_undefined(Work *w, const char *format, ...) {
    char what[200];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(what, sizeof what, format, args);
    va_end(args);
    const size_t bytes = n < (int)sizeof what ? (size_t)n : sizeof what - 1;
    char *copy = work_alloc(w, bytes + 1);
    memcpy(copy, what, bytes + 1);
    return VALUE(UNDEFINED, why, copy);
}
Value value_list(Work *w, Kind kind) {
    List *l = work_alloc(w, sizeof *l);
    *l = (List){ 0 };
    return VALUE(kind, list, l);
}
Value value_dict(Work *w, Kind kind) {
    Dict *d = work_alloc(w, sizeof *d);
    *d = (Dict){ 0 };
    return VALUE(kind, dict, d);
}
void list_add(Work *w, List *l, Value v) {
    work_step(w, 1);
    l->at = work_grow(w, l->at, l->n, &l->capacity, sizeof *l->at);
    l->at[l->n++] = v;
}
Value *dict_find(Work *w, const Dict *d, Value key) {
    for (size_t i = 0; i < d->n; i++) {
        work_step(w, 1);
        if (key.kind == STRING ? d->at[i].key.kind == STRING && str_same(d->at[i].key.is.string, key.is.string)
                               : value_equal(w, &d->at[i].key, &key)) return &d->at[i].value;
    }
    return NULL;
}
static void pair_add(Work *w, Dict *d, Value key, Value value) {
    d->at = work_grow(w, d->at, d->n, &d->capacity, sizeof *d->at);
    d->at[d->n++] = (Pair){ key, value };
}
void dict_put(Work *w, Dict *d, Value key, Value value) {
    Value *there = dict_find(w, d, key);
    if (key.kind == LIST || key.kind == DICT) work_fail(w, "a %s cannot be a key", value_kind(&key));
    if (there) *there = value;
    else pair_add(w, d, key, value);
}
const char *value_kind(const Value *v) {
    static const char *const names[] = { "undefined", "None", "bool", "int", "float", "str", "list", "tuple", "dict",
                                         "Namespace", "LoopContext", "Macro", "method", "function" };
    return names[v->kind];
}
void need_defined(Work *w, const Value *v) { if (v->kind == UNDEFINED) work_fail(w, "%s", v->is.why); }
int64_t need_int(Work *w, const Value *v, const char *what) {
    need_defined(w, v);
    if (v->kind != INTEGER && v->kind != BOOLEAN) work_fail(w, "%s: expected an int, found a %s", what, value_kind(v));
    return v->is.integer;
}
int value_truth(const Value *v) {
    switch (v->kind) {
    case UNDEFINED: case NONE: return 0;
    case BOOLEAN: case INTEGER: return v->is.integer != 0;
    case FLOAT: return v->is.number != 0;
    case STRING: return v->is.string.bytes > 0;
    case LIST: case TUPLE: return v->is.list->n > 0;
    case DICT: return v->is.dict->n > 0;
    default: return 1;
    }
}
static int is_number(const Value *v) { return v->kind == BOOLEAN || v->kind == INTEGER || v->kind == FLOAT; }
static double number_of(const Value *v) { return v->kind == FLOAT ? v->is.number : (double)v->is.integer; }

int value_equal(Work *w, const Value *a, const Value *b) {
    int same = 1;
    work_enter(w);
    if (is_number(a) && is_number(b))
        same = a->kind != FLOAT && b->kind != FLOAT ? a->is.integer == b->is.integer : number_of(a) == number_of(b);
    else if (a->kind != b->kind) same = 0;
    else if (a->kind == STRING) same = str_same(a->is.string, b->is.string);
    else if (a->kind == LIST || a->kind == TUPLE) {
        same = a->is.list->n == b->is.list->n;
        for (size_t i = 0; same && i < a->is.list->n; i++) same = value_equal(w, &a->is.list->at[i],
                &b->is.list->at[i]);
    } else if (a->kind == DICT) {
        same = a->is.dict->n == b->is.dict->n;
        for (size_t i = 0; same && i < a->is.dict->n; i++) {
            const Value *other = dict_find(w, b->is.dict, a->is.dict->at[i].key);
            same = other && value_equal(w, &a->is.dict->at[i].value, other);
        }
    } else if (a->kind != UNDEFINED && a->kind != NONE) same = a->is.list == b->is.list;
    w->depth--;
    return same;
}
int value_order(Work *w, const Value *a, const Value *b) {
    need_defined(w, a);
    need_defined(w, b);
    if (a->kind == STRING && b->kind == STRING) {
        const Str x = a->is.string, y = b->is.string;
        const size_t n = x.bytes < y.bytes ? x.bytes : y.bytes;
        const int order = n ? memcmp(x.at, y.at, n) : 0;
        return order ? order : (x.bytes > y.bytes) - (x.bytes < y.bytes);
    }
    if (is_number(a) && is_number(b)) {
        const double x = number_of(a), y = number_of(b);
        return (x > y) - (x < y);
    }
    if ((a->kind == LIST || a->kind == TUPLE) && a->kind == b->kind) {
        for (size_t i = 0; i < a->is.list->n && i < b->is.list->n; i++) {
            work_enter(w);
            const int order = value_order(w, &a->is.list->at[i], &b->is.list->at[i]);
            w->depth--;
            if (order) return order;
        }
        return (a->is.list->n > b->is.list->n) - (a->is.list->n < b->is.list->n);
    }
    work_fail(w, "a %s and a %s have no order", value_kind(a), value_kind(b));
}
int value_has(Work *w, const Value *in, const Value *v) {
    if (in->kind == STRING) {
        need_defined(w, v);
        if (v->kind != STRING) work_fail(w, "'in' a str: expected a str, found a %s", value_kind(v));
        return str_find(w, in->is.string, v->is.string, 0) != SIZE_MAX;
    }
    if (in->kind == DICT) return dict_find(w, in->is.dict, *v) != NULL;
    const Value items = value_items(w, in);
    for (size_t i = 0; i < items.is.list->n; i++) {
        work_step(w, 1);
        if (value_equal(w, &items.is.list->at[i], v)) return 1;
    }
    return 0;
}
int value_compares(Work *w, const Value *a, const Value *b, Operator op) {
    switch (op) {
    case O_EQUAL:         return value_equal(w, a, b);
    case O_UNEQUAL:       return !value_equal(w, a, b);
    case O_LESS:          return value_order(w, a, b) < 0;
    case O_LESS_EQUAL:    return value_order(w, a, b) <= 0;
    case O_GREATER:       return value_order(w, a, b) > 0;
    case O_GREATER_EQUAL: return value_order(w, a, b) >= 0;
    case O_IN:            return value_has(w, b, a);
    default:              return !value_has(w, b, a);
    }
}
size_t value_length(Work *w, const Value *v) {
    switch (v->kind) {
    case UNDEFINED: return 0;
    case STRING: work_step(w, v->is.string.bytes / 16); return str_length(v->is.string);
    case LIST: case TUPLE: return v->is.list->n;
    case DICT: return v->is.dict->n;
    case LOOP: return v->is.loop->items->n;
    default: work_fail(w, "a %s has no length", value_kind(v));
    }
}
Value value_items(Work *w, const Value *v) {
    if (v->kind == LIST || v->kind == TUPLE) return *v;
    Value all = value_list(w, LIST);
    if (v->kind == STRING)
        for (size_t at = 0, n; at < v->is.string.bytes; at += n) {
            n = str_offset(str_part(v->is.string, at, v->is.string.bytes - at), 1);
            list_add(w, all.is.list, value_string(str_part(v->is.string, at, n)));
        }
    else if (v->kind == DICT) for (size_t i = 0; i < v->is.dict->n; i++) list_add(w, all.is.list,
            v->is.dict->at[i].key);
    else if (v->kind != UNDEFINED) work_fail(w, "a %s cannot be looped over", value_kind(v));
    return all;
}
Value value_of_json(Work *w, const JsonValue *v, uint32_t origin, int depth) {
    work_step(w, 1);
    switch (v->type) {
    case JSON_NULL:   return value_none();
    case JSON_BOOL:   return value_bool(v->is.integer != 0);
    case JSON_INT:    return value_int(v->is.integer);
    case JSON_DOUBLE: return VALUE(FLOAT, number, v->is.number);
    case JSON_STRING: return value_string((Str){ .at = v->is.string, .bytes = v->length, .origin = origin });
    default: break;
    }
    if (depth > JSON_DEPTH) work_fail(w, "values are nested too deeply");
    Value all = v->type == JSON_ARRAY ? value_list(w, LIST) : value_dict(w, DICT);
    for (const JsonValue *x = json_first(v); x; x = x->next) {
        const int is_role = origin && !depth && x->key && !strcmp(x->key, "role");
        const Value one = value_of_json(w, x, is_role ? origin & ORIGIN_GIVEN : origin, depth + 1);
        if (v->type == JSON_ARRAY) list_add(w, all.is.list, one);
        else pair_add(w, all.is.dict, value_string((Str){ .at = x->key, .bytes = x->key_length, .origin = origin }),
                      one);
    }
    return all;
}

/* ---- strings --------------------------------------------------------------------------------- */

Str str_part(Str s, size_t from, size_t bytes) {
    return (Str){ s.at + from, bytes, s.origins ? s.origins + from : NULL, s.origin };
}
int str_is(Str s, const char *text) { return strlen(text) == s.bytes && !memcmp(s.at, text, s.bytes); }
int str_same(Str a, Str b) { return a.bytes == b.bytes && (!a.bytes || !memcmp(a.at, b.at, a.bytes)); }
size_t str_find(Work *w, Str in, Str s, size_t from) {
    work_step(w, 1 + in.bytes / 16);
    if (!s.bytes) return from <= in.bytes ? from : SIZE_MAX;
    for (size_t at = from; at + s.bytes <= in.bytes; at++) {
        const char *found = memchr(in.at + at, *s.at, in.bytes - s.bytes + 1 - at);
        if (!found) return SIZE_MAX;
        at = (size_t)(found - in.at);
        if (!memcmp(found, s.at, s.bytes)) return at;
        work_step(w, s.bytes / 16);
    }
    return SIZE_MAX;
}
size_t str_length(Str s) { return utf8_count(s.at, s.bytes); }
size_t str_offset(Str s, size_t characters) {
    size_t i = 0;
    for (; i < s.bytes; i++) if ((s.at[i] & 0xC0) != 0x80 && !characters--) break;
    return i;
}

/* ---- writing --------------------------------------------------------------------------------- */

void out_begin(Work *w, Out *o) {
    o->up = w->out;
    w->out = o;
}
/* Origins 0 of all bytes that have none yet, up to `bytes`. */
static void fill_origins(Out *o, size_t bytes) {
    static const uint32_t zeros[64];
    while (o->origins.length < bytes * sizeof *zeros) {
        const size_t lack = bytes * sizeof *zeros - o->origins.length;
        text_add_bytes(&o->origins, zeros, lack < sizeof zeros ? lack : sizeof zeros);
    }
}
static inline uint32_t with_number(uint32_t origin, uint32_t otherwise) {
    return origin >> ORIGIN_SHIFT ? origin : origin | otherwise;
}
static void put(Work *w, Str s, uint32_t otherwise, uint32_t also) {
    enum { SOME = 64 };
    Out *o = w->out;
    if (!s.bytes) return;
    work_step(w, 1 + s.bytes / 64);
    w->used += 5 * s.bytes;
    o->counted += 5 * s.bytes;
    check_memory(w);
    text_add_bytes(&o->text, s.at, s.bytes);
    if (!s.origins && !(s.origin | otherwise | also) && !o->origins.length) return;         /* all are 0 until now */
    fill_origins(o, o->text.length - s.bytes);
    uint32_t some[SOME];
    const uint32_t one = with_number(s.origin, otherwise) | also;
    for (size_t i = 0; i < SOME; i++) some[i] = one;
    for (size_t i = 0, n; i < s.bytes; i += n) {
        n = s.bytes - i < SOME ? s.bytes - i : SOME;
        for (size_t k = 0; s.origins && k < n; k++) some[k] = with_number(s.origins[i + k], otherwise) | also;
        text_add_bytes(&o->origins, some, n * sizeof *some);
    }
}
void out_put(Work *w, Str s) { put(w, s, 0, 0); }
void out_add(Work *w, Str s) {
    put(w, s, (uint32_t)w->message << ORIGIN_SHIFT, w->in_generation ? ORIGIN_GENERATION : 0);
}
void out_text(Work *w, const char *text) { out_put(w, str_of(text)); }
static void append_all(Text *to, Text *from) {
    if (to->length) text_add_bytes(to, from->at, from->length);
    else { free(to->at); *to = *from; *from = (Text){ 0 }; }
}
void out_take(Work *w, Text *text, Text *origins) {
    Out *o = w->out;
    text_add_bytes(&o->text, "", 0);
    fill_origins(o, o->text.length);
    append_all(text, &o->text);
    append_all(origins, &o->origins);
    free_each(o->text.at, o->origins.at);
    w->out = o->up;
}
Str out_end(Work *w) {
    Out *o = w->out;
    Str s = { .at = "", .bytes = o->text.length };
    if (s.bytes) {
        char *copy = work_alloc(w, s.bytes + 1);
        memcpy(copy, o->text.at, s.bytes);
        copy[s.bytes] = 0;
        s.at = copy;
    }
    if (o->origins.length) {
        const size_t have = o->origins.length / sizeof(uint32_t);
        uint32_t *origins = work_alloc(w, s.bytes * sizeof *origins);
        memset(origins, 0, s.bytes * sizeof *origins);
        memcpy(origins, o->origins.at, have * sizeof *origins);
        s.origins = origins;
    }
    w->used -= o->counted;
    w->out = o->up;
    free_each(o->text.at, o->origins.at);
    *o = (Out){ 0 };
    return s;
}

/* As Python shows a float: the shortest digits that read back. */
static void put_float(Work *w, double x) {
    char digits[40], shown[64];
    int precision = 1;
    if (!isfinite(x)) { out_text(w, isnan(x) ? "nan" : x > 0 ? "inf" : "-inf"); return; }
    Text t = { 0 };
    for (; precision < 18; precision++) {
        t.length = 0;
        text_add(&t, "%.*e", precision - 1, x);
        if (text_strtod(t.at, NULL) == x) break;
    }
    snprintf(digits, sizeof digits, "%s", t.at);
    const int exponent = atoi(strchr(digits, 'e') + 1);
    t.length = 0;
    if (exponent < -4 || exponent >= 16) {
        *strchr(digits, 'e') = 0;
        text_add(&t, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
    } else {
        const int decimals = precision - 1 - exponent;
        text_add(&t, "%.*f", decimals > 1 ? decimals : 1, x);
    }
    snprintf(shown, sizeof shown, "%s", t.at);
    free(t.at);
    out_text(w, shown);
}
static void put_int(Work *w, int64_t i) {
    char shown[32];
    snprintf(shown, sizeof shown, "%lld", (long long)i);
    out_text(w, shown);
}
/* What stands for part of a string has its origins. */
static void put_from(Work *w, Str s, size_t at, const char *text) {
    out_put(w, (Str){ .at = text, .bytes = strlen(text), .origin = s.origins ? s.origins[at] : s.origin });
}
static void repr_string(Work *w, Str s) {
    const int quote = memchr(s.at, '\'', s.bytes) && !memchr(s.at, '"', s.bytes) ? '"' : '\'';
    const char around[2] = { (char)quote, 0 };
    static const char plain[] = "\\\n\r\t", names[] = "\\nrt";
    out_text(w, around);
    for (size_t i = 0, from = 0; i <= s.bytes; i++) {
        const unsigned char c = i < s.bytes ? (unsigned char)s.at[i] : '\\';
        const char *found = c ? strchr(plain, c) : NULL;
        char shown[8];
        if (!found && c != quote && c >= 32 && c != 127) continue;
        out_put(w, str_part(s, from, i - from));
        from = i + 1;
        if (i == s.bytes) break;
        if (found) snprintf(shown, sizeof shown, "\\%c", names[found - plain]);
        else snprintf(shown, sizeof shown, c == quote ? "\\%c" : "\\x%02x", c);
        put_from(w, s, i, shown);
    }
    out_text(w, around);
}
static void repr_items(Work *w, const Value *v) {
    const size_t n = v->kind == DICT ? v->is.dict->n : v->is.list->n;
    out_text(w, v->kind == DICT ? "{" : v->kind == LIST ? "[" : "(");
    for (size_t i = 0; i < n; i++) {
        if (i) out_text(w, ", ");
        if (v->kind == DICT) {
            out_repr(w, &v->is.dict->at[i].key);
            out_text(w, ": ");
        }
        out_repr(w, v->kind == DICT ? &v->is.dict->at[i].value : &v->is.list->at[i]);
    }
    if (v->kind == TUPLE && n == 1) out_text(w, ",");
    out_text(w, v->kind == DICT ? "}" : v->kind == LIST ? "]" : ")");
}
void out_repr(Work *w, const Value *v) {
    work_enter(w);
    switch (v->kind) {
    case UNDEFINED: out_text(w, "Undefined"); break;
    case NONE:      out_text(w, "None"); break;
    case BOOLEAN:   out_text(w, v->is.integer ? "True" : "False"); break;
    case INTEGER:   put_int(w, v->is.integer); break;
    case FLOAT:     put_float(w, v->is.number); break;
    case STRING:    repr_string(w, v->is.string); break;
    case LIST: case TUPLE: case DICT: repr_items(w, v); break;
    default: work_fail(w, "a %s cannot be written", value_kind(v));
    }
    w->depth--;
}
void out_value(Work *w, const Value *v) {
    if (v->kind == STRING) out_put(w, v->is.string);
    else if (v->kind != UNDEFINED) out_repr(w, v);
}
Str value_text(Work *w, const Value *v) {
    Out o = { 0 };
    if (v->kind == STRING) return v->is.string;
    out_begin(w, &o);
    out_value(w, v);
    return out_end(w);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_string_out(Work *w, Str s, int ascii) {
    static const char special[] = "\"\\\n\r\t\b\f", names[] = "\"\\nrtbf";
    out_text(w, "\"");
    for (size_t i = 0, from = 0, n; i <= s.bytes; i += n) {
        const unsigned char c = i < s.bytes ? (unsigned char)s.at[i] : 0;
        const char *found = c ? strchr(special, c) : NULL;
        uint32_t code = c;
        char shown[16];
        n = 1;
        if (i < s.bytes && !found && c >= 32 && (c < 128 || !ascii)) continue;
        out_put(w, str_part(s, from, i - from));
        if (i == s.bytes) break;
        if (c >= 128 && (n = utf8_decode(s.at + i, s.bytes - i, &code)) == 0) n = 1;
        if (found) snprintf(shown, sizeof shown, "\\%c", names[found - special]);
        else if (code < 0x10000) snprintf(shown, sizeof shown, "\\u%04x", code);
        else snprintf(shown, sizeof shown, "\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10),
                      0xDC00 + (code & 0x3FF));
        put_from(w, s, i, shown);
        from = i + n;
    }
    out_text(w, "\"");
}
static void json_break(Work *w, const JsonStyle *style, int depth) {
    if (style->indent < 0) return;
    out_text(w, "\n");
    for (int64_t i = 0; i < style->indent * depth; i++) out_text(w, " ");
}
static void json_key(Work *w, const Value *key, const JsonStyle *style) {
    if (key->kind == STRING) { json_string_out(w, key->is.string, style->ascii); return; }
    out_text(w, "\"");
    out_json(w, key, style, 0);
    out_text(w, "\"");
}
static int by_key(Work *w, const Pair *a, const Pair *b) { return value_order(w, &a->key, &b->key); }
static const Dict *sorted_keys(Work *w, const Dict *d) {
    Dict *sorted = value_dict(w, DICT).is.dict;
    for (size_t i = 0; i < d->n; i++) {
        size_t at = sorted->n;
        pair_add(w, sorted, d->at[i].key, d->at[i].value);
        for (; at && by_key(w, &sorted->at[at - 1], &d->at[i]) > 0; at--) {
            work_step(w, 1);
            sorted->at[at] = sorted->at[at - 1];
        }
        sorted->at[at] = d->at[i];
    }
    return sorted;
}
void out_json(Work *w, const Value *v, const JsonStyle *style, int depth) {
    const Dict *d = v->kind == DICT ? style->sorted ? sorted_keys(w, v->is.dict) : v->is.dict : NULL;
    const size_t n = d ? d->n : v->kind == LIST || v->kind == TUPLE ? v->is.list->n : 0;
    work_enter(w);
    switch (v->kind) {
    case NONE:    out_text(w, "null"); break;
    case BOOLEAN: out_text(w, v->is.integer ? "true" : "false"); break;
    case INTEGER: put_int(w, v->is.integer); break;
    case FLOAT:   put_float(w, v->is.number); break;
    case STRING:  json_string_out(w, v->is.string, style->ascii); break;
    case LIST: case TUPLE: case DICT:
        out_text(w, d ? "{" : "[");
        for (size_t i = 0; i < n; i++) {
            if (i) out_put(w, style->item);
            json_break(w, style, depth + 1);
            if (d) { json_key(w, &d->at[i].key, style); out_put(w, style->key); }
            out_json(w, d ? &d->at[i].value : &v->is.list->at[i], style, depth + 1);
        }
        if (n) json_break(w, style, depth);
        out_text(w, d ? "}" : "]");
        break;
    default: work_fail(w, "tojson: a%s value cannot be written as JSON", v->kind == UNDEFINED ? "n undefined" : "");
    }
    w->depth--;
}
