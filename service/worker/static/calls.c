/* What a worker says to its service, and what it makes of the answers. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "digest.h"
#include "worker.h"

#define TIMEOUT_SECONDS 30.0
#define BLOB_SECONDS 3600.0
#define LONGEST_SECONDS 3600.0
#define FIRST_PAUSE 0.1
#define LAST_PAUSE 5.0
#define PROBLEM "urn:tilewright:problem:"

void tw_say(const char *format, ...) {
    char text[1200], stamp[16];
    time_t now = time(NULL);
    struct tm parts;
    va_list given;
    va_start(given, format);
    vsnprintf(text, sizeof text, format, given);
    va_end(given);
    for (char *c = text; *c; c++) /* one line, whatever somebody's text holds */
        if ((unsigned char)*c < ' ' || *c == 127) *c = ' ';
    strftime(stamp, sizeof stamp, "%H:%M:%S", localtime_r(&now, &parts));
    fprintf(stderr, "%s %s\n", stamp, text);
}

void tw_end(tw_worker *worker, int status, const char *format, ...) {
    char text[800];
    va_list given;
    va_start(given, format);
    vsnprintf(text, sizeof text, format, given);
    va_end(given);
    if (*text) tw_say("%s", text);
    if (!worker->ends) worker->status = status;
    worker->ends = true;
}

void tw_draw_name(char name[33]) {
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
        tw_say("the system gives no random numbers");
        exit(1);
    }
    for (int i = 0; i < 16; i++) snprintf(name + 2 * i, 3, "%02x", bytes[i]);
}

void tw_pause(double *pause) {
    uint32_t drawn = 0;
    *pause = *pause == 0 ? FIRST_PAUSE : fmin(2 * *pause, LAST_PAUSE);
    if (getrandom(&drawn, sizeof drawn, GRND_NONBLOCK) < 0) drawn = 0;
    double until = http_now() + *pause * (0.5 + 0.5 * (double)drawn / 4294967296.0);
    while (!http_stop && http_now() < until)
        nanosleep(&(struct timespec){0, 20000000}, NULL); /* a signal may come just before it */
}

/* A refusal if the service itself wrote this, and not a proxy before it. */
static tw_told problem(const http_answer *answer, const json *body, tw_refusal *refusal,
                       tw_error *error) {
    const char *kind = json_get_text(body, "type"), *detail = json_get_text(body, "detail");
    const char *what = json_get_text(body, "what");
    int status = answer->status;
    if (status >= 300 && status < 400) {
        tw_fail(error, "the answer is a redirect (%d), which is not followed", status);
        return CALL_AGAIN;
    }
    if (!answer->is_problem || strncmp(kind, PROBLEM, sizeof PROBLEM - 1) != 0) {
        tw_fail(error, "the answer is not the service's: %d", status);
        return CALL_AGAIN;
    }
    const char *slug = kind + sizeof PROBLEM - 1;
    bool no_route = strcmp(slug, "not-found") == 0 && !*what;
    if (status >= 500 || status == 408 || status == 429 || no_route) {
        tw_fail(error, "the service failed: %.300s", detail);
        return CALL_AGAIN;
    }
    tw_fail(error, "%.300s (%d)", detail, status);
    *refusal = (tw_refusal){.slug = ""};
    snprintf(refusal->slug, sizeof refusal->slug, "%.60s", slug);
    refusal->ends_worker = strcmp(slug, "unauthorized") == 0 || strcmp(slug, "forbidden") == 0 ||
                           strcmp(slug, "protocol-version") == 0;
    refusal->worker_unknown = strcmp(slug, "not-found") == 0 && strcmp(what, "worker") == 0;
    return CALL_REFUSED;
}

tw_told tw_ask(tw_worker *worker, const char *method, const char *path, const tw_text *body,
               double seconds, json_document *document, const json **answer, tw_refusal *refusal,
               tw_error *error) {
    http_answer found = {.status = 0};
    tw_refusal unread;
    if (!refusal) refusal = &unread;
    *refusal = (tw_refusal){.slug = ""};
    http_outcome outcome = http_ask(&worker->server, method, path, body, TIMEOUT_SECONDS + seconds,
                                    NULL, &found, error);
    tw_told told = outcome == HTTP_STOPPED ? CALL_STOPPED : CALL_AGAIN;
    if (outcome == HTTP_ANSWERED) {
        const json *read =
            found.body.length ? json_parse(document, found.body.data, found.body.length) : NULL;
        bool good = found.status >= 200 && found.status < 300;
        if (!good)
            told = problem(&found, read, refusal, error);
        else if (found.body.length && (!read || read->kind != JSON_OBJECT))
            tw_fail(error, "the answer is not the service's: it is no JSON object");
        else
            told = CALL_DONE;
        *answer = read;
    }
    if (outcome == HTTP_UNREACHABLE) {
        char why[sizeof error->text];
        memcpy(why, error->text, sizeof why);
        tw_fail(error, "%.150s does not answer: %.200s", worker->server.url, why);
    }
    json_keep(document, found.body.data); /* freed with what refers to it */
    return told;
}

bool tw_seconds(const json *answer, const char *name, double *found) {
    if (!json_number(json_get(answer, name), found)) return false;
    *found = fmin(fmax(*found, 0.05), LONGEST_SECONDS);
    return true;
}

/* Go by the service's key: the one that was given, or that it had when it was first met. */
static bool check_key(tw_worker *worker, const char *said, tw_error *error) {
    char known[64];
    if (!tw_from_base64(said, worker->key, sizeof worker->key))
        return tw_fail(error, "the answer is not the service's: it has no public key");
    tw_state_read(&worker->state, "service-key", known, sizeof known);
    const char *right = *worker->given_key ? worker->given_key : known;
    if (*right && strcmp(right, said) != 0) {
        tw_end(worker, 1,
               "the key of the service at %.200s is %.64s, and was %.64s: if it is meant to have "
               "another one, start the worker once with --service-key",
               worker->server.url, said, right);
        return false;
    }
    if (strcmp(known, said) != 0) tw_state_write(&worker->state, "service-key", said);
    return true;
}

static bool take_registration(tw_worker *worker, const json *answer, tw_error *error) {
    const json *self = json_get_kind(answer, "worker", JSON_OBJECT);
    const json *keys = json_get_kind(self, "target_keys", JSON_ARRAY);
    const char *id = json_get_text(self, "id"), *why = json_get_text(answer, "recognised");
    if (!keys || strlen(id) != 32 || strspn(id, "0123456789abcdef") != 32 ||
        !tw_seconds(answer, "heartbeat_seconds", &worker->heartbeat_seconds) ||
        !tw_seconds(answer, "long_poll_seconds", &worker->long_poll_seconds))
        return tw_fail(error, "the answer is not the service's: it registers nobody");
    if (!check_key(worker, json_get_text(answer, "service_key"), error)) return false;
    memcpy(worker->id, id, sizeof worker->id);
    tw_state_write(&worker->state, "static/id", id);
    tw_say("registered as %s for %zu targets%s%.300s", id, keys->count, *why ? ": " : "", why);
    return true;
}

static void registration(const tw_worker *worker, tw_text *body) {
    tw_text_format(body, "{\"name\":");
    tw_text_string(body, worker->name, strlen(worker->name));
    tw_text_format(body, ",\"device\":%s,\"targets\":[", worker->facts.registration.data);
    for (size_t i = 0; i < worker->target_count; i++) {
        if (i) tw_text_add(body, ",", 1);
        tw_text_string(body, worker->targets[i], strlen(worker->targets[i]));
    }
    tw_text_format(body, "],\"protocol\":%d,\"worker_id\":\"%s\"}", PROTOCOL, worker->id);
}

void tw_register(tw_worker *worker) {
    double pause = 0;
    bool said = false, drawn = false;
    tw_state_read(&worker->state, "static/id", worker->id, sizeof worker->id);
    if (strlen(worker->id) != 32 || strspn(worker->id, "0123456789abcdef") != 32) {
        tw_draw_name(worker->id);
        drawn = true;
    }
    while (!worker->ends && !http_stop) {
        json_document document = {0};
        const json *answer = NULL;
        tw_refusal refusal;
        tw_error error;
        tw_text body = {0};
        registration(worker, &body);
        tw_told told =
            tw_ask(worker, "POST", "/v1/workers", &body, 0, &document, &answer, &refusal, &error);
        tw_text_free(&body);
        bool taken = told == CALL_DONE && take_registration(worker, answer, &error);
        json_free(&document);
        if (taken) return;
        if (told == CALL_REFUSED && strcmp(refusal.slug, "forbidden") == 0 && !drawn) {
            tw_draw_name(worker->id); /* it was another token's */
            drawn = true;
            continue;
        }
        if (told == CALL_REFUSED)
            tw_end(worker, 1, "the service refuses this worker: %s", error.text);
        if (worker->ends || told == CALL_STOPPED) return;
        if (!said) tw_say("waiting for the service: %s", error.text);
        said = true;
        tw_pause(&pause);
    }
}

void tw_beat(tw_worker *worker) {
    if (worker->is_beating || http_now() < worker->next_heartbeat) return;
    worker->is_beating = true; /* what waits for its answer beats no second time */
    json_document document = {0};
    const json *answer = NULL;
    tw_refusal refusal;
    tw_error error;
    tw_text body = {0};
    char path[128];
    tw_text_format(
        &body, *worker->lease ? "{\"leases\":[\"%s\"],\"speed\":" : "{\"leases\":[%s],\"speed\":",
        worker->lease);
    tw_speed_json(&worker->speed, true, &body);
    tw_text_format(&body, ",\"condition\":");
    tw_condition(&body, worker->root);
    tw_text_add(&body, "}", 1);
    snprintf(path, sizeof path, "/v1/workers/%s/heartbeat", worker->id);
    tw_told told = tw_ask(worker, "POST", path, &body, 0, &document, &answer, &refusal, &error);
    worker->next_heartbeat = http_now() + worker->heartbeat_seconds;
    if (told == CALL_DONE) {
        const json *renewed = json_get_kind(answer, "renewed", JSON_OBJECT);
        bool draining = strcmp(json_get_text(answer, "health"), "draining") == 0;
        tw_seconds(answer, "heartbeat_seconds", &worker->heartbeat_seconds);
        worker->next_heartbeat = http_now() + worker->heartbeat_seconds;
        if (renewed && *worker->lease && !json_get(renewed, worker->lease)) worker->lost = true;
        if (draining != worker->is_draining)
            tw_say(draining ? "drained: nothing new comes" : "used again");
        worker->is_draining = draining;
    } else if (told == CALL_REFUSED && refusal.ends_worker) {
        tw_end(worker, 1, "the service refuses this worker: %s", error.text);
    } else if (told == CALL_REFUSED && refusal.worker_unknown) {
        tw_say("the service does not know this worker any more");
        worker->lost = true;
        tw_register(worker);
    } else if (told != CALL_STOPPED) {
        tw_say("%s", error.text);
    }
    worker->is_beating = false;
    tw_text_free(&body);
    json_free(&document);
}

void tw_leave(tw_worker *worker) {
    json_document document = {0};
    const json *answer = NULL;
    tw_error error;
    tw_text body = {0};
    char path[128];
    snprintf(path, sizeof path, "/v1/workers/%s", worker->id);
    tw_told told = tw_ask(worker, "DELETE", path, NULL, 0, &document, &answer, NULL, &error);
    if (told == CALL_DONE && *worker->lease) {
        tw_text_format(&body, "{\"worker_id\":\"%s\",\"leases\":[\"%s\"]}", worker->id,
                       worker->lease);
        json_free(&document);
        told = tw_ask(worker, "POST", "/v1/leases/release", &body, 0, &document, &answer, NULL,
                      &error);
    }
    if (told != CALL_DONE) tw_say("no good-bye: %s", error.text);
    tw_text_free(&body);
    json_free(&document);
    tw_say("stopped after %lld requests", worker->results);
}

/* A blob on its way to the disk. */
typedef struct {
    tw_worker *worker;
    int file;
    uint64_t left;
    bool is_too_large;
    int failure; /* why its bytes cannot be kept; 0 if they can */
    tw_sha256 sum;
} arriving;

static bool arrive(void *given, const char *data, size_t length) {
    arriving *self = given;
    tw_beat(self->worker); /* a large one takes longer than a lease holds */
    self->is_too_large = length > self->left;
    if (self->is_too_large || self->worker->lost || self->worker->ends) return false;
    self->left -= length;
    tw_sha256_add(&self->sum, data, length);
    while (length) {
        ssize_t some = write(self->file, data, length);
        if (some < 0 && errno != EINTR) {
            self->failure = errno;
            return false;
        }
        if (some > 0) data += some, length -= (size_t)some;
    }
    return true;
}

tw_told tw_fetch(tw_worker *worker, const char *digest, uint64_t most, bool *damaged,
                 tw_error *error) {
    *damaged = false;
    char path[128], hex[TW_DIGEST_CHARACTERS + 1];
    if (tw_state_has(&worker->state, digest)) return CALL_DONE;
    arriving self = {
        .worker = worker, .file = tw_state_begin(&worker->state, digest, error), .left = most};
    http_sink sink = {arrive, &self};
    http_answer answer = {.status = 0};
    tw_refusal refusal;
    if (self.file < 0) return CALL_REFUSED; /* nor would it help to ask again */
    tw_sha256_begin(&self.sum);
    snprintf(path, sizeof path, "/v1/blobs/%s", digest);
    http_outcome outcome =
        http_ask(&worker->server, "GET", path, NULL, BLOB_SECONDS, &sink, &answer, error);
    tw_told told = outcome == HTTP_STOPPED ? CALL_STOPPED : CALL_AGAIN;
    tw_sha256_end(&self.sum, hex);
    bool here = outcome == HTTP_ANSWERED && answer.status == 200;
    if (here && strcmp(hex, digest) != 0) {
        tw_fail(error, "blob %s arrived damaged", digest);
        here = false, *damaged = true;
    } else if (outcome == HTTP_ANSWERED && !here) {
        json_document document = {0};
        told = problem(&answer, json_parse(&document, answer.body.data, answer.body.length),
                       &refusal, error);
        json_free(&document);
    }
    if (tw_state_end(&worker->state, digest, self.file, here)) {
        told = CALL_DONE;
    } else if (self.is_too_large) { /* to ask again would not change that */
        tw_fail(error, "blob %s has more than %llu bytes", digest, (unsigned long long)most);
        told = CALL_REFUSED;
    } else if (here || self.failure) {
        tw_fail(error, "blob %s cannot be kept: %s", digest,
                strerror(self.failure ? self.failure : errno));
        told = CALL_REFUSED;
    }
    tw_text_free(&answer.body);
    return told;
}

bool tw_is_signed(const tw_worker *worker, const char *request_id, const json *payload,
                  const char *signature) {
    unsigned char bytes[64];
    tw_text said = {0};
    tw_text_format(&said, "tilewright lease 1\n%s\n", request_id);
    bool right = json_canonical(payload, &said) && tw_from_base64(signature, bytes, sizeof bytes) &&
                 tw_is_signature(worker->key, said.data, said.length, bytes);
    tw_text_free(&said);
    return right;
}
