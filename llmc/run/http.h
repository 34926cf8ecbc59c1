/* http.h: as much of HTTP/1.1 (RFC 9112) as a server with one page needs: the head of a request,
 * and that of an answer. Strict: what two readers could understand differently is refused (folded
 * or repeated fields, bare line feeds, a body of unknown length). */
#pragma once
#include "llmc/base/text.h"

/* most bytes of a head, its fields, bytes of a body */
enum { HTTP_HEAD = 8192, HTTP_FIELDS = 64, HTTP_BODY = 1 << 18 };
typedef struct { const char *at; size_t bytes; } HttpText;              /* part of the request; at NULL: not given */
typedef struct {
    HttpText method, path, query;       /* path begins with /; query: what follows a ? */
    HttpText host, origin, site, authorization, type;                   /* site: Sec-Fetch-Site; type: Content-Type */
    size_t   head, body;            /* bytes of the head with the empty line that ends it; of the body that follows */
} HttpRequest;

/* Reads the head of a request. 0: not complete yet; 200: r is set; else the refusing status. */
int http_parse(const char *text, size_t bytes, HttpRequest *r);
int http_is(HttpText t, const char *string);            /* is it this string? */
int http_is_name(HttpText t, const char *name);         /* the same, whatever the case of letters */
int http_is_type(HttpText t, const char *type);         /* the same, whatever parameters follow a ; */

/* The head of an answer, for the last request of a connection. bytes: of the body; -1: it comes in
 * chunks. more: further fields, each with \r\n. http_chunk: without bytes, the last. */
void http_answer(Text *out, int status, const char *type, long bytes, const char *more);
void http_chunk(Text *out, const char *data, size_t bytes);
const char *http_reason(int status);                    /* "Not Found" */
