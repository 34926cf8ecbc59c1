#!/usr/bin/env python3
"""documents.py: does everything exist that the documents name? Files and folders, make's targets and variables, options of the
programs, groups of run_tests, functions and other names of the sources. A part of the group house.

    python3 tests/documents.py [FILE...]       exit code 1: something does not; a line for each. FILE: instead of all documents

Looked at is what is marked as code: `...` and indented lines, and links with their #anchors. docs/LOG.md and docs/log/ are history: of them
only the links, and that LOG.md has one to each entry.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOP = ("llmc/", "kernels/", "tests/", "docs/", "data/", "bench/", "scripts/", ".ci/")
ENDINGS = (".c", ".h", ".cu", ".cuh", ".md", ".mk", ".sh", ".py", ".js", ".svg", ".sbatch")
# Files of a run, of other projects or made by commands of the text.
MADE = re.compile(r"out|build|mine|tuned|OUT|FOLDER|NAME|texts|openwebtext|(train|val|test|input)\.txt|tokens\.cache|book|chats|check_export"
                  r"|mixture|data/(openwebtext|linux|enwik8|fineweb|tinyshakespeare)/|linux/|enwik8/|.*\.json[l]?$|input|libnccl|report\.html"
                  r"|state/|best/|modeling_smoe\.py|settings\.txt|main\.log|.*\bNAME\b|(cpu|cuda)/x\.c|dev/data/")
ELSEWHERE = {"j2", "signal", "shm-size", "march", "ffp-contract", "fast-math", "fno-trapping-math", "attention"}        # options of compilers, launchers and bench/peers.py


def read(path):
    return (ROOT / path).read_text(errors="replace")


def sources():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.split("\n") if (ROOT / ".git").exists() else []
    return [f for f in listed if f] or [p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*") if p.is_file() and "build" not in p.parts]


FILES = sources()
FOLDERS = {p.as_posix() for f in FILES for p in pathlib.PurePosixPath(f).parents}
BARE = {f.rsplit("/", 1)[-1] for f in FILES}
MAKEFILE = read("Makefile") + read("tests/tests.mk")
TARGETS = set(" ".join(re.findall(r"^([a-z_ ]+):(?!=)", MAKEFILE, re.M)).split())
VARIABLES = set(re.findall(r"\b([A-Z][A-Z_]+)\b", MAKEFILE))
GROUPS = set(re.findall(r'\{ "([a-z]+)", test_', read("tests/main.c")))
OPTIONS = {option for file in ("llmc/run/settings.c", "infer_moe.c")
           for pair in re.findall(r'^    \{ "[a-z]+", +"([a-z0-9]+)", +"([a-z0-9-]+)"', read(file), re.M) for option in pair}
ALSO = {"bench/bench_moe.c": r'"-+([a-z-]+)"', "tests/main.c": r'"-([a-z]+)"', "llmc/run/options.c": r'"-+([a-z-]+)"', "train_moe.c": r'"-+([a-z-]+)"',
        "tests/mutate.py": r'"-+([a-z]+)"', "tests/faults.sh": r"\b-([lk])\)", "tests/programs.sh": r"-(k)\)"}
OPTIONS |= {option for file, pattern in ALSO.items() for option in re.findall(pattern, read(file))} | {"cf", "config", "help", "version", "h"}
FOREIGN = re.compile(r"\b(ssh|curl|sh -c|pip|gcc|nvcc|clang|srun|sbatch|mpirun|torchrun|tensorboard|od|mount|make|git|python3?|export|qemu\S*|sed|gunzip|tail|cat|apt\S*)\b")
WORDS = set()
for f in FILES:
    if f.endswith((".c", ".h", ".cu", ".cuh", ".py", ".sh", ".js", ".html", ".txt", ".mk")) or f == "Makefile":
        WORDS |= set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", read(f)))


def anchors(path):
    """The anchors that GitHub gives the headings of a document: lower case, no punctuation, - for blanks."""
    text = re.sub(r"^```.*?^```", "", path.read_text(errors="replace"), flags=re.M | re.S)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in re.findall(r"^#+ (.*)", text, re.M)]
    slugs = [re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain]
    return {slug + (f"-{slugs[:i].count(slug)}" if slug in slugs[:i] else "") for i, slug in enumerate(slugs)}


def check_link(link, document):
    """What is wrong with a link: nothing, or its file or its anchor is missing."""
    name, _, anchor = link.partition("#")
    path = (ROOT / document).parent / name if name else ROOT / document
    if re.match(r"[a-z]+:", link):
        return []
    if not path.exists():
        return [f"no file {name}"]
    return [f"no heading #{anchor} in {path.name}"] if anchor and path.suffix == ".md" and anchor not in anchors(path) else []


def without_link():
    """Entries of the log that its contents do not name."""
    contents = read("docs/LOG.md")
    return [f"{f}: docs/LOG.md has no link to {title}" for f in FILES if f.startswith("docs/log/")
            for title in re.findall(r"^## (.*)", read(f), re.M) if f"[{title}]({f[5:]}#" not in contents]


def exists(name, document):
    name = name.rstrip("/").split("#")[0]
    if any(c in name for c in "*{<$") or MADE.match(name):
        return True
    here = pathlib.PurePosixPath(document).parent
    for at in (pathlib.PurePosixPath(name), here / name, pathlib.PurePosixPath("llmc") / name, pathlib.PurePosixPath("tests") / name,
               pathlib.PurePosixPath("kernels/cuda") / name, pathlib.PurePosixPath("kernels") / name):
        plain = (ROOT / at).resolve()
        if plain.is_relative_to(ROOT) and (plain.relative_to(ROOT).as_posix() in FILES or plain.relative_to(ROOT).as_posix() in FOLDERS):
            return True
    return "/" not in name and name in BARE


def check_code(code, document):
    """What is wrong with one piece of code: `make x`, a path, options, a name."""
    wrong = []
    for target in re.findall(r"(?:^|[;&] *)make((?: +-\w+| +[A-Za-z_0-9]+(?:=(?:\"[^\"]*\"|\S+))?)*)", code):
        for word in re.sub(r'"[^"]*"', "x", target).split():
            name, _, value = word.partition("=")
            if value and name not in VARIABLES or not value and not word.startswith("-") and word not in TARGETS:
                wrong.append(f"make knows no {name}")
    for groups in re.findall(r"run_tests((?: +-\w+| +\w+)*)", code):
        names = [w for i, w in enumerate(groups.split()) if not w.startswith("-")]
        wrong += [f"run_tests has no group {name}" for name in names if name.islower() and name not in GROUPS]
    for word in re.split(r"[\s()\[\],;|=\"']+", code):
        word = word.rstrip(".:")
        if word.startswith("./") and word[2:] in ("train_moe", "infer_moe", "bench_moe", "run_tests"):
            continue
        looks = word.startswith(TOP) or word.endswith(ENDINGS) and re.fullmatch(r"[\w./-]+", word) and not word.startswith((".", "-", "/"))
        if looks and not exists(word.split(":")[0], document):
            wrong.append(f"no file {word}")
    ours = not FOREIGN.search(re.sub(r"\b(make|sh|python3) [^;&]*?(?=(\./|$))", "", code))
    if ours and (code.startswith("-") or "_moe" in code):
        for option in re.findall(r"(?<![\w.\]/-])--?([a-z][a-z0-9-]*)\b", re.sub(r'"[^"]*"', "", code)):
            if option not in OPTIONS | ELSEWHERE:
                wrong.append(f"no option -{option}")
    plain = re.fullmatch(r"([a-z][a-z0-9]*(?:_[a-z0-9]+)+)(?:\(\))?", code)
    if plain and plain[1] not in WORDS:
        wrong.append(f"no name {plain[1]} in the sources")
    return wrong


def main():
    documents = sys.argv[1:] or [f for f in FILES if f.endswith(".md")]
    missing, looked = without_link(), 0
    bad = len(missing)
    print("".join(line + "\n" for line in missing), end="")
    for document in documents:
        fenced, history = False, document.startswith(("docs/LOG.md", "docs/log/"))
        for number, line in enumerate(read(document).split("\n"), 1):
            fenced ^= line.startswith("```")
            wrong = []
            for link in re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", line):
                link = link[0] or link[1]
                looked += 1
                wrong += check_link(link, document)
            if document == "docs/coming-from.md":               # the first column is in the words of another project
                line = re.sub(r"^\|[^|]*\|", "|", line)
            codes = re.findall(r"`([^`]+)`", line) if not history else []
            if not history and line.startswith("    ") and not re.match(r" +([*-]|\d+\.) ", line) and ("./" in line or line.lstrip().startswith(("make", "sh ", "python3"))):
                codes += [re.split(r" {3,}", line.strip())[0].split(";  ")[0]]
            for code in codes:
                looked += 1
                wrong += check_code(code.strip(), document)
            for what in wrong:
                print(f"{document}:{number}: {what}")
            bad += len(wrong)
    print(f"{len(documents)} documents, {looked} names and commands, {bad} wrong")
    return bad > 0 or not documents


if __name__ == "__main__":
    sys.exit(main())
