/* SPDX-License-Identifier: BSD-3-Clause */
/* The admin queue, in one process; for those that are killed see test_killed.c. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "rig.h"

static uint32_t get_feature(struct vroom_ctrlr *c, uint32_t nonce)
{
	struct nvme_sqe sqe = { .opcode = NVME_ADMIN_GET_FEATURES, .cdw11 = nonce };
	struct nvme_cqe cqe = { 0 };

	return vroom_admin(c, &sqe, NULL, 0, &cqe) ? 0 : cqe.dw0;
}

/* Hundreds of commands, with data and without, over mapped doorbells and by message. */
static void wraps(void **state)
{
	struct rig r;

	(void)state;
	for (unsigned messages = 0; messages < 2; messages++) {
		rig_begin(&r, &(struct fake_opts){ .messages = messages, .dstrd = 2 * messages },
			  0);
		for (uint32_t i = 1; i <= 300; i++) {
			uint32_t page[1024] = { 0 };
			struct nvme_sqe sqe = { .opcode = NVME_ADMIN_GET_LOG_PAGE,
						.cdw10 = 1023u << 16,
						.cdw14 = i };

			assert_int_equal(get_feature(r.c, i * 77), i * 77);
			assert_int_equal(vroom_admin(r.c, &sqe, page, sizeof(page), NULL), 0);
			assert_true(page[0] == i && page[1023] == i);
		}
		rig_end(&r);
	}
}

/* The counters behind the queue's indices may run over. */
static void counters_run_over(void **state)
{
	struct rig r;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ 0 }, 0);
	while (r.c->shared->admin.submitted % VROOM_ADMIN_ENTRIES)
		get_feature(r.c, 1);
	if (r.c->shared->admin.submitted / VROOM_ADMIN_ENTRIES % 2)
		for (unsigned i = 0; i < VROOM_ADMIN_ENTRIES; i++)
			get_feature(r.c, 1);
	r.c->shared->admin.submitted = r.c->shared->admin.completed = UINT32_MAX - 63;
	for (uint32_t i = 1; i <= 200; i++)
		assert_int_equal(get_feature(r.c, i), i);
	assert_int_equal(r.c->shared->admin.completed, 136);
	rig_end(&r);
}

/* A status is passed on; without a place for it, it is an error with the words in it. */
static void a_status_is_passed_on(void **state)
{
	struct nvme_sqe sqe = { .opcode = 0xc0 };
	unsigned char buf[512];
	struct nvme_cqe cqe;
	struct rig r;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ 0 }, 0);
	assert_int_equal(vroom_admin(r.c, &sqe, NULL, 0, &cqe), 0);
	assert_int_equal(NVME_STATUS_CODE(cqe.status), NVME_SC_INVALID_OPCODE);
	assert_int_equal(vroom_admin(r.c, &sqe, NULL, 0, NULL), -EIO);
	assert_non_null(strstr(vroom_error(), "Invalid Command Opcode"));
	/* what failed leaves the caller's memory alone */
	fill(buf, sizeof(buf), 5);
	sqe.opcode = 0xc2;
	assert_int_equal(vroom_admin(r.c, &sqe, buf, sizeof(buf), &cqe), 0);
	assert_filled(buf, sizeof(buf), 5);
	rig_end(&r);
}

static void what_cannot_be_sent_is_refused(void **state)
{
	struct nvme_sqe sqe = { .opcode = NVME_ADMIN_IDENTIFY, .cdw10 = NVME_CNS_CTRLR };
	unsigned commands;
	char buf[16384];
	struct rig r;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ 0 }, 0);
	commands = r.f->admin_commands;
	assert_int_equal(vroom_admin(r.c, &sqe, buf, 8193, NULL), -EINVAL);
	assert_int_equal(vroom_admin(r.c, &sqe, buf, SIZE_MAX, NULL), -EINVAL);
	assert_int_equal(vroom_admin(r.c, &sqe, NULL, 4096, NULL), -EINVAL);
	sqe.opcode = 0x80;
	assert_int_equal(vroom_admin(r.c, &sqe, buf, 4096, NULL), -EINVAL);
	assert_int_equal(r.f->admin_commands, commands);
	rig_end(&r);
}

/* A completion that is nobody's is not taken for the answer. */
static void foreign_completion_is_not_the_answer(void **state)
{
	struct rig r;

	(void)state;
	for (int stray = 0; stray < 40; stray += 13) {
		struct nvme_sqe sqe = { .opcode = NVME_ADMIN_GET_FEATURES, .cdw11 = 1234 };
		struct nvme_cqe cqe = { 0 };
		int ret;

		rig_begin(&r, &(struct fake_opts){ 0 }, 0);
		while (r.c->shared->admin.submitted % VROOM_ADMIN_ENTRIES != 5)
			get_feature(r.c, 1);
		r.f->stray_cid = stray;
		ret = vroom_admin(r.c, &sqe, NULL, 0, &cqe);
		assert_true(ret == -EPROTO || (!ret && cqe.dw0 == 1234));
		ret = vroom_admin(r.c, &sqe, NULL, 0, &cqe);
		assert_true(ret == -EPROTO || (!ret && cqe.dw0 == 1234));
		rig_end(&r);
	}
}

/* Processes side by side: each gets its own answers. */
static void processes_share_the_queue(void **state)
{
	pid_t pids[4];
	struct rig r;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ 0 }, 0);
	for (uint32_t p = 0; p < 4; p++) {
		pids[p] = fork();
		if (pids[p])
			continue;
		for (uint32_t i = 1; i <= 200; i++)
			if (get_feature(r.c, p << 16 | i) != (p << 16 | i))
				_exit(1);
		_exit(0);
	}
	for (unsigned p = 0; p < 4; p++) {
		int status;

		waitpid(pids[p], &status, 0);
		assert_int_equal(status, 0);
	}
	rig_end(&r);
}

/* --- bringing up ----------------------------------------------------------------------------- */

static void what_a_controller_lacks_is_said(void **state)
{
	static const struct {
		uint64_t clear, set;
		int err;
		const char *words;
	} cases[] = {
		{ 0xffff, 0, -EPROTO, "MQES" },
		{ NVME_CAP_CSS_MASK << NVME_CAP_CSS_SHIFT,
		  (uint64_t)NVME_CAP_CSS_ADMIN << NVME_CAP_CSS_SHIFT, -ENOTSUP, "command set" },
		{ 0, 5ull << NVME_CAP_MPSMIN_SHIFT, -ENOTSUP, "128 KiB" },
		{ 0, UINT64_MAX, -ENODEV, "gone" },
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct fake *f = fake_new(&(struct fake_opts){ 0 });
		struct vroom_ctrlr *c;

		f->cap = (f->cap & ~cases[i].clear) | cases[i].set;
		assert_int_equal(fake_bring_up(f, &c), cases[i].err);
		assert_non_null(strstr(vroom_error(), cases[i].words));
		assert_int_equal(f->csts, 0);
		fake_close(f, c);
	}
}

static void no_more_queue_pairs_than_there_are(void **state)
{
	struct vroom_qpair *qp[4];
	struct rig r;

	(void)state;
	rig_begin(&r, &(struct fake_opts){ .qpairs = 3 }, 0);
	for (unsigned round = 0; round < 5; round++) {
		for (unsigned i = 0; i < 3; i++)
			assert_int_equal(vroom_qpair_create(r.c, 1 + i * round, &qp[i]), 0);
		assert_int_equal(vroom_qpair_create(r.c, 1, &qp[3]), -ENOSPC);
		assert_null(qp[3]);
		vroom_qpair_destroy(qp[3]);
		for (unsigned i = 0; i < 3; i++)
			vroom_qpair_destroy(qp[i]);
	}
	rig_end(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wraps),
		cmocka_unit_test(counters_run_over),
		cmocka_unit_test(a_status_is_passed_on),
		cmocka_unit_test(what_cannot_be_sent_is_refused),
		cmocka_unit_test(foreign_completion_is_not_the_answer),
		cmocka_unit_test(processes_share_the_queue),
		cmocka_unit_test(what_a_controller_lacks_is_said),
		cmocka_unit_test(no_more_queue_pairs_than_there_are),
	};

	return run(tests);
}
