/* SPDX-License-Identifier: BSD-3-Clause */
/* `vroom hugepages`: shows and reserves what DMA without an IOMMU lives in. */
#include <argp.h>
#include <errno.h>
#include <hugetlbfs.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "base/error.h"
#include "base/lock.h"
#include "emulator/size.h"

#define MAX_SIZES 8

struct arguments {
	uint64_t bytes, page_bytes;
	long node; /* -1: any */
	bool reserve;
};

/* Huge pages of the size that every x86-64 processor has. */
#define DEFAULT_PAGE_BYTES (2ul << 20)

static const struct argp_option options[] = {
	{ "page-size", 'p', "SIZE", 0, "2M or 1G (2M)", 0 },
	{ "node", 'n', "N", 0, "Reserve on this NUMA node (the kernel's choice)", 0 },
	{ 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;
	char *end;

	switch (key) {
	case 'p':
		if (!vroom_parse_size(arg, &a->page_bytes))
			argp_error(state, "--page-size %s: is not a size", arg);
		return 0;
	case 'n':
		a->node = strtol(arg, &end, 10);
		if (*end || a->node < 0)
			argp_error(state, "--node %s: is not a node's number", arg);
		return 0;
	case ARGP_KEY_ARG:
		if (!vroom_parse_size(arg, &a->bytes) || a->reserve)
			argp_error(state, "%s: is not a size", arg);
		a->reserve = true;
		return 0;
	default: return ARGP_ERR_UNKNOWN;
	}
}

/* A counter of the pool of pages of BYTES, of all nodes or of one. */
static void counter_path(const struct arguments *a, uint64_t bytes, const char *name, char *path)
{
	if (a->node >= 0)
		snprintf(path, PATH_MAX,
			 "/sys/devices/system/node/node%ld/hugepages/hugepages-%llukB/%s", a->node,
			 (unsigned long long)bytes >> 10, name);
	else
		snprintf(path, PATH_MAX, "/sys/kernel/mm/hugepages/hugepages-%llukB/%s",
			 (unsigned long long)bytes >> 10, name);
}

static unsigned long long read_counter(const struct arguments *a, uint64_t bytes, const char *name)
{
	unsigned long long value = 0;
	char path[PATH_MAX];
	FILE *f;

	counter_path(a, bytes, name, path);
	f = fopen(path, "re");
	if (f && fscanf(f, "%llu", &value) != 1)
		value = 0;
	if (f)
		fclose(f);
	return value;
}

/* libhugetlbfs looks for mounts once, when a program starts; so this is for the next one. */
static int mount_pool(uint64_t bytes)
{
	const char *dir = bytes == DEFAULT_PAGE_BYTES ? "/dev/hugepages" : "/dev/hugepages-1G";
	char option[64];

	if (hugetlbfs_find_path_for_size((long)bytes))
		return 0;
	snprintf(option, sizeof(option), "pagesize=%lluM", (unsigned long long)bytes >> 20);
	mkdir(dir, 0755);
	if (mount("hugetlbfs", dir, "hugetlbfs", 0, option) != 0)
		return vroom_fail(errno, "hugepages: cannot mount hugetlbfs at %s: %s", dir,
				  strerror(errno));
	printf("mounted hugetlbfs at %s\n", dir);
	return 0;
}

static int reserve(const struct arguments *a)
{
	unsigned long long pages = (a->bytes + a->page_bytes - 1) / a->page_bytes, got;
	char path[PATH_MAX];
	FILE *f;

	counter_path(a, a->page_bytes, "nr_hugepages", path);
	f = fopen(path, "we");
	if (!f)
		return vroom_fail(errno, "hugepages: cannot open %s: %s%s", path, strerror(errno),
				  errno == EACCES ? "; it takes root" : "");
	fprintf(f, "%llu\n", pages);
	fclose(f);
	got = read_counter(a, a->page_bytes, "nr_hugepages");
	if (got < pages)
		return vroom_fail(
			ENOMEM,
			"hugepages: the kernel found %llu of %llu pages of %llu MiB; memory is in "
			"use or in pieces: free some, or reserve at boot (hugepagesz=%lluM "
			"hugepages=%llu)",
			got, pages, (unsigned long long)a->page_bytes >> 20,
			(unsigned long long)a->page_bytes >> 20, pages);
	if (got > pages)
		printf("%llu pages stay, they are in use\n", got - pages);
	return pages ? mount_pool(a->page_bytes) : 0;
}

int cli_hugepages(int argc, char **argv)
{
	static const struct argp argp = { options,
					  parse,
					  "[SIZE]",
					  "Shows the pools of huge pages, or sets one to SIZE "
					  "bytes in all (64M; 0 gives them back) "
					  "and mounts hugetlbfs where it is not. Driving a device "
					  "without an IOMMU needs them.",
					  0,
					  0,
					  0 };
	struct arguments a = { .page_bytes = DEFAULT_PAGE_BYTES, .node = -1 };
	long sizes[MAX_SIZES];
	int count;

	argp_parse(&argp, argc, argv, 0, NULL, &a);
	if (a.page_bytes != DEFAULT_PAGE_BYTES && a.page_bytes != 1ull << 30) {
		vroom_fail(EINVAL, "hugepages: --page-size must be 2M or 1G");
		return cli_fail();
	}
	if (a.reserve && reserve(&a))
		return cli_fail();
	count = gethugepagesizes(sizes, MAX_SIZES);
	printf("%-10s%10s%10s  %s\n", "PAGE", "PAGES", "FREE", "MOUNTED AT");
	for (int i = 0; i < count; i++) {
		const char *dir = hugetlbfs_find_path_for_size(sizes[i]);
		char page[32];

		snprintf(page, sizeof(page), "%ld MiB", sizes[i] >> 20);
		printf("%-10s%10llu%10llu  %s\n", page,
		       read_counter(&a, (uint64_t)sizes[i], "nr_hugepages"),
		       read_counter(&a, (uint64_t)sizes[i], "free_hugepages"), dir ? dir : "-");
	}
	return 0;
}
