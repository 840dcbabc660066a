/* tilewright-harness: the options. docs/via.md explains its use. */
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "harness.h"

static const char USAGE[] =
    "usage: tilewright-harness --serve DIR [options]\n"
    "       tilewright-harness --facts | --check [--json]\n"
    "\n"
    "  --serve DIR        measure what an agent asks for on standard input, and keep blobs in DIR\n"
    "  --cache-mib N      size of the cache of blobs (default: 1024)\n"
    "  --sandbox-mib N    most memory of candidates (default: as much as the device has)\n"
    "  --sandbox-users A-B  users that candidates run as, where this is root (default: 61000-61255);\n"
    "                     none: root\n"
    "  --cores LIST       logical cores that candidates run on, such as 2,4-7 (default: the fastest\n"
    "                     kind); all: every one\n"
    "  --facts            print what is told of this device, and end\n"
    "  --check            look whether this device measures well, say what to do, and end\n"
    "  --json             what --check finds, for a program\n"
    "  --root DIR         folder that holds proc and sys, for tests (default: /)\n";

enum { MOST_MIB = 1 << 24 };

static tw_harness harness; /* large, and there is one */

static _Noreturn void usage(const char *format, const char *what) {
    fprintf(stderr, "error: ");
    fprintf(stderr, format, what);
    fprintf(stderr, "\n");
    exit(2);
}

static uint64_t mebibytes(const char *text, uint64_t least, const char *option) {
    char *end;
    unsigned long long found = strtoull(text, &end, 10);
    if (*end || end == text || *text == '-' || found < least || found > MOST_MIB)
        usage("%s: must be a number of MiB", option);
    return (uint64_t)found << 20;
}

/* Parse a number or a range, such as 7 or 5-7, which ends at `end`; false if it is malformed. */
static bool range(const char *text, unsigned most, unsigned *first, unsigned *last, char **end) {
    unsigned long low = strtoul(text, end, 10), high = low;
    bool right = *end != text && *text >= '0' && *text <= '9';
    if (right && **end == '-') {
        const char *second = *end + 1;
        high = strtoul(second, end, 10);
        right = *end != second && *second >= '0' && *second <= '9';
    }
    *first = (unsigned)low, *last = (unsigned)high;
    return right && low <= high && high <= most;
}

/* Overwrite the environment: candidates see the memory of this process, and the environment of an
 * agent may have secrets. The harness needs none of it. */
static void forget_environment(void) {
    for (char **each = environ; each && *each; each++) memset(*each, 0, strlen(*each));
    clearenv();
}

static void read_users(const char *text) {
    char *end = NULL;
    bool none = strcmp(text, "none") == 0;
    bool right = range(text, INT32_MAX, &harness.first_user, &harness.last_user, &end);
    if (none) harness.first_user = 0;
    if (!none && (!right || *end || !harness.first_user))
        usage("%s: must be FIRST-LAST, of users other than root", "--sandbox-users");
}

static void read_cores(const char *text) {
    harness.facts.some_cores = strcmp(text, "all") != 0;
    if (!harness.facts.some_cores) return;
    CPU_ZERO(&harness.facts.cores);
    for (char *end = (char *)(uintptr_t)text;; end++) {
        unsigned first, last;
        if (!range(end, CPU_SETSIZE - 1, &first, &last, &end) || (*end && *end != ','))
            usage("%s: must be a list such as 2,4-7", "--cores");
        for (; first <= last; first++) CPU_SET(first, &harness.facts.cores);
        if (!*end) return;
    }
}

typedef struct {
    const char *folder, *cores;
    bool facts, check, json;
} options;

static void parse(options *given, int count, char **arguments) {
    enum { SERVE = 256, CACHE, SANDBOX, USERS, CORES, FACTS, CHECK, JSON, ROOT, HELP };
    static const struct option known[] = {
        {"serve", 1, 0, SERVE}, {"cache-mib", 1, 0, CACHE}, {"sandbox-mib", 1, 0, SANDBOX},
        {"sandbox-users", 1, 0, USERS}, {"cores", 1, 0, CORES},
        {"facts", 0, 0, FACTS}, {"check", 0, 0, CHECK},     {"json", 0, 0, JSON},
        {"root", 1, 0, ROOT},   {"help", 0, 0, HELP},       {0, 0, 0, 0},
    };
    for (int found; (found = getopt_long(count, arguments, "", known, NULL)) != -1;) {
        switch (found) {
        case SERVE: given->folder = optarg; break;
        case CACHE: harness.cache.bytes = mebibytes(optarg, 1, "--cache-mib"); break;
        case SANDBOX: harness.sandbox_bytes = mebibytes(optarg, 64, "--sandbox-mib"); break;
        case USERS: read_users(optarg); break;
        case CORES: given->cores = optarg; break;
        case FACTS: given->facts = true; break;
        case CHECK: given->check = true; break;
        case JSON: given->json = true; break;
        case ROOT: harness.root = strcmp(optarg, "/") == 0 ? "" : optarg; break;
        case HELP: fputs(USAGE, stdout); exit(0);
        default: exit(2);
        }
    }
    if (optind < count) usage("'%s' is no option", arguments[optind]);
}

int main(int count, char **arguments) {
    options given = {.folder = NULL};
    tw_error error;
    forget_environment();
    for (int file = 0; file >= 0 && file < 3;) /* else a blob would get the log */
        if ((file = open("/dev/null", O_RDWR)) > 2) close(file);
    harness.root = "", harness.cache.bytes = UINT64_C(1) << 30;
    harness.first_user = 61000, harness.last_user = 61255; /* which no distribution gives */
    parse(&given, count, arguments);
    tw_find_facts(&harness.facts, harness.root);
    if (given.cores) read_cores(given.cores);
    tw_heat_begin(&harness.heat, harness.root, &harness.facts.cores);
    if (given.facts) {
        printf("%s\n", harness.facts.registration.data);
        return 0;
    }
    if (harness.first_user && geteuid() == 0)
        harness.user = tw_take_user(harness.first_user, harness.last_user);
    if (given.check) return tw_check(&harness, given.json);
    if (!given.folder) usage("%s is needed", "--serve");
    if (!tw_cache_open(&harness.cache, given.folder, &error)) {
        fprintf(stderr, "error: the folder '%.200s' cannot be used: %s\n", given.folder,
                error.text);
        return 1;
    }
    prctl(PR_SET_DUMPABLE, 0); /* candidates may not look into this process */
    signal(SIGPIPE, SIG_IGN);
    return tw_serve(&harness);
}
