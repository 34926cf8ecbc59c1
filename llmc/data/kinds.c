/* kinds.c: see kinds.h. */
#include "kinds.h"
#include "llmc/base/text.h"
#include <stdlib.h>
#include <string.h>

#define JSONL "Write its texts as JSONL first, {\"text\": \"...\"} in each line"
#define PYTHON(imports, read) "Make JSON of it: python3 -c 'import sys, " imports "; " read "' %s data.jsonl"
#define DATASET PYTHON("datasets", "datasets.Dataset.from_file(sys.argv[1]).to_json(sys.argv[2])")
#define PICKLE "It holds no text. nanoGPT's meta.pkl says which characters the ids of train.bin are; to train on " \
    "characters, give the text itself: -i input.txt"
#define SHARD "Write tokens as an llm.c shard, or uint16 to a file called train.bin (data/README.md)"
/* sure: text does not begin like this. The others must have a NUL byte, too. */
static const struct { int sure; size_t at, count; const char *bytes, *what, *remedy; } kinds[] = {
    { 1, 0,   2, "\x1f\x8b",             "a gzip archive",           "Unpack it: gunzip -k %s" },
    { 1, 0,   6, "\xfd" "7zXZ\0",        "an xz archive",            "Unpack it: xz -dk %s" },
    { 1, 0,   4, "\x28\xb5\x2f\xfd",     "a zstd archive",           "Unpack it: zstd -d %s" },
    { 1, 4,   6, "1AY&SY",               "a bzip2 archive",          "Unpack it: bunzip2 -k %s" },
    { 1, 0,   6, "7z\xbc\xaf\x27\x1c",   "a 7z archive",             "Unpack it: 7z x %s" },
    { 0, 0,   4, "PK\3\4",               "a zip archive (or .docx, .epub, .npz, .pt)",
      "Unpack it: unzip -d folder %s, then -i folder; of a document, save the text" },
    { 0, 257, 5, "ustar",                "a tar archive",
      "Unpack it into a folder, which -i can name: mkdir folder && tar -C folder -xf %s" },
    { 1, 0,   5, "%PDF-",                "a PDF",                    "Take its text: pdftotext %s" },
    { 1, 0,   6, "{\\rtf1",              "rich text",                "Save it as plain text" },
    { 0, 0,   4, "PAR1",                 "a Parquet table",
      PYTHON("pandas", "pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], orient=\"records\", lines=True)") },
    { 0, 0,   6, "ARROW1",               "an Arrow table",           DATASET },
    { 1, 0,   4, "\xff\xff\xff\xff",     "an Arrow table",           DATASET },
    { 1, 0,   3, "\x80\4\x95",           "a pickle of Python",       PICKLE },
    { 1, 0,   3, "\x80\5\x95",           "a pickle of Python",       PICKLE },
    { 0, 0,   2, "\x80\2",               "a pickle of Python",       PICKLE },
    { 0, 0,   2, "\x80\3",               "a pickle of Python",       PICKLE },
    { 0, 0,   9, "MMIDIDX\0\0",          "the index of Megatron-LM's tokens", SHARD },
    { 0, 0,   4, "GGUF",                 "a model in GGUF",          "Text is needed" },
    { 0, 0,   6, "SQLite",               "a database",               JSONL },
    { 1, 0,   6, "\x93NUMPY",            "a NumPy array",            SHARD },
    { 1, 0,   4, "\x89HDF",              "an HDF5 file",             JSONL },
    { 1, 0,   4, "\x89PNG",              "a picture",                "Text is needed" },
    { 1, 0,   3, "\xff\xd8\xff",         "a picture",                "Text is needed" },
    { 0, 0,   4, "GIF8",                 "a picture",                "Text is needed" },
    { 0, 0,   4, "RIFF",                 "sound, a picture or a film", "Text is needed" },
    { 1, 0,   4, "\x7f" "ELF",           "a program",                "Text is needed" },
    { 1, 0,   4, "\xff\xfe\0\0",         "text in UTF-32",   "Make it UTF-8: iconv -f UTF-32 -t UTF-8 %s > utf-8.txt" },
    { 1, 0,   4, "\0\0\xfe\xff",         "text in UTF-32",   "Make it UTF-8: iconv -f UTF-32 -t UTF-8 %s > utf-8.txt" },
    { 1, 0,   2, "\xff\xfe",             "text in UTF-16",   "Make it UTF-8: iconv -f UTF-16 -t UTF-8 %s > utf-8.txt" },
    { 1, 0,   2, "\xfe\xff",             "text in UTF-16",   "Make it UTF-8: iconv -f UTF-16 -t UTF-8 %s > utf-8.txt" },
};

const char *kind_of_binary(const char *bytes, size_t count, const char **remedy) {
    const int has_nul = count && memchr(bytes, 0, count);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if ((kinds[i].sure || has_nul) && count >= kinds[i].at + kinds[i].count
            && !memcmp(bytes + kinds[i].at, kinds[i].bytes, kinds[i].count))
            return *remedy = kinds[i].remedy, kinds[i].what;
    *remedy = "Text is needed";
    return has_nul ? "binary: it has NUL bytes" : NULL;
}

int kind_refuse(const char *path, const char *what, const char *remedy, const char *more, Error *e) {
    const char *name = strstr(remedy, " %s");
    Text command = { 0 };
    text_add_bytes(&command, remedy, name ? (size_t)(name - remedy) + 1 : strlen(remedy));
    if (name) text_add_word(&command, path);
    if (name) text_add_string(&command, name + 3);
    error_set(e, "%s is %s, not plain text. %s%s", path, what, command.at, more);
    free(command.at);
    return 0;
}
int kind_is_table(const char *what) { return strstr(what, " table") != NULL; }

int kind_is_json(const char *text, size_t bytes) {
    static const char blank[] = " \t\r\n";
    while (bytes && strchr(blank, *text)) { text++; bytes--; }
    while (bytes && strchr(blank, text[bytes - 1])) bytes--;
    return bytes > 1 && ((text[0] == '{' && text[bytes - 1] == '}' && memchr(text, '"', bytes < 9 ? bytes : 9))
                         || (text[0] == '[' && text[bytes - 1] == ']'));
}
