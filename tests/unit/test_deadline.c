/* SPDX-License-Identifier: BSD-3-Clause */
/* Deadlines, on a clock that the test sets. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rig.h"

/* --- the clock ------------------------------------------------------------------------------- */

static uint64_t clock_ns = 1000000000000ull, clock_step_ns;

/* Instead of the C library's, for all that is linked here. */
int clock_gettime(clockid_t id, struct timespec *ts)
{
	(void)id;
	clock_ns += clock_step_ns;
	ts->tv_sec = (time_t)(clock_ns / 1000000000u);
	ts->tv_nsec = (long)(clock_ns % 1000000000u);
	return 0;
}

static uint64_t now_ms(void)
{
	return clock_ns / 1000000u;
}

static void pass_ms(uint64_t ms)
{
	clock_ns += ms * 1000000u;
}

/* --- helpers --------------------------------------------------------------------------------- */

#define IO_MS	2000u
#define LONG_MS 20000u

static struct rig r;
static char *buf;

static int begin(void **state)
{
	(void)state;
	clock_step_ns = 0;
	rig_begin(&r, &(struct fake_opts){ .io_ms = IO_MS, .long_ms = LONG_MS }, 63);
	buf = rig_alloc(&r, 65536);
	return 0;
}

static int end(void **state)
{
	(void)state;
	rig_end(&r);
	return 0;
}

static void submit_read(uint64_t block)
{
	struct vroom_io io;

	vroom_prep_read(&io, &r.ns, buf, block, 1, (void *)(uintptr_t)(block + 1));
	assert_int_equal(vroom_submit(r.qp, &io), 0);
	vroom_ring(r.qp);
	fake_fetch(r.f, 1);
}

/* A poll that the driver takes for one long after the last. */
static int poll_apart(struct vroom_completion *done, int max)
{
	r.qp->last_look = 0;
	return vroom_poll(r.qp, done, max);
}

/* Lets STEP ms pass between polls until one fails: after how many ms of all. */
static uint64_t until_late(uint64_t step, unsigned *polls)
{
	struct vroom_completion done;
	uint64_t begin_ms = now_ms();
	int ret = 0;

	for (*polls = 0; !ret && *polls < 100000; ++*polls) {
		pass_ms(step);
		ret = poll_apart(&done, 1);
	}
	assert_int_equal(ret, -ETIMEDOUT);
	return now_ms() - begin_ms;
}

/* --- tests ----------------------------------------------------------------------------------- */

static void frequent_poller_is_told_in_time(void **state)
{
	unsigned polls;
	uint64_t after;

	(void)state;
	submit_read(77);
	after = until_late(5, &polls);
	assert_in_range(after, IO_MS, IO_MS + IO_MS / 4 + 10);
	assert_non_null(strstr(vroom_error(), "read of 1 blocks at LBA 77"));
}

static void seldom_poller_is_told_within_a_few_polls(void **state)
{
	unsigned polls;

	(void)state;
	submit_read(0);
	assert_true(until_late(1500, &polls) >= IO_MS);
	assert_in_range(polls, 2, 5);
}

/* Random pauses, commands that come and go: nobody is late before its time. */
static void nobody_is_late_too_early(void **state)
{
	uint64_t random = 42, submitted[64], first;

	(void)state;
	for (unsigned round = 0; round < 300; round++) {
		struct vroom_completion done[8];
		uint64_t longest = round % 3 == 0 ? 3000 : round % 3 == 1 ? 300 : 20;
		unsigned next = 0;
		int n = 0;

		memset(submitted, 0, sizeof(submitted));
		while (n >= 0) {
			pass_ms(fake_random(&random) % longest);
			if (next < 60 && fake_random(&random) % 2) {
				submitted[next] = now_ms();
				submit_read(next++);
			}
			if (fake_held(r.f, 1) > 1 && fake_random(&random) % 4 == 0)
				fake_complete(r.f, 1, 1); /* the first hangs */
			n = poll_apart(done, 8);
			for (int i = 0; i < n; i++)
				submitted[(uintptr_t)done[i].tag - 1] = 0;
		}
		assert_int_equal(n, -ETIMEDOUT);
		first = UINT64_MAX;
		for (unsigned i = 0; i < next; i++)
			if (submitted[i] && submitted[i] < first)
				first = submitted[i];
		if (now_ms() - first < IO_MS)
			fail_msg("round %u: late after %llu ms", round,
				 (unsigned long long)(now_ms() - first));
		end(NULL);
		begin(NULL);
	}
}

static void long_commands_have_a_deadline_of_their_own(void **state)
{
	struct nvme_dsm_range range = { .nlb = 1 };
	struct nvme_sqe verify = { .opcode = NVME_CMD_VERIFY, .nsid = 1 };
	struct vroom_io io;

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		unsigned polls;

		switch (i) {
		case 0: vroom_prep_flush(&io, &r.ns, NULL); break;
		case 1: vroom_prep_write_zeroes(&io, &r.ns, 0, 8, NULL); break;
		case 2: vroom_prep_deallocate(&io, &r.ns, &range, 1, NULL); break;
		default: vroom_prep_raw(&io, &verify, NULL, 0, NULL); break;
		}
		assert_int_equal(vroom_submit(r.qp, &io), 0);
		vroom_ring(r.qp);
		assert_in_range(until_late(10, &polls), LONG_MS, LONG_MS + IO_MS);
		end(NULL);
		begin(NULL);
	}
}

/* A read beside a flush has the read's deadline. */
static void short_commands_do_not_get_the_long_one(void **state)
{
	struct vroom_io io;
	unsigned polls;

	(void)state;
	vroom_prep_flush(&io, &r.ns, NULL);
	assert_int_equal(vroom_submit(r.qp, &io), 0);
	submit_read(5);
	assert_in_range(until_late(50, &polls), IO_MS, 2 * IO_MS);
	assert_non_null(strstr(vroom_error(), "LBA 5"));
}

static void completions_come_before_deadlines(void **state)
{
	struct vroom_completion done[64];

	(void)state;
	for (unsigned i = 0; i < 63; i++)
		submit_read(i);
	while (fake_held(r.f, 1))
		assert_true(fake_complete(r.f, 1, 0));
	pass_ms(3600000);
	assert_int_equal(poll_apart(done, 64), 63);
	/* and when the controller has slept as well, it may finish first */
	submit_read(1);
	pass_ms(3600000);
	assert_int_equal(poll_apart(done, 1), 0);
	fake_complete(r.f, 1, 0);
	pass_ms(3600000);
	assert_int_equal(poll_apart(done, 1), 1);
	/* an hour without commands is nobody's */
	pass_ms(3600000);
	submit_read(2);
	pass_ms(10);
	assert_int_equal(poll_apart(done, 1), 0);
	pass_ms(10);
	assert_int_equal(poll_apart(done, 1), 0);
	fake_complete(r.f, 1, 0);
	assert_int_equal(poll_apart(done, 1), 1);
}

/* One by one, slowly: what waits in the queue has been completed in time. */
static void who_reaps_slowly_is_not_told_of_late_commands(void **state)
{
	struct vroom_completion done;
	struct rig s;
	struct vroom_io io;

	(void)state;
	for (unsigned entries = 8; entries <= 64; entries *= 8) {
		rig_begin(&s,
			  &(struct fake_opts){
				  .io_ms = IO_MS, .long_ms = LONG_MS, .queue_entries = entries },
			  63);
		for (unsigned i = 0; i < entries - 1; i++) {
			vroom_prep_read(&io, &s.ns, rig_alloc(&s, 512), i, 1, NULL);
			assert_int_equal(vroom_submit(s.qp, &io), 0);
		}
		vroom_ring(s.qp);
		assert_int_equal(fake_run(s.f, 1), entries - 1);
		for (unsigned i = 0; i < entries - 1; i++) {
			pass_ms(1500);
			s.qp->last_look = 0;
			assert_int_equal(vroom_poll(s.qp, &done, 1), 1);
		}
		assert_int_equal(vroom_ctrlr_failed(s.c), 0);
		rig_end(&s);
	}
}

/* Polls are never empty, yet the one command that hangs is noticed. */
static void hung_command_under_a_busy_queue(void **state)
{
	struct vroom_completion done[8];
	uint64_t begin_ms = now_ms();
	unsigned next = 1;
	int n = 0;

	(void)state;
	submit_read(0);
	while (n >= 0 && now_ms() - begin_ms < 2 * IO_MS) {
		for (unsigned i = 0; i < 4 && r.qp->free_slot != VROOM_NO_SLOT; i++)
			submit_read(next++ % 1000);
		while (fake_held(r.f, 1) > 1)
			fake_complete(r.f, 1, 1);
		clock_ns += 50000;
		n = vroom_poll(r.qp, done, 8);
	}
	assert_int_equal(n, -ETIMEDOUT);
	assert_in_range(now_ms() - begin_ms, IO_MS, IO_MS + IO_MS / 4 + 100);
	assert_non_null(strstr(vroom_error(), "LBA 0"));
}

/* A queue pair that failed takes no more commands, whatever still completes. */
static void failed_is_failed(void **state)
{
	struct vroom_completion done[4];
	struct vroom_io io;
	unsigned polls;

	(void)state;
	submit_read(1);
	submit_read(2);
	until_late(1500, &polls);
	vroom_prep_read(&io, &r.ns, buf, 0, 1, NULL);
	assert_int_equal(vroom_submit(r.qp, &io), -ETIMEDOUT);
	fake_complete(r.f, 1, 0);
	fake_complete(r.f, 1, 0);
	for (int n = 0; n >= 0;) /* late ones may be handed out, or not */
		n = vroom_poll(r.qp, done, 4);
	assert_int_equal(vroom_submit(r.qp, &io), -ETIMEDOUT);
	assert_int_equal(vroom_poll(r.qp, done, 4), -ETIMEDOUT);
}

/* A split fails in the middle; its parts complete late, and it is freed (a leak checker sees). */
static void failed_in_the_middle_of_a_split(void **state)
{
	struct vroom_completion done[4];
	struct vroom_io io;
	struct rig s;
	int n = 0;

	(void)state;
	rig_begin(&s, &(struct fake_opts){ .io_ms = IO_MS, .mdts = 1 }, 4);
	vroom_prep_read(&io, &s.ns, rig_alloc(&s, 65536), 0, 128, NULL);
	assert_int_equal(vroom_submit(s.qp, &io), 0);
	fake_fetch(s.f, 1);
	for (unsigned i = 0; n >= 0 && i < 100; i++) {
		pass_ms(1000);
		s.qp->last_look = 0;
		n = vroom_poll(s.qp, done, 4);
	}
	assert_int_equal(n, -ETIMEDOUT);
	while (fake_held(s.f, 1))
		fake_complete(s.f, 1, 0);
	vroom_poll(s.qp, done, 4);
	assert_int_equal(vroom_poll(s.qp, done, 4), -ETIMEDOUT);
	rig_end(&s);
}

static void a_controller_that_is_gone_is_noticed(void **state)
{
	struct vroom_completion done;
	int n = 0;

	(void)state;
	submit_read(1);
	r.f->dead = true;
	for (unsigned i = 0; i < 30 && !n; i++) {
		pass_ms(10);
		n = poll_apart(&done, 1);
	}
	assert_int_equal(n, -ENODEV);
	r.f->dead = false;
}

static void csts_is_looked_at(void **state)
{
	static const struct {
		uint32_t csts;
		int err;
	} cases[] = { { 3, -EIO }, { 0, -ENODEV }, { UINT32_MAX, -ENODEV } };
	struct vroom_completion done;

	(void)state;
	for (unsigned c = 0; c < 3; c++) {
		int n = 0;

		submit_read(1);
		r.f->csts = cases[c].csts;
		for (unsigned i = 0; i < 150 && !n; i++) {
			pass_ms(10);
			n = poll_apart(&done, 1);
		}
		assert_int_equal(n, cases[c].err);
		end(NULL);
		begin(NULL);
	}
}

static void admin_commands_have_a_deadline(void **state)
{
	struct nvme_sqe sqe = { .opcode = NVME_ADMIN_GET_FEATURES };
	uint64_t begin_ms = now_ms();

	(void)state;
	r.f->opts.lazy_admin = true;
	clock_step_ns = 10000000;
	assert_int_equal(vroom_admin(r.c, &sqe, NULL, 0, NULL), -ETIMEDOUT);
	assert_in_range(now_ms() - begin_ms, 30000, 31000);
	assert_int_equal(vroom_admin(r.c, &sqe, NULL, 0, NULL), -ETIMEDOUT);
	assert_true(now_ms() - begin_ms < 31000);
	r.f->opts.lazy_admin = false;
}

#define on_rig(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		on_rig(frequent_poller_is_told_in_time),
		on_rig(seldom_poller_is_told_within_a_few_polls),
		on_rig(nobody_is_late_too_early),
		on_rig(long_commands_have_a_deadline_of_their_own),
		on_rig(short_commands_do_not_get_the_long_one),
		on_rig(completions_come_before_deadlines),
		on_rig(who_reaps_slowly_is_not_told_of_late_commands),
		on_rig(hung_command_under_a_busy_queue),
		on_rig(failed_is_failed),
		on_rig(failed_in_the_middle_of_a_split),
		on_rig(a_controller_that_is_gone_is_noticed),
		on_rig(csts_is_looked_at),
		on_rig(admin_commands_have_a_deadline),
	};

	return run(tests);
}
