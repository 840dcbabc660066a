#include "facts.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "../../../compiler/runtime/native/tilewright.h"
#include "system.h"

enum { MOST_CORES = 1024, MOST_FEATURES = 1000, LONGEST_TEXT = 400, MOST_CACHES = 16 };

/* A core, and its paragraph of /proc/cpuinfo. */
typedef struct {
    int number;
    bool usable;
    const char *text; /* up to an empty line */
    char identity[LONGEST_TEXT];
    uint64_t capacity, kilohertz;
} core;

/* The value of a key in a paragraph; "" if the key is missing. */
static void field(char value[], size_t room, const char *paragraph, const char *key) {
    size_t wanted = strlen(key);
    value[0] = 0;
    for (const char *line = paragraph; *line && *line != '\n';) {
        const char *end = strchrnul(line, '\n'), *colon = memchr(line, ':', (size_t)(end - line));
        const char *stop = colon ? colon : end;
        while (stop > line && (stop[-1] == ' ' || stop[-1] == '\t')) stop--;
        if (colon && (size_t)(stop - line) == wanted && strncasecmp(line, key, wanted) == 0) {
            const char *start = colon + 1 + strspn(colon + 1, " \t");
            while (end > start && strchr(" \t\r", end[-1])) end--;
            snprintf(value, room, "%.*s", (int)(end - start), end > start ? start : "");
            return; /* the first: kernels write each once */
        }
        line = *end ? end + 1 : end;
    }
}

static void identify(core *one, const char *root) {
    static const char *const keys[][4] = {{"vendor_id", "cpu family", "model", "stepping"},
                                          {"cpu implementer", "cpu part"},
                                          {"mvendorid", "marchid"}};
    char path[128], part[LONGEST_TEXT / 4];
    tw_text text = {0};
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/regs/identification/midr_el1",
             one->number);
    tw_read_text(&text, root, path);
    uint64_t midr = text.length && text.length <= 18 ? strtoull(text.data, NULL, 16) : 0;
    tw_text_clear(&text);
    if (midr >> 24 & 0xFF) {
        tw_text_format(&text, "0x%02x-0x%03x", (unsigned)(midr >> 24 & 0xFF),
                       (unsigned)(midr >> 4 & 0xFFF));
    } else {
        field(part, sizeof part, one->text, "uarch");
        tw_text_format(&text, "%s", part);
        for (int i = 0; i < 3; i++) {
            tw_text numbers = {0};
            int count = 0, found = 0;
            for (; count < 4 && keys[i][count]; count++) {
                field(part, sizeof part, one->text, keys[i][count]);
                found += *part != 0;
                tw_text_format(&numbers, "%s%s", count ? "-" : "", part);
            }
            if (found == count) tw_text_format(&text, "%s%s", text.length ? " " : "", numbers.data);
            tw_text_free(&numbers);
            if (found == count) break;
        }
    }
    snprintf(one->identity, sizeof one->identity, "%s", text.data);
    tw_text_free(&text);
}

static int read_cores(core cores[MOST_CORES], const tw_text *cpuinfo, const char *root) {
    cpu_set_t usable;
    int count = 0;
    if (sched_getaffinity(0, sizeof usable, &usable) != 0) CPU_ZERO(&usable);
    const char *at = cpuinfo->length ? cpuinfo->data : "";
    while (*at && count < MOST_CORES) {
        char number[24], path[128];
        field(number, sizeof number, at, "processor");
        if (*number && strlen(number) < 5 && strspn(number, "0123456789") == strlen(number)) {
            core *one = &cores[count++];
            *one = (core){.number = atoi(number), .text = at};
            one->usable = one->number < CPU_SETSIZE && CPU_ISSET(one->number, &usable);
            snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpu_capacity", one->number);
            one->capacity = tw_read_number(root, path);
            snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/cpuinfo_max_freq",
                     one->number);
            one->kilohertz = tw_read_number(root, path);
            identify(one, root);
        }
        const char *next = strstr(at, "\n\n");
        at = next ? next + 2 + strspn(next + 2, "\n") : "";
    }
    return count;
}

/* Choose the cores that are like the strongest one; its place in the list. */
static int choose_cores(tw_facts *facts, const core *cores, int count) {
    bool any = false, capacities = true, clocks = true;
    for (int i = 0; i < count; i++) any = any || cores[i].usable;
    for (int i = 0; i < count; i++) {
        if (any && !cores[i].usable) continue;
        capacities = capacities && cores[i].capacity, clocks = clocks && cores[i].kilohertz;
    }
    int lead = -1, others = 0;
    uint64_t best = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < count; i++) {
            uint64_t strength = capacities ? cores[i].capacity : clocks ? cores[i].kilohertz : 1;
            if (any && !cores[i].usable) continue;
            if (pass == 0 && strength > best) {
                best = strength, lead = i;
            } else if (pass == 1) {
                bool alike = strength * 16 >= best * 15 &&
                             strcmp(cores[i].identity, cores[lead].identity) == 0;
                if (alike && cores[i].number < CPU_SETSIZE) CPU_SET(cores[i].number, &facts->cores);
                others += !alike;
            }
        }
    }
    facts->some_cores = any && others > 0;
    return lead;
}

static int by_name(const void *one, const void *other) {
    return strcmp(*(const char *const *)one, *(const char *const *)other);
}

/* The words of a paragraph's features, sorted, each once; they point into `text`. */
static int words_of(char *text, const char **words) {
    int count = 0, kept = 0;
    for (char *rest, *word = strtok_r(text, " \t_", &rest); word && count < MOST_FEATURES;
         word = strtok_r(NULL, " \t_", &rest))
        words[count++] = word;
    qsort(words, (size_t)count, sizeof *words, by_name);
    for (int i = 0; i < count; i++)
        if (!kept || strcmp(words[kept - 1], words[i]) != 0) words[kept++] = words[i];
    return kept;
}

static void features_of(char value[8192], const char *paragraph) {
    field(value, 8192, paragraph, "flags");
    if (!*value) field(value, 8192, paragraph, "features");
    if (*value) {
        for (char *c = value; *c;
             c++) /* words are parted by blanks; Linux's names have underscores */
            if (*c == '_') *c = '\1';
        return;
    }
    field(value, 8192, paragraph, "isa"); /* rv64imafdcv_zba_... */
    for (char *c = value; *c; c++) *c = (char)tolower((unsigned char)*c);
    /* each letter behind "rv64" is a feature */
    bool prefix = strncmp(value, "rv64", 4) == 0 || strncmp(value, "rv32", 4) == 0;
    const char *letters = value + (prefix ? 4 : 0);
    tw_text parted = {0};
    for (; *letters && *letters != '_'; letters++) tw_text_format(&parted, "%c_", *letters);
    tw_text_format(&parted, "%s", letters);
    snprintf(value, 8192, "%s", parted.data);
    tw_text_free(&parted);
}

/* Whether a process may use matrix registers. Linux grants them on request (its
   Documentation/arch/x86/xstate.rst) to a process and its children, which run candidates. */
static bool matrices_granted(void) {
#if defined(__x86_64__) && defined(__linux__)
    enum { ARCH_PRCTL = 158, REQUEST = 0x1023, TILE_DATA = 18 };
    return syscall(ARCH_PRCTL, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
}

static void add_features(tw_text *text, const core *cores, int count) {
    static char first[8192], other[8192];
    static const char *words[MOST_FEATURES], *theirs[MOST_FEATURES];
    int found = 0;
    for (int i = 0; i < count; i++) {
        features_of(i ? other : first, cores[i].text);
        if (i == 0) {
            found = words_of(first, words);
            continue;
        }
        int seen = words_of(other, theirs), kept = 0;
        for (int j = 0; j < found; j++)
            if (bsearch(&words[j], theirs, (size_t)seen, sizeof *theirs, by_name))
                words[kept++] = words[j];
        found = kept;
    }
    bool said = false, matrices = matrices_granted();
    for (int i = 0; i < found; i++) {
        char *name = (char *)words[i];
        for (char *c = name; *c; c++)
            if (*c == '\1') *c = '_';
        if (!matrices && strncmp(name, "amx", 3) == 0) continue;
        tw_text_format(text, said ? "," : ",\"features\":[");
        tw_text_string(text, name, strlen(name));
        said = true;
    }
    if (said) tw_text_add(text, "]", 1);
}

static uint64_t listed(const char *ranges) { /* how many numbers "0-3,8" holds */
    uint64_t count = 0;
    while (isdigit((unsigned char)*ranges)) {
        char *after;
        uint64_t first = strtoull(ranges, &after, 10), last = first;
        if (*after == '-') last = strtoull(after + 1, &after, 10);
        count += last >= first && last < MOST_CORES ? last - first + 1 : 0;
        ranges = *after == ',' ? after + 1 : "";
    }
    return count;
}

static void add_caches(tw_text *text, int core_number, const char *root) {
    static const char *const numbers[] = {"level", "ways_of_associativity", "coherency_line_size"};
    static const char *const names[] = {"level", "ways", "line_bytes"};
    tw_text value = {0};
    bool said = false;
    char folder[128], path[256];
    tw_text_format(text, ",\"caches\":[");
    for (int index = 0; index < MOST_CACHES; index++) {
        snprintf(folder, sizeof folder, "/sys/devices/system/cpu/cpu%d/cache/index%d", core_number,
                 index);
        snprintf(path, sizeof path, "%s/size", folder);
        tw_read_text(&value, root, path);
        char *unit = value.length ? value.data + strspn(value.data, "0123456789") : "";
        const char *known = *unit ? strchr("KMG", *unit) : NULL;
        if (!known || unit[1] || unit == value.data || value.length > 10) continue;
        uint64_t bytes = strtoull(value.data, NULL, 10) << 10 * (known - "KMG" + 1);
        tw_text_format(text, "%s{\"bytes\":%llu", said ? "," : "", (unsigned long long)bytes);
        for (int i = 0; i < 3; i++) {
            snprintf(path, sizeof path, "%s/%s", folder, numbers[i]);
            tw_text_format(text, ",\"%s\":%llu", names[i],
                           (unsigned long long)tw_read_number(root, path));
        }
        snprintf(path, sizeof path, "%s/type", folder);
        tw_read_text(&value, root, path);
        for (size_t i = 0; i < value.length; i++)
            value.data[i] = (char)tolower((unsigned char)value.data[i]);
        tw_text_format(text, ",\"kind\":");
        tw_text_string(text, value.data, value.length);
        snprintf(path, sizeof path, "%s/shared_cpu_list", folder);
        tw_read_text(&value, root, path);
        tw_text_format(text, ",\"shared_by\":%llu}", (unsigned long long)listed(value.data));
        said = true;
    }
    tw_text_add(text, "]", 1);
    tw_text_free(&value);
}

static void add_text(tw_text *text, const char *name, const char *value) {
    tw_text_format(text, ",\"%s\":", name);
    tw_text_string(text, value, strnlen(value, LONGEST_TEXT));
}

static void add_model(tw_text *text, const core *lead, const char *root) {
    char model[LONGEST_TEXT] = "", part[LONGEST_TEXT] = "", implementer[64] = "";
    tw_text board = {0}, whole = {0};
    tw_read_text(&board, root, "/sys/firmware/devicetree/base/model");
    if (lead) field(model, sizeof model, lead->text, "model name");
    if (lead) field(part, sizeof part, lead->text, "cpu part");
    if (*model) {
        tw_text_format(&whole, "%s", model);
    } else if (*part) {
        field(implementer, sizeof implementer, lead->text, "cpu implementer");
        const char *who = *implementer ? implementer : "?";
        if (board.length) tw_text_format(&whole, "%s (", board.data);
        tw_text_format(&whole, "implementer %s part %s%s", who, part, board.length ? ")" : "");
    } else {
        if (lead) field(part, sizeof part, lead->text, "uarch");
        tw_text_format(&whole, "%s", board.length ? board.data : part);
    }
    add_text(text, "model", whole.data);
    tw_text_free(&board);
    tw_text_free(&whole);
}

static uint64_t memory_bytes(const char *root) {
    tw_text text = {0};
    tw_read_text(&text, root, "/proc/meminfo");
    const char *line = strstr(text.data, "MemTotal:");
    uint64_t found = line ? strtoull(line + 9, NULL, 10) << 10 : 0;
    tw_text_free(&text);
    return found >> 56 ? 0 : found;
}

static int physical_cores(const core *cores, int count) {
    static char pairs[MOST_CORES][64];
    int found = 0;
    for (int i = 0; i < count; i++) {
        char package[24], number[24], pair[64];
        field(package, sizeof package, cores[i].text, "physical id");
        field(number, sizeof number, cores[i].text, "core id");
        if (!*package || !*number) continue;
        snprintf(pair, sizeof pair, "%s/%s", package, number);
        int j = 0;
        while (j < found && strcmp(pairs[j], pair) != 0) j++;
        if (j == found) memcpy(pairs[found++], pair, sizeof pair);
    }
    return found ? found : count;
}

void tw_find_facts(tw_facts *facts, const char *root) {
    static core cores[MOST_CORES];
    tw_text cpuinfo = {0}, value = {0}, *text = &facts->brief;
    struct utsname system;
    char path[128], microcode[LONGEST_TEXT] = "";
    *facts = (tw_facts){.some_cores = false};
    CPU_ZERO(&facts->cores);
    tw_read_text(&cpuinfo, root, "/proc/cpuinfo");
    int count = read_cores(cores, &cpuinfo, root), place = choose_cores(facts, cores, count),
        usable = 0;
    const core *lead = place < 0 ? NULL : &cores[place];
    int number = lead ? lead->number : 0;
    for (int i = 0; i < count; i++)
        usable +=
            facts->some_cores ? CPU_ISSET(cores[i].number, &facts->cores) != 0 : cores[i].usable;
    if (uname(&system) != 0) snprintf(system.machine, sizeof system.machine, "unknown");
    facts->memory_bytes = memory_bytes(root);
    facts->kilohertz = lead ? lead->kilohertz : 0;
    facts->known = count > 0;
    snprintf(facts->identity, sizeof facts->identity, "%s", lead ? lead->identity : "");
    if (!usable) usable = (int)sysconf(_SC_NPROCESSORS_ONLN);
    tw_text_format(
        text, "{\"architecture\":\"%s\",\"system\":\"Linux\",\"cores\":%d,\"physical_cores\":%d",
        system.machine, usable, count ? physical_cores(cores, count) : usable);
    tw_text_format(text, ",\"memory_bytes\":%llu", (unsigned long long)facts->memory_bytes);
    add_model(text, lead, root);
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor", number);
    tw_read_text(&value, root, path);
    add_text(text, "governor", value.data);
    add_text(text, "processor", lead ? lead->identity : "");
    if (lead) field(microcode, sizeof microcode, lead->text, "microcode");
    add_text(text, "microcode", microcode);
    add_caches(text, number, root);
    tw_text_add(&facts->registration, text->data, text->length);
    int64_t bits = tw_vector_bits();
    if (!bits) bits = 8 * (int64_t)tw_read_number(root, "/proc/sys/abi/sve_default_vector_length");
    /* as in Python: brief facts are the registration's facts without features */
    tw_text_format(text, ",\"vector_bits\":%lld}", (long long)bits);
    add_features(&facts->registration, cores, count);
    tw_text_format(&facts->registration, ",\"vector_bits\":%lld}", (long long)bits);
    tw_text_free(&cpuinfo);
    tw_text_free(&value);
}

void tw_condition(tw_text *text, const char *root) {
    double celsius, load;
    tw_text value = {0};
    tw_text_format(text, "{\"temperature_celsius\":");
    if (tw_hottest(root, &celsius))
        tw_text_number(text, celsius);
    else
        tw_text_format(text, "null");
    tw_text_format(text, ",\"load\":");
    if (tw_load(root, &load))
        tw_text_number(text, load);
    else
        tw_text_format(text, "null");
    tw_read_text(&value, root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    tw_text_format(text, ",\"clock_ratio\":null,\"governor\":");
    tw_text_string(text, value.data, strnlen(value.data, 100));
    tw_text_add(text, "}", 1);
    tw_text_free(&value);
}
