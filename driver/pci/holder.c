/* SPDX-License-Identifier: BSD-3-Clause */
#include "pci/holder.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <mntent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "pci/names.h"
#include "pci/sysfs.h"

struct holder {
	const char *disk; /* nvme0n1 */
	dev_t dev;	  /* of the disk or partition that is being looked at */
	bool character;
	unsigned long pid;
	char *text;
	size_t size;
};

static bool says(struct holder *h, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(h->text, h->size, format, args);
	va_end(args);
	return true;
}

static bool same_device(const struct holder *h, const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && st.st_rdev == h->dev &&
	       (h->character ? S_ISCHR(st.st_mode) : S_ISBLK(st.st_mode));
}

static bool is_mounted(struct holder *h)
{
	FILE *mounts = setmntent("/proc/self/mounts", "re");
	struct mntent *m;
	bool found = false;

	while (mounts && !found && (m = getmntent(mounts)))
		if (same_device(h, m->mnt_fsname))
			found = says(h, "mounted on %s", m->mnt_dir);
	if (mounts)
		endmntent(mounts);
	return found;
}

static bool is_swap(struct holder *h)
{
	FILE *swaps = fopen("/proc/swaps", "re");
	char line[PATH_MAX + 64], path[PATH_MAX];
	bool found = false;

	while (swaps && !found && fgets(line, sizeof(line), swaps))
		if (sscanf(line, "%4095s", path) == 1 && same_device(h, path))
			found = says(h, "in use as swap (%s)", path);
	if (swaps)
		fclose(swaps);
	return found;
}

static bool on_holder(const char *name, void *arg)
{
	char path[PATH_MAX], dm[256];

	snprintf(path, sizeof(path), "/sys/class/block/%s/dm/name", name);
	vroom_read_line(path, dm, sizeof(dm));
	if (dm[0])
		return says(arg, "part of the device-mapper volume %s (LVM, crypt, ...)", dm);
	return says(arg, "part of %s", name);
}

static bool on_fd(const char *fd, void *arg)
{
	struct holder *h = arg;
	char path[PATH_MAX], comm[64];

	snprintf(path, sizeof(path), "/proc/%lu/fd/%s", h->pid, fd);
	if (!same_device(h, path))
		return false;
	snprintf(path, sizeof(path), "/proc/%lu/comm", h->pid);
	vroom_read_line(path, comm, sizeof(comm));
	return says(h, "held open by %s (pid %lu)", comm, h->pid);
}

static bool on_process(const char *pid, void *arg)
{
	struct holder *h = arg;
	char path[PATH_MAX];

	if (!isdigit((unsigned char)pid[0]))
		return false;
	h->pid = strtoul(pid, NULL, 10);
	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	return vroom_for_entries(path, on_fd, h);
}

/* NAME: nvme0n1, nvme0n1p1, ng0n1 or nvme0. */
static bool is_held(struct holder *h, const char *name, bool character)
{
	char path[PATH_MAX], text[32];
	unsigned major, minor;
	int fd;

	snprintf(path, sizeof(path), "/sys/%s/%s/dev",
		 !character		  ? "class/block"
		 : strncmp(name, "ng", 2) ? "class/nvme"
					  : "class/nvme-generic",
		 name);
	vroom_read_line(path, text, sizeof(text));
	if (sscanf(text, "%u:%u", &major, &minor) != 2)
		return false;
	h->dev = makedev(major, minor);
	h->character = character;
	if (!character) {
		snprintf(path, sizeof(path), "/sys/class/block/%s/holders", name);
		if (is_mounted(h) || is_swap(h) || vroom_for_entries(path, on_holder, h))
			return true;
	}
	if (vroom_for_entries("/proc", on_process, h))
		return true;
	if (character)
		return false;
	/* What the above does not see, such as a mount in another mount namespace. */
	snprintf(path, sizeof(path), "/dev/%s", name);
	fd = open(path, O_RDONLY | O_EXCL | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	return fd < 0 && errno == EBUSY && says(h, "claimed by the kernel or another container");
}

static bool on_partition(const char *name, void *arg)
{
	struct holder *h = arg;
	size_t disk = strlen(h->disk);

	return strncmp(name, h->disk, disk) == 0 && name[disk] == 'p' && is_held(h, name, false);
}

bool vroom_device_holder(const char *bdf, char *text, size_t size)
{
	struct vroom_device_name names[VROOM_NAMES_MAX];
	struct holder h = { .text = text, .size = size };
	int count = vroom_device_names(bdf, names, VROOM_NAMES_MAX);
	char path[PATH_MAX];

	text[0] = '\0';
	for (int i = 0; i < count; i++) {
		h.disk = names[i].name;
		if (!vroom_is_namespace(h.disk)) {
			if (is_held(&h, h.disk, true))
				return true;
			continue;
		}
		snprintf(path, sizeof(path), "/sys/class/block/%.63s", h.disk);
		if (vroom_for_entries(path, on_partition, &h) || is_held(&h, h.disk, false))
			return true;
	}
	return false;
}
