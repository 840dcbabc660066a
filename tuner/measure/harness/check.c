/* --check: whether this device measures well, and commands that help. Like service/worker/check.py,
 * restricted to checks that need no compiler. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "system.h"
#include "harness.h"

enum {
    LEAST_MEBIBYTES = 64,   /* a worker takes 2 MiB; enough for the smallest models */
    ENOUGH_MEBIBYTES = 512, /* most models of a phone, with their weights and expected outputs */
    PROBES = 40,
    MOST_FINDINGS = 8,
    MOST_CORES = 1024,
};
#define QUIET_LOAD 0.5 /* average number of runnable processes, in addition to the worker's */
#define HOT_CELSIUS 75.0
#define CPUS "/sys/devices/system/cpu"

typedef enum { FINE, UNKNOWN, POOR, WRONG } grade;

static const char *const GRADES[] = {"fine", "unknown", "poor", "wrong"};

typedef struct {
    const char *name;
    grade grade;
    tw_text found, todo; /* `todo`: commands, "" if nothing is to be done */
} finding;

typedef struct {
    tw_harness *harness;
    const char *root;
    finding all[MOST_FINDINGS];
    int count;
} findings;

static finding *begin(findings *list, const char *name) {
    finding *made = &list->all[list->count++];
    *made = (finding){.name = name, .grade = FINE};
    tw_text_clear(&made->found);
    tw_text_clear(&made->todo);
    return made;
}

/* The cores that candidates run on, one after the other; -1 behind the last. */
static int next_core(const findings *list, int core) {
    while (++core < CPU_SETSIZE && core < MOST_CORES)
        if (CPU_ISSET(core, &list->harness->facts.cores)) return core;
    return -1;
}

static void read_of_core(const findings *list, int core, const char *name, tw_text *text) {
    char path[160];
    snprintf(path, sizeof path, CPUS "/cpu%d/%s", core, name);
    tw_read_text(text, list->root, path);
}

static uint64_t number_of_core(const findings *list, int core, const char *name) {
    char path[160];
    snprintf(path, sizeof path, CPUS "/cpu%d/%s", core, name);
    return tw_read_number(list->root, path);
}

/* "0-3,8" */
static void add_ranges(tw_text *text, const bool cores[MOST_CORES]) {
    bool said = false;
    for (int core = 0; core < MOST_CORES; core++) {
        int last = core;
        if (!cores[core]) continue;
        while (last + 1 < MOST_CORES && cores[last + 1]) last++;
        tw_text_format(text, said ? ",%d" : "%d", core);
        if (last > core) tw_text_format(text, "-%d", last);
        said = true, core = last;
    }
}

static void cores(findings *list) {
    static bool used[MOST_CORES], firsts[MOST_CORES];
    const tw_facts *facts = &list->harness->facts;
    finding *made = begin(list, "cores");
    tw_text siblings = {0};
    bool shared = false;
    for (int core = -1; (core = next_core(list, core)) >= 0;) {
        used[core] = true;
        read_of_core(list, core, "topology/thread_siblings_list", &siblings);
        int first = siblings.length ? atoi(siblings.data) : core;
        bool known = first >= 0 && first < MOST_CORES && first != core && used[first];
        firsts[core] = !known, shared = shared || known;
    }
    tw_text_free(&siblings);
    if (!facts->known) {
        made->grade = UNKNOWN;
        tw_text_format(&made->found, "the system does not say");
        return;
    }
    tw_text_format(&made->found, "%s", *facts->identity ? facts->identity : "unnamed");
    if (facts->kilohertz) tw_text_format(&made->found, "@%.1f", (double)facts->kilohertz / 1e6);
    tw_text_format(&made->found, " (");
    add_ranges(&made->found, used);
    tw_text_format(&made->found, ")%s", facts->some_cores ? "; the slower ones are left out" : "");
    if (shared) {
        made->grade = POOR;
        tw_text_format(&made->found, ": threads of the same cores get into each other's way");
        tw_text_format(&made->todo, "taskset -c ");
        add_ranges(&made->todo, firsts);
        tw_text_format(&made->todo, " tilewright-worker ...");
    }
}

static void features(findings *list) {
    finding *made = begin(list, "features");
    json_document document = {0};
    const tw_text *text = &list->harness->facts.registration;
    const json *facts = json_parse(&document, text->data, text->length);
    const json *named = json_get_kind(facts, "features", JSON_ARRAY);
    made->grade = named ? FINE : UNKNOWN;
    tw_text_format(&made->found, "'%.200s', %s; ", json_get_text(facts, "model"),
                   json_get_text(facts, "architecture"));
    if (named)
        tw_text_format(&made->found, "%zu features are named; ", named->count);
    else
        tw_text_format(&made->found, "no feature is named; ");
    tw_text_format(&made->found, "the service says which target that is");
    json_free(&document);
}

static void governor(findings *list) {
    finding *made = begin(list, "governor");
    tw_text name = {0}, slow = {0};
    tw_text_clear(&slow);
    for (int core = -1; (core = next_core(list, core)) >= 0;) {
        read_of_core(list, core, "cpufreq/scaling_governor", &name);
        if (!name.length) continue;
        if (!strstr(made->found.data, name.data))
            tw_text_format(&made->found, "%s%.60s", made->found.length ? ", " : "", name.data);
        if (strcmp(name.data, "performance") != 0) tw_text_format(&slow, " %d", core);
    }
    if (!made->found.length) {
        made->grade = UNKNOWN;
        tw_text_format(&made->found, "none, as in most virtual machines");
    } else if (slow.length) {
        made->grade = POOR;
        tw_text_format(&made->found, ": clocks change with the load");
        tw_text_format(&made->todo,
                       "for n in%s; do echo performance | "
                       "sudo tee " CPUS "/cpu$n/cpufreq/scaling_governor; done",
                       slow.data);
    }
    tw_text_free(&name);
    tw_text_free(&slow);
}

static void clocks(findings *list) {
    static const struct {
        const char *path, *off, *on;
    } boosts[] = {{CPUS "/cpufreq/boost", "0", "1"}, {CPUS "/intel_pstate/no_turbo", "1", "0"}};
    finding *made = begin(list, "clock");
    tw_text said = {0};
    bool limited = false;
    for (int core = -1; (core = next_core(list, core)) >= 0;) {
        uint64_t now = number_of_core(list, core, "cpufreq/scaling_cur_freq");
        uint64_t most = number_of_core(list, core, "cpufreq/scaling_max_freq");
        uint64_t highest = number_of_core(list, core, "cpufreq/cpuinfo_max_freq");
        char text[60];
        snprintf(text, sizeof text, "%.2f of %.2f GHz", (double)now / 1e6, (double)highest / 1e6);
        if (highest && !strstr(made->found.data, text))
            tw_text_format(&made->found, "%s%s", made->found.length ? ", " : "", text);
        limited = limited || (most && most < highest);
    }
    if (!made->found.length) {
        made->grade = UNKNOWN;
        tw_text_format(&made->found, "the system does not say");
        return;
    }
    for (size_t i = 0; i < sizeof boosts / sizeof *boosts && made->grade == FINE; i++) {
        tw_read_text(&said, list->root, boosts[i].path);
        if (strcmp(said.data, boosts[i].on) != 0) continue;
        made->grade = POOR;
        tw_text_format(&made->found, ", and more while the heat allows");
        tw_text_format(&made->todo, "echo %s | sudo tee %s", boosts[i].off, boosts[i].path);
    }
    if (made->grade == FINE && limited)
        tw_text_format(&made->found, "; limited, which is fine if it is meant");
    tw_text_free(&said);
}

/* After the noise was measured: that warms the device. */
static void heat(findings *list) {
    finding *made = begin(list, "heat");
    double celsius = 0;
    tw_text reason = {0};
    bool sensor = tw_hottest(list->root, &celsius);
    if (sensor)
        tw_text_format(&made->found, "%.0f \xC2\xB0"
                                     "C",
                       celsius);
    else
        tw_text_format(&made->found, "no sensor");
    made->grade = sensor ? FINE : UNKNOWN;
    if (tw_heat_reason(&list->harness->heat, &reason)) {
        made->grade = POOR;
        tw_text_format(&made->found, ": %s", reason.data);
        tw_text_format(&made->todo, "give it a fan or a larger power supply; the worker waits "
                                    "while it is slowed down");
    } else if (sensor && celsius >= HOT_CELSIUS) {
        made->grade = POOR;
        tw_text_format(&made->todo, "give it a fan, or less: echo KHZ | sudo tee " CPUS
                                    "/cpu*/cpufreq/scaling_max_freq");
    }
    tw_text_free(&reason);
}

static void memory(findings *list) {
    finding *made = begin(list, "memory");
    uint64_t bytes = tw_free_bytes(list->root), mebibytes = bytes >> 20;
    if (bytes == UINT64_MAX) {
        made->grade = UNKNOWN;
        tw_text_format(&made->found, "the system does not say how much is free");
        return;
    }
    tw_text_format(&made->found, "%llu of %llu MiB are free", (unsigned long long)mebibytes,
                   (unsigned long long)list->harness->facts.memory_bytes >> 20);
    if (mebibytes >= ENOUGH_MEBIBYTES) return;
    made->grade = mebibytes < LEAST_MEBIBYTES ? WRONG : POOR;
    if (made->grade == WRONG) tw_text_format(&made->found, ", %d are needed", LEAST_MEBIBYTES);
    tw_text_format(&made->todo, "%send other programs (top)",
                   made->grade == POOR ? "only small models fit; " : "");
}

/* Before the noise: that is a load. */
static void load(findings *list, bool known, double found) {
    finding *made = begin(list, "load");
    if (!known) {
        made->grade = UNKNOWN;
        tw_text_format(&made->found, "the system does not say");
        return;
    }
    tw_text_format(&made->found, "%.2f processes wanted to run in the last minute", found);
    if (found <= QUIET_LOAD) return;
    made->grade = POOR;
    tw_text_format(&made->todo, "end other programs (top)");
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void noise(findings *list, bool started, const char *why) {
    static const char *const names[] = {"arithmetic", "memory"};
    static const double limits[] = {ARITHMETIC_LIMIT, MEMORY_LIMIT};
    finding *made = begin(list, "noise");
    tw_speed *speed = &list->harness->speed;
    size_t count = speed->counts[0];
    if (!started || count < 2) {
        made->grade = WRONG;
        tw_text_format(&made->found, "the sandbox %s%s",
                       started ? "measured nothing" : "does not start: ", started ? "" : why);
        return;
    }
    tw_text_format(&made->found, "of the fastest time, the median and the slowest tenth take ");
    for (int part = 0; part < 2; part++) {
        double *times = speed->readings[0][part];
        qsort(times, count, sizeof *times, by_size);
        double middle = (times[(count - 1) / 2] + times[count / 2]) / 2;
        double usual = middle / times[0], worst = times[(size_t)(0.9 * (double)count)] / times[0];
        tw_text_format(&made->found, "%s%.2f, %.2f (%s)", part ? " and " : "", usual, worst,
                       names[part]);
        if (usual > limits[part]) made->grade = POOR;
    }
    if (made->grade == POOR)
        tw_text_format(&made->todo,
                       "end other programs; a neighbour on a shared machine can be the cause");
}

static void print_json(const findings *list) {
    tw_text text = {0};
    for (int i = 0; i < list->count; i++) {
        const finding *each = &list->all[i];
        tw_text_format(&text, "%s{\"name\":\"%s\",\"grade\":\"%s\",\"found\":", i ? "," : "[",
                       each->name, GRADES[each->grade]);
        tw_text_string(&text, each->found.data, each->found.length);
        tw_text_format(&text, ",\"do\":");
        tw_text_string(&text, each->todo.data, each->todo.length);
        tw_text_format(&text, "}");
    }
    printf("%s]\n", text.data);
    tw_text_free(&text);
}

static void print_lines(const findings *list) {
    for (int i = 0; i < list->count; i++) {
        const finding *each = &list->all[i];
        for (char *c = each->found.data; *c; c++) /* one line, whatever a file holds */
            if ((unsigned char)*c < ' ' || *c == 127) *c = ' ';
        printf("%-7s  %-8s  %s\n", GRADES[each->grade], each->name, each->found.data);
        if (each->todo.length) printf("%-9s%-10s-> %s\n", "", "", each->todo.data);
    }
}

static bool never(void *self) {
    (void)self;
    return false;
}

int tw_check(tw_harness *harness, bool as_json) {
    findings list = {.harness = harness, .root = harness->root};
    double processes = 0;
    tw_error error = {.text = ""};
    bool loaded = tw_load(harness->root, &processes);
    bool started = tw_probe_device(harness, PROBES, never, NULL, &error);
    cores(&list);
    features(&list);
    governor(&list);
    clocks(&list);
    heat(&list);
    memory(&list);
    load(&list, loaded, processes);
    noise(&list, started, error.text);
    if (as_json)
        print_json(&list);
    else
        print_lines(&list);
    grade worst = FINE;
    for (int i = 0; i < list.count; i++) {
        if (list.all[i].grade > worst) worst = list.all[i].grade;
        tw_text_free(&list.all[i].found);
        tw_text_free(&list.all[i].todo);
    }
    return worst == WRONG ? 1 : worst == POOR ? 3 : 0;
}
