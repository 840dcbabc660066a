#include "digest.h"

#include <stdlib.h>
#include <string.h>

/* Cube roots of the first primes: of SHA-512, and by their upper halves of SHA-256. */
static const uint64_t CONSTANTS[80] = {
    0x428a2f98d728ae22, 0x7137449123ef65cd, 0xb5c0fbcfec4d3b2f, 0xe9b5dba58189dbbc,
    0x3956c25bf348b538, 0x59f111f1b605d019, 0x923f82a4af194f9b, 0xab1c5ed5da6d8118,
    0xd807aa98a3030242, 0x12835b0145706fbe, 0x243185be4ee4b28c, 0x550c7dc3d5ffb4e2,
    0x72be5d74f27b896f, 0x80deb1fe3b1696b1, 0x9bdc06a725c71235, 0xc19bf174cf692694,
    0xe49b69c19ef14ad2, 0xefbe4786384f25e3, 0x0fc19dc68b8cd5b5, 0x240ca1cc77ac9c65,
    0x2de92c6f592b0275, 0x4a7484aa6ea6e483, 0x5cb0a9dcbd41fbd4, 0x76f988da831153b5,
    0x983e5152ee66dfab, 0xa831c66d2db43210, 0xb00327c898fb213f, 0xbf597fc7beef0ee4,
    0xc6e00bf33da88fc2, 0xd5a79147930aa725, 0x06ca6351e003826f, 0x142929670a0e6e70,
    0x27b70a8546d22ffc, 0x2e1b21385c26c926, 0x4d2c6dfc5ac42aed, 0x53380d139d95b3df,
    0x650a73548baf63de, 0x766a0abb3c77b2a8, 0x81c2c92e47edaee6, 0x92722c851482353b,
    0xa2bfe8a14cf10364, 0xa81a664bbc423001, 0xc24b8b70d0f89791, 0xc76c51a30654be30,
    0xd192e819d6ef5218, 0xd69906245565a910, 0xf40e35855771202a, 0x106aa07032bbd1b8,
    0x19a4c116b8d2d0c8, 0x1e376c085141ab53, 0x2748774cdf8eeb99, 0x34b0bcb5e19b48a8,
    0x391c0cb3c5c95a63, 0x4ed8aa4ae3418acb, 0x5b9cca4f7763e373, 0x682e6ff3d6b2b8a3,
    0x748f82ee5defb2fc, 0x78a5636f43172f60, 0x84c87814a1f0ab72, 0x8cc702081a6439ec,
    0x90befffa23631e28, 0xa4506cebde82bde9, 0xbef9a3f7b2c67915, 0xc67178f2e372532b,
    0xca273eceea26619c, 0xd186b8c721c0c207, 0xeada7dd6cde0eb1e, 0xf57d4f7fee6ed178,
    0x06f067aa72176fba, 0x0a637dc5a2c898a6, 0x113f9804bef90dae, 0x1b710b35131c471b,
    0x28db77f523047d84, 0x32caab7b40c72493, 0x3c9ebe0a15c9bebc, 0x431d67c49c100d4c,
    0x4cc5d4becb3e42b6, 0x597f299cfc657e2a, 0x5fcb6fab3ad6faec, 0x6c44198c4a475817,
};

/* Square roots of the first primes, of both in the same way. */
static const uint64_t STARTS[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

/* One block of either: `word` and `bits` are its words and their bits, the rest its rotations. */
#define COMPRESS(word, bits, rounds, a1, a2, a3, e1, e2, e3, s1, s2, s3, t1, t2, t3)               \
    word w[rounds], v[8];                                                                          \
    for (int i = 0; i < 16; i++, data += bits / 8) {                                               \
        w[i] = 0;                                                                                  \
        for (int j = 0; j < bits / 8; j++) w[i] = (word)(w[i] << 8) | data[j];                     \
    }                                                                                              \
    for (int i = 16; i < rounds; i++) {                                                            \
        word s = TURN(w[i - 15], s1, bits) ^ TURN(w[i - 15], s2, bits) ^ w[i - 15] >> s3;          \
        word t = TURN(w[i - 2], t1, bits) ^ TURN(w[i - 2], t2, bits) ^ w[i - 2] >> t3;             \
        w[i] = w[i - 16] + s + w[i - 7] + t;                                                       \
    }                                                                                              \
    for (int i = 0; i < 8; i++) v[i] = state[i];                                                   \
    for (int i = 0; i < rounds; i++) {                                                             \
        word e = TURN(v[4], e1, bits) ^ TURN(v[4], e2, bits) ^ TURN(v[4], e3, bits);               \
        word a = TURN(v[0], a1, bits) ^ TURN(v[0], a2, bits) ^ TURN(v[0], a3, bits);               \
        word one = v[7] + e + ((v[4] & v[5]) ^ (~v[4] & v[6])) +                                   \
                   (word)(CONSTANTS[i] >> (64 - bits)) + w[i];                                     \
        word two = a + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));                            \
        for (int j = 7; j > 0; j--) v[j] = v[j - 1];                                               \
        v[4] += one, v[0] = one + two;                                                             \
    }                                                                                              \
    for (int i = 0; i < 8; i++) state[i] += v[i]

#define TURN(x, by, bits) ((x) >> (by) | (x) << (bits - (by)))

static void block256(uint32_t state[8], const unsigned char *data) {
    COMPRESS(uint32_t, 32, 64, 2, 13, 22, 6, 11, 25, 7, 18, 3, 17, 19, 10);
}

static void block512(uint64_t state[8], const unsigned char *data) {
    COMPRESS(uint64_t, 64, 80, 28, 34, 39, 14, 18, 41, 1, 8, 7, 19, 61, 6);
}

void tw_sha256_begin(tw_sha256 *sum) {
    *sum = (tw_sha256){.bytes = 0};
    for (int i = 0; i < 8; i++) sum->state[i] = (uint32_t)(STARTS[i] >> 32);
}

void tw_sha256_add(tw_sha256 *sum, const void *given, size_t length) {
    const unsigned char *data = given;
    while (length) {
        size_t used = sum->bytes % 64, some = 64 - used < length ? 64 - used : length;
        if (some == 64) {
            block256(sum->state, data);
        } else {
            memcpy(sum->block + used, data, some);
            if (used + some == 64) block256(sum->state, sum->block);
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

bool tw_is_digest(const char *text) {
    return strlen(text) == TW_DIGEST_CHARACTERS &&
           strspn(text, "0123456789abcdef") == TW_DIGEST_CHARACTERS;
}

static void sha512(const unsigned char *data, size_t length, unsigned char digest[64]) {
    uint64_t state[8];
    memcpy(state, STARTS, sizeof state);
    size_t whole = length / 128 * 128;
    for (size_t i = 0; i < whole; i += 128) block512(state, data + i);
    unsigned char last[256] = {0};
    size_t rest = length - whole, size = rest < 112 ? 128 : 256;
    memcpy(last, data + whole, rest);
    last[rest] = 0x80;
    for (int i = 0; i < 8; i++)
        last[size - 1 - i] = (unsigned char)((uint64_t)length << 3 >> 8 * i);
    for (size_t i = 0; i < size; i += 128) block512(state, last + i);
    for (int i = 0; i < 64; i++) digest[i] = (unsigned char)(state[i / 8] >> (56 - 8 * (i % 8)));
}

/* Numbers below 2^255 - 19 in 16 limbs of 16 bits, which may be out of range in between. The
 * arithmetic is that of TweetNaCl (Bernstein and others, public domain). */
typedef int64_t number[16];
typedef number point[4]; /* extended coordinates X, Y, Z, T: x = X/Z, y = Y/Z, xy = T/Z */

static const number ZERO,
    ONE = {1}, D = {0x78a3, 0x1359, 0x4dca, 0x75eb, 0xd8ab, 0x4141, 0x0a4d, 0x0070,
                    0xe898, 0x7779, 0x4079, 0x8cc7, 0xfe73, 0x2b6f, 0x6cee, 0x5203},
    D2 = {0xf159, 0x26b2, 0x9b94, 0xebd6, 0xb156, 0x8283, 0x149a, 0x00e0,
          0xd130, 0xeef3, 0x80f2, 0x198e, 0xfce7, 0x56df, 0xd9dc, 0x2406},
    BASE_X = {0xd51a, 0x8f25, 0x2d60, 0xc956, 0xa7b2, 0x9525, 0xc760, 0x692c,
              0xdc5c, 0xfdd6, 0xe231, 0xc0a4, 0x53fe, 0xcd6e, 0x36d3, 0x2169},
    BASE_Y = {0x6658, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666,
              0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666},
    ROOT = {0xa0b0, 0x4a0e, 0x1b27, 0xc4ee, 0xe478, 0xad2f, 0x1806, 0x2f43, /* of -1 */
            0xd7a7, 0x3dfb, 0x0099, 0x2b4d, 0xdf0b, 0x4fc1, 0x2480, 0x2b83};

/* The order of the group, little-endian. */
static const unsigned char ORDER[32] = {
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58,        0xd6,
    0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, [31] = 0x10,
};

static void set(number to, const number from) { memcpy(to, from, sizeof(number)); }

static void carry(number n) {
    for (int i = 0; i < 16; i++) {
        int64_t up = n[i] >> 16; /* rounds down */
        n[i] -= up * 65536;
        if (i < 15)
            n[i + 1] += up;
        else
            n[0] += 38 * up;
    }
}

static void add(number to, const number a, const number b) {
    for (int i = 0; i < 16; i++) to[i] = a[i] + b[i];
}

static void subtract(number to, const number a, const number b) {
    for (int i = 0; i < 16; i++) to[i] = a[i] - b[i];
}

static void multiply(number to, const number a, const number b) {
    int64_t product[31] = {0};
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) product[i + j] += a[i] * b[j];
    for (int i = 0; i < 15; i++) product[i] += 38 * product[i + 16];
    memcpy(to, product, sizeof(number));
    carry(to);
    carry(to);
}

static void number_bytes(unsigned char to[32], const number from) {
    number n;
    set(n, from);
    for (int i = 0; i < 3; i++) carry(n);
    for (int round = 0; round < 2; round++) { /* less the modulus, where it is not below */
        number m;
        m[0] = n[0] - 0xffed;
        for (int i = 1; i < 15; i++) {
            m[i] = n[i] - 0xffff - (m[i - 1] >> 16 & 1);
            m[i - 1] &= 0xffff;
        }
        m[15] = n[15] - 0x7fff - (m[14] >> 16 & 1);
        bool below = m[15] >> 16 & 1;
        m[14] &= 0xffff;
        if (!below) set(n, m);
    }
    for (int i = 0; i < 32; i++) to[i] = (unsigned char)(n[i / 2] >> 8 * (i % 2));
}

static bool same(const number a, const number b) {
    unsigned char one[32], other[32];
    number_bytes(one, a);
    number_bytes(other, b);
    return memcmp(one, other, 32) == 0;
}

static bool is_odd(const number n) {
    unsigned char bytes[32];
    number_bytes(bytes, n);
    return bytes[0] & 1;
}

/* To the power 2^bits - least, for the two powers that are needed. */
static void power(number to, const number base, int bits, const int *skipped, int count) {
    number found;
    set(found, base);
    for (int bit = bits - 2; bit >= 0; bit--) {
        multiply(found, found, found);
        bool skip = false;
        for (int i = 0; i < count; i++) skip = skip || skipped[i] == bit;
        if (!skip) multiply(found, found, base);
    }
    set(to, found);
}

static void invert(number to, const number from) { /* to the power 2^255 - 21 */
    power(to, from, 255, (const int[]){2, 4}, 2);
}

static void sum(point p, point q) { /* RFC 8032, section 5.1.4; right for equal points, too */
    number a, b, c, d, e, f, g, h, t;
    subtract(a, p[1], p[0]);
    subtract(t, q[1], q[0]);
    multiply(a, a, t);
    add(b, p[0], p[1]);
    add(t, q[0], q[1]);
    multiply(b, b, t);
    multiply(c, p[3], q[3]);
    multiply(c, c, D2);
    multiply(d, p[2], q[2]);
    add(d, d, d);
    subtract(e, b, a);
    subtract(f, d, c);
    add(g, d, c);
    add(h, b, a);
    multiply(p[0], e, f);
    multiply(p[1], h, g);
    multiply(p[2], g, f);
    multiply(p[3], e, h);
}

static void times(point to, point from, const unsigned char scalar[32]) {
    static const number *const neutral[4] = {&ZERO, &ONE, &ONE, &ZERO};
    for (int i = 0; i < 4; i++) set(to[i], *neutral[i]);
    for (int bit = 255; bit >= 0; bit--) {
        point twice;
        memcpy(twice, to, sizeof twice);
        sum(to, twice);
        if (scalar[bit / 8] >> (bit & 7) & 1) sum(to, from);
    }
}

static void point_bytes(unsigned char to[32], point p) {
    number inverse, x, y;
    invert(inverse, p[2]);
    multiply(x, p[0], inverse);
    multiply(y, p[1], inverse);
    number_bytes(to, y);
    to[31] ^= (unsigned char)(is_odd(x) << 7);
}

/* The negative of the point that a key is; false for what is none. */
static bool negative_of(point to, const unsigned char key[32]) {
    unsigned char again[32];
    number square, divisor, check, root;
    for (int i = 0; i < 16; i++) to[1][i] = key[2 * i] | key[2 * i + 1] << 8;
    to[1][15] &= 0x7fff;
    number_bytes(again, to[1]);
    if (memcmp(again, key, 31) != 0 || (again[31] ^ key[31]) & 0x7f) return false; /* not reduced */
    set(to[2], ONE);
    multiply(square, to[1], to[1]);
    multiply(divisor, square, D);
    subtract(square, square, ONE);
    add(divisor, divisor, ONE);
    invert(divisor, divisor);
    multiply(square, square, divisor); /* x^2 = (y^2 - 1) / (d y^2 + 1) */
    /* to the power (p + 3) / 8 = 2^252 - 2 */
    power(root, square, 252, (const int[]){0}, 1);
    multiply(check, root, root);
    if (!same(check, square)) multiply(root, root, ROOT);
    multiply(check, root, root);
    if (!same(check, square) || (same(root, ZERO) && key[31] >> 7)) return false;
    if (is_odd(root) == key[31] >> 7) subtract(root, ZERO, root);
    set(to[0], root);
    multiply(to[3], to[0], to[1]);
    return true;
}

/* 64 bytes as a number, less multiples of the order. */
static void reduce(unsigned char to[32], const unsigned char from[64]) {
    unsigned char rest[33] = {0}; /* bit by bit, as by hand: always below the order */
    for (int bit = 511; bit >= 0; bit--) {
        for (int i = 32; i > 0; i--) rest[i] = (unsigned char)(rest[i] << 1 | rest[i - 1] >> 7);
        rest[0] = (unsigned char)(rest[0] << 1 | (from[bit / 8] >> (bit & 7) & 1));
        unsigned char less[33];
        int borrow = 0;
        for (int i = 0; i < 33; i++) {
            int digit = rest[i] - (i < 32 ? ORDER[i] : 0) - borrow;
            borrow = digit < 0;
            less[i] = (unsigned char)digit;
        }
        if (!borrow) memcpy(rest, less, sizeof rest);
    }
    memcpy(to, rest, 32);
}

static bool below_order(const unsigned char scalar[32]) {
    for (int i = 31; i >= 0; i--)
        if (scalar[i] != ORDER[i]) return scalar[i] < ORDER[i];
    return false;
}

bool tw_is_signature(const unsigned char key[32], const void *message, size_t length,
                     const unsigned char signature[64]) {
    point negative, base, one, other;
    unsigned char digest[64], challenge[32], found[32];
    if (!below_order(signature + 32) || !negative_of(negative, key)) return false;
    unsigned char *said = tw_allocate(64 + length);
    memcpy(said, signature, 32);
    memcpy(said + 32, key, 32);
    if (length) memcpy(said + 64, message, length);
    sha512(said, 64 + length, digest);
    free(said);
    reduce(challenge, digest);
    set(base[0], BASE_X);
    set(base[1], BASE_Y);
    set(base[2], ONE);
    multiply(base[3], BASE_X, BASE_Y);
    times(one, base, signature + 32);
    times(other, negative, challenge);
    sum(one, other); /* R = [S]B - [k]A */
    point_bytes(found, one);
    return memcmp(found, signature, 32) == 0;
}

static const char LETTERS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

bool tw_from_base64(const char *text, unsigned char *bytes, size_t size) {
    if (strlen(text) != (size + 2) / 3 * 4) return false;
    for (size_t i = 0; i < size; i += 3) {
        uint32_t group = 0;
        for (int j = 0; j < 4; j++, text++) {
            size_t past = size - i < 3 ? size - i + 1 : 4; /* letters before the padding */
            const char *found = strchr(LETTERS, *text);
            if ((size_t)j >= past ? *text != '=' : !found) return false;
            group = group << 6 | ((size_t)j < past ? (uint32_t)(found - LETTERS) : 0);
        }
        for (size_t j = 0; j < 3 && i + j < size; j++)
            bytes[i + j] = (unsigned char)(group >> (16 - 8 * j));
    }
    return true;
}

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
