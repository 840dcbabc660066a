/* Requests, from the agent's message to the results. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "digest.h"
#include "harness.h"
#include "system.h"

enum {
    MOST_BLOBS = 100000,
    MOST_TOGETHER = 16,
    MOST_STEPS = 10000,
    EVENT_BYTES = 4096,        /* bytes of an event, without the part that grows with the request */
    CASE_BYTES = 32,           /* a number for each case */
    RUN_EVENT_BYTES = 4 << 20, /* of the result of a run: errors, ratios, seconds of instructions */
    OUTPUT_BYTES = 23 << 20,   /* and each output that it brings back, in base64 */
    MOST_EVENT_BYTES = 64 << 20,
};
#define START_SECONDS 60.0
#define LEAST_ADDRESS_BYTES (UINT64_C(1) << 30)

struct tw_task {
    tw_harness *harness;
    const json *requests; /* a list */
    const json *run;      /* the only one, where it is a run */
    int threads;
    tw_blob *blobs;
    size_t count, room;
    const tw_blob *plans[MOST_TOGETHER]; /* of each request; NULL where it needs none */
    tw_text result; /* of a run: the sandbox's answer */
    bool (*cancelled)(void *self);
    void *self;
};

/* Whether a name can be part of a log. */
static bool is_name(const char *text, size_t most) {
    size_t length = strlen(text);
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("_.-", text[i])) return false;
    return length && length <= most && text[0] != '.' && text[0] != '-';
}

static void name_blob(tw_task *task, const char *digest) {
    for (size_t i = 0; i < task->count; i++)
        if (strcmp(task->blobs[i].digest, digest) == 0) return;
    if (task->count == task->room) {
        task->room = 2 * task->room + 16;
        tw_blob *more = realloc(task->blobs, task->room * sizeof *more);
        if (!more) exit(TW_NO_MEMORY_STATUS);
        task->blobs = more;
    }
    tw_blob *named = &task->blobs[task->count++];
    *named = (tw_blob){.size = 0};
    snprintf(named->digest, sizeof named->digest, "%.64s", digest);
}

static bool name_blobs(tw_task *task, const json *request, tw_error *error) {
    const json *cases = json_get_kind(request, "cases", JSON_ARRAY);
    const json *plain = json_get_kind(request, "plain", JSON_ARRAY);
    const json *sizes = json_get_kind(request, "blobs", JSON_OBJECT);
    size_t count =
        (cases ? cases->count : 0) + (plain ? plain->count : 0) + (sizes ? sizes->count : 0);
    if (count > MOST_BLOBS || (task->run ? !sizes : !cases))
        return tw_fail(error, "the request makes no sense");
    for (const json *each = task->run ? sizes->first : NULL; each; each = each->next)
        name_blob(task, each->key);
    if (!task->run) {
        name_blob(task, json_get_text(request, "library_digest"));
        for (const json *each = cases->first; each; each = each->next)
            name_blob(task, json_get_text(each, "reference_digest"));
        for (const json *each = plain ? plain->first : NULL; each; each = each->next)
            name_blob(task, each->kind == JSON_STRING ? each->string : "");
    }
    for (size_t i = 0; i < task->count; i++)
        if (!tw_is_digest(task->blobs[i].digest))
            return tw_fail(error, "the request names what is no blob");
    return true;
}

/* Read one of the requests, of which the first has number 0. */
static bool add_request(tw_task *task, const json *request, size_t number, tw_error *error) {
    int64_t protocol, threads;
    if (!json_integer(json_get(request, "protocol"), PROTOCOL, PROTOCOL, &protocol))
        return tw_fail(error, "the request is of another protocol than %d", PROTOCOL);
    const char *kind = json_get_text(request, "kind");
    bool is_run = strcmp(kind, REQUEST_KIND_RUN) == 0;
    if (!is_run && strcmp(kind, REQUEST_KIND_MEASURE) != 0)
        return tw_fail(error, "there is no request of kind '%.40s'", kind);
    const json *asked = is_run ? request : json_get(request, "key");
    if (!is_name(json_get_text(request, "request_id"), 200) ||
        !json_integer(json_get(asked, "threads"), 1, TW_MAX_THREADS, &threads))
        return tw_fail(error, "the request makes no sense");
    if (number && (is_run || task->run || task->threads != threads))
        return tw_fail(error, "the requests do not go together");
    if (is_run) task->run = request;
    task->threads = (int)threads;
    return name_blobs(task, request, error);
}

/* Find the plan of each request among the blobs, which do not move any more. */
static void find_plans(tw_task *task) {
    size_t number = 0;
    for (const json *each = task->requests->first; each; each = each->next, number++) {
        const json *plain = json_get_kind(each, "plain", JSON_ARRAY);
        const json *plan = plain ? plain->first : NULL;
        for (size_t i = 0; i < task->count && plan && plan->kind == JSON_STRING; i++)
            if (strcmp(task->blobs[i].digest, plan->string) == 0)
                task->plans[number] = &task->blobs[i];
    }
}

tw_task *tw_task_of(tw_harness *harness, const json *requests, tw_error *error) {
    tw_task made = {.harness = harness, .requests = requests};
    bool right = requests && requests->count && requests->count <= MOST_TOGETHER;
    size_t number = 0;
    if (!right) tw_fail(error, "the work makes no sense");
    for (const json *each = right ? requests->first : NULL; each && right; each = each->next)
        right = add_request(&made, each, number++, error);
    if (!right) {
        free(made.blobs);
        return NULL;
    }
    find_plans(&made);
    tw_task *kept = tw_allocate(sizeof *kept);
    *kept = made;
    return kept;
}

tw_blob *tw_task_blobs(tw_task *task, size_t *count) {
    *count = task->count;
    return task->blobs;
}

void tw_task_free(tw_task *task) {
    if (!task) return;
    for (size_t i = 0; i < task->count; i++)
        if (task->blobs[i].data) munmap((void *)(uintptr_t)task->blobs[i].data, task->blobs[i].size);
    free(task->blobs);
    tw_text_free(&task->result);
    free(task);
}

/* The reason why the device lacks the memory that a run states; false if it has it. */
static bool lacks(const tw_task *task, tw_error *error) {
    int64_t wanted;
    if (!json_integer(json_get(task->run, "memory_bytes"), 0, BYTES_LIMIT, &wanted))
        wanted = 0;
    uint64_t memory = task->harness->facts.memory_bytes;
    uint64_t available = tw_free_bytes(task->harness->root);
    if (memory && (uint64_t)wanted > memory)
        tw_fail(error, "the run needs %lld bytes of memory, this device has %llu",
                (long long)wanted, (unsigned long long)memory);
    else if ((uint64_t)wanted > available)
        tw_fail(error, "the run needs %lld bytes of memory, %llu are free on this device",
                (long long)wanted, (unsigned long long)available);
    else
        return false;
    return true;
}

static void take_event(void *given, const json *event) {
    tw_task *task = given;
    const char *what = json_get_text(event, "event");
    if (strcmp(what, "result") == 0) {
        tw_text_clear(&task->result);
        tw_text_add(&task->result, event->raw, event->raw_length);
    } else if (strcmp(what, "confined") == 0) {
        const char *guards = json_get_text(event, "error");
        if (strcmp(guards, task->harness->guards) == 0) return;
        snprintf(task->harness->guards, sizeof task->harness->guards, "%s", guards);
        tw_say("candidates are confined: %s", guards);
    }
}

static bool is_cancelled(void *given) {
    tw_task *task = given;
    return task->cancelled(task->self);
}

/* The most address space: the stated limit, or the memory of the machine, plus the mapped blobs. */
static uint64_t address_bytes(const tw_task *task) {
    uint64_t bytes = task->harness->sandbox_bytes, machine = task->harness->facts.memory_bytes;
    if (!bytes && machine) bytes = machine < LEAST_ADDRESS_BYTES ? LEAST_ADDRESS_BYTES : machine;
    if (!bytes) return 0;
    for (size_t i = 0; i < task->count; i++) bytes += task->blobs[i].size;
    return bytes;
}

static tw_job job_of(const tw_task *task) {
    const tw_harness *harness = task->harness;
    return (tw_job){.requests = task->requests,
                    .plans = task->plans,
                    .blobs = task->blobs,
                    .blob_count = task->count,
                    .threads = task->threads,
                    .memory = address_bytes(task),
                    .user = harness->user,
                    .folder = harness->cache.empty,
                    .cores = harness->facts.some_cores ? &harness->facts.cores : NULL};
}

/* Most bytes that an event of a run can have. */
static size_t run_event_bytes(const json *request) {
    const json *fetch = json_get_kind(json_get(request, "work"), "fetch", JSON_ARRAY);
    size_t outputs = fetch ? fetch->count : 0;
    if (outputs >= MOST_EVENT_BYTES / OUTPUT_BYTES) return MOST_EVENT_BYTES;
    return RUN_EVENT_BYTES + outputs * OUTPUT_BYTES;
}

/* The fields of a run's result that the sandbox has filled, or their empty values. */
static void add_run_fields(const tw_task *task, bool ok, tw_text *text) {
    static const char *const names[] = {"errors", "fetched", "race", "seconds", "speeds"};
    static const char *const empty[] = {"{}", "{}", "null", "[]", "null"};
    json_document document = {0};
    const json *event = ok ? json_parse(&document, task->result.data, task->result.length) : NULL;
    for (int i = 0; i < 5; i++) {
        const json *found = json_get(event, names[i]);
        tw_text_format(text, ",\"%s\":", names[i]);
        tw_text_add(text, found ? found->raw : empty[i],
                    found ? found->raw_length : strlen(empty[i]));
    }
    json_free(&document);
}

static void run_result(const tw_task *task, const char *status, const char *error, tw_text *text) {
    tw_text_format(text,
                   "[{\"kind\":\"" REQUEST_KIND_RUN "\",\"protocol\":%d,\"request_id\":\"%s\",\"status\":\"%s\","
                   "\"worker\":",
                   PROTOCOL, json_get_text(task->run, "request_id"), status);
    tw_text_string(text, task->harness->worker, strlen(task->harness->worker));
    tw_text_format(text, ",\"error\":");
    tw_text_string(text, error, strlen(error));
    add_run_fields(task, strcmp(status, RUN_STATUS_OK) == 0, text);
    tw_text_add(text, "}]", 2);
}

static bool do_run(tw_task *task, tw_text *text, tw_error *error) {
    const tw_watch watch = {task, take_event, is_cancelled};
    tw_job job = job_of(task);
    if (!json_number(json_get(task->run, "limit_seconds"), &job.limit) || !(job.limit > 0) ||
        job.limit > SECONDS_LIMIT)
        return tw_fail(error, "the request makes no sense");
    job.budget = START_SECONDS + job.limit * MOST_STEPS;
    job.event_bytes = run_event_bytes(task->run);
    tw_ended ended = tw_sandbox(&job, &watch, error);
    if (ended == TW_CANCELLED || ended == TW_NO_CHILD) return false;
    if (ended == TW_ENDED && !task->result.length) {
        tw_fail(error, "the run gave no result");
        ended = TW_FAILED;
    }
    static const char *const statuses[] = {[TW_ENDED] = RUN_STATUS_OK,
                                           [TW_FAILED] = RUN_STATUS_FAILED,
                                           [TW_CRASHED] = RUN_STATUS_CRASHED,
                                           [TW_NO_MEMORY] = RUN_STATUS_OUT_OF_MEMORY,
                                           [TW_TIMED_OUT] = RUN_STATUS_TIMED_OUT};
    run_result(task, statuses[ended], ended == TW_ENDED ? "" : error->text, text);
    return true;
}

static bool do_batches(tw_task *task, tw_text *text, tw_error *error) {
    const tw_watch watch = {task, take_event, is_cancelled};
    tw_job job = job_of(task);
    job.event_bytes = EVENT_BYTES;
    for (const json *each = task->requests->first; each; each = each->next)
        job.event_bytes += CASE_BYTES * json_get_kind(each, "cases", JSON_ARRAY)->count;
    tw_batch *batch = tw_batch_of(task->requests, error);
    bool measured = batch && tw_batch_measure(batch, task->harness, &job, &watch, error);
    if (measured) tw_batch_results(batch, task->harness, text);
    tw_batch_free(batch);
    return measured;
}

bool tw_task_do(tw_task *task, bool (*cancelled)(void *self), void *self, tw_text *result,
                tw_error *error) {
    task->cancelled = cancelled, task->self = self;
    if (!task->run) return do_batches(task, result, error);
    if (!lacks(task, error)) return do_run(task, result, error);
    run_result(task, RUN_STATUS_REFUSED, error->text, result);
    return true;
}

static void take_speed(void *given, const json *event) {
    tw_task *task = given;
    const json *seconds = json_get_kind(event, "seconds", JSON_ARRAY);
    double both[2];
    take_event(given, event);
    if (seconds && seconds->count == 2 && json_number(seconds->first, &both[0]) &&
        json_number(seconds->first->next, &both[1]) && both[0] > 0 && both[1] > 0)
        tw_speed_take(&task->harness->speed, both[0], both[1], task->threads);
}

bool tw_probe_device(tw_harness *harness, int times, bool (*cancelled)(void *self), void *self,
                     tw_error *error) {
    tw_task task = {.harness = harness, .threads = 1, .cancelled = cancelled, .self = self};
    const tw_watch watch = {&task, take_speed, is_cancelled};
    tw_job job = job_of(&task);
    job.limit = job.budget = START_SECONDS;
    job.event_bytes = EVENT_BYTES, job.probes = times;
    tw_ended ended = tw_sandbox(&job, &watch, error);
    return ended == TW_ENDED || ended == TW_CANCELLED;
}
