/* Preloaded into a server: replaces its wall clock by one that a test sets. The file named by
 * TEST_CLOCK_FILE holds microseconds since the Unix epoch, 0 for the real time. Monotonic clocks are
 * not replaced, because the event loop of the server uses them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile uint64_t *test_clock;

__attribute__((constructor)) static void map_clock(void) {
  const char *path = getenv("TEST_CLOCK_FILE");
  int file = path ? open(path, O_RDONLY) : -1;
  if (file < 0) return;
  void *page = mmap(NULL, sizeof *test_clock, PROT_READ, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) test_clock = page;
  close(file);
}

int clock_gettime(clockid_t id, struct timespec *time) {
  uint64_t micros = test_clock ? *test_clock : 0;
  if (micros == 0 || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE))
    return (int)syscall(SYS_clock_gettime, id, time);
  time->tv_sec = micros / 1000000;
  time->tv_nsec = micros % 1000000 * 1000;
  return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  (void)zone;
  struct timespec now;
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
