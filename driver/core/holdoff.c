/* SPDX-License-Identifier: BSD-3-Clause */
#include "core/holdoff.h"

#include "base/size.h"
#include "vroom_qpair.h"

/* Doorbell writes between two steps. */
#define RINGS_PER_STEP 128
/* A step and the longest hold, in quickest writes. */
#define STEPS_PER_WRITE 4
#define WRITES_TO_HOLD	4

static void step(struct vroom_holdoff *h)
{
	uint64_t by = VROOM_MAX(h->quickest / STEPS_PER_WRITE, 1u);

	if (h->cost > h->last_cost)
		h->longer = !h->longer;
	if (h->hold < by)
		h->longer = true;
	if (h->longer)
		h->hold = VROOM_MIN(h->hold + by, h->quickest * WRITES_TO_HOLD);
	else
		h->hold -= by;
	h->last_cost = h->cost;
	h->cost = 0;
	h->rings = 0;
}

uint64_t vroom_holdoff_wait(const struct vroom_holdoff *h, uint64_t *rung)
{
	uint64_t begin = vroom_ticks();

	*rung = begin;
	while (*rung - begin < h->hold)
		*rung = vroom_ticks();
	return begin;
}

void vroom_holdoff_learn(struct vroom_holdoff *h, uint64_t begin, uint64_t rung)
{
	uint64_t end = vroom_ticks();

	if (!h->quickest || end - rung < h->quickest)
		h->quickest = end - rung;
	h->cost += end - begin;
	if (++h->rings == RINGS_PER_STEP)
		step(h);
}
