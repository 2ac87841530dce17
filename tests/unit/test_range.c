/* SPDX-License-Identifier: BSD-3-Clause */
/* What a controller sees of memory: registered, in many pieces, and taken away again. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "rig.h"

#define CHUNKS 64
#define CHUNK  65536ul

static char *mem;

static int begin(void **state)
{
	(void)state;
	mem = aligned_alloc(1 << 21, CHUNKS * CHUNK);
	return mem ? 0 : -1;
}

static int end(void **state)
{
	(void)state;
	free(mem);
	return 0;
}

static bool visible(struct rig *r, const char *at)
{
	struct vroom_dma_range w;

	if (vroom_space_find(&r->c->space, at, &w))
		return false;
	assert_true((uintptr_t)at - w.base < w.bytes);
	assert_ptr_equal(fake_va(r->f, (uintptr_t)at + w.delta, 1), at);
	return true;
}

/* Chunks come and go in any order; each byte's visibility is as a table says. */
static void any_order(void **state)
{
	bool registered[CHUNKS] = { false };
	struct rig r;

	(void)state;
	for (unsigned scattered = 0; scattered < 2; scattered++) {
		rig_begin(&r, &(struct fake_opts){ .scattered = scattered }, 0);
		for (unsigned step = 0; step < 400; step++) {
			unsigned i = (unsigned)(fake_random(&r.f->random) % CHUNKS);
			char *at = mem + i * CHUNK;
			int ret = registered[i] ? vroom_dma_unregister(r.c, at, CHUNK)
						: vroom_dma_register(r.c, at, CHUNK, -1, 0);

			assert_int_equal(ret, 0);
			registered[i] = !registered[i];
			for (unsigned j = 0; j < CHUNKS; j++) {
				assert_int_equal(visible(&r, mem + j * CHUNK), registered[j]);
				assert_int_equal(visible(&r, mem + j * CHUNK + CHUNK - 1),
						 registered[j]);
			}
			/* the fake's tables are not for so many */
			if (r.f->maps > FAKE_MAPS - 4 || r.f->fragments > FAKE_FRAGMENTS - 64)
				break;
		}
		for (unsigned j = 0; j < CHUNKS; j++)
			if (registered[j])
				assert_int_equal(vroom_dma_unregister(r.c, mem + j * CHUNK, CHUNK),
						 0);
		memset(registered, 0, sizeof(registered));
		assert_int_equal(r.f->mapped - r.f->unmapped, 1);
		rig_end(&r);
	}
}

/* Rising, falling: neighbours are not mixed up. */
static void sorted_and_unsorted(void **state)
{
	struct rig r;

	(void)state;
	for (unsigned order = 0; order < 3; order++) {
		rig_begin(&r, &(struct fake_opts){ 0 }, 0);
		for (unsigned i = 0; i < CHUNKS; i++) {
			unsigned at = order == 0   ? i
				      : order == 1 ? CHUNKS - 1 - i
						   : i * 37 % CHUNKS;

			assert_int_equal(vroom_dma_register(r.c, mem + at * CHUNK, CHUNK, -1, 0),
					 0);
		}
		for (unsigned i = 0; i < CHUNKS * 16; i++)
			assert_true(visible(&r, mem + i * 4096));
		assert_false(visible(&r, mem + CHUNKS * CHUNK));
		assert_false(visible(&r, mem - 1));
		for (unsigned i = 0; i < CHUNKS; i += 2)
			assert_int_equal(vroom_dma_unregister(r.c, mem + i * CHUNK, CHUNK), 0);
		for (unsigned i = 0; i < CHUNKS; i++)
			assert_int_equal(visible(&r, mem + i * CHUNK), i % 2);
		rig_end(&r);
	}
}

static void overlaps_are_refused(void **state)
{
	static const struct {
		unsigned first, pages;
		int ret;
	} cases[] = {
		{ 4, 4, -EEXIST }, { 3, 1, 0 },	       { 8, 1, 0 },	  { 3, 2, -EEXIST },
		{ 7, 2, -EEXIST }, { 0, 16, -EEXIST }, { 5, 2, -EEXIST }, { 4, 1, -EEXIST },
		{ 7, 1, -EEXIST }, { 0, 4, 0 },	       { 8, 8, 0 },
	};
	struct rig r;
	char *dma;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ 0 }, 0);
	assert_int_equal(vroom_dma_register(r.c, mem + 4 * 4096, 4 * 4096, -1, 0), 0);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char *at = mem + cases[i].first * 4096;
		size_t bytes = cases[i].pages * 4096ul;

		assert_int_equal(vroom_dma_register(r.c, at, bytes, -1, 0), cases[i].ret);
		if (!cases[i].ret)
			assert_int_equal(vroom_dma_unregister(r.c, at, bytes), 0);
	}
	dma = rig_alloc(&r, 4096);
	assert_int_equal(vroom_dma_register(r.c, dma, 4096, -1, 0), -EEXIST);
	rig_end(&r);
}

static void what_cannot_be_registered_is_refused(void **state)
{
	struct rig r;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ 0 }, 0);
	assert_int_equal(vroom_dma_register(r.c, NULL, 4096, -1, 0), -EINVAL);
	assert_int_equal(vroom_dma_register(r.c, mem, 0, -1, 0), -EINVAL);
	assert_int_equal(vroom_dma_register(r.c, mem + 512, 4096, -1, 0), -EINVAL);
	assert_int_equal(vroom_dma_register(r.c, mem, 4095, -1, 0), -EINVAL);
	assert_int_equal(vroom_dma_unregister(r.c, mem, 4096), -ENOENT);
	assert_int_equal(vroom_dma_register(r.c, mem, 8192, -1, 0), 0);
	assert_int_equal(vroom_dma_unregister(r.c, mem, 4096), -ENOENT);
	assert_int_equal(vroom_dma_unregister(r.c, mem + 4096, 4096), -ENOENT);
	assert_true(visible(&r, mem + 8191));
	assert_int_equal(vroom_dma_unregister(r.c, mem, 8192), 0);
	assert_int_equal(vroom_dma_unregister(r.c, mem, 8192), -ENOENT);
	rig_end(&r);
}

/* More pieces than there are ranges: refused as a whole, and nothing of it stays. */
static void too_many_pieces(void **state)
{
	const size_t bytes = 2048 * 4096;
	char *large = aligned_alloc(4096, bytes + 4096);
	struct rig r;
	unsigned ranges;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ .scattered = true }, 0);
	ranges = r.c->space.ranges;
	for (unsigned i = 0; i < 3; i++) {
		char *at = large + ((uintptr_t)large % 8192 ? 0 : 4096); /* pages of 4 KiB */

		assert_int_equal(vroom_dma_register(r.c, at, bytes, -1, 0), -ENOMEM);
		assert_int_equal(r.c->space.ranges, ranges);
		assert_int_equal(r.f->unmapped, i + 1);
		assert_false(visible(&r, at));
	}
	assert_int_equal(vroom_dma_register(r.c, mem, CHUNK, -1, 0), 0);
	rig_end(&r);
	free(large);
}

/* More registrations than there are places for: refused, and again possible after one went. */
static void too_many_registrations(void **state)
{
	struct rig r;
	unsigned count = 0;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ 0 }, 0);
	while (count < CHUNKS * 16 && !vroom_dma_register(r.c, mem + count * 4096, 4096, -1, 0))
		count++;
	assert_int_equal(count, VROOM_MAX_MAPPINGS - 1);
	assert_int_equal(vroom_dma_unregister(r.c, mem + 7 * 4096, 4096), 0);
	assert_int_equal(vroom_dma_register(r.c, mem + count * 4096, 4096, -1, 0), 0);
	rig_end(&r);
}

/* The transport says no. */
static void a_refused_mapping_leaves_nothing(void **state)
{
	struct rig r;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ 0 }, 0);
	r.f->map_fails_in = 1;
	assert_int_equal(vroom_dma_register(r.c, mem, CHUNK, -1, 0), -ENOSPC);
	assert_false(visible(&r, mem));
	assert_int_equal(vroom_dma_unregister(r.c, mem, CHUNK), -ENOENT);
	assert_int_equal(vroom_dma_register(r.c, mem, CHUNK, -1, 0), 0);
	rig_end(&r);
}

/* I/O on registered memory does not copy. */
static void registered_memory_is_used_in_place(void **state)
{
	struct vroom_completion done;
	struct vroom_io io;
	struct rig r;

	(void)state;
	for (unsigned registered = 0; registered < 2; registered++) {
		rig_begin(&r, &(struct fake_opts){ 0 }, 4);
		if (registered)
			assert_int_equal(vroom_dma_register(r.c, mem, CHUNK, -1, 0), 0);
		fill(r.f->disk, CHUNK, registered);
		vroom_prep_read(&io, &r.ns, mem, 0, CHUNK / 512, NULL);
		assert_int_equal(vroom_submit(r.qp, &io), 0);
		vroom_ring(r.qp);
		fake_fetch(r.f, 1);
		assert_int_equal(fake_va(r.f, fake_held_sqe(r.f, 1, 0)->prp1, 4096) == mem,
				 registered);
		assert_int_equal(rig_drain(&r, &done, 1, false), 1);
		assert_filled(mem, CHUNK, registered);
		rig_end(&r);
	}
}

/*
 * Once it is unregistered it is memory like any other: a queue pair that used it must not go on to
 * name its old IOVA, which may be another's by now.
 */
static void unregistered_memory_is_forgotten(void **state)
{
	struct vroom_io io;
	struct rig r;
	char *other;
	bool kept;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ 0 }, 4);
	assert_int_equal(vroom_dma_register(r.c, mem, CHUNK, -1, 0), 0);
	vroom_prep_read(&io, &r.ns, mem, 0, 8, NULL);
	for (unsigned i = 0; i < 2; i++) /* its range is the queue pair's now */
		assert_int_equal(rig_do(&r, &io), 0);
	assert_int_equal(vroom_dma_unregister(r.c, mem, CHUNK), 0);
	other = mem + 8 * CHUNK;
	memset(other, 0x11, CHUNK);
	assert_int_equal(vroom_dma_register(r.c, other, CHUNK, -1, 0), 0);
	fill(r.f->disk, 4096, 9);
	kept = rig_do(&r, &io) == 0 && wrong_at(mem, 4096, 9) == 4096 && other[0] == 0x11;
	r.f->faulted = r.f->fault[0] = 0;
	rig_end(&r);
	assert_true(kept);
}

#define on_memory(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		on_memory(any_order),
		on_memory(sorted_and_unsorted),
		on_memory(overlaps_are_refused),
		on_memory(what_cannot_be_registered_is_refused),
		on_memory(too_many_pieces),
		on_memory(too_many_registrations),
		on_memory(a_refused_mapping_leaves_nothing),
		on_memory(registered_memory_is_used_in_place),
		on_memory(unregistered_memory_is_forgotten),
	};

	return run(tests);
}
