/* One lease, from the claim until there is a result. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "digest.h"
#include "system.h"
#include "worker.h"

enum {
    MOST_BLOBS = 100000,
    MOST_DAMAGED = 4, /* times that a blob may arrive so: the service's own copy may be */
    LOOK_SECONDS = 20,
    MOST_STEPS = 10000,
    EVENT_BYTES = 4096,        /* of an event, besides what grows with the request */
    CASE_BYTES = 32,           /* a number for each case */
    RUN_EVENT_BYTES = 4 << 20, /* of the result of a run: errors, ratios, seconds of instructions */
    OUTPUT_BYTES = 23 << 20,   /* and each output that it brings back, in base64 */
    MOST_EVENT_BYTES = 64 << 20,
};
#define START_SECONDS 60.0

/* A request on its way. */
typedef struct {
    tw_worker *worker;
    const json *request;
    json_document document; /* of the request spelled out */
    tw_blob *blobs;
    size_t count, room;
    char request_id[201];
    tw_text result; /* of a run: what the sandbox said */
} task;

/* Whether a name can be part of a path and of a log. */
static bool is_name(const char *text, size_t most) {
    size_t length = strlen(text);
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("_.-", text[i])) return false;
    return length && length <= most && text[0] != '.' && text[0] != '-';
}

static bool over(const tw_worker *worker) { return worker->lost || worker->ends || http_stop; }

/* Renew the lease while something is waited for; whether anybody still wants that. */
static bool goes_on(void *given) {
    tw_worker *worker = given;
    if (worker->is_beating) return true;
    if (!over(worker)) tw_beat(worker);
    return !over(worker);
}

static void name_blob(task *self, const char *digest, int64_t bytes) {
    for (size_t i = 0; i < self->count; i++)
        if (strcmp(self->blobs[i].digest, digest) == 0) return;
    if (self->count == self->room) {
        self->room = 2 * self->room + 16;
        tw_blob *more = realloc(self->blobs, self->room * sizeof *more);
        if (!more) exit(TW_NO_MEMORY_STATUS);
        self->blobs = more;
    }
    tw_blob *named = &self->blobs[self->count++];
    *named = (tw_blob){.size = (size_t)bytes};
    snprintf(named->digest, sizeof named->digest, "%.64s", digest);
}

/* The blobs that a request names; of a run with their sizes. */
static bool name_blobs(task *self, bool is_run, uint64_t most, uint64_t *all, tw_error *error) {
    const json *cases = json_get_kind(self->request, "cases", JSON_ARRAY);
    const json *plain = json_get_kind(self->request, "plain", JSON_ARRAY);
    const json *sizes = json_get_kind(self->request, "blobs", JSON_OBJECT);
    size_t count =
        (cases ? cases->count : 0) + (plain ? plain->count : 0) + (sizes ? sizes->count : 0);
    *all = 0;
    if (count > MOST_BLOBS || (is_run ? !sizes : !cases))
        return tw_fail(error, "the request makes no sense");
    for (const json *each = is_run ? sizes->first : NULL; each; each = each->next) {
        int64_t bytes;
        if (!tw_is_digest(each->key) || !json_integer(each, 0, INT64_C(1) << 46, &bytes))
            return tw_fail(error, "the request names what is no blob");
        *all += (uint64_t)bytes; /* 100,000 times 2^46 is less than 2^63 */
        /* what no memory can hold is refused before anything is fetched */
        name_blob(self, each->key, bytes < PTRDIFF_MAX / 2 ? bytes : PTRDIFF_MAX / 2);
    }
    if (is_run) return true;
    name_blob(self, json_get_text(self->request, "library_digest"), (int64_t)most);
    for (const json *each = cases->first; each; each = each->next)
        name_blob(self, json_get_text(each, "reference_digest"), (int64_t)most);
    for (const json *each = plain ? plain->first : NULL; each; each = each->next)
        name_blob(self, each->kind == JSON_STRING ? each->string : "", (int64_t)most);
    for (size_t i = 0; i < self->count; i++)
        if (!tw_is_digest(self->blobs[i].digest))
            return tw_fail(error, "the request names what is no blob");
    return true;
}

/* Why a run cannot be done here, which states what it needs; false if it can. */
static bool refused(const task *self, uint64_t all, tw_error *error) {
    const tw_worker *worker = self->worker;
    int64_t wanted;
    if (!json_integer(json_get(self->request, "memory_bytes"), 0, INT64_C(1) << 46, &wanted))
        wanted = 0;
    uint64_t memory = worker->facts.memory_bytes, available = tw_free_bytes(worker->root);
    if (all > worker->state.cache_bytes)
        tw_fail(error, "the run needs %llu bytes of blobs, this worker keeps %llu",
                (unsigned long long)all, (unsigned long long)worker->state.cache_bytes);
    else if (all > PTRDIFF_MAX / 2) /* 1 GiB where addresses have 32 bits */
        tw_fail(error, "the run needs %llu bytes of blobs, a process here has room for %llu",
                (unsigned long long)all, (unsigned long long)PTRDIFF_MAX / 2);
    else if (memory && (uint64_t)wanted > memory)
        tw_fail(error, "the run needs %lld bytes of memory, this device has %llu",
                (long long)wanted, (unsigned long long)memory);
    else if ((uint64_t)wanted > available)
        tw_fail(error, "the run needs %lld bytes of memory, %llu are free on this device",
                (long long)wanted, (unsigned long long)available);
    else
        return false;
    return true;
}

/* Fetch a blob, of `most` bytes at most; false where the lease is over, or has failed. */
static bool fetch(tw_worker *worker, const tw_blob *blob, uint64_t most, const char **cause,
                  tw_error *error) {
    double pause = 0;
    bool damaged = false;
    for (int times = 0; !over(worker);) {
        tw_beat(worker);
        tw_told told = tw_fetch(worker, blob->digest, most, &damaged, error);
        if (told != CALL_AGAIN) return told == CALL_DONE;
        times += damaged;
        if (times >= MOST_DAMAGED) {
            *cause = "service";
            return tw_fail(error, "blob %s arrived damaged %d times", blob->digest, times);
        }
        tw_say("%s", error->text);
        tw_pause(&pause);
    }
    return false;
}

/* Fetch all blobs, and map them: together no more than the cache may hold. False where the lease is
 * over, or has failed. */
static bool fetch_all(task *self, bool is_run, uint64_t most, const char **cause,
                      tw_error *error) {
    tw_worker *worker = self->worker;
    uint64_t left = most, coming = 0;
    for (size_t i = 0; is_run && i < self->count; i++)
        if (!tw_state_here(&worker->state, self->blobs[i].digest)) coming += self->blobs[i].size;
    tw_state_trim(&worker->state, self->blobs, self->count, coming);
    for (size_t i = 0; i < self->count; i++) {
        tw_blob *blob = &self->blobs[i];
        if (!fetch(worker, blob, blob->size < left ? blob->size : left, cause, error)) return false;
        if (!tw_state_map(&worker->state, blob, error)) return false;
        if (blob->size > left) /* it was here already */
            return tw_fail(error, "the request's blobs have more than %llu bytes together",
                           (unsigned long long)most);
        left -= blob->size;
    }
    tw_state_trim(&worker->state, self->blobs, self->count, 0);
    return true;
}

static void take_event(void *given, const json *event) {
    task *self = given;
    const char *what = json_get_text(event, "event");
    if (strcmp(what, "result") == 0) {
        tw_text_clear(&self->result);
        tw_text_add(&self->result, event->raw, event->raw_length);
    } else if (strcmp(what, "confined") == 0) {
        const char *guards = json_get_text(event, "error");
        if (strcmp(guards, self->worker->guards) == 0) return;
        snprintf(self->worker->guards, sizeof self->worker->guards, "%s", guards);
        tw_say("candidates are confined: %s", guards);
    }
}

static bool is_cancelled(void *given) {
    task *self = given;
    if (!over(self->worker)) tw_beat(self->worker);
    return over(self->worker);
}

static tw_job job_of(const task *self, int threads) {
    const tw_worker *worker = self->worker;
    const json *plain = json_get_kind(self->request, "plain", JSON_ARRAY);
    const char *plan =
        plain && plain->first && plain->first->kind == JSON_STRING ? plain->first->string : "";
    tw_job job = {.request = self->request,
                  .blobs = self->blobs,
                  .blob_count = self->count,
                  .threads = threads,
                  .memory = worker->sandbox_bytes,
                  .cores = worker->facts.some_cores ? &worker->facts.cores : NULL,
                  .secret = (char *)(uintptr_t)worker->server.token,
                  .secret_bytes = sizeof worker->server.token};
    for (size_t i = 0; i < self->count && *plan; i++)
        if (strcmp(self->blobs[i].digest, plan) == 0) job.plan = &self->blobs[i];
    return job;
}

/* Most bytes that an event of a run can have. */
static size_t run_event_bytes(const json *request) {
    const json *fetch = json_get_kind(json_get(request, "work"), "fetch", JSON_ARRAY);
    size_t outputs = fetch ? fetch->count : 0;
    if (outputs >= MOST_EVENT_BYTES / OUTPUT_BYTES) return MOST_EVENT_BYTES;
    return RUN_EVENT_BYTES + outputs * OUTPUT_BYTES;
}

/* The fields of a run's result that the sandbox has filled, or their empty values. */
static void add_run_fields(const task *self, bool ok, tw_text *text) {
    static const char *const names[] = {"errors", "fetched", "race", "seconds", "speeds"};
    static const char *const empty[] = {"{}", "{}", "null", "[]", "null"};
    json_document document = {0};
    const json *event = ok ? json_parse(&document, self->result.data, self->result.length) : NULL;
    for (int i = 0; i < 5; i++) {
        const json *found = json_get(event, names[i]);
        tw_text_format(text, ",\"%s\":", names[i]);
        tw_text_add(text, found ? found->raw : empty[i],
                    found ? found->raw_length : strlen(empty[i]));
    }
    json_free(&document);
}

static void run_result(const task *self, const char *status, const char *error, tw_text *text) {
    tw_text_format(text,
                   "{\"kind\":\"run\",\"protocol\":%d,\"request_id\":\"%s\",\"worker\":\"%s\","
                   "\"status\":\"%s\","
                   "\"error\":",
                   PROTOCOL, self->request_id, self->worker->id, status);
    tw_text_string(text, error, strlen(error));
    add_run_fields(self, strcmp(status, "ok") == 0, text);
    tw_text_add(text, "}", 1);
}

/* Do a run; false where there is nothing to report. */
static bool do_run(task *self, int threads, tw_text *text, tw_error *error) {
    const tw_watch watch = {self, take_event, is_cancelled};
    tw_job job = job_of(self, threads);
    if (!json_number(json_get(self->request, "limit_seconds"), &job.limit) || !(job.limit > 0) ||
        job.limit > 86400)
        return tw_fail(error, "the request makes no sense");
    job.budget = START_SECONDS + job.limit * MOST_STEPS;
    job.event_bytes = run_event_bytes(self->request);
    tw_ended ended = tw_sandbox(&job, &watch, error);
    if (ended == TW_CANCELLED || ended == TW_NO_CHILD) return false;
    if (ended == TW_ENDED && !self->result.length) {
        tw_fail(error, "the run gave no result");
        ended = TW_FAILED;
    }
    static const char *const statuses[] = {[TW_ENDED] = "ok",
                                           [TW_FAILED] = "failed",
                                           [TW_CRASHED] = "crashed",
                                           [TW_NO_MEMORY] = "out_of_memory",
                                           [TW_TIMED_OUT] = "timed_out"};
    run_result(self, statuses[ended], ended == TW_ENDED ? "" : error->text, text);
    return true;
}

static bool do_batch(task *self, int threads, tw_text *text, tw_error *error) {
    const tw_watch watch = {self, take_event, is_cancelled};
    tw_job job = job_of(self, threads);
    bool cancelled = false;
    const json *cases = json_get_kind(self->request, "cases", JSON_ARRAY);
    job.event_bytes = EVENT_BYTES + CASE_BYTES * (cases ? cases->count : 0);
    tw_batch *batch = tw_batch_of(self->request, error);
    bool measured = batch && tw_batch_measure(batch, self->worker, &job, &watch, &cancelled, error);
    if (measured) tw_batch_result(batch, self->worker, text);
    tw_batch_free(batch);
    return measured;
}

/* Have the service spell a request out for a device without NumPy, if that is needed. */
static bool spell_out(task *self, bool is_run, tw_error *error) {
    tw_worker *worker = self->worker;
    const json *plain = json_get_kind(self->request, "plain", JSON_ARRAY), *answer = NULL;
    const char *work = json_get_text(json_get(self->request, "work"), "do");
    if ((plain && plain->count) || (is_run && strcmp(work, "speeds") == 0)) return true;
    char path[128];
    double pause = 0;
    tw_text body = {0};
    tw_text_format(&body, "{\"worker_id\":\"%s\"}", worker->id);
    snprintf(path, sizeof path, "/v1/leases/%s/plain", worker->lease);
    tw_told told = CALL_AGAIN;
    while (told == CALL_AGAIN && !over(worker)) {
        json_free(&self->document);
        told = tw_ask(worker, "POST", path, &body, 300, &self->document, &answer, NULL, error);
        if (told == CALL_AGAIN) {
            tw_say("%s", error->text);
            tw_pause(&pause);
            tw_beat(worker);
        }
    }
    tw_text_free(&body);
    if (told != CALL_DONE) return false;
    const json *payload = json_get_kind(answer, "payload", JSON_OBJECT);
    if (!payload || strcmp(json_get_text(payload, "request_id"), self->request_id) != 0)
        return tw_fail(error, "the service spelled out another request");
    if (!tw_is_signed(worker, self->request_id, payload, json_get_text(answer, "signature"))) {
        tw_end(worker, 1,
               "a request that was spelled out is not signed with the key of the service at "
               "%.200s: nothing of it was run",
               worker->server.url);
        return false;
    }
    self->request = payload;
    return true;
}

/* Let the device cool; false where nobody waits for the work any more. */
static bool wait_a_second(void *given) {
    tw_worker *worker = given;
    for (double until = http_now() + 1; !over(worker) && http_now() < until;) {
        tw_beat(worker);
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    return !over(worker);
}

/* Do the work of a lease; false where there is nothing to report, with the reason and whose it is.
 */
static bool do_work(task *self, tw_text *text, const char **cause, tw_error *error) {
    tw_worker *worker = self->worker;
    bool is_run = strcmp(json_get_text(self->request, "kind"), "run") == 0;
    int64_t protocol, threads;
    uint64_t all,
        most = worker->state.cache_bytes < PTRDIFF_MAX / 2 ? worker->state.cache_bytes
                                                           : PTRDIFF_MAX / 2;
    *cause = "service";
    if (!json_integer(json_get(self->request, "protocol"), PROTOCOL, PROTOCOL, &protocol))
        return tw_fail(error, "the request is of another protocol than %d", PROTOCOL);
    const json *asked = is_run ? self->request : json_get(self->request, "key");
    if (!json_integer(json_get(asked, "threads"), 1, TW_MAX_THREADS, &threads))
        return tw_fail(error, "the request makes no sense");
    *cause = "worker";
    worker->server.goes_on = goes_on, worker->server.self = worker;
    if (!spell_out(self, is_run, error)) return false;
    *cause = "service";
    if (!name_blobs(self, is_run, most, &all, error)) return false;
    if (is_run && refused(self, all, error)) {
        run_result(self, "refused", error->text, text);
        return true;
    }
    *cause = "worker";
    if (!fetch_all(self, is_run, most, cause, error)) return false;
    worker->server.goes_on = NULL;
    tw_cool_down(&worker->heat, wait_a_second, worker, tw_say);
    if (over(worker)) return tw_fail(error, "nobody waits for it any more");
    tw_say("%s", is_run ? "a run of whole models" : "a batch of candidates");
    return is_run ? do_run(self, (int)threads, text, error)
                  : do_batch(self, (int)threads, text, error);
}

bool tw_work(tw_worker *worker, const json *lease) {
    const char *id = json_get_text(lease, "lease_id"),
               *request_id = json_get_text(lease, "request_id");
    const json *payload = json_get_kind(lease, "payload", JSON_OBJECT);
    if (strlen(id) != 32 || strspn(id, "0123456789abcdef") != 32 || !is_name(request_id, 200) ||
        !payload) {
        tw_say("the answer is not the service's: a lease makes no sense");
        return false;
    }
    if (!tw_is_signed(worker, request_id, payload, json_get_text(lease, "signature"))) {
        tw_end(worker, 1,
               "request '%s' is not signed with the key of the service at %.200s: nothing of it "
               "was run",
               request_id, worker->server.url);
        return false;
    }
    task self = {.worker = worker, .request = payload};
    tw_error error = {.text = ""};
    tw_text text = {0};
    const char *cause;
    memcpy(worker->lease, id, sizeof worker->lease);
    snprintf(self.request_id, sizeof self.request_id, "%s", request_id);
    worker->lost = false;
    bool done = do_work(&self, &text, &cause, &error);
    worker->server.goes_on = NULL;
    if (done && !worker->lost)
        tw_report(worker, self.request_id, &text);
    else if (!done && !over(worker))
        tw_give_back(worker, cause, error.text);
    for (size_t i = 0; i < self.count; i++)
        if (self.blobs[i].data) munmap((void *)(uintptr_t)self.blobs[i].data, self.blobs[i].size);
    if (!over(worker)) worker->lease[0] = 0; /* else it is given back at the worker's end */
    if (worker->lost) worker->lease[0] = 0;
    free(self.blobs);
    tw_text_free(&self.result);
    tw_text_free(&text);
    json_free(&self.document);
    return true;
}

static void take_speed(void *given, const json *event) {
    task *self = given;
    const json *seconds = json_get_kind(event, "seconds", JSON_ARRAY);
    double both[2];
    take_event(given, event);
    if (seconds && seconds->count == 2 && json_number(seconds->first, &both[0]) &&
        json_number(seconds->first->next, &both[1]) && both[0] > 0 && both[1] > 0)
        tw_speed_take(&self->worker->speed, both[0], both[1]);
}

bool tw_probe_device(tw_worker *worker, int times, tw_error *error) {
    task self = {.worker = worker};
    const tw_watch watch = {&self, take_speed, is_cancelled};
    tw_job job = job_of(&self, 1);
    job.limit = job.budget = START_SECONDS;
    job.event_bytes = EVENT_BYTES, job.probes = times;
    tw_ended ended = tw_sandbox(&job, &watch, error);
    return ended == TW_ENDED || ended == TW_CANCELLED;
}

void tw_look(tw_worker *worker) {
    tw_error error;
    if (http_now() < worker->next_probe) return;
    worker->next_probe = http_now() + LOOK_SECONDS;
    if (worker->speed.count && http_now() - worker->speed.last_at < LOOK_SECONDS) return;
    if (!tw_probe_device(worker, 1, &error)) tw_say("the reference kernel: %s", error.text);
}
