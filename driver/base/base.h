/* SPDX-License-Identifier: BSD-3-Clause */
/* What all layers use: errors, time, locks among processes, sizes, device registers. */
#ifndef VROOM_BASE_H
#define VROOM_BASE_H

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/*
 * Errors: functions return 0 or a negative errno, and whoever finds out what is wrong leaves one
 * line for the user: what failed, on which device, what to do. The line is the thread's own.
 */

/* Sets the line, without a newline. Returns -ERR. ARGUMENTS may lie in the line that was. */
int vroom_fail(int err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same with "DEVICE: " in front. */
int vroom_fail_on(const char *device, int err, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* The last line of this thread, "" if there was none; vroom.h declares it for programs. */
const char *vroom_error(void) __attribute__((visibility("default")));

#define VROOM_MIN(a, b) ((a) < (b) ? (a) : (b))
#define VROOM_MAX(a, b) ((a) > (b) ? (a) : (b))

#define VROOM_LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* VALUE up to the next multiple of TO. */
static inline uint64_t vroom_round_up(uint64_t value, uint64_t to)
{
	return (value + to - 1) / to * to;
}

/* Time that only goes forward (CLOCK_MONOTONIC), and waiting until then. */
static inline uint64_t vroom_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline uint64_t vroom_now_ms(void)
{
	return vroom_now_ns() / 1000000u;
}

/* Waits for EVENTS of poll() on FD, whatever signals arrive. False: it is DEADLINE_MS. */
static inline bool vroom_wait_fd(int fd, short events, uint64_t deadline_ms)
{
	struct pollfd p = { .fd = fd, .events = events };
	uint64_t now;

	while ((now = vroom_now_ms()) < deadline_ms)
		if (poll(&p, 1, (int)(deadline_ms - now)) == 1)
			return true;
	return false;
}

/* Locks in memory that processes share, and whether a process lives. */

/* BYTES of zeroes that processes forked later share, until munmap(). -ENOMEM: *OUT is NULL. */
int vroom_share(const char *device, size_t bytes, void **out);

/* A process-shared robust mutex. Returns 0 or a negative errno. */
int vroom_lock_init(pthread_mutex_t *lock);

/*
 * Takes LOCK. True: its last owner died with it. What it was about to change is then for the
 * caller to finish or undo, so shared state is written in steps of which each leaves it usable.
 */
bool vroom_lock(pthread_mutex_t *lock);
void vroom_unlock(pthread_mutex_t *lock);

/* False once PID has ended, reaped or not. */
bool vroom_process_alive(pid_t pid);

/*
 * Device registers. They are read and written 32 bits at a time, the low half first: not every
 * device takes 64 (PCIe 3.1).
 */

/*
 * Orders accesses to registers and to memory that the device reads and writes: it finds what is
 * stored before it is told, we find what it wrote before it told us.
 */
static inline void vroom_mmio_order(void)
{
#if defined(__x86_64__) /* keeps them in order; so must the compiler */
	__asm__ volatile("" ::: "memory");
#elif defined(__aarch64__)
	__asm__ volatile("dmb osh" ::: "memory");
#else
	__sync_synchronize();
#endif
}

static inline void vroom_mmio_read(const volatile void *at, void *value, unsigned width)
{
	const volatile uint32_t *from = (const volatile uint32_t *)at;
	uint32_t *to = (uint32_t *)value;

	for (unsigned i = 0; i < width / 4; i++)
		to[i] = from[i];
	vroom_mmio_order();
}

static inline void vroom_mmio_write(volatile void *at, const void *value, unsigned width)
{
	volatile uint32_t *to = (volatile uint32_t *)at;
	const uint32_t *from = (const uint32_t *)value;

	vroom_mmio_order();
	for (unsigned i = 0; i < width / 4; i++)
		to[i] = from[i];
}

#endif
