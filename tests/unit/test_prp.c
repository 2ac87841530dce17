/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * PRP entries and lists, read back by fake_walk(): every offset, length and page size, in memory
 * that is contiguous for the controller and in memory that is not.
 */
#include <stdlib.h>
#include <string.h>

#include "rig.h"

struct walked {
	char *at;
	bool wrong;
};

static void each(void *arg, char *va, size_t bytes)
{
	struct walked *w = arg;

	w->wrong |= va != w->at;
	w->at = va + bytes;
}

/* Submits a read into BYTES at BUF, and walks over what the controller gets. */
static void check(struct rig *r, char *buf, size_t bytes)
{
	struct walked w = { buf, false };
	struct vroom_completion done;
	struct vroom_io io;

	vroom_prep_read(&io, &r->ns, buf, 0, bytes >> r->ns.lba_shift, NULL);
	assert_int_equal(vroom_submit(r->qp, &io), 0);
	vroom_ring(r->qp);
	assert_int_equal(fake_fetch(r->f, 1), 1);
	if (!fake_walk(r->f, fake_held_sqe(r->f, 1, 0), bytes, each, &w) || w.wrong ||
	    w.at != buf + bytes)
		fail_msg("%zu bytes at offset %zu of a page of %zu: %s", bytes,
			 (size_t)buf & (r->c->page_size - 1), r->c->page_size, r->f->fault);
	/* PRP2 is reserved, so zero, where PRP1 is all. */
	if (((uintptr_t)buf & (r->c->page_size - 1)) + bytes <= r->c->page_size)
		assert_int_equal(fake_held_sqe(r->f, 1, 0)->prp2, 0);
	fake_refuse(r->f, 1, 0, 0); /* nothing is transferred */
	assert_int_equal(vroom_poll(r->qp, &done, 1), 1);
}

static void every_length(struct rig *r, char *buf, size_t page)
{
	size_t block = r->ns.lba_size, most = r->c->max_transfer;
	const size_t lengths[] = {
		block,	  page,	    page + block, 2 * page, 2 * page + block,
		3 * page, 7 * page, most - block, most,
	};

	for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
		if (lengths[i] <= most)
			check(r, buf, lengths[i]);
}

static void page_size(unsigned shift, bool scattered)
{
	size_t page = 1ul << shift;
	struct rig r;
	char *mem;

	rig_begin(&r,
		  &(struct fake_opts){
			  .page_shift = shift, .scattered = scattered, .blocks = 1 << 16 },
		  2);
	assert_int_equal(r.c->page_size, page);
	mem = rig_alloc(&r, r.c->max_transfer + 2 * page);
	assert_int_equal((uintptr_t)mem % page, 0);
	/* Every dword of the first page for short ones; edges for all lengths. */
	for (size_t offset = 0; offset<page; offset += page> 8192 ? 60 : 4) {
		check(&r, mem + offset, 512);
		check(&r, mem + offset, page);
		check(&r, mem + offset, 2 * page);
		if (offset % 256 == 0)
			check(&r, mem + offset, 5 * page);
	}
	for (int edge = -8; edge <= 8; edge += 4) {
		every_length(&r, mem + page + edge, page);
		every_length(&r, mem + page / 2 + edge, page);
		every_length(&r, mem + page - 512 + edge, page);
	}
	rig_end(&r);
}

static void linear_memory(void **state)
{
	(void)state;
	for (unsigned shift = 12; shift <= 16; shift++)
		page_size(shift, false);
}

static void scattered_memory(void **state)
{
	(void)state;
	for (unsigned shift = 12; shift <= 16; shift++)
		page_size(shift, true);
}

/* Around each border between pages that are not neighbours for the controller. */
static void borders_of_scattered_pages(void **state)
{
	struct rig r;
	char *mem;

	(void)state;
	for (unsigned shift = 12; shift <= 16; shift += 2) {
		rig_begin(
			&r,
			&(struct fake_opts){ .page_shift = shift, .scattered = true, .pins = true },
			2);
		mem = vroom_dma_alloc(r.c, 16 << 20, 2 << 20);
		assert_non_null(mem);
		for (unsigned i = 1; i < 8; i++)
			for (long before = 0; before <= 3l << shift; before += 1l << (shift - 2))
				for (size_t n = 512; n <= 16ul << shift && n <= r.c->max_transfer;
				     n *= 2)
					check(&r, mem + i * (2ul << 20) - before, n);
		rig_end(&r);
	}
}

/* Memory registered in pages of 4 KiB: a larger page of the controller's may be in two places. */
static void registered_memory_in_small_pages(void **state)
{
	const size_t bytes = 1 << 20;
	char *mem = aligned_alloc(1 << 16, bytes + (1 << 16)), *at;
	struct vroom_io io;
	struct rig r;

	(void)state;
	for (unsigned shift = 12; shift <= 16; shift++) {
		rig_begin(&r, &(struct fake_opts){ .page_shift = shift, .scattered = true }, 4);
		at = mem + 4096;
		assert_int_equal(vroom_dma_register(r.c, at, bytes, -1, 0), 0);
		for (unsigned i = 0; i < 200; i++) {
			uint64_t random = fake_random(&r.f->random);
			size_t offset = random % (bytes - 65536) & ~3ul,
			       n = 1 + (random >> 40) % 128;

			fill(r.f->disk, n * 512, i);
			vroom_prep_read(&io, &r.ns, at + offset, 0, n, NULL);
			assert_int_equal(rig_do(&r, &io), 0);
			assert_filled(at + offset, n * 512, i);
		}
		assert_int_equal(vroom_dma_unregister(r.c, at, bytes), 0);
		rig_end(&r);
	}
	free(mem);
}

/* Pieces that are whole pages are not copied; the list names them in their order. */
static void pieces_in_place(void **state)
{
	struct vroom_completion done;
	struct iovec iov[16];
	struct vroom_io io;
	struct rig r;
	char *mem;

	(void)state;
	for (unsigned scattered = 0; scattered < 2; scattered++) {
		rig_begin(&r, &(struct fake_opts){ .scattered = scattered }, 2);
		mem = rig_alloc(&r, 64 * 4096);
		for (unsigned count = 1; count <= 16; count++) {
			const uint64_t *list;
			struct nvme_sqe *sqe;

			for (unsigned i = 0; i < count; i++)
				iov[i] = (struct iovec){ mem + (63 - 3 * i) * 4096, 4096 };
			iov[0].iov_base = (char *)iov[0].iov_base + 512; /* only its end matters */
			iov[0].iov_len -= 512;
			vroom_prep_readv(&io, &r.ns, iov, count, 0, 8 * count - 1, NULL);
			assert_int_equal(vroom_submit(r.qp, &io), 0);
			vroom_ring(r.qp);
			fake_fetch(r.f, 1);
			sqe = fake_held_sqe(r.f, 1, 0);
			assert_ptr_equal(fake_va(r.f, sqe->prp1, 3584), iov[0].iov_base);
			list = count == 2  ? &sqe->prp2
			       : count > 2 ? fake_va(r.f, sqe->prp2, 8)
					   : NULL;
			for (unsigned i = 1; i < count; i++)
				assert_ptr_equal(fake_va(r.f, list[i - 1], 4096), iov[i].iov_base);
			assert_int_equal(rig_drain(&r, &done, 1, false), 1);
		}
		rig_end(&r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(linear_memory),
		cmocka_unit_test(scattered_memory),
		cmocka_unit_test(borders_of_scattered_pages),
		cmocka_unit_test(registered_memory_in_small_pages),
		cmocka_unit_test(pieces_in_place),
	};

	return run(tests);
}
