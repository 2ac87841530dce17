/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Device registers. They are read and written 32 bits at a time, the low half first: not every
 * device takes 64 (PCIe 3.1).
 */
#ifndef VROOM_MMIO_H
#define VROOM_MMIO_H

#include <stdint.h>

static inline void vroom_mmio_read(const volatile void *at, void *value, unsigned width)
{
	const volatile uint32_t *from = (const volatile uint32_t *)at;
	uint32_t *to = (uint32_t *)value;

	for (unsigned i = 0; i < width / 4; i++)
		to[i] = from[i];
}

static inline void vroom_mmio_write(volatile void *at, const void *value, unsigned width)
{
	volatile uint32_t *to = (volatile uint32_t *)at;
	const uint32_t *from = (const uint32_t *)value;

	for (unsigned i = 0; i < width / 4; i++)
		to[i] = from[i];
}

#endif
