#include "text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void end_without_memory(void) {
    static const char said[] = "there is not enough memory\n";
    if (write(2, said, sizeof said - 1) < 0) _exit(TW_NO_MEMORY_STATUS);
    _exit(TW_NO_MEMORY_STATUS);
}

void *tw_allocate(size_t size) {
    void *made = calloc(1, size ? size : 1);
    if (!made) end_without_memory();
    return made;
}

void tw_text_reserve(tw_text *text, size_t more) {
    if (more >= SIZE_MAX / 4 - text->length) end_without_memory();
    size_t wanted = text->length + more + 1;
    if (wanted <= text->room) return;
    size_t room = wanted + wanted / 2 + 64;
    char *moved = realloc(text->data, room);
    if (!moved) end_without_memory();
    text->data = moved, text->room = room;
}

void tw_text_add(tw_text *text, const char *data, size_t length) {
    tw_text_reserve(text, length);
    if (length) memcpy(text->data + text->length, data, length);
    text->length += length;
    text->data[text->length] = 0;
}

void tw_text_format(tw_text *text, const char *format, ...) {
    va_list given;
    va_start(given, format);
    int length = vsnprintf(NULL, 0, format, given);
    va_end(given);
    if (length < 0) return;
    tw_text_reserve(text, (size_t)length);
    va_start(given, format);
    vsnprintf(text->data + text->length, (size_t)length + 1, format, given);
    va_end(given);
    text->length += (size_t)length;
}

void tw_text_clear(tw_text *text) {
    tw_text_reserve(text, 0);
    text->length = 0;
    text->data[0] = 0;
}

void tw_text_free(tw_text *text) {
    free(text->data);
    *text = (tw_text){0};
}

/* The code point that begins at data[0], and its bytes; 0 bytes for invalid UTF-8. */
static size_t code_point(const unsigned char *data, size_t length, uint32_t *found) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t bytes = data[0] < 0x80   ? 1
                   : data[0] < 0xC0 ? 0
                   : data[0] < 0xE0 ? 2
                   : data[0] < 0xF0 ? 3
                   : data[0] < 0xF8 ? 4
                                    : 0;
    if (!bytes || bytes > length) return 0;
    uint32_t value = bytes == 1 ? data[0] : data[0] & (0xFFu >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++) {
        if ((data[i] & 0xC0) != 0x80) return 0;
        value = value << 6 | (data[i] & 0x3F);
    }
    if (value < least[bytes] || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return 0;
    *found = value;
    return bytes;
}

void tw_text_string(tw_text *text, const char *data, size_t length) {
    tw_text_add(text, "\"", 1);
    for (size_t i = 0; i < length;) {
        uint32_t point = '?';
        size_t bytes = code_point((const unsigned char *)data + i, length - i, &point);
        static const char plain[] = "\"\\\b\f\n\r\t", escaped[] = "\"\\bfnrt";
        const char *special = point && point < 0x80 ? strchr(plain, (int)point) : NULL;
        if (special)
            tw_text_format(text, "\\%c", escaped[special - plain]);
        else if (point >= 0x10000)
            tw_text_format(text, "\\u%04x\\u%04x", 0xD800 + ((point - 0x10000) >> 10),
                           0xDC00 + ((point - 0x10000) & 0x3FF));
        else if (point < 0x20 || point >= 0x7F)
            tw_text_format(text, "\\u%04x", point);
        else
            tw_text_add(text, (const char[]){(char)point}, 1);
        i += bytes ? bytes : 1;
    }
    tw_text_add(text, "\"", 1);
}

void tw_text_number(tw_text *text, double value) {
    char digits[40];
    if (!isfinite(value)) value = 0.0;
    for (int places = 0; places < 17; places++) {
        snprintf(digits, sizeof digits, "%.*e", places, value);
        if (strtod(digits, NULL) == value) break;
    }
    /* d.ddde[+-]xx -> the digits alone, and where the point lies behind the first of them */
    char *mantissa = digits + (digits[0] == '-'), *exponent = strchr(digits, 'e');
    int point = atoi(exponent + 1) + 1;
    *exponent = 0;
    if (mantissa[1] == '.') memmove(mantissa + 1, mantissa + 2, strlen(mantissa + 2) + 1);
    int count = (int)strlen(mantissa);
    if (digits[0] == '-') tw_text_add(text, "-", 1);
    if (point > 16 || point < -3) { /* as repr: 1e+16, 1e-05 */
        tw_text_add(text, mantissa, 1);
        if (count > 1) tw_text_format(text, ".%s", mantissa + 1);
        tw_text_format(text, "e%c%02d", point > 0 ? '+' : '-', abs(point - 1));
    } else if (point <= 0) {
        tw_text_format(text, "0.%.*s%s", -point, "0000", mantissa);
    } else if (point >= count) {
        tw_text_format(text, "%s%.*s.0", mantissa, point - count, "0000000000000000");
    } else {
        tw_text_format(text, "%.*s.%s", point, mantissa, mantissa + point);
    }
}

void tw_text_numbers(tw_text *text, const double *numbers, size_t count, size_t step) {
    tw_text_add(text, "[", 1);
    for (size_t i = 0; i < count; i++) {
        if (i) tw_text_add(text, ",", 1);
        tw_text_number(text, numbers[i * step]);
    }
    tw_text_add(text, "]", 1);
}

bool tw_fail(tw_error *error, const char *format, ...) {
    va_list given;
    va_start(given, format);
    vsnprintf(error->text, sizeof error->text, format, given);
    va_end(given);
    return false;
}
