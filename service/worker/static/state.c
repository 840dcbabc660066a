/* The folder of a worker: BASE/SERVER-DIGEST/service-key, as the worker in Python has it, and
 * BASE/SERVER-DIGEST/static/ with a lock, the worker's id, and blobs by their digests. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "digest.h"
#include "worker.h"

enum { PATH_BYTES = 700, MOST_VERIFIED = 4096 };

/* A file as it was when it was read: the last part is the kernel's, no program sets it. */
typedef struct tw_verified {
    char digest[65];
    ino_t inode;
    off_t size;
    struct timespec changed;
} verified;

static void path_of(const tw_state *state, const char *name, char path[PATH_BYTES]) {
    snprintf(path, PATH_BYTES, "%s/%s", state->folder, name);
}

static void blob_path(const tw_state *state, const char *digest, char path[PATH_BYTES]) {
    snprintf(path, PATH_BYTES, "%s/static/blobs/%.64s", state->folder, digest);
}

/* Make a folder and all above it. */
static bool make_folders(const char *path) {
    char part[PATH_BYTES];
    snprintf(part, sizeof part, "%s", path);
    for (char *at = part + 1;; at++) {
        if (*at && *at != '/') continue;
        char end = *at;
        *at = 0;
        if (mkdir(part, 0700) != 0 && errno != EEXIST) return false;
        if (!end) return true;
        *at = '/';
    }
}

bool tw_state_open(tw_state *state, const char *base, const char *url, tw_error *error) {
    char hex[TW_DIGEST_CHARACTERS + 1], path[PATH_BYTES];
    tw_sha256 sum;
    tw_sha256_begin(&sum);
    tw_sha256_add(&sum, url, strlen(url));
    tw_sha256_end(&sum, hex);
    if (strlen(base) > sizeof state->folder - 64)
        return tw_fail(error, "the name of --spool is too long");
    snprintf(state->folder, sizeof state->folder, "%.440s/%.16s", base, hex);
    snprintf(path, sizeof path, "%s/static/blobs", state->folder);
    if (!make_folders(path))
        return tw_fail(error, "the folder '%.200s' cannot be written: %s", base, strerror(errno));
    path_of(state, "static/lock", path);
    state->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (state->lock < 0)
        return tw_fail(error, "the folder '%.200s' cannot be written: %s", base, strerror(errno));
    /* the kernel drops the lock with the process, also after a kill -9 */
    if (flock(state->lock, LOCK_EX | LOCK_NB) != 0)
        return tw_fail(error, "another worker uses '%.200s': give this one its own --spool", base);
    state->verified = tw_allocate(MOST_VERIFIED * sizeof *state->verified);
    return true;
}

void tw_state_read(const tw_state *state, const char *name, char *value, size_t room) {
    char path[PATH_BYTES];
    path_of(state, name, path);
    value[0] = 0;
    FILE *file = fopen(path, "re");
    if (!file) return;
    if (!fgets(value, (int)room, file)) value[0] = 0;
    fclose(file);
    value[strcspn(value, " \t\r\n")] = 0;
}

void tw_state_write(const tw_state *state, const char *name, const char *value) {
    char path[PATH_BYTES], made[PATH_BYTES + 8];
    path_of(state, name, path);
    snprintf(made, sizeof made, "%s.new", path);
    FILE *file = fopen(made, "we");
    bool written = file && fputs(value, file) >= 0 && fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (file && fclose(file) != 0) written = false;
    if (!written || rename(made, path) != 0)
        tw_say("'%s' cannot be written: %s", path, strerror(errno));
}

static verified *known(const tw_state *state, const char *digest) {
    size_t slot = strtoul((char[]){digest[0], digest[1], digest[2], 0}, NULL, 16) % MOST_VERIFIED;
    return &state->verified[slot];
}

static bool digest_of(int file, char hex[TW_DIGEST_CHARACTERS + 1]) {
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

bool tw_state_has(tw_state *state, const char *digest) {
    char path[PATH_BYTES], hex[TW_DIGEST_CHARACTERS + 1];
    struct stat found;
    blob_path(state, digest, path);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    futimens(file, (const struct timespec[]){{0, UTIME_NOW}, {0, UTIME_OMIT}}); /* it was used */
    verified *seen = known(state, digest);
    bool right = fstat(file, &found) == 0;
    bool same = right && strcmp(seen->digest, digest) == 0 && seen->inode == found.st_ino &&
                seen->size == found.st_size && seen->changed.tv_sec == found.st_ctim.tv_sec &&
                seen->changed.tv_nsec == found.st_ctim.tv_nsec;
    if (right && !same) {
        right = digest_of(file, hex) && strcmp(hex, digest) == 0;
        if (!right) unlink(path);
    }
    if (right && fstat(file, &found) == 0) {
        *seen = (verified){.inode = found.st_ino, .size = found.st_size, .changed = found.st_ctim};
        memcpy(seen->digest, digest, sizeof seen->digest);
    }
    close(file);
    return right;
}

bool tw_state_here(const tw_state *state, const char *digest) {
    char path[PATH_BYTES];
    blob_path(state, digest, path);
    return access(path, R_OK) == 0;
}

static void partial_path(const tw_state *state, char path[PATH_BYTES]) {
    path_of(state, "static/arriving", path);
}

int tw_state_begin(const tw_state *state, const char *digest, tw_error *error) {
    char path[PATH_BYTES];
    partial_path(state, path);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0) tw_fail(error, "blob %s cannot be kept: %s", digest, strerror(errno));
    return file;
}

bool tw_state_end(tw_state *state, const char *digest, int file, bool whole) {
    char from[PATH_BYTES], to[PATH_BYTES];
    partial_path(state, from);
    blob_path(state, digest, to);
    if (close(file) != 0) whole = false;
    if (whole && rename(from, to) == 0) return true;
    unlink(from);
    return false;
}

typedef struct {
    char name[65];
    struct timespec used;
    uint64_t bytes;
} cached;

static int by_use(const void *one, const void *other) {
    const cached *a = one, *b = other;
    if (a->used.tv_sec != b->used.tv_sec) return a->used.tv_sec < b->used.tv_sec ? -1 : 1;
    return (a->used.tv_nsec > b->used.tv_nsec) - (a->used.tv_nsec < b->used.tv_nsec);
}

void tw_state_trim(const tw_state *state, const tw_blob *kept, size_t count, uint64_t coming) {
    char path[PATH_BYTES];
    struct stat about;
    size_t files = 0, room = 0;
    uint64_t bytes = coming;
    cached *found = NULL;
    path_of(state, "static/blobs", path);
    DIR *folder = opendir(path);
    for (struct dirent *each; folder && (each = readdir(folder));) {
        if (!tw_is_digest(each->d_name)) continue;
        blob_path(state, each->d_name, path);
        if (stat(path, &about) != 0) continue;
        if (files == room) {
            room = 2 * room + 64;
            cached *more = realloc(found, room * sizeof *more);
            if (!more) break;
            found = more;
        }
        found[files] = (cached){.used = about.st_atim, .bytes = (uint64_t)about.st_size};
        memcpy(found[files].name, each->d_name, sizeof found[files].name);
        bytes += found[files++].bytes;
    }
    if (folder) closedir(folder);
    if (files) qsort(found, files, sizeof *found, by_use);
    for (size_t i = 0; i < files && bytes > state->cache_bytes; i++) {
        bool wanted = false;
        for (size_t j = 0; j < count; j++)
            wanted = wanted || strcmp(kept[j].digest, found[i].name) == 0;
        if (wanted) continue;
        blob_path(state, found[i].name, path);
        if (unlink(path) == 0) bytes -= found[i].bytes;
    }
    free(found);
}

bool tw_state_map(const tw_state *state, tw_blob *blob, tw_error *error) {
    char path[PATH_BYTES];
    struct stat about;
    blob_path(state, blob->digest, path);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    bool right = file >= 0 && fstat(file, &about) == 0 && (uint64_t)about.st_size <= SIZE_MAX / 4;
    if (right) {
        blob->size = (size_t)about.st_size;
        void *data = blob->size ? mmap(NULL, blob->size, PROT_READ, MAP_PRIVATE, file, 0) : NULL;
        right = data != MAP_FAILED;
        blob->data = right ? data : NULL;
    }
    if (!right) tw_fail(error, "blob %s cannot be read: %s", blob->digest, strerror(errno));
    if (file >= 0) close(file);
    return right;
}
