/* SPDX-License-Identifier: BSD-3-Clause */
#include "core/core.h"

#define RINGS_PER_STEP	128 /* doorbell writes between two steps of the search */
#define STEPS_PER_WRITE 4   /* of the quickest */
#define WRITES_TO_HOLD	4   /* the longest hold, in quickest writes */
#define NEARLY_IDLE	2   /* commands in flight up to which doorbells are held off */

int vroom_doorbell_init(struct vroom_doorbell *db, struct vroom_kick *kick,
			struct vroom_transport *t, unsigned qid, bool completion, unsigned dstrd,
			bool traps)
{
	static const uint32_t never = 0, always = 1;
	/* 1000h + (2y + is_cq) * (4 << CAP.DSTRD) */
	uint32_t offset = (2 * qid + completion) * (4u << dstrd);

	*kick = (struct vroom_kick){ .transport = t, .offset = NVME_REG_DOORBELLS + offset };
	if (t->on_bus && t->doorbells && offset + 4 > t->doorbell_bytes)
		return -ENOTSUP;
	kick->message = traps || !t->doorbells || offset + 4 > t->doorbell_bytes;
	db->kick = kick;
	if (kick->message) {
		db->reg = &kick->word;
		db->needs_kick = &always;
	} else {
		db->reg = t->doorbells + offset / 4;
		db->needs_kick = t->needs_kick ? t->needs_kick : &never;
	}
	return 0;
}

static uint32_t distance(uint32_t from, uint32_t to, uint32_t size)
{
	return to >= from ? to - from : to + size - from;
}

static bool is_nearly_idle(struct vroom_holdoff *h)
{
	h->in_flight += distance(h->last_tail, h->sq->tail, h->sq->size);
	h->in_flight -= distance(h->last_head, h->cq->head, h->cq->size);
	h->last_tail = h->sq->tail;
	h->last_head = h->cq->head;
	return h->in_flight <= NEARLY_IDLE;
}

static void step(struct vroom_holdoff *h)
{
	uint64_t by = VROOM_MAX(h->quickest / STEPS_PER_WRITE, 1u);

	if (h->cost > h->last_cost)
		h->longer = !h->longer;
	if (h->hold < by)
		h->longer = true;
	h->hold = h->longer ? VROOM_MIN(h->hold + by, h->quickest * WRITES_TO_HOLD) : h->hold - by;
	h->last_cost = h->cost;
	h->cost = 0;
	h->rings = 0;
}

static void write_register(const struct vroom_kick *k, uint32_t value)
{
	/* A failure shows at the next look at the controller's health. */
	k->transport->ops->write(k->transport, k->offset, &value, 4);
}

static void hold_and_write(const struct vroom_kick *k, uint32_t value)
{
	uint64_t begin = vroom_ticks(), rung = begin, end;
	struct vroom_holdoff *h = k->holdoff;

	while (rung - begin < h->hold)
		rung = vroom_ticks();
	write_register(k, value);
	end = vroom_ticks();
	if (!h->quickest || end - rung < h->quickest)
		h->quickest = end - rung;
	h->cost += end - begin;
	if (++h->rings == RINGS_PER_STEP)
		step(h);
}

void vroom_doorbell_kick(const struct vroom_doorbell *db, uint32_t value)
{
	struct vroom_kick *k = db->kick;

	if (!k->message)
		k->transport->ops->kick(k->transport);
	else if (k->holdoff && is_nearly_idle(k->holdoff))
		hold_and_write(k, value);
	else
		write_register(k, value);
}
