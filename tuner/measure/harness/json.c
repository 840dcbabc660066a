#include "json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 1 << 16 };

typedef struct json_block {
    struct json_block *before;
    size_t used, room;
    _Alignas(16) char data[];
} block;

typedef struct {
    json_document *document;
    const char *at, *end;
    int depth;
} reader;

static json *read_value(reader *in);

static void *take(json_document *document, size_t size) {
    size = (size + 15) & ~(size_t)15;
    block *last = document->blocks;
    if (!last || last->room - last->used < size) {
        size_t room = size > BLOCK_BYTES ? size : BLOCK_BYTES;
        block *made = tw_allocate(sizeof *made + room);
        made->before = last, made->room = room;
        document->blocks = last = made;
    }
    void *found = last->data + last->used;
    last->used += size;
    return found;
}

static void skip(reader *in) {
    while (in->at < in->end &&
           (*in->at == ' ' || *in->at == '\t' || *in->at == '\n' || *in->at == '\r'))
        in->at++;
}

static bool accept(reader *in, char wanted) {
    if (in->at >= in->end || *in->at != wanted) return false;
    in->at++;
    return true;
}

static bool word(reader *in, const char *wanted) {
    size_t length = strlen(wanted);
    if ((size_t)(in->end - in->at) < length || memcmp(in->at, wanted, length) != 0) return false;
    in->at += length;
    return true;
}

static bool digits(reader *in) {
    const char *before = in->at;
    while (in->at < in->end && *in->at >= '0' && *in->at <= '9') in->at++;
    return in->at > before;
}

static bool read_number(reader *in, json *value) {
    const char *start = in->at;
    accept(in, '-');
    if (!accept(in, '0') && !digits(in)) return false;
    if (accept(in, '.') && !digits(in)) return false;
    if (in->at < in->end && (*in->at == 'e' || *in->at == 'E')) {
        in->at++;
        if (!accept(in, '+')) accept(in, '-');
        if (!digits(in)) return false;
    }
    char *copy = take(in->document, (size_t)(in->at - start) + 1);
    memcpy(copy, start, (size_t)(in->at - start));
    value->kind = JSON_NUMBER;
    value->string = copy, value->length = (size_t)(in->at - start);
    return true;
}

static bool hex(reader *in, uint32_t *found) {
    *found = 0;
    for (int i = 0; i < 4; i++, in->at++) {
        if (in->at >= in->end) return false;
        char c = *in->at;
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit > 15) return false;
        *found = *found << 4 | digit;
    }
    return true;
}

static char *put_utf8(char *to, uint32_t point) {
    if (point < 0x80) {
        *to++ = (char)point;
    } else if (point < 0x800) {
        *to++ = (char)(0xC0 | point >> 6);
        *to++ = (char)(0x80 | (point & 0x3F));
    } else if (point < 0x10000) {
        *to++ = (char)(0xE0 | point >> 12);
        *to++ = (char)(0x80 | (point >> 6 & 0x3F));
        *to++ = (char)(0x80 | (point & 0x3F));
    } else {
        *to++ = (char)(0xF0 | point >> 18);
        *to++ = (char)(0x80 | (point >> 12 & 0x3F));
        *to++ = (char)(0x80 | (point >> 6 & 0x3F));
        *to++ = (char)(0x80 | (point & 0x3F));
    }
    return to;
}

static bool read_escape(reader *in, char **to) {
    static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    if (in->at >= in->end) return false;
    char name = *in->at++;
    const char *known = name ? strchr(names, name) : NULL;
    if (known) {
        *(*to)++ = meant[known - names];
        return true;
    }
    uint32_t point, low;
    if (name != 'u' || !hex(in, &point) || !point) return false;
    if (point >= 0xD800 && point < 0xE000) {
        if (point >= 0xDC00 || !word(in, "\\u") || !hex(in, &low)) return false;
        if (low < 0xDC00 || low >= 0xE000) return false;
        point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
    }
    *to = put_utf8(*to, point);
    return true;
}

/* Bytes of the UTF-8 sequence at `at`; 0 if it is invalid. */
static size_t sequence(const unsigned char *at, size_t left) {
    if (at[0] < 0x80) return 1;
    size_t bytes = at[0] >= 0xC2 && at[0] < 0xE0   ? 2
                   : at[0] >= 0xE0 && at[0] < 0xF0 ? 3
                   : at[0] >= 0xF0 && at[0] < 0xF5 ? 4
                                                   : 0;
    if (!bytes || bytes > left) return 0;
    for (size_t i = 1; i < bytes; i++)
        if ((at[i] & 0xC0) != 0x80) return 0;
    bool overlong = (at[0] == 0xE0 && at[1] < 0xA0) || (at[0] == 0xF0 && at[1] < 0x90);
    bool beyond = (at[0] == 0xED && at[1] >= 0xA0) || (at[0] == 0xF4 && at[1] >= 0x90);
    return overlong || beyond ? 0 : bytes;
}

static bool read_string(reader *in, const char **found, size_t *length) {
    if (!accept(in, '"')) return false;
    const char *close = in->at;
    while (close < in->end && *close != '"') close += *close == '\\' && in->end - close > 1 ? 2 : 1;
    if (close >= in->end) return false;
    char *start = take(in->document, (size_t)(close - in->at) + 1), *to = start; /* never longer */
    while (in->at < close) {
        if (*in->at == '\\') {
            in->at++;
            if (!read_escape(in, &to)) return false;
            continue;
        }
        size_t bytes = sequence((const unsigned char *)in->at, (size_t)(close - in->at));
        if (!bytes || (unsigned char)*in->at < 0x20) return false;
        memcpy(to, in->at, bytes);
        to += bytes, in->at += bytes;
    }
    *found = start, *length = (size_t)(to - start);
    return accept(in, '"');
}

static bool read_members(reader *in, json *value, char close) {
    json **last = &value->first;
    skip(in);
    if (accept(in, close)) return true;
    do {
        const char *key = NULL;
        size_t key_length = 0;
        skip(in);
        if (close == '}') {
            if (!read_string(in, &key, &key_length)) return false;
            skip(in);
            if (!accept(in, ':')) return false;
        }
        json *member = read_value(in);
        if (!member) return false;
        member->key = key, member->key_length = key_length;
        *last = member, last = &member->next;
        value->count++;
        skip(in);
    } while (accept(in, ','));
    return accept(in, close);
}

static bool read_kind(reader *in, json *value) {
    switch (*in->at) {
    case '{':
    case '[':
        value->kind = *in->at == '{' ? JSON_OBJECT : JSON_ARRAY;
        if (++in->depth > JSON_DEPTH) return false;
        if (!read_members(in, value, *in->at++ == '{' ? '}' : ']')) return false;
        in->depth--;
        return true;
    case '"': value->kind = JSON_STRING; return read_string(in, &value->string, &value->length);
    case 't': value->kind = JSON_TRUE; return word(in, "true");
    case 'f': value->kind = JSON_FALSE; return word(in, "false");
    case 'n': value->kind = JSON_NULL; return word(in, "null");
    default: return read_number(in, value);
    }
}

static json *read_value(reader *in) {
    skip(in);
    size_t most = in->document->most_nodes ? in->document->most_nodes : JSON_NODES;
    if (in->at >= in->end || in->document->nodes++ >= most) return NULL;
    json *value = take(in->document, sizeof *value);
    value->raw = in->at;
    if (!read_kind(in, value)) return NULL;
    value->raw_length = (size_t)(in->at - value->raw);
    return value;
}

const json *json_parse(json_document *document, const char *text, size_t length) {
    reader in = {document, text, text + length, 0};
    const json *value = read_value(&in);
    skip(&in);
    return in.at == in.end ? value : NULL;
}

void json_free(json_document *document) {
    for (block *each = document->blocks, *before; each; each = before) {
        before = each->before;
        free(each);
    }
    *document = (json_document){0};
}

const json *json_get(const json *object, const char *name) {
    if (!object || object->kind != JSON_OBJECT) return NULL;
    size_t length = strlen(name);
    for (const json *each = object->first; each; each = each->next)
        if (each->key_length == length && memcmp(each->key, name, length) == 0) return each;
    return NULL;
}

const json *json_get_kind(const json *object, const char *name, json_kind kind) {
    const json *found = json_get(object, name);
    return found && found->kind == kind ? found : NULL;
}

const char *json_get_text(const json *object, const char *name) {
    const json *found = json_get_kind(object, name, JSON_STRING);
    return found ? found->string : "";
}

bool json_number(const json *value, double *found) {
    if (!value || value->kind != JSON_NUMBER) return false;
    *found = strtod(value->string, NULL);
    return isfinite(*found);
}

bool json_integer(const json *value, int64_t least, int64_t most, int64_t *found) {
    if (!value || value->kind != JSON_NUMBER || strpbrk(value->string, ".eE")) return false;
    errno = 0;
    long long read = strtoll(value->string, NULL, 10);
    if (errno || read < least || read > most) return false;
    *found = read;
    return true;
}
