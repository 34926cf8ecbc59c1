#!/usr/bin/env python3
"""ask.py: asks a tuned model every question of held-out.jsonl, in wordings that it was not trained on, and counts right answers.

    python3 data/talk/ask.py FOLDER [-v] [-m N]     -v: print wrong answers, too; -m: exit code 1 if fewer than N of 100 are right

An answer is right if it contains what its line says under "right"; capitals do not matter. The model answers with its most likely tokens.
"""
import collections
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def answers(folder, records):
    """What the model says to each last question, in one chat: /reset between them, and every answer a line (-st: it ends where one would end)."""
    asked = [[m["content"] for m in record["messages"] if m["role"] == "user"] for record in records]
    said = subprocess.run([HERE.parent.parent / "infer_moe", folder, "-m", "chat", "-t", "0", "-n", "60", "-v", "0", "-s", "1", "-st", "\\n"],
                          input="".join(question + "\n" for questions in asked for question in [*questions, "/reset"]),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    lines = said.stdout.split("\n")[:-1]
    if said.returncode or len(lines) != sum(map(len, asked)):
        sys.exit(said.stderr or f"{len(lines)} answers")
    for questions in asked:
        lines = lines[len(questions) - 1:]
        yield lines.pop(0)


def main():
    folder = sys.argv[1]
    least = float(sys.argv[sys.argv.index("-m") + 1]) if "-m" in sys.argv else 0
    records = [json.loads(line) for line in (HERE / "held-out.jsonl").read_text().splitlines()]
    right, asked = collections.Counter(), collections.Counter()
    for record, said in zip(records, answers(folder, records)):
        good = record["right"].lower() in said.lower()
        asked[record["kind"]] += 1
        right[record["kind"]] += good
        if not good and "-v" in sys.argv:
            print(f"{record['kind']}: {record['messages'][-2]['content']} {said.strip()}")
    print("\n".join(f"{kind:16} {right[kind]:2} of {asked[kind]}" for kind in asked))
    share = 100 * sum(right.values()) / len(records)
    print(f"{sum(right.values())} of {len(records)} answers are right ({share:.0f} %), all of {sum(right[k] == asked[k] for k in asked)} kinds of {len(asked)}")
    return share < least


if __name__ == "__main__":
    sys.exit(main())
