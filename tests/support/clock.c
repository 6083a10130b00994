/* Moves the wall clock of a program that is started with this as LD_PRELOAD: by the nanoseconds (a signed 64-bit number) at
 * the beginning of the file that WARMROUTE_CLOCK names, as they are at the moment. No other clock is moved. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("WARMROUTE_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) offset = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    long result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t nanoseconds = (int64_t)time->tv_nsec + *offset % 1000000000;
        time->tv_sec += *offset / 1000000000;
        if (nanoseconds < 0) { nanoseconds += 1000000000; time->tv_sec -= 1; }
        if (nanoseconds >= 1000000000) { nanoseconds -= 1000000000; time->tv_sec += 1; }
        time->tv_nsec = nanoseconds;
    }
    return (int)result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
