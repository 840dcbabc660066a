/* The protocol with an agent (tuner/measure/harness/driver.py): requests on standard input, answers
 * on standard output, as lines of JSON and blobs.
 *
 *     harness  {"hello":PROTOCOL,"digest":...,"facts":{...},"brief":{...},"cache_bytes":...}
 *     agent    {"do":"work","worker":ID,"requests":[{...},...]}: one run, or batches to interleave
 *     harness  {"need":[DIGEST,...]}
 *     agent    {"blob":DIGEST,"bytes":N}, then N bytes; for each that is needed, in that order
 *     harness  {"results":[{...},...]}, {"failed":REASON,"cause":"worker" or "service"}, or
 *              {"cancelled":true}
 *     agent    {"do":"cancel"}, at any time after the work. Batches that have begun still answer with
 *              "results", in which unfinished candidates have the status "cancelled"
 *     agent    {"do":"probe"}, between works; with "times":N, the harness answers
 *     harness  {"readings":[[SECONDS,SECONDS],...]} of the reference kernel's two parts, or "failed"
 *     harness  {"state":{"speed":...,"condition":...}}, {"log":TEXT}, at any time
 *
 * The agent's end ends the harness, and whatever it has started. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "digest.h"
#include "harness.h"
#include "system.h"

enum {
    MOST_LINE_BYTES = 256 << 20,
    STATE_SECONDS = 5,
    FOREVER = -1,
    MOST_PROBES = 100,
};

typedef struct {
    tw_harness *harness;
    tw_text input; /* received and unread bytes */
    size_t start;  /* offset of its unread part */
    bool ended, is_cancelled;
    double told_at; /* when the state was last sent */
} server;

/* Output. */

static void write_all(const char *data, size_t length) {
    while (length) {
        ssize_t some = write(STDOUT_FILENO, data, length);
        if (some < 0 && errno == EINTR) continue;
        if (some < 0) _exit(0); /* the agent is gone; the sandbox dies with its parent */
        data += some, length -= (size_t)some;
    }
}

static void tell(tw_text *line) {
    tw_text_add(line, "\n", 1);
    write_all(line->data, line->length);
    tw_text_free(line);
}

static bool is_serving; /* without an agent the log has no reader */

void tw_say(const char *format, ...) {
    char text[1200];
    tw_text line = {0};
    va_list given;
    if (!is_serving) return;
    va_start(given, format);
    vsnprintf(text, sizeof text, format, given);
    va_end(given);
    tw_text_format(&line, "{\"" HARNESS_MESSAGE_LOG "\":");
    tw_text_string(&line, text, strlen(text));
    tw_text_add(&line, "}", 1);
    tell(&line);
}

static void tell_failed(const char *cause, const tw_error *error) {
    tw_text line = {0};
    tw_text_format(&line, "{\"" HARNESS_MESSAGE_FAILED "\":");
    tw_text_string(&line, error->text, strlen(error->text));
    tw_text_format(&line, ",\"cause\":\"%s\"}", cause);
    tell(&line);
}

static void tell_state(server *self) {
    tw_text line = {0};
    tw_text_format(&line, "{\"" HARNESS_MESSAGE_STATE "\":{\"speed\":");
    tw_speed_json(&self->harness->speed, &line);
    tw_text_format(&line, ",\"condition\":");
    tw_condition(&line, self->harness->root);
    tw_text_add(&line, "}}", 2);
    tell(&line);
    self->told_at = tw_now();
}

static void tell_hello(const tw_harness *harness) {
    tw_text line = {0};
    tw_text_format(&line, "{\"" HARNESS_MESSAGE_HELLO "\":%d,\"digest\":\"", PROTOCOL);
    char hex[TW_DIGEST_CHARACTERS + 1] = "";
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (file >= 0) tw_sha256_file(file, hex);
    if (file >= 0) close(file);
    tw_text_format(&line, "%s\",\"facts\":%s,\"brief\":%s,\"cache_bytes\":%llu}", hex,
                   harness->facts.registration.data, harness->facts.brief.data,
                   (unsigned long long)tw_cache_room(&harness->cache));
    tell(&line);
}

/* Input. */

/* Read the available input, after waiting for it; false if none came, or the input has ended. */
static bool read_some(server *self, int milliseconds) {
    static char data[1 << 16];
    struct pollfd one = {.fd = STDIN_FILENO, .events = POLLIN};
    if (self->ended || poll(&one, 1, milliseconds) <= 0) return false;
    ssize_t got = read(STDIN_FILENO, data, sizeof data);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return false;
    if (got <= 0 || self->input.length - self->start > MOST_LINE_BYTES) {
        self->ended = true;
        return false;
    }
    if (self->start) {
        memmove(self->input.data, self->input.data + self->start, self->input.length - self->start);
        self->input.length -= self->start, self->start = 0;
    }
    tw_text_add(&self->input, data, (size_t)got);
    return true;
}

/* The next line, which is the caller's to free; NULL where none has come, or none will. */
static char *take_line(server *self, int milliseconds, size_t *length) {
    size_t seen = 0;
    for (;;) {
        const char *begin = self->input.data ? self->input.data + self->start : NULL;
        size_t here = self->input.length - self->start;
        const char *end = here > seen ? memchr(begin + seen, '\n', here - seen) : NULL;
        if (end) {
            *length = (size_t)(end - begin);
            char *line = tw_allocate(*length + 1);
            memcpy(line, begin, *length);
            self->start += *length + 1;
            return line;
        }
        seen = here;
        if (!read_some(self, milliseconds) && (self->ended || milliseconds != FOREVER)) return NULL;
    }
}

/* Tell the state now and then: an agent takes a device that is silent for lost. */
static void tell_sometimes(server *self) {
    if (!self->ended && tw_now() >= self->told_at + STATE_SECONDS) tell_state(self);
}

/* Whether the agent has taken the work back, or has ended. */
static bool is_over(void *given) {
    server *self = given;
    size_t length;
    char *line = take_line(self, 0, &length);
    if (line) {
        json_document document = {0};
        const json *said = json_parse(&document, line, length);
        if (strcmp(json_get_text(said, "do"), AGENT_MESSAGE_CANCEL) == 0)
            self->is_cancelled = true;
        else
            self->ended = true; /* during work, an agent sends no other message */
        json_free(&document);
        free(line);
    }
    tell_sometimes(self);
    return self->ended || self->is_cancelled;
}

/* The same for a probe, which cannot be cancelled: the agent's next messages are read after it. */
static bool has_ended(void *given) {
    server *self = given;
    tell_sometimes(self);
    return self->ended;
}

/* Let the device cool for a second; false if the work was cancelled or the agent has gone. */
static bool wait_a_second(void *given) {
    for (double until = tw_now() + 1; !is_over(given) && tw_now() < until;) poll(NULL, 0, 50);
    return !is_over(given);
}

/* Blobs. */

/* Store the bytes of a blob that come next; bytes that cannot be stored are read and dropped. */
static bool keep(server *self, const char *digest, uint64_t left, tw_error *error) {
    tw_cache *cache = &self->harness->cache;
    char hex[TW_DIGEST_CHARACTERS + 1];
    tw_sha256 sum;
    tw_sha256_begin(&sum);
    int file = tw_cache_begin(cache, digest, error);
    bool kept = file >= 0;
    while (left) {
        size_t here = self->input.length - self->start;
        tell_sometimes(self);
        if (!here) {
            read_some(self, FOREVER);
            if (self->ended) break;
            continue;
        }
        const char *data = self->input.data + self->start;
        size_t some = here < left ? here : (size_t)left;
        tw_sha256_add(&sum, data, some);
        for (size_t sent = 0; kept && sent < some;) {
            ssize_t written = write(file, data + sent, some - sent);
            if (written > 0) sent += (size_t)written;
            if (written > 0 || errno == EINTR) continue;
            kept = tw_fail(error, "blob %s cannot be kept: %s", digest, strerror(errno));
        }
        self->start += some, left -= some;
    }
    tw_sha256_end(&sum, hex);
    if (left) kept = false;
    if (kept && strcmp(hex, digest) != 0)
        kept = tw_fail(error, "blob %s arrived damaged", digest);
    return file >= 0 && tw_cache_end(cache, digest, file, kept) && kept;
}

/* Fetch the missing blobs of a request. False with the reason, or if the work has ended. */
static bool fetch_all(server *self, tw_blob *blobs, size_t count, tw_error *error) {
    tw_cache *cache = &self->harness->cache;
    tw_text line = {0};
    const tw_blob **needed = tw_allocate(count * sizeof *needed + 1);
    size_t missing = 0;
    bool good = true;
    tw_text_format(&line, "{\"" HARNESS_MESSAGE_NEED "\":[");
    for (size_t i = 0; i < count; i++) {
        tell_sometimes(self);
        if (tw_cache_has(cache, blobs[i].digest)) continue;
        tw_text_format(&line, "%s\"%s\"", missing ? "," : "", blobs[i].digest);
        needed[missing++] = &blobs[i];
    }
    tw_text_add(&line, "]}", 2);
    tell(&line);
    for (size_t i = 0; i < missing && !self->is_cancelled && !self->ended; i++) {
        json_document document = {0};
        size_t length;
        char *text = take_line(self, FOREVER, &length);
        const json *head = text ? json_parse(&document, text, length) : NULL;
        int64_t bytes;
        if (strcmp(json_get_text(head, "do"), AGENT_MESSAGE_CANCEL) == 0) {
            self->is_cancelled = true;
        } else if (strcmp(json_get_text(head, "blob"), needed[i]->digest) != 0 ||
                   !json_integer(json_get(head, "bytes"), 0, BYTES_LIMIT, &bytes)) {
            self->ended = true; /* the following bytes have an unknown length */
        } else {
            if (good) tw_cache_trim(cache, blobs, count, (uint64_t)bytes);
            good = keep(self, needed[i]->digest, (uint64_t)bytes, error) && good;
        }
        json_free(&document);
        free(text);
    }
    free(needed);
    uint64_t all = 0;
    for (size_t i = 0; i < count && good && !self->is_cancelled && !self->ended; i++) {
        good = tw_cache_map(cache, &blobs[i], error);
        all += blobs[i].size;
        if (good && all > tw_cache_room(cache))
            good = tw_fail(error, "the request's blobs have more than the %llu bytes of the cache",
                           (unsigned long long)tw_cache_room(cache));
    }
    return good && !self->is_cancelled && !self->ended;
}

/* Work. */

static bool take_name(tw_harness *harness, const char *worker, tw_error *error) {
    if (strlen(worker) >= sizeof harness->worker)
        return tw_fail(error, "the worker's name has more than %zu bytes",
                       sizeof harness->worker - 1);
    strcpy(harness->worker, worker);
    return true;
}

static void work(server *self, const json *asked) {
    tw_harness *harness = self->harness;
    const char *cause = FAILURE_CAUSE_SERVICE;
    tw_error error = {.text = ""};
    tw_text result = {0};
    size_t count;
    self->is_cancelled = false;
    tw_task *task = NULL;
    if (take_name(harness, json_get_text(asked, "worker"), &error))
        task = tw_task_of(harness, json_get_kind(asked, "requests", JSON_ARRAY), &error);
    bool done = task != NULL;
    if (done) {
        cause = FAILURE_CAUSE_WORKER;
        tw_blob *blobs = tw_task_blobs(task, &count);
        done = fetch_all(self, blobs, count, &error);
    }
    if (done) {
        tw_cool_down(&harness->heat, wait_a_second, self, tw_say);
        done = !is_over(self) && tw_task_do(task, is_over, self, &result, &error);
    }
    if (self->ended || (self->is_cancelled && !done)) {
        tw_text line = {0};
        tw_text_format(&line, "{\"" HARNESS_MESSAGE_CANCELLED "\":true}");
        tell(&line);
    } else if (done) {
        tw_text line = {0};
        tell_state(self);
        tw_text_format(&line, "{\"" HARNESS_MESSAGE_RESULTS "\":");
        tw_text_add(&line, result.data, result.length);
        tw_text_add(&line, "}", 1);
        tell(&line);
    } else {
        tell_failed(cause, &error);
    }
    tw_text_free(&result);
    tw_task_free(task);
}

/* Time the reference kernel. Send the readings if the request has their number, "times". */
static void probe(server *self, const json *asked) {
    const tw_speed *speed = &self->harness->speed;
    tw_error error = {.text = ""};
    tw_text line = {0};
    int64_t times = 1;
    bool told = json_integer(json_get(asked, "times"), 1, MOST_PROBES, &times);
    size_t number = speed->counts[0];
    self->is_cancelled = false;
    bool probed = tw_probe_device(self->harness, (int)times, has_ended, self, &error);
    if (!probed && told) tell_failed(FAILURE_CAUSE_WORKER, &error);
    if (!probed && !told) tw_say("the reference kernel: %s", error.text);
    tell_state(self);
    if (!probed || !told) return;
    tw_text_format(&line, "{\"" HARNESS_MESSAGE_READINGS "\":[");
    for (size_t first = number; number < speed->counts[0]; number++) {
        tw_text_add(&line, number == first ? "[" : ",[", number == first ? 1 : 2);
        tw_text_number(&line, speed->readings[0][0][number % MOST_READINGS]);
        tw_text_add(&line, ",", 1);
        tw_text_number(&line, speed->readings[0][1][number % MOST_READINGS]);
        tw_text_add(&line, "]", 1);
    }
    tw_text_add(&line, "]}", 2);
    tell(&line);
}

int tw_serve(tw_harness *harness) {
    server self = {.harness = harness};
    is_serving = true;
    tell_hello(harness);
    tell_state(&self);
    while (!self.ended) {
        json_document document = {0};
        size_t length;
        char *text = take_line(&self, 1000 * STATE_SECONDS, &length);
        const json *asked = text ? json_parse(&document, text, length) : NULL;
        const char *what = json_get_text(asked, "do");
        if (strcmp(what, AGENT_MESSAGE_WORK) == 0)
            work(&self, asked);
        else if (strcmp(what, AGENT_MESSAGE_PROBE) == 0)
            probe(&self, asked);
        else if (text && strcmp(what, AGENT_MESSAGE_CANCEL) != 0) /* that came after the result */
            self.ended = true;
        json_free(&document);
        free(text);
        tell_sometimes(&self);
    }
    tw_text_free(&self.input);
    return 0;
}
