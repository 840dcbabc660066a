#include "heat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "system.h"

enum { MOST_CORES = 1024, MOST_DEVICES = 256, LONGEST_WAIT_SECONDS = 180 };
#define FULL_CLOCK 0.95 /* below this share of its highest clock a core is slowed down */

void tw_heat_begin(tw_heat *heat, const char *root, const cpu_set_t *cores) {
    tw_text reason = {0};
    *heat = (tw_heat){.root = root, .cores = *cores};
    tw_heat_reason(heat, &reason); /* counters start from here */
    tw_text_free(&reason);
}

/* Kinds of cooling that slow a processor down, by the names that Linux's drivers give them. */
static bool slows_down(const char *kind) {
    return strncmp(kind, "thermal-cpufreq", 15) == 0 || strncmp(kind, "cpufreq-", 8) == 0 ||
           strncmp(kind, "thermal-idle", 12) == 0 || strcmp(kind, "Processor") == 0;
}

static void cooling(const tw_heat *heat, tw_text *reason) {
    tw_text kind = {0};
    for (int number = 0; number < MOST_DEVICES && !reason->length; number++) {
        char folder[60], path[80];
        uint64_t states[2];
        static const char *const names[] = {"cur", "max"};
        snprintf(folder, sizeof folder, "/sys/class/thermal/cooling_device%d", number);
        snprintf(path, sizeof path, "%s/type", folder);
        tw_read_text(&kind, heat->root, path);
        if (!kind.length || !slows_down(kind.data)) continue;
        for (int i = 0; i < 2; i++) {
            snprintf(path, sizeof path, "%s/%s_state", folder, names[i]);
            states[i] = tw_read_number(heat->root, path);
        }
        if (states[0] > 0 && states[0] <= states[1])
            tw_text_format(reason, "'%.40s' slows it down, step %llu of %llu", kind.data,
                           (unsigned long long)states[0], (unsigned long long)states[1]);
    }
    tw_text_free(&kind);
}

/* The throttling bits of a Raspberry Pi: the present state, and from bit 16 on past events. */
static void firmware(const tw_heat *heat, tw_text *reason) {
    static const char *const said[] = {
        "its power supply is too weak", "its firmware limits the clock",
        "its firmware throttles it", "it is near its highest temperature"};
    tw_text text = {0};
    tw_read_text(&text, heat->root, "/sys/devices/platform/soc/soc:firmware/get_throttled");
    const char *digits = text.data;
    if (strncmp(digits, "0x", 2) == 0) digits += 2;
    size_t length = strlen(digits);
    bool number = length && length <= 8 && strspn(digits, "0123456789abcdef") == length;
    unsigned long bits = number ? strtoul(digits, NULL, 16) : 0;
    for (int i = 0; i < 4 && !reason->length; i++)
        if (bits >> i & 1) tw_text_format(reason, "%s", said[i]);
    tw_text_free(&text);
}

/* Idle processors that choose their clocks themselves are slow, whatever the governor is. */
static void clocks(const tw_heat *heat, tw_text *reason) {
    tw_text text = {0};
    for (int core = 0; core < CPU_SETSIZE && core < MOST_CORES && !reason->length; core++) {
        char folder[80], path[120];
        if (!CPU_ISSET(core, &heat->cores)) continue;
        snprintf(folder, sizeof folder, "/sys/devices/system/cpu/cpu%d/cpufreq", core);
        snprintf(path, sizeof path, "%s/scaling_driver", folder);
        tw_read_text(&text, heat->root, path);
        if (strstr(text.data, "pstate") || strstr(text.data, "cppc")) continue;
        snprintf(path, sizeof path, "%s/scaling_governor", folder);
        tw_read_text(&text, heat->root, path);
        if (strcmp(text.data, "performance") != 0) continue;
        snprintf(path, sizeof path, "%s/scaling_cur_freq", folder);
        double now = (double)tw_read_number(heat->root, path);
        snprintf(path, sizeof path, "%s/cpuinfo_max_freq", folder);
        double most = (double)tw_read_number(heat->root, path);
        if (now > 0 && now < FULL_CLOCK * most)
            tw_text_format(reason, "cpu%d runs at %.2f of %.2f GHz", core, now / 1e6, most / 1e6);
    }
    tw_text_free(&text);
}

static uint64_t throttled(const tw_heat *heat) {
    static const char *const names[] = {"core", "package"};
    uint64_t sum = 0;
    for (int core = 0; core < CPU_SETSIZE && core < MOST_CORES; core++) {
        for (int i = 0; i < 2 && CPU_ISSET(core, &heat->cores); i++) {
            char path[120];
            snprintf(path, sizeof path,
                     "/sys/devices/system/cpu/cpu%d/thermal_throttle/%s_throttle_count", core,
                     names[i]);
            sum += tw_read_number(heat->root, path);
        }
    }
    return sum;
}

bool tw_heat_reason(tw_heat *heat, tw_text *reason) {
    uint64_t count = throttled(heat), before = heat->throttled;
    heat->throttled = count;
    tw_text_clear(reason);
    cooling(heat, reason);
    if (!reason->length) firmware(heat, reason);
    if (!reason->length) clocks(heat, reason);
    if (!reason->length && count > before)
        tw_text_format(reason, "its throttling was counted since the last look");
    return reason->length > 0;
}

void tw_cool_down(tw_heat *heat, bool (*pause)(void *self), void *self,
                  void (*say)(const char *format, ...)) {
    tw_text reason = {0};
    bool hot = tw_heat_reason(heat, &reason);
    if (!hot) heat->in_vain = false;
    if (hot && !heat->in_vain) {
        int waited = 0;
        say("the device is slowed down and work waits: %s", reason.data);
        while (hot && waited < LONGEST_WAIT_SECONDS) {
            if (!pause(self)) { /* the wait was cut short */
                say("after %d seconds, nobody waits for the work", waited);
                tw_text_free(&reason);
                return;
            }
            waited++;
            hot = tw_heat_reason(heat, &reason);
        }
        heat->in_vain = hot; /* it may be permanent, such as a limit set by the user */
        say("after %d seconds, it is %s%s", waited, hot ? "still so: " : "over",
            hot ? reason.data : "");
    }
    tw_text_free(&reason);
}
