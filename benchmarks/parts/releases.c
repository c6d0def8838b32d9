// Counts how often threads release the interpreter lock by PyEval_SaveThread, on x86-64: its first bytes are replaced
// by a jump to save_thread, which does the same. The calling thread of ignore_this_thread is left out.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

extern void *PyThreadState_Get(void);
extern void PyEval_ReleaseThread(void *);

static atomic_long count;
static __thread int is_ignored;

static void *save_thread(void) {
    void *state = PyThreadState_Get();
    if (!is_ignored) atomic_fetch_add(&count, 1);
    PyEval_ReleaseThread(state);
    return state;
}

void ignore_this_thread(void) { is_ignored = 1; }

long releases(void) { return atomic_load(&count); }

int install(void) {
    char *from = dlsym(RTLD_DEFAULT, "PyEval_SaveThread");
    void *to = (void *)save_thread;
    unsigned char jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};  // mov rax, to; jmp rax
    void *page = (void *)((unsigned long)from & ~4095UL);
    if (!from || mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) return 1;
    memcpy(jump + 2, &to, 8);
    memcpy(from, jump, 12);
    return mprotect(page, 8192, PROT_READ | PROT_EXEC);
}
