"""Writes tests/reference/chats.json: conversations as Transformers writes and encodes them, for every chat template of llmc/data/chat.c.

    python make_chats.py [FOLDER...]        (in this folder; needs the packages `transformers` and `jinja2`)

{"templates": [{"name", "tokenizer", "added", "config", "cases": [{"messages", "prompt", "text", "ids", "counts"}]}]}. tokenizer: of
tokenizers/; added: its further added tokens, elements of that list; config: its tokenizer_config.json. counts: 1 for tokens of the
assistant's answers. A FOLDER is that of a published model, whose own template and tokenizer are to be compared: what it gives is
written to chats.json in that folder, in the same form.

The templates here are short programs that write what the published ones write for messages of text: SOURCES has one for each, and
MARKS the same with {% generation %} around answers."""
import json
import os
import re
import sys
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

CHATML = ("{% for message in messages %}DEFAULT{{ '<|im_start|>' + message['role'] + '\\n' }}G{{ message['content'] + '<|im_end|>' }}E{{ '\\n' }}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
SYSTEM = ("{%% if loop.first and messages[0]['role'] != 'system' %%}{{ '<|im_start|>system\\n%s<|im_end|>\\n' }}{%% endif %%}")
TOOL = """
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}"""
QWEN25 = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>assistant\\n' }}G{{- message.content + '<|im_end|>' }}E{{- '\\n' }}""" + TOOL + """
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
QWEN3_INSTRUCT = QWEN25.replace("""{%- else %}
    {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
""", "")
QWEN3 = QWEN3_INSTRUCT.replace("""{%- for message in messages %}
    {%- if""", """{%- set ns = namespace(searching=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if""", 1).replace("""G{{- message.content + '<|im_end|>' }}E""", """
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- set thinks = loop.index0 > ns.last_query_index and (loop.last or thought) %}G
        {%- if thinks %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {{- '<|im_end|>' }}E""")
LLAMA3 = ("{% for message in messages %}{{ (bos_token if loop.first else '') + '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
          "{% if message['role'] == 'assistant' %}G{{ message['content'] | trim + '<|eot_id|>' }}E{% else %}{{ message['content'] | trim + '<|eot_id|>' }}"
          "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}")
LLAMA31 = """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'}}{%- if message['role'] == 'assistant' %}G{{- message['content'] | trim + '<|eot_id|>' }}E
    {%- else %}{{- message['content'] | trim + '<|eot_id|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
OLMOE = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\\n' + message['content'] + '\\n' }}"
         "{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '\\n' }}{% elif message['role'] == 'assistant' %}"
         "{% if not loop.last %}{{ '<|assistant|>\\n'  + message['content'] + eos_token + '\\n' }}{% else %}{{ '<|assistant|>\\n'  + message['content'] + eos_token }}"
         "{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}")
LINES = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content']EOS }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content']EOS }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
GRANITE = """{%- for message in messages %}
    {%- if message['role'] == 'system' %}
    {{- '<|start_of_role|>system<|end_of_role|>' + message['content'] + '<|end_of_text|>
' }}
    {%- elif message['role'] == 'user' %}
    {{- '<|start_of_role|>user<|end_of_role|>' + message['content'] + '<|end_of_text|>
' }}
    {%- elif message['role'] == 'assistant' %}
    {{- '<|start_of_role|>assistant<|end_of_role|>' }}G{{- message['content'] + '<|end_of_text|>' }}E{{- '
' }}
    {%- endif %}
    {%- if loop.last and add_generation_prompt %}
    {{- '<|start_of_role|>assistant<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}"""
GRANITE31 = """{%- if messages[0]['role'] == 'system' %}
     {%- set system_message = messages[0]['content'] %}
     {%- set loop_messages = messages[1:] %}
 {%- else %}
     {%- set system_message = "Knowledge Cutoff Date: April 2024.
Today's Date: " + date + ".
You are Granite, developed by IBM." %}
     {%- set system_message = system_message + " You are a helpful AI assistant." %}
     {%- set loop_messages = messages %}
 {%- endif %}
 {{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>
' }}
 {%- for message in loop_messages %}
     {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' }}{%- if message['role'] == 'assistant' %}G{{- message['content'] + '<|end_of_text|>' }}E{%- else %}{{- message['content'] + '<|end_of_text|>' }}{%- endif %}{{- '
' }}
     {%- if loop.last and add_generation_prompt %}
 {{- '<|start_of_role|>assistant<|end_of_role|>' }}
     {%- endif %}
 {%- endfor %}"""
MIXTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- " [INST] " + system_message + "\\n\\n" + message["content"] + " [/INST]" }}
        {%- else %}
            {{- " [INST] " + message["content"] + " [/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] + eos_token}}
    {%- endif %}
{%- endfor %}
"""
MISTRAL = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
           "{% elif message['role'] == 'assistant' %}G{{ message['content'] + eos_token}}E{% endif %}{% endfor %}")
LLAMA2 = ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}"
          "{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
          "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
          "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
          "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")
DOTS = ("{% if messages[0]['role'] == 'system' %}<|system|>{{ messages[0]['content'] }}<|endofsystem|>{% set first = 1 %}{% else %}"
        "<|system|>You are a helpful assistant.<|endofsystem|>{% set first = 0 %}{% endif %}{% for i in range(first, messages|length) %}"
        "{% if messages[i]['role'] == 'user' %}<|userprompt|>{{ messages[i]['content'] }}<|endofuserprompt|>{% elif messages[i]['role'] == 'assistant' %}"
        "<|response|>G{{ messages[i]['content'] }}<|endofresponse|>E{% endif %}{% endfor %}{% if add_generation_prompt %}<|response|>{% endif %}")
GLM = """[gMASK]<sop>
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'system' %}{{- '<|system|>\\n' + m.content }}
    {%- elif m.role == 'user' %}{{- '<|user|>\\n' + m.content }}{{- '/nothink' if enable_thinking is defined and not enable_thinking else '' }}
    {%- elif m.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
    {%- elif m.role == 'assistant' %}
        {%- set said = m.content.split('</think>')[-1].lstrip('\\n') %}
        {%- set thought = m.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n').strip() if '</think>' in m.content else '' %}
        {{- '<|assistant|>' }}G
        {%- if loop.index0 > ns.last and thought %}{{- '\\n<think>' + thought + '</think>' }}{%- else %}{{- '\\n<think></think>' }}{%- endif %}
        {%- if said.strip() %}{{- '\\n' + said.strip() }}{%- endif %}E
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""
ERNIE = """{%- if not cls_token is defined -%}
    {%- set cls_token = "<|begin_of_sentence|>" -%}
{%- endif -%}
{%- if not sep_token is defined -%}
    {%- set sep_token = "<|end_of_sentence|>" -%}
{%- endif -%}
{{- cls_token -}}
{%- for message in messages -%}
    {%- if message["role"] == "user" -%}
        {{- "User: " + message["content"] + "\\n" -}}
    {%- elif message["role"] == "assistant" -%}
        {{- "Assistant: " + message["content"] + sep_token -}}
    {%- elif message["role"] == "system" -%}
        {{- message["content"] + "\\n" -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "Assistant: " -}}
{%- endif -%}"""

HARMONY = """{{- '<|start|>system<|message|>' }}{{- 'You are ChatGPT, a large language model trained by OpenAI.\\n' }}
{{- 'Knowledge cutoff: 2024-06\\n' }}{{- 'Current date: ' + date + '\\n\\n' }}{{- 'Reasoning: medium\\n\\n' }}
{{- '# Valid channels: analysis, commentary, final. Channel must be included for every message.' }}{{- '<|end|>' }}
{%- if messages[0].role == 'system' %}{%- set instructions = messages[0].content %}{%- set rest = messages[1:] %}
{%- else %}{%- set instructions = '' %}{%- set rest = messages %}{%- endif %}
{%- if instructions %}{{- '<|start|>developer<|message|>' }}{{- '# Instructions\\n\\n' }}{{- instructions + '\\n\\n<|end|>' }}{%- endif %}
{%- for message in rest %}
    {%- if message.role == 'user' %}{{- '<|start|>user<|message|>' + message.content + '<|end|>' }}
    {%- elif loop.last and not add_generation_prompt %}{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
    {%- else %}{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant<|channel|>final<|message|>' }}{%- endif %}"""

DEEPSEEK = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\\n\\n' }}
{%- elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}
{%- elif message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}
{%- endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""
MOONLIGHT = """{%- for message in messages -%}
    {%- if loop.first and message['role'] != 'system' -%}
        <|im_system|>system<|im_middle|>You are a helpful assistant provided by Moonshot-AI.<|im_end|>
    {%- endif -%}
    {%- if message['role'] == 'assistant' -%}
        <|im_assistant|>assistant<|im_middle|>G{{- message['content'] + '<|im_end|>' }}E
    {%- else -%}
        {{- '<|im_' + message['role'] + '|>' + message['role'] + '<|im_middle|>' + message['content'] + '<|im_end|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}"""
# name: program, what in it becomes the same with {% generation %}, tokenizer, its tokens: all, bos, eos
IM = ["<|im_start|>", "<|im_end|>"]
ROLES = ["<|system|>", "<|user|>", "<|assistant|>"]
HEADERS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
IBM = ["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"]
ANSWER = [("{{ '<|assistant|>\\n'  + message['content'] + eos_token", "{{ '<|assistant|>\\n' }}G{{ message['content'] + eos_token }}E{{ ''")]
SOURCES = {
    "chatml": (CHATML.replace("DEFAULT", ""), "qwen2", IM, None, "<|im_end|>"),
    "qwen1.5": (CHATML.replace("DEFAULT", SYSTEM % "You are a helpful assistant"), "qwen2", IM, None, "<|im_end|>"),
    "qwen2": (CHATML.replace("DEFAULT", SYSTEM % "You are a helpful assistant."), "qwen2", IM, None, "<|im_end|>"),
    "qwen2.5": (QWEN25, "qwen2", IM, None, "<|im_end|>"),
    "qwen3": (QWEN3, "qwen2", IM + ["<think>", "</think>"], None, "<|im_end|>"),
    "qwen3-instruct": (QWEN3_INSTRUCT, "qwen2", IM, None, "<|im_end|>"),
    "llama3": (LLAMA3, "llama3", HEADERS, "<|begin_of_text|>", "<|eot_id|>"),
    "llama3.1": (LLAMA31, "llama3", HEADERS, "<|begin_of_text|>", "<|eot_id|>"),
    "olmoe": (OLMOE, "neox", [], "<|endoftext|>", "<|endoftext|>"),
    "olmo": ("{{ bos_token }}" + LINES.replace("EOS", ""), "neox", [], "<|endoftext|>", "<|endoftext|>"),
    "zephyr": (LINES.replace("EOS", " + eos_token"), "llama2", [], "<s>", "</s>"),
    "granite": (GRANITE, "starcoder", IBM, "<|end_of_text|>", "<|end_of_text|>"),
    "granite3.1": (GRANITE31, "starcoder", IBM, "<|end_of_text|>", "<|end_of_text|>"),
    "mixtral": (MIXTRAL, "llama2", [], "<s>", "</s>"),
    "mistral": (MISTRAL, "llama2_v5", [], "<s>", "</s>"),
    "llama2": (LLAMA2, "llama2_v5", [], "<s>", "</s>"),
    "dots1": (DOTS, "qwen2", ["<|system|>", "<|endofsystem|>", "<|userprompt|>", "<|endofuserprompt|>", "<|response|>", "<|endofresponse|>"], None, "<|endofresponse|>"),
    "glm4.5": (GLM, "qwen2", ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<think>", "</think>"], None, "<|endoftext|>"),
    "ernie4.5": (ERNIE, "llama2_v5", ["<|begin_of_sentence|>", "<|end_of_sentence|>"], "<s>", "</s>"),
    "deepseek-v2": (DEEPSEEK, "gpt2", ["<|begin|>", "<|end|>"], "<|begin|>", "<|end|>"),
    "moonlight": (MOONLIGHT, "gpt2", ["<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"], None, "<|im_end|>"),
    "harmony": (HARMONY, "o200k", ["<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>"], None, "<|return|>"),
}
NEXT_ENDS = {"glm4.5": "<|user|>"}          # the mark of the next role ends an answer; after the last one training writes the user's
NO_SYSTEM = {"mistral"}
TOOLS = {"qwen2.5", "qwen3", "qwen3-instruct", "glm4.5"}

U, A, S, T = "user", "assistant", "system", "tool"
CASES = [
    [(U, "Hello"), (A, "Hi there")],
    [(S, "You answer in one word."), (U, "What is 2 + 2?"), (A, "Four"), (U, "And 3 + 3?"), (A, "Six.")],
    [(U, "  two spaces, and a line end\n"), (A, "\n\nit's so  \n")],
    [(U, "Größte 専門家 😀"), (A, "ça coûte peu\n\nрусский"), (U, "again"), (A, "don't"), (U, "once more"), (A, "yes")],
    [(S, ""), (U, ""), (A, "")],
    [(U, "A special token: <|im_end|> </s> <|eot_id|>"), (A, "<|endoftext|> is text here, too")],
    [(S, " the system speaks \n"), (U, "{{ braces }} {% raw %} 'quotes' \"double\" \\n"), (A, "a\tb")],
    [(U, "Think"), (A, "<think>\nlong\nthought\n</think>\n\nAnswer"), (U, "Again"), (A, "<think>short</think>Done")],
    [(U, "Think"), (A, "first\n"), (U, "Again"), (A, "\n<think>\n\n</think>\n\nnot much")],
]
WITH_TOOLS = [
    [(U, "Weather?"), (A, "calling"), (T, "rain"), (T, "10 degrees"), (A, "It rains."), (U, "Thanks"), (A, "Welcome")],
    [(U, "Weather?"), (A, "<think>\nI call\n</think>\n\ncalling"), (T, "rain"), (A, "<think>so</think>It rains.")],
]


def settings(name, added, bos, eos, jinja):
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "chat_template": jinja}
    if bos:
        config["bos_token"] = bos if len(name) % 2 else {"content": bos, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return config


def rows(tokenizer, messages, marked, end=None, **more):
    for prompt in (0, 1):
        plain = messages if not prompt or messages[-1]["role"] != A else messages[:-1]
        text = tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=bool(prompt), **more)
        ids = tokenizer.apply_chat_template(plain, tokenize=True, add_generation_prompt=bool(prompt), return_dict=False, **more)
        counts = None
        if marked and not prompt:
            d = tokenizer.apply_chat_template(plain, chat_template=marked, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, **more)
            same = tokenizer.apply_chat_template(plain, chat_template=marked, tokenize=False, **more)
            assert same == text, (marked, same, text)
            counts = d["assistant_masks"]
        if end is not None and not prompt:
            marks = tokenizer.convert_tokens_to_ids(["<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"])
            for i in range(1, len(ids)):        # up to the mark; Transformers leaves out the last bytes of a character
                counts[i] |= counts[i - 1] and ids[i - 1] not in marks
            ids, counts = ids + [end], counts + [1]
        yield {"messages": plain, "prompt": prompt, "text": text, "ids": ids, "counts": counts}


def made(name):
    program, tokenizer, tokens, bos, eos = SOURCES[name]
    marked = program
    for a, b in ANSWER if name in ("olmoe", "olmo", "zephyr") else []:
        marked = marked.replace(a, b)
    if name == "mixtral":
        marked = marked.replace('{{- " " + message["content"] + eos_token}}', 'G{{- " " + message["content"] + eos_token}}E')
    if name == "ernie4.5":
        marked = marked.replace('{{- "Assistant: " + message["content"] + sep_token -}}', '{{- "Assistant: " -}}G{{- message["content"] + sep_token -}}E')
    if name == "deepseek-v2":
        marked = marked.replace("{{ 'Assistant: ' + message['content'] + eos_token }}", "{{ 'Assistant:' }}G{{ ' ' + message['content'] + eos_token }}E")
    if name == "harmony":
        for end in ("return", "end"):
            marked = marked.replace('|>" + message.content + "<|%s|>" }}' % end, '|>" }}G{{- message.content + "<|%s|>" }}E' % end)
    if name == "llama2":
        marked = marked.replace("{{ ' '  + content.strip() + ' ' + eos_token }}", "G{{ ' '  + content.strip() + ' ' + eos_token }}E")
    if name in ("chatml", "qwen1.5", "qwen2"):          # these write all roles in one place
        marked = marked.replace("G{{", "{% if message['role'] == 'assistant' %}G{{").replace("}}E", "}}E{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}")
    # tags at the ends of lines take the line end with them, so text that follows one is put into a string
    dash = "-" if name.startswith(("qwen2.5", "qwen3", "llama3.1", "granite", "mixtral", "glm", "ernie", "moonlight", "harmony")) else ""
    marked = re.sub(r"G(?=\{\{|\n)", "{%" + dash + " generation %}", marked)
    marked = re.sub(r"(?<=[}>])E", "{%" + dash + " endgeneration %}", marked)
    plain = re.sub(r"(?<=[}>])E", "", re.sub(r"G(?=\{\{|\n)", "", program))
    with open("tokenizers/%s.json" % tokenizer, encoding="utf-8") as f:
        t = Tokenizer.from_str(f.read())
    size, added = t.get_vocab_size(), []
    for token in tokens:
        if t.token_to_id(token) is None:
            added.append({"id": size + len(added), "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": not token.endswith("think>")})
            t.add_tokens([AddedToken(token, normalized=False, special=added[-1]["special"])])
    fast = PreTrainedTokenizerFast(tokenizer_object=t, bos_token=bos, eos_token=eos, chat_template=plain)
    dates = {"granite3.1": ("July 26, 2024", "%B %d, %Y"), "harmony": ("2024-07-26", "%Y-%m-%d")}
    more = {"date": dates[name][0]} if name in dates else {}
    cases = []
    for case in CASES + (WITH_TOOLS if name in TOOLS else []):
        messages = [{"role": r, "content": c} for r, c in case]
        if name in NO_SYSTEM and messages[0]["role"] == S:
            continue
        cases += list(rows(fast, messages, marked, fast.convert_tokens_to_ids(NEXT_ENDS[name]) if name in NEXT_ENDS else None, **more))
    if name in dates:
        plain = plain.replace("+ date +", "+ strftime_now('%s') +" % dates[name][1])
    return {"name": name, "tokenizer": tokenizer, "added": json.dumps(added, ensure_ascii=False)[1:-1], "config": settings(name, added, bos, eos, plain), "cases": cases}


def published(folder):
    from transformers import AutoTokenizer
    t = AutoTokenizer.from_pretrained(folder)
    for case in CASES:
        for row in rows(t, [{"role": r, "content": c} for r, c in case], None):
            yield row


def write(path, templates):
    def text(row):
        return json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    with open(path, "w", encoding="utf-8") as f:
        f.write('{"templates":[\n')
        f.write(",\n".join(text({k: v for k, v in t.items() if k != "cases"})[:-1] + ',"cases":[\n' + ",\n".join(map(text, t["cases"])) + "\n]}" for t in templates))
        f.write("\n]}\n")
    print(path, os.path.getsize(path))


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        write(os.path.join(folder, "chats.json"), [{"name": os.path.basename(folder), "cases": list(published(folder))}])
    if len(sys.argv) == 1:
        write("chats.json", [made(name) for name in SOURCES])
