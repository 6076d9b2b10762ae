/* What a machine can do to a process, between it and the C library: lose what was not synced, fail to
 * write or to sync, move the wall clock, and come up as another boot. Loaded with LD_PRELOAD into the
 * servers of a test; crates/sim/src/shim.rs is the other half. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* The test writes this file; the process has it in its memory. */
struct control {
    int64_t clock_s;    /* seconds that the wall clock is ahead */
    int32_t write_errno; /* what writing the database fails with; 0: it does not */
    int32_t sync_errno; /* what syncing it fails with */
};

static volatile struct control *control;
static char folder[2048];

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv("SIM_SHIM");
    if (!name || strlen(name) > sizeof folder - 64)
        return;
    strcpy(folder, name);
    char path[4096];
    snprintf(path, sizeof path, "%s/control", folder);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    void *at = mmap(NULL, sizeof(struct control), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED)
        control = at;
}

/* The name of the database's file behind a descriptor, if it is one. */
static const char *database(int fd, char *path, size_t size)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    if (length <= 0)
        return NULL;
    path[length] = 0;
    const char *name = strrchr(path, '/');
    if (!name || (strcmp(name, "/everturn.db") && strcmp(name, "/everturn.db-wal")))
        return NULL;
    return name;
}

static int fails(int fd, int32_t wanted)
{
    char path[4096];
    if (!wanted || !database(fd, path, sizeof path))
        return 0;
    errno = wanted;
    return 1;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset)
{
    REAL(pwrite64);
    if (control && fails(fd, control->write_errno))
        return -1;
    return real(fd, bytes, count, offset);
}

ssize_t write(int fd, const void *bytes, size_t count)
{
    REAL(write);
    if (control && fails(fd, control->write_errno))
        return -1;
    return real(fd, bytes, count);
}

/* What is synced is what a power loss leaves: a copy of the file as it is now. */
static int synced(int fd)
{
    char path[4096], to[4096], new[4200];
    const char *name = database(fd, path, sizeof path);
    if (!control || !name)
        return 0;
    if (control->sync_errno) {
        errno = control->sync_errno;
        return -1;
    }
    snprintf(to, sizeof to, "%s/synced%s", folder, name);
    snprintf(new, sizeof new, "%s.%d", to, (int)gettid());
    int out = open(new, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int in = open(path, O_RDONLY | O_CLOEXEC);
    if (out < 0 || in < 0)
        abort();
    ssize_t got;
    while ((got = copy_file_range(in, NULL, out, NULL, 1 << 24, 0)) > 0)
        ;
    close(in);
    close(out);
    if (got < 0 || rename(new, to))
        abort();
    return 0;
}

int fsync(int fd)
{
    REAL(fsync);
    if (synced(fd))
        return -1;
    return real(fd);
}

int fdatasync(int fd)
{
    REAL(fdatasync);
    if (synced(fd))
        return -1;
    return real(fd);
}

int clock_gettime(clockid_t id, struct timespec *time)
{
    REAL(clock_gettime);
    int done = real(id, time);
    if (!done && id == CLOCK_REALTIME && control)
        time->tv_sec += control->clock_s;
    return done;
}

/* After a power loss the machine has another boot. */
static const char *instead(const char *path, char *other, size_t size)
{
    if (!control || strcmp(path, "/proc/sys/kernel/random/boot_id"))
        return path;
    snprintf(other, size, "%s/boot_id", folder);
    return access(other, R_OK) ? path : other;
}

int open64(const char *path, int flags, ...)
{
    REAL(open64);
    mode_t mode = 0;
    if (flags & (O_CREAT | O_TMPFILE)) {
        va_list rest;
        va_start(rest, flags);
        mode = va_arg(rest, mode_t);
        va_end(rest);
    }
    char other[4096];
    return real(instead(path, other, sizeof other), flags, mode);
}
