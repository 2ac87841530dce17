/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * When to ring a doorbell that is a trap. In a virtual machine with an emulated controller a
 * doorbell write is a call into the emulator, under a lock that it still holds for some
 * microseconds after it has posted a completion. Who rings at once is put to sleep until the
 * lock is free, by when the emulator has gone to sleep itself; who rings late finds it asleep
 * as well. In between is a moment at which it costs little. Where that is depends on emulator
 * and host, so it is searched for: hold is varied by a step at a time, and the direction kept
 * while holding and ringing together get cheaper. All times are in units of the quickest
 * doorbell write that was seen, so that nothing needs calibration; where holding gains nothing
 * the search stays within a step of not holding at all.
 */
#ifndef VROOM_HOLDOFF_H
#define VROOM_HOLDOFF_H

#include <stdbool.h>
#include <stdint.h>

struct vroom_holdoff {
	uint64_t hold;	   /* ticks to wait before a doorbell write */
	uint64_t quickest; /* ticks of the quickest write so far */
	uint64_t cost;	   /* ticks spent holding and writing since the last step */
	uint64_t last_cost;
	unsigned rings; /* since the last step */
	bool longer;	/* the direction of the next step */
};

/* Waits for the moment; returns the ticks at which it began to. */
uint64_t vroom_holdoff_wait(const struct vroom_holdoff *h, uint64_t *rung);
/* The write that began at RUNG, for which the wait began at BEGIN, is over. */
void vroom_holdoff_learn(struct vroom_holdoff *h, uint64_t begin, uint64_t rung);

#endif
