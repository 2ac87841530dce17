/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * waits ADDRESS: sleeps for completions while a signal comes every millisecond: for none, and for
 * that of a command which the controller has dropped.
 */
#include <sys/time.h>

#include "common.h"

static volatile sig_atomic_t alarms;

static void on_alarm(int number)
{
	(void)number;
	alarms++;
}

static void every_ms(suseconds_t usec)
{
	const struct itimerval timer = { { 0, usec }, { 0, usec } };

	setitimer(ITIMER_REAL, &timer, NULL);
}

int main(int argc, char **argv)
{
	const struct vroom_opts opts = { .io_timeout_ms = 1000, .interrupts = true };
	const struct sigaction alarm = { .sa_handler = on_alarm };
	struct vroom_ctrlr *c;
	struct vroom_qpair *qp;
	struct vroom_ns ns;
	struct vroom_io io;
	double start;
	void *buf;
	int ret;

	CHECK(vroom_open(argv[argc - 1], &opts, &c) == 0, "open");
	ns = namespace_of(c);
	qp = create_qpair(c, 8);
	buf = vroom_dma_alloc(c, 4096, 0);
	sigaction(SIGALRM, &alarm, NULL);
	every_ms(1000);
	start = seconds();
	ret = vroom_wait(&qp, 1, 300);
	CHECK(ret == 0, "nothing is outstanding: %d", ret);
	CHECK(seconds() - start >= 0.29, "it took %f s only", seconds() - start);
	CHECK(alarms > 10, "%d signals", (int)alarms);

	vroom_prep_read(&io, &ns, buf, 0, 8, NULL);
	CHECK(vroom_submit(qp, &io) == 0, "submit");
	start = seconds();
	ret = vroom_wait(&qp, 1, 10000);
	CHECK(ret == -ETIMEDOUT, "a dropped command, after %f s: %d", seconds() - start, ret);
	return 0;
}
