/* The worker's side of batches that are measured together: it decides which candidates are measured
 * after one crashes the sandbox, and which results are reported. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "harness.h"

enum {
    MOST_CANDIDATES = 4096,
    MOST_TIMED = 4096, /* cases; with KEPT_SAMPLES seconds of each they fit into 32 bits */
    KEPT_SAMPLES = 2 * MOST_SAMPLES,
    MOST_RATIOS = 1000,
    STATUS_BYTES = 16,
    ERROR_BYTES = 400
};
#define START_SECONDS 60.0
#define LEAST_RATIO 1e-6

/* The sandbox's events on one candidate so far. */
typedef struct {
    char status[STATUS_BYTES], error[ERROR_BYTES]; /* "" while nothing is known */
    double max_error;                              /* below 0: none */
    int64_t checks, against;                       /* the candidate that it was compared with; -1 */
    double *samples, *ratios; /* a row of seconds for each sample, of each timed case one */
    size_t sample_count, ratio_count;
    double started, ended;
} observed;

/* One request. */
typedef struct {
    const json *request, *candidates, *cases;
    size_t first, count; /* of its candidates among all */
    size_t case_count, timed_count, samples;
    bool has_sizes;
    double limit;
} part;

struct tw_batch {
    part *parts;
    size_t part_count, count; /* of candidates of all parts */
    observed *seen;
    bool *group; /* the candidates being measured */
    int64_t current;
    int threads;
    tw_speed *speed;
    tw_reading worst; /* the slowest one meanwhile */
    bool cancelled;   /* before every candidate had its result */
};

static double wall(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool is_timed(const part *one, const json *each, size_t number) {
    double weight = 0;
    bool weighted = json_number(json_get(each, "weight"), &weight) && weight > 0;
    return weighted || (number == 0 && one->timed_count == 0);
}

static void reset(observed *seen) {
    free(seen->samples);
    free(seen->ratios);
    *seen = (observed){.max_error = -1, .against = -1};
}

static bool read_part(part *made, const json *request, tw_error *error) {
    const json *repeat = json_get_kind(request, "repeat", JSON_OBJECT);
    int64_t samples;
    *made = (part){.request = request,
                   .candidates = json_get_kind(request, "candidates", JSON_ARRAY),
                   .cases = json_get_kind(request, "cases", JSON_ARRAY)};
    if (!made->candidates || !made->cases || !made->cases->count || !made->candidates->count ||
        made->candidates->count > MOST_CANDIDATES ||
        !json_integer(json_get(repeat, "samples"), 1, MOST_SAMPLES, &samples) ||
        !json_number(json_get(repeat, "limit_seconds"), &made->limit) || !(made->limit > 0) ||
        made->limit > SECONDS_LIMIT)
        return tw_fail(error, "the request makes no sense");
    size_t weighted = 0;
    for (const json *each = made->cases->first; each; each = each->next)
        weighted += is_timed(made, each, 1);
    made->has_sizes = json_get_kind(made->cases->first, "sizes", JSON_OBJECT) &&
                      json_get(made->cases->first, "sizes")->count > 0;
    made->count = made->candidates->count, made->case_count = made->cases->count;
    made->timed_count = weighted, made->samples = (size_t)samples;
    if (weighted > MOST_TIMED)
        return tw_fail(error, "a batch of %zu timed cases is not measured here", weighted);
    return true;
}

tw_batch *tw_batch_of(const json *requests, tw_error *error) {
    part *parts = tw_allocate(requests->count * sizeof *parts);
    size_t number = 0, count = 0;
    for (const json *each = requests->first; each; each = each->next, number++) {
        if (!read_part(&parts[number], each, error)) {
            free(parts);
            return NULL;
        }
        parts[number].first = count;
        count += parts[number].count;
    }
    tw_batch *made = tw_allocate(sizeof *made);
    *made = (tw_batch){.parts = parts,
                       .part_count = requests->count,
                       .count = count,
                       .seen = tw_allocate(count * sizeof *made->seen),
                       .group = tw_allocate(count * sizeof *made->group)};
    for (size_t i = 0; i < count; i++) reset(&made->seen[i]);
    return made;
}

void tw_batch_free(tw_batch *batch) {
    if (!batch) return;
    for (size_t i = 0; i < batch->count; i++) reset(&batch->seen[i]);
    free(batch->parts);
    free(batch->seen);
    free(batch->group);
    free(batch);
}

/* The request of a candidate. */
static const part *part_of(const tw_batch *batch, int64_t trial) {
    const part *found = batch->parts;
    while ((size_t)trial >= found->first + found->count) found++;
    return found;
}

/* Seconds that a sample has. */
static size_t width(const part *one) { return one->timed_count ? one->timed_count : 1; }

static void note_sample(const part *one, observed *seen, const json *seconds) {
    size_t wide = width(one), place = seen->sample_count * wide;
    if (!seconds || seconds->count != wide || seen->sample_count >= KEPT_SAMPLES) return;
    double *more = realloc(seen->samples, (place + wide) * sizeof *more);
    if (!more) return;
    seen->samples = more;
    for (const json *each = seconds->first; each; each = each->next, place++)
        if (!json_number(each, &more[place]) || !(more[place] > 0)) return;
    seen->sample_count++;
}

static void note_pair(tw_batch *batch, observed *seen, const json *event) {
    double ratio;
    int64_t against;
    if (!json_number(json_get(event, "ratio"), &ratio) || seen->ratio_count >= MOST_RATIOS ||
        !json_integer(json_get(event, "against"), 0, (int64_t)batch->count - 1, &against))
        return;
    double *more = realloc(seen->ratios, (seen->ratio_count + 1) * sizeof *more);
    if (!more) return;
    seen->ratios = more, seen->against = against;
    more[seen->ratio_count++] = fmin(fmax(ratio, LEAST_RATIO), 1 / LEAST_RATIO);
}

static void note_speed(tw_batch *batch, const json *seconds) {
    double arithmetic, memory;
    const json *first = seconds ? seconds->first : NULL;
    if (!json_number(first, &arithmetic) || !json_number(first->next, &memory)) return;
    if (!(arithmetic > 0 && memory > 0)) return;
    tw_speed_take(batch->speed, arithmetic, memory, batch->threads);
    const tw_reading *last = &batch->speed->last;
    if (!batch->worst.taken || tw_reading_excess(last) > tw_reading_excess(&batch->worst))
        batch->worst = *last;
}

static void note(tw_batch *batch, const json *event) {
    const char *what = json_get_text(event, "event"), *status = json_get_text(event, "status");
    int64_t trial;
    if (strcmp(what, "speed") == 0) note_speed(batch, json_get_kind(event, "seconds", JSON_ARRAY));
    if (!json_integer(json_get(event, "trial"), 0, (int64_t)batch->count - 1, &trial) ||
        !batch->group[trial])
        return; /* ignore events of a candidate in the name of others */
    observed *seen = &batch->seen[trial];
    const part *one = part_of(batch, trial);
    seen->ended = wall();
    if (!seen->started) seen->started = seen->ended;
    if (strcmp(what, "begin") == 0) batch->current = trial;
    if (strcmp(what, "sample") == 0)
        note_sample(one, seen, json_get_kind(event, "seconds", JSON_ARRAY));
    if (strcmp(what, "pair") == 0) note_pair(batch, seen, event);
    if (strcmp(what, "checked") != 0) return;
    bool ok = strcmp(status, STATUS_OK) == 0;
    if (!ok && strcmp(status, STATUS_RUN_ERROR) != 0 && strcmp(status, STATUS_WRONG_ANSWER) != 0) return;
    double error;
    snprintf(seen->status, sizeof seen->status, "%s", status);
    snprintf(seen->error, sizeof seen->error, "%s", json_get_text(event, "error"));
    if (json_number(json_get(event, "max_error"), &error) && error > seen->max_error)
        seen->max_error = error;
    seen->checks += ok && seen->checks < (int64_t)one->case_count;
}

/* The watch of the batch, with that of the lease behind it. */
typedef struct {
    tw_batch *batch;
    const tw_watch *outer;
} both;

static void take(void *given, const json *event) {
    both *self = given;
    note(self->batch, event);
    self->outer->take(self->outer->self, event);
}

static bool cancelled(void *given) {
    both *self = given;
    return self->outer->cancelled(self->outer->self);
}

static void blame(tw_batch *batch, int64_t culprit, const char *status, const char *error) {
    observed *seen = &batch->seen[culprit];
    reset(seen);
    snprintf(seen->status, sizeof seen->status, "%s", status);
    snprintf(seen->error, sizeof seen->error, "%s", error);
}

/* Measure all once. Because damage may show up in a later candidate, a crash is confirmed by
 * running its suspect alone; if that survives, everything that is left is run that way, too. */
static tw_ended attempt(tw_batch *batch, tw_job *job, const tw_watch *watch, tw_error *error) {
    both self = {batch, watch};
    const tw_watch inner = {&self, take, cancelled};
    bool *left = tw_allocate(batch->count * sizeof *left), alone = false;
    int64_t suspect = -1;
    size_t waiting = batch->count;
    tw_ended ended = TW_ENDED;
    memset(left, true, batch->count);
    batch->worst.taken = false;
    while (waiting) {
        size_t size = 0;
        bool one = alone || suspect >= 0;
        for (size_t i = 0; i < batch->count; i++) {
            batch->group[i] = left[i] && (suspect >= 0 ? (int64_t)i == suspect : !(one && size));
            size += batch->group[i];
            if (batch->group[i]) reset(&batch->seen[i]);
            if (batch->group[i] && size == 1) batch->current = (int64_t)i;
        }
        job->wanted = batch->group;
        ended = tw_sandbox(job, &inner, error);
        if (ended == TW_CANCELLED || ended == TW_NO_CHILD || ended == TW_FAILED) break;
        if (ended == TW_ENDED) {
            if (suspect >= 0) alone = true; /* alone it does no harm: something before it did */
            for (size_t i = 0; i < batch->count; i++) left[i] = left[i] && !batch->group[i];
            waiting -= size, suspect = -1;
        } else if (ended == TW_TIMED_OUT || size == 1) {
            blame(batch, batch->current, ended == TW_TIMED_OUT ? STATUS_RUN_TIMEOUT : STATUS_CRASH,
                  error->text);
            left[batch->current] = false;
            waiting--, suspect = -1;
        } else {
            suspect = batch->current;
        }
    }
    free(left);
    return ended == TW_CANCELLED || ended == TW_NO_CHILD || ended == TW_FAILED ? ended : TW_ENDED;
}

/* Every step of every candidate at its limit: to be read, checked, calibrated and sampled. */
static void set_limits(const tw_batch *batch, tw_job *job) {
    double steps = 0, cases = 0;
    job->limit = 0;
    for (size_t i = 0; i < batch->part_count; i++) {
        const part *one = &batch->parts[i];
        steps += (double)one->count *
                 (2 * (double)one->case_count + 4 * (double)width(one) * ((double)one->samples + 1));
        cases += (double)one->case_count;
        job->limit = fmax(job->limit, one->limit);
    }
    job->budget = START_SECONDS + cases * (job->limit + START_SECONDS) + steps * job->limit;
}

bool tw_batch_measure(tw_batch *batch, tw_harness *harness, tw_job *job, const tw_watch *watch,
                      tw_error *error) {
    batch->speed = &harness->speed, batch->threads = job->threads;
    set_limits(batch, job);
    tw_ended ended = attempt(batch, job, watch, error);
    /* a measurement of a disturbed device is repeated once; longer disturbances are accepted */
    if (ended == TW_ENDED && batch->worst.disturbed && !harness->speed.is_disturbed_long) {
        observed *first = batch->seen;
        tw_reading before = batch->worst;
        batch->seen = tw_allocate(batch->count * sizeof *batch->seen);
        for (size_t i = 0; i < batch->count; i++) reset(&batch->seen[i]);
        ended = attempt(batch, job, watch, error);
        bool worse = ended == TW_ENDED && tw_reading_excess(&batch->worst) >= tw_reading_excess(&before);
        if (worse || ended != TW_ENDED) { /* the first results are complete, and stay */
            ended = TW_ENDED;
            observed *second = batch->seen;
            batch->seen = first, first = second, batch->worst = before;
        }
        for (size_t i = 0; i < batch->count; i++) reset(&first[i]);
        free(first);
    }
    batch->cancelled = ended == TW_CANCELLED;
    return ended == TW_ENDED || ended == TW_CANCELLED;
}

static void add_samples(const part *one, const observed *seen, tw_text *text) {
    size_t wide = width(one);
    double *sums = tw_allocate(seen->sample_count * sizeof *sums);
    for (size_t i = 0; i < seen->sample_count; i++) {
        size_t column = 0, number = 0;
        for (const json *each = one->cases->first; each; each = each->next, number++) {
            double weight = 1;
            if (!is_timed(one, each, number)) continue;
            if (one->has_sizes) json_number(json_get(each, "weight"), &weight);
            sums[i] += weight * seen->samples[i * wide + column++];
        }
    }
    tw_text_numbers(text, sums, seen->sample_count, 1);
    free(sums);
}

static void add_sizes(const part *one, const observed *seen, tw_text *text) {
    size_t column = 0, number = 0, wide = width(one);
    for (const json *each = one->cases->first; each; each = each->next, number++) {
        const json *sizes = json_get(each, "sizes"), *weight = json_get(each, "weight");
        if (!is_timed(one, each, number)) continue;
        tw_text_format(text,
                       "%s{\"sizes\":%.*s,\"weight\":%s,\"samples_seconds\":", column ? "," : "",
                       (int)sizes->raw_length, sizes->raw, weight->string);
        tw_text_numbers(text, seen->samples + column++, seen->sample_count, wide);
        tw_text_add(text, "}", 1);
    }
}

static void add_seeds(const part *one, tw_text *text) {
    bool said = false;
    for (const json *each = one->cases->first; each; each = each->next) {
        const json *inputs = json_get_kind(each, "inputs", JSON_ARRAY);
        for (const json *input = inputs ? inputs->first : NULL; input; input = input->next) {
            const json *seed = json_get_kind(input, "seed", JSON_NUMBER);
            if (seed) tw_text_format(text, "%s%s", said ? "," : "", seed->string);
            said = said || seed;
        }
    }
}

/* Add a value of an object under a name, exactly as in the original text. */
static void add_same(tw_text *text, const char *name, const json *value) {
    tw_text_format(text, ",\"%s\":", name);
    if (value)
        tw_text_add(text, value->raw, value->raw_length);
    else
        tw_text_format(text, "null");
}

static const json *candidate_at(const tw_batch *batch, int64_t number) {
    const part *one = part_of(batch, number);
    const json *each = one->candidates->first;
    for (number -= (int64_t)one->first; each && number > 0; number--) each = each->next;
    return each;
}

static void add_comparison(const tw_batch *batch, const observed *seen, tw_text *text) {
    tw_verdict found = tw_judge(seen->ratios, seen->ratio_count);
    const double numbers[] = {found.ratio, found.low, found.high, found.coverage};
    static const char *const names[] = {"ratio", "low", "high", "coverage"};
    tw_text_format(text, "{\"ratios\":");
    tw_text_numbers(text, seen->ratios, seen->ratio_count, 1);
    for (int i = 0; i < 4; i++) {
        tw_text_format(text, ",\"%s\":", names[i]);
        tw_text_number(text, numbers[i]);
    }
    tw_text_format(text, ",\"outcome\":\"%s\"", found.outcome);
    add_same(text, "against", json_get(candidate_at(batch, seen->against), "schedule_digest"));
    tw_text_add(text, "}", 1);
}

static void add_measurement(const tw_batch *batch, const part *one, const tw_harness *harness,
                            const json *candidate, const observed *seen, tw_text *text) {
    bool right = strcmp(seen->status, STATUS_OK) == 0, ok = right && seen->sample_count;
    bool finished = ok || (*seen->status && !right);
    const char *status = batch->cancelled ? STATUS_CANCELLED : STATUS_RUN_ERROR;
    const char *error = batch->cancelled ? "cancelled" : "it was not timed";
    if (finished) status = seen->status, error = ok ? "" : seen->error;
    tw_text_format(text, "\"status\":\"%s\",\"error\":", status);
    tw_text_string(text, error, strlen(error));
    tw_text_format(text, ",\"samples_seconds\":");
    if (ok)
        add_samples(one, seen, text);
    else
        tw_text_format(text, "[]");
    tw_text_format(text, ",\"max_error\":");
    if (seen->max_error >= 0)
        tw_text_number(text, seen->max_error);
    else
        tw_text_format(text, "null");
    add_same(text, "tolerance", json_get(one->request, "tolerance"));
    tw_text_format(text, ",\"seeds\":[");
    add_seeds(one, text);
    tw_text_add(text, "]", 1);
    add_same(text, "reference_digest", json_get(one->cases->first, "reference_digest"));
    add_same(text, "object_digest", json_get(candidate, "object_digest"));
    add_same(text, "build_seconds", json_get(candidate, "build_seconds"));
    tw_text_format(text, ",\"measure_seconds\":");
    tw_text_number(text, fmax(0, seen->ended - seen->started));
    tw_text_format(text, ",\"worker\":");
    tw_text_string(text, harness->worker, strlen(harness->worker));
    tw_text_format(text, ",\"device\":%s,\"measured_at\":", harness->facts.brief.data);
    tw_text_number(text, wall());
    tw_text_format(text, ",\"checks\":%lld,\"comparison\":", (long long)seen->checks);
    if (seen->ratio_count) {
        add_comparison(batch, seen, text);
    } else {
        tw_text_format(text, "null");
    }
    tw_text_format(text, ",\"speed\":");
    tw_reading_json(&batch->worst, text);
    tw_text_format(text, ",\"at_sizes\":[");
    if (ok && one->has_sizes) add_sizes(one, seen, text);
    tw_text_add(text, "]", 1);
}

static void add_result(const tw_batch *batch, const part *one, const tw_harness *harness,
                       tw_text *text) {
    const json *each = one->candidates->first;
    tw_text_format(text, "{\"kind\":\"" REQUEST_KIND_MEASURE "\",\"protocol\":%d,\"worker\":", PROTOCOL);
    tw_text_string(text, harness->worker, strlen(harness->worker));
    add_same(text, "request_id", json_get(one->request, "request_id"));
    tw_text_format(text, ",\"measurements\":[");
    for (size_t i = 0; i < one->count; i++, each = each->next) {
        tw_text_format(text, "%s{\"measurement\":{", i ? "," : "");
        add_measurement(batch, one, harness, each, &batch->seen[one->first + i], text);
        tw_text_add(text, "}", 1);
        add_same(text, "trial_id", json_get(each, "trial_id"));
        tw_text_add(text, "}", 1);
    }
    tw_text_format(text, "]}");
}

void tw_batch_results(const tw_batch *batch, const tw_harness *harness, tw_text *text) {
    for (size_t i = 0; i < batch->part_count; i++) {
        tw_text_format(text, i ? "," : "[");
        add_result(batch, &batch->parts[i], harness, text);
    }
    tw_text_format(text, "]");
}
