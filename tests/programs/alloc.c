/* SPDX-License-Identifier: BSD-3-Clause */
/* alloc ADDRESS: sizes that no machine has are refused, alignments are kept, nothing overlaps. */
#include "common.h"

#define LIVE_MAX 256

static struct {
	char *at;
	size_t bytes;
} live[LIVE_MAX];
static unsigned nr_live;

static void *take(struct vroom_ctrlr *c, size_t bytes, size_t align)
{
	char *mem = vroom_dma_alloc(c, bytes, align);

	CHECK(mem, "%zu bytes at %zu", bytes, align);
	CHECK((uintptr_t)mem % (align ? align : 4096) == 0, "%zu bytes at %zu: got %p", bytes,
	      align, (void *)mem);
	for (unsigned i = 0; i < nr_live; i++)
		CHECK(mem + bytes <= live[i].at || live[i].at + live[i].bytes <= mem,
		      "%zu bytes at %p: a part is at %p already", bytes, (void *)mem,
		      (void *)live[i].at);
	live[nr_live].at = mem;
	live[nr_live++].bytes = bytes;
	memset(mem, 1, bytes);
	return mem;
}

int main(int argc, char **argv)
{
	static const size_t too_much[] = { (size_t)-1,	  (size_t)-64,	    (size_t)-4096,
					   (size_t)-8192, SIZE_MAX - 65536, (size_t)PTRDIFF_MAX };
	struct vroom_ctrlr *c = open_ctrlr(argv[1], 0);

	take(c, 4096, 0);
	if (argc > 2 && !strcmp(argv[2], "align")) {
		for (int round = 0; round < 3; round++) {
			for (size_t align = 4096; align <= 4ul << 20; align *= 2) {
				take(c, 4096, align);
				take(c, 12288, align);
			}
		}
	} else {
		for (size_t i = 0; i < sizeof(too_much) / sizeof(too_much[0]); i++) {
			void *mem = vroom_dma_alloc(c, too_much[i], 0);

			CHECK(!mem, "%zu bytes: got %p", too_much[i], mem);
			take(c, 4096, 0);
			take(c, 65536, 65536);
		}
		CHECK(!vroom_dma_alloc(c, 0, 0), "no bytes");
		CHECK(!vroom_dma_alloc(c, 4096, 12288), "an alignment that is no power of two");
	}
	vroom_close(c);
	return 0;
}
