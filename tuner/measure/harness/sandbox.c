#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../compiler/runtime/native/clock.h"
#include "system.h"

enum {
    NONCE_BYTES = 16,
    NONCE_CHARACTERS = 2 * NONCE_BYTES,
    MOST_EVENT_NODES = 1 << 18, /* values of an event: a profile has the most */
    LOOK_MILLISECONDS = 200,
};
#define START_SECONDS 60.0

/* The side of the child. */

const tw_blob *tw_blob_of(const tw_child *child, const char *digest) {
    for (size_t i = 0; i < child->count; i++)
        if (strcmp(child->blobs[i].digest, digest) == 0) return &child->blobs[i];
    return NULL;
}

void tw_emit(const tw_child *child, tw_text *line) {
    size_t head = strlen(child->nonce), length = line->length;
    tw_text_reserve(line, head + 1);
    memmove(line->data + head, line->data, length);
    memcpy(line->data, child->nonce, head);
    line->length = head + length;
    tw_text_add(line, "\n", 1);
    for (size_t sent = 0; sent < line->length;) {
        ssize_t some = write(child->events, line->data + sent, line->length - sent);
        if (some < 0 && errno != EINTR) _exit(1); /* the reader has gone */
        if (some > 0) sent += (size_t)some;
    }
    tw_text_clear(line);
}

static void emit_event(const tw_child *child, const char *event, const char *error) {
    tw_text line = {0};
    tw_text_format(&line, "{\"event\":\"%s\",\"error\":", event);
    tw_text_string(&line, error, strlen(error));
    tw_text_add(&line, "}", 1);
    tw_emit(child, &line);
    tw_text_free(&line);
}

void tw_begin(const tw_child *child, int64_t candidate) {
    tw_text line = {0};
    tw_text_format(&line, "{\"event\":\"begin\",\"trial\":%lld}", (long long)candidate);
    tw_emit(child, &line);
    tw_text_free(&line);
}

void tw_begin_step(const tw_child *child, const char *name) {
    tw_text line = {0};
    tw_text_format(&line, "{\"event\":\"begin\",\"trial\":-1,\"step\":\"%s\"}", name);
    tw_emit(child, &line);
    tw_text_free(&line);
}

void tw_probe(const tw_child *child, int threads) {
    static char *zeros;
    double best[2] = {1e9, 1e9}, seconds[2];
    tw_text line = {0};
    if (!zeros) zeros = tw_aligned(REFERENCE_BYTES);
    if (!zeros) return;
    memset(zeros, 0, REFERENCE_BYTES);
    for (int i = 0; i < REFERENCE_ROUNDS; i++) {
        tw_reference(threads, zeros, REFERENCE_BYTES, seconds);
        for (int j = 0; j < 2; j++)
            if (seconds[j] < best[j]) best[j] = seconds[j];
    }
    tw_text_format(&line, "{\"event\":\"speed\",\"seconds\":[");
    tw_text_number(&line, best[0]);
    tw_text_add(&line, ",", 1);
    tw_text_number(&line, best[1]);
    tw_text_add(&line, "]}", 2);
    tw_emit(child, &line);
    tw_text_free(&line);
}

static void no_work(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo,
                    int64_t hi) {
    (void)buffers, (void)scratch, (void)sizes, (void)lo, (void)hi;
}

/* Start all threads of a job: with fewer, its times would be those of another number of threads. */
static bool start_threads(int threads, tw_error *error) {
    const tw_arguments none = {.scratch = NULL};
    if (threads <= 1) return true;
    tw_run_stage(no_work, &none, threads, threads);
    int started = tw_pool_workers() + 1;
    if (started >= threads) return true;
    return tw_fail(error, "only %d of %d threads can be started", started, threads);
}

static bool do_job(const tw_child *child, const tw_job *job, tw_error *error) {
    if (!start_threads(job->threads, error)) return false;
    if (!job->requests) { /* only to see how fast the device is */
        for (int i = 0; i < (job->probes ? job->probes : 1); i++) tw_probe(child, 1);
        return true;
    }
    tw_part *parts = tw_allocate(job->requests->count * sizeof *parts);
    size_t count = 0;
    for (const json *each = job->requests->first; each; each = each->next, count++) {
        json_document *document = tw_allocate(sizeof *document);
        const tw_blob *plan = job->plans[count];
        parts[count].request = each;
        if (plan && !(parts[count].plan = json_parse(document, plan->data, plan->size)))
            return tw_fail(error, "the plan is no JSON");
    }
    return job->wanted ? tw_measure(child, parts, count, job->wanted, error)
                       : tw_run(child, parts, error);
}

static _Noreturn void live(const tw_job *job, int events, const char *nonce, pid_t parent) {
    char guards[128];
    tw_error error = {.text = ""};
    tw_child child = {job->blobs, job->blob_count, events, nonce};
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_IGN); /* of a terminal: the worker ends this process */
    signal(SIGPIPE, SIG_IGN);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    tw_confine(job, events, guards, sizeof guards);
    emit_event(&child, "confined", guards);
    if (!do_job(&child, job, &error)) emit_event(&child, "failed", error.text);
    emit_event(&child, "done", "");
    _exit(0);
}

/* The side of the worker. */

typedef struct {
    const tw_job *job;
    const tw_watch *watch;
    tw_error *error;
    pid_t pid;
    int events;
    char nonce[NONCE_CHARACTERS + 1];
    double started, deadline;
    tw_text pending;
    tw_ended ended;
    bool over, failed;
    char step[40]; /* " in the step 'NAME'" of a run; empty for batches */
} keeper;

static bool say(keeper *self, tw_ended ended) {
    self->ended = ended, self->over = true;
    return false;
}

/* Act on a line; false if the job has ended. */
static bool take_line(keeper *self, const char *line, size_t length) {
    json_document document = {.most_nodes = MOST_EVENT_NODES};
    const json *event = NULL;
    bool ours = length >= NONCE_CHARACTERS && memcmp(line, self->nonce, NONCE_CHARACTERS) == 0;
    if (ours) event = json_parse(&document, line + NONCE_CHARACTERS, length - NONCE_CHARACTERS);
    const char *what = json_get_text(event, "event");
    bool going = true;
    if (!ours) {
        tw_fail(self->error, "spoke in the worker's name");
        going = say(self, TW_CRASHED);
    } else if (!*what) {
        tw_fail(self->error, "said what is no event");
        going = say(self, TW_CRASHED);
    } else if (strcmp(what, "done") == 0) {
        going = say(self, self->failed ? TW_FAILED : TW_ENDED);
    } else if (strcmp(what, "failed") == 0) {
        self->failed = true;
        tw_fail(self->error, "%.390s", json_get_text(event, "error"));
    } else {
        if (strcmp(what, "begin") == 0) {
            const char *step = json_get_text(event, "step");
            snprintf(self->step, sizeof self->step, *step ? " in the step '%.16s'" : "%s", step);
            self->deadline = tw_now() + self->job->limit;
            if (self->deadline > self->started + self->job->budget)
                self->deadline = self->started + self->job->budget;
        }
        self->watch->take(self->watch->self, event);
    }
    json_free(&document);
    return going;
}

/* Act on the input so far; false if the job has ended, or no more input will come. */
static bool take_all(keeper *self) {
    static char data[1 << 16];
    ssize_t got = read(self->events, data, sizeof data);
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) return false;
    if (got < 0) return true;
    tw_text *text = &self->pending;
    size_t seen = text->length, start = 0;
    tw_text_add(text, data, (size_t)got);
    for (size_t i = seen; i < text->length; i++) {
        if (text->data[i] != '\n') continue;
        if (i - start > self->job->event_bytes) break;
        if (!take_line(self, text->data + start, i - start)) return false;
        start = i + 1;
    }
    memmove(text->data, text->data + start, text->length - start);
    text->length -= start;
    if (text->length <= self->job->event_bytes) return true;
    tw_fail(self->error, "said an event that has no end");
    return say(self, TW_CRASHED);
}

static const char *signal_name(int number) {
    static const struct {
        int number;
        const char *name;
    } known[] = {
        {SIGSEGV, "SIGSEGV"},
        {SIGILL, "SIGILL"},
        {SIGFPE, "SIGFPE"},
        {SIGBUS, "SIGBUS"},
        {SIGABRT, "SIGABRT"},
        {SIGTRAP, "SIGTRAP"},
        {SIGKILL, "SIGKILL"},
        {SIGSYS, "SIGSYS: it asked the system for what candidates may not have"},
        {SIGXCPU, "SIGXCPU: it used more processor time than its job can take"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].number == number) return known[i].name;
    return "a signal";
}

/* How a process ended after its last event. */
static void judge(keeper *self, int status) {
    if (WIFSIGNALED(status)) {
        tw_fail(self->error, "killed by %s%s", signal_name(WTERMSIG(status)), self->step);
        say(self, WTERMSIG(status) == SIGKILL ? TW_NO_MEMORY : TW_CRASHED);
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == TW_NO_MEMORY_STATUS) {
        tw_fail(self->error, "there is not enough memory");
        say(self, TW_NO_MEMORY);
    } else {
        tw_fail(self->error, "exited with status %d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
        say(self, TW_CRASHED);
    }
}

static void watch_child(keeper *self) {
    bool open = true;
    double looked = tw_now(), now;
    while (!self->over) {
        int status, milliseconds = LOOK_MILLISECONDS;
        double left = self->deadline - tw_now();
        struct pollfd one = {.fd = open ? self->events : -1, .events = POLLIN};
        if (left < 1e-3 * milliseconds) milliseconds = left > 0 ? 1 + (int)(left * 1e3) : 0;
        if (!open && milliseconds > 10) milliseconds = 10;
        int ready = poll(&one, 1, milliseconds);
        if (ready > 0) open = take_all(self);
        now = tw_now();
        if (self->over) break;
        if (!open && waitpid(self->pid, &status, WNOHANG) == self->pid) {
            self->pid = 0;
            judge(self, status);
        } else if (now >= self->deadline) { /* its earlier output is read */
            tw_fail(self->error, "no answer within %g seconds%s", self->job->limit, self->step);
            say(self, TW_TIMED_OUT);
        } else if (ready <= 0 || now >= looked + 1e-3 * LOOK_MILLISECONDS) {
            looked = now; /* also while one event follows the other: heartbeats hang on this */
            if (!self->watch->cancelled(self->watch->self)) continue;
            tw_fail(self->error, "cancelled");
            say(self, TW_CANCELLED);
        }
    }
}

/* Generate a random nonce, which no candidate can know before it runs. */
static bool draw_nonce(char nonce[NONCE_CHARACTERS + 1]) {
    unsigned char bytes[NONCE_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) return false;
    for (int i = 0; i < NONCE_BYTES; i++) snprintf(nonce + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

tw_ended tw_sandbox(const tw_job *job, const tw_watch *watch, tw_error *error) {
    int ends[2];
    pid_t own = getpid();
    char nonce[NONCE_CHARACTERS + 1] = "";
    *error = (tw_error){.text = ""};
    if (!draw_nonce(nonce) || pipe2(ends, O_CLOEXEC) != 0) {
        tw_fail(error, "no process can be started: %s", strerror(errno));
        return TW_NO_CHILD;
    }
    pid_t pid = fork();
    if (pid == 0) live(job, ends[1], nonce, own);
    close(ends[1]);
    if (pid < 0) {
        tw_fail(error, "no process can be started: %s", strerror(errno));
        close(ends[0]);
        return TW_NO_CHILD;
    }
    double now = tw_now();
    keeper self = {.job = job,
                   .watch = watch,
                   .error = error,
                   .pid = pid,
                   .events = ends[0],
                   .started = now,
                   .deadline = now + job->limit + START_SECONDS};
    memcpy(self.nonce, nonce, sizeof nonce);
    watch_child(&self);
    kill(-pid, SIGKILL); /* and whatever it has started */
    if (self.pid) {
        kill(self.pid, SIGKILL);
        waitpid(self.pid, NULL, 0);
    }
    close(ends[0]);
    tw_text_free(&self.pending);
    return self.ended;
}
