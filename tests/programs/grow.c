/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * grow ADDRESS PID ROUNDS: processes that make DMA memory grow are killed, one after the other.
 * After each, a line: MiB of address space and mappings of the controller, which is process PID.
 */
#include "common.h"

#define BYTES (300ul << 20)

static void measure(const char *pid)
{
	unsigned long pages, mappings = 0;
	char path[64], line[512];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%s/statm", pid);
	file = fopen(path, "r");
	CHECK(file && fscanf(file, "%lu", &pages) == 1, "%s", path);
	fclose(file);
	snprintf(path, sizeof(path), "/proc/%s/maps", pid);
	file = fopen(path, "r");
	CHECK(file, "%s", path);
	while (fgets(line, sizeof(line), file))
		mappings++;
	fclose(file);
	printf("%lu %lu\n", pages >> 8, mappings);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct vroom_ctrlr *c = open_ctrlr(argv[1], 0);
	int rounds = atoi(argv[argc - 1]), status;

	measure(argv[2]);
	for (int i = 0; i < rounds; i++) {
		if (fork() == 0) {
			char *mem = vroom_dma_alloc(c, BYTES, 0);

			CHECK(mem, "round %d: no memory", i);
			mem[BYTES - 1] = 1;
			kill(getpid(), SIGKILL);
		}
		CHECK(wait(&status) > 0 && WIFSIGNALED(status), "round %d", i);
		measure(argv[2]);
	}
	vroom_close(c);
	return 0;
}
