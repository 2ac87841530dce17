/* SPDX-License-Identifier: BSD-3-Clause */
#include "rig.h"

#include <errno.h>

void rig_begin(struct rig *r, const struct fake_opts *opts, unsigned depth)
{
	r->f = fake_new(opts);
	r->c = fake_open(r->f);
	r->ns = fake_ns(r->f);
	r->qp = NULL;
	if (depth && vroom_qpair_create(r->c, depth, &r->qp))
		fail_msg("queue pair: %s", vroom_error());
}

void rig_end(struct rig *r)
{
	assert_int_equal(r->f->cq_full, 0);
	vroom_qpair_destroy(r->qp);
	fake_close(r->f, r->c);
}

int rig_drain(struct rig *r, struct vroom_completion *done, int max, bool shuffled)
{
	unsigned idle = 0;
	int count = 0;

	while (count < max && idle < 3) {
		unsigned ran;
		int n;

		vroom_ring(r->qp);
		ran = shuffled ? fake_run_shuffled(r->f, r->qp->qid) : fake_run(r->f, r->qp->qid);
		n = vroom_poll(r->qp, done + count, max - count);
		if (n < 0)
			fail_msg("poll: %d: %s", n, vroom_error());
		count += n;
		idle = ran || n ? 0 : idle + 1;
	}
	return count;
}

unsigned rig_do(struct rig *r, const struct vroom_io *io)
{
	struct vroom_completion done[2];
	int ret = vroom_submit(r->qp, io);

	if (ret)
		fail_msg("submit: %d: %s", ret, vroom_error());
	assert_int_equal(rig_drain(r, done, 2, false), 1);
	assert_ptr_equal(done[0].tag, io->tag);
	return NVME_STATUS_CODE(done[0].status);
}

void *rig_alloc(struct rig *r, size_t bytes)
{
	void *mem = vroom_dma_alloc(r->c, bytes, 0);

	if (!mem)
		fail_msg("%zu bytes: %s", bytes, vroom_error());
	return mem;
}

static unsigned char pattern(size_t at, unsigned seed)
{
	return (unsigned char)((at + seed * 7919u) * 2654435761u >> 13);
}

void fill(void *buf, size_t bytes, unsigned seed)
{
	for (size_t i = 0; i < bytes; i++)
		((unsigned char *)buf)[i] = pattern(i, seed);
}

size_t wrong_at(const void *buf, size_t bytes, unsigned seed)
{
	size_t i = 0;

	while (i < bytes && ((const unsigned char *)buf)[i] == pattern(i, seed))
		i++;
	return i;
}
