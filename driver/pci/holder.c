/* SPDX-License-Identifier: BSD-3-Clause */
#include "pci/holder.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "pci/names.h"
#include "pci/sysfs.h"

struct holder {
	const char *disk; /* nvme0n1 */
	/* The disk, partition or character device that is being looked at. */
	dev_t dev;
	mode_t type;
	const char *pid;
	char *text;
	size_t size;
};

__attribute__((format(printf, 2, 3))) static bool says(struct holder *h, const char *format, ...)
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

	return stat(path, &st) == 0 && st.st_rdev == h->dev && (st.st_mode & S_IFMT) == h->type;
}

/* Is it in a table of the kernel's, whose lines begin with a device and what that is used for? */
static bool is_listed(struct holder *h, const char *table, const char *used_as)
{
	FILE *f = fopen(table, "re");
	char line[2 * PATH_MAX], device[PATH_MAX], what[PATH_MAX];
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f))
		if (sscanf(line, "%4095s %4095s", device, what) == 2 && same_device(h, device))
			found = says(h, "%s %s", used_as, what);
	if (f)
		fclose(f);
	return found;
}

static bool on_holder(const char *name, void *arg)
{
	char dm[256];

	vroom_read_line(dm, sizeof(dm), "/sys/class/block/%s/dm/name", name);
	return dm[0] ? says(arg, "part of the device-mapper volume %s (LVM, crypt, ...)", dm)
		     : says(arg, "part of %s", name);
}

static bool on_fd(const char *fd, void *arg)
{
	struct holder *h = arg;
	char path[PATH_MAX], comm[64];

	snprintf(path, sizeof(path), "/proc/%s/fd/%s", h->pid, fd);
	if (!same_device(h, path))
		return false;
	vroom_read_line(comm, sizeof(comm), "/proc/%s/comm", h->pid);
	return says(h, "held open by %s (pid %s)", comm, h->pid);
}

static bool on_process(const char *pid, void *arg)
{
	struct holder *h = arg;

	h->pid = pid;
	return isdigit((unsigned char)pid[0]) && vroom_for_entries(on_fd, h, "/proc/%s/fd", pid);
}

/* By somebody whom the rest does not see, such as a mount in another mount namespace. */
static bool is_claimed(struct holder *h, const char *name)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "/dev/%s", name);
	fd = open(path, O_RDONLY | O_EXCL | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	return fd < 0 && errno == EBUSY && says(h, "claimed by the kernel or another container");
}

/* Is there a NAME (nvme0n1, nvme0n1p1, ng0n1, nvme0) in this class of devices, and held? */
static bool is_held(struct holder *h, const char *name, const char *class)
{
	bool block = !strcmp(class, "block");
	unsigned major, minor;
	char text[32];

	vroom_read_line(text, sizeof(text), "/sys/class/%s/%s/dev", class, name);
	if (sscanf(text, "%u:%u", &major, &minor) != 2)
		return false;
	h->dev = makedev(major, minor);
	h->type = block ? S_IFBLK : S_IFCHR;
	if (!block)
		return vroom_for_entries(on_process, h, "/proc");
	return is_listed(h, "/proc/self/mounts", "mounted on") ||
	       is_listed(h, "/proc/swaps", "in use as swap") ||
	       vroom_for_entries(on_holder, h, "/sys/class/block/%s/holders", name) ||
	       vroom_for_entries(on_process, h, "/proc") || is_claimed(h, name);
}

static bool on_partition(const char *name, void *arg)
{
	struct holder *h = arg;
	size_t disk = strlen(h->disk);

	return strncmp(name, h->disk, disk) == 0 && name[disk] == 'p' && is_held(h, name, "block");
}

bool vroom_device_holder(const char *bdf, char *text, size_t size)
{
	struct vroom_device_name names[VROOM_NAMES_MAX];
	struct holder h = { .text = text, .size = size };
	int count = vroom_device_names(bdf, names, VROOM_NAMES_MAX);
	bool held = false;

	text[0] = '\0';
	for (int i = 0; i < count && !held; i++) {
		h.disk = names[i].name;
		held = vroom_for_entries(on_partition, &h, "/sys/class/block/%s", h.disk) ||
		       is_held(&h, h.disk, "block") || is_held(&h, h.disk, "nvme-generic") ||
		       is_held(&h, h.disk, "nvme");
	}
	return held;
}
