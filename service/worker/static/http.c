#include "http.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_MILLISECONDS = 200, BUFFER_BYTES = 1 << 16, LINE_BYTES = 1 << 14 };

volatile sig_atomic_t http_stop;

double http_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* An answer on its way. */
typedef struct {
    int file;
    const http_patience *patience;
    size_t at, filled, head; /* `head`: bytes of lines so far */
    http_outcome outcome;    /* why it went no further */
    bool ended;              /* the other side has said all that it will */
    tw_error *error;
    char data[BUFFER_BYTES];
} stream;

static bool wait_for(int file, short what, const http_patience *patience, http_outcome *outcome,
                     tw_error *error) {
    const http_server *server = patience->server;
    double until = patience->until, idle = http_now() + patience->idle;
    if (patience->idle > 0 && idle < until) until = idle;
    for (;;) {
        struct pollfd one = {.fd = file, .events = what};
        if (http_stop) {
            *outcome = HTTP_STOPPED;
            return tw_fail(error, "the worker ends");
        }
        double now = http_now(), left = until - now;
        *outcome = HTTP_UNREACHABLE;
        if (now >= patience->until) return tw_fail(error, "no answer in time");
        int milliseconds = left > 1e-3 * LOOK_MILLISECONDS ? LOOK_MILLISECONDS
                           : left > 0                      ? 1 + (int)(left * 1e3)
                                                           : 0;
        int ready = poll(&one, 1, milliseconds);
        if (ready > 0) return true;
        if (left <= 0) return tw_fail(error, "no answer in time"); /* nor while `goes_on` took */
        if (ready < 0 && errno != EINTR) return tw_fail(error, "poll: %s", strerror(errno));
        if (server->goes_on && !server->goes_on(server->self))
            return tw_fail(error, "nobody waits for it any more");
    }
}

/* More bytes; false at the end, or if there are none in time. */
static bool fill(stream *in) {
    for (;;) {
        if (!wait_for(in->file, POLLIN, in->patience, &in->outcome, in->error)) return false;
        ssize_t got = read(in->file, in->data, sizeof in->data);
        if (got > 0) {
            in->at = 0, in->filled = (size_t)got;
            return true;
        }
        in->outcome = HTTP_UNREACHABLE, in->ended = got == 0;
        if (got == 0) return tw_fail(in->error, "the answer broke off");
        if (errno != EINTR && errno != EAGAIN) return tw_fail(in->error, "%s", strerror(errno));
    }
}

/* A line without its end, of visible characters, blanks and tabs. */
static bool read_line(stream *in, char line[LINE_BYTES]) {
    size_t length = 0;
    for (;;) {
        if (in->at == in->filled && !fill(in)) return false;
        char c = in->data[in->at++];
        if (++in->head > HTTP_HEAD_BYTES || length + 1 >= LINE_BYTES) {
            in->outcome = HTTP_UNREACHABLE;
            return tw_fail(in->error, "the head of the answer has no end");
        }
        if (c == '\n') break;
        line[length++] = c == 0 ? '?' : c;
    }
    if (length && line[length - 1] == '\r') length--;
    line[length] = 0;
    return true;
}

/* Digits to a number of at most 2^62; false for anything else. */
static bool whole_number(const char *text, int base, uint64_t *found) {
    *found = 0;
    size_t count = 0;
    for (; isxdigit((unsigned char)*text); text++, count++) {
        int digit =
            isdigit((unsigned char)*text) ? *text - '0' : tolower((unsigned char)*text) - 'a' + 10;
        if (digit >= base || *found >> 56) return false;
        *found = *found * (unsigned)base + (unsigned)digit;
    }
    while (*text == ' ' || *text == '\t') text++;
    return count && (*text == 0 || (base == 16 && *text == ';'));
}

typedef struct {
    bool chunked, has_length, is_problem;
    uint64_t length;
} head;

static bool nonsense(stream *in, const char *what) {
    in->outcome = HTTP_UNREACHABLE;
    return tw_fail(in->error, "the answer is no HTTP: %s", what);
}

static bool read_field(stream *in, const char *line, head *found) {
    const char *colon = strchr(line, ':');
    if (!colon || colon == line) return nonsense(in, "a line of its head has no name");
    size_t name = (size_t)(colon - line);
    const char *value = colon + 1 + strspn(colon + 1, " \t");
    if (name == 14 && strncasecmp(line, "content-length", name) == 0) {
        uint64_t length;
        if (!whole_number(value, 10, &length)) return nonsense(in, "its length is no number");
        if (found->has_length && length != found->length) return nonsense(in, "it has two lengths");
        found->has_length = true, found->length = length;
    } else if (name == 17 && strncasecmp(line, "transfer-encoding", name) == 0) {
        if (strcasecmp(value, "chunked") != 0) return nonsense(in, "an unknown transfer encoding");
        found->chunked = true;
    } else if (name == 12 && strncasecmp(line, "content-type", name) == 0) {
        static const char problem[] = "application/problem+json";
        char after = strlen(value) < sizeof problem - 1 ? 'x' : value[sizeof problem - 1];
        found->is_problem = strncasecmp(value, problem, sizeof problem - 1) == 0 &&
                            (after == 0 || after == ';' || after == ' ');
    }
    return true;
}

static bool read_head(stream *in, http_answer *answer, head *found) {
    char line[LINE_BYTES];
    do { /* 100 Continue and its like come before the answer */
        *found = (head){.chunked = false};
        if (!read_line(in, line)) return false;
        int minor, status, used = 0;
        if (sscanf(line, "HTTP/1.%1d %3d%n", &minor, &status, &used) != 2 || status < 100 ||
            (line[used] != ' ' && line[used] != 0))
            return nonsense(in, "its first line");
        answer->status = status;
        for (;;) {
            if (!read_line(in, line)) return false;
            if (!line[0]) break;
            if (!read_field(in, line, found)) return false;
        }
    } while (answer->status < 200);
    answer->is_problem = found->is_problem;
    if (found->chunked && found->has_length) return nonsense(in, "two ways to tell its length");
    return true;
}

typedef struct {
    const http_sink *sink;
    http_answer *answer;
    size_t most;
} destination;

/* Pass on `length` bytes of the body; or all that come, where the length is unknown. */
static bool read_body(stream *in, uint64_t length, bool known, const destination *to) {
    while (!known || length) {
        /* without a length, the end of the connection is the end of the answer */
        if (in->at == in->filled && !fill(in)) return !known && in->ended;
        size_t some = in->filled - in->at;
        if (known && some > length) some = (size_t)length;
        if (to->sink) {
            if (!to->sink->take(to->sink->self, in->data + in->at, some)) {
                in->outcome = HTTP_UNREACHABLE;
                if (!in->error->text[0]) tw_fail(in->error, "the answer could not be kept");
                return false;
            }
        } else if (to->answer->body.length + some > to->most) {
            in->outcome = HTTP_UNREACHABLE;
            return tw_fail(in->error, "the answer has more than %zu bytes", to->most);
        } else {
            tw_text_add(&to->answer->body, in->data + in->at, some);
        }
        in->at += some;
        if (known) length -= some;
    }
    return true;
}

static bool read_chunks(stream *in, const destination *to) {
    char line[LINE_BYTES];
    for (;;) {
        uint64_t length;
        in->head = 0;
        if (!read_line(in, line)) return false;
        if (!whole_number(line, 16, &length)) return nonsense(in, "the size of a part");
        if (!length) break;
        if (!read_body(in, length, true, to) || !read_line(in, line)) return false;
        if (line[0]) return nonsense(in, "a part is longer than it says");
    }
    in->head = 0;
    do { /* fields behind the parts */
        if (!read_line(in, line)) return false;
    } while (line[0]);
    return true;
}

http_outcome http_read(int file, const http_patience *patience, const http_sink *sink,
                       http_answer *answer, tw_error *error) {
    stream *in = tw_allocate(sizeof *in);
    head found;
    *error = (tw_error){.text = ""};
    tw_text_clear(&answer->body);
    in->file = file, in->patience = patience, in->error = error;
    bool whole = read_head(in, answer, &found);
    bool takes = sink && answer->status == 200;
    size_t most = answer->status < 300 ? HTTP_ANSWER_BYTES : HTTP_PROBLEM_BYTES;
    destination to = {takes ? sink : NULL, answer, most};
    if (whole && found.chunked)
        whole = read_chunks(in, &to);
    else if (whole && answer->status != 204 && answer->status != 304)
        whole = read_body(in, found.length, found.has_length, &to);
    http_outcome outcome = whole ? HTTP_ANSWERED : in->outcome;
    free(in);
    return outcome;
}

bool http_server_of(http_server *server, const char *url, tw_error *error) {
    static const char scheme[] = "http://";
    *server = (http_server){.port = "80"};
    if (strncasecmp(url, "https://", 8) == 0)
        return tw_fail(error,
                       "this worker has no TLS: let a proxy on the device speak https (stunnel, or "
                       "ssh -L 8080:SERVER:443) and give its address, http://127.0.0.1:8080");
    size_t whole = strlen(url);
    while (whole && url[whole - 1] == '/') whole--;
    if (strncasecmp(url, scheme, sizeof scheme - 1) != 0 || whole <= sizeof scheme - 1 ||
        whole >= sizeof server->url)
        return tw_fail(error, "'%.200s' is no http URL", url);
    for (size_t i = 0; i < whole; i++)
        if (url[i] <= ' ' || url[i] > '~') return tw_fail(error, "the URL has odd characters");
    memcpy(server->url, url, whole);
    const char *start = server->url + sizeof scheme - 1, *end = server->url + whole;
    const char *path = memchr(start, '/', (size_t)(end - start));
    if (!path) path = end;
    const char *close = *start == '[' ? memchr(start, ']', (size_t)(path - start)) : NULL;
    const char *colon =
        memchr(close ? close : start, ':', (size_t)(path - (close ? close : start)));
    const char *host_end = close ? close : colon ? colon : path;
    if (close) start++;
    size_t host = (size_t)(host_end - start), tail = (size_t)(end - path);
    if (!host || host >= sizeof server->host || tail >= sizeof server->path ||
        memchr(start, '@', host))
        return tw_fail(error, "'%.200s' names no host", url);
    memcpy(server->host, start, host);
    memcpy(server->path, path, tail);
    if (colon) {
        size_t digits = (size_t)(path - colon - 1);
        if (!digits || digits >= sizeof server->port || strspn(colon + 1, "0123456789") < digits)
            return tw_fail(error, "'%.200s' has no port that can be", url);
        memset(server->port, 0, sizeof server->port);
        memcpy(server->port, colon + 1, digits);
    }
    return true;
}

static int connect_one(const struct addrinfo *to, const http_patience *patience,
                       http_outcome *outcome, tw_error *error) {
    int file = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, to->ai_protocol);
    int failure = 0;
    socklen_t size = sizeof failure;
    *outcome = HTTP_UNREACHABLE;
    if (file < 0) {
        tw_fail(error, "%s", strerror(errno));
        return -1;
    }
    if (connect(file, to->ai_addr, to->ai_addrlen) == 0) return file;
    if (errno != EINPROGRESS) {
        failure = errno;
    } else if (wait_for(file, POLLOUT, patience, outcome, error)) {
        if (getsockopt(file, SOL_SOCKET, SO_ERROR, &failure, &size) == 0 && !failure) return file;
    } else {
        close(file);
        return -1;
    }
    tw_fail(error, "%s", strerror(failure));
    close(file);
    return -1;
}

static int connect_to(const http_patience *patience, http_outcome *outcome, tw_error *error) {
    const http_server *server = patience->server;
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int status = getaddrinfo(server->host, server->port, &wanted, &found), file = -1;
    *outcome = HTTP_UNREACHABLE;
    if (status) {
        tw_fail(error, "the address of '%.200s' is not known: %s", server->host,
                gai_strerror(status));
        return -1;
    }
    for (struct addrinfo *each = found; each && file < 0 && *outcome != HTTP_STOPPED;
         each = each->ai_next)
        file = connect_one(each, patience, outcome, error);
    freeaddrinfo(found);
    return file;
}

static bool send_all(int file, const tw_text *text, const http_patience *patience,
                     http_outcome *outcome, tw_error *error) {
    for (size_t sent = 0; sent < text->length;) {
        if (!wait_for(file, POLLOUT, patience, outcome, error)) return false;
        ssize_t some = send(file, text->data + sent, text->length - sent, MSG_NOSIGNAL);
        if (some > 0)
            sent += (size_t)some;
        else if (errno == EPIPE || errno == ECONNRESET)
            return true; /* it may have answered before it had read all */
        else if (errno != EINTR && errno != EAGAIN)
            return tw_fail(error, "%s", strerror(errno));
    }
    return true;
}

http_outcome http_ask(const http_server *server, const char *method, const char *path,
                      const tw_text *body, double seconds, const http_sink *sink,
                      http_answer *answer, tw_error *error) {
    http_outcome outcome;
    const http_patience patience = {http_now() + seconds, sink ? HTTP_IDLE_SECONDS : 0, server};
    *error = (tw_error){.text = ""};
    int file = connect_to(&patience, &outcome, error);
    if (file < 0) return outcome;
    tw_text asked = {0};
    /* it never moves: the token would stay behind in memory that is free */
    tw_text_reserve(&asked, sizeof *server + strlen(path) + (body ? body->length : 0) + 1024);
    const char *open = strchr(server->host, ':') ? "[" : "", *close_ = *open ? "]" : "";
    tw_text_format(&asked, "%s %s%s HTTP/1.1\r\nHost: %s%s%s:%s\r\nAuthorization: Bearer %s\r\n",
                   method, server->path, path, open, server->host, close_, server->port,
                   server->token);
    tw_text_format(&asked, "Connection: close\r\nAccept-Encoding: identity\r\n");
    if (body)
        tw_text_format(&asked, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                       body->length);
    tw_text_add(&asked, "\r\n", 2);
    if (body) tw_text_add(&asked, body->data, body->length);
    if (send_all(file, &asked, &patience, &outcome, error))
        outcome = http_read(file, &patience, sink, answer, error);
    explicit_bzero(asked.data, asked.length); /* the token */
    tw_text_free(&asked);
    close(file);
    return outcome;
}
