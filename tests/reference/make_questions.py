#!/usr/bin/env python3
"""make_questions.py: writes tests/reference/questions/, multiple-choice questions with what a model answers, for
tests/model/test_evaluate.c.

    python tests/reference/make_questions.py        needs torch, transformers 5, tokenizers and numpy

    config.json, model.safetensors   a tiny random llama, of a context shorter than some questions; weights are exact in bf16
    hellaswag.jsonl                  questions in the form of HellaSwag
    choices.jsonl                    of {"context", "choices", "answer"}; some begin or end with white space, one has no context
    hellaswag.bin                    hellaswag.jsonl as llm.c writes it, with the tokens of ../tokenizers/gpt2.json
    expected.json                    for each file and tokenizer: the log-likelihoods, computed in float64, and the answers

Texts are encoded as in lm-eval: white space at the end of the context goes to the choice; context + choice is encoded as a whole,
and what exceeds the number of the context's tokens is the choice's. Too long contexts are cut from the left."""
import json
import pathlib
import random
import numpy as np
import tokenizers
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "questions"
CONTEXT = 64
WORDS = "the a cat in hat and on it to of is was he she they run see sat mat so then with for one two old new red box tree".split()


def make_model():
    torch.manual_seed(3)
    config = transformers.LlamaConfig(vocab_size=620, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2,
                                      num_key_value_heads=1, head_dim=8, max_position_embeddings=CONTEXT, initializer_range=0.6,
                                      tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(OUT)
    return transformers.LlamaForCausalLM.from_pretrained(OUT, dtype=torch.float64).eval()


def make_questions(rng):
    def text(low, high):
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(low, high)))
    hellaswag, choices = [], []
    for i in range(24):
        hellaswag.append({"ind": i, "ctx": text(3, 14) + rng.choice(["", ".", ","]), "endings": [text(1, 6) for _ in range(4)],
                          "label": rng.randrange(4) if i % 3 else str(rng.randrange(4))})
        n = rng.randint(2, 6)
        choices.append({"context": rng.choice([text(1, 14), text(1, 5) + ":\n", text(2, 4) + "  "]),
                        "choices": [rng.choice(["", "", " "]) + text(1, 7) for _ in range(n)], "answer": rng.randrange(n)})
    choices[5]["context"] = ""
    choices[7]["choices"] = ["\u00e9t\u00e9 \u4e2d\u6587", "na\u00efve d\u00e9j\u00e0", "the"]
    choices[7]["answer"] = 1
    choices[9]["context"] = text(40, 50)
    return hellaswag, choices


def pair(tokenizer, context, choice):
    continuation = choice if context[-1:].isspace() or choice[:1].isspace() else " " + choice
    kept = context.rstrip()
    continuation = context[len(kept):] + continuation
    whole, before = tokenizer.encode(kept + continuation).ids, tokenizer.encode(kept).ids
    if not before:
        before = [tokenizer.token_to_id("<|endoftext|>")]
        whole = before + whole
    return before, whole[len(before):]


def answer(model, tokenizer, context, choices):
    logprobs, tokens = [], []
    for choice in choices:
        before, after = pair(tokenizer, context, choice)
        ids = torch.tensor((before + after)[-(CONTEXT + 1):])
        with torch.no_grad():
            logp = model(ids[None, :-1]).logits[0].log_softmax(-1)
        n = len(after)
        logprobs.append(logp[-n:].gather(1, ids[-n:, None]).sum().item())
        tokens.append(n)
    lengths = np.array([float(len(c)) for c in choices])
    sums = np.array(logprobs)
    return dict(logprobs=logprobs, tokens=tokens, characters=[int(n) for n in lengths],
                predicted=[int(np.argmax(s)) for s in (sums, sums / np.array(tokens), sums / lengths)])


def write_binary(path, tokenizer, questions):
    """As llm.c does: context and endings are encoded apart."""
    stream = []
    for i, q in enumerate(questions):
        one = [65535, 0, i, int(q["label"]), len(q["endings"])]
        for ids in [tokenizer.encode(q["ctx"]).ids] + [tokenizer.encode(" " + e).ids for e in q["endings"]]:
            one += [len(ids)] + ids
        one[1] = 2 * len(one)
        stream += one
    header = np.zeros(256, dtype=np.int32)
    header[:3] = 20240522, 1, len(questions)
    path.write_bytes(header.tobytes() + np.array(stream, dtype=np.uint16).tobytes())


def main():
    OUT.mkdir(exist_ok=True)
    rng = random.Random(11)
    model = make_model()
    hellaswag, choices = make_questions(rng)
    expected = {}
    for name, questions in (("hellaswag", hellaswag), ("choices", choices)):
        (OUT / f"{name}.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
        for kind in ("gpt2", "llama2"):
            tokenizer = tokenizers.Tokenizer.from_file(str(HERE / "tokenizers" / f"{kind}.json"))
            expected[f"{name} {kind}"] = [
                dict(answer(model, tokenizer, q.get("ctx", q.get("context")), q.get("endings", q.get("choices"))),
                     answer=int(q.get("label", q.get("answer")))) for q in questions]
    write_binary(OUT / "hellaswag.bin", tokenizers.Tokenizer.from_file(str(HERE / "tokenizers" / "gpt2.json")), hellaswag)
    (OUT / "expected.json").write_text(json.dumps(expected))
    for name, answers in expected.items():
        print(name, [sum(a["predicted"][k] == a["answer"] for a in answers) for k in range(3)], "of", len(answers))


if __name__ == "__main__":
    main()
