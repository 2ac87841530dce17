/* SPDX-License-Identifier: BSD-3-Clause */
/* Instructions that have no portable name, and the order of memory accesses. */
#ifndef VROOM_CPU_H
#define VROOM_CPU_H

#include <stdint.h>
#include <time.h>

/* Tells the processor that this is a polling loop. */
static inline void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* A constant-rate counter, much cheaper to read than the clock; its unit is measured. */
static inline uint64_t cpu_ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t value;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
	return value;
#else
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
#endif
}

#endif
