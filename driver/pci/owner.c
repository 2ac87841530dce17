/* SPDX-License-Identifier: BSD-3-Clause */
#include "pci/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

/*
 * Anybody can put something in the directory's way: what is opened is not followed elsewhere, not
 * waited for, and only locked and written when it is a file of no other name.
 */
static int open_plain(const char *path, int flags)
{
	int fd = open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
	struct stat st;

	if (fd < 0)
		return errno == ELOOP ? -EMLINK : -errno;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink <= 1)
		return fd;
	close(fd);
	return -EMLINK;
}

/* Opens the lock file of a function, to WRITE or to look; any user may own the function. */
static int open_lock_file(const char *bdf, bool write)
{
	int fd, flags = write ? O_RDWR : O_RDONLY;
	char path[64];

	snprintf(path, sizeof(path), "/run/lock/vroom-%s", bdf);
	/* Another user's file must not be opened with O_CREAT (fs.protected_regular). */
	fd = open_plain(path, flags);
	if (fd == -ENOENT && write) {
		fd = open_plain(path, flags | O_CREAT | O_EXCL);
		if (fd >= 0)
			fchmod(fd, 0666);
		else if (fd == -EEXIST) /* another vroom was faster */
			fd = open_plain(path, flags);
	}
	if (fd == -EMLINK)
		return vroom_fail_on(bdf, EPERM,
				     "%s is a link or no plain file, and not vroom's lock file; "
				     "see who put it there, and remove it",
				     path);
	if (fd < 0)
		return vroom_fail_on(bdf, -fd, "cannot open the lock file %s: %s", path,
				     strerror(-fd));
	return fd;
}

/* A lock of the open file, which forked processes share (fcntl(2), open file description). */
static const struct flock whole_file = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

int vroom_device_owner(const char *bdf)
{
	struct flock lock = whole_file;
	int ret = 0, fd = open_lock_file(bdf, false);
	char pid[32] = "";

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	if (fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK) {
		if (pread(fd, pid, sizeof(pid) - 1, 0) < 0)
			pid[0] = '\0';
		ret = vroom_fail_on(bdf, EBUSY, "in use by another vroom, pid %d or a job of it",
				    atoi(pid));
	}
	close(fd);
	return ret;
}

int vroom_device_lock(const char *bdf, int *out)
{
	int fd = open_lock_file(bdf, true);

	if (fd < 0)
		return fd;
	if (fcntl(fd, F_OFD_SETLK, &whole_file) != 0) {
		close(fd);
		return vroom_device_owner(bdf);
	}
	if (ftruncate(fd, 0) != 0 || dprintf(fd, "%d\n", getpid()) < 0) {
		close(fd);
		return vroom_fail_on(bdf, errno, "cannot write the lock file: %s", strerror(errno));
	}
	*out = fd;
	return 0;
}
