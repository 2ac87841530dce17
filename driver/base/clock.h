/* SPDX-License-Identifier: BSD-3-Clause */
/* Time that only goes forward (CLOCK_MONOTONIC). */
#ifndef VROOM_CLOCK_H
#define VROOM_CLOCK_H

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

#endif
