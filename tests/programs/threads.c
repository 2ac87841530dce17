/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * threads ADDRESS: threads that create queue pairs, make DMA memory grow and move data from and to
 * memory of all kinds, all at once on one controller; each on blocks of its own. For
 * ThreadSanitizer.
 */
#include <pthread.h>

#include "common.h"

#define THREADS 4
#define ROUNDS	6
#define BYTES	(256ul << 10)

static struct vroom_ctrlr *c;

static void move(struct vroom_qpair *qp, const struct vroom_io *io)
{
	int ret = vroom_submit(qp, io);

	CHECK(ret == 0, "submit: %d", ret);
	ret = complete(qp);
	CHECK(ret == 0, "completion: %#x", (unsigned)ret);
}

static void *work(void *arg)
{
	uint64_t number = (uint64_t)(uintptr_t)arg;
	struct vroom_ns ns = namespace_of(c);
	uint64_t nlb = BYTES >> ns.lba_shift, slba = number * nlb;
	char *own = malloc(BYTES + 2), *back = malloc(BYTES + 2);

	for (int round = 0; round < ROUNDS; round++) {
		struct vroom_qpair *qp = create_qpair(c, 16);
		/* More than the first region holds, in all. */
		char *big = vroom_dma_alloc(c, 40ul << 20, 0), *mem = vroom_dma_alloc(c, BYTES, 0);
		struct vroom_io io;

		CHECK(own && back && big && mem, "no memory");
		memset(mem, (int)(16 * number + 1 + (unsigned)round), BYTES);
		memset(own + 1, (int)(16 * number + 8 + (unsigned)round), BYTES);
		vroom_prep_write(&io, &ns, mem, slba, nlb, NULL);
		move(qp, &io);
		vroom_prep_read(&io, &ns, back + 2, slba, nlb, NULL);
		move(qp, &io);
		CHECK(!memcmp(back + 2, mem, BYTES), "thread %d", (int)number);
		vroom_prep_write(&io, &ns, own + 1, slba, nlb, NULL);
		move(qp, &io);
		vroom_prep_read(&io, &ns, big + 4096, slba, nlb, NULL);
		move(qp, &io);
		CHECK(!memcmp(big + 4096, own + 1, BYTES), "thread %d", (int)number);
		vroom_dma_free(c, mem);
		if (round % 2)
			vroom_dma_free(c, big);
		vroom_qpair_destroy(qp);
	}
	free(own);
	free(back);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];

	(void)argc;
	c = open_ctrlr(argv[1], 0);
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0, "thread");
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	vroom_close(c);
	return 0;
}
