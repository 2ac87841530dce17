/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * patience ADDRESS PID flush|zeroes|deallocate|read: with 300 ms for a command, stops the
 * controller, process PID, for 1.5 s while the command is outstanding. Prints its status, or the
 * error.
 */
#include "common.h"

int main(int argc, char **argv)
{
	struct vroom_ctrlr *c = open_ctrlr(argv[1], 300);
	struct vroom_ns ns = namespace_of(c);
	struct vroom_qpair *qp = create_qpair(c, 8);
	const struct nvme_dsm_range range = { .slba = 0, .nlb = 8 };
	pid_t pid = (pid_t)atoi(argv[2]);
	void *buf = vroom_dma_alloc(c, 4096, 0);
	const char *kind = argv[argc - 1];
	struct vroom_completion done;
	struct vroom_io io;
	double stopped;
	int n = 0;

	CHECK(buf, "no memory");
	vroom_prep_read(&io, &ns, buf, 0, 8, NULL);
	CHECK(vroom_submit(qp, &io) == 0 && complete(qp) == 0, "a read before");
	if (!strcmp(kind, "flush"))
		vroom_prep_flush(&io, &ns, NULL);
	else if (!strcmp(kind, "zeroes"))
		vroom_prep_write_zeroes(&io, &ns, 0, 8, NULL);
	else if (!strcmp(kind, "deallocate"))
		vroom_prep_deallocate(&io, &ns, &range, 1, NULL);
	kill(pid, SIGSTOP);
	CHECK(vroom_submit(qp, &io) == 0, "submit");
	vroom_ring(qp);
	stopped = seconds();
	while (!n && seconds() - stopped < 1.5)
		n = vroom_poll(qp, &done, 1);
	kill(pid, SIGCONT);
	while (!n)
		n = vroom_poll(qp, &done, 1);
	if (n < 0)
		printf("%s\n", vroom_error());
	else
		printf("status %u\n", done.status);
	return 0;
}
