"""Writes tests/reference/tokenizers/: small tokenizers that Hugging Face's library trains, and texts that it encodes with them.

    python make_tokenizers.py        (in this folder; needs the package `tokenizers`)

trained_PATTERN.json is the result of the library's trainer on trained.txt (min_frequency 2); llmc/data/bpe.c must give the same.
NAME.json is a tokenizer.json; NAME.cases.json is {"cases": [{"text", "ids", "decoded"}]}, without a beginning-of-text token, and
decoding skips special tokens. "decoded" is null if the library's byte-level decoder would interpret the characters of an added
token as bytes (it turns the token "na\u00ef" into the bytes 6E 61 EF). steps.json: see write_steps."""
import json
import os
import random
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")

GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

TEXT = """The router of a mixture of experts looks at each token and sends it to a few experts, not to all of them. That's why
the model can grow while the work for a token doesn't. We've seen that balance matters: if one expert takes everything, the
others never learn. They'll be idle, and you're paying for them. I'd rather keep the loads within 10% of the mean.

for (int e = 0; e < E; e++) {
    int rows = start[e + 1] - start[e];
    if (rows == 0) continue;            /* nobody came */
    matmul(out + start[e] * F, inp + start[e] * C, weight + e * F * C, rows, F, C);
}

Le routeur choisit les experts ; ça coûte peu. Der Größte zuerst, dann die Übrigen. El año próximo será mejor, señor.
Каждый токен идёт к двум экспертам. Κάθε λέξη πηγαίνει σε δύο ειδικούς. 混合专家模型把每个词交给少数专家。専門家は少ししか働かない。
모든 단어는 두 전문가에게 간다. 😀 👍🏽 🎉 12345 67 8 9.5 1,000,000 3.14159e-10 ½ ² Ⅷ ٣٤ 
\tif x:\n\t\treturn y\r\n\r\n   indented by three\n        indented by eight\n
"""

CASES = ["", " ", "a", "Hello world", " Hello  world  ", "the experts don't know, we've they'll I'd you're it's I'm", "DON'T WE'VE THEY'LL I'D",
         "'s's 'S ''s x's' 'ſ 'ſx", "tokens: 1234567 12 3 and 1,000.50", "½²Ⅷ٣٤ 2² x²", "  two\n   three\n\n\nfour \n \n five\t\tsix\r\nseven \r\n",
         "    int rows = 0;\n        if (rows == 0) continue;\n", "café naïve Größte", "cafe\u0301 nai\u0308ve A\u030A o\u0323\u0307 o\u0307\u0323",
         "\u1100\u1161\u11A8 \uAC00\u11A8 \u212B \u2126 \u0344 \u0958 \u1E9B\u0323", "混合专家模型", "専門家は少し", "모든 단어", "Каждый токен", "😀👍🏽🎉",
         "👩‍👩‍👧‍👦 family", "\u00A0nbsp\u00A0\u3000wide\u2003em\u180E mvs\u200B zwsp\u0085nel\u2028ls", "\x00\x01\x1c\x1f\x7f control", "<|endoftext|>",
         "one<|endoftext|>two <|endoftext|> three", "<s>a</s> b <unk>", "<|endoftext", "!!!???\n\n...---\r\n", "a!b?c.d,e", " !", "! ", "\n", "\n\n", " \n", "\n ",
         "\t", "  \t  x", "x" * 40, "the " * 12, "a\u0300\u0301\u0302b\u0316\u0300", "<0x41> <0x0A>", "▁under▁line", " ▁ ", "𝒳𐍈 𠀀", "e\u0301" * 5, "don’t “quote”"]


CASED = ["中AB ABc中 e\u0301AB AB\u0301C", "ʰAb AbCd ABC's", "ab/cd !\u0301a .AB a1B", "ÉÀé ǅe ÉÀ!\u0301AB", "//\n/x 中AB's 中ab's"]


def random_cases(count):
    rng = random.Random(7)
    alphabet = ["a", "e", "S", "'", "'s", "'LL", " ", "  ", "\n", "\r", "\t", "1", "23", ".", "-", "é", "e\u0301", "\u0327", "\u0308", "ß", "中", "あ", "😀",
                "\u00A0", "\u3000", "²", "the", "experts", "return", "\u1100", "\u1161", "\u11A8", "▁", "_", "ſ", "<|endoftext|>", "\u200D"]
    return ["".join(rng.choices(alphabet, k=rng.randint(1, 24))) for _ in range(count)]


def train(tokenizer, vocab, special, alphabet):
    tokenizer.train_from_iterator([TEXT] * 3, trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, min_frequency=2,
                                                                 initial_alphabet=alphabet, show_progress=False))


def byte_level(vocab, pre_tokenizer, normalizer=None):
    t = Tokenizer(models.BPE())
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizer
    t.decoder = decoders.ByteLevel()
    train(t, vocab, ["<|endoftext|>"], pre_tokenizers.ByteLevel.alphabet())
    return t


def gpt2():
    return byte_level(450, pre_tokenizers.ByteLevel(add_prefix_space=False))


def split(digits):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(GPT4 % digits), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def qwen2():
    t = byte_level(500, split(r"\p{N}"), normalizers.NFC())
    t.add_special_tokens([AddedToken("<|im_end|>", normalized=False)])
    return t


def neox():         # runs of spaces as ordinary added tokens, matched after normalization
    t = byte_level(400, pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC())
    t.add_tokens([AddedToken(" " * n, normalized=True) for n in range(8, 1, -1)] + [AddedToken("naï", normalized=True)])
    return t


def llama3():
    t = byte_level(450, split(r"\p{N}{1,3}"))
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])])
    return t


def o200k():        # merges are learned across words, so that ids depend on where words end
    words = ["中AB", "ABc中", "e\u0301AB", "AB\u0301C", "ʰAb", "AbCd", "ABC's", "ab/cd", "!\u0301a", ".AB", "a1B", "ÉÀé"]
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([TEXT] * 3 + words * 9, trainers.BpeTrainer(vocab_size=900, special_tokens=["<|endoftext|>"], min_frequency=2, show_progress=False,
                                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(GPT4O), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return t


def starcoder():
    return byte_level(420, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]))


def sentencepiece(legacy):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always", split=True)
    special = ["<unk>", "<s>", "</s>"]
    train(t, 620, special + ["<0x%02X>" % b for b in range(256)], [])
    if legacy:
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        t.pre_tokenizer = None
        t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    else:
        t.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
        t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    d = json.loads(t.to_str())
    d["added_tokens"] = [a for a in d["added_tokens"] if a["content"] in special]
    return d


def old_spelling(d):
    d["model"]["merges"] = [" ".join(pair) for pair in d["model"]["merges"]]
    return d


def ignoring(d):    # some tokens can then only be reached because they are whole words
    d["model"]["ignore_merges"] = True
    del d["model"]["merges"][4::5]
    return d


def as_dict(t):
    return json.loads(t.to_str())


def training_text():    # few syllables: many pairs are equally frequent; runs of one letter: pairs that overlap
    rng = random.Random(11)
    syllables = ["ka", "to", "mi", "aa", "aaa", "ee", "é", "専門", "_x", "1", "23", "4567", "'s", "'ll", "--", "\r\n", "\n\n", "\t", "  ", "<|"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 5))) for _ in range(1500)]
    return TEXT + " ".join(words) + "\n" + "a" * 50 + " " + "ab" * 40 + "\n" + TEXT.upper()


def trained(pre_tokenizer, text):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizer
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([text], trainers.BpeTrainer(vocab_size=900, special_tokens=["<|endoftext|>"], min_frequency=2,
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return as_dict(t)


MADE = {"gpt2": old_spelling(as_dict(gpt2())), "qwen2": as_dict(qwen2()), "neox": as_dict(neox()), "llama3": ignoring(as_dict(llama3())),
        "o200k": as_dict(o200k()), "starcoder": as_dict(starcoder()), "llama2": sentencepiece(True), "llama2_v5": sentencepiece(False)}

os.makedirs("tokenizers", exist_ok=True)
for name, made in MADE.items():
    text = json.dumps(made, ensure_ascii=False, separators=(",", ":"))
    t = Tokenizer.from_str(text)
    cases = []
    for case in CASES + random_cases(60) + (CASED if name == "o200k" else []):
        ids = t.encode(case, add_special_tokens=False).ids
        decoded = None if name == "neox" and t.token_to_id("naï") in ids else t.decode(ids)
        cases.append(json.dumps({"text": case, "ids": ids, "decoded": decoded}, separators=(",", ":")))
    outputs = {name + ".json": text, name + ".cases.json": '{"cases":[\n' + ",\n".join(cases) + "\n]}"}
    for file, content in outputs.items():
        with open(os.path.join("tokenizers", file), "w", encoding="utf-8") as f:
            f.write(content + "\n")
        print(file, os.path.getsize(f.name))

text = training_text()
outputs = {"trained.txt": text}
for name, pre_tokenizer in (("cl100k", split(r"\p{N}{1,3}")), ("gpt2", pre_tokenizers.ByteLevel(add_prefix_space=False))):
    outputs["trained_" + name + ".json"] = json.dumps(trained(pre_tokenizer, text), ensure_ascii=False, separators=(",", ":")) + "\n"
for file, content in outputs.items():
    with open(os.path.join("tokenizers", file), "w", encoding="utf-8", newline="") as f:
        f.write(content)
    print(file, os.path.getsize(f.name))

# ---- steps.json: how text is cut, by what published tokenizers use. Each case replaces parts of o200k.json, whose ids depend on
# where words end; a hash of the ids is kept for each text.
UP, LOW, LED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[^\r\n\p{L}\p{N}]?"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
NO_HAN = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k of tiktoken": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "cl100k, first": ENDING + r"|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "nanochat": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "tekken": LED + UP + "*" + LOW + "+|" + LED + UP + "+" + LOW + r"*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen3.5": ENDING + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "kimi-k2": r"[\p{Han}]+|" + LED + NO_HAN[0] + "*" + NO_HAN[1] + "+" + ENDING + "?|" + LED + NO_HAN[0] + "+" + NO_HAN[1] + "*" + ENDING
               + r"?|\p{N}{1,3}" + TAIL,
    "seed-oss": ENDING + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
    "exaone": ENDING + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    "bloom": " ?[^(\\s|[.,!?…。，、।۔،])]+",
    "clip": r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "digits from the right": r"\p{N}{1,3}(?=(?:\p{N}{3})*\b)",
    "digits from the right, of no length": r"(?=(\d{3})+(?!\d))",
    "behind": r"(?<=\d)\D|(?<!\s)\p{Lu}", "lazy": r"a.*?e|\w{2,4}?", "edges": r"^.|\B.$|\A\s|\S\z|\b\d", "intervals": r"\w{1,3}+|\s{2}?|.{,2}x",
    "classes": r"[]x'-]+|[^\W\d_]{3}|[\x00-\x1f\u4e2d\x{1F600}]|(?i:[k-t]+)", "any": r"(?m:a.b)|x*", "scripts": r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]+|[^\p{Han}]",
}
DEEPSEEK = ["\\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""]


def steps(*parts, **level):
    level = {"add_prefix_space": False, "use_regex": False, **level}
    return pre_tokenizers.Sequence([*parts, pre_tokenizers.ByteLevel(**level)])


def split_at(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(pattern if isinstance(pattern, str) else Regex(pattern[0]), behavior, invert)


def step_cases():
    out = {name: {"pre": steps(split_at([regex]))} for name, regex in PATTERNS.items()}
    out["deepseek-v3"] = {"pre": steps(*[split_at([regex]) for regex in DEEPSEEK])}
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            out[behavior + " inverted" * invert] = {"pre": steps(split_at([r"[aeiou ]|\d{2}"], behavior, invert))}
    out["text"] = {"pre": steps(split_at(" ", "merged_with_previous"), split_at(".", "merged_with_next"))}
    out["digits"] = {"pre": steps(pre_tokenizers.Digits(False), use_regex=True)}
    out["punctuation"] = {"pre": steps(pre_tokenizers.Punctuation("contiguous"))}
    out["whitespace"] = {"pre": steps(pre_tokenizers.Whitespace())}
    out["whitespace split"] = {"pre": steps(pre_tokenizers.WhitespaceSplit())}
    out["prefix space"] = {"pre": pre_tokenizers.ByteLevel(add_prefix_space=True)}
    out["prefix space of pieces"] = {"pre": steps(pre_tokenizers.Digits(True), use_regex=True, add_prefix_space=True)}
    out["normalizers"] = {"normalizer": normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Replace("the", "<s>"),
                                                             normalizers.Prepend("e")])}
    out["strip"] = {"normalizer": normalizers.Strip(True, True)}
    out["NFD"] = {"normalizer": normalizers.NFD()}
    out["added"] = {"added": [AddedToken("<l>", lstrip=True), AddedToken("<r>", rstrip=True), AddedToken("w", single_word=True), AddedToken("\n"),
                              AddedToken("<lr>", lstrip=True, rstrip=True, normalized=True), AddedToken("é", single_word=True, normalized=True)]}
    return out


FLAGS = ["a  <l> b", "a <r>  b", "a w b", "aw b", "w\u200d", "\u200dw", "²w w²", "x<r>\n\n y", "<r> <l>", "ww w", "a\u0085<l>", "w_ Ⓐw ẃ ⅷw", "<r>  <r> <l>  <l>",
         "\n<l>\n<lr> \u3000<r>", "w w\nw", "  <lr>  <lr>é é", "<l><r><l>", "éw wé cafe\u0301 e\u0301", "1234567 890 12", "a1b22c333d4444e", " aeiou 12 34 ou"]


def write_steps():
    texts = CASES + CASED + FLAGS + random_cases(40)
    lines = []
    for name, case in step_cases().items():
        t = Tokenizer.from_str(json.dumps(MADE["o200k"]))
        change = {}
        if "pre" in case:
            t.pre_tokenizer = case["pre"]
        if "normalizer" in case:
            t.normalizer = case["normalizer"]
        t.add_tokens(case.get("added", []))
        made = json.loads(t.to_str())
        for key in ("pre_tokenizer", "normalizer", "added_tokens"):
            if made[key] != MADE["o200k"][key]:
                change[key] = made[key]
        hashes = []
        for text in texts:
            h = 0
            for i in t.encode(text, add_special_tokens=False).ids:
                h = (h * 31 + i + 1) % 2**32
            hashes.append(h)
        lines.append(json.dumps({"name": name, "change": change, "hashes": hashes}, separators=(",", ":")))
    with open("tokenizers/steps.json", "w", encoding="utf-8") as f:
        f.write('{"texts":%s,\n"cases":[\n' % json.dumps(texts, separators=(",", ":")) + ",\n".join(lines) + "\n]}\n")
    print("steps.json", os.path.getsize("tokenizers/steps.json"))


write_steps()
