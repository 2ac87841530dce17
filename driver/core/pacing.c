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
#include "base/cpu.h"
#include "core/internal.h"

/* Doorbell writes between two steps. */
#define RINGS_PER_STEP 128
/* A step and the longest hold, in quickest writes. */
#define STEPS_PER_WRITE 4
#define WRITES_TO_HOLD	4

static void step(struct vroom_pacing *p)
{
	uint64_t by = VROOM_MAX(p->quickest / STEPS_PER_WRITE, 1u);

	if (p->cost > p->last_cost)
		p->longer = !p->longer;
	if (p->hold < by)
		p->longer = true;
	if (p->longer)
		p->hold = VROOM_MIN(p->hold + by, p->quickest * WRITES_TO_HOLD);
	else
		p->hold -= by;
	p->last_cost = p->cost;
	p->cost = 0;
	p->rings = 0;
}

void vroom_pacing_ring(struct vroom_pacing *p, struct vroom_ctrlr *c, volatile uint32_t *doorbell,
		       uint32_t value)
{
	uint64_t begin = cpu_ticks(), rung = begin, end;

	while (rung - begin < p->hold)
		rung = cpu_ticks();
	vroom_ctrlr_ring_slow(c, doorbell, value);
	end = cpu_ticks();
	if (!p->quickest || end - rung < p->quickest)
		p->quickest = end - rung;
	p->cost += end - begin;
	if (++p->rings == RINGS_PER_STEP)
		step(p);
}
