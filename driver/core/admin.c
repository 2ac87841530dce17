/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The admin queue: one command at a time, under the lock that all processes share. Its
 * state lives in shared memory, so that a command left behind by a dead process does no
 * more harm than a completion that nobody asked for.
 */
#include <errno.h>
#include <sched.h>

#include "core/internal.h"

int vroom_admin_init(struct vroom_ctrlr *c, unsigned entries)
{
	size_t sq = entries * sizeof(struct nvme_sqe), cq = entries * sizeof(struct nvme_cqe);
	const volatile uint32_t *sleeping;
	int ret;

	c->admin_sq = vroom_dma_alloc(c, sq, c->page_size);
	c->admin_cq = vroom_dma_alloc(c, cq, c->page_size);
	c->admin_buffer = vroom_dma_alloc(c, 2 * c->page_size, c->page_size);
	if (!c->admin_sq || !c->admin_cq || !c->admin_buffer)
		return -ENOMEM;
	memset(c->admin_sq, 0, sq);
	memset(c->admin_cq, 0, cq);
	c->admin_entries = entries;
	c->shared->admin_phase = 1;
	ret = vroom_ctrlr_doorbell(c, 0, false, &c->admin_sq_doorbell, &sleeping);
	if (!ret)
		ret = vroom_ctrlr_doorbell(c, 0, true, &c->admin_cq_doorbell, &sleeping);
	c->admin_sleeping = sleeping;
	return ret;
}

static void ring(struct vroom_ctrlr *c, volatile uint32_t *doorbell, uint32_t value)
{
	/* Release: the entry is visible to the controller before the new index is. */
	__atomic_store_n(doorbell, value, __ATOMIC_RELEASE);
	if (*c->admin_sleeping)
		vroom_ctrlr_ring_slow(c, doorbell, value);
}

/* Waits for the completion of CID; others belong to processes that died and are dropped. */
static int reap(struct vroom_ctrlr *c, uint16_t cid, const struct nvme_sqe *sqe,
		struct nvme_cqe *out)
{
	struct vroom_shared *s = c->shared;
	uint64_t deadline = vroom_now_ms() + c->opts.admin_timeout_ms;
	uint64_t next_look = vroom_now_ms() + 100;

	for (unsigned spins = 0;; spins++) {
		const struct nvme_cqe *cqe = &c->admin_cq[s->admin_head];
		/* Acquire: the rest of the entry is read after its phase. */
		uint32_t dw3 = __atomic_load_n((const uint32_t *)(const void *)&cqe->cid,
					       __ATOMIC_ACQUIRE);

		if ((dw3 >> 16 & 1) == s->admin_phase) {
			*out = *cqe;
			if (++s->admin_head == c->admin_entries) {
				s->admin_head = 0;
				s->admin_phase ^= 1;
			}
			ring(c, c->admin_cq_doorbell, s->admin_head);
			if ((uint16_t)dw3 == cid)
				return 0;
			continue;
		}
		if (spins < 100)
			continue;
		sched_yield();
		if (spins % 64)
			continue;
		if (vroom_now_ms() > next_look) {
			int ret = vroom_ctrlr_health(c);

			if (ret)
				return ret;
			next_look = vroom_now_ms() + 100;
		}
		if (vroom_now_ms() > deadline) {
			vroom_fail(ETIMEDOUT,
				   "%s: admin command %02xh has no completion after %u "
				   "ms; the controller is stuck",
				   c->address.text, sqe->opcode, c->opts.admin_timeout_ms);
			return vroom_ctrlr_mark_failed(c, -ETIMEDOUT);
		}
	}
}

int vroom_admin_locked(struct vroom_ctrlr *c, const struct nvme_sqe *sqe, void *buf, size_t bytes,
		       bool write, struct nvme_cqe *cqe)
{
	struct vroom_shared *s = c->shared;
	struct nvme_sqe *entry = &c->admin_sq[s->admin_tail];
	struct nvme_cqe done;
	int ret;

	if (bytes > 2 * c->page_size)
		return vroom_fail(EINVAL,
				  "%s: admin command %02xh moves %zu bytes, at most %zu go "
				  "at once",
				  c->address.text, sqe->opcode, bytes, 2 * c->page_size);
	ret = vroom_ctrlr_failed(c);
	if (ret)
		return ret;
	if (bytes && write)
		memcpy(c->admin_buffer, buf, bytes);
	*entry = *sqe;
	entry->cid = s->admin_cid;
	if (bytes)
		vroom_prp_build(c, c->admin_buffer, bytes, NULL, &entry->prp1, &entry->prp2);
	s->admin_cid = (uint16_t)((s->admin_cid + 1) & 0x7fff);
	s->admin_tail = (s->admin_tail + 1) % c->admin_entries;
	ring(c, c->admin_sq_doorbell, s->admin_tail);
	ret = reap(c, entry->cid, sqe, &done);
	if (ret)
		return ret;
	done.status &= 0xfffe;
	if (cqe)
		*cqe = done;
	else if (done.status)
		return vroom_fail(EIO, "%s: admin command %02xh failed: %s", c->address.text,
				  sqe->opcode, vroom_status_str(done.status));
	if (bytes && !write && !done.status)
		memcpy(buf, c->admin_buffer, bytes);
	return 0;
}

int vroom_admin(struct vroom_ctrlr *c, const struct nvme_sqe *sqe, void *buf, size_t bytes,
		bool write, struct nvme_cqe *cqe)
{
	int ret;

	vroom_lock(&c->shared->lock);
	ret = vroom_admin_locked(c, sqe, buf, bytes, write, cqe);
	vroom_unlock(&c->shared->lock);
	return ret;
}

int vroom_admin_identify(struct vroom_ctrlr *c, uint8_t cns, uint32_t nsid, void *buf)
{
	struct nvme_sqe sqe = { .opcode = NVME_ADMIN_IDENTIFY, .nsid = nsid, .cdw10 = cns };

	return vroom_admin(c, &sqe, buf, NVME_IDENTIFY_BYTES, false, NULL);
}
