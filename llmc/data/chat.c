/* chat.c: see chat.h. */
#define _POSIX_C_SOURCE 200809L
#include "chat.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef enum { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL, CHAT_ROLES } ChatRole;
typedef struct { ChatRole role; int unlearned; const char *text; size_t bytes; } ChatMessage;

/* ---- the table ------------------------------------------------------------------------------- */

/* before and after: of the content of a message. In all strings {bos}, {eos} and {date FORMAT}
 * stand for tokens and for strftime's date. before NULL: no such role. */
typedef struct { const char *before, *after; } Turn;
enum {
    TRIMS = 1,                          /* white space around contents is dropped */
    BARE_END = 2,                       /* after the last message, if it is an answer, nothing follows what ends it */
    SYSTEM_IN_USER = 4,         /* the system message, first of all, is written in front of the first user's content */
    ALTERNATES = 8,                     /* user and assistant take turns, the user first */
    THINKS = 16,            /* answers after the last user's message begin with a thought, others have none (Qwen3) */
    THINKS_ALWAYS = 32,             /* all begin with one, which is empty before the last user's message (GLM 4.5) */
    NEXT_ENDS = 64,                     /* nothing follows an answer but the mark of the next role */
    RETURNS = 128                       /* an answer ends with `after` of the assistant, the last one with `end`; a
                                         * system message is only the first, and
                                         * not written if empty (gpt-oss) */
};
enum { MARKS = 4 };
struct ChatTemplate {
    const char *name, *models;
    /* strings that its Jinja, without optional spaces (tidy), has and lacks */
    const char *marks[MARKS], *lacks[MARKS];
    int flags;
    const char *start;                  /* before everything */
    Turn turn[CHAT_ROLES];              /* tool messages that follow each other are one turn; each is put into `tool` */
    Turn tool;
    const char *prompt;                 /* where the assistant's turn begins: the beginning of its `before` */
    const char *end;                    /* begins the assistant's `after`, or NEXT_ENDS: the user's mark */
    const char *system;                 /* of conversations without a system message; NULL: nothing is written */
};

#define CHATML(before, after) { { "<|im_start|>system\n" before, after }, { "<|im_start|>user\n", after }, \
                                { "<|im_start|>assistant\n", after }, { "<|im_start|>tool\n", after } }
#define QWEN { { "<|im_start|>system\n", "<|im_end|>\n" }, { "<|im_start|>user\n", "<|im_end|>\n" }, \
               { "<|im_start|>assistant\n", "<|im_end|>\n" }, { "<|im_start|>user", "<|im_end|>\n" } }
#define QWEN_TOOL { "\n<tool_response>\n", "\n</tool_response>" }
#define TO_QWEN "<|im_start|>assistant\n"
#define ROLES(between, after) \
    { { "<|system|>" between, after }, { "<|user|>" between, after }, { "<|assistant|>" between, "{eos}" "\n" } }
#define LLAMA3(before) { { "<|start_header_id|>system<|end_header_id|>\n\n" before, "<|eot_id|>" }, \
                         { "<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>" }, \
                         { "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>" } }
#define GRANITE(role) { "<|start_of_role|>" role "<|end_of_role|>", "<|end_of_text|>\n" }
#define MOONLIGHT(role) { "<|im_" role "|>" role "<|im_middle|>", "<|im_end|>" }
#define IBM "Knowledge Cutoff Date: April 2024.\nToday's Date: {date %B %d, %Y}.\nYou are Granite, developed by IBM. " \
    "You are a helpful AI assistant."
#define ALIBABA "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
#define HELPFUL "You are a helpful assistant"
#define OPENAI "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: " \
    "{date %Y-%m-%d}\n\n" \
               "Reasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel must be included for " \
               "every message."
#define FINAL "<|start|>assistant<|channel|>final<|message|>"
/* In marks \1 stands for any letter. */
#define SPEAKS "<|im_start|>system\n\1"
#define OPEN_END "(loop.lastandadd_generation_prompt)ornotloop.last"          /* nothing follows a last answer */

static const ChatTemplate templates[] = {
    { "chatml", "many models, and those that have none", { "<|im_start|>", "<|im_end|>" }, { SPEAKS, "<tool_response>",
      "|trim", OPEN_END }, 0, "", CHATML("", "<|im_end|>\n"), { "", "" }, TO_QWEN, "<|im_end|>", NULL },
    { "qwen1.5", "Qwen1.5", { "<|im_start|>system\n" HELPFUL "<|im_end|>" }, { "|trim", OPEN_END }, 0, "",
      CHATML("", "<|im_end|>\n"), { "", "" }, TO_QWEN, "<|im_end|>", HELPFUL },
    { "qwen2", "Qwen1.5-MoE, Qwen2", { "<|im_start|>system\n" HELPFUL ".<|im_end|>" }, { "<tool_response>", "|trim",
      OPEN_END }, 0, "", CHATML("", "<|im_end|>\n"), { "", "" }, TO_QWEN, "<|im_end|>", HELPFUL "." },
    { "qwen2.5", "Qwen2.5", { "<|im_start|>system\n" ALIBABA "<|im_end|>", "<tool_response>" }, { NULL }, 0, "", QWEN,
      QWEN_TOOL, TO_QWEN, "<|im_end|>", ALIBABA },
    { "qwen3", "Qwen3", { "last_query_index", "<think>", "<tool_response>", "<|im_start|>" }, { SPEAKS,
      "<|im_start|>assistant\n<think>" }, THINKS, "", QWEN, QWEN_TOOL, TO_QWEN, "<|im_end|>", NULL },
    { "qwen3-instruct", "Qwen3-2507-Instruct", { "<|im_start|>", "<tool_response>", "<|im_end|>" }, { SPEAKS,
      "last_query_index", "<think>", "|trim" }, 0, "", QWEN, QWEN_TOOL, TO_QWEN, "<|im_end|>", NULL },
    { "llama3", "Llama 3", { "'<|start_header_id|>'+", "<|end_header_id|>\n\n'", "|trim+'<|eot_id|>'" },
      { "Knowledge Date" }, TRIMS, "{bos}", LLAMA3(""), { "", "" }, "<|start_header_id|>assistant<|end_header_id|>\n\n",
      "<|eot_id|>", NULL },
    { "llama3.1", "Llama 3.1, 3.2, 3.3", { "Cutting Knowledge Date: December 2023\n",
      "'Today Date: '+date_string+'\n\n'", "<|end_header_id|>\n\n'", "|trim+'<|eot_id|>'" }, { NULL }, TRIMS, "{bos}",
      LLAMA3("Cutting Knowledge Date: December 2023\nToday Date: {date %d %b %Y}\n\n"), { "", "" },
      "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>", "" },
    { "olmoe", "OLMoE, Tulu 2 and 3", { "'<|user|>\n'+message['content']+'\n'",
      "'<|assistant|>\n'+message['content']+eos_token+'\n'" }, { "<|im_start|>" }, BARE_END, "{bos}", ROLES("\n", "\n"),
      { "", "" }, "<|assistant|>\n", "{eos}", NULL },
    { "olmo", "OLMo", { "'<|user|>\n'+message['content']}}\n", "'<|assistant|>\n'+message['content']+eos_token}}\n" },
      { NULL }, 0, "{bos}", ROLES("\n", "\n"), { "", "" }, "<|assistant|>\n", "{eos}", NULL },
    { "zephyr", "JetMoE-chat, Zephyr", { "'<|user|>\n'+message['content']+eos_token}}\n",
      "'<|assistant|>\n'+message['content']+eos_token}}\n" }, { NULL }, 0, "", ROLES("\n", "{eos}\n"), { "", "" },
      "<|assistant|>\n", "{eos}", NULL },
    { "granite", "Granite 3.0", { "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>\n" }, { "Knowledge Cutoff",
      "You are Granite" }, 0, "", { GRANITE("system"), GRANITE("user"), GRANITE("assistant") }, { "", "" },
      "<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>", NULL },
    { "granite3.1", "Granite 3.1 and later", { "<|start_of_role|>",
      "'Knowledge Cutoff Date: April 2024.\nToday's Date: '", "'.\nYou are Granite, developed by IBM.'",
      "' You are a helpful AI assistant.'" }, { "{%formessageinmessages%}" }, 0, "", { GRANITE("system"),
      GRANITE("user"), GRANITE("assistant") }, { "", "" }, "<|start_of_role|>assistant<|end_of_role|>",
      "<|end_of_text|>", IBM },
    { "mixtral", "Mixtral", { "' [INST] '+system_message+'\n\n'+message['content']+' [/INST]'",
      "' '+message['content']+eos_token" }, { NULL }, SYSTEM_IN_USER | ALTERNATES, "{bos}", { { "", "\n\n" },
      { " [INST] ", " [/INST]" }, { " ", "{eos}" } }, { "", "" }, "", "{eos}", NULL },
    { "mistral", "Mistral and Mixtral of 2023", { "'[INST] '+message['content']+' [/INST]'",
      "message['content']+eos_token" }, { "' '+message['content']+eos_token", "system_message" }, ALTERNATES, "{bos}",
      { { NULL, NULL }, { "[INST] ", " [/INST]" }, { "", "{eos}" } }, { "", "" }, "", "{eos}", NULL },
    { "llama2", "Llama 2", { "bos_token+'[INST] '+content.strip()+' [/INST]'",
      "'<<SYS>>\n'+system_message+'\n<</SYS>>\n\n'+message['content']", "' '+content.strip()+' '+eos_token",
      "setsystem_message=false" }, { "You are", "always" }, TRIMS | SYSTEM_IN_USER | ALTERNATES, "", { { "<<SYS>>\n",
      "\n<</SYS>>\n\n" }, { "{bos}[INST] ", " [/INST]" }, { " ", " {eos}" } }, { "", "" }, "", " {eos}", NULL },
    { "dots1", "dots.llm1", { "<|userprompt|>", "<|endofuserprompt|>", "<|response|>",
      "<|system|>Youareahelpfulassistant.<|endofsystem|>" }, { NULL }, 0, "", { { "<|system|>", "<|endofsystem|>" },
      { "<|userprompt|>", "<|endofuserprompt|>" }, { "<|response|>", "<|endofresponse|>" } }, { "", "" },
      "<|response|>", "<|endofresponse|>", HELPFUL "." },
    { "glm4.5", "GLM 4.5, 4.6", { "[gMASK]<sop>", "<|observation|>", "'\n<think></think>'", "'/nothink'" }, { NULL },
      THINKS_ALWAYS | NEXT_ENDS, "[gMASK]<sop>", { { "<|system|>\n", "" }, { "<|user|>\n", "" }, { "<|assistant|>",
      "" }, { "<|observation|>", "" } }, QWEN_TOOL, "<|assistant|>", "<|user|>", NULL },
    { "ernie4.5", "ERNIE 4.5", { "'<|begin_of_sentence|>'", "'User: '+message['content']+'\n'",
      "'Assistant: '+message['content']+sep_token" }, { NULL }, 0, "<|begin_of_sentence|>", { { "", "\n" }, { "User: ",
      "\n" }, { "Assistant: ", "<|end_of_sentence|>" } }, { "", "" }, "Assistant: ", "<|end_of_sentence|>", NULL },
    { "deepseek-v2", "DeepSeek-V2, V2-Lite", { "'User: '+message['content']+'\n\n'",
      "'Assistant: '+message['content']+eos_token" }, { NULL }, 0, "{bos}", { { "", "\n\n" }, { "User: ", "\n\n" },
      { "Assistant: ", "{eos}" } }, { "", "" }, "Assistant:", "{eos}", NULL },
    { "moonlight", "Moonlight", { "<|im_middle|>", "<|im_assistant|>", "Moonshot-AI.<|im_end|>" }, { "tool_calls" }, 0,
      "", { MOONLIGHT("system"), MOONLIGHT("user"), MOONLIGHT("assistant") }, { "", "" },
      "<|im_assistant|>assistant<|im_middle|>", "<|im_end|>", HELPFUL " provided by Moonshot-AI." },
    { "harmony", "gpt-oss", { "<|start|>developer<|message|>", "'# Instructions\n\n'", "Knowledge cutoff: 2024-06\n",
      "'" FINAL "'+message.content+'<|return|>'" }, { NULL }, RETURNS, "<|start|>system<|message|>" OPENAI "<|end|>",
      { { "<|start|>developer<|message|># Instructions\n\n", "\n\n<|end|>" }, { "<|start|>user<|message|>", "<|end|>" },
      { FINAL, "<|end|>" } }, { "", "" }, FINAL, "<|return|>", NULL },
};
enum { TEMPLATES = sizeof templates / sizeof *templates };

static const char *const role_names[] = { "system", "user", "assistant", "tool" };

/* ---- which template a folder has ------------------------------------------------------------- */

/* Is there a place in text where mark matches? \1 in the mark: any letter. */
static int has_mark(const char *text, const char *mark) {
    for (; *text; text++) {
        size_t i = 0;
        for (; mark[i]; i++) {
            const char c = text[i];
            if (mark[i] == '\1' ? !((c | 32) >= 'a' && (c | 32) <= 'z') : c != mark[i]) break;
        }
        if (!mark[i]) return 1;
    }
    return 0;
}

/* A Jinja string from its opening quote on, single quotes, no escapes. Returns what is after it. */
static const char *tidy_string(const char *at, Text *out) {
    const char quote = *at++;
    text_add_bytes(out, "'", 1);
    for (; *at && *at != quote; at++) {
        if (*at == '\\' && at[1]) {
            at++;
            text_add_bytes(out, *at == 'n' ? "\n" : *at == 't' ? "\t" : at, 1);
        } else text_add_bytes(out, at, 1);
    }
    text_add_bytes(out, "'", 1);
    return *at ? at + 1 : at;
}

/* A Jinja program in one spelling: no comments, in {{ }} and {% %} no white space outside strings
 * and no minus signs at the ends; outside only a new line after }}, which is text. */
static char *tidy(const char *at) {
    Text out = { 0 };
    int inside = 0;
    text_add_bytes(&out, "", 0);
    while (*at) {
        const char *comment_end = !strncmp(at, "{#", 2) ? strstr(at, "#}") : NULL, *end = at + (*at == '-');
        if (comment_end) at = comment_end + 2;
        else if (!inside && (!strncmp(at, "{{", 2) || !strncmp(at, "{%", 2))) {
            text_add_bytes(&out, at, 2);
            at += 2;
            at += *at == '-';
            inside = 1;
        } else if (inside && (!strncmp(end, "}}", 2) || !strncmp(end, "%}", 2))) {
            text_add_bytes(&out, end, 2);
            at = end + 2;
            inside = 0;
            if (*end == '}' && *at == '\n') text_add_bytes(&out, at++, 1);
        } else if (inside && (*at == '\'' || *at == '"')) at = tidy_string(at, &out);
        else if (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r') at++;
        else text_add_bytes(&out, at++, 1);
    }
    return out.at;
}

static const ChatTemplate *recognize(const char *jinja) {
    for (int i = 0; i < TEMPLATES; i++) {
        const ChatTemplate *t = &templates[i];
        int same = 1;
        for (int k = 0; k < MARKS && t->marks[k] && same; k++) same = has_mark(jinja, t->marks[k]);
        for (int k = 0; k < MARKS && t->lacks[k] && same; k++) same = !has_mark(jinja, t->lacks[k]);
        if (same) return t;
    }
    return NULL;
}

/* A string of a row as a Jinja expression. */
static void add_expression(Text *out, const char *s) {
    text_add_string(out, "'");
    for (; *s; s++) {
        const int token = !strncmp(s, "{bos}", 5) || !strncmp(s, "{eos}", 5);
        if (token) { text_add(out, "' + %.3s_token + '", s + 1); s += 4; }
        else if (*s == '\n') text_add_string(out, "\\n");
        else if (*s == '\'' || *s == '\\') text_add(out, "\\%c", *s);
        else text_add_bytes(out, s, 1);
    }
    text_add_string(out, "'");
}

char *chat_jinja(const Chat *c) {
    const ChatTemplate *f = c->form;
    Text out = { 0 };
    if (!f || f->flags & (THINKS | THINKS_ALWAYS | SYSTEM_IN_USER | RETURNS)
        || *f->tool.before || (f->system && strstr(f->system, "{date"))
        || (f->turn[CHAT_SYSTEM].before && strstr(f->turn[CHAT_SYSTEM].before, "{date"))) return NULL;
    text_add(&out, "{# %s #}", f->name);
    if (*f->start) { text_add_string(&out, "{{ "); add_expression(&out, f->start); text_add_string(&out, " }}"); }
    if (f->system) {
        text_add_string(&out, "{% if messages[0]['role'] != 'system' %}{{ ");
        add_expression(&out, f->turn[CHAT_SYSTEM].before);
        text_add_string(&out, " + ");
        add_expression(&out, f->system);
        text_add_string(&out, " + ");
        add_expression(&out, f->turn[CHAT_SYSTEM].after);
        text_add_string(&out, " }}{% endif %}");
    }
    text_add_string(&out, "{% for message in messages %}");
    for (int i = 0; i < CHAT_ROLES; i++) {
        if (!f->turn[i].before) continue;
        text_add(&out, "{%% if message['role'] == '%s' %%}{{ ", role_names[i]);
        add_expression(&out, f->turn[i].before);
        text_add(&out, " + message['content']%s + ", f->flags & TRIMS ? ".strip()" : "");
        add_expression(&out, i == CHAT_ASSISTANT ? f->end : f->turn[i].after);
        if (i == CHAT_ASSISTANT && strcmp(f->end, f->turn[i].after)) {
            text_add_string(&out, f->flags & BARE_END ? " + ('' if loop.last else " : " + (");
            add_expression(&out, f->turn[i].after + strlen(f->end));
            text_add_string(&out, ")");
        }
        text_add_string(&out, " }}{% endif %}");
    }
    text_add_string(&out, "{% endfor %}{% if add_generation_prompt %}{{ ");
    add_expression(&out, f->prompt);
    text_add_string(&out, " }}{% endif %}");
    return out.at;
}

/* One that chat_jinja wrote. */
static const ChatTemplate *recognize_own(const char *jinja) {
    for (int i = 0; i < TEMPLATES && !strncmp(jinja, "{# ", 3); i++) {
        char *own = chat_jinja(&(Chat){ .form = &templates[i] });
        const int same = own && !strcmp(own, jinja);
        free(own);
        if (same) return &templates[i];
    }
    return NULL;
}

static char *read_small(const char *folder, const char *name, size_t *bytes) {
    Error e;
    char *path = text_format("%s/%s", folder, name), *text = is_file(path) ? file_read(path, bytes, &e) : NULL;
    free(path);
    return text;
}

/* The text of a token in tokenizer_config.json, a string or {"content": a string}. */
static char *token_text(const JsonValue *config, const char *key) {
    const JsonValue *v = json_get(config, key);
    return text_format("%s", json_string(json_is(v, JSON_OBJECT) ? json_get(v, "content") : v, ""));
}

/* The Jinja program of chat_template.jinja or tokenizer_config.json (maybe a list); NULL: none. */
static char *find_jinja(const char *folder, const JsonValue *config) {
    size_t bytes;
    const JsonValue *v = json_get(config, "chat_template");
    char *file = read_small(folder, "chat_template.jinja", &bytes);
    if (file) return file;
    for (const JsonValue *one = json_is(v, JSON_ARRAY) ? json_first(v) : NULL; one; one = one->next)
        if (!strcmp(json_string(json_get(one, "name"), ""), "default")) v = json_get(one, "template");
    return json_string(v, NULL) ? text_format("%s", json_string(v, "")) : NULL;
}
static void find_template(Chat *c, const char *folder, const JsonValue *config) {
    char *jinja = find_jinja(folder, config), *text = jinja ? tidy(jinja) : NULL;
    c->form = text ? recognize_own(jinja) : NULL;
    c->ours = c->form != NULL;
    if (text && !c->form) c->form = recognize(text);
    if (!text) c->why = text_format("%s has no chat template", folder);
    else if (!c->form) c->why = text_format("%s: its chat template is none that this program knows; it begins %.60s%s",
                                            folder, jinja, strlen(jinja) > 60 ? "..." : "");
    c->unknown = text && !c->form;
    c->has_bos = text && strstr(text, "bos_token");
    c->has_date = text && strstr(text, "strftime_now");
    free_each(jinja, text);
}

int chat_open(Chat *c, const char *name, const char *folder, Error *e) {
    size_t bytes;
    char *text = folder ? read_small(folder, "tokenizer_config.json", &bytes) : NULL;
    Json *json = text ? json_parse(text, bytes, e) : NULL;
    const JsonValue *config = json ? json_root(json) : NULL;
    *c = (Chat){ .bos = token_text(config, "bos_token"), .eos = token_text(config, "eos_token"), .has_bos = -1,
                 .has_date = -1 };
    if (!*name && folder) find_template(c, folder, config);
    else if (!*name) c->why = text_format("a model that is not from a folder has no chat template");
    for (int i = 0; i < TEMPLATES && *name; i++) if (!strcmp(name, templates[i].name)) c->form = &templates[i];
    json_free(json);
    free(text);
    if (c->form || !*name) return 1;
    chat_close(c);
    return error_set(e, "-ct %s: no chat template has this name; known are %s", name, CHAT_NAMES);
}
void chat_close(Chat *c) {
    free_each(c->why, c->bos, c->eos);
    *c = (Chat){ 0 };
}
const char *chat_name(const Chat *c) { return c->form ? c->form->name : ""; }

const char *chat_end(const Chat *c) {
    return !c->form ? "" : !strncmp(c->form->end, "{eos}", 5) || !strncmp(c->form->end, " {eos}", 6) ? c->eos
                    : c->form->end;
}
uint64_t chat_hash(const Chat *c, uint64_t seed) {
    const int written[] = { c->has_bos, c->has_date };
    uint64_t h = hash_bytes(seed, chat_name(c), strlen(chat_name(c)));
    h = hash_bytes(hash_bytes(h, c->bos, strlen(c->bos)), c->eos, strlen(c->eos));
    return hash_bytes(h, written, sizeof written);
}

/* ---- messages of a line ---------------------------------------------------------------------- */

static int role_of(const char *name) {
    static const struct { const char *name; ChatRole role; } others[] = {
        { "human", CHAT_USER }, { "gpt", CHAT_ASSISTANT }, { "model", CHAT_ASSISTANT }, { "bot", CHAT_ASSISTANT },
    };
    for (int i = 0; i < CHAT_ROLES; i++) if (!strcmp(name, role_names[i])) return i;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(name, others[i].name)) return (int)others[i].role;
    return -1;
}
static double weight_of(const JsonValue *message) {
    const JsonValue *v = json_get(message, "weight");
    return !v || json_is(v, JSON_NULL) ? 1 : json_is(v, JSON_BOOL) ? json_bool(v, 0) : json_double(v, -1);
}
static int read_message(const JsonValue *v, size_t number, ChatMessage *m, Error *e) {
    const JsonValue *from = json_get(v, "role"), *text = json_get(v, "content"), *calls = json_get(v, "tool_calls");
    if (!from) from = json_get(v, "from");
    if (!text) text = json_get(v, "value");
    const int role = from ? role_of(json_string(from, "")) : -1;
    if (!json_is(v, JSON_OBJECT)) return error_set(e, "message %zu is no object", number);
    if (!from) return error_set(e, "message %zu has no \"role\"", number);
    if (role < 0)
        return error_set(e, "message %zu has the role \"%.40s\", expected system, user, assistant or tool", number,
                         json_string(from, "?"));
    if (calls && !json_is(calls, JSON_NULL) && !(json_is(calls, JSON_ARRAY) && !calls->length))
        return error_set(e, "message %zu has \"tool_calls\", which are not implemented; write them as its \"content\"",
                         number);
    if (!text || json_is(text, JSON_NULL)) return error_set(e, "message %zu has no \"content\"", number);
    if (!json_is(text, JSON_STRING)) return error_set(e, "message %zu has a \"content\" that is no string", number);
    const double weight = weight_of(v);
    if (weight != 0 && weight != 1)
        return error_set(e, "message %zu has a \"weight\" that is neither 0 nor 1", number);
    *m = (ChatMessage){ (ChatRole)role, weight == 0, text->is.string, text->length };
    return 1;
}

static size_t chat_read(const JsonValue *list, ChatMessage **messages, Error *e) {
    size_t n = 0;
    *messages = NULL;
    if (!json_is(list, JSON_ARRAY)) return (size_t)error_set(e, "its messages are no list");
    if (!list->length) return (size_t)error_set(e, "its list of messages is empty");
    *messages = mem_alloc(list->length * sizeof **messages);
    for (const JsonValue *v = json_first(list); v; v = v->next, n++)
        if (!read_message(v, n + 1, &(*messages)[n], e)) { free(*messages); *messages = NULL; return 0; }
    return n;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void add_date(const Chat *c, const char *format, Text *out) {
    char shown[64];
    struct tm date = { .tm_year = 124, .tm_mon = 6, .tm_mday = 26 };
    const time_t clock = time(NULL);
    if (c->today && c->has_date) localtime_r(&clock, &date);
    text_add_bytes(out, shown, strftime(shown, sizeof shown, format, &date));
}
/* A string of a row. */
static void add_row(const Chat *c, const char *s, Text *out) {
    while (*s) {
        const char *end = *s == '{' ? strchr(s, '}') : NULL;
        if (!end) { text_add_bytes(out, s++, 1); continue; }
        if (!strncmp(s, "{bos}", 5)) { if (c->has_bos) text_add_string(out, c->bos); }
        else if (!strncmp(s, "{eos}", 5)) text_add_string(out, c->eos);
        else {
            char format[32];
            snprintf(format, sizeof format, "%.*s", (int)(end - s - 6), s + 6);         /* {date FORMAT} */
            add_date(c, format, out);
        }
        s = end + 1;
    }
}

typedef struct { const char *at; size_t bytes; } Part;
static Part strip(Part p, const char *what, int left, int right) {
    while (left && p.bytes && strchr(what, *p.at) && *p.at) p.at++, p.bytes--;
    while (right && p.bytes && strchr(what, p.at[p.bytes - 1]) && p.at[p.bytes - 1]) p.bytes--;
    return p;
}
static const char white[] = " \t\n\r\v\f";

/* What a model thought, between <think> and </think>, is written in answers after the last question
 * only. There Qwen3 has an empty thought for none in the last message; GLM in the others. */
static void add_answer(int flags, Part content, int recent, int last, Text *out) {
    static const char close[] = "</think>", open[] = "<think>";
    Part thought = { "", 0 };
    int thinks = 0;
    for (size_t i = content.bytes; i-- > 0; ) {             /* the last one: what follows it is said */
        if (content.bytes - i < 8 || memcmp(content.at + i, close, 8)) continue;
        size_t first = 0, from = 0;
        while (memcmp(content.at + first, close, 8)) first++;
        thought = strip((Part){ content.at, first }, "\n", 0, 1);
        for (size_t k = 0; k + 7 <= thought.bytes; k++) if (!memcmp(thought.at + k, open, 7)) from = k + 7;
        thought = strip((Part){ thought.at + from, thought.bytes - from }, "\n", 1, 0);
        content = strip((Part){ content.at + i + 8, content.bytes - i - 8 }, "\n", 1, 0);
        thinks = thought.bytes > 0;
        break;
    }
    if (flags & THINKS_ALWAYS) {
        thought = strip(thought, white, 1, 1);
        content = strip(content, white, 1, 1);
        text_add_string(out, "\n<think>");
        if (recent) text_add_bytes(out, thought.at, thought.bytes);
        text_add_string(out, content.bytes ? "</think>\n" : "</think>");
    } else if (recent && (last || thinks)) {
        thought = strip(thought, "\n", 1, 1);
        content = strip(content, "\n", 1, 0);
        text_add_string(out, "<think>\n");
        text_add_bytes(out, thought.at, thought.bytes);
        text_add_string(out, "\n</think>\n\n");
    }
    text_add_bytes(out, content.at, content.bytes);
}

static void add_turn(Text *turns, size_t at) { if (turns) text_add_bytes(turns, &at, sizeof at); }

/* recent: what follows the last question. prompt: the assistant's next answer follows */
typedef struct { const Chat *c; const ChatMessage *m; size_t count, recent; int prompt; Text *text, *turns; } Writer;

/* Where answer i, which is written, ends. */
static size_t end_of_answer(const Writer *w, size_t i) {
    const ChatTemplate *f = w->c->form;
    const int next = f->flags & NEXT_ENDS && i + 1 < w->count;
    return w->text->length + (next ? strcspn(f->turn[w->m[i + 1].role].before, "\n") : 0);
}
static void write_message(const Writer *w, size_t i, Part content) {
    Text *const turns = w->m[i].unlearned ? NULL : w->turns;
    const ChatTemplate *f = w->c->form;
    const ChatMessage *m = &w->m[i];
    const int first = !i || m[-1].role != CHAT_TOOL, last = i + 1 == w->count || m[1].role != CHAT_TOOL;
    const Turn *turn = &f->turn[m->role];
    if (f->flags & TRIMS) content = strip(content, white, 1, 1);
    const char *before = turn->before;
    if (m->role == CHAT_ASSISTANT) {                /* what follows the prompt is the model's to say, be it a space */
        add_row(w->c, f->prompt, w->text);
        add_turn(turns, w->text->length);
        before += strlen(f->prompt);
    }
    if (m->role != CHAT_TOOL || first) add_row(w->c, before, w->text);
    if (m->role == CHAT_TOOL) add_row(w->c, f->tool.before, w->text);
    if (m->role == CHAT_ASSISTANT && f->flags & (THINKS | THINKS_ALWAYS))
        add_answer(f->flags, content, i >= w->recent, i + 1 == w->count, w->text);
    else text_add_bytes(w->text, content.at, content.bytes);
    if (m->role == CHAT_TOOL) add_row(w->c, f->tool.after, w->text);
    if (m->role == CHAT_ASSISTANT) {
        const int goes_on = f->flags & RETURNS && (i + 1 < w->count || w->prompt);
        if (!(f->flags & NEXT_ENDS)) add_row(w->c, goes_on ? turn->after : f->end, w->text);
        add_turn(turns, end_of_answer(w, i));
        if (!(f->flags & (NEXT_ENDS | RETURNS) || (f->flags & BARE_END && i + 1 == w->count)))
            add_row(w->c, turn->after + strlen(f->end), w->text);
    } else if (m->role != CHAT_TOOL || last) add_row(w->c, turn->after, w->text);
}

static int check_order(const Chat *c, const ChatMessage *m, size_t count, Error *e) {
    const ChatTemplate *f = c->form;
    const int in_user = f->flags & (SYSTEM_IN_USER | RETURNS), first = in_user && count && m->role == CHAT_SYSTEM;
    for (size_t i = 0; i < count; i++) {
        if (!f->turn[m[i].role].before)
            return error_set(e, "message %zu has the role %s, which the chat template %s has not", i + 1,
                             role_names[m[i].role], f->name);
        if (in_user && m[i].role == CHAT_SYSTEM && i)
            return error_set(e, "message %zu has the role system, which in the chat template %s only the "
                             "first may have", i + 1, f->name);
        if (f->flags & ALTERNATES && (int)i >= first && (m[i].role == CHAT_USER) != ((i - (size_t)first) % 2 == 0))
            return error_set(e, "message %zu has the role %s, but in the chat template %s user and "
                             "assistant take turns", i + 1, role_names[m[i].role], f->name);
    }
    return count > (size_t)first || error_set(e, "it has no message but that of the system");
}

/* After the user's last message, for Qwen3 no tool's answer. None: GLM takes all, Qwen3 nothing. */
static size_t after_question(const ChatTemplate *f, const ChatMessage *m, size_t count) {
    for (size_t i = count; i-- > 0; )
        if (m[i].role == CHAT_USER
            && !(f->flags & THINKS && m[i].bytes >= 31 && !memcmp(m[i].text, "<tool_response>", 15)
                                        && !memcmp(m[i].text + m[i].bytes - 16, "</tool_response>", 16))) return i + 1;
    return f->flags & THINKS ? count : 0;
}
static int write_messages(const Chat *c, const ChatMessage *m, size_t count, int prompt, Text *text, Text *turns,
                          Error *e) {
    const ChatTemplate *f = c->form;
    const Writer w = { c, m, count, f ? after_question(f, m, count) : 0, prompt, text, turns };
    const int has_system = count && m->role == CHAT_SYSTEM, merged = f && has_system && f->flags & SYSTEM_IN_USER;
    if (!f) return error_set(e, "%s; -ct NAME chooses one of %s", c->why, CHAT_NAMES);
    if (strstr(f->end, "{eos}") && !*c->eos)
        return error_set(e, "the chat template %s ends answers with the eos_token of tokenizer_config.json, which is "
                         "not there; chatml needs none", f->name);
    if (!check_order(c, m, count, e)) return 0;
    add_row(c, f->start, text);
    if (!has_system && f->system) {
        add_row(c, f->turn[CHAT_SYSTEM].before, text);
        add_row(c, f->system, text);
        add_row(c, f->turn[CHAT_SYSTEM].after, text);
    }
    const int is_empty = has_system && f->flags & RETURNS && !m->bytes;
    for (size_t i = (size_t)(merged || is_empty); i < count; i++) {
        Text both = { 0 };
        Part content = { m[i].text, m[i].bytes };
        if (merged && i == 1) {
            add_row(c, f->turn[CHAT_SYSTEM].before, &both);
            text_add_bytes(&both, m->text, m->bytes);
            add_row(c, f->turn[CHAT_SYSTEM].after, &both);
            text_add_bytes(&both, content.at, content.bytes);
            content = (Part){ both.at, both.length };
        }
        write_message(&w, i, content);
        free(both.at);
    }
    if (prompt) add_row(c, f->prompt, text);
    return 1;
}

int chat_write(const Chat *c, const JsonValue *talk, int prompt, Text *text, Text *learned, Error *e) {
    ChatMessage *m;
    const size_t n = chat_read(json_get(talk, "messages"), &m, e);
    const int ok = n && write_messages(c, m, n, prompt, text, learned, e);
    free(m);
    return ok;
}

/* The messages of ShareGPT, {"from", "value"}, as {"role", "content"}. */
const JsonValue *chat_talk(Json *line) {
    const JsonValue *root = json_root(line), *from = json_get(root, "conversations");
    if (json_get(root, "messages")) return root;
    if (!json_is(from, JSON_ARRAY)) return from ? root : NULL;
    JsonValue *talk = json_make(line, JSON_OBJECT),
        *messages = json_append(talk, "messages", json_make(line, JSON_ARRAY));
    for (const JsonValue *v = json_first(from); v; v = v->next) {
        JsonValue *m = json_append(messages, NULL, json_make(line, JSON_OBJECT));
        for (const JsonValue *x = json_first(v); x; x = x->next)
            json_append(m, !strcmp(x->key, "from") ? "role" : !strcmp(x->key, "value") ? "content" : x->key,
                        json_copy(line, x));
    }
    return talk;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* How many of the first tokens are those of the first `bytes` bytes of the text. The token in which
 * this prefix ends, if it ends within one, belongs to what follows. *seam: the last seam before the
 * last call's bytes, which were not more; so a conversation whose turns have added tokens takes
 * linear time. */
static size_t tokens_before(const Tokenizer *t, const char *text, size_t bytes, const int *ids, size_t count,
                            const TokenSeam **seam) {
    int *more;
    if (tokenizer_is_bytes(t)) return bytes;                        /* every byte is a token */
    while (seam[0][1].bytes <= bytes) ++*seam;
    const size_t n = tokenizer_encode_part(t, text, (*seam)->bytes, bytes, &more, NULL);
    size_t same = 0, at = (*seam)->ids;
    while (same < n && at + same < count && more[same] == ids[at + same]) same++;
    free(more);
    return at + same;
}

static int is_answer(const JsonValue *messages) {
    const JsonValue *last = json_first(messages);
    while (last && last->next) last = last->next;
    return role_of(json_string(json_get(last, "role"), "")) == CHAT_ASSISTANT
        && weight_of(last) != 0;
}
int64_t chat_encode(const Chat *c, const Tokenizer *t, const JsonValue *talk, int prompt, int **ids,
                    unsigned char **counts, Error *e) {
    Text text = { 0 }, turns = { 0 }, seams = { 0 };
    int64_t tokens = -1;
    text_add_bytes(&text, "", 0);
    text_add_bytes(&seams, &(TokenSeam){ 0, 0 }, sizeof(TokenSeam));
    if (chat_write(c, talk, prompt, &text, counts ? &turns : NULL, e)) {
        if (counts && !prompt && c->form->flags & NEXT_ENDS && is_answer(json_get(talk, "messages"))) {
            /* else it would never learn to end */
            const size_t from = turns.length / sizeof(size_t) - 1;
            text_add_string(&text, c->form->end);
            memcpy(turns.at + from * sizeof from, &text.length, sizeof text.length);
        }
        const size_t n = tokenizer_encode_part(t, text.at, 0, text.length, ids, counts ? &seams : NULL),
            ends = turns.length / sizeof(size_t);
        tokens = (int64_t)n;
        text_add_bytes(&seams, &(TokenSeam){ SIZE_MAX, n }, sizeof(TokenSeam));
        const TokenSeam *seam = (const TokenSeam *)(const void *)seams.at;
        if (counts) *counts = mem_alloc(n + 1);
        for (size_t i = 0; i + 1 < ends; i += 2) {
            size_t at[2];
            memcpy(at, turns.at + i * sizeof *at, sizeof at);
            const size_t from = tokens_before(t, text.at, at[0], *ids, n, &seam);
            const size_t to = at[1] == text.length ? n : tokens_before(t, text.at, at[1], *ids, n, &seam);
            if (to > from) memset(*counts + from, 1, to - from);
        }
    }
    free_each(text.at, turns.at, seams.at);
    return tokens;
}

size_t chat_oldest(const JsonValue *messages, size_t *first) {
    const JsonValue *m = json_first(messages);
    const size_t count = m ? messages->length : 0;
    *first = m && role_of(json_string(json_get(m, "role"), "")) == CHAT_SYSTEM;
    if (count < *first + 2) return 0;
    size_t gone = (count - *first - 1) / 2 / 4 * 2 + 1;
    for (size_t i = 0; i < *first + gone; i++) m = m->next;
    while (m->next && role_of(json_string(json_get(m, "role"), "")) != CHAT_USER) m = m->next, gone++;
    return gone;
}
