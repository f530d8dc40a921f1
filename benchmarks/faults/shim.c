/* Makes chosen calls of the C library fail, or sends a signal in their place.
 *
 * Loaded by LD_PRELOAD, it does nothing until faults_arm() is called, from Python by
 * ctypes. Then calls on paths below one folder are counted by kind, and the k-th of a
 * kind fails with an error number, or is where the process is sent a signal.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { OPEN, WRITE, SYNC, RENAME, MAKE, REMOVE, ALLOCATE, READ, LOCK, CONNECT,
            RECEIVE, N_KINDS };
static const char *const NAMES[N_KINDS] = {
    "open", "write", "sync", "rename", "make", "remove", "allocate", "read", "lock",
    "connect", "receive"};
enum stays { ONCE, FULL, DEAD };

/* The folder that is watched, and the one in which calls are counted: below it. */
static char watched[PATH_MAX], counted[PATH_MAX];
static int armed_kind = -1, armed_error, armed_signal, armed_stays, trace = -1;
static long armed_k;
static atomic_long seen[N_KINDS];
static atomic_int armed, has_struck;

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int is_below(const char *path, const char *folder) {
    size_t length = strlen(folder);
    return length && !strncmp(path, folder, length) &&
           (path[length] == '/' || path[length] == 0);
}

static void path_of(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
}

/* The absolute path of one that may be relative; links and ".." are left as they are. */
static void absolute(int folder, const char *path, char *whole) {
    char start[PATH_MAX] = "";
    if (path[0] != '/') {
        if (folder == AT_FDCWD) {
            if (!getcwd(start, sizeof start)) start[0] = 0;
        } else {
            path_of(folder, start);
        }
    }
    int length = snprintf(whole, PATH_MAX, "%s%s%s", start, start[0] ? "/" : "", path);
    if (length >= PATH_MAX) whole[0] = 0;
}

static void note(enum kind kind, const char *path, int struck) {
    if (trace < 0) return;
    char line[PATH_MAX + 64];
    size_t length = strlen(watched);
    const char *shown = is_below(path, watched) && path[length] ? path + length + 1
                                                                : path;
    int n = snprintf(line, sizeof line, "%s%s %s\n", struck ? "! " : "", NAMES[kind],
                     shown);
    if (n > (int)sizeof line) n = sizeof line;
    syscall(SYS_write, trace, line, n);
}

/* Which calls fail once a disk has failed; a full one refuses only what needs space. */
static int fails_too(enum kind kind, int needs_space) {
    if (armed_stays == DEAD) return kind < LOCK;
    return armed_stays == FULL && needs_space;
}

/* Return the error number with which a call is to fail, or 0. A process that is to be
 * killed or stopped is so here. */
static int struck(enum kind kind, const char *path, int needs_space) {
    int is_file = kind < CONNECT;
    if (is_file && !is_below(path, counted)) return 0;
    if (kind == (enum kind)armed_kind && atomic_fetch_add(&seen[kind], 1) + 1 == armed_k) {
        atomic_store(&has_struck, 1);
        note(kind, path, 1);
        if (armed_signal) kill(getpid(), armed_signal);
        return armed_error;
    }
    if (kind != (enum kind)armed_kind) atomic_fetch_add(&seen[kind], 1);
    note(kind, path, 0);
    if (armed_stays && atomic_load(&has_struck) && fails_too(kind, needs_space))
        return armed_error;
    return 0;
}

/* Watch the folder `root` and count calls below `folder`. The k-th of a kind fails with
 * `error`, or brings `signal`; `stays` says what fails after it. Lines of all counted
 * calls are written to the descriptor `to`. */
int faults_arm(const char *root, const char *folder, const char *kind, long k, int error,
               int signal, int stays, int to) {
    if (strlen(root) >= PATH_MAX || strlen(folder) >= PATH_MAX) return -1;
    armed_kind = -1;
    for (int i = 0; i < N_KINDS; i++) {
        if (!strcmp(kind, NAMES[i])) armed_kind = i;
        atomic_store(&seen[i], 0);
    }
    strcpy(watched, root);
    strcpy(counted, folder);
    armed_k = k;
    armed_error = error;
    armed_signal = signal;
    armed_stays = stays;
    trace = to;
    atomic_store(&has_struck, 0);
    atomic_store(&armed, 1);
    return 0;
}

void faults_disarm(void) { atomic_store(&armed, 0); }

#define STRIKE_PATH(kind, folder, path, space, failed) \
    if (atomic_load(&armed)) { \
        char whole[PATH_MAX]; \
        absolute(folder, path, whole); \
        int error = struck(kind, whole, space); \
        if (error) { errno = error; return failed; } \
    }
#define STRIKE_FILE(kind, descriptor, space, failed) \
    if (atomic_load(&armed) && descriptor != trace) { \
        char whole[PATH_MAX]; \
        path_of(descriptor, whole); \
        int error = struck(kind, whole, space); \
        if (error) { errno = error; return failed; } \
    }

/* A new file needs space, one that is there doesn't. */
static int is_new(int folder, const char *path, int flags) {
    int before = errno, found = 0;
    if (flags & O_CREAT) found = faccessat(folder, path, F_OK, 0) != 0;
    errno = before;
    return found;
}

#define MODE(flags, last) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { \
        va_list more; \
        va_start(more, last); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    }
#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        MODE(flags, flags) \
        STRIKE_PATH(OPEN, AT_FDCWD, path, is_new(AT_FDCWD, path, flags), -1) \
        return real(path, flags, mode); \
    }
#define OPENS_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(name); \
        MODE(flags, flags) \
        STRIKE_PATH(OPEN, folder, path, is_new(folder, path, flags), -1) \
        return real(folder, path, flags, mode); \
    }
#define CREATES(name) \
    int name(const char *path, mode_t mode) { \
        REAL(name); \
        STRIKE_PATH(OPEN, AT_FDCWD, path, 1, -1) \
        return real(path, mode); \
    }
#define OPENS_STREAM(name) \
    FILE *name(const char *restrict path, const char *restrict mode) { \
        REAL(name); \
        int creates = mode[0] != 'r'; \
        STRIKE_PATH(OPEN, AT_FDCWD, path, creates, NULL) \
        return real(path, mode); \
    }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)
CREATES(creat)
CREATES(creat64)
OPENS_STREAM(fopen)
OPENS_STREAM(fopen64)

/* A process that is killed in a write has written half of it. */
#define TEAR(call) \
    if (atomic_load(&armed) && armed_kind == WRITE && armed_signal == SIGKILL && \
        atomic_load(&seen[WRITE]) + 1 == armed_k && descriptor != trace) { \
        char torn[PATH_MAX]; \
        path_of(descriptor, torn); \
        if (is_below(torn, counted)) (void)!(call); \
    }
ssize_t write(int descriptor, const void *bytes, size_t n) {
    REAL(write);
    TEAR(real(descriptor, bytes, n / 2))
    STRIKE_FILE(WRITE, descriptor, 1, -1)
    return real(descriptor, bytes, n);
}
#define WRITES_AT(name, offset_t) \
    ssize_t name(int descriptor, const void *bytes, size_t n, offset_t place) { \
        REAL(name); \
        TEAR(real(descriptor, bytes, n / 2, place)) \
        STRIKE_FILE(WRITE, descriptor, 1, -1) \
        return real(descriptor, bytes, n, place); \
    }
WRITES_AT(pwrite, off_t)
WRITES_AT(pwrite64, off64_t)
ssize_t writev(int descriptor, const struct iovec *parts, int n) {
    REAL(writev);
    TEAR(real(descriptor, parts, n / 2))
    STRIKE_FILE(WRITE, descriptor, 1, -1)
    return real(descriptor, parts, n);
}

ssize_t read(int descriptor, void *bytes, size_t n) {
    REAL(read);
    STRIKE_FILE(READ, descriptor, 0, -1)
    return real(descriptor, bytes, n);
}
#define READS_AT(name, offset_t) \
    ssize_t name(int descriptor, void *bytes, size_t n, offset_t place) { \
        REAL(name); \
        STRIKE_FILE(READ, descriptor, 0, -1) \
        return real(descriptor, bytes, n, place); \
    }
READS_AT(pread, off_t)
READS_AT(pread64, off64_t)

int fsync(int descriptor) {
    REAL(fsync);
    STRIKE_FILE(SYNC, descriptor, 0, -1)
    return real(descriptor);
}
int fdatasync(int descriptor) {
    REAL(fdatasync);
    STRIKE_FILE(SYNC, descriptor, 0, -1)
    return real(descriptor);
}

int rename(const char *old, const char *new) {
    REAL(rename);
    STRIKE_PATH(RENAME, AT_FDCWD, new, 0, -1)
    return real(old, new);
}
int renameat(int from, const char *old, int to, const char *new) {
    REAL(renameat);
    STRIKE_PATH(RENAME, to, new, 0, -1)
    return real(from, old, to, new);
}
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    REAL(renameat2);
    STRIKE_PATH(RENAME, to, new, 0, -1)
    return real(from, old, to, new, flags);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    STRIKE_PATH(MAKE, AT_FDCWD, path, 1, -1)
    return real(path, mode);
}
int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(mkdirat);
    STRIKE_PATH(MAKE, folder, path, 1, -1)
    return real(folder, path, mode);
}

int unlink(const char *path) {
    REAL(unlink);
    STRIKE_PATH(REMOVE, AT_FDCWD, path, 0, -1)
    return real(path);
}
int unlinkat(int folder, const char *path, int flags) {
    REAL(unlinkat);
    STRIKE_PATH(REMOVE, folder, path, 0, -1)
    return real(folder, path, flags);
}
int rmdir(const char *path) {
    REAL(rmdir);
    STRIKE_PATH(REMOVE, AT_FDCWD, path, 0, -1)
    return real(path);
}

int ftruncate(int descriptor, off_t n) {
    REAL(ftruncate);
    STRIKE_FILE(ALLOCATE, descriptor, 0, -1)
    return real(descriptor, n);
}
int ftruncate64(int descriptor, off64_t n) {
    REAL(ftruncate64);
    STRIKE_FILE(ALLOCATE, descriptor, 0, -1)
    return real(descriptor, n);
}
/* These two return the error number. */
#define ALLOCATES(name, offset_t) \
    int name(int descriptor, offset_t place, offset_t n) { \
        REAL(name); \
        if (atomic_load(&armed)) { \
            char whole[PATH_MAX]; \
            path_of(descriptor, whole); \
            int error = struck(ALLOCATE, whole, 1); \
            if (error) return error; \
        } \
        return real(descriptor, place, n); \
    }
ALLOCATES(posix_fallocate, off_t)
ALLOCATES(posix_fallocate64, off64_t)

int flock(int descriptor, int operation) {
    REAL(flock);
    STRIKE_FILE(LOCK, descriptor, 0, -1)
    return real(descriptor, operation);
}

/* Whatever the address: a connection is below no folder. */
int connect(int descriptor, const struct sockaddr *address, socklen_t length) {
    REAL(connect);
    if (atomic_load(&armed)) {
        int error = struck(CONNECT, "socket", 0);
        if (error) { errno = error; return -1; }
    }
    return real(descriptor, address, length);
}
ssize_t recv(int descriptor, void *bytes, size_t n, int flags) {
    REAL(recv);
    if (atomic_load(&armed)) {
        int error = struck(RECEIVE, "socket", 0);
        if (error) { errno = error; return -1; }
    }
    return real(descriptor, bytes, n, flags);
}
