/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Processes that are killed at any instruction: in the allocator, in the admin queue, while memory
 * is registered or queue pairs are created. What processes share is usable after each.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/lock.h"
#include "kill.h"
#include "rig.h"

/* Instructions of which one is killed at; a sanitizer's are many more. */
#define SPARSE(n) (SANITIZED ? 150 * (n) : (n))

struct shared {
	void *volatile mem;
	volatile uint32_t nonce;
	unsigned mapped;
};

static struct rig r;
static struct shared *shared;
static char *keep; /* an allocation of the parent's, which nobody else may get */

static int begin_with(const struct fake_opts *opts)
{
	rig_begin(&r, opts, 0);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	assert_true(shared != MAP_FAILED);
	keep = rig_alloc(&r, 3 * 4096);
	fill(keep, 3 * 4096, 1);
	return 0;
}

static int begin(void **state)
{
	(void)state;
	return begin_with(&(struct fake_opts){ 0 });
}

static int end(void **state)
{
	(void)state;
	assert_filled(keep, 3 * 4096, 1);
	munmap(shared, sizeof(*shared));
	rig_end(&r);
	return 0;
}

/* Blocks of a region follow each other to its end; what is in a block's word is dma_pool.c's. */
static unsigned taken_blocks(void)
{
	unsigned taken = 0;

	for (unsigned i = 0; i < r.c->pool.regions; i++) {
		const struct vroom_dma_region *g = &r.c->pool.region[i];
		uint64_t unit = 0, units = g->bytes / VROOM_DMA_UNIT;

		while (unit < units) {
			uint64_t word = g->block[unit];

			assert_true(word >> 32);
			taken += (word >> 28 & 0xf) != 0;
			unit += word >> 32;
		}
		assert_int_equal(unit, units);
	}
	return taken;
}

static void needs_steps(unsigned killed)
{
	if (!killed)
		skip();
	print_message("# %u kills\n", killed);
}

/* --- the allocator --------------------------------------------------------------------------- */

static unsigned taken_before;

static void allocate(void *arg)
{
	(void)arg;
	if (!vroom_dma_alloc(r.c, 5 * 4096, 65536))
		_exit(1);
}

/* All comes back, and what is handed out next is nobody's. */
static void check_pool(void *arg)
{
	char *mem;

	(void)arg;
	taken_blocks();
	mem = rig_alloc(&r, 2 * 4096);
	assert_true(mem + 2 * 4096 <= keep || keep + 3 * 4096 <= mem);
	memset(mem, 0xee, 2 * 4096);
	vroom_ctrlr_reclaim(r.c);
	assert_int_equal(taken_blocks(), taken_before + 1);
	vroom_dma_free(r.c, mem);
	assert_int_equal(taken_blocks(), taken_before);
}

static void killed_in_alloc(void **state)
{
	unsigned killed;

	(void)state;
	taken_before = taken_blocks();
	killed = kill_everywhere(allocate, check_pool, NULL, SPARSE(1));
	needs_steps(killed);
	assert_true(SANITIZED || killed > 150);
}

static void free_it(void *arg)
{
	(void)arg;
	vroom_dma_free(r.c, shared->mem);
}

static void check_free(void *arg)
{
	(void)arg;
	taken_blocks();
	vroom_dma_free(r.c, shared->mem); /* frees it, or is not harmed by that it is free */
	assert_int_equal(taken_blocks(), taken_before);
	shared->mem = rig_alloc(&r, 7 * 4096);
}

static void killed_in_free(void **state)
{
	unsigned killed;

	(void)state;
	taken_before = taken_blocks();
	shared->mem = rig_alloc(&r, 7 * 4096);
	killed = kill_everywhere(free_it, check_free, NULL, SPARSE(1));
	needs_steps(killed);
	vroom_dma_free(r.c, shared->mem);
}

/* Blocks that others merge, split and free, with holes in between. */
static void churn(void *arg)
{
	void *mem[6];

	(void)arg;
	for (unsigned i = 0; i < 6; i++)
		mem[i] = vroom_dma_alloc(r.c, 4096 * (1 + i), i % 2 ? 32768 : 0);
	for (unsigned i = 0; i < 6; i += 2)
		vroom_dma_free(r.c, mem[i]);
	vroom_dma_alloc(r.c, 6 * 4096, 0);
	vroom_dma_free(r.c, mem[1]);
	vroom_dma_alloc(r.c, 9 * 4096, 4096);
}

static void killed_in_a_churn(void **state)
{
	(void)state;
	taken_before = taken_blocks();
	needs_steps(kill_everywhere(churn, check_pool, NULL, SPARSE(5)));
}

/* A region more: the controller is told, and untold, whatever became of who asked. */
static void grow(void *arg)
{
	(void)arg;
	if (vroom_pool_grow(&r.c->pool, 4096, 4096))
		_exit(1);
}

static void check_maps(void *arg)
{
	unsigned live = 0, known = 0;

	(void)arg;
	vroom_ctrlr_reclaim(r.c);
	for (unsigned i = 0; i < r.f->maps; i++)
		live += r.f->map[i].live;
	for (unsigned i = 0; i < VROOM_MAX_MAPPINGS; i++)
		known += r.c->space.shared->mapping[i].bytes != 0;
	assert_int_equal(live, shared->mapped);
	assert_int_equal(known, shared->mapped);
	r.f->maps = r.f->fragments = shared->mapped; /* of dead ones nothing is left */
}

static void killed_while_growing(void **state)
{
	(void)state;
	shared->mapped = r.f->maps;
	needs_steps(kill_everywhere(grow, check_maps, NULL, SPARSE(32)));
}

static char *plain;

static void register_plain(void *arg)
{
	(void)arg;
	if (vroom_dma_register(r.c, plain, 65536, -1, 0))
		_exit(1);
}

static void register_and_unregister(void *arg)
{
	(void)arg;
	if (vroom_dma_register(r.c, plain, 65536, -1, 0) || vroom_dma_unregister(r.c, plain, 65536))
		_exit(1);
}

static void killed_while_registering(void **state)
{
	(void)state;
	plain = aligned_alloc(65536, 65536);
	shared->mapped = r.f->maps;
	needs_steps(kill_everywhere(register_plain, check_maps, NULL, SPARSE(1)));
	kill_everywhere(register_and_unregister, check_maps, NULL, SPARSE(2));
	/* the next one's is not in the way of what is left */
	assert_int_equal(vroom_dma_register(r.c, plain, 65536, -1, 0), 0);
	assert_int_equal(vroom_dma_unregister(r.c, plain, 65536), 0);
	free(plain);
}

/* --- the admin queue ------------------------------------------------------------------------- */

static void get_feature(void *arg)
{
	struct nvme_sqe sqe = { .opcode = NVME_ADMIN_GET_FEATURES, .cdw11 = ++shared->nonce };
	struct nvme_cqe cqe;

	(void)arg;
	if (vroom_admin(r.c, &sqe, NULL, 0, &cqe) || cqe.dw0 != sqe.cdw11)
		_exit(1);
}

static void get_log(void *arg)
{
	uint32_t page[512];
	struct nvme_sqe sqe = { .opcode = NVME_ADMIN_GET_LOG_PAGE,
				.cdw10 = 511u << 16,
				.cdw14 = ++shared->nonce };
	struct nvme_cqe cqe;

	(void)arg;
	if (vroom_admin(r.c, &sqe, page, sizeof(page), &cqe) || cqe.dw0 != sqe.cdw14)
		_exit(1);
	for (unsigned i = 0; i < 512; i++)
		if (page[i] != sqe.cdw14)
			_exit(2);
}

/* The next command, of this process and of another, gets its own answer. */
static void check_admin(void *arg)
{
	uint32_t page[512] = { 0 };
	struct nvme_sqe sqe = { .opcode = NVME_ADMIN_GET_LOG_PAGE,
				.cdw10 = 511u << 16,
				.cdw14 = ++shared->nonce };
	struct nvme_cqe cqe;

	(void)arg;
	fake_run_admin(r.f); /* what the dead one had rung */
	r.f->opts.lazy_admin = false;
	assert_int_equal(vroom_admin(r.c, &sqe, page, sizeof(page), &cqe), 0);
	assert_int_equal(cqe.status, 0);
	assert_int_equal(cqe.dw0, sqe.cdw14);
	assert_int_equal(page[0], sqe.cdw14);
	assert_int_equal(page[511], sqe.cdw14);
	sqe = (struct nvme_sqe){ .opcode = NVME_ADMIN_GET_FEATURES, .cdw11 = ++shared->nonce };
	assert_int_equal(vroom_admin(r.c, &sqe, NULL, 0, &cqe), 0);
	assert_int_equal(cqe.dw0, sqe.cdw11);
	assert_int_equal(r.c->shared->admin.submitted, r.c->shared->admin.completed);
	assert_false(r.f->faulted);
	assert_int_equal(r.f->cq_full, 0);
}

static void killed_in_an_admin_command(void **state)
{
	(void)state;
	needs_steps(kill_everywhere(get_feature, check_admin, NULL, SPARSE(1)));
}

static void killed_in_an_admin_command_with_data(void **state)
{
	(void)state;
	needs_steps(kill_everywhere(get_log, check_admin, NULL, SPARSE(4)));
}

/* An answer that never comes to who asked: the child dies as soon as it has rung. */
static void ring_and_die(void *arg)
{
	get_feature(arg);
}

static void killed_while_it_waits(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 70; i++) { /* more than there are entries */
		pid_t pid;
		uint32_t before = r.c->shared->admin.submitted;
		int status;

		r.f->opts.lazy_admin = true;
		pid = fork();
		if (!pid) {
			ring_and_die(NULL);
			_exit(0);
		}
		while (__atomic_load_n(&r.c->shared->admin.submitted, __ATOMIC_ACQUIRE) == before)
			;
		usleep(i % 4 * 50);
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (i % 3) /* late, or even after the next one is there */
			fake_run_admin(r.f);
		check_admin(NULL);
	}
}

/* --- queue pairs ----------------------------------------------------------------------------- */

static void create_and_destroy(void *arg)
{
	struct vroom_qpair *qp;

	(void)arg;
	if (vroom_qpair_create(r.c, 4, &qp))
		_exit(1);
	vroom_qpair_destroy(qp);
}

/* All queue pairs can be had by the next process, and all of the dead one's memory. */
static void check_qpairs(void *arg)
{
	struct vroom_qpair *qp[2];

	(void)arg;
	for (unsigned i = 0; i < 2; i++)
		if (vroom_qpair_create(r.c, 4, &qp[i]))
			fail_msg("queue pair %u: %s", i, vroom_error());
	for (unsigned i = 0; i < 2; i++)
		vroom_qpair_destroy(qp[i]);
	vroom_ctrlr_reclaim(r.c);
	assert_int_equal(taken_blocks(), taken_before);
	for (unsigned i = 1; i <= 2; i++)
		assert_true(!r.f->q[i].sq_size && !r.f->q[i].cq_size);
	assert_false(r.f->faulted);
}

static int begin_few(void **state)
{
	(void)state;
	return begin_with(&(struct fake_opts){ .qpairs = 2 });
}

static void killed_with_queue_pairs(void **state)
{
	(void)state;
	taken_before = taken_blocks();
	needs_steps(kill_everywhere(create_and_destroy, check_qpairs, NULL, SPARSE(11)));
}

/* --- the lock -------------------------------------------------------------------------------- */

static void hold_locks_and_die(void *arg)
{
	(void)arg;
	vroom_lock(&r.c->shared->lock);
	vroom_lock(&r.c->pool.shared->lock);
	vroom_lock(&r.c->space.shared->lock);
	_exit(0);
}

static void locks_of_the_dead_are_taken_over(void **state)
{
	(void)state;
	taken_before = taken_blocks();
	for (unsigned i = 0; i < 3; i++) {
		in_child(hold_locks_and_die, NULL);
		check_pool(NULL);
		in_child(hold_locks_and_die, NULL);
		check_admin(NULL);
	}
}

#define on_rig(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		on_rig(locks_of_the_dead_are_taken_over),
		on_rig(killed_in_alloc),
		on_rig(killed_in_free),
		on_rig(killed_in_a_churn),
		on_rig(killed_while_growing),
		on_rig(killed_while_registering),
		on_rig(killed_in_an_admin_command),
		on_rig(killed_in_an_admin_command_with_data),
		on_rig(killed_while_it_waits),
		cmocka_unit_test_setup_teardown(killed_with_queue_pairs, begin_few, end),
	};

	return run(tests);
}
