/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/base.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>

int vroom_share(const char *device, size_t bytes, void **out)
{
	*out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
		    -1, 0);
	if (*out != MAP_FAILED)
		return 0;
	*out = NULL;
	return vroom_fail_on(device, ENOMEM, "out of memory");
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

bool vroom_lock(pthread_mutex_t *lock)
{
	int ret = pthread_mutex_lock(lock);
	bool died = ret == EOWNERDEAD;

	if (died)
		ret = pthread_mutex_consistent(lock);
	if (ret) /* a bug: the lock is ours and its protocol is kept */
		abort();
	return died;
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
