/* SPDX-License-Identifier: BSD-3-Clause */
/* NVMe functions in sysfs, who holds them, and the lock file of their owner. */
#include "transport/device.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <mntent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "core/internal.h"

#define PCI_DEVICES "/sys/bus/pci/devices"
#define NAMES_MAX   256

/* --- reading sysfs -------------------------------------------------------------------------- */

static void read_line(const char *path, char *out, size_t size)
{
	FILE *f = fopen(path, "re");

	out[0] = '\0';
	if (!f)
		return;
	if (fgets(out, (int)size, f))
		out[strcspn(out, "\n")] = '\0';
	fclose(f);
}

void vroom_device_attribute(const char *bdf, const char *name, char *out, size_t size)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), PCI_DEVICES "/%s/%s", bdf, name);
	read_line(path, out, size);
}

/* The last part of what a symbolic link of the function points to, or "". */
static void link_name(const char *bdf, const char *link, char *out, size_t size)
{
	char path[PATH_MAX], target[PATH_MAX];
	ssize_t n;

	snprintf(path, sizeof(path), PCI_DEVICES "/%s/%s", bdf, link);
	n = readlink(path, target, sizeof(target) - 1);
	target[n > 0 ? n : 0] = '\0';
	snprintf(out, size, "%s", n > 0 ? basename(target) : "");
}

bool vroom_device_parse(const char *text, char bdf[VROOM_BDF_MAX])
{
	unsigned domain = 0, bus, device, function;
	char end;

	if (sscanf(text, "%4x%*1[.:]%2x%*1[.:]%2x.%1x%c", &domain, &bus, &device, &function,
		   &end) != 4) {
		domain = 0;
		if (sscanf(text, "%2x:%2x.%1x%c", &bus, &device, &function, &end) != 3)
			return false;
	}
	snprintf(bdf, VROOM_BDF_MAX, "%04x:%02x:%02x.%x", domain & 0xffff, bus & 0xff,
		 device & 0xff, function & 0xf);
	return true;
}

int vroom_device_look(const char *bdf, struct vroom_device *out)
{
	char path[PATH_MAX], text[64];

	memset(out, 0, sizeof(*out));
	snprintf(out->bdf, sizeof(out->bdf), "%s", bdf);
	vroom_device_attribute(bdf, "class", text, sizeof(text));
	if (!text[0])
		return vroom_fail(ENODEV, "%s: no such PCI function; see vroom list", bdf);
	if (strtoul(text, NULL, 16) != VROOM_PCI_CLASS_NVME)
		return vroom_fail(ENODEV, "%s: is not an NVMe controller (PCI class %s)", bdf,
				  text);
	link_name(bdf, "driver", out->driver, sizeof(out->driver));
	link_name(bdf, "iommu_group", text, sizeof(text));
	out->iommu_group = text[0] ? atoi(text) : -1;
	if (text[0]) {
		snprintf(path, sizeof(path), "/sys/kernel/iommu_groups/%s/type", text);
		read_line(path, text, sizeof(text));
		out->iommu_translates = strcmp(text, "identity") != 0;
	}
	vroom_device_attribute(bdf, "numa_node", text, sizeof(text));
	out->numa_node = text[0] ? atoi(text) : -1;
	return 0;
}

/* --- names ------------------------------------------------------------------------------------
 */

/* Calls EACH for the entries of a directory until it returns true. */
static bool for_entries(const char *path, bool (*each)(const char *name, void *arg), void *arg)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	bool stop = false;

	if (!dir)
		return false;
	while (!stop && (entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			stop = each(entry->d_name, arg);
	closedir(dir);
	return stop;
}

struct names {
	struct vroom_device_name *list;
	int count, max;
	const char *bdf;
	char controller[64]; /* nvme0 */
};

static void add_name(struct names *n, const char *name, uint32_t nsid)
{
	if (n->count < n->max) {
		snprintf(n->list[n->count].name, sizeof(n->list->name), "%s", name);
		n->list[n->count].nsid = nsid;
	}
	n->count++;
}

/* nvme0n1: a namespace; nvme0c0n1 is a hidden path to one, nvme0n1p1 a part of one. */
static bool is_namespace(const char *name)
{
	unsigned controller, ns;
	int end = 0;

	return sscanf(name, "nvme%un%u%n", &controller, &ns, &end) == 2 && !name[end];
}

static bool on_namespace(const char *name, void *arg)
{
	char path[PATH_MAX], text[32], generic[48];

	if (!is_namespace(name))
		return false;
	snprintf(path, sizeof(path), "/sys/class/block/%s/nsid", name);
	read_line(path, text, sizeof(text));
	add_name(arg, name, (uint32_t)strtoul(text, NULL, 10));
	snprintf(generic, sizeof(generic), "ng%s", name + 4);
	add_name(arg, generic, (uint32_t)strtoul(text, NULL, 10));
	return false;
}

/* With native multipath the block devices are the subsystem's, not the controller's. */
static bool on_subsystem(const char *subsystem, void *arg)
{
	struct names *n = arg;
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "/sys/class/nvme-subsystem/%s/%s", subsystem, n->controller);
	if (access(path, F_OK) != 0)
		return false;
	snprintf(path, sizeof(path), "/sys/class/nvme-subsystem/%s", subsystem);
	for_entries(path, on_namespace, n);
	return false;
}

static bool on_controller(const char *controller, void *arg)
{
	struct names *n = arg;
	char path[PATH_MAX];

	add_name(n, controller, 0);
	snprintf(n->controller, sizeof(n->controller), "%s", controller);
	snprintf(path, sizeof(path), PCI_DEVICES "/%s/nvme/%s", n->bdf, controller);
	for_entries(path, on_namespace, n);
	for_entries("/sys/class/nvme-subsystem", on_subsystem, n);
	return false;
}

int vroom_device_names(const char *bdf, struct vroom_device_name *names, int max)
{
	struct names n = { .list = names, .max = max, .bdf = bdf };
	char path[PATH_MAX];

	snprintf(path, sizeof(path), PCI_DEVICES "/%s/nvme", bdf);
	for_entries(path, on_controller, &n);
	return VROOM_MIN(n.count, max);
}

int vroom_device_recorded_names(const char *bdf, struct vroom_device_name *names, int max)
{
	char path[PATH_MAX], line[128];
	int count = 0;
	FILE *f;

	snprintf(path, sizeof(path), VROOM_RECORDS "/%s", bdf);
	f = fopen(path, "re");
	while (f && count < max && fgets(line, sizeof(line), f))
		count += sscanf(line, "name %63s %u", names[count].name, &names[count].nsid) == 2;
	if (f)
		fclose(f);
	return count;
}

struct search {
	const char *name; /* nvme0n1 */
	char bdf[VROOM_BDF_MAX];
	uint32_t nsid;
	/* where names are looked for: in sysfs or in the records */
	int (*names_of)(const char *bdf, struct vroom_device_name *names, int max);
};

/* Does this PCI function go by the name that is looked for? */
static bool on_function(const char *bdf, void *arg)
{
	struct vroom_device_name names[NAMES_MAX];
	struct search *s = arg;
	int count = s->names_of(bdf, names, NAMES_MAX);

	for (int i = 0; i < count; i++) {
		if (strcmp(names[i].name, s->name))
			continue;
		snprintf(s->bdf, sizeof(s->bdf), "%s", bdf);
		s->nsid = names[i].nsid;
		return true;
	}
	return false;
}

/* Looks S's name up in what DIRECTORY lists, by what NAMES_OF says of each. */
static bool search(struct search *s, const char *directory,
		   int (*names_of)(const char *, struct vroom_device_name *, int))
{
	s->names_of = names_of;
	return for_entries(directory, on_function, s);
}

int vroom_device_resolve(const char *name, char bdf[VROOM_BDF_MAX], uint32_t *nsid)
{
	struct search s = { .name = name };
	unsigned controller, ns, part;

	*nsid = 0;
	if (vroom_device_parse(name, bdf))
		return 0;
	if (strncmp(name, "/dev/", 5) == 0)
		s.name = name + 5;
	if (sscanf(s.name, "nvme%un%up%u", &controller, &ns, &part) == 3)
		return vroom_fail(EINVAL, "%s: is a partition; name the namespace, /dev/nvme%un%u",
				  name, controller, ns);
	if (!search(&s, PCI_DEVICES, vroom_device_names) &&
	    !search(&s, VROOM_RECORDS, vroom_device_recorded_names))
		return vroom_fail(ENODEV, "%s: no such NVMe device on a PCI bus; see vroom list",
				  name);
	memcpy(bdf, s.bdf, VROOM_BDF_MAX);
	*nsid = s.nsid;
	return 0;
}

/* --- what is known of it ------------------------------------------------------------------------
 */

bool vroom_device_record(const char *bdf, const char *key, char *out, size_t size)
{
	char path[PATH_MAX], line[256];
	size_t length = strlen(key);
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), VROOM_RECORDS "/%s", bdf);
	f = fopen(path, "re");
	while (f && !found && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		found = strncmp(line, key, length) == 0 && line[length] == ' ';
	}
	if (f)
		fclose(f);
	snprintf(out, size, "%s", found ? line + length + 1 : "");
	return found;
}

bool vroom_device_fact(const char *bdf, const char *key, char *out, size_t size)
{
	struct vroom_device_name names[NAMES_MAX];
	int count = vroom_device_names(bdf, names, NAMES_MAX);
	unsigned long long bytes = 0;
	char path[PATH_MAX];

	if (!count)
		return vroom_device_record(bdf, key, out, size);
	if (strcmp(key, "bytes")) {
		snprintf(path, sizeof(path), "/sys/class/nvme/%.63s/%s", names[0].name, key);
		read_line(path, out, size);
		for (size_t end = strlen(out); end && out[end - 1] == ' ';)
			out[--end] = '\0';
		return out[0];
	}
	for (int i = 0; i < count; i++) {
		snprintf(path, sizeof(path), "/sys/class/block/%.63s/size", names[i].name);
		read_line(path, out, size);
		bytes += strtoull(out, NULL, 10) *
			 512; /* the unit of sysfs, whatever the LBA size */
	}
	snprintf(out, size, "%llu", bytes);
	return true;
}

struct group {
	const struct vroom_device *d;
	char blocker[128];
};

static bool on_group_member(const char *bdf, void *arg)
{
	static const char *const harmless[] = { "", "vfio-pci", "pcieport" };
	struct group *g = arg;
	char driver[64];

	link_name(bdf, "driver", driver, sizeof(driver));
	for (size_t i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++)
		if (!strcmp(driver, harmless[i]) || !strcmp(bdf, g->d->bdf))
			return false;
	snprintf(g->blocker, sizeof(g->blocker), "%.32s is on %.63s", bdf, driver);
	return true;
}

int vroom_device_check_group(const struct vroom_device *d)
{
	struct group g = { .d = d };
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "/sys/kernel/iommu_groups/%d/devices", d->iommu_group);
	return for_entries(path, on_group_member, &g)
		       ? vroom_fail(EBUSY,
				    "%s: IOMMU group %d goes to vfio as a whole, but %s; bind that "
				    "one to vfio-pci, too, or move the drive to another slot",
				    d->bdf, d->iommu_group, g.blocker)
		       : 0;
}

/* --- who uses it -------------------------------------------------------------------------------
 */

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
	read_line(path, dm, sizeof(dm));
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
	read_line(path, comm, sizeof(comm));
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
	return for_entries(path, on_fd, h);
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
	read_line(path, text, sizeof(text));
	if (sscanf(text, "%u:%u", &major, &minor) != 2)
		return false;
	h->dev = makedev(major, minor);
	h->character = character;
	if (!character) {
		snprintf(path, sizeof(path), "/sys/class/block/%s/holders", name);
		if (is_mounted(h) || is_swap(h) || for_entries(path, on_holder, h))
			return true;
	}
	if (for_entries("/proc", on_process, h))
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
	struct vroom_device_name names[NAMES_MAX];
	struct holder h = { .text = text, .size = size };
	int count = vroom_device_names(bdf, names, NAMES_MAX);
	char path[PATH_MAX];

	text[0] = '\0';
	for (int i = 0; i < count; i++) {
		h.disk = names[i].name;
		if (!is_namespace(h.disk)) {
			if (is_held(&h, h.disk, true))
				return true;
			continue;
		}
		snprintf(path, sizeof(path), "/sys/class/block/%.63s", h.disk);
		if (for_entries(path, on_partition, &h) || is_held(&h, h.disk, false))
			return true;
	}
	return false;
}

/* --- one owner ---------------------------------------------------------------------------------
 */

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

/* --- libpciaccess ------------------------------------------------------------------------------
 */

static pthread_mutex_t pci_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned pci_users;

struct pci_device *vroom_device_get(const char *bdf)
{
	unsigned domain, bus, device, function;
	struct pci_device *dev = NULL;
	int err;

	errno = EINVAL;
	if (sscanf(bdf, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
		return NULL;
	pthread_mutex_lock(&pci_lock);
	err = pci_users ? 0 : pci_system_init();
	if (!err) {
		dev = pci_device_find_by_slot(domain, bus, device, function);
		err = dev ? pci_device_probe(dev) : ENODEV;
		if (!err)
			pci_users++;
		else if (!pci_users)
			pci_system_cleanup();
	}
	pthread_mutex_unlock(&pci_lock);
	errno = err;
	return err ? NULL : dev;
}

void vroom_device_put(void)
{
	pthread_mutex_lock(&pci_lock);
	if (pci_users && --pci_users == 0)
		pci_system_cleanup();
	pthread_mutex_unlock(&pci_lock);
}
