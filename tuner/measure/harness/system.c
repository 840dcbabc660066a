#include "system.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_FILE_BYTES = 8 << 20, MOST_ZONES = 64 };
#define MOST_CELSIUS 300.0
#define MOST_LOAD 1e6

double tw_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void tw_read_text(tw_text *text, const char *root, const char *path) {
    char name[512], data[4096];
    size_t got;
    tw_text_clear(text);
    snprintf(name, sizeof name, "%s%s", root, path);
    FILE *file = fopen(name, "re");
    if (!file) return;
    while ((got = fread(data, 1, sizeof data, file)) > 0 && text->length < MOST_FILE_BYTES)
        tw_text_add(text, data, got);
    fclose(file);
    while (text->length && strchr(" \t\r\n", text->data[text->length - 1]))
        text->data[--text->length] = 0;
    for (size_t i = 0; i < text->length; i++) /* a device tree's texts end with a 0 */
        if (!text->data[i]) text->data[i] = i + 1 == text->length ? 0 : ' ';
}

uint64_t tw_read_number(const char *root, const char *path) {
    tw_text text = {0};
    tw_read_text(&text, root, path);
    bool number =
        text.length && text.length <= 18 && strspn(text.data, "0123456789") == text.length;
    uint64_t found = number ? strtoull(text.data, NULL, 10) : 0;
    tw_text_free(&text);
    return found;
}

uint64_t tw_free_bytes(const char *root) {
    tw_text text = {0};
    tw_read_text(&text, root, "/proc/meminfo");
    const char *line = strstr(text.data, "MemAvailable:");
    uint64_t kibibytes = line ? strtoull(line + 13, NULL, 10) : UINT64_MAX;
    tw_text_free(&text);
    return kibibytes >> 54 ? UINT64_MAX : kibibytes << 10;
}

bool tw_hottest(const char *root, double *celsius) {
    char path[80];
    bool any = false;
    tw_text value = {0};
    for (int zone = 0; zone < MOST_ZONES; zone++) {
        snprintf(path, sizeof path, "/sys/class/thermal/thermal_zone%d/temp", zone);
        tw_read_text(&value, root, path);
        if (!value.length) continue;
        double found = strtod(value.data, NULL) / 1000;
        if (!(found >= -MOST_CELSIUS && found <= MOST_CELSIUS)) continue;
        if (!any || found > *celsius) *celsius = found;
        any = true;
    }
    tw_text_free(&value);
    return any;
}

bool tw_load(const char *root, double *load) {
    tw_text value = {0};
    tw_read_text(&value, root, "/proc/loadavg");
    *load = value.length ? strtod(value.data, NULL) : -1;
    tw_text_free(&value);
    return *load >= 0 && *load <= MOST_LOAD;
}
