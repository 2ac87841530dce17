/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * killed ADDRESS KILLS: processes that take and give back DMA memory are killed at any
 * instruction, over and over. Each page that this process has bears its number; nobody else may
 * write there, and what it takes in between may not be a part of it. Prints how many were killed.
 *
 * The killed work in a hole at the beginning, of which each loses a page; a larger block is then
 * taken from behind all others.
 */
#include "common.h"

#define LIVE	8192 /* pages */
#define HOLE	6000 /* and those that the killed work with */
#define WORKERS 3
#define PAGE	4096

static uint64_t *live[LIVE]; /* of one page each */

static void check(unsigned kills)
{
	for (unsigned i = 0; i < LIVE; i++)
		for (unsigned word = 0; word < PAGE / 8; word += 64)
			CHECK(live[i][word] == i, "after %u kills: page %u has become %llx", kills,
			      i, (unsigned long long)live[i][word]);
}

static void take(struct vroom_ctrlr *c, unsigned i, unsigned kills)
{
	live[i] = vroom_dma_alloc(c, PAGE, 0);
	CHECK(live[i], "after %u kills: no memory", kills);
	for (unsigned word = 0; word < PAGE / 8; word++)
		live[i][word] = i;
}

static void work(struct vroom_ctrlr *c)
{
	for (;;) {
		char *mine = vroom_dma_alloc(c, PAGE, 0);

		if (!mine)
			_exit(1);
		memset(mine, 0xdd, PAGE);
		vroom_dma_free(c, mine);
	}
}

int main(int argc, char **argv)
{
	struct vroom_ctrlr *c = open_ctrlr(argv[1], 0);
	double end = seconds() + 15;
	unsigned kills = 0, enough = (unsigned)atoi(argv[argc - 1]), seed = 1;
	pid_t workers[WORKERS];
	static void *hole[HOLE];
	void *large;

	for (unsigned i = 0; i < HOLE; i++)
		hole[i] = vroom_dma_alloc(c, PAGE, 0);
	for (unsigned i = 0; i < LIVE; i++)
		take(c, i, 0);
	for (unsigned i = 0; i < HOLE; i++)
		vroom_dma_free(c, hole[i]);
	while (seconds() < end && kills < enough) {
		for (unsigned i = 0; i < WORKERS; i++) {
			workers[i] = fork();
			if (!workers[i])
				work(c);
		}
		usleep((useconds_t)(1000 + rand_r(&seed) % 4000));
		for (unsigned i = 0; i < WORKERS; i++, kills++)
			kill(workers[i], SIGKILL);
		for (unsigned i = 0; i < WORKERS; i++)
			waitpid(workers[i], NULL, 0);
		check(kills);
		large = vroom_dma_alloc(c, (HOLE + 1) * PAGE, 0);
		CHECK(large, "after %u kills: no memory", kills);
		memset(large, 0xaa, (HOLE + 1) * PAGE);
		check(kills);
		vroom_dma_free(c, large);
	}
	printf("%u\n", kills);
	vroom_close(c);
	return 0;
}
