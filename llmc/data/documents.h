/* documents.h: texts as files hold them: one document in a text file, one in each file of a folder,
 * one in each line of a JSONL file. They stay in memory until they are encoded. */
#pragma once
#include "jobs.h"

typedef struct Chat Chat;               /* chat.h */
/* from, to: its bytes in the text of its Source. records: they are JSON (records.h), not a text. */
typedef struct { char *path; size_t from, to; int records; } TextFile;

typedef struct {
    char *path;                         /* of the file or folder */
    char *text;  size_t bytes;          /* of all its files, one after another */
    TextFile *file;  size_t files;
    int  separate;                      /* documents that an end-of-text token separates: a folder, JSON */
    Document *document;  size_t documents;      /* after source_parse */
    int  has_chats, has_pairs;          /* is one of them a conversation or a pair; is one a pair? (forms.h) */
} Source;

/* All take a Source that is {0}; 0 on error. A file whose name says so (records.h) has a document
 * in each of its records (forms.h). A folder: all files in it and below, sorted by name, without
 * hidden, empty and binary ones (NUL bytes; with a warning); of *.json those that hold records. */
int  source_read_file(Source *s, const char *path, Error *e);
int  source_read_folder(Source *s, const char *folder, Error *e);
void source_take_text(Source *s, const char *path, char *text, size_t bytes);   /* text: from malloc */
void source_free(Source *s);

uint64_t source_hash(const Source *s, uint64_t seed);       /* of all bytes, and where files begin */

/* Finds the documents. Texts of records are decoded in place; conversations must be what chat can
 * write, or, if it is NULL, are not tried. field: see form_read. */
int  source_parse(Source *s, const Chat *chat, const char *field, Error *e);
/* 0, and an error that names the file and line of a record, and why. */
int  source_refuse(const Source *s, const Document *record, const char *why, Error *e);

/* Splits the documents for training and validation: the last tenth of a single text, cut at a
 * character; every tenth of several documents, or the last one of fewer than ten. 0 if there is
 * nothing to split. Free both. */
typedef struct { Document *at; size_t count; } Documents;
int  source_hold_out(const Source *s, Documents *train, Documents *held_out);
