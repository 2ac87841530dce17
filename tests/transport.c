/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * For tests/test_transport.py: opens a controller's transport, without a driver on top, and
 * takes one step per argument. A line per step: "STEP: RESULT", or "STEP: -ERRNO LINE".
 * Usage: transport [-i] ADDRESS STEP...  -i: with interrupts. Timeout of each message: 500 ms.
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "transport/transport.h"

#define BYTES 65536
#define IOVA  0x100000

static volatile sig_atomic_t children;

static void on_child(int sig)
{
	(void)sig;
	children++;
}

/* In place of the C library's: in a process that is to die in it, it has its last success. */
static bool dies_receiving;
ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	ssize_t n = syscall(SYS_recvmsg, fd, msg, flags);

	if (n > 0 && dies_receiving)
		kill(getpid(), SIGKILL);
	return n;
}

static int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = -3; /* ".", ".." and the directory's own */

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

static int map(struct vroom_transport *t)
{
	uint64_t pages[BYTES / 4096];
	struct vroom_dma_map m = { .bytes = BYTES,
				   .fd = memfd_create("test", MFD_CLOEXEC),
				   .page_shift = 12,
				   .iova = IOVA,
				   .page_iova = pages };
	int ret = ftruncate(m.fd, BYTES);

	if (!ret)
		ret = t->ops->dma_map(t, &m);
	close(m.fd);
	return ret;
}

static int read_cap(struct vroom_transport *t)
{
	uint64_t value;

	return t->ops->read(t, 0, &value, sizeof(value), 0);
}

/* More questions than a socket holds, to one who does not read them. */
static int drown(struct vroom_transport *t)
{
	uint64_t value;

	for (unsigned i = 0; i < 500; i++)
		if (t->ops->read(t, 0, &value, sizeof(value), 1) != -ETIMEDOUT)
			return -EPROTO;
	return 0;
}

/* A process that is killed MS after it has asked. */
static int victim(struct vroom_transport *t, unsigned ms)
{
	pid_t pid = fork();

	if (!pid)
		_exit(read_cap(t) != 0);
	usleep(ms * 1000);
	kill(pid, SIGKILL);
	return waitpid(pid, NULL, 0) == pid ? 0 : -errno;
}

/* A process that is killed inside the call that takes its answer, or a part of it. */
static int victim_receiving(struct vroom_transport *t)
{
	pid_t pid = fork();
	int status = 0;

	if (!pid) {
		dies_receiving = true;
		_exit(read_cap(t) != 0);
	}
	waitpid(pid, &status, 0);
	return WIFSIGNALED(status) ? 0 : -ECHILD;
}

/* In a process of its own: 0 or -1. */
static int cut_in_child(struct vroom_transport *t)
{
	pid_t pid = fork();
	int status = -1;

	if (!pid)
		_exit(!t->ops->cut_off || t->ops->cut_off(t) != 0);
	waitpid(pid, &status, 0);
	return status ? -1 : 0;
}

static int wait_for_children(void)
{
	while (wait(NULL) > 0)
		;
	return errno == ECHILD ? 0 : -errno;
}

static int wait_for_irq(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 500) == 1 ? 0 : -ETIMEDOUT;
}

static int step(struct vroom_transport *t, const char *name, int irq)
{
	if (!strcmp(name, "read"))
		return read_cap(t);
	if (!strcmp(name, "map"))
		return map(t);
	if (!strcmp(name, "unmap"))
		return t->ops->dma_unmap ? t->ops->dma_unmap(t, IOVA, BYTES) : -ENOSYS;
	if (!strcmp(name, "cut"))
		return t->ops->cut_off ? t->ops->cut_off(t) : -ENOSYS;
	if (!strcmp(name, "drown"))
		return drown(t);
	if (!strcmp(name, "cut-in-child"))
		return cut_in_child(t);
	if (!strcmp(name, "alive"))
		return t->ops->alive(t);
	if (!strcmp(name, "irq"))
		return t->ops->set_irq(t, 1, irq);
	if (!strcmp(name, "wait-irq"))
		return wait_for_irq(irq);
	if (!strcmp(name, "wait"))
		return wait_for_children();
	if (!strncmp(name, "victim=", 7))
		return victim(t, (unsigned)atoi(name + 7));
	if (!strcmp(name, "victim-receiving"))
		return victim_receiving(t);
	if (!strncmp(name, "sleep=", 6))
		return usleep((unsigned)atoi(name + 6) * 1000);
	if (!strcmp(name, "children"))
		return children;
	if (!strcmp(name, "fds"))
		return count_fds();
	if (!strcmp(name, "vectors"))
		return (int)t->vectors;
	if (!strcmp(name, "mapped"))
		return t->doorbells != NULL;
	return -EINVAL;
}

int main(int argc, char **argv)
{
	bool interrupts = argc > 1 && !strcmp(argv[1], "-i");
	char **arg = argv + 1 + interrupts;
	struct vroom_transport_opts opts = { .timeout_ms = 500, .interrupts = interrupts };
	static struct vroom_address addr;
	struct vroom_transport *t;
	int ret, irq = eventfd(0, EFD_CLOEXEC);

	setlinebuf(stdout);
	signal(SIGCHLD, on_child);
	printf("start: %d\n", count_fds());
	ret = *arg ? vroom_address_parse(*arg++, &addr) : -EINVAL;
	if (!ret)
		ret = vroom_transport_vfio_user.open(&addr, &opts, &t);
	if (ret) {
		printf("open: %d %s\n", ret, vroom_error());
		return 1;
	}
	for (; *arg; arg++) {
		uint64_t start = vroom_now_ms();

		vroom_fail(0, "%s", "");
		ret = step(t, *arg, irq);
		printf("%s: %d %s\n", *arg, ret, ret < 0 ? vroom_error() : "");
		if (vroom_now_ms() - start > 3000)
			printf("%s: took %d ms\n", *arg, (int)(vroom_now_ms() - start));
	}
	t->ops->close(t, true);
	printf("close: %d\n", count_fds());
	return 0;
}
