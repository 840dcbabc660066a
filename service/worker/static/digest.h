/* SHA-256, SHA-512 (FIPS 180-4), Ed25519 signatures (RFC 8032), base64. */
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

/* Whether a text is the name of a blob, so of a file and of no other. */
bool tw_is_digest(const char *text);

/* Whether the holder of a public key signed a message. Nothing here is secret, so that the time it
 * takes tells nobody anything. */
bool tw_is_signature(const unsigned char key[32], const void *message, size_t length,
                     const unsigned char signature[64]);

/* The bytes of a text in base64, exactly `size` of them; false for what is none of so many. */
bool tw_from_base64(const char *text, unsigned char *bytes, size_t size);
void tw_to_base64(tw_text *text, const unsigned char *bytes, size_t length);

#endif
