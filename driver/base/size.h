/* SPDX-License-Identifier: BSD-3-Clause */
/* The larger, the smaller, the next multiple. */
#ifndef VROOM_SIZE_H
#define VROOM_SIZE_H

#include <stddef.h>
#include <stdint.h>

#define VROOM_MIN(a, b) ((a) < (b) ? (a) : (b))
#define VROOM_MAX(a, b) ((a) > (b) ? (a) : (b))

#define VROOM_LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* VALUE up to the next multiple of TO. */
static inline uint64_t vroom_round_up(uint64_t value, uint64_t to)
{
	return (value + to - 1) / to * to;
}

#endif
