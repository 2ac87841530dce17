/* SPDX-License-Identifier: BSD-3-Clause */
/* The allocator against a reference, and what happens to memory that a controller may write to. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "rig.h"

#define PIECES 400

struct piece {
	char *at;
	size_t bytes;
	unsigned seed;
};

static void check_apart(const struct piece *piece, unsigned i)
{
	for (unsigned j = 0; j < PIECES; j++)
		if (j != i && piece[j].at && piece[i].at < piece[j].at + piece[j].bytes &&
		    piece[j].at < piece[i].at + piece[i].bytes)
			fail_msg("%p + %zu and %p + %zu overlap", piece[i].at, piece[i].bytes,
				 piece[j].at, piece[j].bytes);
}

/* Marks both ends of each page; nobody else may write there. */
static void mark(const struct piece *p)
{
	for (size_t at = 0; at < p->bytes; at += 4096)
		*(unsigned *)(p->at + at) = p->seed;
	p->at[p->bytes - 1] = (char)p->seed;
}

static bool is_marked(const struct piece *p)
{
	for (size_t at = 0; at + 4 < p->bytes; at += 4096)
		if (*(unsigned *)(p->at + at) != p->seed)
			return false;
	return p->at[p->bytes - 1] == (char)p->seed;
}

static size_t random_size(uint64_t *random)
{
	uint64_t n = fake_random(random);

	switch (n % 8) {
	case 0: return 1 + (n >> 8) % 4096;
	case 1: return 4096 * (1 + (n >> 8) % 3);
	case 7: return 1 + (n >> 8) % (4u << 20);
	default: return 5 + (n >> 8) % 100000;
	}
}

static void like_the_reference(bool pins)
{
	struct piece piece[PIECES] = { 0 };
	uint64_t random = 4711;
	struct rig r;
	void *first;

	rig_begin(&r, &(struct fake_opts){ .pins = pins }, 0);
	first = rig_alloc(&r, 1);
	for (unsigned step = 0; step < 6000; step++) {
		unsigned i = (unsigned)(fake_random(&random) % PIECES);
		struct piece *p = &piece[i];
		size_t align;

		if (p->at) {
			assert_true(is_marked(p));
			vroom_dma_free(r.c, p->at);
			p->at = NULL;
			continue;
		}
		align = fake_random(&random) % 4 ? 0 : 1ul << fake_random(&random) % 23;
		*p = (struct piece){ NULL, random_size(&random), step };
		p->at = vroom_dma_alloc(r.c, p->bytes, align);
		if (!p->at)
			fail_msg("%zu bytes at %zu: %s", p->bytes, align, vroom_error());
		assert_int_equal((uintptr_t)p->at % (align > 4096 ? align : 4096), 0);
		check_apart(piece, i);
		mark(p);
	}
	for (unsigned i = 0; i < PIECES; i++)
		vroom_dma_free(r.c, piece[i].at);
	/* All has come back: it starts again from the beginning. */
	vroom_dma_free(r.c, first);
	assert_true((char *)rig_alloc(&r, 1) <= (char *)first);
	rig_end(&r);
}

static void random_allocations(void **state)
{
	(void)state;
	like_the_reference(false);
	like_the_reference(true);
}

static void alignments_are_kept(void **state)
{
	struct rig r;

	(void)state;
	for (unsigned scattered = 0; scattered < 2; scattered++) {
		rig_begin(&r, &(struct fake_opts){ .scattered = scattered }, 0);
		for (size_t align = 1; align <= 4u << 20; align *= 2) {
			for (unsigned i = 0; i < 3; i++) {
				void *mem = vroom_dma_alloc(r.c, 4097, align);
				struct vroom_dma_range w;

				assert_non_null(mem);
				assert_int_equal((uintptr_t)mem % align, 0);
				assert_int_equal(vroom_space_find(&r.c->space, mem, &w), 0);
				/* for the controller as well, as far as its memory is in one piece
				 */
				if (align <= VROOM_HUGE_PAGE)
					assert_int_equal(((uintptr_t)mem + w.delta) % align, 0);
			}
		}
		rig_end(&r);
	}
}

static void what_cannot_be_is_refused(void **state)
{
	static const struct {
		size_t bytes, align;
	} cases[] = {
		{ 0, 0 },
		{ SIZE_MAX, 0 },
		{ (size_t)-4096, 0 },
		{ (size_t)-4095, 0 },
		{ SIZE_MAX / 2, 0 },
		{ SIZE_MAX / 2 + 1, 4096 },
		{ SIZE_MAX / 4, 4096 },
		{ 4096, 4097 },
		{ 4096, 6000 },
		{ 4096, SIZE_MAX },
		{ 4096, 1ul << 63 },
		{ 1ul << 62, 1ul << 21 },
		{ 20ul << 40, 0 }, /* more units than a block's word has room for */
		{ 1ul << 46, 0 },
	};
	struct rig r;
	void *mem;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ 0 }, 0);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		vroom_fail(1, "nothing");
		if (vroom_dma_alloc(r.c, cases[i].bytes, cases[i].align))
			fail_msg("%zu bytes at %zu", cases[i].bytes, cases[i].align);
		if (!strcmp(vroom_error(), "nothing"))
			fail_msg("%zu bytes at %zu: no line", cases[i].bytes, cases[i].align);
		/* and it still works */
		mem = rig_alloc(&r, 4096);
		memset(mem, 1, 4096);
		vroom_dma_free(r.c, mem);
	}
	assert_true(vroom_dma_reserve(r.c, SIZE_MAX) < 0);
	assert_true(vroom_dma_reserve(r.c, 1ul << 62) < 0);
	assert_int_equal(vroom_dma_reserve(r.c, 64 << 20), 0);
	vroom_dma_free(r.c, NULL);
	vroom_dma_free(r.c, &r); /* nobody's: nothing happens */
	rig_end(&r);
}

/* Twice freed, or freed in its middle, is nothing that others notice. */
static void wrong_frees_do_no_harm(void **state)
{
	struct rig r;
	char *a, *b, *c;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ 0 }, 0);
	a = rig_alloc(&r, 3 * 4096);
	b = rig_alloc(&r, 4096);
	vroom_dma_free(r.c, a + 4096);
	vroom_dma_free(r.c, a + 1);
	vroom_dma_free(r.c, a);
	vroom_dma_free(r.c, a);
	c = rig_alloc(&r, 3 * 4096);
	assert_ptr_equal(a, c);
	assert_true(b >= c + 3 * 4096 || b + 4096 <= c);
	rig_end(&r);
}

static unsigned regions_for(size_t total, size_t piece)
{
	unsigned regions;
	struct rig r;

	rig_begin(&r, &(struct fake_opts){ .pins = true }, 0);
	for (size_t at = 0; at < total; at += piece)
		rig_alloc(&r, piece);
	regions = r.c->pool.regions;
	assert_int_equal(r.f->mapped, regions);
	rig_end(&r);
	return regions;
}

/* Regions are few, however much is wanted in however many pieces. */
static void regions_grow_geometrically(void **state)
{
	(void)state;
	assert_in_range(regions_for(600ul << 20, 1 << 20), 2, 8);
	assert_in_range(regions_for(600ul << 20, 150 << 20), 2, 6);
}

/* Also where some huge pages are free, but not as many as a region's turn is. */
static void regions_are_few_with_few_huge_pages(void **state)
{
	(void)state;
	for (size_t free = 1; free < 2000; free = free * 3 + 1) {
		fake_huge_bytes = free * VROOM_HUGE_PAGE;
		assert_in_range(regions_for(600ul << 20, 1 << 20), 2, 24);
		fake_huge_bytes = 0;
	}
}

/* What a reservation promised is there, without another region. */
static void reserved_is_there(void **state)
{
	struct rig r;
	unsigned mapped;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ .pins = true }, 0);
	assert_int_equal(vroom_dma_reserve(r.c, 100 << 20), 0);
	mapped = r.f->mapped;
	rig_alloc(&r, 100 << 20);
	assert_int_equal(r.f->mapped, mapped);
	rig_end(&r);
}

/* The transport refuses a region: a line, no allocation, and the pool is as it was. */
static void a_refused_region_is_given_back(void **state)
{
	struct rig r;
	void *mem;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ 0 }, 0);
	r.f->map_fails_in = 1;
	mem = vroom_dma_alloc(r.c, 1ul << 30, 0);
	assert_null(mem);
	assert_non_null(strstr(vroom_error(), "as the test wants it"));
	assert_int_equal(r.c->pool.regions, 1);
	rig_alloc(&r, 1ul << 30);
	rig_end(&r);
}

/* --- suspect memory -------------------------------------------------------------------------- */

static void suspect_memory_is_kept_back(void **state)
{
	struct rig r;
	void *a, *b;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ 0 }, 0);
	a = rig_alloc(&r, 8 * 4096);
	vroom_space_set_suspect(&r.c->space, true);
	vroom_dma_free(r.c, a);
	b = rig_alloc(&r, 8 * 4096);
	assert_ptr_not_equal(a, b);
	for (unsigned i = 0; i < 3; i++) { /* not even in parts */
		char *c = rig_alloc(&r, 4096);

		assert_true(c < (char *)a || c >= (char *)a + 8 * 4096);
	}
	vroom_space_set_suspect(&r.c->space, false);
	assert_ptr_equal(rig_alloc(&r, 8 * 4096), a);
	rig_end(&r);
}

/* Memory that two controllers use is kept back while either is suspect, and when one has gone so.
 */
static void shared_memory_is_kept_back_for_either(void **state)
{
	struct rig r;

	(void)state;
	for (unsigned cut_off = 0; cut_off < 2; cut_off++) {
		struct fake *f = fake_new(&(struct fake_opts){ 0 });
		struct vroom_ctrlr *c = fake_open(f);
		void *a;

		rig_begin(&r, &(struct fake_opts){ 0 }, 0);
		assert_int_equal(vroom_dma_share(c, r.c), 0);
		assert_int_equal(vroom_dma_share(c, r.c), 0);
		a = rig_alloc(&r, 8 * 4096);
		assert_non_null(fake_va(f, vroom_space_iova(&c->space, a), 4096));
		vroom_fail(EIO, "fake: has failed");
		vroom_ctrlr_mark_failed(c, -EIO);
		vroom_dma_free(r.c, a);
		assert_ptr_not_equal(rig_alloc(&r, 8 * 4096), a);
		if (!cut_off) {
			vroom_space_set_suspect(&c->space, false);
			assert_ptr_equal(rig_alloc(&r, 8 * 4096), a);
		}
		fake_close(f, c); /* which cuts it off, so it is known to be off */
		if (cut_off)
			assert_ptr_equal(rig_alloc(&r, 8 * 4096), a);
		rig_end(&r);
	}
}

/* --- dead workers ---------------------------------------------------------------------------- */

static pid_t worker(struct rig *r, void (*work)(struct rig *r))
{
	int ready[2];
	pid_t pid;
	char byte;

	assert_int_equal(pipe(ready), 0);
	pid = fork();
	if (!pid) {
		work(r);
		if (write(ready[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	close(ready[1]);
	return pid;
}

static void end_worker(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void take_all(struct rig *r)
{
	for (unsigned i = 0; i < 2000; i++)
		if (!vroom_dma_alloc(r->c, 64 << 10, 0))
			_exit(1);
}

static void memory_of_the_dead_comes_back(void **state)
{
	struct rig r;
	pid_t pid;
	void *mem;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ 0 }, 0);
	for (unsigned i = 0; i < 10; i++) { /* more than there is, if it did not */
		pid = worker(&r, take_all);
		mem = rig_alloc(&r, 150 << 20); /* no room beside a living one's: a region more */
		vroom_dma_free(r.c, mem);
		end_worker(pid);
	}
	vroom_ctrlr_reclaim(r.c);
	assert_int_equal(r.c->pool.regions, 2);
	rig_end(&r);
}

static void grow_much(struct rig *r)
{
	if (!vroom_dma_alloc(r->c, 300 << 20, 0))
		_exit(1);
}

static void regions_of_the_dead_are_unmapped(void **state)
{
	unsigned mapped, unmapped;
	struct rig r;
	pid_t pid;

	(void)state;
	for (unsigned scattered = 0; scattered < 2; scattered++) {
		rig_begin(&r, &(struct fake_opts){ .scattered = scattered }, 0);
		mapped = r.f->mapped;
		pid = worker(&r, grow_much);
		assert_int_equal(r.f->mapped, mapped + 1);
		vroom_ctrlr_reclaim(r.c);
		assert_int_equal(r.f->unmapped, 0); /* it lives */
		end_worker(pid);
		vroom_space_set_suspect(&r.c->space, true);
		unmapped = r.f->unmapped;
		vroom_ctrlr_reclaim(r.c);
		assert_int_equal(r.f->unmapped, unmapped); /* or may be written to */
		vroom_space_set_suspect(&r.c->space, false);
		vroom_ctrlr_reclaim(r.c);
		assert_int_equal(r.f->unmapped, unmapped + 1);
		vroom_ctrlr_reclaim(r.c);
		assert_int_equal(r.f->unmapped, unmapped + 1);
		rig_end(&r);
	}
}

static void create_pairs(struct rig *r)
{
	struct vroom_qpair *qp;
	struct vroom_io io;

	for (unsigned i = 0; i < 3; i++) {
		if (vroom_qpair_create(r->c, 8, &qp))
			_exit(1);
		vroom_prep_read(&io, &r->ns, vroom_dma_alloc(r->c, 4096, 0), 0, 8, NULL);
		if (vroom_submit(qp, &io))
			_exit(1);
		vroom_ring(qp);
	}
}

/* Queue pairs go first: as long as there are some, the controller may write to the memory. */
static void queue_pairs_of_the_dead_are_deleted(void **state)
{
	struct rig r;
	pid_t pid;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ .qpairs = 3 }, 0);
	for (unsigned i = 0; i < 5; i++) {
		struct vroom_qpair *qp;

		pid = worker(&r, create_pairs);
		assert_int_equal(vroom_qpair_create(r.c, 8, &qp), -ENOSPC);
		end_worker(pid);
		assert_int_equal(vroom_qpair_create(r.c, 8, &qp), 0);
		vroom_qpair_destroy(qp);
	}
	vroom_ctrlr_reclaim(r.c);
	for (unsigned i = 1; i <= 3; i++)
		assert_true(!r.f->q[i].sq_size && !r.f->q[i].cq_size);
	rig_end(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_allocations),
		cmocka_unit_test(alignments_are_kept),
		cmocka_unit_test(what_cannot_be_is_refused),
		cmocka_unit_test(wrong_frees_do_no_harm),
		cmocka_unit_test(regions_grow_geometrically),
		cmocka_unit_test(regions_are_few_with_few_huge_pages),
		cmocka_unit_test(reserved_is_there),
		cmocka_unit_test(a_refused_region_is_given_back),
		cmocka_unit_test(suspect_memory_is_kept_back),
		cmocka_unit_test(shared_memory_is_kept_back_for_either),
		cmocka_unit_test(memory_of_the_dead_comes_back),
		cmocka_unit_test(regions_of_the_dead_are_unmapped),
		cmocka_unit_test(queue_pairs_of_the_dead_are_deleted),
	};

	return run(tests);
}
