/* SHA-256 (FIPS 180-4) and base64. */
#ifndef TW_DIGEST_H
#define TW_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text.h"

typedef struct {
    uint32_t state[8];
    uint64_t bytes;
    unsigned char block[64];
} tw_sha256;

void tw_sha256_begin(tw_sha256 *sum);
void tw_sha256_add(tw_sha256 *sum, const void *data, size_t length);

enum { TW_DIGEST_CHARACTERS = 64 };

/* The digest in hexadecimal, and a 0. */
void tw_sha256_end(tw_sha256 *sum, char hex[TW_DIGEST_CHARACTERS + 1]);

/* The digest of a file from its current position to its end; false if it cannot be read. */
bool tw_sha256_file(int file, char hex[TW_DIGEST_CHARACTERS + 1]);

/* Whether a text is the name of a blob, so of a file and of no other. */
bool tw_is_digest(const char *text);

/* Add bytes in base64. */
void tw_to_base64(tw_text *text, const unsigned char *bytes, size_t length);

#endif
