/* SPDX-License-Identifier: BSD-3-Clause */
#include "core/doorbell.h"

#include <errno.h>

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

/* How far a ring of SIZE entries went from one index to another. */
static uint32_t distance(uint32_t from, uint32_t to, uint32_t size)
{
	return to >= from ? to - from : to + size - from;
}

/*
 * Is this doorbell for the only command in flight? The emulator is idle then, and it matters when
 * it is called; with more it is at work, and to wait would only keep it waiting.
 */
static bool is_alone(struct vroom_kick *k)
{
	k->in_flight += distance(k->last_tail, k->sq->tail, k->sq->size);
	k->in_flight -= distance(k->last_head, k->cq->head, k->cq->size);
	k->last_tail = k->sq->tail;
	k->last_head = k->cq->head;
	return k->in_flight == 1;
}

void vroom_doorbell_kick(const struct vroom_doorbell *db, uint32_t value)
{
	struct vroom_kick *k = db->kick;
	uint64_t begin, rung;

	if (!k->message) {
		k->transport->ops->kick(k->transport);
	} else if (k->holdoff && is_alone(k)) {
		begin = vroom_holdoff_wait(k->holdoff, &rung);
		k->transport->ops->write(k->transport, k->offset, &value, 4);
		vroom_holdoff_learn(k->holdoff, begin, rung);
	} else {
		/* A failure shows at the next look at the controller's health. */
		k->transport->ops->write(k->transport, k->offset, &value, 4);
	}
}
