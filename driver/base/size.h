/* SPDX-License-Identifier: BSD-3-Clause */
/* Sizes: the larger, the smaller, the next multiple, and what people write. */
#ifndef VROOM_SIZE_H
#define VROOM_SIZE_H

#include <stdbool.h>
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

/* "4096", "64K", "1G", "0x100" as bytes; false when TEXT is not a size. */
bool vroom_parse_size(const char *text, uint64_t *out);

#endif
