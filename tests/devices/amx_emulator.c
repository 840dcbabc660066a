/* AMX on a CPU without it: a handler of SIGILL that does what each instruction would do, and steps
 * over it. Intel SDM volume 2, chapters 3 and 4 ("LDTILECFG" to "TILEZERO"), and volume 1 chapter 18.
 *
 * An instrument for tests: it is slow, and checks every rule whose breach raises #UD or #GP. Such a
 * breach, like any other unknown instruction, goes to the handler that was there before.
 */
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { TILES = 8, ROWS = 16, BYTES = 64 };

/* What LDTILECFG reads and STTILECFG writes. */
struct configuration {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

struct tiles {
    struct configuration shapes;
    uint8_t data[TILES][ROWS][BYTES];
};

static _Thread_local struct tiles state;
static struct sigaction before;
static int64_t executed;

/* One instruction behind a VEX prefix of three bytes. */
struct instruction {
    unsigned prefix;       /* 0 none, 1 66, 2 F3, 3 F2 */
    unsigned opcode, mod, reg, rm, vvvv;
    int length;
    uint8_t *address;      /* base and displacement, of memory operands */
    int64_t stride;        /* the index, scaled */
    int has_sib;
};

static const int registers[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                  REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                  REG_R12, REG_R13, REG_R14, REG_R15};

static int decode(const uint8_t *code, const greg_t *values, struct instruction *found) {
    if (code[0] != 0xC4 || (code[1] & 0x1F) != 2 || (code[2] & 0x84)) return 0; /* 0F38, W0, L0 */
    unsigned r = !(code[1] & 0x80), x = !(code[1] & 0x40), b = !(code[1] & 0x20);
    const uint8_t *at = code + 5;
    *found = (struct instruction){.prefix = code[2] & 3,
                                  .opcode = code[3],
                                  .mod = code[4] >> 6,
                                  .reg = (code[4] >> 3 & 7) | r << 3,
                                  .rm = (code[4] & 7) | b << 3,
                                  .vvvv = ~code[2] >> 3 & 15};
    if (found->mod != 3) {
        uint64_t base = 0;
        int displacement = found->mod == 1 ? 1 : found->mod == 2 ? 4 : 0, relative = 0;
        if ((code[4] & 7) == 4) {
            unsigned low = *at & 7, index = (*at >> 3 & 7) | x << 3, scale = *at >> 6;
            found->has_sib = 1;
            if (low == 5 && found->mod == 0)
                displacement = 4;
            else
                base = (uint64_t)values[registers[low | b << 3]];
            if (index != 4) found->stride = (int64_t)((uint64_t)values[registers[index]] << scale);
            at++;
        } else if ((code[4] & 7) == 5 && found->mod == 0) {
            displacement = 4, relative = 1;
        } else {
            base = (uint64_t)values[registers[found->rm]];
        }
        int8_t narrow;
        int32_t wide;
        if (displacement == 1) memcpy(&narrow, at, 1), base += (uint64_t)(int64_t)narrow;
        if (displacement == 4) memcpy(&wide, at, 4), base += (uint64_t)(int64_t)wide;
        at += displacement;
        if (relative) base += (uint64_t)at;
        found->address = (uint8_t *)base;
    }
    found->length = (int)(at - code);
    return 1;
}

static int configure(const uint8_t *address) {
    struct configuration shapes;
    memcpy(&shapes, address, sizeof shapes);
    if (shapes.palette > 1 || shapes.start_row >= ROWS) return 0;
    for (unsigned i = 0; i < sizeof shapes.reserved; i++)
        if (shapes.reserved[i]) return 0;
    for (int i = 0; i < 16 && shapes.palette; i++) {
        if (shapes.rows[i] > (i < TILES ? ROWS : 0) || shapes.bytes[i] > (i < TILES ? BYTES : 0))
            return 0;
        if (!shapes.rows[i] != !shapes.bytes[i]) return 0;
    }
    memset(&state, 0, sizeof state);
    if (shapes.palette) state.shapes = shapes;
    return 1;
}

static int is_configured(unsigned tile) {
    return state.shapes.palette == 1 && tile < TILES && state.shapes.rows[tile];
}

/* MXCSR while bfloat16 is multiplied: rounded to nearest even, subnormal numbers are zeros. */
static const unsigned FLUSHING = 0x9FC0;

__attribute__((target("fma"))) static float fused(float x, float y, float z) {
    return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(x), _mm_set_ss(y), _mm_set_ss(z)));
}

static float brain(const uint8_t *from) {
    uint32_t bits = (uint32_t)from[0] << 16 | (uint32_t)from[1] << 24;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

__attribute__((target("fma"))) static void brains(uint8_t sums[BYTES], const uint8_t a[BYTES],
                                                  uint8_t b[ROWS][BYTES], int depth, int columns) {
    float even[ROWS] = {0}, odd[ROWS] = {0}, *sum = (float *)sums;
    unsigned control = _mm_getcsr();
    _mm_setcsr(FLUSHING);
    for (int k = 0; k < depth; k++)
        for (int n = 0; n < columns; n++) {
            even[n] = fused(brain(a + 4 * k), brain(b[k] + 4 * n), even[n]);
            odd[n] = fused(brain(a + 4 * k + 2), brain(b[k] + 4 * n + 2), odd[n]);
        }
    for (int n = 0; n < columns; n++) {
        volatile float both = even[n] + odd[n];
        sum[n] = sum[n] + both;
    }
    _mm_setcsr(control);
}

static int32_t byte(uint8_t value, int is_signed) { return is_signed ? (int8_t)value : value; }

static void bytes(uint8_t sums[BYTES], const uint8_t a[BYTES], uint8_t b[ROWS][BYTES], int depth,
                  int columns, int left, int right) {
    uint32_t *sum = (uint32_t *)sums;
    for (int k = 0; k < depth; k++)
        for (int n = 0; n < columns; n++)
            for (int i = 0; i < 4; i++)
                sum[n] += (uint32_t)(byte(a[4 * k + i], left) * byte(b[k][4 * n + i], right));
}

static int multiply(const struct instruction *found) {
    unsigned c = found->reg, a = found->rm, b = found->vvvv;
    if (c == a || c == b || a == b) return 0;
    if (!is_configured(c) || !is_configured(a) || !is_configured(b)) return 0;
    const struct configuration *s = &state.shapes;
    if (s->bytes[a] % 4 || s->bytes[b] % 4 || s->bytes[c] % 4) return 0;
    if (s->rows[c] != s->rows[a] || s->bytes[c] != s->bytes[b]) return 0;
    if (s->bytes[a] / 4 != s->rows[b]) return 0;
    int depth = s->rows[b], columns = s->bytes[c] / 4;
    for (int m = 0; m < s->rows[c]; m++) {
        if (found->opcode == 0x5C)
            brains(state.data[c][m], state.data[a][m], state.data[b], depth, columns);
        else /* none: uu, 66: us, F3: su, F2: ss */
            bytes(state.data[c][m], state.data[a][m], state.data[b], depth, columns,
                  found->prefix >= 2, found->prefix & 1);
    }
    return 1;
}

static int move(const struct instruction *found) {
    unsigned tile = found->reg;
    if (!found->has_sib || found->vvvv || !is_configured(tile)) return 0;
    int rows = state.shapes.rows[tile], width = state.shapes.bytes[tile];
    if (found->prefix != 2) memset(state.data[tile], 0, sizeof state.data[tile]);
    for (int row = 0; row < rows; row++) {
        uint8_t *address = found->address + row * found->stride;
        if (found->prefix == 2)
            memcpy(address, state.data[tile][row], (size_t)width);
        else
            memcpy(state.data[tile][row], address, (size_t)width);
    }
    return 1;
}

static int execute(const struct instruction *found) {
    switch (found->opcode) {
    case 0x49:
        if (found->vvvv) return 0;
        if (found->mod == 3 && found->prefix == 0) { /* TILERELEASE */
            if (found->reg || found->rm) return 0;
            memset(&state, 0, sizeof state);
            return 1;
        }
        if (found->mod == 3) { /* TILEZERO */
            if (found->prefix != 3 || found->rm || !is_configured(found->reg)) return 0;
            memset(state.data[found->reg], 0, sizeof state.data[found->reg]);
            return 1;
        }
        if (found->reg || found->prefix > 1) return 0;
        if (found->prefix == 0) return configure(found->address);
        memcpy(found->address, &state.shapes, sizeof state.shapes); /* STTILECFG */
        return 1;
    case 0x4B: /* 66: TILELOADDT1, F3: TILESTORED, F2: TILELOADD */
        return found->mod != 3 && found->prefix ? move(found) : 0;
    case 0x5C:
        return found->mod == 3 && found->prefix == 2 ? multiply(found) : 0;
    case 0x5E:
        return found->mod == 3 ? multiply(found) : 0;
    }
    return 0;
}

static void on_illegal(int number, siginfo_t *info, void *context) {
    greg_t *values = ((ucontext_t *)context)->uc_mcontext.gregs;
    struct instruction found;
    if (decode((const uint8_t *)values[REG_RIP], values, &found) && execute(&found)) {
        values[REG_RIP] += found.length;
        __atomic_add_fetch(&executed, 1, __ATOMIC_RELAXED);
        return;
    }
    (void)number, (void)info;
    sigaction(SIGILL, &before, NULL); /* the instruction is met again, and that one takes it */
}

/* Take over SIGILL; 0, or -1 where this CPU cannot emulate. */
int amx_start(void) {
    if (!__builtin_cpu_supports("fma")) return -1;
    struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO};
    return sigaction(SIGILL, &action, &before);
}

/* Leave SIGILL to the handler before. */
int amx_stop(void) { return sigaction(SIGILL, &before, NULL); }

/* Instructions executed so far, in all threads. */
int64_t amx_executed(void) { return __atomic_load_n(&executed, __ATOMIC_RELAXED); }

/* Whether the calling thread has a tile configuration. */
int amx_configured(void) { return state.shapes.palette; }
