/* SPDX-License-Identifier: BSD-3-Clause */
/* `vroom list`: the NVMe functions of this machine, as libpciaccess sees them. */
#include <argp.h>
#include <errno.h>
#include <json-c/json.h>
#include <libgen.h>
#include <limits.h>
#include <pciaccess.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

#define NVME_CLASS 0x010802

static const struct argp_option options[] = {
	{ "json", 'j', 0, 0, "Print JSON", 0 },
	{ 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	(void)arg;
	if (key != 'j')
		return key == ARGP_KEY_ARG ? (argp_error(state, "unexpected argument"), 0)
					   : ARGP_ERR_UNKNOWN;
	*(bool *)state->input = true;
	return 0;
}

/* The name that a symbolic link of the device in sysfs ends in, or "-". */
static const char *link_name(const char *address, const char *link, char *out, size_t size)
{
	char path[PATH_MAX], target[PATH_MAX];
	ssize_t n;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/%s", address, link);
	n = readlink(path, target, sizeof(target) - 1);
	if (n < 0)
		return "-";
	target[n] = '\0';
	snprintf(out, size, "%s", basename(target));
	return out;
}

static struct json_object *describe(struct pci_device *dev)
{
	struct json_object *o = json_object_new_object();
	char address[32], text[64];

	snprintf(address, sizeof(address), "%04x:%02x:%02x.%x", dev->domain, dev->bus, dev->dev,
		 dev->func);
	json_object_object_add(o, "address", json_object_new_string(address));
	snprintf(text, sizeof(text), "%04x:%04x", dev->vendor_id, dev->device_id);
	json_object_object_add(o, "id", json_object_new_string(text));
	json_object_object_add(
		o, "driver",
		json_object_new_string(link_name(address, "driver", text, sizeof(text))));
	json_object_object_add(
		o, "iommu_group",
		json_object_new_string(link_name(address, "iommu_group", text, sizeof(text))));
	return o;
}

static void print(struct json_object *o)
{
	json_object_object_foreach (o, key, value) {
		(void)key;
		printf("%-14s", json_object_get_string(value));
	}
	printf("\n");
}

int cli_list(int argc, char **argv)
{
	static const struct argp argp = {
		options, parse, "", "Shows the NVMe controllers on this machine's PCI buses.",
		0,	 0,	0
	};
	struct pci_id_match match = {
		PCI_MATCH_ANY, PCI_MATCH_ANY, PCI_MATCH_ANY, PCI_MATCH_ANY, NVME_CLASS, 0xffffff, 0
	};
	struct json_object *list = json_object_new_array();
	struct pci_device_iterator *it;
	struct pci_device *dev;
	bool json = false;
	int err;

	argp_parse(&argp, argc, argv, 0, NULL, &json);
	err = pci_system_init();
	/* A machine without a PCI bus has no NVMe function either. */
	if (err && err != ENOENT) {
		fprintf(stderr, "vroom: cannot look at the PCI buses: %s\n", strerror(err));
		return 1;
	}
	it = err ? NULL : pci_id_match_iterator_create(&match);
	while (it && (dev = pci_device_next(it))) {
		pci_device_probe(dev);
		json_object_array_add(list, describe(dev));
	}
	if (json) {
		printf("%s\n", json_object_to_json_string_ext(list, JSON_C_TO_STRING_PRETTY));
	} else if (json_object_array_length(list) == 0) {
		printf("no NVMe controller on this machine's PCI buses; a plain file, emu-mem or "
		       "emu-null as address starts an emulated one\n");
	} else {
		printf("%-14s%-14s%-14s%-14s\n", "ADDRESS", "ID", "DRIVER", "IOMMU GROUP");
		for (size_t i = 0; i < json_object_array_length(list); i++)
			print(json_object_array_get_idx(list, i));
	}
	json_object_put(list);
	if (it)
		pci_iterator_destroy(it);
	if (!err)
		pci_system_cleanup();
	return 0;
}
