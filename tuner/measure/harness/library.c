#include "library.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if __SIZEOF_POINTER__ == 8
#define ELF(name) Elf64_##name
#define ELF_CLASS ELFCLASS64
#define RELOCATION_SYMBOL ELF64_R_SYM
#define RELOCATION_KIND ELF64_R_TYPE
#define SYMBOL_KIND ELF64_ST_TYPE
#else
#define ELF(name) Elf32_##name
#define ELF_CLASS ELFCLASS32
#define RELOCATION_SYMBOL ELF32_R_SYM
#define RELOCATION_KIND ELF32_R_TYPE
#define SYMBOL_KIND ELF32_ST_TYPE
#endif

/* For this architecture: its machine, and the kinds of relocations: base + addend, and the kinds
 * that store a symbol's address; `ABSOLUTE` adds an addend to it. */
#if defined(__x86_64__)
enum { MACHINE = EM_X86_64, RELATIVE = 8, ABSOLUTE = 1, DATA = 6, JUMP = 7 };
#elif defined(__aarch64__)
enum { MACHINE = EM_AARCH64, RELATIVE = 1027, ABSOLUTE = 257, DATA = 1025, JUMP = 1026 };
#elif defined(__arm__)
enum { MACHINE = EM_ARM, RELATIVE = 23, ABSOLUTE = 2, DATA = 21, JUMP = 22 };
#elif defined(__riscv) && __riscv_xlen == 64
enum { MACHINE = EM_RISCV, RELATIVE = 3, ABSOLUTE = 2, DATA = 2, JUMP = 5 };
#else
#error "an architecture without candidates"
#endif

enum { MOST_BYTES = 1 << 30, MOST_SEGMENTS = 64 };

struct tw_library {
    unsigned char *base; /* where address 0 lies */
    size_t bytes;        /* of memory behind it */
    const ELF(Sym) *symbols;
    size_t symbol_count;
    const char *names;
    size_t name_bytes;
};

#if defined(__arm__)
#define HELPERS(each)                                                                              \
    each(f2lz) each(f2ulz) each(d2lz) each(d2ulz) each(l2f) each(ul2f) each(l2d) each(ul2d)        \
        each(ldivmod) each(uldivmod) each(idiv) each(uidiv) each(idivmod) each(uidivmod)
#define DECLARE(name) extern void __aeabi_##name(void);
HELPERS(DECLARE)
#define ENTRY(name) {"__aeabi_" #name, __aeabi_##name},
#else
#define HELPERS(each)
#define ENTRY(name)
#endif

typedef void (*function)(void);

/* The symbols that a library may import from its loader (LIBRARY_SYMBOLS, and a family's
 * `helpers`). */
static const struct {
    const char *name;
    function address;
} GIVEN[] = {{"memcpy", (function)memcpy},
             {"memmove", (function)memmove},
             {"memset", (function)memset},
             HELPERS(ENTRY)};

static bool inside(size_t start, size_t length, size_t room) {
    return start <= room && length <= room - start;
}

/* `count` entries of `size` bytes that begin at an address of the library; NULL where they do not
 * lie in it. */
static void *place(const tw_library *library, size_t address, size_t count, size_t size) {
    if (count > library->bytes / size || !inside(address, count * size, library->bytes))
        return NULL;
    /* aligned to a pointer, or to an entry that is smaller */
    return address % sizeof(void *) % size ? NULL : library->base + address;
}

static const char *name_of(const tw_library *library, const ELF(Sym) *symbol) {
    return symbol->st_name < library->name_bytes ? library->names + symbol->st_name : "";
}

static void *defined_at(const tw_library *library, const ELF(Sym) *symbol) {
    size_t address = symbol->st_value & ~(size_t)(MACHINE == EM_ARM); /* the bit of Thumb code */
    bool here = symbol->st_shndx != SHN_UNDEF && symbol->st_shndx != SHN_ABS;
    if (!here || SYMBOL_KIND(symbol->st_info) > STT_FUNC || address >= library->bytes) return NULL;
    return library->base + symbol->st_value;
}

void *tw_library_find(const tw_library *library, const char *name) {
    for (size_t i = 1; i < library->symbol_count; i++)
        if (strcmp(name_of(library, &library->symbols[i]), name) == 0)
            return defined_at(library, &library->symbols[i]);
    return NULL;
}

static void *resolve(const tw_library *library, size_t number, tw_error *error) {
    if (number >= library->symbol_count) {
        tw_fail(error, "the library refers to a symbol that it does not have");
        return NULL;
    }
    const ELF(Sym) *symbol = &library->symbols[number];
    void *found = defined_at(library, symbol);
    for (size_t i = 0; !found && i < sizeof GIVEN / sizeof *GIVEN; i++)
        if (strcmp(name_of(library, symbol), GIVEN[i].name) == 0)
            memcpy(&found, &GIVEN[i].address, sizeof found); /* a function's address as data */
    if (!found) tw_fail(error, "the library would call '%.100s'", name_of(library, symbol));
    return found;
}

static bool relocate(const tw_library *library, size_t where, size_t kind, size_t symbol,
                     const size_t *addend, tw_error *error) {
    size_t value;
    if (kind == 0) return true;
    if (!inside(where, sizeof value, library->bytes))
        return tw_fail(error, "the library has a relocation outside of it");
    unsigned char *at = library->base + where;
    memcpy(&value, at, sizeof value);
    size_t more = addend ? *addend : value;
    if (kind == RELATIVE) {
        value = (size_t)library->base + more;
    } else if (kind == ABSOLUTE || kind == DATA || kind == JUMP) {
        void *found = resolve(library, symbol, error);
        if (!found) return false;
        value = (size_t)found + (kind == ABSOLUTE || addend ? more : 0);
    } else {
        return tw_fail(error, "the library has a relocation of kind %zu", kind);
    }
    memcpy(at, &value, sizeof value);
    return true;
}

static bool relocate_all(const tw_library *library, size_t table, size_t bytes, bool with_addends,
                         tw_error *error) {
    size_t size = with_addends ? sizeof(ELF(Rela)) : sizeof(ELF(Rel)), count = bytes / size;
    const unsigned char *each = place(library, table, count, size);
    if (count && !each) return tw_fail(error, "the library's relocations lie outside of it");
    for (size_t i = 0; i < count; i++, each += size) {
        ELF(Rela) found = {.r_addend = 0};
        memcpy(&found, each, size);
        size_t addend = (size_t)found.r_addend;
        if (!relocate(library, found.r_offset, RELOCATION_KIND(found.r_info),
                      RELOCATION_SYMBOL(found.r_info), with_addends ? &addend : NULL, error))
            return false;
    }
    return true;
}

/* Symbols by the table that GNU's linkers make: its longest chain ends with the last one. */
static size_t count_by_gnu_hash(const tw_library *library, size_t address) {
    const uint32_t *head = place(library, address, 4, sizeof *head);
    if (!head) return 0;
    size_t buckets = head[0], first = head[1], words = head[2];
    size_t start = address + 16 + words * sizeof(size_t);
    const uint32_t *bucket =
        words < library->bytes ? place(library, start, buckets, sizeof *bucket) : NULL;
    if (!bucket) return 0;
    size_t last = 0;
    for (size_t i = 0; i < buckets; i++)
        if (bucket[i] > last) last = bucket[i];
    if (last < first) return first; /* it exports nothing */
    for (;; last++) {
        const uint32_t *chain =
            place(library, start + 4 * (buckets + last - first), 1, sizeof *chain);
        if (!chain) return 0;
        if (*chain & 1) return last + 1;
    }
}

typedef struct {
    size_t found[DT_NUM], gnu_hash;
    bool packed; /* relocations in a form that is not read here */
} dynamic;

static bool read_dynamic(const tw_library *library, const ELF(Phdr) *segment, dynamic *out,
                         tw_error *error) {
    size_t count = segment->p_memsz / sizeof(ELF(Dyn));
    const ELF(Dyn) *entries = place(library, segment->p_vaddr, count, sizeof *entries);
    if (!entries) return tw_fail(error, "the library's dynamic section lies outside of it");
    for (size_t i = 0; i < count && entries[i].d_tag != DT_NULL; i++) {
        size_t tag = (size_t)entries[i].d_tag;
        if (tag < DT_NUM) out->found[tag] = entries[i].d_un.d_val;
        if (tag == DT_GNU_HASH) out->gnu_hash = entries[i].d_un.d_ptr;
        if (tag == DT_NEEDED) return tw_fail(error, "the library needs another one");
        out->packed = out->packed || tag == 36 /* DT_RELR, which C libraries learn late */;
    }
    if (out->found[DT_INIT] || out->found[DT_INIT_ARRAYSZ])
        return tw_fail(error, "the library would run code while it is loaded");
    return out->packed ? tw_fail(error, "the library's relocations are packed") : true;
}

static bool link_library(tw_library *library, const ELF(Phdr) *segment, tw_error *error) {
    dynamic tables = {.gnu_hash = 0};
    if (!read_dynamic(library, segment, &tables, error)) return false;
    const size_t *found = tables.found;
    size_t count = 0;
    if (found[DT_HASH]) {
        const uint32_t *head = place(library, found[DT_HASH], 2, sizeof *head);
        count = head ? head[1] : 0;
    } else if (tables.gnu_hash) {
        count = count_by_gnu_hash(library, tables.gnu_hash);
    }
    library->symbols = place(library, found[DT_SYMTAB], count, sizeof *library->symbols);
    library->names = place(library, found[DT_STRTAB], found[DT_STRSZ], 1);
    library->name_bytes = found[DT_STRSZ];
    bool named = library->symbols && library->names && library->name_bytes;
    if (!named || library->names[library->name_bytes - 1] != 0)
        return tw_fail(error, "the library has no table of symbols");
    library->symbol_count = count;
    return relocate_all(library, found[DT_RELA], found[DT_RELASZ], true, error) &&
           relocate_all(library, found[DT_REL], found[DT_RELSZ], false, error) &&
           relocate_all(library, found[DT_JMPREL], found[DT_PLTRELSZ], found[DT_PLTREL] == DT_RELA,
                        error);
}

/* Set the protection that the segments request, page by page, because pages may be larger than the
 * linker assumed. All pages are readable, since symbols are looked up there. */
static bool protect(const tw_library *library, const ELF(Phdr) *segments, size_t count,
                    size_t page) {
    for (size_t start = 0; start < library->bytes; start += page) {
        int wanted = PROT_READ;
        for (size_t i = 0; i < count; i++) {
            size_t from = segments[i].p_vaddr, to = from + segments[i].p_memsz;
            if (segments[i].p_type != PT_LOAD || from >= start + page || to <= start) continue;
            wanted |= (segments[i].p_flags & PF_W ? PROT_WRITE : 0) |
                      (segments[i].p_flags & PF_X ? PROT_EXEC : 0);
        }
        if (mprotect(library->base + start, page, wanted) != 0) return false;
    }
    return true;
}

static bool is_ours(const unsigned char *file, size_t size, ELF(Ehdr) * head) {
    if (size < sizeof *head) return false;
    memcpy(head, file, sizeof *head);
    return memcmp(head->e_ident, ELFMAG, SELFMAG) == 0 && head->e_ident[EI_CLASS] == ELF_CLASS &&
           head->e_ident[EI_DATA] == ELFDATA2LSB && head->e_type == ET_DYN &&
           head->e_machine == MACHINE && head->e_phentsize == sizeof(ELF(Phdr));
}

static bool map_segments(tw_library *library, const unsigned char *file, size_t size,
                         const ELF(Phdr) *segments, size_t count, size_t page, tw_error *error) {
    size_t end = 0;
    for (size_t i = 0; i < count; i++) {
        const ELF(Phdr) *each = &segments[i];
        if (each->p_type == PT_TLS) return tw_fail(error, "the library has thread-local memory");
        if (each->p_type != PT_LOAD) continue;
        if (!inside(each->p_offset, each->p_filesz, size) || each->p_filesz > each->p_memsz ||
            !inside(each->p_vaddr, each->p_memsz, MOST_BYTES))
            return tw_fail(error, "the library's segments lie outside of it");
        if (each->p_vaddr + each->p_memsz > end) end = each->p_vaddr + each->p_memsz;
    }
    library->bytes = (end + page - 1) / page * page;
    if (!library->bytes) return tw_fail(error, "the library is empty");
    void *base =
        mmap(NULL, library->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return tw_fail(error, "there is no memory for the library");
    library->base = base;
    for (size_t i = 0; i < count; i++)
        if (segments[i].p_type == PT_LOAD && segments[i].p_filesz)
            memcpy(library->base + segments[i].p_vaddr, file + segments[i].p_offset,
                   segments[i].p_filesz);
    return true;
}

tw_library *tw_library_open(const void *file, size_t size, tw_error *error) {
    ELF(Ehdr) head;
    ELF(Phdr) segments[MOST_SEGMENTS];
    tw_library *library = tw_allocate(sizeof *library);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const ELF(Phdr) *linked = NULL;
    bool right = false;
    if (!is_ours(file, size, &head)) {
        tw_fail(error, "the code is no shared library for this machine");
    } else if (head.e_phnum > MOST_SEGMENTS ||
               !inside(head.e_phoff, head.e_phnum * sizeof *segments, size)) {
        tw_fail(error, "the library's table of segments lies outside of it");
    } else {
        memcpy(segments, (const char *)file + head.e_phoff, head.e_phnum * sizeof *segments);
        for (size_t i = 0; i < head.e_phnum; i++)
            if (segments[i].p_type == PT_DYNAMIC) linked = &segments[i];
        right = map_segments(library, file, size, segments, head.e_phnum, page, error);
        if (right && !linked) right = tw_fail(error, "the library has no dynamic section");
        right = right && link_library(library, linked, error);
        if (right && !protect(library, segments, head.e_phnum, page))
            right = tw_fail(error, "the system does not let the library's code run");
    }
    if (!right) {
        if (library->base) munmap(library->base, library->bytes);
        free(library);
        return NULL;
    }
    __builtin___clear_cache((char *)library->base, (char *)library->base + library->bytes);
    return library;
}
