/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests that are more than one command, or whose memory the controller does not reach. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "rig.h"

#define KIB 1024ul

/* --- splits ---------------------------------------------------------------------------------- */

static void splits_at_every_mdts_and_size(void **state)
{
	static const unsigned blocks[] = { 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 255, 1000, 2048 };
	struct vroom_io io;
	struct rig r;

	(void)state;
	for (unsigned mdts = 1; mdts <= 6; mdts++) {
		char *buf;

		rig_begin(&r, &(struct fake_opts){ .mdts = mdts }, 8);
		assert_int_equal(r.c->max_transfer, 4096u << mdts);
		buf = rig_alloc(&r, 2048 * 512);
		for (unsigned i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++) {
			size_t bytes = blocks[i] * 512;

			fill(buf, bytes, i);
			vroom_prep_write(&io, &r.ns, buf, 5, blocks[i], buf);
			assert_int_equal(rig_do(&r, &io), 0);
			assert_filled(r.f->disk + 5 * 512, bytes, i);
			memset(buf, 0, bytes);
			vroom_prep_read(&io, &r.ns, buf, 5, blocks[i], buf);
			assert_int_equal(rig_do(&r, &io), 0);
			assert_filled(buf, bytes, i);
			vroom_prep_compare(&io, &r.ns, buf, 5, blocks[i], buf);
			assert_int_equal(rig_do(&r, &io), 0);
			buf[bytes - 1] ^= 1;
			assert_int_equal(rig_do(&r, &io), NVME_SC_COMPARE_FAILURE);
		}
		rig_end(&r);
	}
}

/* FUA is every part's. */
static void parts_keep_the_flags(void **state)
{
	struct vroom_completion done;
	struct vroom_io io;
	struct rig r;
	void *buf;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ .mdts = 1 }, 64);
	buf = rig_alloc(&r, 64 * KIB);
	vroom_prep_write(&io, &r.ns, buf, 0, 128, NULL);
	vroom_prep_fua(&io);
	assert_int_equal(vroom_submit(r.qp, &io), 0);
	vroom_ring(r.qp);
	assert_int_equal(fake_fetch(r.f, 1), 8);
	for (unsigned i = 0; i < 8; i++) {
		assert_true(fake_held_sqe(r.f, 1, i)->cdw12 & NVME_RW_FUA);
		assert_int_equal(nvme_sqe_nlb(fake_held_sqe(r.f, 1, i)), 16);
	}
	assert_int_equal(rig_drain(&r, &done, 1, false), 1);
	rig_end(&r);
}

/* Large and small ones beside each other, in whatever order the parts complete. */
static void parts_complete_in_any_order(void **state)
{
	struct vroom_completion done[64];
	struct vroom_io io;
	struct rig r;
	char *buf;

	(void)state;
	for (unsigned round = 0; round < 40; round++) {
		unsigned count = 0, depth = 1 + round % 7, seen = 0;

		rig_begin(&r, &(struct fake_opts){ .mdts = 1, .queue_entries = depth + 1 }, depth);
		buf = rig_alloc(&r, 2100 * 512);
		fill(r.f->disk, 2100 * 512, round);
		r.f->random += round * 77777;
		for (unsigned at = 0; at < 2000;) {
			unsigned nlb = 1 + (unsigned)(fake_random(&r.f->random) % 100);
			int ret;

			vroom_prep_read(&io, &r.ns, buf + at * 512, at, nlb,
					(void *)(uintptr_t)(1 + count));
			while ((ret = vroom_submit(r.qp, &io)) == -EAGAIN) {
				int n = rig_drain(&r, done, 1, true);

				assert_int_equal(n, 1);
				seen++;
			}
			assert_int_equal(ret, 0);
			count++;
			at += nlb;
			if (at >= 2000)
				seen += (unsigned)rig_drain(&r, done, 64, true);
		}
		assert_int_equal(seen, count);
		assert_filled(buf, 2000 * 512, round);
		rig_end(&r);
	}
}

/* The first error is the request's status, and nothing of it is submitted after that. */
static void error_in_a_part(void **state)
{
	struct vroom_completion done[2];
	struct vroom_io io;
	struct rig r;
	void *buf;

	(void)state;
	for (unsigned failing = 0; failing < 8; failing++) {
		rig_begin(&r, &(struct fake_opts){ .mdts = 1 }, 4);
		buf = rig_alloc(&r, 64 * KIB);
		vroom_prep_read(&io, &r.ns, buf, 0, 128, &r);
		assert_int_equal(vroom_submit(r.qp, &io), 0);
		for (unsigned part = 0; part < 8; part++) {
			vroom_ring(r.qp);
			if (!fake_fetch(r.f, 1))
				break;
			if (part == failing)
				fake_refuse(r.f, 1, 0, NVME_SC_UNRECOVERED_READ);
			else
				fake_complete(r.f, 1, 0);
			if (part > failing)
				assert_true(fake_held(r.f, 1) < 4);
			if (fake_held(r.f, 1))
				assert_int_equal(vroom_poll(r.qp, done, 2), 0);
		}
		assert_int_equal(rig_drain(&r, done, 2, false), 1);
		assert_ptr_equal(done[0].tag, &r);
		assert_int_equal(NVME_STATUS_CODE(done[0].status), NVME_SC_UNRECOVERED_READ);
		/* and the queue pair is as before */
		vroom_prep_read(&io, &r.ns, buf, 0, 128, &r);
		assert_int_equal(rig_do(&r, &io), 0);
		rig_end(&r);
	}
}

/* While parts wait for slots nothing else gets in, and once they have theirs it does. */
static void full_while_splitting(void **state)
{
	struct vroom_completion done[8];
	struct vroom_io io, small;
	struct rig r;
	char *buf;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ .mdts = 1 }, 4);
	buf = rig_alloc(&r, 64 * KIB);
	vroom_prep_read(&small, &r.ns, buf, 0, 1, (void *)1);
	assert_int_equal(vroom_submit(r.qp, &small), 0);
	vroom_prep_read(&io, &r.ns, buf, 0, 80, (void *)2); /* 5 parts for 3 slots */
	assert_int_equal(vroom_submit(r.qp, &io), 0);
	assert_int_equal(vroom_submit(r.qp, &small), -EAGAIN);
	vroom_ring(r.qp);
	assert_int_equal(fake_fetch(r.f, 1), 4);
	fake_complete(r.f, 1, 0); /* the small one: its slot is the next part's */
	assert_int_equal(vroom_poll(r.qp, done, 8), 1);
	assert_ptr_equal(done[0].tag, (void *)1);
	assert_int_equal(vroom_submit(r.qp, &small), -EAGAIN);
	assert_int_equal(fake_fetch(r.f, 1), 4);
	fake_complete(r.f, 1, 3);
	assert_int_equal(vroom_poll(r.qp, done, 8), 0);
	assert_int_equal(fake_fetch(r.f, 1), 4);
	fake_complete(r.f, 1, 1); /* all parts are out: a slot is free */
	assert_int_equal(vroom_poll(r.qp, done, 8), 0);
	assert_int_equal(vroom_submit(r.qp, &small), 0);
	assert_int_equal(rig_drain(&r, done, 8, true), 2);
	rig_end(&r);
}

/* Far more parts than slots or completion queue entries, the least of both. */
static void many_parts_in_the_smallest_queues(void **state)
{
	struct vroom_io io;
	struct rig r;
	char *buf;

	(void)state;
	for (unsigned entries = 2; entries < 12; entries++) {
		rig_begin(&r,
			  &(struct fake_opts){
				  .mdts = 1, .queue_entries = entries, .messages = entries % 2 },
			  64);
		buf = rig_alloc(&r, 4096 * KIB);
		fill(r.f->disk, 4096 * KIB, entries);
		vroom_prep_read(&io, &r.ns, buf, 0, 8192, buf);
		assert_int_equal(rig_do(&r, &io), 0);
		assert_filled(buf, 4096 * KIB, entries);
		rig_end(&r);
	}
}

/* A poll for few takes parts without limit; one poll must not wait for itself. */
static void polls_for_one_make_progress(void **state)
{
	struct vroom_completion done;
	unsigned polls = 0;
	struct vroom_io io;
	struct rig r;
	char *buf;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ .mdts = 1, .queue_entries = 8 }, 7);
	buf = rig_alloc(&r, 1024 * KIB);
	vroom_prep_write(&io, &r.ns, buf, 0, 2048, buf);
	assert_int_equal(vroom_submit(r.qp, &io), 0);
	do
		fake_run(r.f, 1);
	while (!vroom_poll(r.qp, &done, 1) && ++polls < 100);
	assert_true(polls < 100);
	rig_end(&r);
}

static void write_zeroes_of_more_than_one_command_names(void **state)
{
	static const unsigned blocks[] = { 1, 65535, 65536, 65537, 131072, 200000 };
	struct vroom_io io;
	struct rig r;

	(void)state;
	for (unsigned i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++) {
		rig_begin(&r, &(struct fake_opts){ .mdts = 1, .blocks = 262144 }, 1 + i % 3);
		r.f->disk[99] = r.f->disk[(blocks[i] - 1) * 512] = 1;
		r.f->disk[blocks[i] * 512ul] = 1;
		vroom_prep_write_zeroes(&io, &r.ns, 0, blocks[i], &io);
		assert_int_equal(rig_do(&r, &io), 0);
		assert_int_equal(r.f->zeroed, blocks[i]);
		assert_int_equal(r.f->disk[99] + r.f->disk[(blocks[i] - 1) * 512], 0);
		assert_int_equal(r.f->disk[blocks[i] * 512ul], 1);
		rig_end(&r);
	}
}

/* --- copies ---------------------------------------------------------------------------------- */

/* Memory that is not DMA memory, and DMA memory at addresses that PRPs cannot name. */
static void buffers_anywhere(void **state)
{
	static const unsigned blocks[] = { 1, 2, 8, 9, 33, 600, 2000 };
	unsigned char *plain = malloc(2001 * 512 + 64);
	struct vroom_io io;
	struct rig r;

	(void)state;
	for (unsigned scattered = 0; scattered < 2; scattered++) {
		unsigned char *dma;

		rig_begin(&r, &(struct fake_opts){ .mdts = 5, .scattered = scattered }, 3);
		dma = rig_alloc(&r, 2001 * 512 + 64);
		for (unsigned i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++) {
			for (unsigned offset = 0; offset < 8; offset++) {
				unsigned char *buf = (offset & 4 ? plain : dma) + (offset & 3);
				size_t bytes = blocks[i] * 512;

				fill(buf, bytes, i + offset);
				buf[bytes] = 0x5a;
				vroom_prep_write(&io, &r.ns, buf, 3, blocks[i], &r);
				assert_int_equal(rig_do(&r, &io), 0);
				assert_filled(r.f->disk + 3 * 512, bytes, i + offset);
				memset(buf, 0, bytes);
				vroom_prep_read(&io, &r.ns, buf, 3, blocks[i], &r);
				assert_int_equal(rig_do(&r, &io), 0);
				assert_filled(buf, bytes, i + offset);
				assert_int_equal(buf[bytes], 0x5a);
			}
		}
		rig_end(&r);
	}
	free(plain);
}

static void vectors_of_every_piece_size(void **state)
{
	static const size_t pieces[] = { 1,    3,    4,	   100,	 511,  512,   513,
					 1000, 2048, 4095, 4096, 4097, 12288, 100000 };
	const size_t bytes = 300 * 512;
	struct vroom_io io;
	struct rig r;

	(void)state;
	for (unsigned i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
		for (unsigned kind = 0; kind < 4; kind++) {
			unsigned char *mem, *heap = malloc(bytes + 4096), *all = malloc(bytes);
			struct iovec *iov = malloc((bytes + 2) * sizeof(*iov));
			unsigned count = 0;
			size_t at = 0;

			rig_begin(&r, &(struct fake_opts){ .mdts = 4, .scattered = kind & 1 }, 4);
			mem = kind & 2 ? heap : rig_alloc(&r, bytes + 4096);
			/* Pieces in reverse, so that no two are neighbours; one is empty. */
			while (at < bytes) {
				size_t n = pieces[i] < bytes - at ? pieces[i] : bytes - at;

				iov[count++] = (struct iovec){ mem + bytes - at - n, n };
				if (count == 2)
					iov[count++] = (struct iovec){ mem, 0 };
				at += n;
			}
			iov[count++] = (struct iovec){ mem + bytes, 4096 }; /* more than needed */
			memset(mem + bytes, 0x77, 4096);
			fill(r.f->disk, bytes, i);
			vroom_prep_readv(&io, &r.ns, iov, count, 0, 300, &r);
			assert_int_equal(rig_do(&r, &io), 0);
			at = 0;
			for (unsigned p = 0; p < count - 1; p++) {
				memcpy(all + at, iov[p].iov_base, iov[p].iov_len);
				at += iov[p].iov_len;
			}
			assert_filled(all, bytes, i);
			assert_int_equal(mem[bytes], 0x77);
			vroom_prep_writev(&io, &r.ns, iov, count, 1000, 300, &r);
			assert_int_equal(rig_do(&r, &io), 0);
			assert_filled(r.f->disk + 1000 * 512, bytes, i);
			free(iov);
			free(all);
			rig_end(&r);
			free(heap);
		}
	}
}

/* Failed reads leave the caller's memory as it was. */
static void failed_reads_copy_nothing(void **state)
{
	struct vroom_completion done;
	unsigned char buf[512];
	struct vroom_io io;
	struct rig r;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ 0 }, 2);
	fill(buf, sizeof(buf), 3);
	vroom_prep_read(&io, &r.ns, buf, 0, 1, NULL);
	assert_int_equal(vroom_submit(r.qp, &io), 0);
	vroom_ring(r.qp);
	fake_fetch(r.f, 1);
	fake_refuse(r.f, 1, 0, NVME_SC_UNRECOVERED_READ);
	assert_int_equal(rig_drain(&r, &done, 1, false), 1);
	assert_filled(buf, sizeof(buf), 3);
	rig_end(&r);
}

/*
 * 300 copies of 256 KiB are more than the memory that a queue pair keeps for copies. Then it is
 * full: -EAGAIN, as long as a completion can change that.
 */
static void copies_beyond_their_memory_wait(void **state)
{
	struct vroom_completion done[300];
	char *plain = malloc(256 * KIB);
	unsigned submitted = 0;
	struct vroom_io io;
	struct rig r;
	int ret = 0;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ 0 }, 300);
	vroom_prep_read(&io, &r.ns, plain, 0, 512, NULL);
	while (submitted < 300 && !(ret = vroom_submit(r.qp, &io)))
		submitted++;
	assert_int_equal(rig_drain(&r, done, 300, false), submitted);
	rig_end(&r);
	free(plain);
	assert_true(submitted > 200);
	assert_true(!ret || ret == -EAGAIN);
}

/* --- what is no command ---------------------------------------------------------------------- */

static void what_is_no_command_is_refused(void **state)
{
	struct nvme_dsm_range ranges[257] = { 0 };
	char *plain = malloc(8192);
	struct iovec iov[3] = { { plain, 512 }, { plain, 511 }, { NULL, 4096 } };
	struct vroom_io io[16];
	unsigned count = 0;
	struct rig r;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ .mdts = 2 }, 8);
	vroom_prep_read(&io[count++], &r.ns, NULL, 0, 1, NULL);
	vroom_prep_write(&io[count++], &r.ns, NULL, 0, 100, NULL);
	vroom_prep_read(&io[count++], &r.ns, plain, 0, 0, NULL);
	vroom_prep_write_zeroes(&io[count++], &r.ns, 0, 0, NULL);
	vroom_prep_read(&io[count++], &r.ns, plain, 0, (1ull << 55) + 8, NULL); /* 4096, as bytes */
	vroom_prep_read(&io[count++], &r.ns, plain, 0, UINT64_MAX, NULL);
	vroom_prep_deallocate(&io[count++], &r.ns, ranges, 0, NULL);
	vroom_prep_deallocate(&io[count++], &r.ns, ranges, 257, NULL);
	vroom_prep_deallocate(&io[count++], &r.ns, ranges, UINT32_MAX, NULL);
	vroom_prep_deallocate(&io[count++], &r.ns, NULL, 1, NULL);
	vroom_prep_readv(&io[count++], &r.ns, iov, 2, 0, 2, NULL); /* a byte too few */
	vroom_prep_readv(&io[count++], &r.ns, iov, 3, 0, 2, NULL); /* memory at NULL */
	vroom_prep_readv(&io[count++], &r.ns, iov, 0, 0, 1, NULL);
	vroom_prep_raw(&io[count++], &(struct nvme_sqe){ .opcode = 0x80 }, plain, 512, NULL);
	vroom_prep_raw(&io[count++], &(struct nvme_sqe){ .opcode = 0x81 }, NULL, 512, NULL);
	vroom_prep_raw(&io[count++], &(struct nvme_sqe){ .opcode = 0x81 }, plain, 1u << 20, NULL);
	assert_int_equal(count, 16);
	for (unsigned i = 0; i < count; i++) {
		vroom_fail(1, "nothing");
		if (vroom_submit(r.qp, &io[i]) != -EINVAL)
			fail_msg("case %u", i);
		assert_string_not_equal(vroom_error(), "nothing");
		vroom_ring(r.qp);
		assert_int_equal(fake_fetch(r.f, 1), 0);
	}
	rig_end(&r);
	free(plain);
}

/* What a data set management command names is what was there at vroom_submit(). */
static void ranges_are_copied(void **state)
{
	struct nvme_dsm_range plain[256], *ranges;
	struct vroom_completion done;
	struct vroom_io io;
	struct rig r;

	(void)state;
	for (unsigned dma = 0; dma < 2; dma++) {
		rig_begin(&r, &(struct fake_opts){ .scattered = dma }, 8);
		ranges = dma ? rig_alloc(&r, sizeof(plain)) : plain;
		for (unsigned count = 1; count <= 256; count += 51) {
			memset(r.f->disk, 1, 1 << 20);
			r.f->deallocated = 0;
			for (unsigned i = 0; i < count; i++)
				ranges[i] = (struct nvme_dsm_range){ .nlb = 2, .slba = 4 * i };
			vroom_prep_deallocate(&io, &r.ns, ranges, count, NULL);
			assert_int_equal(vroom_submit(r.qp, &io), 0);
			memset(ranges, 0xff, sizeof(plain));
			assert_int_equal(rig_drain(&r, &done, 1, false), 1);
			assert_int_equal(done.status, 0);
			assert_int_equal(r.f->deallocated, 2 * count);
			for (unsigned i = 0; i < count; i++)
				assert_true(!r.f->disk[i * 2048] && r.f->disk[i * 2048 + 1024]);
		}
		rig_end(&r);
	}
}

/* Queue pairs are destroyed with commands outstanding, at any point of a split. */
static void destroyed_in_the_middle(void **state)
{
	struct vroom_completion done[4];
	struct vroom_io io;
	struct rig r;
	char *plain = malloc(64 * KIB);

	(void)state;
	for (unsigned completed = 0; completed < 8; completed++) {
		rig_begin(&r, &(struct fake_opts){ .mdts = 1 }, 3);
		vroom_prep_read(&io, &r.ns, plain, 0, 128, NULL);
		assert_int_equal(vroom_submit(r.qp, &io), 0);
		for (unsigned i = 0; i < completed; i++) {
			fake_fetch(r.f, 1);
			fake_complete(r.f, 1, 0);
			assert_int_equal(vroom_poll(r.qp, done, 4), 0);
		}
		rig_end(&r);
	}
	free(plain);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(splits_at_every_mdts_and_size),
		cmocka_unit_test(parts_keep_the_flags),
		cmocka_unit_test(parts_complete_in_any_order),
		cmocka_unit_test(error_in_a_part),
		cmocka_unit_test(full_while_splitting),
		cmocka_unit_test(many_parts_in_the_smallest_queues),
		cmocka_unit_test(polls_for_one_make_progress),
		cmocka_unit_test(write_zeroes_of_more_than_one_command_names),
		cmocka_unit_test(buffers_anywhere),
		cmocka_unit_test(vectors_of_every_piece_size),
		cmocka_unit_test(failed_reads_copy_nothing),
		cmocka_unit_test(copies_beyond_their_memory_wait),
		cmocka_unit_test(what_is_no_command_is_refused),
		cmocka_unit_test(ranges_are_copied),
		cmocka_unit_test(destroyed_in_the_middle),
	};

	return run(tests);
}
