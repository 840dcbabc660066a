/* HTTP/1.1 to one server: what a worker needs of it, and limits on everything that is answered.
 *
 * A request has a connection of its own. Without TLS: a proxy on the device adds that.
 */
#ifndef TW_HTTP_H
#define TW_HTTP_H

#include <signal.h>

#include "text.h"

enum {
    HTTP_HEAD_BYTES = 64 << 10,   /* most that an answer's head may have */
    HTTP_ANSWER_BYTES = 32 << 20, /* and its body, where it goes to memory */
    HTTP_PROBLEM_BYTES = 1 << 20, /* the body of a refusal */
    HTTP_IDLE_SECONDS = 30,       /* without a byte of what a sink takes, which may take hours */
};

/* Who is asked, and with what token. */
typedef struct {
    char host[256], port[6], path[256]; /* of the URL; the path has no / at its end */
    char token[512];
    char url[600];
    /* asked several times a second while an answer is waited for; false gives up. NULL: goes on */
    bool (*goes_on)(void *self);
    void *self;
} http_server;

/* Read an URL. False, with what is wrong with it, for one that cannot be asked. */
bool http_server_of(http_server *server, const char *url, tw_error *error);

typedef enum {
    HTTP_ANSWERED,    /* whole, whatever its status */
    HTTP_UNREACHABLE, /* nothing, or not all of it, in time, or what makes no sense */
    HTTP_STOPPED,     /* `http_stop` was set */
} http_outcome;

typedef struct {
    int status;
    bool is_problem; /* application/problem+json */
    tw_text body;    /* what the sink did not take */
} http_answer;

/* Takes the body of an answer of status 200; returns false to break it off. */
typedef struct {
    bool (*take)(void *self, const char *data, size_t length);
    void *self;
} http_sink;

/* Set by a handler of signals: what waits, ends. */
extern volatile sig_atomic_t http_stop;

/* Ask, and wait for `seconds` at most. `body` is JSON, or NULL. */
http_outcome http_ask(const http_server *server, const char *method, const char *path,
                      const tw_text *body, double seconds, const http_sink *sink,
                      http_answer *answer, tw_error *error);

/* How long to wait. */
typedef struct {
    double until, idle;        /* by http_now(); seconds without a byte, 0: any */
    const http_server *server; /* whose `goes_on` is asked */
} http_patience;

/* Read an answer from a file or a socket. As `http_ask`, and for tests of it. */
http_outcome http_read(int file, const http_patience *patience, const http_sink *sink,
                       http_answer *answer, tw_error *error);

/* Seconds of a clock that only moves on. */
double http_now(void);

#endif
