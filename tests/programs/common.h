/* SPDX-License-Identifier: BSD-3-Clause */
/* What the test programs share. They use the public interface only. */
#ifndef TESTS_COMMON_H
#define TESTS_COMMON_H

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <vroom.h>

/* Says what did not hold, and what the library says of it, and ends the process. */
#define CHECK(condition, ...)                                           \
	do {                                                            \
		if (condition)                                          \
			break;                                          \
		fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);         \
		fprintf(stderr, __VA_ARGS__);                           \
		fprintf(stderr, " (vroom_error: %s)\n", vroom_error()); \
		exit(1);                                                \
	} while (0)

static inline double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline struct vroom_ctrlr *open_ctrlr(const char *address, unsigned io_timeout_ms)
{
	const struct vroom_opts opts = { .io_timeout_ms = io_timeout_ms };
	struct vroom_ctrlr *c;

	CHECK(vroom_open(address, &opts, &c) == 0, "cannot open %s", address);
	return c;
}

static inline struct vroom_ns namespace_of(struct vroom_ctrlr *c)
{
	struct vroom_ns ns;

	CHECK(vroom_namespace(c, 0, &ns, NULL) == 0, "no namespace");
	return ns;
}

static inline struct vroom_qpair *create_qpair(struct vroom_ctrlr *c, unsigned depth)
{
	struct vroom_qpair *qp;

	CHECK(vroom_qpair_create(c, depth, &qp) == 0, "no queue pair");
	return qp;
}

/* Rings, and waits for one completion: its status, or a negative errno. */
static inline int complete(struct vroom_qpair *qp)
{
	struct vroom_completion done;
	int n;

	vroom_ring(qp);
	do
		n = vroom_poll(qp, &done, 1);
	while (!n);
	return n < 0 ? n : done.status;
}

/* Waits for all children, which must end with 0. */
static inline void reap(unsigned children)
{
	int status;

	while (children--) {
		CHECK(wait(&status) > 0, "a child is missing");
		CHECK(status == 0, "a child ended with %#x", (unsigned)status);
	}
}

#endif
