/* One lease, from the claim to its result. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "digest.h"
#include "worker.h"

enum { MOST_BLOBS = 100000, LOOK_SECONDS = 20, MOST_STEPS = 10000, MEGABYTE = 1 << 20 };
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

static void fail(tw_worker *worker, const char *cause, const char *why) {
    json_document document = {0};
    const json *answer = NULL;
    tw_refusal refusal;
    tw_error error;
    tw_text body = {0};
    char path[128];
    tw_say("given back: %s", why);
    tw_text_format(&body, "{\"worker_id\":\"%s\",\"cause\":\"%s\",\"error\":", worker->id, cause);
    tw_text_string(&body, why, strlen(why));
    tw_text_add(&body, "}", 1);
    snprintf(path, sizeof path, "/v1/leases/%s/failure", worker->lease);
    tw_told told = tw_ask(worker, "POST", path, &body, 0, &document, &answer, &refusal, &error);
    if (told == CALL_REFUSED && refusal.ends_worker)
        tw_end(worker, 1, "the service refuses this worker: %s", error.text);
    else if (told != CALL_DONE)
        tw_say("%s", error.text); /* the lease runs out by itself */
    tw_text_free(&body);
    json_free(&document);
}

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
        *all += (uint64_t)bytes;
        name_blob(self, each->key, bytes);
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

static uint64_t free_bytes(const tw_worker *worker) {
    char path[300], line[200];
    uint64_t found = UINT64_MAX;
    snprintf(path, sizeof path, "%.250s/proc/meminfo", worker->root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "MemAvailable:", 13) == 0) found = strtoull(line + 13, NULL, 10) << 10;
    if (file) fclose(file);
    return found;
}

/* Why a run cannot be done here, which states what it needs; false if it can. */
static bool refused(const task *self, uint64_t all, tw_error *error) {
    const tw_worker *worker = self->worker;
    int64_t wanted;
    if (!json_integer(json_get(self->request, "memory_bytes"), 0, INT64_C(1) << 46, &wanted))
        wanted = 0;
    uint64_t memory = worker->facts.memory_bytes, available = free_bytes(worker);
    if (all > worker->state.cache_bytes)
        tw_fail(error, "the run needs %llu bytes of blobs, this worker keeps %llu",
                (unsigned long long)all, (unsigned long long)worker->state.cache_bytes);
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

/* Fetch all blobs, and map them. False where the lease is over, or has failed. */
static bool fetch_all(task *self, tw_error *error) {
    tw_worker *worker = self->worker;
    for (size_t i = 0; i < self->count; i++) {
        double pause = 0;
        tw_told told = CALL_AGAIN;
        while (!over(worker)) {
            tw_beat(worker);
            told = tw_fetch(worker, self->blobs[i].digest, self->blobs[i].size, error);
            if (told != CALL_AGAIN) break;
            tw_say("%s", error->text);
            tw_pause(&pause);
        }
        if (told != CALL_DONE) return false;
    }
    tw_state_trim(&worker->state, self->blobs, self->count);
    for (size_t i = 0; i < self->count; i++)
        if (!tw_state_map(&worker->state, &self->blobs[i], error)) return false;
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
    tw_batch *batch = tw_batch_of(self->request, error);
    bool measured = batch && tw_batch_measure(batch, self->worker, &job, &watch, &cancelled, error);
    if (measured) tw_batch_result(batch, self->worker, text);
    tw_batch_free(batch);
    return measured;
}

/* Send a result until the service takes or refuses it. */
static void report(task *self, const tw_text *result) {
    tw_worker *worker = self->worker;
    char key[33], path[128];
    double pause = 0;
    tw_text body = {0};
    tw_draw_name(key); /* sent twice, it is saved once */
    tw_text_format(&body, "{\"worker_id\":\"%s\",\"result_key\":\"%s\",\"result\":", worker->id,
                   key);
    tw_text_add(&body, result->data, result->length);
    tw_text_add(&body, "}", 1);
    snprintf(path, sizeof path, "/v1/leases/%s/result", worker->lease);
    for (bool going = true; going && !worker->ends;) {
        json_document document = {0};
        const json *answer = NULL;
        tw_refusal refusal;
        tw_error error;
        tw_told told = tw_ask(worker, "POST", path, &body, 0, &document, &answer, &refusal, &error);
        going = told == CALL_AGAIN && !http_stop;
        if (told == CALL_DONE) {
            worker->results++;
            tw_say("measured %s", self->request_id);
            worker->lease[0] = 0;
        } else if (told == CALL_REFUSED && refusal.ends_worker) {
            tw_end(worker, 1, "the service refuses this worker: %s", error.text);
        } else if (told == CALL_REFUSED && refusal.worker_unknown) {
            tw_register(worker);
            going = !over(worker);
        } else {
            tw_say("result of %s: %s", self->request_id, error.text);
        }
        json_free(&document);
        if (going) tw_pause(&pause);
        if (going) tw_beat(worker);
    }
    tw_text_free(&body);
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

/* Do the work of a lease; false where there is nothing to report, with the reason and whose it is.
 */
static bool do_work(task *self, tw_text *text, const char **cause, tw_error *error) {
    tw_worker *worker = self->worker;
    bool is_run = strcmp(json_get_text(self->request, "kind"), "run") == 0;
    int64_t protocol, threads;
    uint64_t all,
        most = worker->state.cache_bytes < SIZE_MAX / 4 ? worker->state.cache_bytes : SIZE_MAX / 4;
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
    if (!fetch_all(self, error)) return false;
    worker->server.goes_on = NULL;
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
        report(&self, &text);
    else if (!done && !over(worker))
        fail(worker, cause, error.text);
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

void tw_look(tw_worker *worker) {
    task self = {.worker = worker};
    tw_error error;
    const tw_watch watch = {&self, take_speed, is_cancelled};
    if (http_now() < worker->next_probe) return;
    worker->next_probe = http_now() + LOOK_SECONDS;
    if (worker->speed.count && http_now() - worker->speed.last_at < LOOK_SECONDS) return;
    tw_job job = job_of(&self, 1);
    job.limit = job.budget = START_SECONDS;
    tw_ended ended = tw_sandbox(&job, &watch, &error);
    if (ended != TW_ENDED && ended != TW_CANCELLED) tw_say("the reference kernel: %s", error.text);
}
