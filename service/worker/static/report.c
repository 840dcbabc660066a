/* What came of a lease goes to the service: a result, or why there is none. */
#include <stdio.h>
#include <string.h>

#include "worker.h"

#define LAST_REPORT_SECONDS 10.0

void tw_give_back(tw_worker *worker, const char *cause, const char *why) {
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

/* Whether there is time for a result: a worker that is to end has some seconds. */
static bool in_time(void *given) {
    const tw_worker *worker = given;
    return !worker->report_until || http_now() < worker->report_until;
}

/* Whether a result is still sent. The first signal to end leaves it some seconds; a second one
 * none. */
static bool goes_out(tw_worker *worker) {
    if (worker->ends) return false;
    if (!http_stop) return in_time(worker);
    if (worker->report_until) return false;
    tw_say("the worker ends; before that it reports what it has measured");
    worker->report_until = http_now() + LAST_REPORT_SECONDS;
    http_stop = 0;
    return true;
}

void tw_report(tw_worker *worker, const char *request_id, const tw_text *result) {
    char key[33], path[128];
    double pause = 0;
    tw_text body = {0};
    tw_draw_name(key); /* sent twice, it is saved once */
    tw_text_format(&body, "{\"worker_id\":\"%s\",\"result_key\":\"%s\",\"result\":", worker->id,
                   key);
    tw_text_add(&body, result->data, result->length);
    tw_text_add(&body, "}", 1);
    snprintf(path, sizeof path, "/v1/leases/%s/result", worker->lease);
    worker->server.goes_on = in_time, worker->server.self = worker;
    for (bool going = true; going && goes_out(worker);) {
        json_document document = {0};
        const json *answer = NULL;
        tw_refusal refusal;
        tw_error error;
        tw_told told = tw_ask(worker, "POST", path, &body, 0, &document, &answer, &refusal, &error);
        going = told == CALL_AGAIN || told == CALL_STOPPED;
        if (told == CALL_DONE) {
            worker->results++;
            tw_say("measured %s", request_id);
            worker->lease[0] = 0;
        } else if (told == CALL_REFUSED && refusal.ends_worker) {
            tw_end(worker, 1, "the service refuses this worker: %s", error.text);
        } else if (told == CALL_REFUSED && refusal.worker_unknown) {
            tw_register(worker);
            going = !worker->lost;
        } else if (told != CALL_STOPPED) {
            tw_say("result of %s: %s", request_id, error.text);
        }
        json_free(&document);
        if (going && told == CALL_AGAIN) tw_pause(&pause);
        if (going && told == CALL_AGAIN && in_time(worker)) tw_beat(worker);
    }
    worker->server.goes_on = NULL;
    if (worker->report_until) http_stop = 1;
    tw_text_free(&body);
}
