/* jinja_method.c: attributes, indices, and the methods of strings, lists and dicts, as Python has
 * them. Lists and dicts cannot be changed, as in Transformers. */
#include "jinja_method.h"
#include <stdlib.h>
#include <string.h>

/* ---- arguments ------------------------------------------------------------------------------- */

const Value *arg(const Args *a, int number, const char *name) {
    if (number >= 0 && number < a->n) return &a->at[number];
    for (int i = 0; i < a->named; i++) if (name && !strcmp(a->name[i], name)) return &a->at[a->n + i];
    return NULL;
}
const Value *arg_needed(Work *w, const Args *a, int number, const char *name, const char *of) {
    const Value *v = arg(a, number, name);
    if (!v) work_fail(w, "%s lacks its argument %d", of, number + 1);
    return v;
}
static Str string_arg(Work *w, const Args *a, int number, const char *name, const char *of) {
    const Value *v = arg_needed(w, a, number, name, of);
    need_defined(w, v);
    if (v->kind != STRING) work_fail(w, "%s: expected a str, found a %s", of, value_kind(v));
    return v->is.string;
}

/* ---- strings --------------------------------------------------------------------------------- */

/* Python's white space: as isspace() in C, and the separators of Unicode. */
static int is_white(uint32_t c) {
    return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F) || c == 0x85 || c == 0xA0 || c == 0x1680
        || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}
/* The character at `at`, and its bytes. */
static uint32_t character(Str s, size_t at, size_t *bytes) {
    uint32_t c = (unsigned char)s.at[at];
    *bytes = c < 128 ? 1 : utf8_decode(s.at + at, s.bytes - at, &c);
    if (!*bytes) *bytes = 1;
    return c;
}
static size_t last_start(Str s, size_t end) {
    do end--; while (end && (s.at[end] & 0xC0) == 0x80);
    return end;
}
/* Is the character in the set? NULL: is it white? */
static int is_one_of(Work *w, Str s, size_t at, size_t n, const Str *set) {
    size_t bytes;
    if (!set) return is_white(character(s, at, &bytes));
    return str_find(w, *set, str_part(s, at, n), 0) != SIZE_MAX;
}
static Str strip(Work *w, Str s, const Str *set, int left, int right) {
    size_t from = 0, end = s.bytes, n;
    work_step(w, 1);
    for (; left && from < end; from += n) {
        character(s, from, &n);
        if (!is_one_of(w, s, from, n, set)) break;
    }
    while (right && end > from) {
        const size_t at = last_start(s, end);
        if (!is_one_of(w, s, at, end - at, set)) break;
        end = at;
    }
    return str_part(s, from, end - from);
}
static Value method_strip(Work *w, Str s, const char *name, const Args *a) {
    const Value *v = arg(a, 0, "chars");
    const int set = v && v->kind != NONE;
    const Str chars = set ? string_arg(w, a, 0, "chars", name) : s;
    return value_string(strip(w, s, set ? &chars : NULL, *name != 'r', *name != 'l'));
}

/* split and rsplit at a string, or at white space. most: of separators; < 0: all. */
static Value split_at(Work *w, Str s, Str by, int64_t most, int right) {
    Value parts = value_list(w, LIST);
    List *l = parts.is.list;
    if (!by.bytes) work_fail(w, "split: the separator is empty");
    size_t from = 0, skip = 0;
    if (right && most >= 0) {                   /* the first of them stay together */
        size_t all = 0;
        for (size_t at = 0; (at = str_find(w, s, by, at)) != SIZE_MAX; at += by.bytes) all++;
        skip = all > (size_t)most ? all - (size_t)most : 0;
        most = -1;
    }
    for (size_t at = 0; most && (at = str_find(w, s, by, at)) != SIZE_MAX; at += by.bytes) {
        if (skip) { skip--; continue; }
        list_add(w, l, value_string(str_part(s, from, at - from)));
        from = at + by.bytes;
        most -= most > 0;
    }
    list_add(w, l, value_string(str_part(s, from, s.bytes - from)));
    return parts;
}
static Value split_white(Work *w, Str s, int64_t most) {
    Value parts = value_list(w, LIST);
    for (;;) {
        s = strip(w, s, NULL, 1, 0);
        if (!s.bytes) return parts;
        size_t end = 0, n;
        if (!most) { list_add(w, parts.is.list, value_string(strip(w, s, NULL, 0, 1))); return parts; }
        for (; end < s.bytes; end += n) if (is_white(character(s, end, &n))) break;
        list_add(w, parts.is.list, value_string(str_part(s, 0, end)));
        s = str_part(s, end, s.bytes - end);
        most -= most > 0;
    }
}
static Value method_split(Work *w, Str s, const char *name, const Args *a) {
    const Value *by = arg(a, 0, "sep"), *most = arg(a, 1, "maxsplit");
    const int64_t n = most ? need_int(w, most, name) : -1;
    if (by && by->kind != NONE) return split_at(w, s, string_arg(w, a, 0, "sep", name), n, *name == 'r');
    if (*name == 'r' && n >= 0) work_fail(w, "rsplit at white space with a limit is not implemented");
    return split_white(w, s, n);
}
static Value method_splitlines(Work *w, Str s, UNUSED const char *name, const Args *a) {
    Value parts = value_list(w, LIST);
    const int keep = arg(a, 0, "keepends") && value_truth(arg(a, 0, "keepends"));
    for (size_t from = 0, at = 0; at < s.bytes; ) {
        while (at < s.bytes && s.at[at] != '\n' && s.at[at] != '\r') at++;
        const size_t n = at < s.bytes ? s.at[at] == '\r' && at + 1 < s.bytes && s.at[at + 1] == '\n' ? 2 : 1 : 0;
        list_add(w, parts.is.list, value_string(str_part(s, from, at - from + (keep ? n : 0))));
        from = at += n;
    }
    return parts;
}
static Value method_partition(Work *w, Str s, const char *name, const Args *a) {
    const Str by = string_arg(w, a, 0, "sep", name);
    size_t at = SIZE_MAX;
    Value parts = value_list(w, TUPLE);
    for (size_t i = 0; (i = str_find(w, s, by, i)) != SIZE_MAX && by.bytes; i++) {
        at = i;
        if (*name != 'r') break;
    }
    const size_t none = *name == 'r' ? 0 : s.bytes, from = at == SIZE_MAX ? none : at,
        to = at == SIZE_MAX ? none : at + by.bytes;
    list_add(w, parts.is.list, value_string(str_part(s, 0, from)));
    list_add(w, parts.is.list, value_string(str_part(s, from, to - from)));
    list_add(w, parts.is.list, value_string(str_part(s, to, s.bytes - to)));
    return parts;
}
static int has_end(Str s, Str end, int last) {
    return end.bytes <= s.bytes && (!end.bytes || !memcmp(s.at + (last ? s.bytes - end.bytes : 0), end.at, end.bytes));
}
static Value method_starts(Work *w, Str s, const char *name, const Args *a) {
    const Value *v = arg_needed(w, a, 0, NULL, name);
    if (a->n > 1) work_fail(w, "%s of a part is not implemented", name);
    if (v->kind != TUPLE) return value_bool(has_end(s, string_arg(w, a, 0, NULL, name), *name == 'e'));
    for (size_t i = 0; i < v->is.list->n; i++) {
        const Value *one = &v->is.list->at[i];
        if (one->kind != STRING) work_fail(w, "%s: expected a str, found a %s", name, value_kind(one));
        if (has_end(s, one->is.string, *name == 'e')) return value_bool(1);
    }
    return value_bool(0);
}
static Value method_remove(Work *w, Str s, const char *name, const Args *a) {
    const Str end = string_arg(w, a, 0, NULL, name);
    const int last = !strcmp(name, "removesuffix");
    if (!has_end(s, end, last)) return value_string(s);
    return value_string(str_part(s, last ? 0 : end.bytes, s.bytes - end.bytes));
}
static Value method_replace(Work *w, Str s, const char *name, const Args *a) {
    const Str old = string_arg(w, a, 0, "old", name), new = string_arg(w, a, 1, "new", name);
    const Value *count = arg(a, 2, "count");
    int64_t most = count && count->kind != NONE ? need_int(w, count, name) : -1;
    Out o = { 0 };
    size_t from = 0, at = 0, n = 1;
    if (old.bytes && str_find(w, s, old, 0) == SIZE_MAX) return value_string(s);
    out_begin(w, &o);
    for (; most && (at = str_find(w, s, old, at)) != SIZE_MAX; most -= most > 0) {
        out_put(w, str_part(s, from, at - from));
        out_put(w, new);
        from = at + old.bytes;
        if (!old.bytes && at < s.bytes) character(s, at, &n);               /* an empty one: between all characters */
        at = old.bytes ? from : at + n;
    }
    out_put(w, str_part(s, from, s.bytes - from));
    return value_string(out_end(w));
}
static Value method_find(Work *w, Str s, const char *name, const Args *a) {
    const Str what = string_arg(w, a, 0, NULL, name);
    size_t at = SIZE_MAX;
    if (a->n > 1) work_fail(w, "%s of a part is not implemented", name);
    for (size_t i = 0; (i = str_find(w, s, what, i)) != SIZE_MAX; i++) {
        at = i;
        if (*name != 'r') break;
    }
    if (at == SIZE_MAX && strstr(name, "index")) work_fail(w, "%s: the string is not there", name);
    return value_int(at == SIZE_MAX ? -1 : (int64_t)str_length(str_part(s, 0, at)));
}
static Value method_count(Work *w, Str s, const char *name, const Args *a) {
    const Str what = string_arg(w, a, 0, NULL, name);
    int64_t n = 0;
    if (!what.bytes) return value_int((int64_t)str_length(s) + 1);
    for (size_t at = 0; (at = str_find(w, s, what, at)) != SIZE_MAX; at += what.bytes) n++;
    return value_int(n);
}
/* Letters outside ASCII that have two cases lie in these ranges (with others). */
static void need_ascii_case(Work *w, uint32_t c, const char *name) {
    if ((c >= 0xAA && c <= 0x58F && c != 0xAB && c != 0xB7 && c != 0xBB) || (c >= 0x10A0 && c <= 0x10FF)
        || (c >= 0x13A0 && c <= 0x13FF) || (c >= 0x1C80 && c <= 0x1FFF) || (c >= 0x2100 && c <= 0x218F)
        || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x2C00 && c <= 0x2DFF) || (c >= 0xA640 && c <= 0xABBF)
        || (c >= 0xFB00 && c <= 0xFB17) || (c >= 0xFF21 && c <= 0xFF5A) || (c >= 0x10400 && c <= 0x1E943))
        work_fail(w, "%s: the case of letters outside ASCII cannot be changed", name);
}
static Value method_case(Work *w, Str s, const char *name, UNUSED const Args *a) {
    const int upper = *name == 'u', lower = *name == 'l', title = *name == 't';
    Out o = { 0 };
    out_begin(w, &o);
    for (size_t i = 0, n, in_word = 0; i < s.bytes; i += n) {
        const uint32_t c = character(s, i, &n);
        const int letter = (c | 32) >= 'a' && (c | 32) <= 'z';
        if (c >= 128) need_ascii_case(w, c, name);
        Str one = str_part(s, i, n);
        char changed = (char)c;
        if (letter) changed = (char)(upper || (!lower && !in_word) ? c & ~32u : c | 32u);
        in_word = title ? (size_t)letter : 1;
        if (n == 1) one = (Str){ .at = &changed, .bytes = 1, .origin = s.origins ? s.origins[i] : s.origin };
        out_put(w, one);
    }
    return value_string(out_end(w));
}
static Value method_is(Work *w, Str s, const char *name, UNUSED const Args *a) {
    int ok = s.bytes > 0, cased = 0;
    for (size_t i = 0, n; ok && i < s.bytes; i += n) {
        const uint32_t c = character(s, i, &n);
        const int digit = c >= '0' && c <= '9', lower = c >= 'a' && c <= 'z', upper = c >= 'A' && c <= 'Z';
        if (c >= 128 && strcmp(name, "isspace")) work_fail(w, "%s of letters outside ASCII is not implemented", name);
        ok = !strcmp(name, "isspace") ? is_white(c) : !strcmp(name, "isalpha") ? lower || upper
           : !strcmp(name, "isalnum") ? lower || upper || digit : !strcmp(name, "islower") ? !upper
           : !strcmp(name, "isupper") ? !lower : digit;
        cased |= lower || upper;
    }
    return value_bool(ok && (cased || (strcmp(name, "islower") && strcmp(name, "isupper"))));
}
static Value method_join(Work *w, Str s, const char *name, const Args *a) {
    const Value list = value_items(w, arg_needed(w, a, 0, NULL, name));
    Out o = { 0 };
    out_begin(w, &o);
    for (size_t i = 0; i < list.is.list->n; i++) {
        const Value *v = &list.is.list->at[i];
        need_defined(w, v);
        if (v->kind != STRING) work_fail(w, "join: expected a str, found a %s", value_kind(v));
        if (i) out_put(w, s);
        out_put(w, v->is.string);
    }
    return value_string(out_end(w));
}
static Value method_fill(Work *w, Str s, const char *name, const Args *a) {
    const int64_t width = need_int(w, arg_needed(w, a, 0, NULL, name), name), lack = width - (int64_t)str_length(s);
    const int zeros = *name == 'z';
    Out o = { 0 };
    if (lack > 1 << 20) work_fail(w, "%s: too wide", name);
    if (a->n > 1) work_fail(w, "%s with another character is not implemented", name);
    out_begin(w, &o);
    const size_t sign = zeros && s.bytes && (*s.at == '-' || *s.at == '+');
    out_put(w, str_part(s, 0, sign));
    for (int64_t i = 0; i < lack && *name != 'l'; i++) out_text(w, zeros ? "0" : " ");
    out_put(w, str_part(s, sign, s.bytes - sign));
    for (int64_t i = 0; i < lack && *name == 'l'; i++) out_text(w, " ");
    return value_string(out_end(w));
}
/* "{} {0} {name}".format(...), without formats of fields. */
static Value method_format(Work *w, Str s, const char *name, const Args *a) {
    Out o = { 0 };
    int number = 0;
    out_begin(w, &o);
    for (size_t i = 0; i < s.bytes; i++) {
        const char c = s.at[i];
        if (c != '{' && c != '}') { out_put(w, str_part(s, i, 1)); continue; }
        if (i + 1 < s.bytes && s.at[i + 1] == c) { out_put(w, str_part(s, i++, 1)); continue; }
        char field[64];
        size_t n = 0;
        while (c == '{' && ++i < s.bytes && s.at[i] != '}' && n < sizeof field - 1) field[n++] = s.at[i];
        field[n] = 0;
        if (c == '}' || i >= s.bytes || s.at[i] != '}' || strpbrk(field, ":!.[{"))
            work_fail(w, "%s: fields like {%.20s} are not implemented", name, field);
        const int is_number = n && strspn(field, "0123456789") == n;
        const Value *v = arg(a, !n ? number++ : is_number && n < 6 ? atoi(field) : -1, n && !is_number ? field : NULL);
        if (!v) work_fail(w, "%s: the field {%.20s} is not given", name, field);
        out_value(w, v);
    }
    return value_string(out_end(w));
}
Value str_format(Work *w, Str s, const Value *v) {
    const List one = { .at = (Value *)v, .n = 1 }, *all = v->kind == TUPLE ? v->is.list : &one;
    size_t used = 0;
    Out o = { 0 };
    out_begin(w, &o);
    for (size_t i = 0; i < s.bytes; i++) {
        if (s.at[i] != '%') { out_put(w, str_part(s, i, 1)); continue; }
        const char c = ++i < s.bytes ? s.at[i] : 0;
        if (c == '%') { out_put(w, str_part(s, i, 1)); continue; }
        if (c != 's' && c != 'd' && c != 'r') work_fail(w, "formats like %%%c are not implemented", c ? c : '%');
        if (used == all->n) work_fail(w, "not enough values for a format");
        const Value *x = &all->at[used++];
        if (c == 'd' && x->kind != INTEGER && x->kind != BOOLEAN) work_fail(w, "%%d: found a %s", value_kind(x));
        const Value number = c == 'd' ? value_int(x->is.integer) : *x;
        if (c == 'r') out_repr(w, x);
        else out_value(w, &number);
    }
    if (used < all->n && v->kind != DICT) work_fail(w, "too many values for a format");
    return value_string(out_end(w));
}

/* ---- lists and dicts ------------------------------------------------------------------------- */

static Value list_method(Work *w, const List *l, const char *name, const Args *a) {
    const Value *v = arg_needed(w, a, 0, NULL, name);
    int64_t n = 0;
    for (size_t i = 0; i < l->n; i++) {
        work_step(w, 1);
        if (!value_equal(w, &l->at[i], v)) continue;
        if (*name == 'i') return value_int((int64_t)i);
        n++;
    }
    if (*name == 'i') work_fail(w, "index: the value is not in the list");
    return value_int(n);
}
static Value dict_method(Work *w, const Dict *d, const char *name, const Args *a) {
    if (!strcmp(name, "get")) {
        const Value *found = dict_find(w, d, *arg_needed(w, a, 0, "key", name)), *otherwise = arg(a, 1, "default");
        return found ? *found : otherwise ? *otherwise : value_none();
    }
    Value all = value_list(w, LIST);
    if (!strcmp(name, "copy")) {
        all = value_dict(w, DICT);
        for (size_t i = 0; i < d->n; i++) dict_put(w, all.is.dict, d->at[i].key, d->at[i].value);
        return all;
    }
    for (size_t i = 0; i < d->n; i++) {
        Value pair = *name == 'k' ? d->at[i].key : d->at[i].value;
        if (*name == 'i') {
            pair = value_list(w, TUPLE);
            list_add(w, pair.is.list, d->at[i].key);
            list_add(w, pair.is.list, d->at[i].value);
        }
        list_add(w, all.is.list, pair);
    }
    return all;
}

/* ---- which ----------------------------------------------------------------------------------- */

typedef Value (*StringMethod)(Work *w, Str s, const char *name, const Args *a);
static const struct { const char *name; StringMethod call; } string_methods[] = {
    { "strip", method_strip }, { "lstrip", method_strip }, { "rstrip", method_strip }, { "split", method_split },
    { "rsplit", method_split }, { "splitlines", method_splitlines }, { "partition", method_partition },
    { "rpartition", method_partition }, { "startswith", method_starts }, { "endswith", method_starts },
    { "removeprefix", method_remove }, { "removesuffix", method_remove }, { "replace", method_replace },
    { "find", method_find }, { "rfind", method_find }, { "index", method_find }, { "rindex", method_find },
    { "count", method_count }, { "upper", method_case }, { "lower", method_case }, { "title", method_case },
    { "capitalize", method_case }, { "isdigit", method_is }, { "isnumeric", method_is }, { "isdecimal", method_is },
    { "isalpha", method_is }, { "isalnum", method_is }, { "isspace", method_is }, { "islower", method_is },
    { "isupper", method_is }, { "join", method_join }, { "format", method_format }, { "zfill", method_fill },
    { "ljust", method_fill }, { "rjust", method_fill }, };
enum { STRING_METHODS = sizeof string_methods / sizeof *string_methods };
/* What Python has and templates may not call, since it changes its object. */
static const char changing[] = " append extend insert pop remove clear reverse sort update popitem setdefault ";

static int is_word(const char *words, const char *name) {
    char spaced[40];
    return strlen(name) < 30 && snprintf(spaced, sizeof spaced, " %s ", name) > 2 && strstr(words, spaced) != NULL;
}
int method_known(Kind kind, const char *name) {
    for (int i = 0; kind == STRING && i < STRING_METHODS; i++) if (!strcmp(name, string_methods[i].name)) return 1;
    if (kind == DICT) return is_word(" get items keys values copy pop clear update popitem setdefault ", name);
    if (kind == LIST) return is_word(" count index append extend insert pop remove clear reverse sort copy ", name);
    return kind == TUPLE && is_word(" count index ", name);
}
Value method_call(Work *w, const Method *m, const Args *a) {
    const Value *of = &m->of;
    for (int i = 0; of->kind == STRING && i < STRING_METHODS; i++)
        if (!strcmp(m->name, string_methods[i].name)) return string_methods[i].call(w, of->is.string, m->name, a);
    if (is_word(changing, m->name)) work_fail(w, "%s: a %s cannot be changed", m->name, value_kind(of));
    if (of->kind == DICT) return dict_method(w, of->is.dict, m->name, a);
    if (!strcmp(m->name, "copy")) return *of;
    return list_method(w, of->is.list, m->name, a);
}

/* ---- attributes and indices ------------------------------------------------------------------ */

static Value loop_attribute(Work *w, const Loop *l, const char *name) {
    const int64_t at = (int64_t)l->at, n = (int64_t)l->items->n;
    const struct { const char *name; int64_t is; int truth; } fields[] = {
        { "index", at + 1, 0 }, { "index0", at, 0 }, { "revindex", n - at, 0 }, { "revindex0", n - at - 1, 0 },
        { "length", n, 0 }, { "depth", l->depth, 0 }, { "depth0", l->depth - 1, 0 }, { "first", at == 0, 1 },
        { "last", at + 1 == n, 1 }, };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!strcmp(name, fields[i].name)) return fields[i].truth ? value_bool(fields[i].is != 0)
            : value_int(fields[i].is);
    if (!strcmp(name, "previtem"))
        return at ? l->items->at[at - 1] : value_undefined(w, "there is no previous item");
    if (!strcmp(name, "nextitem"))
        return at + 1 < n ? l->items->at[at + 1] : value_undefined(w, "there is no next item");
    return value_undefined(w, "'LoopContext' has no attribute '%.60s'", name);
}
Value value_attribute(Work *w, const Value *v, const char *name) {
    need_defined(w, v);
    if (method_known(v->kind, name) || (v->kind == LOOP && !strcmp(name, "cycle"))) {
        Method *m = work_alloc(w, sizeof *m);
        *m = (Method){ *v, name };
        return VALUE(METHOD, method, m);
    }
    if (v->kind == LOOP) return loop_attribute(w, v->is.loop, name);
    const Value *found = v->kind == DICT || v->kind == SPACE ? dict_find(w, v->is.dict, value_string(str_of(name)))
        : NULL;
    return found ? *found : value_undefined(w, "'%s' has no attribute '%.60s'", value_kind(v), name);
}
Value value_index(Work *w, const Value *v, const Value *key) {
    need_defined(w, v);
    const Value *found = v->kind == DICT ? dict_find(w, v->is.dict, *key) : NULL;
    if (found) return *found;
    const int is_number = key->kind == INTEGER || key->kind == BOOLEAN;
    if (is_number && (v->kind == LIST || v->kind == TUPLE || v->kind == STRING)) {
        const int64_t n = (int64_t)value_length(w, v), i = key->is.integer < 0 ? key->is.integer + n : key->is.integer;
        if (i < 0 || i >= n) return value_undefined(w, "a %s has no element %lld", value_kind(v),
                                                    (long long)key->is.integer);
        if (v->kind != STRING) return v->is.list->at[i];
        const Str s = v->is.string;
        const size_t at = str_offset(s, (size_t)i);
        return value_string(str_part(s, at, str_offset(str_part(s, at, s.bytes - at), 1)));
    }
    if (key->kind == STRING && key->is.string.bytes < 64) {
        char name[64];
        memcpy(name, key->is.string.at, key->is.string.bytes);
        name[key->is.string.bytes] = 0;
        if (v->kind == LOOP) return loop_attribute(w, v->is.loop, name);
        const Value *in_space = v->kind == SPACE ? dict_find(w, v->is.dict, *key) : NULL;
        if (in_space) return *in_space;
        if (method_known(v->kind, name)) work_fail(w, "['%s'] of a %s is its method: not implemented", name,
                                                   value_kind(v));
        return value_undefined(w, "'%s' has no attribute '%s'", value_kind(v), name);
    }
    return value_undefined(w, "a %s has no such element", value_kind(v));
}
