/* A plugin of qemu-user that counts the instructions of a guest: all, and of AArch64 those that
 * multiply and add, load and store. It writes a line to stderr at each getppid(), which a guest calls
 * between what it wants counted. cc -shared -fPIC -O2 counting.c -o counting.so; qemu 7.2 or newer. */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is used of qemu's qemu-plugin.h, version 1. */
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { NO_REGISTERS = 0, ADD = 0, GETPPID = 173 }; /* 173 on AArch64 and RISC-V */
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
char *qemu_plugin_insn_disas(const struct qemu_plugin_insn *);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t, void (*)(uint64_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int, void *, uint64_t);
void qemu_plugin_register_vcpu_syscall_cb(uint64_t, void (*)(uint64_t, unsigned, int64_t, uint64_t,
                                                             uint64_t, uint64_t, uint64_t, uint64_t,
                                                             uint64_t, uint64_t, uint64_t));

#define SHOWN __attribute__((visibility("default")))

SHOWN int qemu_plugin_version = 1;

enum { ALL, MULTIPLY_ADD, LOAD, STORE, KINDS };
static uint64_t counts[KINDS];

/* Of RISC-V, qemu writes the code before the name: "02c5f0d7          vfmacc.vf v1,fa1,v12". */
static const char *name_in(const char *text) {
    size_t digits = strspn(text, "0123456789abcdef");
    size_t spaces = strspn(text + digits, " \t");
    return (digits == 4 || digits == 8) && spaces ? text + digits + spaces : text;
}

static int kind_of(const char *text) {
    text = name_in(text);
    static const struct {
        const char *start;
        int kind;
    } starts[] = {{"fmla", MULTIPLY_ADD},   {"fmadd", MULTIPLY_ADD}, {"sdot", MULTIPLY_ADD},
                  {"udot", MULTIPLY_ADD},   {"vfmacc", MULTIPLY_ADD}, {"ld", LOAD},
                  {"vle", LOAD},            {"flw", LOAD},            {"st", STORE},
                  {"vse", STORE},           {"fsw", STORE}};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        if (strncmp(text, starts[i].start, strlen(starts[i].start)) == 0) return starts[i].kind;
    return ALL;
}

static void translated(uint64_t id, struct qemu_plugin_tb *block) {
    (void)id;
    size_t length = qemu_plugin_tb_n_insns(block);
    uint64_t found[KINDS] = {length};
    for (size_t i = 0; i < length; i++) {
        char *text = qemu_plugin_insn_disas(qemu_plugin_tb_get_insn(block, i));
        int kind = kind_of(text);
        if (kind != ALL) found[kind]++;
        free(text);
    }
    for (int kind = 0; kind < KINDS; kind++)
        if (found[kind])
            qemu_plugin_register_vcpu_tb_exec_inline(block, ADD, &counts[kind], found[kind]);
}

static void called(uint64_t id, unsigned vcpu, int64_t number, uint64_t a, uint64_t b, uint64_t c,
                   uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h) {
    (void)id, (void)vcpu, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
    if (number != GETPPID) return;
    fprintf(stderr, "counted %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", counts[ALL],
            counts[MULTIPLY_ADD], counts[LOAD], counts[STORE]);
}

SHOWN int qemu_plugin_install(uint64_t id, const void *info, int count, char **arguments) {
    (void)info, (void)count, (void)arguments;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_vcpu_syscall_cb(id, called);
    return 0;
}
