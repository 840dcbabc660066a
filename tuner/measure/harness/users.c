/* The users that candidates run as, each for one harness of this machine at a time: candidates of two
 * harnesses would share one limit of processes, and reach each other. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"

enum { PATH_BYTES = 100 };

/* A folder for the locks, which belongs to the harness's user; false if `base` can have none. */
static bool has_folder(const char *base, char path[PATH_BYTES]) {
    struct stat about;
    snprintf(path, PATH_BYTES, "%s/tilewright-users", base);
    mkdir(path, 0700);
    return lstat(path, &about) == 0 && S_ISDIR(about.st_mode) && about.st_uid == geteuid() &&
           !(about.st_mode & 022) && access(path, W_OK) == 0;
}

uid_t tw_take_user(unsigned first, unsigned last) {
    static const char *const bases[] = {"/run", "/data/local/tmp", "/tmp"};
    char folder[PATH_BYTES], path[PATH_BYTES + 12];
    size_t at = 0, count = sizeof bases / sizeof *bases;
    while (at < count && !has_folder(bases[at], folder)) at++;
    for (unsigned user = first; at < count && user <= last; user++) {
        snprintf(path, sizeof path, "%s/%u", folder, user);
        int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (file < 0) break;
        /* the kernel drops the lock with the process, also after a kill -9 */
        if (flock(file, LOCK_EX | LOCK_NB) == 0) return user;
        close(file);
    }
    return first + (unsigned)getpid() % (last - first + 1); /* all are taken, and one is shared */
}
