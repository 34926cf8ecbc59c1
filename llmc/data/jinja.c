/* jinja.c: runs the tree of a chat template. See jinja.h. */
#define _POSIX_C_SOURCE 200809L
#include "jinja.h"
#include "jinja_filter.h"
#include "jinja_parse.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct Macro { const Node *parameters, *body; struct Scope *scope; };
typedef struct { const char *name; Value value; } Variable;
typedef struct Scope { struct Scope *parent; Variable *at; int n; size_t capacity; } Scope;
typedef struct {
    Work   w;
    const Jinja *j;
    Scope *scope;
    struct tm date;
    Value  piped;                       /* what a filter without operand reads: the text of a block */
    int    loops, follows_messages;     /* loops that are open; is the innermost with a message one over messages? */
    const char *loop, *caller;          /* these names, if the program has them */
    const char *item;                   /* the name of the innermost loop's item, if it has one */
} Run;
typedef enum { GOES_ON, BREAKS, CONTINUES } Flow;

static Value eval(Run *r, const Node *n);
static Flow exec(Run *r, const Node *n);

/* ---- names ----------------------------------------------------------------------------------- */

static void set_name(Run *r, const char *name, Value v) {
    Scope *s = r->scope;
    for (int i = 0; i < s->n; i++) if (s->at[i].name == name) { s->at[i].value = v; return; }
    s->at = work_grow(&r->w, s->at, (size_t)s->n, &s->capacity, sizeof *s->at);
    s->at[s->n++] = (Variable){ name, v };
}
static Scope *scope_enter(Run *r, Scope *parent) {
    Scope *s = work_alloc(&r->w, sizeof *s);
    *s = (Scope){ .parent = parent };
    return r->scope = s;
}
static Value get_name(Run *r, const char *name) {
    static const char *const functions[] = { "range", "dict", "namespace", "raise_exception", "strftime_now" };
    for (const Scope *s = r->scope; s; s = s->parent)
        for (int i = 0; i < s->n; i++) if (s->at[i].name == name) return s->at[i].value;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(name, functions[i])) return VALUE(FUNCTION, name, functions[i]);
    return value_undefined(&r->w, "'%.60s' is undefined", name);
}
static void assign(Run *r, const Node *target, Value v) {
    Work *w = &r->w;
    if (target->kind == X_NAME) set_name(r, target->name, v);
    else if (target->kind == X_TUPLE) {
        const Value items = value_items(w, &v);
        size_t i = 0;
        for (const Node *t = target->a; t; t = t->next, i++) {
            if (i >= items.is.list->n) work_fail(w, "there are %zu values for more names", i);
            assign(r, t, items.is.list->at[i]);
        }
        if (i < items.is.list->n) work_fail(w, "there are %zu values for %zu names", items.is.list->n, i);
    } else {
        const Value space = eval(r, target->a);
        if (space.kind != SPACE) work_fail(w, "cannot set an attribute of a %s", value_kind(&space));
        dict_put(w, space.is.dict, value_string(str_of(target->name)), v);
    }
}

/* ---- operators ------------------------------------------------------------------------------- */

static Str joined(Work *w, Str a, Str b) {
    Out o = { 0 };
    if (!a.bytes || !b.bytes) return a.bytes ? a : b;
    out_begin(w, &o);
    out_put(w, a);
    out_put(w, b);
    return out_end(w);
}
static _Noreturn void no_operation(Work *w, const Value *a, const Value *b, Operator op) {
    static const char *const signs[] = { "+", "-", "*", "/", "//", "%", "**" };
    need_defined(w, a);
    need_defined(w, b);
    work_fail(w, "a %s %s a %s is not possible", value_kind(a), signs[op], value_kind(b));
}
static Value repeated(Work *w, const Value *v, int64_t n) {
    if (v->kind == STRING) {
        Out o = { 0 };
        out_begin(w, &o);
        for (int64_t i = 0; i < n; i++) out_put(w, v->is.string);
        return value_string(out_end(w));
    }
    Value all = value_list(w, v->kind);
    for (int64_t i = 0; i < n; i++)
        for (size_t k = 0; k < v->is.list->n; k++) list_add(w, all.is.list, v->is.list->at[k]);
    return all;
}
static Value of_floats(Work *w, double x, double y, Operator op) {
    double z = 0;
    if ((op == O_DIVIDE || op == O_FLOOR || op == O_MODULO) && y == 0) work_fail(w, "division by zero");
    switch (op) {
    case O_ADD:      z = x + y; break;
    case O_SUBTRACT: z = x - y; break;
    case O_MULTIPLY: z = x * y; break;
    case O_DIVIDE:   z = x / y; break;
    case O_FLOOR:    z = floor(x / y); break;
    case O_MODULO:   z = x - y * floor(x / y); break;
    default:         z = pow(x, y);
    }
    return VALUE(FLOAT, number, z);
}
static Value of_integers(Work *w, int64_t x, int64_t y, Operator op) {
    int64_t z = 0;
    int over = 0;
    if (op == O_DIVIDE || (op == O_POWER && y < 0)) return of_floats(w, (double)x, (double)y, op);
    if ((op == O_FLOOR || op == O_MODULO) && y == 0) work_fail(w, "division by zero");
    switch (op) {
    case O_ADD:      over = __builtin_add_overflow(x, y, &z); break;
    case O_SUBTRACT: over = __builtin_sub_overflow(x, y, &z); break;
    case O_MULTIPLY: over = __builtin_mul_overflow(x, y, &z); break;
    case O_FLOOR: case O_MODULO:
        if (y == -1) { over = op == O_FLOOR && __builtin_sub_overflow(0, x, &z); break; }
        z = op == O_FLOOR ? x / y : x % y;
        if (x % y && (x % y < 0) != (y < 0)) z += op == O_FLOOR ? -1 : y;
        break;
    default:
        z = 1;
        if (y > 64 && x != 0 && x != 1) over = 1;
        for (int64_t i = 0; i < y && i < 64 && !over; i++) over = __builtin_mul_overflow(z, x, &z);
    }
    if (over) work_fail(w, "a number is too large");
    return value_int(z);
}
static Value operation(Work *w, const Value *a, const Value *b, Operator op) {
    const int a_int = a->kind == INTEGER || a->kind == BOOLEAN, b_int = b->kind == INTEGER || b->kind == BOOLEAN;
    const int sequence = a->kind == STRING || a->kind == LIST || a->kind == TUPLE;
    if (a_int && b_int) return of_integers(w, a->is.integer, b->is.integer, op);
    if ((a_int || a->kind == FLOAT) && (b_int || b->kind == FLOAT))
        return of_floats(w, a_int ? (double)a->is.integer : a->is.number, b_int ? (double)b->is.integer
                         : b->is.number, op);
    if (op == O_ADD && a->kind == STRING && b->kind == STRING) return value_string(joined(w, a->is.string,
            b->is.string));
    if (op == O_ADD && sequence && a->kind == b->kind) {
        Value all = value_list(w, a->kind);
        for (size_t i = 0; i < a->is.list->n; i++) list_add(w, all.is.list, a->is.list->at[i]);
        for (size_t i = 0; i < b->is.list->n; i++) list_add(w, all.is.list, b->is.list->at[i]);
        return all;
    }
    if (op == O_MODULO && a->kind == STRING) return str_format(w, a->is.string, b);
    if (op == O_MULTIPLY && sequence && b_int) return repeated(w, a, b->is.integer);
    if (op == O_MULTIPLY && a_int && (b->kind == STRING || b->kind == LIST || b->kind == TUPLE))
        return repeated(w, b, a->is.integer);
    no_operation(w, a, b, op);
}
/* v[start:stop:step], as Python takes bounds. */
static Value slice(Run *r, const Value *v, const Node *bounds) {
    Work *w = &r->w;
    const Node *nodes[3] = { bounds->a, bounds->b, bounds->c };
    int64_t is[3], n;
    int given[3];
    for (int i = 0; i < 3; i++) {
        const Value x = nodes[i] ? eval(r, nodes[i]) : value_none();
        given[i] = x.kind != NONE;
        is[i] = given[i] ? need_int(w, &x, "a slice") : 1;
    }
    need_defined(w, v);
    if (v->kind != STRING && v->kind != LIST && v->kind != TUPLE) work_fail(w, "a %s has no slices", value_kind(v));
    const int64_t step = is[2], low = step < 0 ? -1 : 0;
    n = (int64_t)value_length(w, v);
    if (!step) work_fail(w, "the step of a slice is 0");
    for (int i = 0; i < 2; i++) {
        if (!given[i]) is[i] = (i == 0) == (step > 0) ? low : step < 0 ? (i ? -1 : n - 1) : n;
        else {
            if (is[i] < 0) is[i] += n;
            if (is[i] < low) is[i] = low;
            if (is[i] > (step < 0 ? n - 1 : n)) is[i] = step < 0 ? n - 1 : n;
        }
    }
    if (v->kind == STRING && step == 1) {
        const Str s = v->is.string;
        const size_t from = str_offset(s, (size_t)is[0]), to = is[1] > is[0] ? str_offset(s, (size_t)is[1]) : from;
        return value_string(str_part(s, from, to - from));
    }
    const Value items = value_items(w, v);
    Value all = value_list(w, v->kind == TUPLE ? TUPLE : LIST);
    for (int64_t i = is[0]; step > 0 ? i < is[1] : i > is[1]; i += step) {
        list_add(w, all.is.list, items.is.list->at[i]);
        if (step > n || step < -n) break;
    }
    if (v->kind != STRING) return all;
    return method_call(w, &(Method){ value_string(str_of("")), "join" }, &(Args){ .at = &all, .n = 1 });
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* The values of arguments, and one more that is called "caller", if it is not NULL. */
static Args arguments(Run *r, const Node *list, const Value *caller) {
    Args a = { 0 };
    if (!list && !caller) return a;
    const Value all = value_list(&r->w, LIST), names = value_list(&r->w, LIST);
    for (const Node *x = list; x; x = x->next) {
        const Value v = eval(r, x->a), items = x->op ? value_items(&r->w, &v) : v;
        for (size_t i = 0; x->op && i < items.is.list->n; i++) list_add(&r->w, all.is.list, items.is.list->at[i]);
        if (!x->op) list_add(&r->w, x->name ? names.is.list : all.is.list, v);
    }
    a.n = (int)all.is.list->n;
    a.name = work_alloc(&r->w, (names.is.list->n + 1) * sizeof *a.name);
    for (const Node *x = list; x; x = x->next) {
        for (int i = 0; x->name && i < a.named; i++)
            if (a.name[i] == x->name) work_fail(&r->w, "the argument %s is given twice", x->name);
        if (x->name) a.name[a.named++] = x->name;
    }
    for (int i = 0; i < a.named; i++) list_add(&r->w, all.is.list, names.is.list->at[i]);
    if (caller) list_add(&r->w, all.is.list, *caller), a.name[a.named++] = "caller";
    a.at = all.is.list->at;
    return a;
}
static Value macro_call(Run *r, const Macro *m, const Args *a) {
    Work *w = &r->w;
    Scope *before = r->scope;
    const Value piped = r->piped;
    Out o = { 0 };
    int number = 0, named = 0;
    work_enter(w);
    Scope *own = scope_enter(r, m->scope);
    for (const Node *x = m->parameters; x; x = x->next, number++) {
        const Value *v = number < a->n ? &a->at[number] : NULL;
        for (int i = 0; i < a->named; i++)
            if (a->name[i] == x->name) {
                if (v) work_fail(w, "the argument %s is given twice", x->name);
                v = &a->at[a->n + i];
                named++;
            }
        set_name(r, x->name, v ? *v : x->a ? eval(r, x->a) : value_undefined(w, "the parameter '%.60s' was not given",
                x->name));
    }
    const Value *caller = arg(a, -1, "caller");
    if (caller && r->caller) set_name(r, r->caller, *caller);
    if (a->n > number || a->named > named + (caller != NULL)) work_fail(w, "a macro is given more than it takes");
    r->scope = own;
    out_begin(w, &o);
    exec(r, m->body);
    const Str s = out_end(w);
    r->scope = before;
    r->piped = piped;
    w->depth--;
    return value_string(s);
}
static Value range(Work *w, const Args *a) {
    int64_t is[3] = { 0, 0, 1 };
    Value all = value_list(w, LIST);
    if (a->n < 1 || a->n > 3 || a->named) work_fail(w, "range takes one to three numbers");
    for (int i = 0; i < a->n; i++) is[a->n == 1 ? 1 : i] = need_int(w, &a->at[i], "range");
    if (!is[2]) work_fail(w, "range: the step is 0");
    for (int64_t i = is[0]; is[2] > 0 ? i < is[1] : i > is[1]; ) {
        list_add(w, all.is.list, value_int(i));
        if (all.is.list->n > 100000) work_fail(w, "range: more than 100000 numbers");
        if (__builtin_add_overflow(i, is[2], &i)) break;
    }
    return all;
}
static Value make_dict(Work *w, Kind kind, const Args *a) {
    Value all = value_dict(w, kind);
    if (a->n > 1 || (a->n && a->at->kind != DICT && a->at->kind != SPACE)) work_fail(w, "expected one dict, or names");
    for (size_t i = 0; a->n && i < a->at->is.dict->n; i++)
        dict_put(w, all.is.dict, a->at->is.dict->at[i].key, a->at->is.dict->at[i].value);
    for (int i = 0; i < a->named; i++) dict_put(w, all.is.dict, value_string(str_of(a->name[i])), a->at[a->n + i]);
    return all;
}
static Value strftime_now(Run *r, const Args *a) {
    char format[128], *shown = work_alloc(&r->w, 512);
    const Value *v = arg_needed(&r->w, a, 0, "format", "strftime_now");
    if (v->kind != STRING || v->is.string.bytes >= sizeof format) work_fail(&r->w,
            "strftime_now: expected a short str");
    memcpy(format, v->is.string.at, v->is.string.bytes);
    format[v->is.string.bytes] = 0;
    return value_string((Str){ .at = shown, .bytes = strftime(shown, 512, format, &r->date) });
}
static Value call(Run *r, const Value *f, const Args *a) {
    Work *w = &r->w;
    need_defined(w, f);
    if (f->kind == MACRO) return macro_call(r, f->is.macro, a);
    if (f->kind == METHOD && f->is.method->of.kind == LOOP) {
        if (!a->n) work_fail(w, "loop.cycle is given nothing");
        return a->at[f->is.method->of.is.loop->at % (size_t)a->n];
    }
    if (f->kind == METHOD) return method_call(w, f->is.method, a);
    if (f->kind != FUNCTION) work_fail(w, "a %s cannot be called", value_kind(f));
    if (!strcmp(f->is.name, "range")) return range(w, a);
    if (!strcmp(f->is.name, "dict")) return make_dict(w, DICT, a);
    if (!strcmp(f->is.name, "namespace")) return make_dict(w, SPACE, a);
    if (!strcmp(f->is.name, "strftime_now")) return strftime_now(r, a);
    const Str why = value_text(w, arg_needed(w, a, 0, "message", "raise_exception"));
    work_fail(w, "it refuses this conversation: %.*s", (int)(why.bytes < 300 ? why.bytes : 300), why.at);
}

/* ---- expressions ----------------------------------------------------------------------------- */

static Value eval_items(Run *r, const Node *n) {
    Work *w = &r->w;
    Value all = n->kind == X_DICT ? value_dict(w, DICT) : value_list(w, n->kind == X_LIST ? LIST : TUPLE);
    for (const Node *x = n->a; x; x = x->next) {
        if (n->kind != X_DICT) { list_add(w, all.is.list, eval(r, x)); continue; }
        const Value key = eval(r, x->a);
        dict_put(w, all.is.dict, key, eval(r, x->b));
    }
    return all;
}
static Value eval_compare(Run *r, const Node *n) {
    Value left = eval(r, n->a);
    for (const Node *x = n->b; x; x = x->next) {
        const Value right = eval(r, x->a);
        if (!value_compares(&r->w, &left, &right, (Operator)x->op)) return value_bool(0);
        left = right;
    }
    return value_bool(1);
}
static Value eval_operation(Run *r, const Node *n) {
    Work *w = &r->w;
    const Value a = eval(r, n->a), b = eval(r, n->b);
    if (n->op == O_CONCATENATE) return value_string(joined(w, value_text(w, &a), value_text(w, &b)));
    return operation(w, &a, &b, (Operator)n->op);
}
static Value eval_sign(Run *r, const Node *n) {
    const Value v = eval(r, n->a), zero = value_int(0);
    if (v.kind == FLOAT) return n->kind == X_MINUS ? VALUE(FLOAT, number, -v.is.number) : v;
    return operation(&r->w, &zero, &v, n->kind == X_MINUS ? O_SUBTRACT : O_ADD);
}
static Value eval_named(Run *r, const Node *n) {
    const Value v = n->a ? eval(r, n->a) : r->piped;
    const Args a = arguments(r, n->b, NULL);
    if (n->kind == X_TEST) return value_bool(test_call(&r->w, n->name, &v, &a) != n->op);
    return filter_call(&r->w, n->name, v, &a);
}
/* A loop over numbers takes one message after another: messages[i], or set message =
 * messages[...]. */
static void follow(Run *r, const Value *v) {
    if (v->kind == DICT && v->is.dict->message && r->loops && !r->follows_messages) r->w.message = v->is.dict->message;
}
static Value eval_index(Run *r, const Node *n) {
    const Value v = eval(r, n->a);
    if (n->b->kind == X_SLICE) return slice(r, &v, n->b);
    const Value key = eval(r, n->b), found = value_index(&r->w, &v, &key);
    if (n->b->kind == X_NAME && n->b->name == r->item) follow(r, &found);
    return found;
}
static Value eval_node(Run *r, const Node *n) {
    Value v;
    Args a;
    switch (n->kind) {
    case X_CONSTANT:  return n->value;
    case X_NAME:      return get_name(r, n->name);
    case X_LIST: case X_TUPLE: case X_DICT: return eval_items(r, n);
    case X_ATTRIBUTE: v = eval(r, n->a); return value_attribute(&r->w, &v, n->name);
    case X_INDEX:     return eval_index(r, n);
    case X_CALL:      v = eval(r, n->a); a = arguments(r, n->b, NULL); return call(r, &v, &a);
    case X_FILTER: case X_TEST: return eval_named(r, n);
    case X_NOT:       v = eval(r, n->a); return value_bool(!value_truth(&v));
    case X_MINUS: case X_PLUS: return eval_sign(r, n);
    case X_OPERATION: return eval_operation(r, n);
    case X_AND:       v = eval(r, n->a); return value_truth(&v) ? eval(r, n->b) : v;
    case X_OR:        v = eval(r, n->a); return value_truth(&v) ? v : eval(r, n->b);
    case X_COMPARE:   return eval_compare(r, n);
    case X_IF:
        v = eval(r, n->a);
        if (value_truth(&v)) return eval(r, n->b);
        return n->c ? eval(r, n->c) : value_undefined(&r->w, "an if without else has no value");
    default: work_fail(&r->w, "no expression");
    }
}
static Value eval(Run *r, const Node *n) {
    const int line = r->w.line;
    work_enter(&r->w);
    r->w.line = n->line;
    const Value v = eval_node(r, n);
    r->w.line = line;
    r->w.depth--;
    return v;
}

/* ---- statements ------------------------------------------------------------------------------ */

/* Prints an expression. A sum of strings is not built: its parts are printed one after another. */
static void print(Run *r, const Node *n) {
    Work *w = &r->w;
    if (n->kind == X_OPERATION && (n->op == O_ADD || n->op == O_CONCATENATE)) {
        const Node *parts[64];
        int count = 0;
        const Node *first = n;
        for (; first->kind == X_OPERATION && first->op == n->op
             && count < 63; first = first->a) parts[count++] = first->b;
        Value v = eval(r, first);
        int strings = v.kind == STRING || n->op == O_CONCATENATE;
        if (strings) out_add(w, value_text(w, &v));
        while (count--) {
            const Value more = eval(r, parts[count]);
            if (strings && (more.kind == STRING || n->op == O_CONCATENATE)) out_add(w, value_text(w, &more));
            else v = operation(w, &v, &more, O_ADD);
        }
        if (!strings) out_add(w, value_text(w, &v));
        return;
    }
    const Value v = eval(r, n);
    out_add(w, value_text(w, &v));
}
/* What a body in a scope of its own writes. */
static Str captured(Run *r, const Node *body) {
    Scope *before = r->scope;
    Out o = { 0 };
    out_begin(&r->w, &o);
    scope_enter(r, before);
    exec(r, body);
    r->scope = before;
    return out_end(&r->w);
}
static Flow loop_body(Run *r, const Node *n, List *items, Scope *scope) {
    Work *w = &r->w;
    const int message = w->message, follows = r->follows_messages;
    const char *item = r->item;
    Loop *loop = work_alloc(w, sizeof *loop);
    *loop = (Loop){ .items = items, .depth = ++r->loops };
    for (; loop->at < items->n; loop->at++) {
        const Value *v = &items->at[loop->at];
        scope->n = 0;
        r->scope = scope;
        w->message = message;
        r->follows_messages = follows;
        r->item = n->a->kind == X_NAME ? n->a->name : NULL;
        if (v->kind == DICT && v->is.dict->message) w->message = v->is.dict->message, r->follows_messages = 1;
        assign(r, n->a, *v);
        if (r->loop) set_name(r, r->loop, VALUE(LOOP, loop, loop));
        if (exec(r, n->d) == BREAKS) break;
    }
    r->loops--;
    r->item = item;
    w->message = message;
    r->follows_messages = follows;
    return GOES_ON;
}
static Flow exec_for(Run *r, const Node *n) {
    Work *w = &r->w;
    Scope *before = r->scope;
    const Value v = eval(r, n->b);
    Value items = value_items(w, &v);
    Scope *scope = scope_enter(r, before);
    if (n->c) {
        const List *all = items.is.list;
        items = value_list(w, LIST);
        for (size_t i = 0; i < all->n; i++) {
            assign(r, n->a, all->at[i]);
            const Value wanted = eval(r, n->c);
            if (value_truth(&wanted)) list_add(w, items.is.list, all->at[i]);
        }
    }
    Flow flow = GOES_ON;
    if (items.is.list->n) loop_body(r, n, items.is.list, scope);
    else if (n->e) flow = exec(r, n->e);
    r->scope = before;
    return flow;
}
static void exec_set(Run *r, const Node *n) {
    const Value v = eval(r, n->b);
    follow(r, &v);
    assign(r, n->a, v);
}
static Value macro_here(Run *r, const Node *parameters, const Node *body) {
    Macro *m = work_alloc(&r->w, sizeof *m);
    *m = (Macro){ .parameters = parameters, .body = body, .scope = r->scope };
    return VALUE(MACRO, macro, m);
}
static void exec_call(Run *r, const Node *n) {
    const Value f = eval(r, n->a->a), caller = macro_here(r, n->c, n->b);
    const Args a = arguments(r, n->a->b, &caller);
    if (f.kind != MACRO) work_fail(&r->w, "{%% call %%} needs a macro");
    out_add(&r->w, call(r, &f, &a).is.string);
}
static Flow exec_with(Run *r, const Node *n) {
    Scope *before = r->scope;
    scope_enter(r, before);
    for (const Node *x = n->a; x; x = x->next) assign(r, x->a, eval(r, x->b));
    const Flow flow = exec(r, n->b);
    r->scope = before;
    return flow;
}
static Flow exec_one(Run *r, const Node *n) {
    Work *w = &r->w;
    Value v;
    Str s;
    switch (n->kind) {
    case S_TEXT:  out_add(w, n->value.is.string); break;
    case S_PRINT: print(r, n->a); break;
    case S_IF:    v = eval(r, n->a); return exec(r, value_truth(&v) ? n->b : n->c);
    case S_FOR:   return exec_for(r, n);
    case S_SET:   exec_set(r, n); break;
    case S_CAPTURE: case S_FILTER:
        s = captured(r, n->b);
        r->piped = value_string(s);
        v = n->kind == S_FILTER ? eval(r, n->a) : n->c ? eval(r, n->c) : r->piped;
        if (n->kind == S_FILTER) out_add(w, value_text(w, &v));
        else assign(r, n->a, v);
        break;
    case S_MACRO: set_name(r, n->name, macro_here(r, n->a, n->b)); break;
    case S_CALL:  exec_call(r, n); break;
    case S_GENERATION:
        w->in_generation++;
        s = captured(r, n->b);
        out_add(w, s);
        w->in_generation--;
        break;
    case S_BREAK:    return BREAKS;
    case S_CONTINUE: return CONTINUES;
    case S_WITH:     return exec_with(r, n);
    default: work_fail(w, "no statement");
    }
    return GOES_ON;
}
static Flow exec(Run *r, const Node *n) {
    Flow flow = GOES_ON;
    work_enter(&r->w);
    for (; n && flow == GOES_ON; n = n->next) {
        r->w.line = n->line;
        work_step(&r->w, 1);
        flow = exec_one(r, n);
    }
    r->w.depth--;
    return flow;
}

/* ---- a program ------------------------------------------------------------------------------- */

enum { PARSE_STEPS = 20 << 20, STEPS = 5 << 20, STEPS_EACH = 2000 };

Jinja *jinja_open(const char *text, size_t bytes, Error *e) {
    Jinja *j = mem_alloc(sizeof *j);
    j->work = (Work){ .most_steps = PARSE_STEPS, .e = e };
    if (utf8_valid(text, bytes) < bytes) error_set(e, "the chat template is not UTF-8");
    else if (jinja_parse(j, text, bytes)) return j;
    jinja_close(j);
    return NULL;
}
void jinja_close(Jinja *j) {
    if (!j) return;
    work_free(&j->work);
    free(j);
}
int jinja_reads(const Jinja *j, const char *name) {
    for (const Name *n = j->names; n; n = n->next) if (n->is_read && !strcmp(n->text, name)) return 1;
    return 0;
}
int jinja_has_key(const Jinja *j, const char *key) {
    for (const Name *n = j->names; n; n = n->next) if (n->is_key && !strcmp(n->text, key)) return 1;
    return 0;
}
int jinja_has_generation(const Jinja *j) { return j->has_generation; }

static void set_variables(Run *r, const JinjaVariable *variables, int n) {
    Work *w = &r->w;
    for (int i = 0; i < n; i++) {
        const JinjaVariable *v = &variables[i];
        const char *name = jinja_name(r->j, v->name);
        if (!name || !v->value) continue;
        if (v->kind != VARIABLE_MESSAGES) {
            set_name(r, name, value_of_json(w, v->value, v->kind == VARIABLE_GIVEN ? ORIGIN_GIVEN : 0, 0));
            continue;
        }
        Value all = value_list(w, LIST);
        int number = 0;
        for (const JsonValue *x = json_first(v->value); x; x = x->next) {
            const Value m = value_of_json(w, x, (uint32_t)++number << ORIGIN_SHIFT | ORIGIN_FIELD
                                           | ORIGIN_GIVEN, 0);
            if (m.kind == DICT) m.is.dict->message = number;
            list_add(w, all.is.list, m);
        }
        set_name(r, name, all);
    }
}
int jinja_run(const Jinja *j, const JinjaVariable *variables, int n, const struct tm *date, Text *text, Text *origins,
              Error *e) {
    Run *r = mem_alloc(sizeof *r);
    Out o = { 0 };
    r->w = (Work){ .most_steps = INT64_MAX, .e = e };
    r->j = j;
    r->date = *date;
    r->loop = jinja_name(j, "loop");
    r->caller = jinja_name(j, "caller");
    volatile int ok = 0;
    if (!setjmp(r->w.failed)) {
        scope_enter(r, NULL);
        set_variables(r, variables, n);
        r->w.most_steps = r->w.steps * STEPS_EACH + STEPS;
        out_begin(&r->w, &o);
        if (exec(r, j->program) != GOES_ON) work_fail(&r->w, "break or continue outside of a loop");
        out_take(&r->w, text, origins);
        ok = 1;
    }
    work_free(&r->w);
    free(r);
    return ok;
}
