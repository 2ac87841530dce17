/* SPDX-License-Identifier: BSD-3-Clause */
#include "pci/names.h"

#include <limits.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/size.h"
#include "pci/sysfs.h"

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

bool vroom_is_namespace(const char *name)
{
	unsigned controller, ns;
	int end = 0;

	return sscanf(name, "nvme%un%u%n", &controller, &ns, &end) == 2 && !name[end];
}

static bool on_namespace(const char *name, void *arg)
{
	char path[PATH_MAX], text[32], generic[48];

	if (!vroom_is_namespace(name))
		return false;
	snprintf(path, sizeof(path), "/sys/class/block/%s/nsid", name);
	vroom_read_line(path, text, sizeof(text));
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
	vroom_for_entries(path, on_namespace, n);
	return false;
}

static bool on_controller(const char *controller, void *arg)
{
	struct names *n = arg;
	char path[PATH_MAX];

	add_name(n, controller, 0);
	snprintf(n->controller, sizeof(n->controller), "%s", controller);
	snprintf(path, sizeof(path), VROOM_PCI_DEVICES "/%s/nvme/%s", n->bdf, controller);
	vroom_for_entries(path, on_namespace, n);
	vroom_for_entries("/sys/class/nvme-subsystem", on_subsystem, n);
	return false;
}

int vroom_device_names(const char *bdf, struct vroom_device_name *names, int max)
{
	struct names n = { .list = names, .max = max, .bdf = bdf };
	char path[PATH_MAX];

	snprintf(path, sizeof(path), VROOM_PCI_DEVICES "/%s/nvme", bdf);
	vroom_for_entries(path, on_controller, &n);
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
	struct vroom_device_name names[VROOM_NAMES_MAX];
	struct search *s = arg;
	int count = s->names_of(bdf, names, VROOM_NAMES_MAX);

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
	return vroom_for_entries(directory, on_function, s);
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
	if (!search(&s, VROOM_PCI_DEVICES, vroom_device_names) &&
	    !search(&s, VROOM_RECORDS, vroom_device_recorded_names))
		return vroom_fail(ENODEV, "%s: no such NVMe device on a PCI bus; see vroom list",
				  name);
	memcpy(bdf, s.bdf, VROOM_BDF_MAX);
	*nsid = s.nsid;
	return 0;
}

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
	struct vroom_device_name names[VROOM_NAMES_MAX];
	int count = vroom_device_names(bdf, names, VROOM_NAMES_MAX);
	unsigned long long bytes = 0;
	char path[PATH_MAX];

	if (!count)
		return vroom_device_record(bdf, key, out, size);
	if (strcmp(key, "bytes")) {
		snprintf(path, sizeof(path), "/sys/class/nvme/%.63s/%s", names[0].name, key);
		vroom_read_line(path, out, size);
		for (size_t end = strlen(out); end && out[end - 1] == ' ';)
			out[--end] = '\0';
		return out[0];
	}
	for (int i = 0; i < count; i++) {
		snprintf(path, sizeof(path), "/sys/class/block/%.63s/size", names[i].name);
		vroom_read_line(path, out, size);
		bytes += strtoull(out, NULL, 10) *
			 512; /* the unit of sysfs, whatever the LBA size */
	}
	snprintf(out, size, "%llu", bytes);
	return true;
}
