/* Confines a sandbox: it may only compute, allocate memory, read the time, start threads, and
 * report events. Each guard is enabled if the kernel supports it. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sandbox.h"

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#elif defined(__arm__)
#define ARCHITECTURE AUDIT_ARCH_ARM
#else
#define ARCHITECTURE AUDIT_ARCH_RISCV64
#endif

enum {
    OPEN_FILES = 16,
    MOST_PROCESSES = 512, /* of the sandbox's user, threads among them: a pool has 256 at most */
    CLONE_THREAD_FLAG = 0x10000,
    SPECULATION_ALLOWED = 1
        << 2, /* code under a filter is as fast as without (before Linux 5.16) */
};

/* The system calls that are allowed. */
static const int ALLOWED[] = {
    SYS_write,
    SYS_munmap,
    SYS_mprotect,
    SYS_madvise,
    SYS_mremap,
    SYS_brk,
    SYS_futex,
    SYS_exit,
    SYS_exit_group,
    SYS_rt_sigprocmask,
    SYS_rt_sigaction,
    SYS_rt_sigreturn,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_gettid,
    SYS_getpid,
    SYS_set_robust_list,
    SYS_set_tid_address,
    SYS_getrandom,
    SYS_restart_syscall,
    SYS_sigaltstack,
    SYS_close,
    SYS_membarrier,
    SYS_getcpu,
#ifdef SYS_mmap
    SYS_mmap,
#endif
#ifdef SYS_mmap2
    SYS_mmap2,
#endif
#ifdef SYS_clock_gettime
    SYS_clock_gettime,
#endif
#ifdef SYS_clock_gettime64
    SYS_clock_gettime64,
#endif
#ifdef SYS_clock_gettime32
    SYS_clock_gettime32,
#endif
#ifdef SYS_nanosleep
    SYS_nanosleep,
#endif
#ifdef SYS_clock_nanosleep
    SYS_clock_nanosleep,
#endif
#ifdef SYS_clock_nanosleep_time64
    SYS_clock_nanosleep_time64,
#endif
#ifdef SYS_futex_time64
    SYS_futex_time64,
#endif
#ifdef SYS_gettimeofday
    SYS_gettimeofday,
#endif
#ifdef SYS_rseq
    SYS_rseq,
#endif
#ifdef __arm__
    0x0f0002,
    0x0f0005, /* cacheflush, set_tls */
#endif
#ifdef __riscv
    259, /* riscv_flush_icache */
#endif
};

/* The system calls that fail without ending the process: C libraries inspect the system so. */
static const int DENIED[] = {
    SYS_openat,    SYS_fcntl, SYS_ioctl,   SYS_prctl, SYS_readlinkat,
    SYS_prlimit64, SYS_uname, SYS_sysinfo, 435, /* clone3 */
#ifdef SYS_newfstatat
    SYS_newfstatat,
#endif
#ifdef SYS_open
    SYS_open,
#endif
#ifdef SYS_fstat
    SYS_fstat,
#endif
#ifdef SYS_statx
    SYS_statx,
#endif
};

enum { CODE_ROOM = 220 };

static bool filter_calls(void) {
    struct sock_filter code[CODE_ROOM];
    unsigned short size = 0;
    const struct sock_filter load_architecture =
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    const struct sock_filter load_call =
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    const struct sock_filter load_first = /* its low half: no architecture here is big-endian */
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0]));
    const struct sock_filter end = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    const struct sock_filter pass = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const struct sock_filter deny =
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (ENOSYS & SECCOMP_RET_DATA));
#define JUMP(operation, value, yes, no)                                                            \
    ((struct sock_filter)BPF_JUMP(BPF_JMP | (operation) | BPF_K, (uint32_t)(value), yes, no))
    code[size++] = load_architecture;
    code[size++] = JUMP(BPF_JEQ, ARCHITECTURE, 1, 0);
    code[size++] = end;
    code[size++] = load_call;
    for (size_t i = 0; i < sizeof ALLOWED / sizeof *ALLOWED; i++) {
        code[size++] = JUMP(BPF_JEQ, ALLOWED[i], 0, 1);
        code[size++] = pass;
    }
    for (size_t i = 0; i < sizeof DENIED / sizeof *DENIED; i++) {
        code[size++] = JUMP(BPF_JEQ, DENIED[i], 0, 1);
        code[size++] = deny;
    }
    code[size++] = JUMP(BPF_JEQ, SYS_clone, 0, 4); /* threads, but no processes */
    code[size++] = load_first;
    code[size++] = JUMP(BPF_JSET, CLONE_THREAD_FLAG, 0, 1);
    code[size++] = pass;
    code[size++] = end;
    code[size++] = JUMP(BPF_JEQ, SYS_sched_setaffinity, 0, 5); /* of the thread pool */
    code[size++] = load_first; /* a process of another user is the kernel's to refuse */
    code[size++] = JUMP(BPF_JEQ, 0, 1, 0);
    code[size++] = JUMP(BPF_JGE, getpid(), 0, 1);
    code[size++] = pass;
    code[size++] = deny;
    code[size++] = JUMP(BPF_JEQ, SYS_tgkill, 0, 3); /* signals to itself alone */
    code[size++] = load_first;
    code[size++] = JUMP(BPF_JEQ, getpid(), 0, 1);
    code[size++] = pass;
    code[size++] = end;
    struct sock_fprog program = {size, code};
    _Static_assert(2 * (sizeof ALLOWED + sizeof DENIED) / sizeof(int) + 20 < CODE_ROOM, "room");
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SPECULATION_ALLOWED, &program) == 0)
        return true;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

static bool limit(int what, uint64_t value) {
    rlim_t number = value < (rlim_t)-1 ? (rlim_t)value : RLIM_INFINITY; /* it may have 32 bits */
    struct rlimit wanted = {number, number};
    return setrlimit(what, &wanted) == 0;
}

static bool limits(const tw_job *job) {
    uint64_t seconds = (uint64_t)(job->budget * (job->threads + 1)) + 1;
    bool all = limit(RLIMIT_CORE, 0) && limit(RLIMIT_FSIZE, 0) && limit(RLIMIT_CPU, seconds);
    if (job->memory) all = limit(RLIMIT_AS, job->memory) && all;
    return limit(RLIMIT_NOFILE, OPEN_FILES) && all;
}

/* No file but that of the events; others would be the worker's. */
static void close_files(int events) {
    int nothing = open("/dev/null", O_RDWR);
    for (int file = 0; file < 3 && nothing >= 0; file++) dup2(nothing, file);
    for (int file = 3; file < 256; file++)
        if (file != events) close(file);
}

/* Enter an empty network namespace. A user other than root needs a user namespace for that; its
 * rights are dropped with all others. */
static bool own_network(void) {
    return unshare(geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWNET | CLONE_NEWUSER) == 0;
}

static bool become(uid_t user) {
    return user && geteuid() == 0 && limit(RLIMIT_NPROC, MOST_PROCESSES) &&
           setgroups(0, NULL) == 0 && setgid(user) == 0 && setuid(user) == 0;
}

static bool drop_rights(void) {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    return syscall(SYS_capset, &head, none) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

/* Landlock without a rule: no file can be opened, no connection made, and no process outside be
 * signalled, as far as the kernel's version of it goes. */
static bool no_files(void) {
    static const struct {
        int since;
        uint64_t files;
    } versions[] = {{1, 0x1fff}, {2, 0x3fff}, {3, 0x7fff}, {5, 0xffff}};
    struct {
        uint64_t files, network, scopes;
    } denied = {0, 3, 3};
    const int create = 444, restrict_self = 446; /* on every architecture */
    long version = syscall(create, NULL, 0, 1);
    if (version < 1) return false;
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
        if (version >= versions[i].since) denied.files = versions[i].files;
    size_t size = version >= 6 ? 24 : version >= 4 ? 16 : 8;
    int rules = (int)syscall(create, &denied, size, 0);
    if (rules < 0) return false;
    bool restricted = syscall(restrict_self, rules, 0) == 0;
    close(rules);
    return restricted;
}

static void name(char *guards, size_t room, const char *guard) {
    size_t used = strlen(guards);
    snprintf(guards + used, room - used, "%s%s", used ? ", " : "", guard);
}

/* Where memory runs out, this process ends and not the worker. */
static void end_first(void) {
    /* the harness is not dumpable: to other users than root, files of such a process are closed */
    prctl(PR_SET_DUMPABLE, 1);
    int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (score >= 0 && write(score, "1000", 4) < 0) errno = 0;
    if (score >= 0) close(score);
    prctl(PR_SET_DUMPABLE, 0);
}

void tw_confine(const tw_job *job, int events, char *guards, size_t room) {
    guards[0] = 0;
    end_first();
    close_files(events);
    if (job->cores) sched_setaffinity(0, sizeof *job->cores, job->cores);
    if (job->folder && chdir(job->folder) != 0) errno = 0; /* only root reads it from here on */
    if (own_network()) name(guards, room, "no network");
    if (become(job->user)) name(guards, room, "own user");
    if (limits(job)) name(guards, room, "limits");
    if (drop_rights()) name(guards, room, "no privileges");
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* forgotten when the user changes */
    if (no_files()) name(guards, room, "no files");
    if (filter_calls()) name(guards, room, "few system calls");
}
