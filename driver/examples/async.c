/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What asynchronous I/O is worth to a file system: the same block requests, each waited for or
 * all in flight, timed. The queue-pair API in use: disk_io() and disk_wait() are all there is.
 *
 *   async ADDRESS -w read   -b 256          a sequence of blocks, one command each
 *   async ADDRESS -w append -b 100 -f 16    100 blocks to each of 16 files, in one transaction
 *
 * The transaction is a toy file system's: the files' inodes are read, data blocks are written,
 * then the inodes, the map of free blocks and the checksums of the data, in bulk.
 */
#include <argp.h>
#include <errno.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "vroom.h"

#define DEPTH	   128 /* commands in flight */
#define BATCH	   16  /* submissions to one doorbell write */
#define MAX_TRIALS 1000

enum workload { READ, WRITE, APPEND, NR_WORKLOADS };
static const char *const workload_names[] = { "read", "write", "append" };

struct arguments {
	const char *address;
	enum workload workload;
	unsigned blocks, files, trials;
	bool sync, json;
};

/* --- block requests ------------------------------------------------------------------------- */

struct disk {
	struct vroom_ctrlr *ctrlr;
	struct vroom_ns ns;
	struct vroom_qpair *qp;
	unsigned in_flight;
	bool sync; /* wait for each request */
};

/* Rings the doorbell for what was submitted, and waits until at most LEFT are in flight. */
static int disk_wait(struct disk *d, unsigned left)
{
	struct vroom_completion done[DEPTH];

	vroom_ring(d->qp);
	while (d->in_flight > left) {
		int n = vroom_poll(d->qp, done, DEPTH);

		if (n < 0)
			return n; /* the queue pair has failed: vroom_error() says why */
		for (int i = 0; i < n; i++)
			if (done[i].status) {
				fprintf(stderr, "async: %s\n", vroom_status_str(done[i].status));
				return -1;
			}
		d->in_flight -= (unsigned)n;
	}
	return 0;
}

/* Reads or writes one block. BUF belongs to the controller until disk_wait(). */
static int disk_io(struct disk *d, bool write, char *buf, uint64_t lba)
{
	struct vroom_io io;
	int ret;

	if (write)
		vroom_prep_write(&io, &d->ns, buf, lba, 1, NULL);
	else
		vroom_prep_read(&io, &d->ns, buf, lba, 1, NULL);
	while ((ret = vroom_submit(d->qp, &io)) == -EAGAIN) /* full: make room */
		if ((ret = disk_wait(d, d->in_flight - 1)))
			return ret;
	if (ret)
		return ret;
	d->in_flight++;
	if (d->sync)
		return disk_wait(d, 0);
	if (d->in_flight % BATCH == 0)
		vroom_ring(d->qp);
	return 0;
}

/* COUNT blocks from LBA, one request each. */
static int disk_sequence(struct disk *d, bool write, char *buf, uint64_t lba, unsigned count)
{
	int ret = 0;

	for (unsigned i = 0; i < count && !ret; i++)
		ret = disk_io(d, write, buf + (size_t)i * d->ns.lba_size, lba + i);
	return ret;
}

/* --- the toy file system --------------------------------------------------------------------- */

/* Its areas on the disk, in blocks from LBA 0: inodes, free map, checksums, data. */
struct layout {
	unsigned files, blocks_per_file;
	uint64_t inodes, map, map_blocks, sums, sum_blocks, data, end;
};

struct inode {
	uint64_t number, first_block, blocks;
};

static struct layout plan(const struct disk *d, const struct arguments *a)
{
	uint64_t data = (uint64_t)a->files * a->blocks, block = d->ns.lba_size;
	struct layout l = { .files = a->files, .blocks_per_file = a->blocks };

	l.map = l.inodes + a->files; /* an inode a block */
	l.map_blocks = (data + block * 8 - 1) / (block * 8);
	l.sums = l.map + l.map_blocks;
	l.sum_blocks = (data * sizeof(uint32_t) + block - 1) / block;
	l.data = l.sums + l.sum_blocks;
	l.end = l.data + data;
	return l;
}

/* Fletcher's, of 32 bits. */
static uint32_t checksum(const char *block, size_t bytes)
{
	uint64_t a = 0, b = 0; /* large enough for any block without a remainder in between */

	for (size_t i = 0; i < bytes; i++) {
		a += (unsigned char)block[i];
		b += a;
	}
	return (uint32_t)(b % 65535 << 16 | a % 65535);
}

/*
 * Appends a->blocks blocks to each file in one transaction. IMAGE is DMA memory that mirrors
 * the disk from LBA 0.
 */
static int append(struct disk *d, const struct layout *l, char *image)
{
	uint64_t allocated = (uint64_t)l->files * l->blocks_per_file;
	size_t block = d->ns.lba_size;
	char *data = image + l->data * block, *map = image + l->map * block;
	uint32_t *sums = (uint32_t *)(void *)(image + l->sums * block);
	int ret;

	/* open all files: later steps need what is read here */
	ret = disk_sequence(d, false, image, l->inodes, l->files);
	if (!ret)
		ret = disk_wait(d, 0);
	/* data: the checksums are computed while it is on its way */
	for (uint64_t i = 0; i < allocated && !ret; i++) {
		ret = disk_io(d, true, data + i * block, l->data + i);
		sums[i] = checksum(data + i * block, block);
		map[i / 8] |= (char)(1 << i % 8);
	}
	for (uint64_t i = 0; i < l->files; i++)
		*(struct inode *)(void *)(image + i * block) = (struct inode){
			.number = i,
			.first_block = l->data + i * l->blocks_per_file,
			.blocks = l->blocks_per_file,
		};
	/* metadata goes out once all data is there: inodes, free map and checksums in bulk */
	if (!ret)
		ret = disk_wait(d, 0);
	if (!ret)
		ret = disk_sequence(d, true, image, l->inodes, (unsigned)l->data);
	return ret ? ret : disk_wait(d, 0);
}

/* --- timing ------------------------------------------------------------------------------------
 */

static double now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

/* What a data block of this trial holds: its file, its number, and the trial all over. */
static void stamp(char *image, const struct layout *l, size_t block, unsigned trial)
{
	for (uint64_t i = 0; i < l->end - l->data; i++) {
		char *at = image + (l->data + i) * block;
		int used = snprintf(at, block, "file %u block %u trial %u\n",
				    (unsigned)(i / l->blocks_per_file),
				    (unsigned)(i % l->blocks_per_file), trial);

		memset(at + used, 'a' + (int)(trial % 26), block - (size_t)used);
	}
}

/* One trial in microseconds, or negative. */
static double trial(struct disk *d, const struct arguments *a, const struct layout *l, char *image,
		    unsigned number)
{
	double start;
	int ret;

	stamp(image, l, d->ns.lba_size, number);
	start = now_us();
	if (a->workload == APPEND) {
		ret = append(d, l, image);
	} else {
		ret = disk_sequence(d, a->workload == WRITE, image + l->data * d->ns.lba_size,
				    l->data, a->blocks);
		if (!ret)
			ret = disk_wait(d, 0);
	}
	return ret ? -1 : now_us() - start;
}

static void report(const struct arguments *a, const struct layout *l, uint64_t block,
		   const double *us)
{
	uint64_t bytes = (l->end - l->data) * block;
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();
	double mean = 0;

	for (unsigned i = 0; i < a->trials; i++) {
		mean += us[i] / a->trials;
		json_object_array_add(list, json_object_new_double(us[i]));
	}
	json_object_object_add(o, "workload", json_object_new_string(workload_names[a->workload]));
	json_object_object_add(o, "mode", json_object_new_string(a->sync ? "sync" : "async"));
	json_object_object_add(o, "blocks", json_object_new_int64(a->blocks));
	json_object_object_add(o, "files", json_object_new_int64(a->files));
	json_object_object_add(o, "block_bytes", json_object_new_uint64(block));
	json_object_object_add(o, "data_bytes", json_object_new_uint64(bytes));
	json_object_object_add(o, "data_lba", json_object_new_uint64(l->data));
	json_object_object_add(o, "trial_us", list);
	json_object_object_add(o, "mean_us", json_object_new_double(mean));
	json_object_object_add(o, "bytes_per_second",
			       json_object_new_double((double)bytes / mean * 1e6));
	if (a->json)
		printf("%s\n", json_object_to_json_string_ext(o, JSON_C_TO_STRING_PRETTY));
	else
		printf("%s, %s, %u file%s of %u blocks: %.1f us, %.1f MB/s of data\n",
		       workload_names[a->workload], a->sync ? "sync" : "async", a->files,
		       a->files > 1 ? "s" : "", a->blocks, mean, (double)bytes / mean);
	json_object_put(o);
}

static int fail(const struct arguments *a, const char *why)
{
	fprintf(stderr, "async: %s: %s\n", a->address, why);
	return 1;
}

static int run(struct disk *d, const struct arguments *a)
{
	struct layout l = plan(d, a);
	double us[MAX_TRIALS];
	char *image;

	if (l.end > d->ns.blocks)
		return fail(a, "the namespace is too small for so many blocks");
	image = vroom_dma_alloc(d->ctrlr, l.end * d->ns.lba_size, 4096);
	if (!image)
		return fail(a, vroom_error());
	memset(image, 0, l.end * d->ns.lba_size);
	for (unsigned i = 0; i < a->trials; i++) {
		us[i] = trial(d, a, &l, image, i);
		if (us[i] < 0)
			return fail(a, vroom_error());
	}
	report(a, &l, d->ns.lba_size, us);
	return 0;
}

static const struct argp_option options[] = {
	{ "workload", 'w', "KIND", 0, "read, write: a sequence of blocks; append (append)", 0 },
	{ "blocks", 'b', "N", 0, "Data blocks, of each file (100)", 0 },
	{ "files", 'f', "N", 0, "Files in the transaction (1)", 0 },
	{ "trials", 'n', "N", 0, "Repeats; each overwrites the last one (5)", 0 },
	{ "sync", 's', 0, 0, "Wait for each request before the next", 0 },
	{ "json", 'J', 0, 0, "Print JSON", 0 },
	{ 0 },
};

static unsigned number(struct argp_state *state, int key, const char *text, unsigned max)
{
	char *end;
	unsigned long value = strtoul(text, &end, 0);

	if (*end || value < 1 || value > max)
		argp_error(state, "-%c %s: must be 1 to %u", key, text, max);
	return (unsigned)value;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;

	switch (key) {
	case 'w':
		for (a->workload = 0; a->workload < NR_WORKLOADS; a->workload++)
			if (!strcmp(arg, workload_names[a->workload]))
				return 0;
		argp_error(state, "-w %s: must be read, write or append", arg);
		return 0;
	case 'b': a->blocks = number(state, key, arg, 1 << 20); return 0;
	case 'f': a->files = number(state, key, arg, 1 << 16); return 0;
	case 'n': a->trials = number(state, key, arg, MAX_TRIALS); return 0;
	case 's': a->sync = true; return 0;
	case 'J': a->json = true; return 0;
	case ARGP_KEY_ARG: a->address = arg; return 0;
	case ARGP_KEY_NO_ARGS: argp_usage(state); return 0;
	default: return ARGP_ERR_UNKNOWN;
	}
}

int main(int argc, char **argv)
{
	static const struct argp argp = { options,
					  parse,
					  "ADDRESS",
					  "Times block requests, each waited for or all in flight; "
					  "overwrites the first blocks.",
					  0,
					  0,
					  0 };
	struct arguments a = { .workload = APPEND, .blocks = 100, .files = 1, .trials = 5 };
	struct disk d = { 0 };
	int ret;

	argp_parse(&argp, argc, argv, 0, NULL, &a);
	if (a.workload != APPEND)
		a.files = 1;
	d.sync = a.sync;
	if (vroom_open(a.address, NULL, &d.ctrlr))
		return fail(&a, vroom_error());
	if (vroom_namespace(d.ctrlr, 0, &d.ns, NULL) || vroom_qpair_create(d.ctrlr, DEPTH, &d.qp)) {
		ret = fail(&a, vroom_error());
	} else {
		ret = run(&d, &a);
		vroom_qpair_destroy(d.qp);
	}
	vroom_close(d.ctrlr);
	return ret;
}
