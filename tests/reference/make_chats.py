"""Writes tests/reference/chats.json: conversations as Transformers writes and encodes them, for every chat template of llmc/data/chat.c.

    python make_chats.py [FOLDER...]        (in this folder; needs the packages `transformers` and `jinja2`)

{"templates": [{"name", "tokenizer", "added", "config", "cases": [{"messages", "prompt", "text", "ids", "counts"}]}]}. tokenizer: of
tokenizers/; added: its further added tokens, elements of that list; config: its tokenizer_config.json. counts: 1 for tokens of the
assistant's answers. A FOLDER is that of a published model, whose own template and tokenizer are to be compared: what it gives is
written to chats.json in that folder, in the same form.

templates/NAME.jinja are short programs that write what the published ones write for messages of text. In them G and E stand for
{% generation %} and {% endgeneration %} around answers."""
import json
import os
import re
import sys
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

# name: tokenizer, its tokens: all, bos, eos
IM = ["<|im_start|>", "<|im_end|>"]
HEADERS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
IBM = ["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"]
ANSWER = [("{{ '<|assistant|>\\n'  + message['content'] + eos_token", "{{ '<|assistant|>\\n' }}G{{ message['content'] + eos_token }}E{{ ''")]
SOURCES = {
    "chatml": ("qwen2", IM, None, "<|im_end|>"),
    "qwen1.5": ("qwen2", IM, None, "<|im_end|>"),
    "qwen2": ("qwen2", IM, None, "<|im_end|>"),
    "qwen2.5": ("qwen2", IM, None, "<|im_end|>"),
    "qwen3": ("qwen2", IM + ["<think>", "</think>"], None, "<|im_end|>"),
    "qwen3-instruct": ("qwen2", IM, None, "<|im_end|>"),
    "llama3": ("llama3", HEADERS, "<|begin_of_text|>", "<|eot_id|>"),
    "llama3.1": ("llama3", HEADERS, "<|begin_of_text|>", "<|eot_id|>"),
    "olmoe": ("neox", [], "<|endoftext|>", "<|endoftext|>"),
    "olmo": ("neox", [], "<|endoftext|>", "<|endoftext|>"),
    "zephyr": ("llama2", [], "<s>", "</s>"),
    "granite": ("starcoder", IBM, "<|end_of_text|>", "<|end_of_text|>"),
    "granite3.1": ("starcoder", IBM, "<|end_of_text|>", "<|end_of_text|>"),
    "mixtral": ("llama2", [], "<s>", "</s>"),
    "mistral": ("llama2_v5", [], "<s>", "</s>"),
    "llama2": ("llama2_v5", [], "<s>", "</s>"),
    "dots1": ("qwen2", ["<|system|>", "<|endofsystem|>", "<|userprompt|>", "<|endofuserprompt|>", "<|response|>", "<|endofresponse|>"], None, "<|endofresponse|>"),
    "glm4.5": ("qwen2", ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<think>", "</think>"], None, "<|endoftext|>"),
    "ernie4.5": ("llama2_v5", ["<|begin_of_sentence|>", "<|end_of_sentence|>"], "<s>", "</s>"),
    "deepseek-v2": ("gpt2", ["<|begin|>", "<|end|>"], "<|begin|>", "<|end|>"),
    "moonlight": ("gpt2", ["<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"], None, "<|im_end|>"),
    "harmony": ("o200k", ["<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>"], None, "<|return|>"),
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
    tokenizer, tokens, bos, eos = SOURCES[name]
    with open(f"templates/{name}.jinja", encoding="utf-8", newline="") as f:
        program = f.read()
    marked = program
    for a, b in ANSWER if name in ("olmoe", "olmo", "zephyr") else []:
        marked = marked.replace(a, b)
    if name == "ernie4.5":
        marked = marked.replace('{{- "Assistant: " + message["content"] + sep_token -}}', '{{- "Assistant: " -}}G{{- message["content"] + sep_token -}}E')
    if name == "deepseek-v2":
        marked = marked.replace("{{ 'Assistant: ' + message['content'] + eos_token }}", "{{ 'Assistant:' }}G{{ ' ' + message['content'] + eos_token }}E")
    if name == "harmony":
        for end in ("return", "end"):
            marked = marked.replace('|>" + message.content + "<|%s|>" }}' % end, '|>" }}G{{- message.content + "<|%s|>" }}E' % end)
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
