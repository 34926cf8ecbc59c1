/* jinja_filter.c: the filters and tests of Jinja that chat templates use. */
#include "jinja_filter.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- of strings ------------------------------------------------------------------------------ */

static Value call_method(Work *w, Value v, const char *name, const Args *a) {
    return method_call(w, &(Method){ value_string(value_text(w, &v)), name }, a);
}
static Value filter_method(Work *w, Value v, const char *name, const Args *a) {
    return call_method(w, v, !strcmp(name, "trim") ? "strip" : name, a);
}
static Value filter_string(Work *w, Value v, UNUSED const char *name, UNUSED const Args *a) {
    return value_string(value_text(w, &v));
}
static Value filter_format(Work *w, Value v, UNUSED const char *name, const Args *a) {
    Value all = value_list(w, TUPLE);
    if (a->named) work_fail(w, "format with names is not implemented");
    for (int i = 0; i < a->n; i++) list_add(w, all.is.list, a->at[i]);
    return str_format(w, value_text(w, &v), &all);
}
static Value filter_indent(Work *w, Value v, const char *name, const Args *a) {
    const Value *width = arg(a, 0, "width"), *first = arg(a, 1, "first"), *blank = arg(a, 2, "blank");
    const Str s = value_text(w, &v);
    const int64_t n = width && width->kind == STRING ? 0 : width ? need_int(w, width, name) : 4;
    Out o = { 0 };
    if (n > 1000) work_fail(w, "indent: too wide");
    out_begin(w, &o);
    for (size_t from = 0, at, line = 0; from <= s.bytes; from = at + 1, line++) {
        for (at = from; at < s.bytes && s.at[at] != '\n'; ) at++;
        const int empty = at == from;
        if (line ? !empty || (blank && value_truth(blank)) : first && value_truth(first)) {
            if (width && width->kind == STRING) out_put(w, width->is.string);
            for (int64_t i = 0; i < n; i++) out_text(w, " ");
        }
        out_put(w, str_part(s, from, at - from + (at < s.bytes)));
    }
    return value_string(out_end(w));
}
static Value filter_tojson(Work *w, Value v, const char *name, const Args *a) {
    const Value *ascii = arg(a, 0, "ensure_ascii"), *indent = arg(a, 1, "indent"),
        *separators = arg(a, 2, "separators"), *sorted = arg(a, 3, "sort_keys");
    JsonStyle style = { .indent = -1, .ascii = ascii && value_truth(ascii), .sorted = sorted && value_truth(sorted),
                        .item = str_of(", "), .key = str_of(": ") };
    Out o = { 0 };
    if (indent && indent->kind != NONE) {
        style.indent = need_int(w, indent, name);
        style.item = str_of(",");
        if (style.indent > 100) work_fail(w, "tojson: too wide");
        if (style.indent < 0) style.indent = 0;
    }
    if (separators && separators->kind != NONE) {
        const Value pair = value_items(w, separators);
        if (pair.is.list->n != 2 || pair.is.list->at[0].kind != STRING || pair.is.list->at[1].kind != STRING)
            work_fail(w, "tojson: expected two separators");
        style.item = pair.is.list->at[0].is.string;
        style.key = pair.is.list->at[1].is.string;
    }
    out_begin(w, &o);
    out_json(w, &v, &style, 0);
    return value_string(out_end(w));
}

/* ---- of numbers ------------------------------------------------------------------------------ */

/* A string as a number: 1, if it is one. */
static int read_number(Str s, double *x) {
    char text[64], *end;
    while (s.bytes && text_is_white(*s.at)) s = str_part(s, 1, s.bytes - 1);
    while (s.bytes && text_is_white(s.at[s.bytes - 1])) s.bytes--;
    if (!s.bytes || s.bytes >= sizeof text || memchr(s.at, 'x', s.bytes) || memchr(s.at, 'X', s.bytes)) return 0;
    memcpy(text, s.at, s.bytes);
    text[s.bytes] = 0;
    *x = text_strtod(text, &end);
    return !*end;
}
static Value filter_int(Work *w, Value v, const char *name, const Args *a) {
    const Value *otherwise = arg(a, 0, "default");
    double x;
    need_defined(w, &v);
    if (arg(a, 1, "base")) work_fail(w, "%s with a base is not implemented", name);
    if (v.kind == INTEGER || v.kind == BOOLEAN) return value_int(v.is.integer);
    if (v.kind == FLOAT ? (x = v.is.number, 1) : v.kind == STRING && read_number(v.is.string, &x))
        if (fabs(x) < 9e15) return value_int((int64_t)x);
    return otherwise ? *otherwise : value_int(0);
}
static Value filter_float(Work *w, Value v, UNUSED const char *name, const Args *a) {
    const Value *otherwise = arg(a, 0, "default");
    double x;
    need_defined(w, &v);
    if (v.kind == FLOAT) return v;
    if (v.kind == INTEGER || v.kind == BOOLEAN) return VALUE(FLOAT, number, (double)v.is.integer);
    if (v.kind == STRING && read_number(v.is.string, &x)) return VALUE(FLOAT, number, x);
    return otherwise ? *otherwise : VALUE(FLOAT, number, 0);
}
static Value filter_round(Work *w, Value v, const char *name, const Args *a) {
    const Value *digits = arg(a, 0, "precision"), *method = arg(a, 1, "method");
    const int64_t n = digits ? need_int(w, digits, name) : 0;
    const Args none = { 0 };
    const double x = filter_float(w, v, name, &none).is.number, scale = pow(10, (double)n);
    if (n < 0 || n > 15) work_fail(w, "round to %lld digits is not implemented", (long long)n);
    if (method && method->kind == STRING && !str_is(method->is.string, "common"))
        return VALUE(FLOAT, number, (str_is(method->is.string, "ceil") ? ceil(x * scale) : floor(x * scale)) / scale);
    return VALUE(FLOAT, number, nearbyint(x * scale) / scale);
}
static Value filter_abs(Work *w, Value v, const char *name, UNUSED const Args *a) {
    if (v.kind == FLOAT) return VALUE(FLOAT, number, fabs(v.is.number));
    const int64_t i = need_int(w, &v, name);
    return value_int(i < 0 && i > INT64_MIN ? -i : i);
}

/* ---- of lists -------------------------------------------------------------------------------- */

/* An attribute with points, "function.name", of v. */
static Value deep_attribute(Work *w, Value v, const Value *path) {
    if (path->kind == INTEGER) return value_index(w, &v, path);
    if (path->kind != STRING) work_fail(w, "expected the name of an attribute, found a %s", value_kind(path));
    Str s = path->is.string;
    for (;;) {
        const size_t point = str_find(w, s, str_of("."), 0), n = point == SIZE_MAX ? s.bytes : point;
        const Value key = value_string(str_part(s, 0, n));
        v = value_index(w, &v, &key);
        if (point == SIZE_MAX) return v;
        s = str_part(s, n + 1, s.bytes - n - 1);
    }
}
static Value filter_default(UNUSED Work *w, Value v, UNUSED const char *name, const Args *a) {
    const Value *otherwise = arg(a, 0, "default_value"), *falsy = arg(a, 1, "boolean");
    if (v.kind == UNDEFINED || (falsy && value_truth(falsy) && !value_truth(&v)))
        return otherwise ? *otherwise : value_string(str_of(""));
    return v;
}
static Value filter_length(Work *w, Value v, UNUSED const char *name, UNUSED const Args *a) {
    return value_int((int64_t)value_length(w, &v));
}
static Value filter_list(Work *w, Value v, UNUSED const char *name, UNUSED const Args *a) {
    const Value items = value_items(w, &v);
    Value all = value_list(w, LIST);
    for (size_t i = 0; i < items.is.list->n; i++) list_add(w, all.is.list, items.is.list->at[i]);
    return all;
}
static Value filter_end(Work *w, Value v, const char *name, UNUSED const Args *a) {
    const Value items = value_items(w, &v);
    const size_t n = items.is.list->n;
    return n ? items.is.list->at[*name == 'f' ? 0 : n - 1] : value_undefined(w, "there is no %s element", name);
}
static Value filter_reverse(Work *w, Value v, UNUSED const char *name, UNUSED const Args *a) {
    const Value items = value_items(w, &v);
    Value all = value_list(w, LIST);
    for (size_t i = items.is.list->n; i-- > 0; ) list_add(w, all.is.list, items.is.list->at[i]);
    if (v.kind != STRING) return all;
    const Args one = { .at = &all, .n = 1 };
    return method_call(w, &(Method){ value_string(str_of("")), "join" }, &one);
}
static Value filter_join(Work *w, Value v, UNUSED const char *name, const Args *a) {
    const Value items = value_items(w, &v), *by = arg(a, 0, "d"), *attribute = arg(a, 1, "attribute");
    Out o = { 0 };
    out_begin(w, &o);
    for (size_t i = 0; i < items.is.list->n; i++) {
        const Value one = attribute ? deep_attribute(w, items.is.list->at[i], attribute) : items.is.list->at[i];
        if (i && by) out_value(w, by);
        out_value(w, &one);
    }
    return value_string(out_end(w));
}
static Value filter_items(Work *w, Value v, const char *name, UNUSED const Args *a) {
    if (v.kind == UNDEFINED) return value_list(w, LIST);
    if (v.kind != DICT) work_fail(w, "%s: expected a dict, found a %s", name, value_kind(&v));
    return method_call(w, &(Method){ v, "items" }, &(Args){ 0 });
}

/* select, reject: by a test of the item; selectattr, rejectattr: of an attribute. */
static Value filter_select(Work *w, Value v, const char *name, const Args *a) {
    const Value items = value_items(w, &v);
    const int of_attribute = strstr(name, "attr") != NULL, wanted = *name == 's';
    const Value *attribute = of_attribute ? arg_needed(w, a, 0, NULL, name) : NULL, *test = arg(a, of_attribute, NULL);
    char named[40] = "";
    Value all = value_list(w, LIST);
    if (test && (test->kind != STRING || test->is.string.bytes >= sizeof named)) work_fail(w, "%s: no such test", name);
    if (test) memcpy(named, test->is.string.at, test->is.string.bytes), named[test->is.string.bytes] = 0;
    if (test && !test_known(named)) work_fail(w, "%s: the test \"%s\" is not known", name, named);
    const int used = of_attribute + (test != NULL);
    const Args rest = used ? (Args){ .at = a->at + used, .n = a->n - used } : *a;
    for (size_t i = 0; i < items.is.list->n; i++) {
        const Value one = items.is.list->at[i], x = attribute ? deep_attribute(w, one, attribute) : one;
        if ((test ? test_call(w, named, &x, &rest) : value_truth(&x)) == wanted) list_add(w, all.is.list, one);
    }
    return all;
}
static Value filter_map(Work *w, Value v, const char *name, const Args *a) {
    const Value items = value_items(w, &v), *attribute = arg(a, -1, "attribute"), *otherwise = arg(a, -1, "default");
    char named[40] = "";
    Value all = value_list(w, LIST);
    if (!attribute) {
        const Value *filter = arg_needed(w, a, 0, NULL, name);
        if (filter->kind != STRING || filter->is.string.bytes >= sizeof named) work_fail(w, "map: no such filter");
        memcpy(named, filter->is.string.at, filter->is.string.bytes);
        if (!filter_known(named)) work_fail(w, "map: the filter \"%s\" is not known", named);
    }
    const Args rest = attribute ? *a : (Args){ .at = a->at + 1, .name = a->name, .n = a->n - 1, .named = a->named };
    work_enter(w);
    for (size_t i = 0; i < items.is.list->n; i++) {
        Value one = items.is.list->at[i];
        one = attribute ? deep_attribute(w, one, attribute) : filter_call(w, named, one, &rest);
        list_add(w, all.is.list, attribute && otherwise && one.kind == UNDEFINED ? *otherwise : one);
    }
    w->depth--;
    return all;
}

/* Letters that differ only in their case are equal, unless case_sensitive. */
static Value sort_key(Work *w, Value v, const Value *attribute, const Value *sensitive) {
    if (attribute) v = deep_attribute(w, v, attribute);
    return v.kind == STRING && !(sensitive && value_truth(sensitive)) ? call_method(w, v, "lower", &(Args){ 0 }) : v;
}
static Value sorted_by(Work *w, const List *items, const Value *attribute, const Value *sensitive, int reverse) {
    Value all = value_list(w, LIST), keys = value_list(w, LIST);
    for (size_t i = 0; i < items->n; i++) {
        list_add(w, all.is.list, items->at[i]);
        list_add(w, keys.is.list, sort_key(w, items->at[i], attribute, sensitive));
        Value *v = all.is.list->at, *k = keys.is.list->at;
        for (size_t at = i; at; at--) {
            const int order = value_order(w, &k[at - 1], &k[at]);
            work_step(w, 1);
            if (reverse ? order >= 0 : order <= 0) break;
            const Value item = v[at], key = k[at];
            v[at] = v[at - 1], k[at] = k[at - 1];
            v[at - 1] = item, k[at - 1] = key;
        }
    }
    return all;
}
static Value filter_sort(Work *w, Value v, UNUSED const char *name, const Args *a) {
    const Value items = value_items(w, &v), *reverse = arg(a, 0, "reverse"), *sensitive = arg(a, 1, "case_sensitive");
    return sorted_by(w, items.is.list, arg(a, 2, "attribute"), sensitive, reverse && value_truth(reverse));
}
static Value filter_dictsort(Work *w, Value v, const char *name, const Args *a) {
    const Value *sensitive = arg(a, 0, "case_sensitive"), *by = arg(a, 1, "by"), *reverse = arg(a, 2, "reverse");
    const Value items = filter_items(w, v, name, a),
        which = value_int(by && by->kind == STRING && str_is(by->is.string, "value"));
    return sorted_by(w, items.is.list, &which, sensitive, reverse && value_truth(reverse));
}
static Value filter_unique(Work *w, Value v, UNUSED const char *name, const Args *a) {
    const Value items = value_items(w, &v),
        *sensitive = arg(a, 0, "case_sensitive"), *attribute = arg(a, 1, "attribute");
    Value all = value_list(w, LIST), keys = value_list(w, LIST);
    for (size_t i = 0; i < items.is.list->n; i++) {
        const Value key = sort_key(w, items.is.list->at[i], attribute, sensitive);
        if (value_has(w, &keys, &key)) continue;
        list_add(w, keys.is.list, key);
        list_add(w, all.is.list, items.is.list->at[i]);
    }
    return all;
}
static Value filter_most(Work *w, Value v, const char *name, const Args *a) {
    const Value items = value_items(w, &v),
        *sensitive = arg(a, 0, "case_sensitive"), *attribute = arg(a, 1, "attribute");
    const List *l = items.is.list;
    size_t best = 0;
    for (size_t i = 1; i < l->n; i++) {
        const Value x = sort_key(w, l->at[i], attribute, sensitive), y = sort_key(w, l->at[best], attribute, sensitive);
        const int order = value_order(w, &x, &y);
        if (!strcmp(name, "max") ? order > 0 : order < 0) best = i;
    }
    return l->n ? l->at[best] : value_undefined(w, "%s of nothing", name);
}
static Value filter_sum(Work *w, Value v, const char *name, const Args *a) {
    const Value items = value_items(w, &v), *attribute = arg(a, 0, "attribute");
    int64_t sum = 0;
    for (size_t i = 0; i < items.is.list->n; i++) {
        const Value one = attribute ? deep_attribute(w, items.is.list->at[i], attribute) : items.is.list->at[i];
        if (__builtin_add_overflow(sum, need_int(w, &one, name), &sum)) work_fail(w, "sum: too large");
    }
    return value_int(sum);
}

/* ---- which ----------------------------------------------------------------------------------- */

typedef Value (*Filter)(Work *w, Value v, const char *name, const Args *a);
static const struct { const char *name; Filter call; } known_filters[] = {
    { "trim", filter_method }, { "upper", filter_method }, { "lower", filter_method }, { "title", filter_method },
    { "capitalize", filter_method }, { "replace", filter_method }, { "string", filter_string },
    { "safe", filter_string }, { "format", filter_format }, { "indent", filter_indent }, { "tojson", filter_tojson },
    { "int", filter_int }, { "float", filter_float }, { "round", filter_round }, { "abs", filter_abs },
    { "default", filter_default }, { "d", filter_default }, { "length", filter_length }, { "count", filter_length },
    { "list", filter_list }, { "first", filter_end }, { "last", filter_end }, { "reverse", filter_reverse },
    { "join", filter_join }, { "items", filter_items }, { "select", filter_select }, { "reject", filter_select },
    { "selectattr", filter_select }, { "rejectattr", filter_select }, { "map", filter_map }, { "sort", filter_sort },
    { "dictsort", filter_dictsort }, { "unique", filter_unique }, { "max", filter_most }, { "min", filter_most },
    { "sum", filter_sum }, };
enum { FILTERS = sizeof known_filters / sizeof *known_filters };

static int filter_number(const char *name) {
    int i = 0;
    while (i < FILTERS && strcmp(name, known_filters[i].name)) i++;
    return i;
}
int filter_known(const char *name) { return filter_number(name) < FILTERS; }
Value filter_call(Work *w, const char *name, Value v, const Args *a) {
    work_step(w, 1);
    return known_filters[filter_number(name)].call(w, v, name, a);
}

/* ---- tests ----------------------------------------------------------------------------------- */

#define IS(kind) (1u << (kind))
enum { ITEMS = IS(LIST) | IS(TUPLE) | IS(DICT) | IS(STRING) | IS(UNDEFINED) };
/* Of which kind it is, how it compares, whether it is true or odd, or what test_call says. */
typedef enum { OF_KIND, COMPARES, TRUTH, ODD, CASE, DIVISIBLE } TestOf;
static const struct { const char *name; TestOf of; unsigned is; } known_tests[] = {
    { "defined", OF_KIND, ~IS(UNDEFINED) }, { "undefined", OF_KIND, IS(UNDEFINED) }, { "none", OF_KIND, IS(NONE) },
    { "boolean", OF_KIND, IS(BOOLEAN) }, { "integer", OF_KIND, IS(INTEGER) }, { "float", OF_KIND, IS(FLOAT) },
    { "number", OF_KIND, IS(INTEGER) | IS(FLOAT) | IS(BOOLEAN) }, { "string", OF_KIND, IS(STRING) },
    { "mapping", OF_KIND, IS(DICT) }, { "iterable", OF_KIND, ITEMS | IS(LOOP) }, { "sequence", OF_KIND, ITEMS },
    { "callable", OF_KIND, IS(MACRO) | IS(METHOD) | IS(FUNCTION) | IS(UNDEFINED) },
    { "in", COMPARES, O_IN }, { "eq", COMPARES, O_EQUAL }, { "equalto", COMPARES, O_EQUAL },
    { "==", COMPARES, O_EQUAL }, { "sameas", COMPARES, O_EQUAL }, { "ne", COMPARES, O_UNEQUAL },
    { "!=", COMPARES, O_UNEQUAL }, { "gt", COMPARES, O_GREATER }, { ">", COMPARES, O_GREATER },
    { "greaterthan", COMPARES, O_GREATER }, { "ge", COMPARES, O_GREATER_EQUAL },
    { ">=", COMPARES, O_GREATER_EQUAL }, { "lt", COMPARES, O_LESS }, { "<", COMPARES, O_LESS },
    { "lessthan", COMPARES, O_LESS }, { "le", COMPARES, O_LESS_EQUAL }, { "<=", COMPARES, O_LESS_EQUAL },
    { "true", TRUTH, 1 }, { "false", TRUTH, 0 }, { "odd", ODD, 1 }, { "even", ODD, 0 }, { "lower", CASE, 0 },
    { "upper", CASE, 0 }, { "divisibleby", DIVISIBLE, 0 }, };
enum { TESTS = sizeof known_tests / sizeof *known_tests };

static int test_number(const char *name) {
    int i = 0;
    while (i < TESTS && strcmp(name, known_tests[i].name)) i++;
    return i;
}
int test_known(const char *name) { return test_number(name) < TESTS; }
int test_call(Work *w, const char *name, const Value *v, const Args *a) {
    const int i = test_number(name);
    const unsigned is = known_tests[i].is;
    work_step(w, 1);
    switch (known_tests[i].of) {
    case OF_KIND: return is >> v->kind & 1;
    case TRUTH:   return v->kind == BOOLEAN && (v->is.integer != 0) == (is != 0);
    case ODD:     return (need_int(w, v, name) % 2 != 0) == (is != 0);
    case CASE:    return call_method(w, *v, *name == 'l' ? "islower" : "isupper", a).is.integer != 0;
    default: break;
    }
    const Value *other = arg_needed(w, a, 0, NULL, name);
    if (known_tests[i].of == COMPARES)
        return (strcmp(name, "sameas") || v->kind == other->kind) && value_compares(w, v, other, (Operator)is);
    const int64_t by = need_int(w, other, name);
    if (by == 0 || by == -1) work_fail(w, "divisibleby: by %d", (int)by);
    return need_int(w, v, name) % by == 0;
}
