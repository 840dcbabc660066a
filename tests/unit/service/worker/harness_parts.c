/* Parts of the harness, each by itself: what tests give them comes from files and standard input.
 *
 *   json          the same value, written anew
 *   elf SYMBOL    whether a library has a function
 *   npy           the elements of a file, as numbers
 *   digest        the SHA-256 of the text
 *   talk WHAT     how a job ends that says an event every few milliseconds, and how often its watch
 *                 was asked whether it is cancelled: for half a SECOND, for EVER, or until CANCELLED;
 *                 what is FORGED or has no END is said besides.
 *                 One with THREADS wants more than can be started
 *   heat ROOT     what slows the device of a folder down
 *   cools ROOT N  what is said while work waits for that, which is over after N seconds
 *   users FIRST LAST  users that three harnesses of one machine take
 *   judge         what ratios say, and whether the challenger may still be faster of 16
 *   speed         which readings of the reference kernel are disturbed: a list of seconds of
 *                 arithmetic and memory, and threads
 *   batch CODE NPY  the events and the results of batches whose kernels are pretended. Kernel N has
 *                 N + 1 stages; `seconds` lists the times of its samples, again and again. Each
 *                 sample of any kernel multiplies later times by `drift`. `speeds` lists the times
 *                 of the reference kernel, of which the last is repeated. The kernels' calls go to
 *                 standard error
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "arrays.h"
#include "child.h"
#include "digest.h"
#include "library.h"
#include "harness.h"
#include "heat.h"
#include "json.h"
#include "sandbox.h"
#include "system.h"

static int refuse(const char *why) {
    printf("refused: %s\n", why);
    return 1;
}

static void write_value(const json *value, tw_text *text) {
    const char *ends = value->kind == JSON_OBJECT ? "{}" : "[]";
    double number;
    if (value->kind == JSON_STRING) {
        tw_text_string(text, value->string, value->length);
    } else if (value->kind == JSON_NUMBER && strpbrk(value->string, ".eE")) {
        json_number(value, &number);
        tw_text_number(text, number);
    } else if (value->kind == JSON_OBJECT || value->kind == JSON_ARRAY) {
        tw_text_add(text, ends, 1);
        for (const json *each = value->first; each; each = each->next) {
            if (each != value->first) tw_text_add(text, ",", 1);
            if (value->kind == JSON_OBJECT) tw_text_string(text, each->key, each->key_length);
            if (value->kind == JSON_OBJECT) tw_text_add(text, ":", 1);
            write_value(each, text);
        }
        tw_text_add(text, ends + 1, 1);
    } else {
        tw_text_add(text, value->raw, value->raw_length);
    }
}

static int json_part(const tw_text *text) {
    json_document document = {0};
    tw_text written = {0};
    const json *value = json_parse(&document, text->data, text->length);
    if (value) write_value(value, &written);
    if (value) fwrite(written.data, 1, written.length, stdout);
    json_free(&document);
    tw_text_free(&written);
    return value ? 0 : refuse("no JSON");
}

static int npy_part(const tw_text *text) {
    tw_array array;
    tw_error error;
    void *aligned = tw_aligned(text->length);
    memcpy(aligned, text->data, text->length);
    bool right = tw_read_npy(&array, aligned, text->length, &error);
    for (size_t i = 0; right && i < array.count; i++) printf("%g ", tw_element(array.dtype, array.data, i));
    free(aligned);
    return right ? 0 : refuse(error.text);
}

static int judge_part(const tw_text *text) {
    json_document document = {0};
    double ratios[100];
    size_t count = 0;
    const json *all = json_parse(&document, text->data, text->length);
    for (const json *each = all ? all->first : NULL; each && count < 100; each = each->next)
        if (!json_number(each, &ratios[count++])) return refuse("no number");
    tw_verdict found = tw_judge(ratios, count);
    printf("%.17g %.17g %.17g %.17g %s %d", found.ratio, found.low, found.high, found.coverage,
           found.outcome, count <= 16 && tw_may_be_faster(ratios, count, 16));
    json_free(&document);
    return 0;
}

static int speed_part(const tw_text *text) {
    static tw_speed speed;
    json_document document = {0};
    const json *list = json_parse(&document, text->data, text->length);
    for (const json *each = list ? list->first : NULL; each; each = each->next) {
        double arithmetic, memory;
        int64_t threads;
        if (!json_number(each->first, &arithmetic) || !json_number(each->first->next, &memory) ||
            !json_integer(each->first->next->next, 1, 256, &threads))
            return refuse("no reading");
        tw_speed_take(&speed, arithmetic, memory, (int)threads);
        printf("%d", speed.last.disturbed);
    }
    json_free(&document);
    return 0;
}

/* The side of the child: a job that talks, and what it needs besides. */
bool tw_run(const tw_child *child, const tw_part *part, tw_error *error) {
    const json *request = part->request;
    bool ends = strcmp(json_get_text(request, "talks"), "second") == 0;
    double start = tw_now();
    tw_begin(child, -1);
    (void)error;
    if (strcmp(json_get_text(request, "talks"), "forged") == 0) /* as a candidate can */
        for (int file = 3; file < 16; file++)
            if (write(file, "{\"event\":\"done\"}\n", 17) < 0) continue;
    if (strcmp(json_get_text(request, "talks"), "end") == 0) {
        tw_text line = {0};
        for (int i = 0; i < 200000; i++) tw_text_add(&line, "[", 1);
        tw_emit(child, &line);
    }
    while (!ends || tw_now() < start + 0.5) {
        tw_text line = {0};
        tw_text_format(&line, "{\"event\":\"sample\"}");
        tw_emit(child, &line);
        tw_text_free(&line);
        usleep(2000);
    }
    return true;
}

void tw_confine(const tw_job *job, int events, char *guards, size_t room) {
    (void)job, (void)events;
    snprintf(guards, room, "none");
}

/* Pretended kernels. Their processes share the number of the calls so far. */

enum { MOST_KERNELS = 16, READINGS_PER_PROBE = 3, MOST_STARTED = 4 };

static struct {
    int timed[MOST_KERNELS], readings;
    double slower; /* by so much is the device, after a drift */
} *calls;
static const json *pretended; /* what the test says of them */

static const json *item(const json *list, int64_t number, bool again) {
    const json *found = list ? list->first : NULL;
    if (found && again) number %= (int64_t)list->count;
    for (; found && found->next && number > 0; number--) found = found->next;
    return found;
}

static int64_t number_of(const tw_bound_kernel *kernel) { return kernel->stage_count - 1; }

void tw_reference(int threads, const void *memory, int64_t bytes, double *seconds) {
    (void)threads, (void)memory, (void)bytes;
    seconds[0] = seconds[1] = 1;
    const json *speeds = json_get_kind(pretended, "speeds", JSON_ARRAY);
    if (!speeds) return;
    json_number(item(speeds, calls->readings++ / READINGS_PER_PROBE, false), &seconds[0]);
    seconds[1] = seconds[0];
}

void tw_call(const tw_bound_kernel *kernel, int threads) {
    (void)threads;
    *(float *)kernel->arguments.buffers[0] = 0;
    dprintf(2, "untimed %lld\n", (long long)number_of(kernel));
}

void tw_evict(const void *block, int64_t bytes) {
    (void)block;
    dprintf(2, "evicted %lld\n", (long long)bytes);
}

void tw_bench(const tw_bound_kernel *kernel, int threads, int64_t samples, double *seconds) {
    int64_t number = number_of(kernel);
    (void)threads;
    const json *all = json_get_kind(pretended, "seconds", JSON_ARRAY);
    const json *own = item(all, number, false);
    double drift = 1;
    json_number(json_get(pretended, "drift"), &drift);
    for (int64_t i = 0; i < samples; i++) {
        json_number(item(own, calls->timed[number]++, true), &seconds[i]);
        seconds[i] *= calls->slower, calls->slower *= drift;
    }
    dprintf(2, "timed %lld\n", (long long)number);
}

void tw_run_stage(tw_stage stage, const tw_arguments *arguments, int64_t extent, int threads) {
    (void)stage, (void)arguments, (void)extent, (void)threads;
}

int tw_pool_workers(void) { return MOST_STARTED - 1; }

static void print_event(void *self, const json *event) {
    (void)self;
    printf("%.*s\n", (int)event->raw_length, event->raw);
}

static bool is_never(void *self) {
    (void)self;
    return false;
}

static void read_file(tw_text *text, const char *path) {
    FILE *file = fopen(path, "rb");
    for (int got; file && (got = getc(file)) != EOF;) tw_text_add(text, &(char){(char)got}, 1);
    if (file) fclose(file);
}

static int batch_part(const tw_text *text, const char *code, const char *npy) {
    static tw_harness harness;
    json_document document = {0};
    tw_error error = {.text = ""};
    tw_text files[2] = {{0}, {0}}, found = {0};
    const char *const paths[] = {code, npy};
    pretended = json_parse(&document, text->data, text->length);
    const json *requests = json_get_kind(pretended, "requests", JSON_ARRAY);
    const json *plan = json_get_kind(pretended, "plans", JSON_ARRAY)->first;
    calls = mmap(NULL, sizeof *calls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    calls->slower = 1;
    tw_blob blobs[3 + MOST_KERNELS];
    const tw_blob *plans[MOST_KERNELS];
    static const char *const names = "012";
    for (int i = 0; i < 3; i++) {
        if (i < 2) read_file(&files[i], paths[i]);
        memset(blobs[i].digest, names[i], 64), blobs[i].digest[64] = 0;
        blobs[i].data = i < 2 ? files[i].data : "\0\0\0"; /* the weights of all kernels: 0 */
        blobs[i].size = i < 2 ? files[i].length : 4;
    }
    for (size_t i = 0; i < requests->count; i++, plan = plan->next) {
        blobs[3 + i] = (tw_blob){"", plan->raw, plan->raw_length};
        plans[i] = &blobs[3 + i];
    }
    for (int i = 0; i < 20; i++) tw_speed_take(&harness.speed, 1, 1, 1);
    tw_text_format(&harness.facts.brief, "{}");
    tw_job job = {.requests = requests, .plans = plans, .blobs = blobs, .blob_count = 3, .threads = 1};
    job.event_bytes = 4096;
    const tw_watch watch = {NULL, print_event, is_never};
    tw_batch *batch = tw_batch_of(requests, &error);
    bool done = batch && tw_batch_measure(batch, &harness, &job, &watch, &error);
    if (done) tw_batch_results(batch, &harness, &found);
    if (done) printf("%s\n", found.data);
    tw_batch_free(batch);
    tw_text_free(&found);
    tw_text_free(&harness.facts.brief);
    for (int i = 0; i < 2; i++) tw_text_free(&files[i]);
    json_free(&document);
    return done ? 0 : refuse(error.text);
}

typedef struct {
    int asked;
    bool cancels;
} watched;

static void take_event(void *self, const json *event) { (void)self, (void)event; }

static bool is_cancelled(void *given) {
    watched *self = given;
    return ++self->asked >= 2 && self->cancels;
}

static int talk_part(const char *what) {
    json_document document = {0};
    char text[60];
    tw_error error;
    watched self = {.cancels = strcmp(what, "cancelled") == 0};
    const tw_watch watch = {&self, take_event, is_cancelled};
    snprintf(text, sizeof text, "[{\"talks\":\"%.20s\"}]", what);
    const tw_blob *no_plan = NULL;
    tw_job job = {.requests = json_parse(&document, text, strlen(text)),
                  .plans = &no_plan,
                  .budget = 60,
                  .threads = 1};
    job.event_bytes = 4096;
    job.limit = strcmp(what, "ever") == 0 ? 0.3 : 30;
    if (strcmp(what, "threads") == 0) job.threads = MOST_STARTED + 1;
    int ended = tw_sandbox(&job, &watch, &error);
    printf("%d %d %s", ended, self.asked, error.text);
    json_free(&document);
    return 0;
}

static int heat_part(const char *root) {
    tw_heat heat;
    cpu_set_t cores;
    tw_text reason = {0};
    CPU_ZERO(&cores);
    CPU_SET(0, &cores);
    CPU_SET(1, &cores);
    tw_heat_begin(&heat, root, &cores);
    bool found = tw_heat_reason(&heat, &reason);
    printf("%s", found ? reason.data : "");
    tw_text_free(&reason);
    return 0;
}

typedef struct {
    const char *root;
    int left;
} pauses;

static bool count_down(void *given) {
    pauses *self = given;
    char path[400];
    snprintf(path, sizeof path, "%s/sys/class/thermal/cooling_device0/cur_state", self->root);
    if (self->left <= 0) return false;
    if (--self->left == 0) unlink(path);
    return true;
}

static void say_line(const char *format, ...) {
    va_list given;
    va_start(given, format);
    vprintf(format, given);
    va_end(given);
    printf("\n");
}

static int cools_part(const char *root, int seconds) {
    tw_heat heat;
    cpu_set_t cores;
    pauses self = {root, seconds};
    CPU_ZERO(&cores);
    tw_heat_begin(&heat, root, &cores);
    for (int i = 0; i < 2; i++) tw_cool_down(&heat, count_down, &self, say_line);
    return 0;
}

static int users_part(unsigned first, unsigned last) {
    for (int i = 0; i < 3; i++) printf("%u ", (unsigned)tw_take_user(first, last));
    return 0;
}

int main(int count, char **arguments) {
    const char *part = count > 1 ? arguments[1] : "", *first = count > 2 ? arguments[2] : "";
    char data[1 << 16], hex[65];
    tw_text text = {0};
    tw_error error = {.text = ""};
    ssize_t got;
    int status = 2;
    if (strcmp(part, "talk") == 0) return talk_part(first);
    if (strcmp(part, "heat") == 0) return heat_part(first);
    if (strcmp(part, "users") == 0 && count == 4)
        return users_part((unsigned)atoi(first), (unsigned)atoi(arguments[3]));
    if (strcmp(part, "cools") == 0 && count == 4) return cools_part(first, atoi(arguments[3]));
    tw_text_clear(&text);
    while ((got = read(0, data, sizeof data)) > 0) tw_text_add(&text, data, (size_t)got);
    if (strcmp(part, "json") == 0) status = json_part(&text);
    if (strcmp(part, "npy") == 0) status = npy_part(&text);
    if (strcmp(part, "judge") == 0) status = judge_part(&text);
    if (strcmp(part, "speed") == 0) status = speed_part(&text);
    if (strcmp(part, "batch") == 0 && count == 4) status = batch_part(&text, first, arguments[3]);
    if (strcmp(part, "elf") == 0) {
        tw_library *library = tw_library_open(text.data, text.length, &error);
        void *found = library ? tw_library_find(library, first) : NULL;
        status = found ? 0 : refuse(library ? "no such function" : error.text);
        free(library);
    }
    if (strcmp(part, "digest") == 0) {
        tw_sha256 sum;
        tw_sha256_begin(&sum);
        tw_sha256_add(&sum, text.data, text.length);
        tw_sha256_end(&sum, hex);
        printf("%s", hex);
        status = 0;
    }
    tw_text_free(&text);
    return status;
}
