#include "digest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Cube roots of the first primes: 32 bits behind the point. */
static const uint32_t CONSTANTS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

/* Square roots of the first primes, in the same way. */
static const uint32_t STARTS[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

#define TURN(x, by) ((x) >> (by) | (x) << (32 - (by)))

static void block(uint32_t state[8], const unsigned char *data) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++, data += 4)
        w[i] = (uint32_t)data[0] << 24 | (uint32_t)data[1] << 16 | (uint32_t)data[2] << 8 | data[3];
    for (int i = 16; i < 64; i++) {
        uint32_t s = TURN(w[i - 15], 7) ^ TURN(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t t = TURN(w[i - 2], 17) ^ TURN(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s + w[i - 7] + t;
    }
    for (int i = 0; i < 8; i++) v[i] = state[i];
    for (int i = 0; i < 64; i++) {
        uint32_t e = TURN(v[4], 6) ^ TURN(v[4], 11) ^ TURN(v[4], 25);
        uint32_t a = TURN(v[0], 2) ^ TURN(v[0], 13) ^ TURN(v[0], 22);
        uint32_t one = v[7] + e + ((v[4] & v[5]) ^ (~v[4] & v[6])) + CONSTANTS[i] + w[i];
        uint32_t two = a + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        for (int j = 7; j > 0; j--) v[j] = v[j - 1];
        v[4] += one, v[0] = one + two;
    }
    for (int i = 0; i < 8; i++) state[i] += v[i];
}

void tw_sha256_begin(tw_sha256 *sum) {
    *sum = (tw_sha256){.bytes = 0};
    memcpy(sum->state, STARTS, sizeof STARTS);
}

void tw_sha256_add(tw_sha256 *sum, const void *given, size_t length) {
    const unsigned char *data = given;
    while (length) {
        size_t used = sum->bytes % 64, some = 64 - used < length ? 64 - used : length;
        if (some == 64) {
            block(sum->state, data);
        } else {
            memcpy(sum->block + used, data, some);
            if (used + some == 64) block(sum->state, sum->block);
        }
        sum->bytes += some, data += some, length -= some;
    }
}

void tw_sha256_end(tw_sha256 *sum, char hex[TW_DIGEST_CHARACTERS + 1]) {
    uint64_t bits = sum->bytes * 8;
    unsigned char tail[8];
    for (int i = 0; i < 8; i++) tail[i] = (unsigned char)(bits >> (56 - 8 * i));
    tw_sha256_add(sum, "\x80", 1);
    while (sum->bytes % 64 != 56) tw_sha256_add(sum, "", 1);
    tw_sha256_add(sum, tail, 8);
    for (int i = 0; i < TW_DIGEST_CHARACTERS; i++)
        hex[i] = "0123456789abcdef"[sum->state[i / 8] >> (28 - 4 * (i % 8)) & 15];
    hex[TW_DIGEST_CHARACTERS] = 0;
}

bool tw_sha256_file(int file, char hex[TW_DIGEST_CHARACTERS + 1]) {
    static char data[1 << 18];
    tw_sha256 sum;
    tw_sha256_begin(&sum);
    for (;;) {
        ssize_t got = read(file, data, sizeof data);
        if (got < 0 && errno != EINTR) return false;
        if (got == 0) break;
        if (got > 0) tw_sha256_add(&sum, data, (size_t)got);
    }
    tw_sha256_end(&sum, hex);
    return true;
}

bool tw_is_digest(const char *text) {
    return strlen(text) == TW_DIGEST_CHARACTERS &&
           strspn(text, "0123456789abcdef") == TW_DIGEST_CHARACTERS;
}

static const char LETTERS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void tw_to_base64(tw_text *text, const unsigned char *bytes, size_t length) {
    for (size_t i = 0; i < length; i += 3) {
        uint32_t group = 0;
        for (size_t j = 0; j < 3; j++) group = group << 8 | (i + j < length ? bytes[i + j] : 0);
        char four[4];
        for (int j = 0; j < 4; j++) four[j] = LETTERS[group >> (18 - 6 * j) & 63];
        for (size_t j = length - i + 1; j < 4; j++) four[j] = '=';
        tw_text_add(text, four, 4);
    }
}
