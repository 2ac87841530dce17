/* SPDX-License-Identifier: BSD-3-Clause */
#include "pci/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

/* Opens the lock file of a function, as FLAGS say; an ordinary user may be its owner as well. */
static int open_lock_file(const char *bdf, int flags)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "/run/lock/vroom-%s", bdf);
	if (access("/run/lock", F_OK) != 0)
		snprintf(path, sizeof(path), "/tmp/vroom-%s.lock", bdf);
	/* Another user's file must not be opened with O_CREAT (fs.protected_regular). */
	fd = open(path, (flags & ~O_CREAT) | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT && (flags & O_CREAT)) {
		fd = open(path, flags | O_CLOEXEC, 0666);
		if (fd >= 0)
			fchmod(fd, 0666);
	}
	if (fd < 0)
		return vroom_fail(errno, "%s: cannot open the lock file %s: %s", bdf, path,
				  strerror(errno));
	return fd;
}

/* A lock of the open file, which forked processes share (fcntl(2), open file description). */
static struct flock whole_file(void)
{
	return (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET };
}

int vroom_device_owner(const char *bdf)
{
	struct flock lock = whole_file();
	int ret = 0, fd = open_lock_file(bdf, O_RDONLY);
	char pid[32] = "";

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	if (fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK) {
		if (pread(fd, pid, sizeof(pid) - 1, 0) < 0)
			pid[0] = '\0';
		ret = vroom_fail(EBUSY, "%s: in use by another vroom, pid %d or a job of it", bdf,
				 atoi(pid));
	}
	close(fd);
	return ret;
}

int vroom_device_lock(const char *bdf, int *out)
{
	struct flock lock = whole_file();
	int fd = open_lock_file(bdf, O_RDWR | O_CREAT);

	if (fd < 0)
		return fd;
	if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
		close(fd);
		return vroom_device_owner(bdf);
	}
	if (ftruncate(fd, 0) != 0 || dprintf(fd, "%d\n", getpid()) < 0) {
		close(fd);
		return vroom_fail(errno, "%s: cannot write the lock file: %s", bdf,
				  strerror(errno));
	}
	*out = fd;
	return 0;
}
