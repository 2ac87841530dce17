/* SPDX-License-Identifier: BSD-3-Clause */
/* Queues of every size: they wrap, phases turn, doorbells are right, and the CQ is never full. */
#include <errno.h>

#include "fake.h"
#include "unit.h"

struct setup {
	unsigned entries; /* CAP.MQES + 1 */
	unsigned depth;
	bool messages;
	unsigned dstrd;
};

struct queue {
	struct fake *f;
	struct vroom_ctrlr *c;
	struct vroom_qpair *qp;
	struct vroom_ns ns;
	char *buf;
	uint64_t next, submitted, seen; /* tags: 1, 2, ...; the sum of those that came back */
	uint64_t random;
};

static void begin(struct queue *q, const struct setup *s)
{
	*q = (struct queue){ .random = s->entries * 7919u + s->depth };
	q->f = fake_new(&(struct fake_opts){
		.queue_entries = s->entries, .messages = s->messages, .dstrd = s->dstrd });
	q->c = fake_open(q->f);
	q->ns = fake_ns(q->f);
	assert_int_equal(vroom_qpair_create(q->c, s->depth, &q->qp), 0);
	q->buf = vroom_dma_alloc(q->c, 4096, 0);
	assert_non_null(q->buf);
}

static void end(struct queue *q)
{
	assert_int_equal(q->f->cq_full, 0);
	vroom_dma_free(q->c, q->buf);
	vroom_qpair_destroy(q->qp);
	fake_close(q->f, q->c);
}

/* Submits N, or until the queue pair is full. */
static unsigned submit(struct queue *q, unsigned n)
{
	struct vroom_io io;
	unsigned i;
	int ret = 0;

	for (i = 0; i < n && !ret; i++) {
		uint64_t block = q->next % q->ns.blocks;

		vroom_prep_read(&io, &q->ns, q->buf, block, 1, (void *)(uintptr_t)(q->next + 1));
		ret = vroom_submit(q->qp, &io);
		if (ret)
			break;
		q->submitted += ++q->next;
	}
	assert_true(!ret || ret == -EAGAIN);
	return i;
}

/* Polls for up to MAX; tags are added up, and the result must be of the same command. */
static int poll_some(struct queue *q, int max)
{
	struct vroom_completion done[64];
	int n = vroom_poll(q->qp, done, max < 64 ? max : 64);

	if (n < 0)
		fail_msg("poll: %d: %s", n, vroom_error());
	for (int i = 0; i < n; i++) {
		uint64_t tag = (uintptr_t)done[i].tag;

		assert_int_equal(done[i].status, 0);
		assert_int_equal(done[i].result, (tag - 1) % q->ns.blocks);
		q->seen += tag;
	}
	return n;
}

/* Random bursts until ROUNDS times the larger queue went through. */
static void traffic(struct queue *q, unsigned rounds)
{
	uint64_t want = (uint64_t)q->qp->cq.size * rounds;

	while (q->next < want) {
		submit(q, 1 + (unsigned)(fake_random(&q->random) % q->qp->depth));
		if (fake_random(&q->random) % 4 == 0)
			continue;
		vroom_ring(q->qp);
		fake_fetch(q->f, 1);
		for (unsigned n = fake_held(q->f, 1), left = n,
			      keep = (unsigned)(fake_random(&q->random) % (n / 4 + 2));
		     left > keep; left--)
			assert_true(
				fake_complete(q->f, 1, (unsigned)(fake_random(&q->random) % left)));
		while (fake_random(&q->random) % 4 && poll_some(q, 1 + q->random % 64))
			;
	}
	vroom_ring(q->qp);
	fake_run(q->f, 1);
	while (poll_some(q, 64))
		;
	assert_int_equal(q->seen, q->submitted);
	assert_int_equal(poll_some(q, 64), 0);
}

static void one(const struct setup *s, unsigned rounds)
{
	struct queue q;

	begin(&q, s);
	assert_true(q.qp->sq.size <= s->entries && q.qp->cq.size <= s->entries);
	assert_true(vroom_qpair_depth(q.qp) == (s->depth < s->entries ? s->depth : s->entries - 1));
	/* It holds its depth, and not one more. */
	assert_int_equal(submit(&q, s->depth + 8), vroom_qpair_depth(q.qp));
	traffic(&q, rounds);
	end(&q);
}

static void every_small_size(bool messages)
{
	for (unsigned entries = 2; entries <= 70; entries++) {
		/* SQ and CQ of the same, minimal, size */
		one(&(struct setup){ entries, 1024, messages, entries % 3 }, 5);
		/* a CQ of the size that MQES allows, and a smaller SQ */
		one(&(struct setup){ entries, entries / 2, messages, 0 }, 5);
		/* no limit: the CQ is as large as the driver likes */
		one(&(struct setup){ 1024, entries - 1, messages, 0 }, 5);
	}
}

static void wraps_at_every_size_with_mapped_doorbells(void **state)
{
	(void)state;
	every_small_size(false);
}

static void wraps_at_every_size_with_message_doorbells(void **state)
{
	(void)state;
	every_small_size(true);
}

static void wraps_at_large_sizes(void **state)
{
	static const struct setup setups[] = {
		{ 256, 255, false, 0 },	   { 1000, 999, true, 0 },    { 4096, 2047, false, 1 },
		{ 4096, 4095, false, 0 },  { 65536, 1000, false, 0 }, { 65536, 65535, false, 0 },
		{ 65536, 32767, true, 2 },
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(setups) / sizeof(setups[0]); i++)
		one(&setups[i], SANITIZED ? 2 : 3);
}

/* With a CQ that is larger than what can be outstanding, its doorbell is rung seldom. */
static void head_doorbell_is_rung_as_seldom_as_can_be(void **state)
{
	struct queue q;
	unsigned rings;

	(void)state;
	begin(&q, &(struct setup){ 1024, 31, true, 0 }); /* SQ 32, CQ 64: slack 32 */
	rings = q.f->cq_rings;
	for (unsigned i = 0; i < 3300; i++) {
		assert_int_equal(submit(&q, 1), 1);
		vroom_ring(q.qp);
		assert_int_equal(fake_run(q.f, 1), 1);
		assert_int_equal(poll_some(&q, 1), 1);
	}
	assert_int_equal(q.f->cq_rings - rings, 3300 / 33);
	end(&q);
}

/* One doorbell for all that was submitted, and none for nothing. */
static void ring_writes_one_doorbell(void **state)
{
	struct queue q;
	unsigned rings;

	(void)state;
	begin(&q, &(struct setup){ 64, 63, true, 0 });
	rings = q.f->sq_rings;
	vroom_ring(q.qp);
	assert_int_equal(q.f->sq_rings, rings);
	submit(&q, 40);
	assert_int_equal(fake_fetch(q.f, 1), 0); /* not rung: not seen */
	vroom_ring(q.qp);
	vroom_ring(q.qp);
	assert_int_equal(q.f->sq_rings, rings + 1);
	assert_int_equal(fake_run(q.f, 1), 40);
	assert_int_equal(poll_some(&q, 64), 40);
	end(&q);
}

/* A completion of what is not outstanding ends the queue pair, and is no command's. */
static void foreign_completion_is_refused(void **state)
{
	static const uint16_t cids[] = { 5, 62, 63, 64, 0xfffe, 0xffff };
	struct vroom_completion done[4];
	struct vroom_io io;
	struct queue q;

	(void)state;
	for (unsigned i = 0; i < sizeof(cids) / sizeof(cids[0]); i++) {
		begin(&q, &(struct setup){ 64, 63, false, 0 });
		submit(&q, 2);
		vroom_ring(q.qp);
		fake_fetch(q.f, 1);
		fake_post(q.f, 1, cids[i], 0, 0);
		assert_int_equal(vroom_poll(q.qp, done, 4), -EPROTO);
		assert_int_equal(vroom_poll(q.qp, done, 4), -EPROTO);
		vroom_prep_flush(&io, &q.ns, NULL);
		assert_int_equal(vroom_submit(q.qp, &io), -EPROTO);
		end(&q);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wraps_at_every_size_with_mapped_doorbells),
		cmocka_unit_test(wraps_at_every_size_with_message_doorbells),
		cmocka_unit_test(wraps_at_large_sizes),
		cmocka_unit_test(head_doorbell_is_rung_as_seldom_as_can_be),
		cmocka_unit_test(ring_writes_one_doorbell),
		cmocka_unit_test(foreign_completion_is_refused),
	};

	return run(tests);
}
