/* messages.h: what the processes of a run send each other, as bytes in memory. No sockets here.
 * Everything that arrives is checked here before it is used: sizes, numbers, sums, ends of texts.
 *
 * Every connection begins with an introduction. Its numbers are in memory order: all machines of a
 * run have the same byte order.
 *
 *   another process                        process 0
 *   Greeting: what it claims, a nonce  ->
 *                                      <-  a nonce
 *   its proof        ->                   process 0 closes, or answers with zeros, if this is wrong
 *                    <-  its own proof
 *   Hello, settings  ->
 *                    <-  MESSAGE_ADMITTED, or MESSAGE_LOST and the reason
 *
 * A proof is HMAC-SHA-256 with the run's secret over the direction, the Greeting and both nonces.
 * So it serves for one connection, one claim and one direction: proofs that are replayed or
 * reflected are wrong. Before the right proof, process 0 sends a stranger at most 32 random bytes
 * and 32 zeros; a process sends no version, no name and no settings to a stranger. */
#pragma once
#include "llmc/base/base.h"
#include "llmc/base/sha256.h"

enum { MOST_RANKS_HERE = 4096,              /* of a process */
       MOST_RANKS = 1 << 20,                /* of all processes */
       MOST_SETTINGS = 1 << 20,             /* bytes of settings */
       MOST_REASON = 1023,                  /* bytes of the text of MESSAGE_LOST */
       NONCE_BYTES = 32, PROOF_BYTES = SHA256_BYTES };

/* ---- introductions --------------------------------------------------------------------------- */

typedef struct {
    char     magic[8];                      /* greeting_magic */
    uint32_t watch, process;                /* watch: 1 for the watch connection, 0 for the data connection */
    unsigned char nonce[NONCE_BYTES];
} Greeting;
extern const char greeting_magic[8];

typedef enum { FROM_PROCESS, FROM_HUB } Direction;
void proof_make(unsigned char proof[PROOF_BYTES], const char *secret, Direction direction, const Greeting *g,
                const unsigned char nonce[NONCE_BYTES]);                    /* nonce: process 0's */

typedef struct {                            /* follows the proofs */
    char     version[64], job[64], host[64];
    int32_t  processes, ranks, pid;
    uint32_t settings;                      /* bytes of settings that follow */
} Hello;

/* Process 0's side of an introduction, a state machine. Starts with GREETING and a random nonce. */
typedef enum { GREETING, PROVING, HELLO, SETTINGS, INTRODUCED, WRONG, WRONG_SECRET } Stage;
typedef struct {
    Stage    stage;
    size_t   have;                          /* bytes of the stage's message that have arrived */
    Greeting greeting;
    Hello    hello;                         /* after HELLO: its texts end */
    char    *settings;                      /* free() it */
    unsigned char nonce[NONCE_BYTES], proof[PROOF_BYTES];
} Introduction;
void  *introduction_buffer(Introduction *i, size_t *bytes);         /* where the next bytes belong; 0: none are due */
/* `bytes` more have been stored there. Returns the length of the answer to be sent, also 0. */
size_t introduction_advance(Introduction *i, size_t bytes, const char *secret, unsigned char answer[PROOF_BYTES]);

/* May a process with this Hello and number be part of this run? name: describes it. */
int hello_check(const Hello *mine, const char *my_settings, const Hello *h, uint32_t process,
                const char *settings, Error *e);
void hello_name(char name[128], const Hello *h, uint32_t process);

/* ---- the list of processes ------------------------------------------------------------------- */

typedef struct {                            /* a process, as all know it after the rendezvous */
    int32_t ranks, first, pid;              /* first: number of its first rank */
    char    host[64];
} Process;
int processes_number(Process *at, int processes, Error *e);     /* numbers all ranks; 0 and e: there are too many */
/* Ranks of each host. 0 and e: not equally many, or those of a host are not consecutive. */
int processes_host_ranks(const Process *at, int processes, Error *e);
/* Is this a valid list, in which process `me` is what it said of itself? Ends its texts. */
int processes_check(Process *at, int processes, int me, const Process *mine, Error *e);

/* ---- messages after the introduction --------------------------------------------------------- */

typedef enum { MESSAGE_ALIVE, MESSAGE_LOST, MESSAGE_GOODBYE, MESSAGE_WELCOME, MESSAGE_ADMITTED } MessageKind;
typedef struct { uint32_t kind, bytes; } MessageHead;               /* precedes every message */

typedef struct {                            /* the state of a rank, sent to process 0 with every heartbeat */
    uint32_t count;                         /* phases begun */
    float    limit;                         /* seconds; 0: none */
    char     phase[40];
} RankStatus;
RankStatus status_read(const char *bytes);                  /* of an ALIVE, ranks * sizeof(RankStatus): its text ends */

typedef struct { MessageKind kind; const char *data; size_t bytes; } Message;
/* The first message in `have` bytes of a watch connection. Returns the bytes that it takes, 0: not
 * complete yet, -1: none that a process of `ranks` ranks sends. */
long message_read(Message *m, const char *bytes, size_t have, int ranks);
size_t message_most(int ranks);                                     /* bytes of the longest one, head included */

/* Another process's text, up to a NUL, on one line of at most capacity - 1 bytes; control: '?'. */
void one_line(char *text, size_t capacity, const char *bytes, size_t n);
