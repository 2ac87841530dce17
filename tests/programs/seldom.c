/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * seldom ADDRESS [PID]: reads, one at a time, and polls every 0.2 s. Kills PID after a few, or
 * relies on a controller that drops a command. Prints the error that ends it and the seconds until
 * then, from the submission of the command that was never completed.
 */
#include "common.h"

#define PATIENCE_S 12.0

int main(int argc, char **argv)
{
	struct vroom_ctrlr *c = open_ctrlr(argv[1], 1000);
	struct vroom_ns ns = namespace_of(c);
	struct vroom_qpair *qp = create_qpair(c, 8);
	char *buf = vroom_dma_alloc(c, 4096, 0);

	CHECK(buf, "no memory");
	for (int i = 0; i < 20; i++) {
		double start = seconds();
		struct vroom_completion done;
		struct vroom_io io;
		int n = 0;

		if (argc > 2 && i == 3)
			kill((pid_t)atoi(argv[2]), SIGKILL);
		vroom_prep_read(&io, &ns, buf, 0, 8, NULL);
		CHECK(vroom_submit(qp, &io) == 0, "submit");
		vroom_ring(qp);
		while (!n && seconds() - start < PATIENCE_S) {
			usleep(200000);
			n = vroom_poll(qp, &done, 1);
		}
		if (n == 1)
			continue;
		CHECK(n < 0, "command %d: still nothing after %.0f s", i, PATIENCE_S);
		printf("%d %.3f %s\n", -n, seconds() - start, vroom_error());
		return 0;
	}
	CHECK(false, "no command was lost");
}
