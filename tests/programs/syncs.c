/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * syncs: preloaded into a run of fio, it writes down what an emulated controller does for
 * durability in the file $SYNCS: an f for each fdatasync(), a d for each write with RWF_DSYNC.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static void note(char what)
{
	int fd = -1;

	if (!strcmp(program_invocation_short_name, "vroom"))
		fd = open(getenv("SYNCS"), O_WRONLY | O_APPEND | O_CLOEXEC);
	if (fd >= 0 && write(fd, &what, 1) != 1)
		abort();
	close(fd);
}

int fdatasync(int fd)
{
	int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");

	note('f');
	return next(fd);
}

ssize_t pwritev2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
	ssize_t (*next)(int, const struct iovec *, int, off_t, int) =
		(ssize_t(*)(int, const struct iovec *, int, off_t, int))dlsym(RTLD_NEXT,
									      "pwritev2");

	if (flags & RWF_DSYNC)
		note('d');
	return next(fd, iov, count, offset, flags);
}
