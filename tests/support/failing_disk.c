/* Fails the N-th call of one kind on one file and on its log, for tests: FAIL_CALL, FAIL_AT, FAIL_ERRNO, FAIL_FILE.

   With FAIL_FROM=1 every call from the N-th on fails, as on a full disk. The number of calls is written to FAIL_COUNT. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int counted;

static int ours(int descriptor) {
    char link[64], path[4096];
    const char *file = getenv("FAIL_FILE");
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (file == NULL || length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, file, strlen(file)) != 0) return 0;
    const char *rest = path + strlen(file);
    return *rest == 0 || strcmp(rest, "-wal") == 0 || strcmp(rest, "-journal") == 0;
}

static int fails(const char *call, int descriptor) {
    const char *wanted = getenv("FAIL_CALL");
    int saved = errno;
    if (wanted == NULL || strcmp(wanted, call) != 0 || !ours(descriptor)) { errno = saved; return 0; }
    int at = atoi(getenv("FAIL_AT"));
    counted++;
    const char *count = getenv("FAIL_COUNT");
    if (count != NULL) {
        FILE *out = fopen(count, "w");
        if (out != NULL) { fprintf(out, "%d", counted); fclose(out); }
    }
    int hit = counted == at || (counted > at && getenv("FAIL_FROM") != NULL);
    errno = hit ? atoi(getenv("FAIL_ERRNO")) : saved;
    return hit;
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int descriptor, const void *data, size_t size) {
    REAL(write);
    return fails("write", descriptor) ? -1 : real(descriptor, data, size);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) {
    REAL(pwrite);
    return fails("write", descriptor) ? -1 : real(descriptor, data, size, offset);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) {
    REAL(pwrite64);
    return fails("write", descriptor) ? -1 : real(descriptor, data, size, offset);
}

int fsync(int descriptor) {
    REAL(fsync);
    return fails("fsync", descriptor) ? -1 : real(descriptor);
}

int fdatasync(int descriptor) {
    REAL(fdatasync);
    return fails("fsync", descriptor) ? -1 : real(descriptor);
}

int ftruncate(int descriptor, off_t length) {
    REAL(ftruncate);
    return fails("ftruncate", descriptor) ? -1 : real(descriptor, length);
}

int ftruncate64(int descriptor, off64_t length) {
    REAL(ftruncate64);
    return fails("ftruncate", descriptor) ? -1 : real(descriptor, length);
}
