/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Device registers. They are read and written 32 bits at a time, the low half first: not every
 * device takes 64 (PCIe 3.1).
 */
#ifndef VROOM_MMIO_H
#define VROOM_MMIO_H

#include <stdint.h>

/*
 * Orders accesses to registers and to memory that the device reads and writes: it finds what is
 * stored before it is told, we find what it wrote before it told us.
 */
static inline void vroom_mmio_order(void)
{
#if defined(__aarch64__)
	__asm__ volatile("dmb osh" ::: "memory");
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
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
