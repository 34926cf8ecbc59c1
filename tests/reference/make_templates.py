"""Compares chat templates with Transformers, and writes tests/reference/templates.json.

    python make_templates.py FOLDER         (in this folder; needs the package `transformers`)

FOLDER holds published templates, *.jinja, which stay where they are: of each only hashes are kept. {"programs": [[a program of our own, its
text or null]], "conversations": [...], "templates": [{"sha256": of the template's text, "texts": [the first digits of a hash, or null]}]}. A text is
what Transformers writes of a conversation, without and with the generation prompt, dates being 26 Jul 2024; null: it refuses it. `run_tests data` compares the templates that it finds in the
folder MOE_TEMPLATES names, and says how many it knows, wrote alike and refused."""
import datetime
import glob
import hashlib
import json
import os
import sys
import transformers.utils.chat_template_utils as utils


class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


U, A, S, T = "user", "assistant", "system", "tool"
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather <now> & \"then\"", "parameters": {
            "type": "object", "properties": {"city": {"type": "string", "description": "The city, e.g. Zürich"},
                                             "days": {"type": "integer", "enum": [1, 2], "default": 1}}, "required": ["city"]},
            "return": {"type": "string", "description": "text"}}},
         {"type": "function", "function": {"name": "noop", "description": "Nothing", "parameters": {"type": "object", "properties": {}}}}]


def say(*pairs):
    return {"messages": [{"role": r, "content": c} for r, c in pairs]}


def call(number, name, arguments):
    return {"type": "function", "id": number, "function": {"name": name, "arguments": arguments}}


CONVERSATIONS = [
    say((U, "Hello"), (A, "Hi there")),
    say((S, "You are <b>terse</b>."), (U, "What is 2 + 2?"), (A, "Four"), (U, "And 3+3?"), (A, "Six.")),
    say((U, "  two spaces, line end\n"), (A, "\n\nit's so  \n")),
    say((U, "Größte 専門家 😀"), (A, "ça coûte\n\nрусский"), (U, "again"), (A, "don't"), (U, "once more"), (A, "yes")),
    say((S, ""), (U, ""), (A, "")),
    say((S, " sys \n"), (U, "{{ braces }} {% raw %} 'q' \"d\" \\n"), (A, "a\tb")),
    say((U, "Think"), (A, "<think>\nlong\nthought\n</think>\n\nAnswer"), (U, "Again"), (A, "<think>short</think>Done")),
    say(*[((U, A)[i % 2], f"message {i}") for i in range(20)]),
    {"messages": [{"role": U, "content": "Think"}, {"role": A, "content": "Answer", "reasoning_content": "deep\nthought"},
                  {"role": U, "content": "Again"}, {"role": A, "content": "Done", "reasoning_content": "more"}]},
    {"messages": [{"role": U, "content": "Think"}, {"role": A, "content": "Done", "thinking": "more"}]},
    {"messages": [{"role": S, "content": "Use tools."}, {"role": U, "content": "Weather?"},
                  {"role": A, "content": "", "tool_calls": [call("abcdefghi", "get_weather", {"city": "Zürich", "days": 2})]},
                  {"role": T, "name": "get_weather", "tool_call_id": "abcdefghi", "content": "rain"}, {"role": A, "content": "It rains."},
                  {"role": U, "content": "Thanks"}, {"role": A, "content": "Welcome"}], "tools": TOOLS},
    {"messages": [{"role": U, "content": "Weather?"},
                  {"role": A, "content": "I call", "tool_calls": [call("abcdefghi", "get_weather", {"city": 'a "b"', "days": 1}),
                                                                  call("bcdefghij", "noop", {})]},
                  {"role": T, "name": "get_weather", "tool_call_id": "abcdefghi", "content": "rain"},
                  {"role": T, "name": "noop", "tool_call_id": "bcdefghij", "content": '{"x": 1}'}, {"role": A, "content": "It rains."}],
     "tools": TOOLS},
    dict(say((U, "Hi"), (A, "Hello")), tools=TOOLS),
]
# What programs of our own write, with these variables.
VARIABLES = {"messages": CONVERSATIONS[1]["messages"], "tools": TOOLS, "s": "  a b,c  ", "n": 7, "x": 2.5, "l": [3, 1, 2], "e": [], "t": True, "z": None,
             "d": {"b": 1, "a": [1, "x", None], "items": 2}, "u": "ÄÖ é 專 😀", "add_generation_prompt": True}
EXPRESSIONS = """1 + 2 * 3 - 4 / 2; 7 // 2; -7 // 2; -7 % 3; 2 ** 10; 2 ** -1; 1e3; 1.0; 0.1 + 0.2; 1e16; 1e-5; 123456789.125; 5 / 2; n % 4; x * 2; -x; +n;
'a' ~ 1 ~ none; 'a' + 'b' * 3; [1] + [2, 3]; (1, 2) + (3,); [0] * 3; 'x' 'y'; "it's"; 'say "x"'; '\\n\\t\\x41\\u00e9\\q'; 1_000;
1 < 2 < 3; 1 < 2 > 3; 'a' < 'b'; 1 == 1.0; true == 1; 'a' in 'cat'; 'x' not in 'cat'; 1 in l; 'b' in d; 5 in e; z is none; z == none;
not t; not e and t; e or 'otherwise'; t and n; 'yes' if t else 'no'; 'yes' if e; ('yes' if e) is defined; missing; missing.x; missing == none; missing is defined;
missing | default('d'); '' | default('d'); '' | default('d', true); missing or 'x'; missing + 'a'; 'a' + missing; 'a' ~ missing; missing | length; missing | list; missing in l;
l[0]; l[-1]; l[5]; l[5] is defined; l[5].x; l[1:]; l[:-1]; l[::-1]; l[::2]; l[-2:5]; u[0]; u[-1]; u[1:4]; u[::-1]; s[100:]; 'abc'[-2]; d['b']; d.b; d['nope']; d.nope is defined;
d.a[1]; messages[0].role; messages[0]['content'][:5]; messages[-1].content | upper; messages | length; u | length; messages[0] | length;
s.strip(); s.lstrip() ~ '|'; '|' ~ s.rstrip(); 'xxaxx'.strip('x'); 'a,b,c'.split(','); 'a,b,c'.split(',', 1); 'a,b,c'.rsplit(',', 1); ' a  b '.split(); 'a\\nb\\r\\nc'.splitlines(); 'abc'.startswith('ab');
'abc'.startswith(('x', 'a')); 'abc'.endswith('bc'); 'banana'.replace('a', 'o'); 'banana'.replace('a', 'o', 2); 'abc'.replace('', '-'); 'aBc'.upper() ~ 'aBc'.lower(); 'hello world'.title(); 'hELLO'.capitalize();
'hello'.find('l'); 'hello'.rfind('l'); 'hello'.find('z'); 'hello'.index('z'); 'hello'.count('l'); ','.join(['a', 'b']); ','.join([1]); '%s is %d' % ('n', 3); '%s' % 'a'; '{} {x}'.format(1, x=2); '12'.isdigit(); ''.isdigit(); 'a1'.isalnum(); ' '.isspace();
'a-b-c'.partition('-'); 'a-b-c'.rpartition('-'); 'prefix.x'.removeprefix('prefix'); 'x.txt'.removesuffix('.txt'); '7'.zfill(3); 'a'.ljust(3) ~ '|'; 'a'.rjust(3);
d.get('b'); d.get('q'); d.get('q', 5); d.keys() | list; d.values() | list; d | items | list; d | dictsort; d.update({}); l.append(1); l.index(1); l.count(2); e.pop();
s | trim; 'a b' | title; 'abc' | first; l | last; e | first; l | join('-'); messages | map(attribute='role') | join(','); l | map('string') | list; ['a', 'B'] | map('upper') | join; l | sort; l | sort(reverse=true); ['b', 'A', 'c'] | sort;
['b', 'A', 'a'] | unique | list; messages | selectattr('role', 'equalto', 'user') | list | length; messages | rejectattr('role', 'eq', 'user') | map(attribute='content') | list; l | select('gt', 1) | list; l | reject('odd') | list; [0, 1, ''] | select | list;
l | max; l | min; l | sum; e | sum; l | reverse | list; 'abc' | reverse; '12' | int; 'x' | int; 'x' | int(3); 3.9 | int; '1.5' | float; 2.567 | round(2); 2.5 | round; -3 | abs; 'a\\nb' | indent; 'a\\nb' | indent(2, true); 'a' | string; '<a>' | safe; 'a' | length;
d | tojson; d | tojson(indent=2); u | tojson; u | tojson(ensure_ascii=true); {'a': 1.0, 'b': [true, none], 'c': '"\\\\\\n'} | tojson; {'b': 1, 'a': 2} | tojson(sort_keys=true); [] | tojson(indent=2); tools[0].function.parameters | tojson(separators=(',', ':')); missing | tojson; l | string; d | string;
{'a': 1}; {'a': "it's"}; [1, 'a', none, true, 1.5]; (1,); (); u; [u]; ['\\n']; 1 is integer; 1.5 is float; t is boolean; t is number; 'a' is string; d is mapping; l is sequence; l is iterable; 'a' is iterable; z is iterable; d is sequence;
4 is even; 4 is odd; 6 is divisibleby 3; 'a' is in 'abc'; n is eq 7; n is ge(7); 'ab' is lower; 'AB' is upper; missing is undefined; t is true; t is false; none is none; n is not none; n is sameas 7; range(3) | list; range(2, 10, 3) | list; range(3, 0, -1) | list;
dict(a=1); namespace(a=1).a; strftime_now('%d %b %Y'); raise_exception('no'); 'a' if 1 if 0 else 2; (1, 2)[0]; {'a': {'b': 5}}.a.b; -2 ** 2; not 1 == 2; 1 + 1 ~ 2 * 3; l | length > 2; 'A' | lower == 'a'; l[0] + l | length; z.x; z.x is defined; z['x']; 'abc'.nope; 'abc'.nope is defined;
n.x; ''.join('abc'); s is defined and s; 10 ** 30; 'a' * -1; 'abc' > 1; [1, 2] < [1, 3]; l == [3, 1, 2]; (1, 2) == [1, 2]; {'a': 1} == {'a': 1.0}; 'a' 'b' | upper; foo(); 1(); 'a' is nope; l | nope""".split(";")
BLOCKS = [
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.cycle('a', 'b') }} {% endfor %}",
    "{% for m in messages %}{{ loop.previtem.role if not loop.first }}>{{ m.role }}>{{ loop.nextitem.role if loop.nextitem is defined }};{% else %}none{% endfor %}",
    "{% for i in e %}x{% else %}none{% endfor %}{% for i in l if i > 1 %}{{ loop.index }}:{{ i }} {% endfor %}{% for a, b in d.items() %}{{ a }}={{ b }};{% endfor %}{% for a in d %}{{ a }}{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% endfor %}{% for c in 'aé' %}[{{ c }}]{% endfor %}{% for i in missing %}x{% endfor %}{% for i in 5 %}{% endfor %}",
    "{% set a = 1 %}{% for i in l %}{% set a = a + i %}{{ a }} {% endfor %}{{ a }}{% set ns = namespace(a=1) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %} {{ ns.a }}{% if t %}{% set a = 9 %}{% endif %}{{ a }}",
    "{% set a, b = 1, 'x' %}{{ a }}{{ b }}{% set c %} text {{ a }} {% endset %}[{{ c }}]{% set c | trim | upper %} t {% endset %}[{{ c }}]{% set q.x = 1 %}",
    "{% macro f(a, b='B', c=a) %}({{ a }}{{ b }}{{ c }}){% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(b=3, a=4) }}{{ f() }}{{ f('x') | length }}",
    "{% macro f(a) %}{% if a > 0 %}{{ a }}{{ f(a - 1) }}{% endif %}{% endmacro %}{{ f(3) }}{% macro g() %}<{{ caller(1) }}>{% endmacro %}{% call(v) g() %}c{{ v }}{{ n }}{% endcall %}{{ f(1, 2) }}", "{% macro f(a, b, c, d=4) %}{{ a }}{{ b }}{{ c }}{{ d }}{% endmacro %}{{ f(*l) }}{{ f(*l, d=5) }}",
    "{% macro f() %}{{ n }}{{ late }}{% endmacro %}{% set late = 'L' %}{{ f() }}{% set n = 1 %}{{ f() }}{% for i in [1] %}{% set n = 2 %}{{ f() }}{% endfor %}{{ f(*l) }}",
    "{% filter upper %}a{{ n }}b{% endfilter %}{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}{% raw %}{{ x }} {% y %}{% endraw %}{# comment {{ #}end",
    "  {% if t %}\n  a\n  {% endif %}\n  {{ n }}  \n  {#- c -#}  \n  b {%- if t %} c {% endif -%}  d\n\n{%- set x = 1 %}\n  e\n{{- x -}}\n  f\n",
    "a\n  {%+ if t %}\n b {% endif +%}\n c\r\nd\re\n\n",
    "{% if e %}1{% elif n == 7 %}2{% else %}3{% endif %}{% if not t %}{% elif missing %}4{% else %}5{% endif %}{{ {'a': {'b': 1}}['a'] }}{{ '}}' }}{{ \"%}\" }}",
    "{% for m in messages %}{{ '<' + m.role + '>' + m['content'] | trim + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}",
    "{% macro show(v, depth=0) %}{% if v is mapping %}{ {% for k, x in v.items() %}{{ k }}: {{ show(x, depth + 1) }} {% endfor %}}{% elif v is iterable and v is not string %}[{% for x in v %}{{ show(x) }},{% endfor %}]{% else %}{{ v }}{% endif %}{% endmacro %}{{ show(tools) }}",
    "{% generation %}a{{ n }}{% endgeneration %}{% for i in range(3) %}{% set a = loop %}{{ a.index }}{% endfor %}{% set f = 'x'.upper %}{{ f() }}",
    "{% if t %}", "{% endif %}", "{{ 1 + }}", "{{ 'a }}", "{% for %}{% endfor %}", "{% nope %}", "{{ (1 }}", "{# x", "{{ }}", "{% set 1 = 2 %}", "{{ a b }}", "{% include 'x' %}", "{% break %}", "{{ x | }}",
]


def programs(env):
    for program in ["{{ " + x.strip() + " }}" for x in EXPRESSIONS] + BLOCKS:
        try:
            yield [program, env(program).render(**VARIABLES)]
        except Exception:
            yield [program, None]


TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def texts(program):
    for talk in CONVERSATIONS:
        for prompt in (False, True):
            messages = talk["messages"][:-1] if prompt else talk["messages"]
            try:
                yield digest(program.render(**TOKENS, messages=messages, tools=talk.get("tools"), documents=None, add_generation_prompt=prompt))[:8]
            except Exception:
                yield None


def one(path):
    with open(path, encoding="utf-8", newline="") as f:
        text = f.read()
    try:
        return {"sha256": digest(text), "texts": list(texts(utils._compile_jinja_template(text)))}
    except Exception:
        return {"sha256": digest(text), "texts": []}


if __name__ == "__main__":
    utils.datetime = Frozen
    rows = {row["sha256"]: row for row in (one(path) for path in glob.glob(os.path.join(sys.argv[1], "*.jinja")))}
    with open("templates.json", "w", encoding="utf-8") as f:
        f.write('{"variables": %s,\n"programs": [\n' % json.dumps(VARIABLES, ensure_ascii=False))
        f.write(",\n".join(json.dumps(p, ensure_ascii=False) for p in programs(utils._compile_jinja_template)))
        f.write('\n],\n"tokens": %s,\n"conversations": [\n' % json.dumps(TOKENS))
        f.write(",\n".join(json.dumps(c, ensure_ascii=False) for c in CONVERSATIONS))
        f.write('\n],\n"templates": [\n' + ",\n".join(json.dumps(rows[key]) for key in sorted(rows)) + "\n]}\n")
    print("templates.json:", len(rows), "templates")
