/* Blobs by their digests, in a folder of this process: BASE/0/blobs, or the first number that no
 * other process uses. */
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
#include "harness.h"

enum { PATH_BYTES = 700, MOST_VERIFIED = 4096, MOST_PROCESSES = 256 };

/* A file as it was when it was read: the last part is the kernel's, no program sets it. */
typedef struct tw_verified {
    char digest[65];
    ino_t inode;
    off_t size;
    struct timespec changed;
} verified;

static void path_of(const tw_cache *cache, const char *name, char path[PATH_BYTES]) {
    snprintf(path, PATH_BYTES, "%s/%s", cache->folder, name);
}

static void blob_path(const tw_cache *cache, const char *digest, char path[PATH_BYTES]) {
    snprintf(path, PATH_BYTES, "%s/blobs/%.64s", cache->folder, digest);
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

bool tw_cache_open(tw_cache *cache, const char *base, tw_error *error) {
    char path[PATH_BYTES];
    if (strlen(base) > sizeof cache->folder - 64) return tw_fail(error, "its name is too long");
    for (int number = 0; number < MOST_PROCESSES; number++) {
        snprintf(cache->folder, sizeof cache->folder, "%.440s/%d", base, number);
        snprintf(cache->empty, sizeof cache->empty, "%.500s/empty", cache->folder);
        path_of(cache, "blobs", path);
        if (!make_folders(path) || !make_folders(cache->empty))
            return tw_fail(error, "%s", strerror(errno));
        path_of(cache, "lock", path);
        cache->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (cache->lock < 0) return tw_fail(error, "%s", strerror(errno));
        /* the kernel drops the lock with the process, also after a kill -9 */
        if (flock(cache->lock, LOCK_EX | LOCK_NB) == 0) {
            cache->verified = tw_allocate(MOST_VERIFIED * sizeof *cache->verified);
            return true;
        }
        close(cache->lock);
    }
    return tw_fail(error, "%d processes use it already", MOST_PROCESSES);
}

uint64_t tw_cache_room(const tw_cache *cache) {
    return cache->bytes < PTRDIFF_MAX / 2 ? cache->bytes : PTRDIFF_MAX / 2;
}

static verified *known(const tw_cache *cache, const char *digest) {
    size_t slot = strtoul((char[]){digest[0], digest[1], digest[2], 0}, NULL, 16) % MOST_VERIFIED;
    return &cache->verified[slot];
}

bool tw_cache_has(tw_cache *cache, const char *digest) {
    char path[PATH_BYTES], hex[TW_DIGEST_CHARACTERS + 1];
    struct stat found;
    blob_path(cache, digest, path);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    verified *seen = known(cache, digest);
    bool right = fstat(file, &found) == 0;
    bool same = right && strcmp(seen->digest, digest) == 0 && seen->inode == found.st_ino &&
                seen->size == found.st_size && seen->changed.tv_sec == found.st_ctim.tv_sec &&
                seen->changed.tv_nsec == found.st_ctim.tv_nsec;
    if (right && !same) {
        right = tw_sha256_file(file, hex) && strcmp(hex, digest) == 0;
        if (!right) unlink(path);
    }
    /* that it was used changes it, too: what is remembered is as it is from now on */
    futimens(file, (const struct timespec[]){{0, UTIME_NOW}, {0, UTIME_OMIT}});
    if (right && fstat(file, &found) == 0) {
        *seen = (verified){.inode = found.st_ino, .size = found.st_size, .changed = found.st_ctim};
        memcpy(seen->digest, digest, sizeof seen->digest);
    }
    close(file);
    return right;
}

static void partial_path(const tw_cache *cache, char path[PATH_BYTES]) {
    path_of(cache, "arriving", path);
}

int tw_cache_begin(const tw_cache *cache, const char *digest, tw_error *error) {
    char path[PATH_BYTES];
    partial_path(cache, path);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0) tw_fail(error, "blob %s cannot be kept: %s", digest, strerror(errno));
    return file;
}

bool tw_cache_end(tw_cache *cache, const char *digest, int file, bool whole) {
    char from[PATH_BYTES], to[PATH_BYTES];
    partial_path(cache, from);
    blob_path(cache, digest, to);
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

void tw_cache_trim(const tw_cache *cache, const tw_blob *kept, size_t count, uint64_t coming) {
    char path[PATH_BYTES];
    struct stat about;
    size_t files = 0, room = 0;
    uint64_t bytes = coming;
    cached *found = NULL;
    path_of(cache, "blobs", path);
    DIR *folder = opendir(path);
    for (struct dirent *each; folder && (each = readdir(folder));) {
        if (!tw_is_digest(each->d_name)) continue;
        blob_path(cache, each->d_name, path);
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
    for (size_t i = 0; i < files && bytes > cache->bytes; i++) {
        bool wanted = false;
        for (size_t j = 0; j < count; j++)
            wanted = wanted || strcmp(kept[j].digest, found[i].name) == 0;
        if (wanted) continue;
        blob_path(cache, found[i].name, path);
        if (unlink(path) == 0) bytes -= found[i].bytes;
    }
    free(found);
}

bool tw_cache_map(const tw_cache *cache, tw_blob *blob, tw_error *error) {
    char path[PATH_BYTES];
    struct stat about;
    blob_path(cache, blob->digest, path);
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
