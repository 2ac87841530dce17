/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * For `make bench`: how far apart two processors are. Two threads hand a cache line back and forth,
 * as a driver and a controller do; prints the nanoseconds of a round trip, the median of many.
 */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"

#define ROUNDS 1000
#define TRIES  301

static struct {
	_Alignas(64) uint32_t there;
	_Alignas(64) uint32_t back;
} line;

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static void *answer(void *arg)
{
	(void)arg;
	pin(1);
	for (uint32_t i = 1; i <= ROUNDS * TRIES; i++) {
		while (__atomic_load_n(&line.there, __ATOMIC_ACQUIRE) != i)
			;
		__atomic_store_n(&line.back, i, __ATOMIC_RELEASE);
	}
	return NULL;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(void)
{
	static double ns[TRIES];
	pthread_t thread;
	uint32_t i = 0;

	pin(0);
	if (pthread_create(&thread, NULL, answer, NULL))
		return 1;
	for (int try = 0; try < TRIES; try++) {
		uint64_t begin = vroom_now_ns();

		for (int round = 0; round < ROUNDS; round++) {
			__atomic_store_n(&line.there, ++i, __ATOMIC_RELEASE);
			while (__atomic_load_n(&line.back, __ATOMIC_ACQUIRE) != i)
				;
		}
		ns[try] = (double)(vroom_now_ns() - begin) / ROUNDS;
	}
	pthread_join(thread, NULL);
	qsort(ns, TRIES, sizeof(ns[0]), compare);
	printf("%.0f\n", ns[TRIES / 2]);
	return 0;
}
