/* SPDX-License-Identifier: BSD-3-Clause */
/* Threads that use one controller at once: for ThreadSanitizer above all. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

#define THREADS 4
#define ROUNDS	12

static struct rig r;
static unsigned failures;

/* In a thread cmocka cannot take a failure. */
#define check(good)                                                         \
	do {                                                                \
		if (!(good))                                                \
			__atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED); \
	} while (0)

/* Reads and writes N times on a queue pair of its own, from memory of its own. */
static void do_io(struct vroom_qpair *qp, char *buf, uint64_t first)
{
	struct vroom_completion done;
	struct vroom_io io;

	for (uint64_t i = 0; i < 32; i++) {
		fill(buf, 4096, (unsigned)(first + i));
		vroom_prep_write(&io, &r.ns, buf, first + 8 * i, 8, buf);
		for (unsigned read = 0; read < 2; read++) {
			check(!vroom_submit(qp, &io));
			vroom_ring(qp);
			fake_run(r.f, qp->qid);
			check(vroom_poll(qp, &done, 1) == 1 && !done.status);
			if (!read)
				memset(buf, 0, 4096);
			vroom_prep_read(&io, &r.ns, buf, first + 8 * i, 8, buf);
		}
		check(wrong_at(buf, 4096, (unsigned)(first + i)) == 4096);
	}
}

static void *work(void *arg)
{
	uint64_t number = (uintptr_t)arg, random = number + 99;
	char *plain = malloc(4096);

	for (unsigned round = 0; round < ROUNDS; round++) {
		struct vroom_qpair *qp;
		struct vroom_ns ns;
		char *mem[8];

		if (vroom_qpair_create(r.c, 4, &qp)) {
			check(false);
			break;
		}
		for (unsigned i = 0; i < 8; i++)
			mem[i] = vroom_dma_alloc(r.c, 4096 + fake_random(&random) % 100000, 0);
		do_io(qp, mem[round % 8], number * 1024);
		do_io(qp, plain, number * 1024);
		check(!vroom_namespace(r.c, 1, &ns, NULL) && ns.blocks == r.ns.blocks);
		for (unsigned i = 0; i < 8; i++)
			vroom_dma_free(r.c, mem[i]);
		vroom_qpair_destroy(qp);
	}
	free(plain);
	return NULL;
}

static void threads(bool messages)
{
	pthread_t thread[THREADS];

	failures = 0;
	rig_begin(&r, &(struct fake_opts){ .messages = messages, .pins = true }, 0);
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&thread[i], NULL, work, (void *)i);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(failures, 0);
	rig_end(&r);
}

static void with_message_doorbells(void **state)
{
	(void)state;
	threads(true);
}

/* Memory is registered and taken away while others do I/O on theirs. */
static void *register_much(void *arg)
{
	char *mem = aligned_alloc(65536, 65536);

	(void)arg;
	for (unsigned i = 0; i < 100; i++) {
		check(!vroom_dma_register(r.c, mem, 65536, -1, 0));
		check(!vroom_dma_unregister(r.c, mem, 65536));
	}
	free(mem);
	return NULL;
}

static void beside_registrations(void **state)
{
	pthread_t a, b;

	(void)state;
	failures = 0;
	rig_begin(&r, &(struct fake_opts){ .messages = true }, 0);
	pthread_create(&a, NULL, register_much, NULL);
	pthread_create(&b, NULL, work, NULL);
	pthread_join(a, NULL);
	pthread_join(b, NULL);
	assert_int_equal(failures, 0);
	rig_end(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(with_message_doorbells),
		cmocka_unit_test(beside_registrations),
	};

	return run(tests);
}
