/* SPDX-License-Identifier: BSD-3-Clause */
/* Time that only goes forward (CLOCK_MONOTONIC), and waiting until then. */
#ifndef VROOM_CLOCK_H
#define VROOM_CLOCK_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

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

#endif
