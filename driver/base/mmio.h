/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Device registers. They are read and written 32 bits at a time, the low half first: not every
 * device takes 64 (PCIe 3.1).
 */
#ifndef VROOM_MMIO_H
#define VROOM_MMIO_H

#include <stdint.h>

/*
 * Orders stores to memory that the device reads, such as queue entries, before the store to a
 * register that tells it of them. x86 keeps this order by itself.
 */
static inline void vroom_mmio_before_write(void)
{
#if defined(__aarch64__)
	__asm__ volatile("dmb oshst" ::: "memory");
#elif defined(__x86_64__)
	__asm__ volatile("" ::: "memory");
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/*
 * Orders the load from a register before loads of memory that the device wrote before the register
 * changed.
 */
static inline void vroom_mmio_after_read(void)
{
#if defined(__aarch64__)
	__asm__ volatile("dmb oshld" ::: "memory");
#elif defined(__x86_64__)
	__asm__ volatile("" ::: "memory");
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
	vroom_mmio_after_read();
}

static inline void vroom_mmio_write(volatile void *at, const void *value, unsigned width)
{
	volatile uint32_t *to = (volatile uint32_t *)at;
	const uint32_t *from = (const uint32_t *)value;

	vroom_mmio_before_write();
	for (unsigned i = 0; i < width / 4; i++)
		to[i] = from[i];
}

#endif
