/* Watches what a process asks of the network and of folders, for tests: each line of WATCH_LOG names one call.

   Connections that leave this machine fail as without a network. Opening a file for writing, and making a folder, below
   any of the folders in WATCH_SEALED (separated by colons) fails as on a read-only disk. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static void note(const char *what, const char *whom) {
    char line[4200];
    int saved = errno, size = snprintf(line, sizeof line, "%s %s\n", what, whom);
    __typeof__(&open) real = (__typeof__(&open))dlsym(RTLD_NEXT, "open");
    int log = real(getenv("WATCH_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (log >= 0) { if (write(log, line, size) != size) abort(); close(log); }
    errno = saved;
}

static int leaves(const struct sockaddr *to) {
    char name[64] = "";
    if (to->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)to;
        inet_ntop(AF_INET, &v4->sin_addr, name, sizeof name);
        if (strncmp(name, "127.", 4) == 0) { note("loopback", name); return 0; }
    } else if (to->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const void *)to;
        inet_ntop(AF_INET6, &v6->sin6_addr, name, sizeof name);
        if (strcmp(name, "::1") == 0) { note("loopback", name); return 0; }
    } else return 0;
    note("outside", name);
    return 1;
}

int connect(int descriptor, const struct sockaddr *to, socklen_t size) {
    REAL(connect);
    if (leaves(to)) { errno = ENETUNREACH; return -1; }
    return real(descriptor, to, size);
}

ssize_t sendto(int descriptor, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t length) {
    REAL(sendto);
    if (to != NULL && leaves(to)) { errno = ENETUNREACH; return -1; }
    return real(descriptor, data, size, flags, to, length);
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    REAL(getaddrinfo);
    if (node != NULL && strncmp(node, "127.", 4) != 0 && strcmp(node, "localhost") != 0) note("looks up", node);
    return real(node, service, hints, found);
}

static int sealed(const char *path) {
    const char *folder = getenv("WATCH_SEALED");
    for (; folder != NULL && path != NULL && *folder; folder += *folder == ':') {
        size_t size = strcspn(folder, ":");
        if (strncmp(path, folder, size) == 0 && path[size] == '/') { note("sealed", path); errno = EROFS; return 1; }
        folder += size;
    }
    return 0;
}

#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT))
#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) {
    MODE(flags) REAL(open);
    return WRITES(flags) && sealed(path) ? -1 : real(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE(flags) REAL(open64);
    return WRITES(flags) && sealed(path) ? -1 : real(path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...) {
    MODE(flags) REAL(openat);
    return WRITES(flags) && sealed(path) ? -1 : real(folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags) REAL(openat64);
    return WRITES(flags) && sealed(path) ? -1 : real(folder, path, flags, mode);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return sealed(path) ? -1 : real(path, mode);
}
