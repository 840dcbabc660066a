/* tilewright-worker as one static binary: the options, and the loop that claims work.
 *
 * It speaks the protocol of the worker in Python (service/worker). docs/static-worker.md says
 * what it does otherwise. */
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "digest.h"
#include "worker.h"

static const char USAGE[] =
    "usage: tilewright-worker --server URL --token-file FILE [options]\n"
    "\n"
    "  --server URL          http://HOST:PORT of the service (or TILEWRIGHT_SERVER)\n"
    "  --token-file FILE     file that holds a token with the scope 'measure' (or the token in\n"
    "                        TILEWRIGHT_TOKEN)\n"
    "  --name NAME           name for people (default: the host name)\n"
    "  --target NAME         a target that this device runs; may be repeated (default: found by "
    "the\n"
    "                        service from the device)\n"
    "  --spool DIR           folder of the cache and the worker's id (or TILEWRIGHT_SPOOL; "
    "default:\n"
    "                        ~/.local/state/tilewright)\n"
    "  --cache-mib N         size of the cache (default: 1024)\n"
    "  --sandbox-mib N       most memory of candidates (default: no limit)\n"
    "  --service-key KEY     public key of the service (default: the one that it had when first "
    "met)\n"
    "  --facts               print what is told of this device, and end\n"
    "  --check               look whether this device measures well, say what to do, and end\n"
    "  --json                what --check finds, for a program\n"
    "  --root DIR            folder that holds proc and sys, for tests (default: /)\n";

enum { MOST_CACHE_MIB = 1 << 24 };

static tw_worker worker; /* large, and there is one */

static void stop(int number) {
    (void)number;
    http_stop = 1;
}

static _Noreturn void usage(const char *format, const char *what) {
    fprintf(stderr, "error: ");
    fprintf(stderr, format, what);
    fprintf(stderr, "\n");
    exit(2);
}

static bool read_token(const char *path) {
    char line[600] = "";
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    size_t length = 0; /* without a stream, which keeps what it has read */
    for (ssize_t got; length < sizeof line - 1; length += (size_t)got)
        if ((got = read(file, line + length, sizeof line - 1 - length)) <= 0) break;
    close(file);
    line[strcspn(line, " \t\r\n")] = 0;
    snprintf(worker.server.token, sizeof worker.server.token, "%.500s", line);
    explicit_bzero(line, sizeof line);
    return length > 0;
}

static uint64_t mebibytes(const char *text, uint64_t least, const char *option) {
    char *end;
    unsigned long long found = strtoull(text, &end, 10);
    if (*end || end == text || *text == '-' || found < least || found > MOST_CACHE_MIB)
        usage("%s: must be a number of MiB", option);
    return (uint64_t)found << 20;
}

typedef struct {
    const char *server, *token_file, *spool;
    bool facts, check, json;
} options;

static void parse(options *given, int count, char **arguments) {
    enum { SERVER = 256, TOKEN, NAME, TARGET, SPOOL, CACHE, SANDBOX, KEY, FACTS, CHECK, JSON };
    enum { ROOT = 300, HELP };
    static const struct option known[] = {
        {"server", 1, 0, SERVER},       {"token-file", 1, 0, TOKEN}, {"name", 1, 0, NAME},
        {"target", 1, 0, TARGET},       {"spool", 1, 0, SPOOL},      {"cache-mib", 1, 0, CACHE},
        {"sandbox-mib", 1, 0, SANDBOX}, {"service-key", 1, 0, KEY},  {"facts", 0, 0, FACTS},
        {"check", 0, 0, CHECK},         {"json", 0, 0, JSON},        {"root", 1, 0, ROOT},
        {"help", 0, 0, HELP},           {0, 0, 0, 0},
    };
    unsigned char key[32];
    for (int found; (found = getopt_long(count, arguments, "", known, NULL)) != -1;) {
        switch (found) {
        case SERVER: given->server = optarg; break;
        case TOKEN: given->token_file = optarg; break;
        case NAME: snprintf(worker.name, sizeof worker.name, "%s", optarg); break;
        case TARGET:
            if (worker.target_count == MOST_TARGETS) usage("%s: there are too many", "--target");
            worker.targets[worker.target_count++] = optarg;
            break;
        case SPOOL: given->spool = optarg; break;
        case CACHE: worker.state.cache_bytes = mebibytes(optarg, 1, "--cache-mib"); break;
        case SANDBOX: worker.sandbox_bytes = mebibytes(optarg, 64, "--sandbox-mib"); break;
        case KEY:
            if (!tw_from_base64(optarg, key, sizeof key))
                usage("--service-key: '%s' is no public key", optarg);
            worker.given_key = optarg;
            break;
        case FACTS: given->facts = true; break;
        case CHECK: given->check = true; break;
        case JSON: given->json = true; break;
        case ROOT: worker.root = optarg; break;
        case HELP: fputs(USAGE, stdout); exit(0);
        default: exit(2);
        }
    }
    if (optind < count) usage("'%s' is no option", arguments[optind]);
}

/* A folder that outlives the process. */
static void find_spool(options *given, char *made, size_t room) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (!given->spool) given->spool = getenv("TILEWRIGHT_SPOOL");
    if (given->spool && *given->spool) return;
    if (state && *state)
        snprintf(made, room, "%s/tilewright", state);
    else if (home && *home)
        snprintf(made, room, "%s/.local/state/tilewright", home);
    else
        usage("%s: no folder is known to keep the worker's id and blobs in", "--spool");
    given->spool = made;
}

/* Close this process's memory and environment to others of its user, candidates among them. */
static void hide_token(void) {
    char *given = getenv("TILEWRIGHT_TOKEN");
    if (given) {
        if (!worker.server.token[0])
            snprintf(worker.server.token, sizeof worker.server.token, "%.500s", given);
        memset(given, 0, strlen(given));
        unsetenv("TILEWRIGHT_TOKEN");
    }
    prctl(PR_SET_DUMPABLE, 0);
}

static void set_up(options *given, int count, char **arguments) {
    static char made[400];
    tw_error error;
    char token[sizeof worker.server.token];
    worker.root = "/", worker.given_key = "", worker.state.cache_bytes = UINT64_C(1) << 30;
    if (gethostname(worker.name, sizeof worker.name - 1) != 0 || !worker.name[0])
        snprintf(worker.name, sizeof worker.name, "device");
    parse(given, count, arguments);
    if (strcmp(worker.root, "/") == 0) worker.root = "";
    tw_find_facts(&worker.facts, worker.root);
    tw_heat_begin(&worker.heat, worker.root, &worker.facts.cores);
    if (given->facts || given->check) return;
    if (given->token_file && !read_token(given->token_file))
        usage("the token file '%s' cannot be read", given->token_file);
    hide_token();
    if (!worker.server.token[0]) usage("%s is needed", "--token-file");
    for (const char *c = worker.server.token; *c; c++)
        if (*c <= ' ' || *c > '~') usage("%s: there are odd characters in it", "the token");
    if (!given->server) given->server = getenv("TILEWRIGHT_SERVER");
    memcpy(token, worker.server.token, sizeof token);
    if (!http_server_of(&worker.server, given->server ? given->server : "", &error))
        usage("--server: %s", error.text);
    memcpy(worker.server.token, token, sizeof token);
    explicit_bzero(token, sizeof token);
    find_spool(given, made, sizeof made);
    if (!tw_state_open(&worker.state, given->spool, worker.server.url, &error)) {
        tw_say("%s", error.text);
        exit(1);
    }
}

/* Claim by long poll; the worker's own name for a claim brings lost answers again. */
static void claim(char name[33], double *pause) {
    json_document document = {0};
    const json *answer = NULL;
    tw_refusal refusal;
    tw_error error;
    tw_text body = {0};
    /* a heartbeat comes between two claims */
    double wait = worker.long_poll_seconds < worker.heartbeat_seconds ? worker.long_poll_seconds
                                                                      : worker.heartbeat_seconds;
    tw_text_format(&body, "{\"worker_id\":\"%s\",\"claim_id\":\"%s\",\"limit\":1,\"wait_seconds\":",
                   worker.id, name);
    tw_text_number(&body, wait < 120 ? wait : 120);
    tw_text_add(&body, "}", 1);
    tw_told told = tw_ask(&worker, "POST", "/v1/leases/claim", &body, wait, &document, &answer,
                          &refusal, &error);
    const json *leases = told == CALL_DONE ? json_get_kind(answer, "leases", JSON_ARRAY) : NULL;
    if (leases) {
        tw_draw_name(name);
        bool sense = true;
        for (const json *each = leases->first; each && !http_stop && !worker.ends;
             each = each->next)
            sense = tw_work(&worker, each) && sense;
        if (sense)
            *pause = 0;
        else
            tw_pause(pause); /* the same may come again at once */
    } else if (told == CALL_REFUSED && refusal.ends_worker) {
        tw_end(&worker, 1, "the service refuses this worker: %s", error.text);
    } else if (told == CALL_REFUSED && refusal.worker_unknown) {
        tw_say("the service does not know this worker any more");
        tw_register(&worker);
    } else if (told != CALL_STOPPED) {
        tw_say("no leases: %s", told == CALL_DONE ? "the answer is not the service's" : error.text);
        tw_pause(pause);
    }
    tw_text_free(&body);
    json_free(&document);
}

int main(int count, char **arguments) {
    options given = {.server = NULL};
    for (int file = 0; file >= 0 && file < 3;) /* else a socket would get the log */
        if ((file = open("/dev/null", O_RDWR)) > 2) close(file);
    set_up(&given, count, arguments);
    if (given.facts) {
        printf("%s\n", worker.facts.registration.data);
        return 0;
    }
    if (given.check) return tw_check(&worker, given.json);
    struct sigaction on_stop = {.sa_handler = stop}, ignored = {.sa_handler = SIG_IGN};
    sigaction(SIGTERM, &on_stop, NULL);
    sigaction(SIGINT, &on_stop, NULL);
    sigaction(SIGPIPE, &ignored, NULL);
    tw_register(&worker);
    char name[33];
    double pause = 0;
    tw_draw_name(name);
    bool known = !worker.ends && !http_stop;
    while (!http_stop && !worker.ends) {
        tw_beat(&worker);
        tw_look(&worker);
        if (!http_stop && !worker.ends) claim(name, &pause);
    }
    http_stop = 0; /* for the good-bye, which a second signal cuts short */
    if (known) tw_leave(&worker);
    memset(worker.server.token, 0, sizeof worker.server.token);
    return worker.status;
}
