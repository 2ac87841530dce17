/* SPDX-License-Identifier: BSD-3-Clause */
/* The last error of a thread, clocks, locks shared by processes, and whether one lives. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/internal.h"

static _Thread_local char error_line[1024];

const char *vroom_error(void)
{
	return error_line;
}

int vroom_fail(int err, const char *format, ...)
{
	char line[sizeof(error_line)];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args); /* arguments may lie in error_line */
	va_end(args);
	memcpy(error_line, line, sizeof(line));
	return -err;
}

uint64_t vroom_now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

int vroom_lock_init(pthread_mutex_t *lock)
{
	pthread_mutexattr_t attr;
	int ret;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	ret = pthread_mutex_init(lock, &attr);
	pthread_mutexattr_destroy(&attr);
	return -ret;
}

void vroom_lock(pthread_mutex_t *lock)
{
	int ret = pthread_mutex_lock(lock);

	if (ret == EOWNERDEAD)
		ret = pthread_mutex_consistent(lock);
	if (ret) /* a bug: the lock is ours and its protocol is kept */
		abort();
}

void vroom_unlock(pthread_mutex_t *lock)
{
	pthread_mutex_unlock(lock);
}

bool vroom_process_alive(pid_t pid)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd p = { .fd = fd, .events = POLLIN };
	bool exited;

	if (fd < 0)
		return errno != ESRCH;
	exited = poll(&p, 1, 0) == 1; /* readable once it has ended, reaped or not */
	close(fd);
	return !exited;
}
