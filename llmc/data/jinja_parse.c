/* jinja_parse.c: the text of a chat template as a tree. It follows Jinja 3's lexer.py and
 * parser.py: the same white space goes, the same operators bind. */
#include "jinja_parse.h"
#include "jinja_filter.h"
#include <stdlib.h>
#include <string.h>

typedef enum { T_END, T_NAME, T_STRING, T_INTEGER, T_FLOAT, T_OPERATOR } TokenKind;
typedef struct {
    TokenKind kind;
    char op[3];                         /* of T_OPERATOR */
    const char *name;                   /* of T_NAME */
    Value value;                        /* of strings and numbers */
} Token;
typedef struct {
    Jinja *j;
    Work  *w;
    const char *start, *at, *end;
    char   closes;                      /* what ends the tag, before '}': '}' or '%' */
    int    brackets;                    /* open ones: in them }} is no end */
    Token  token;
} Parser;

/* ---- names and nodes ------------------------------------------------------------------------- */

static const char *intern(Parser *p, const char *at, size_t bytes, int is_key) {
    for (Name *n = p->j->names; n; n = n->next) {
        work_step(p->w, 1);
        if (strncmp(n->text, at, bytes) || n->text[bytes]) continue;
        n->is_key |= is_key;
        return n->text;
    }
    Name *n = work_alloc(p->w, sizeof *n + bytes + 1);
    *n = (Name){ .next = p->j->names, .is_key = is_key };
    memcpy(n->text, at, bytes);
    n->text[bytes] = 0;
    p->j->names = n;
    return n->text;
}
const char *jinja_name(const Jinja *j, const char *text) {
    for (const Name *n = j->names; n; n = n->next) if (!strcmp(n->text, text)) return n->text;
    return NULL;
}
static Node *node(Parser *p, NodeKind kind, Node *a, Node *b) {
    Node *n = work_alloc(p->w, sizeof *n);
    *n = (Node){ .kind = kind, .line = p->w->line, .a = a, .b = b };
    return n;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static void advance(Parser *p, size_t n) {
    for (; n; n--) p->w->line += *p->at++ == '\n';
}
/* Back to where the parser was. */
static void back_to(Parser *p, const Parser *before) {
    for (const char *c = before->at; c < p->at; c++) p->w->line -= *c == '\n';
    *p = *before;
}
static void skip_white(Parser *p) { while (p->at < p->end && text_is_white(*p->at)) advance(p, 1); }
static int starts(const Parser *p, const char *with) {
    const size_t n = strlen(with);
    return (size_t)(p->end - p->at) >= n && !memcmp(p->at, with, n);
}

/* Is the end of the tag here? Its length, with the white space that goes. */
static size_t tag_end(const Parser *p) {
    const char sign = p->at < p->end && (*p->at == '-' || (*p->at == '+' && p->closes != '}')) ? *p->at : 0;
    const char *at = p->at + (sign != 0);
    if (p->brackets || p->end - at < 2 || at[0] != p->closes || at[1] != '}') return 0;
    at += 2;
    if (sign == '-') while (at < p->end && text_is_white(*at)) at++;
    else if (!sign && p->closes != '}' && at < p->end && *at == '\n') at++;
    return (size_t)(at - p->at);
}

static uint32_t digits(Parser *p, const char **at, int most, int base) {
    uint32_t x = 0;
    for (int i = 0; i < most && *at < p->end; i++, ++*at) {
        const char c = **at, small = (char)(c | 32);
        const int digit = c >= '0' && c <= '9' ? c - '0' : small >= 'a' && small <= 'f' ? small - 'a' + 10 : base;
        if (digit >= base) break;
        x = x * (uint32_t)base + (uint32_t)digit;
    }
    return x;
}
/* After a backslash: Python's escapes. An unknown one stays as it is. */
static const char *escape(Parser *p, const char *at, Text *out) {
    static const char letters[] = "\\'\"abfnrtv", meanings[] = "\\'\"\a\b\f\n\r\t\v";
    const char *found = *at ? strchr(letters, *at) : NULL, *begin = at;
    char utf8[4];
    uint32_t code;
    if (found) { text_add_bytes(out, &meanings[found - letters], 1); return at + 1; }
    if (*at == '\n') return at + 1;
    if (*at >= '0' && *at <= '7') code = digits(p, &at, 3, 8);
    else if (*at == 'x' || *at == 'u' || *at == 'U') {
        const int n = *at == 'x' ? 2 : *at == 'u' ? 4 : 8;
        at++;
        code = digits(p, &at, n, 16);
        if (at - begin != n + 1 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
            work_fail(p->w, "\\%c in a string is no character", *begin);
    } else { text_add_bytes(out, "\\", 1); text_add_bytes(out, at, 1); return at + 1; }
    text_add_bytes(out, utf8, (size_t)utf8_encode(code, utf8));
    return at;
}
static void lex_string(Parser *p) {
    const char quote = *p->at, *at = p->at + 1;
    Out o = { 0 };
    out_begin(p->w, &o);
    while (at < p->end && *at != quote) {
        if (*at == '\\' && at + 1 < p->end) at = escape(p, at + 1, &p->w->out->text);
        else text_add_bytes(&p->w->out->text, at++, 1);
    }
    if (at == p->end) work_fail(p->w, "a string has no end");
    p->token.kind = T_STRING;
    p->token.value = value_string(out_end(p->w));
    advance(p, (size_t)(at + 1 - p->at));
}
static void lex_number(Parser *p) {
    char shown[64];
    size_t n = 0;
    const char *at = p->at;
    int is_float = 0;
    for (; at < p->end && n < sizeof shown - 1; at++) {
        const char small = (char)(*at | 32);
        const int exponent = small == 'e' && at + 1 < p->end && strchr("+-0123456789", at[1]) && at[1];
        const int point = *at == '.' && !is_float && at + 1 < p->end && at[1] >= '0' && at[1] <= '9';
        if (*at == '_') continue;
        if (!(*at >= '0' && *at <= '9') && !exponent && !point) break;
        is_float |= exponent || point;
        shown[n++] = *at;
        if (exponent && (at[1] == '+' || at[1] == '-')) shown[n++] = *++at;
    }
    shown[n] = 0;
    if (n > 18 && !is_float) work_fail(p->w, "the number %s is too large", shown);
    p->token.kind = is_float ? T_FLOAT : T_INTEGER;
    p->token.value = is_float ? VALUE(FLOAT, number, text_strtod(shown, NULL)) : value_int(strtoll(shown, NULL, 10));
    p->at = at;
}
static int is_letter(char c) { return ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_' || (unsigned char)c >= 128; }

/* The next token of a tag. */
static void next(Parser *p) {
    static const char *const pairs[] = { "//", "**", "==", "!=", ">=", "<=" };
    Token *t = &p->token;
    skip_white(p);
    work_step(p->w, 1);
    const size_t end = tag_end(p);
    *t = (Token){ .kind = T_END };
    if (end) { advance(p, end); return; }
    if (p->at == p->end) work_fail(p->w, "a tag has no end");
    const char c = *p->at;
    if (c == '\'' || c == '"') { lex_string(p); return; }
    if (c >= '0' && c <= '9') { lex_number(p); return; }
    if (is_letter(c)) {
        const char *at = p->at;
        while (p->at < p->end && (is_letter(*p->at) || (*p->at >= '0' && *p->at <= '9'))) p->at++;
        t->kind = T_NAME;
        t->name = intern(p, at, (size_t)(p->at - at), 0);
        return;
    }
    t->kind = T_OPERATOR;
    t->op[0] = c;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) if (starts(p, pairs[i])) t->op[1] = pairs[i][1];
    if (!c || (!t->op[1] && !strchr("+-/*%~[](){}><=.:|,;", c)))
        work_fail(p->w, "the character '%c' is not expected", c < 32 ? '?' : c);
    p->brackets += c == '(' || c == '[' || c == '{';
    if (p->brackets && (c == ')' || c == ']' || c == '}')) p->brackets--;
    advance(p, strlen(t->op));
}
static int at_op(const Parser *p, const char *op) { return p->token.kind == T_OPERATOR && !strcmp(p->token.op, op); }
static int at_name(const Parser *p, const char *n) { return p->token.kind == T_NAME && !strcmp(p->token.name, n); }
static int take_op(Parser *p, const char *op) { return at_op(p, op) && (next(p), 1); }
static int take_name(Parser *p, const char *n) { return at_name(p, n) && (next(p), 1); }
static const char *shown(const Parser *p) {
    static const char *const kinds[] = { "the end of the tag", "", "a string", "a number", "a number" };
    return p->token.kind == T_OPERATOR ? p->token.op : p->token.kind == T_NAME ? p->token.name : kinds[p->token.kind];
}
static void need_op(Parser *p, const char *op) {
    if (!take_op(p, op)) work_fail(p->w, "expected '%s', found %s", op, shown(p));
}
static const char *need_name(Parser *p) {
    const char *name = p->token.name;
    if (p->token.kind != T_NAME) work_fail(p->w, "expected a name, found %s", shown(p));
    next(p);
    return name;
}
static void need_end(Parser *p) {
    if (p->token.kind != T_END) work_fail(p->w, "expected the end of the tag, found %s", shown(p));
}

/* ---- expressions ----------------------------------------------------------------------------- */

static Node *expression(Parser *p);
static Node *any_of(Parser *p);
static Node *unary(Parser *p, int filters);

/* One expression, or several with commas: a tuple. */
static Node *tuple(Parser *p, Node *(*part)(Parser *)) {
    Node *first = part(p), *last = first;
    if (!at_op(p, ",")) return first;
    while (take_op(p, ",")) {
        if (p->token.kind == T_END || at_op(p, ")")) break;
        last = last->next = part(p);
    }
    return node(p, X_TUPLE, first, NULL);
}
static Node *constant(Parser *p, Value v) {
    Node *n = node(p, X_CONSTANT, NULL, NULL);
    n->value = v;
    return n;
}
static Node *key_constant(Parser *p, Value v) {
    if (v.kind == STRING && v.is.string.bytes < 64) intern(p, v.is.string.at, v.is.string.bytes, 1);
    return constant(p, v);
}
/* Parts with commas between them, up to a bracket. */
static Node *listed(Parser *p, const char *close, Node *(*part)(Parser *)) {
    Node *first = NULL;
    for (Node **to = &first; !at_op(p, close); to = &(*to)->next) {
        *to = part(p);
        if (!at_op(p, close)) need_op(p, ",");
    }
    next(p);
    return first;
}
static Node *pair(Parser *p) {
    Node *n = node(p, X_ARGUMENT, expression(p), NULL);
    need_op(p, ":");
    n->b = expression(p);
    return n;
}
static Node *primary(Parser *p) {
    static const struct { const char *name; Kind kind; int64_t is; } constants[] = {
        { "true", BOOLEAN, 1 }, { "True", BOOLEAN, 1 }, { "false", BOOLEAN, 0 }, { "False", BOOLEAN, 0 },
        { "none", NONE, 0 }, { "None", NONE, 0 },
    };
    Value v = p->token.value;
    if (p->token.kind == T_STRING) {
        for (next(p); p->token.kind == T_STRING; next(p)) {
            Out o = { 0 };
            out_begin(p->w, &o);
            out_value(p->w, &v);
            out_value(p->w, &p->token.value);
            v = value_string(out_end(p->w));
        }
        return key_constant(p, v);
    }
    if (p->token.kind == T_INTEGER || p->token.kind == T_FLOAT) { next(p); return constant(p, v); }
    if (take_op(p, "(")) {
        if (take_op(p, ")")) return node(p, X_TUPLE, NULL, NULL);
        Node *n = tuple(p, expression);
        need_op(p, ")");
        return n;
    }
    if (take_op(p, "[")) return node(p, X_LIST, listed(p, "]", expression), NULL);
    if (take_op(p, "{")) return node(p, X_DICT, listed(p, "}", pair), NULL);
    if (p->token.kind != T_NAME) work_fail(p->w, "expected a value, found %s", shown(p));
    const char *name = need_name(p);
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (!strcmp(name, constants[i].name)) return constant(p, VALUE(constants[i].kind, integer, constants[i].is));
    Node *n = node(p, X_NAME, NULL, NULL);
    n->name = name;
    for (Name *known = p->j->names; known; known = known->next) known->is_read |= known->text == name;
    return n;
}

static Node *argument(Parser *p) {
    if (at_op(p, "**")) work_fail(p->w, "arguments with ** are not implemented");
    Node *n = node(p, X_ARGUMENT, NULL, NULL);
    n->op = take_op(p, "*");
    const Parser before = *p;
    const char *name = p->token.kind == T_NAME ? need_name(p) : NULL;
    if (name && take_op(p, "=")) n->name = name;
    else back_to(p, &before);
    n->a = expression(p);
    return n;
}
/* After '(': up to ')'. */
static Node *arguments(Parser *p) {
    Node *first = listed(p, ")", argument);
    for (const Node *n = first; n && n->next; n = n->next)
        if (n->name && !n->next->name) work_fail(p->w, "an argument without a name follows one with a name");
    return first;
}
/* After '[': an index or a slice. */
static Node *subscript(Parser *p, Node *of) {
    Node *bounds[3] = { NULL };
    int n = 0;
    while (!at_op(p, "]")) {
        if (take_op(p, ":")) { if (++n == 3) work_fail(p->w, "a slice has three bounds"); }
        else if (bounds[n]) work_fail(p->w, "expected ']', found %s", shown(p));
        else bounds[n] = expression(p);
    }
    if (!n && !bounds[0]) work_fail(p->w, "expected an index, found ]");
    next(p);
    Node *key = bounds[0];
    if (n) {
        key = node(p, X_SLICE, bounds[0], bounds[1]);
        key->c = bounds[2];
    }
    return node(p, X_INDEX, of, key);
}
static Node *postfix(Parser *p, Node *n) {
    for (;;) {
        work_step(p->w, 1);
        if (take_op(p, "(")) n = node(p, X_CALL, n, arguments(p));
        else if (take_op(p, "[")) n = subscript(p, n);
        else if (take_op(p, ".")) {
            const Value number = p->token.value;
            if (p->token.kind == T_INTEGER) { next(p); n = node(p, X_INDEX, n, constant(p, number)); continue; }
            const char *name = need_name(p);
            n = node(p, X_ATTRIBUTE, n, NULL);
            n->name = intern(p, name, strlen(name), 1);
        } else return n;
    }
}
static Node *filter(Parser *p, Node *of) {
    const char *name = need_name(p);
    Node *n = node(p, X_FILTER, of, NULL);
    if (!filter_known(name)) work_fail(p->w, "the filter \"%.60s\" is not known", name);
    n->name = name;
    if (take_op(p, "(")) n->b = arguments(p);
    return n;
}
static Node *test(Parser *p, Node *of) {
    const int negated = take_name(p, "not");
    Node *n = node(p, X_TEST, of, NULL);
    n->op = negated;
    n->name = need_name(p);
    if (!test_known(n->name)) work_fail(p->w, "the test \"%.60s\" is not known", n->name);
    if (take_op(p, "(")) n->b = arguments(p);
    else if ((p->token.kind == T_NAME && !at_name(p, "else") && !at_name(p, "or") && !at_name(p, "and"))
             || p->token.kind == T_STRING || p->token.kind == T_INTEGER || p->token.kind == T_FLOAT
             || at_op(p, "[") || at_op(p, "{")) {
        if (at_name(p, "is")) work_fail(p->w, "tests cannot follow each other");
        n->b = node(p, X_ARGUMENT, NULL, NULL);
        n->b->a = postfix(p, primary(p));
    }
    return n;
}
static Node *filters(Parser *p, Node *n) {
    for (;;) {
        if (take_op(p, "|")) n = filter(p, n);
        else if (take_name(p, "is")) n = test(p, n);
        else if (take_op(p, "(")) n = node(p, X_CALL, n, arguments(p));
        else return n;
    }
}
static Node *unary(Parser *p, int with_filters) {
    Node *n;
    work_enter(p->w);
    if (take_op(p, "-")) n = node(p, X_MINUS, unary(p, 0), NULL);
    else if (take_op(p, "+")) n = node(p, X_PLUS, unary(p, 0), NULL);
    else n = primary(p);
    n = postfix(p, n);
    p->w->depth--;
    return with_filters ? filters(p, n) : n;
}
static Node *power(Parser *p) {
    Node *n = unary(p, 1);
    while (take_op(p, "**")) (n = node(p, X_OPERATION, n, unary(p, 1)))->op = O_POWER;
    return n;
}
/* Operators of one strength, the left one first. */
typedef struct { const char *op; Operator is; } Symbol;
static Node *operations(Parser *p, Node *(*part)(Parser *), const Symbol *symbols) {
    Node *n = part(p);
    for (const Symbol *s = symbols; s->op; s++) {
        if (!take_op(p, s->op)) continue;
        work_step(p->w, 1);
        n = node(p, X_OPERATION, n, part(p));
        n->op = (int)s->is;
        s = symbols - 1;
    }
    return n;
}
static Node *product(Parser *p) {
    static const Symbol symbols[] = { { "*", O_MULTIPLY }, { "/", O_DIVIDE }, { "//", O_FLOOR }, { "%", O_MODULO },
                                      { NULL, O_ADD } };
    return operations(p, power, symbols);
}
static Node *concatenation(Parser *p) {
    static const Symbol symbols[] = { { "~", O_CONCATENATE }, { NULL, O_ADD } };
    return operations(p, product, symbols);
}
static Node *sum(Parser *p) {
    static const Symbol symbols[] = { { "+", O_ADD }, { "-", O_SUBTRACT }, { NULL, O_ADD } };
    return operations(p, concatenation, symbols);
}
static int comparison(Parser *p, int *op) {
    static const Symbol symbols[] = { { "==", O_EQUAL }, { "!=", O_UNEQUAL }, { "<", O_LESS }, { "<=", O_LESS_EQUAL },
                                      { ">", O_GREATER }, { ">=", O_GREATER_EQUAL } };
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (take_op(p, symbols[i].op)) { *op = (int)symbols[i].is; return 1; }
    if (take_name(p, "in")) { *op = O_IN; return 1; }
    const Parser before = *p;
    if (take_name(p, "not") && take_name(p, "in")) { *op = O_NOT_IN; return 1; }
    back_to(p, &before);
    return 0;
}
static Node *compare(Parser *p) {
    Node *first = sum(p), *n = NULL, **to = NULL;
    int op;
    while (comparison(p, &op)) {
        if (!n) n = node(p, X_COMPARE, first, NULL), to = &n->b;
        Node *operand = *to = node(p, X_ARGUMENT, sum(p), NULL);
        operand->op = op;
        to = &operand->next;
    }
    return n ? n : first;
}
static Node *negation(Parser *p) {
    if (!take_name(p, "not")) return compare(p);
    work_enter(p->w);
    Node *n = node(p, X_NOT, negation(p), NULL);
    p->w->depth--;
    return n;
}
static Node *all_of(Parser *p) {
    Node *n = negation(p);
    while (take_name(p, "and")) n = node(p, X_AND, n, negation(p));
    return n;
}
static Node *any_of(Parser *p) {
    Node *n = all_of(p);
    while (take_name(p, "or")) n = node(p, X_OR, n, all_of(p));
    return n;
}
static Node *expression(Parser *p) {
    work_enter(p->w);
    Node *n = any_of(p);
    while (take_name(p, "if")) {
        Node *condition = any_of(p), *choice = node(p, X_IF, condition, n);
        choice->c = take_name(p, "else") ? expression(p) : NULL;
        n = choice;
    }
    p->w->depth--;
    return n;
}

/* ---- statements ------------------------------------------------------------------------------ */

static Node *body(Parser *p, const char *ends);

/* A name, several, or namespace.name. */
static Node *one_target(Parser *p) {
    if (take_op(p, "(")) {
        Node *n = tuple(p, one_target);
        need_op(p, ")");
        return n;
    }
    Node *n = node(p, X_NAME, NULL, NULL);
    n->name = need_name(p);
    if (!take_op(p, ".")) return n;
    n = node(p, X_ATTRIBUTE, n, NULL);
    n->name = need_name(p);
    return n;
}
/* Ends of blocks: the tag of this name has been begun, and is read to its end. */
static void end_tag(Parser *p) {
    next(p);
    need_end(p);
}
/* The end of the tag that begins a block, its body, and the tag that ends it. */
static Node *block(Parser *p, Node *n, const char *end) {
    need_end(p);
    n->b = body(p, end);
    end_tag(p);
    return n;
}
static Node *parse_if(Parser *p) {
    Node *n = node(p, S_IF, tuple(p, any_of), NULL);
    need_end(p);
    n->b = body(p, " elif else endif ");
    if (take_name(p, "elif")) n->c = parse_if(p);
    else if (at_name(p, "else")) {
        end_tag(p);
        n->c = body(p, " endif ");
        end_tag(p);
    } else end_tag(p);
    return n;
}
static Node *parse_for(Parser *p) {
    Node *n = node(p, S_FOR, tuple(p, one_target), NULL);
    if (!take_name(p, "in")) work_fail(p->w, "expected \"in\", found %s", shown(p));
    n->b = tuple(p, any_of);
    if (take_name(p, "if")) n->c = expression(p);
    if (at_name(p, "recursive")) work_fail(p->w, "recursive loops are not implemented");
    need_end(p);
    n->d = body(p, " else endfor ");
    if (at_name(p, "else")) {
        end_tag(p);
        n->e = body(p, " endfor ");
    }
    end_tag(p);
    return n;
}
static Node *parse_set(Parser *p) {
    Node *target = tuple(p, one_target);
    if (take_op(p, "=")) {
        Node *n = node(p, S_SET, target, tuple(p, expression));
        need_end(p);
        return n;
    }
    Node *n = node(p, S_CAPTURE, target, NULL);
    if (take_op(p, "|")) n->c = filters(p, filter(p, NULL));
    return block(p, n, " endset ");
}
static Node *parameter(Parser *p) {
    Node *n = node(p, X_ARGUMENT, NULL, NULL);
    n->name = need_name(p);
    if (take_op(p, "=")) n->a = expression(p);
    return n;
}
/* Parameters, if there are any, with what stands for those that are not given. */
static Node *parameters(Parser *p) { return take_op(p, "(") ? listed(p, ")", parameter) : NULL; }
static Node *parse_macro(Parser *p) {
    Node *n = node(p, S_MACRO, NULL, NULL);
    n->name = need_name(p);
    n->a = parameters(p);
    return block(p, n, " endmacro ");
}
static Node *parse_call(Parser *p) {
    Node *given = parameters(p), *n = node(p, S_CALL, expression(p), NULL);
    if (n->a->kind != X_CALL) work_fail(p->w, "{%% call %%} needs a call");
    n->c = given;
    return block(p, n, " endcall ");
}
static Node *parse_filter(Parser *p) {
    return block(p, node(p, S_FILTER, filters(p, filter(p, NULL)), NULL), " endfilter ");
}
static Node *parse_generation(Parser *p) {
    p->j->has_generation = 1;
    return block(p, node(p, S_GENERATION, NULL, NULL), " endgeneration ");
}
static Node *parse_with(Parser *p) {
    Node *n = node(p, S_WITH, NULL, NULL), **to = &n->a;
    while (p->token.kind != T_END) {
        Node *target = one_target(p);
        need_op(p, "=");
        *to = node(p, S_SET, target, expression(p));
        to = &(*to)->next;
        if (p->token.kind != T_END) need_op(p, ",");
    }
    return block(p, n, " endwith ");
}
static Node *parse_break(Parser *p) { need_end(p); return node(p, S_BREAK, NULL, NULL); }
static Node *parse_continue(Parser *p) { need_end(p); return node(p, S_CONTINUE, NULL, NULL); }

static Node *statement(Parser *p) {
    static const struct { const char *name; Node *(*parse)(Parser *); } statements[] = {
        { "if", parse_if }, { "for", parse_for }, { "set", parse_set }, { "macro", parse_macro },
        { "call", parse_call }, { "filter", parse_filter }, { "generation", parse_generation },
        { "break", parse_break }, { "continue", parse_continue }, { "with", parse_with },
    };
    const int line = p->w->line;
    const char *name = need_name(p);
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (strcmp(name, statements[i].name)) continue;
        Node *n = statements[i].parse(p);
        n->line = line;
        return n;
    }
    work_fail(p->w, "{%% %.60s %%} is not known here", name);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void add_text(Parser *p, Node ***to, const char *from, const char *end) {
    if (end <= from) return;
    Node *n = **to = node(p, S_TEXT, NULL, NULL);
    n->value = value_string((Str){ .at = from, .bytes = (size_t)(end - from) });
    *to = &n->next;
}
/* Where text that a tag follows ends: before blanks of the tag's line if it is no {{, and before
 * all white space at a minus sign. */
static const char *text_end(const Parser *p, const char *from, const char *tag) {
    const char *end = tag;
    if (tag[2] == '-') {
        while (end > from && text_is_white(end[-1])) end--;
        return end;
    }
    if (tag[1] == '{' || tag[2] == '+') return end;
    while (end > from && text_is_white(end[-1]) && end[-1] != '\n') end--;
    return end == p->start || end[-1] == '\n' ? end : tag;
}
/* What comes after a {# is skipped. */
static void skip_comment(Parser *p) {
    while (p->at < p->end && !starts(p, "#}") && !starts(p, "-#}") && !starts(p, "+#}")) advance(p, 1);
    p->closes = '#';
    if (p->at == p->end) work_fail(p->w, "a comment has no end");
    advance(p, tag_end(p));
}
/* After "{% raw %}": its text. */
static int take_raw(Parser *p, Node ***to) {
    const Parser before = *p;
    skip_white(p);
    const int raw = starts(p, "raw");
    if (raw) advance(p, 3), skip_white(p);
    const int white = starts(p, "-%}");
    if (!raw || (!white && !starts(p, "%}"))) { back_to(p, &before); return 0; }
    advance(p, white ? 3 : 2);
    if (white) skip_white(p);
    for (const char *from = p->at; p->at < p->end; advance(p, 1)) {
        const char *tag = p->at;
        if (!starts(p, "{%")) continue;
        const Parser here = *p;
        advance(p, p->end - p->at > 2 && (tag[2] == '-' || tag[2] == '+') ? 3 : 2);
        skip_white(p);
        const int ends = starts(p, "endraw");
        if (ends) advance(p, 6), skip_white(p);
        const size_t n = ends ? tag_end(p) : 0;
        if (n) {
            add_text(p, to, from, text_end(p, from, tag));
            advance(p, n);
            return 1;
        }
        back_to(p, &here);
    }
    work_fail(p->w, "{%% raw %%} has no end");
}

/* Statements up to a tag whose name is one of ends, which is the token then; "": up to the end. */
static Node *body(Parser *p, const char *ends) {
    Node *first = NULL, **to = &first;
    const int line = p->w->line;
    work_enter(p->w);
    for (;;) {
        const char *from = p->at;
        while (p->at < p->end && !starts(p, "{{") && !starts(p, "{%") && !starts(p, "{#")) advance(p, 1);
        if (p->at == p->end) {
            add_text(p, &to, from, p->at);
            if (!*ends) break;
            p->w->line = line;
            work_fail(p->w, "a block has no end: expected one of%s", ends);
        }
        const char *tag = p->at;
        add_text(p, &to, from, text_end(p, from, tag));
        advance(p, p->end - tag > 2 && (tag[2] == '-' || tag[2] == '+') ? 3 : 2);
        if (tag[1] == '#') { skip_comment(p); continue; }
        p->closes = tag[1] == '{' ? '}' : '%';
        p->brackets = 0;
        if (tag[1] == '%' && take_raw(p, &to)) continue;
        next(p);
        if (tag[1] == '{') {
            Node *n = node(p, S_PRINT, NULL, NULL);
            n->a = tuple(p, expression);
            need_end(p);
            *to = n;
        } else {
            char named[80];
            snprintf(named, sizeof named, " %s ", p->token.kind == T_NAME ? p->token.name : "?");
            if (strstr(ends, named)) break;
            *to = statement(p);
        }
        to = &(*to)->next;
    }
    p->w->depth--;
    return first;
}

/* Line ends are \n, and the last one is no part of the program. */
static Str clean(Work *w, const char *text, size_t bytes) {
    Out o = { 0 };
    out_begin(w, &o);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] != '\r') text_add_bytes(&w->out->text, text + i, 1);
        else if (i + 1 == bytes || text[i + 1] != '\n') text_add_bytes(&w->out->text, "\n", 1);
    }
    text_add_bytes(&w->out->text, "\0\0\0", 3);                 /* text_end looks three bytes ahead */
    Str s = out_end(w);
    s.bytes -= 3;
    if (s.bytes && s.at[s.bytes - 1] == '\n') s.bytes--;
    return s;
}
int jinja_parse(Jinja *j, const char *text, size_t bytes) {
    Work *w = &j->work;
    if (setjmp(w->failed)) return 0;
    w->line = 1;
    const Str s = clean(w, text, bytes);
    Parser p = { .j = j, .w = w, .start = s.at, .at = s.at, .end = s.at + s.bytes };
    j->program = body(&p, "");
    return 1;
}
