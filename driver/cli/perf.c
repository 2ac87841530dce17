/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * `vroom perf`: the driver alone. Each thread owns a queue pair and keeps it at the depth
 * asked for; time is taken once per batch of completions.
 */
#include <argp.h>
#include <errno.h>
#include <json-c/json.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "cli/cli.h"
#include "base/clock.h"
#include "emulator/size.h"
#include "vroom.h"

#define BATCH 64

/* Latencies in ticks, in buckets of 1/32 of their power of two. */
#define SUB_BITS 5
#define BUCKETS	 ((64 - SUB_BITS + 1) << SUB_BITS)

enum workload { READ, WRITE, RANDREAD, RANDWRITE, RANDRW, NR_WORKLOADS };
static const char *const workload_names[] = { "read", "write", "randread", "randwrite", "randrw" };

struct arguments {
	const char *address;
	unsigned depth, threads, read_percent, io_timeout;
	uint64_t io_bytes, span; /* bytes; span 0: the whole namespace */
	double seconds;
	enum workload workload;
	const char *transport;
	bool interrupts, json;
};

struct worker {
	const struct arguments *args;
	struct vroom_ctrlr *ctrlr;
	struct vroom_ns ns;
	struct vroom_qpair *qp;
	char *buffers;
	uint64_t *started; /* ticks, by request */
	uint64_t end;	   /* ticks */
	uint64_t nlb;	   /* of an I/O */
	uint64_t places;   /* where one can be, in the part of the namespace that is used */
	uint64_t next, random;
	uint64_t done, errors, ticks_total, ticks_min, ticks_max;
	uint16_t first_error;
	uint64_t histogram[BUCKETS];
	char message[512];
	pthread_t thread;
};

static volatile sig_atomic_t interrupted;

static void on_signal(int sig)
{
	(void)sig;
	interrupted = 1;
}

static const struct argp_option options[] = {
	{ "depth", 'q', "N", 0, "Commands in flight per queue pair (32)", 0 },
	{ "io-size", 'o', "SIZE", 0, "Bytes of an I/O (4096)", 0 },
	{ "size", 's', "SIZE", 0, "Bytes of the namespace that are used (all)", 0 },
	{ "workload", 'w', "KIND", 0, "read, write, randread, randwrite or randrw (randread)", 0 },
	{ "mix", 'M', "PERCENT", 0, "Reads of randrw (50)", 0 },
	{ "time", 't', "SECONDS", 0, "Run time (3)", 0 },
	{ "jobs", 'j', "N", 0, "Threads, each with a queue pair (1)", 0 },
	{ "io-timeout", 'T', "SECONDS", 0, "Give up when a command takes longer (30)", 0 },
	{ "wait", 'W', "HOW", 0, "poll, or interrupt: sleep for completions (poll)", 0 },
	{ "transport", 'x', "NAME", 0, "pci or vfio, for a PCI function (what fits its driver)",
	  0 },
	{ "json", 'J', 0, 0, "Print JSON", 0 },
	{ 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;
	char *end;

	switch (key) {
	case 'q':
		a->depth = (unsigned)strtoul(arg, &end, 0);
		if (*end || a->depth < 1 || a->depth > 65535)
			argp_error(state, "-q %s: must be 1 to 65535", arg);
		return 0;
	case 'o':
		if (!vroom_parse_size(arg, &a->io_bytes) || !a->io_bytes || a->io_bytes > 1u << 30)
			argp_error(state, "-o %s: is not a size of up to 1 GiB", arg);
		return 0;
	case 's':
		if (!vroom_parse_size(arg, &a->span) || !a->span)
			argp_error(state, "-s %s: is not a size", arg);
		return 0;
	case 'w':
		for (a->workload = 0; a->workload < NR_WORKLOADS; a->workload++)
			if (!strcmp(arg, workload_names[a->workload]))
				return 0;
		argp_error(state, "-w %s: must be read, write, randread, randwrite or randrw", arg);
		return 0;
	case 'M':
		a->read_percent = (unsigned)strtoul(arg, &end, 0);
		if (*end || a->read_percent > 100)
			argp_error(state, "-M %s: must be 0 to 100", arg);
		return 0;
	case 't':
		a->seconds = strtod(arg, &end);
		if (*end || a->seconds <= 0)
			argp_error(state, "-t %s: must be a number of seconds", arg);
		return 0;
	case 'j':
		a->threads = (unsigned)strtoul(arg, &end, 0);
		if (*end || a->threads < 1 || a->threads > 1024)
			argp_error(state, "-j %s: must be 1 to 1024", arg);
		return 0;
	case 'T':
		a->io_timeout = (unsigned)strtoul(arg, &end, 0);
		if (*end || a->io_timeout < 1 || a->io_timeout > 86400)
			argp_error(state, "-T %s: must be 1 to 86400", arg);
		return 0;
	case 'W':
		a->interrupts = !strcmp(arg, "interrupt");
		if (!a->interrupts && strcmp(arg, "poll"))
			argp_error(state, "-W %s: must be poll or interrupt", arg);
		return 0;
	case 'x': a->transport = arg; return 0;
	case 'J': a->json = true; return 0;
	case ARGP_KEY_ARG:
		if (a->address)
			argp_error(state, "one address at a time");
		a->address = arg;
		return 0;
	default: return ARGP_ERR_UNKNOWN;
	}
}

static unsigned bucket_of(uint64_t ticks)
{
	unsigned log, shift;

	if (ticks < 1u << SUB_BITS)
		return (unsigned)ticks;
	log = 63 - (unsigned)__builtin_clzll(ticks);
	shift = log - SUB_BITS;
	return ((shift + 1) << SUB_BITS) + (unsigned)(ticks >> shift) - (1u << SUB_BITS);
}

/* The middle of a bucket. */
static double bucket_ticks(unsigned bucket)
{
	unsigned shift;

	if (bucket < 1u << SUB_BITS)
		return bucket;
	shift = (bucket >> SUB_BITS) - 1;
	return ((double)((bucket & ((1u << SUB_BITS) - 1)) + (1u << SUB_BITS)) + 0.5) *
	       (double)(1ull << shift);
}

static uint64_t next_random(struct worker *w)
{
	w->random ^= w->random << 13; /* xorshift64 */
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return w->random;
}

static int submit(struct worker *w, uintptr_t request, uint64_t now)
{
	const struct arguments *a = w->args;
	uint64_t nlb = w->nlb, slba;
	char *buf = w->buffers + request * a->io_bytes;
	bool read = a->workload == READ || a->workload == RANDREAD;
	struct vroom_io io;

	if (a->workload == READ || a->workload == WRITE) {
		slba = w->next * nlb;
		if (++w->next == w->places)
			w->next = 0;
	} else {
		uint64_t r = next_random(w);

		/* Multiply and shift instead of a division: places < 2^52 keeps the bias away. */
		slba = (uint64_t)(((unsigned __int128)r * w->places) >> 64) * nlb;
		if (a->workload == RANDRW)
			read = (r & 0xffff) % 100 < a->read_percent;
	}
	if (read)
		vroom_prep_read(&io, &w->ns, buf, slba, nlb, (void *)request);
	else
		vroom_prep_write(&io, &w->ns, buf, slba, nlb, (void *)request);
	w->started[request] = now;
	return vroom_submit(w->qp, &io);
}

static void account(struct worker *w, const struct vroom_completion *c, uint64_t now)
{
	uint64_t ticks = now - w->started[(uintptr_t)c->tag]; // NOLINT: vroom_poll() set it

	w->done++;
	w->ticks_total += ticks;
	if (ticks < w->ticks_min)
		w->ticks_min = ticks;
	if (ticks > w->ticks_max)
		w->ticks_max = ticks;
	w->histogram[bucket_of(ticks)]++;
	if (c->status) {
		w->first_error = w->errors ? w->first_error : c->status;
		w->errors++;
	}
}

/*
 * Submits REQUEST, if the queue pair has room for it. Whatever else is in the way ends the run:
 * *RET says so, and nothing is submitted any more.
 */
static bool start(struct worker *w, uintptr_t request, uint64_t now, int *ret)
{
	int err = *ret ? *ret : submit(w, request, now);

	if (err && err != -EAGAIN && !*ret) {
		*ret = err;
		snprintf(w->message, sizeof(w->message), "%s", vroom_error());
	}
	return !err;
}

/* Keeps the queue pair full until the end, then empties it. */
static int run(struct worker *w)
{
	unsigned in_flight = 0, depth = vroom_qpair_depth(w->qp);
	struct vroom_completion done[BATCH];
	uint64_t now = vroom_ticks();
	int ret = 0;

	if (depth > w->args->depth)
		depth = w->args->depth;
	while (in_flight < depth && start(w, in_flight, now, &ret))
		in_flight++;
	vroom_ring(w->qp);
	while (in_flight) {
		int n = vroom_poll(w->qp, done, BATCH);

		if (!n && w->args->interrupts)
			n = vroom_wait(&w->qp, 1, 1000) < 0 ? -1 : 0;
		if (n <= 0) {
			if (n < 0)
				return n;
			continue;
		}
		now = vroom_ticks();
		for (int i = 0; i < n; i++) {
			account(w, &done[i], now);
			in_flight--;
			if (now < w->end && !interrupted &&
			    start(w, (uintptr_t)done[i].tag, now, &ret))
				in_flight++;
		}
		vroom_ring(w->qp);
	}
	return ret;
}

static void *work(void *arg)
{
	struct worker *w = arg;

	if (run(w) && !w->message[0])
		snprintf(w->message, sizeof(w->message), "%s", vroom_error());
	return NULL;
}

static int set_up(struct worker *w)
{
	size_t bytes = w->args->depth * w->args->io_bytes;

	w->ticks_min = UINT64_MAX;
	w->started = calloc(w->args->depth, sizeof(*w->started));
	if (!w->started)
		return -ENOMEM;
	w->buffers = vroom_dma_alloc(w->ctrlr, bytes, 4096);
	if (!w->buffers)
		return -ENOMEM;
	memset(w->buffers, 0xa5, bytes);
	return vroom_qpair_create(w->ctrlr, w->args->depth, &w->qp);
}

static double percentile(const uint64_t *histogram, uint64_t total, double percent)
{
	uint64_t target = (uint64_t)((double)total * percent / 100.0), seen = 0;

	for (unsigned i = 0; i < BUCKETS; i++) {
		seen += histogram[i];
		if (seen > target)
			return bucket_ticks(i);
	}
	return 0;
}

static double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void report(const struct arguments *a, struct worker *workers, double seconds,
		   double ns_per_tick, double cpu)
{
	static const double percents[] = { 50, 90, 99, 99.9, 99.99 };
	struct json_object *o = json_object_new_object(), *lat = json_object_new_object();
	uint64_t done = 0, errors = 0, ticks = 0, least = UINT64_MAX, most = 0;
	uint64_t *histogram = workers[0].histogram;
	uint16_t first_error = 0;
	double iops, mibs;

	for (unsigned j = 0; j < a->threads; j++) {
		const struct worker *w = &workers[j];

		done += w->done;
		errors += w->errors;
		ticks += w->ticks_total;
		least = w->ticks_min < least ? w->ticks_min : least;
		most = w->ticks_max > most ? w->ticks_max : most;
		first_error = w->errors && !first_error ? w->first_error : first_error;
		for (unsigned i = 0; j && i < BUCKETS; i++)
			histogram[i] += w->histogram[i];
	}
	iops = (double)done / seconds;
	mibs = iops * (double)a->io_bytes / (1 << 20);
	json_object_object_add(o, "address", json_object_new_string(a->address));
	json_object_object_add(o, "workload", json_object_new_string(workload_names[a->workload]));
	json_object_object_add(o, "io_bytes", json_object_new_uint64(a->io_bytes));
	json_object_object_add(o, "depth", json_object_new_int64(a->depth));
	json_object_object_add(o, "jobs", json_object_new_int64(a->threads));
	json_object_object_add(o, "seconds", json_object_new_double(seconds));
	json_object_object_add(o, "ios", json_object_new_uint64(done));
	json_object_object_add(o, "errors", json_object_new_uint64(errors));
	json_object_object_add(o, "iops", json_object_new_double(iops));
	json_object_object_add(o, "mib_per_second", json_object_new_double(mibs));
	json_object_object_add(o, "cpu_percent", json_object_new_double(cpu / seconds * 100));
	json_object_object_add(o, "latency_ns", lat);
	if (!done)
		least = 0;
	json_object_object_add(lat, "min", json_object_new_double((double)least * ns_per_tick));
	json_object_object_add(
		lat, "mean",
		json_object_new_double(done ? (double)ticks / (double)done * ns_per_tick : 0));
	json_object_object_add(lat, "max", json_object_new_double((double)most * ns_per_tick));
	for (unsigned i = 0; i < sizeof(percents) / sizeof(percents[0]); i++) {
		char name[16];

		snprintf(name, sizeof(name), "p%g", percents[i]);
		json_object_object_add(
			lat, name,
			json_object_new_double(percentile(histogram, done, percents[i]) *
					       ns_per_tick));
	}
	if (a->json) {
		printf("%s\n", json_object_to_json_string_ext(o, JSON_C_TO_STRING_PRETTY));
	} else {
		printf("%s: %s, %llu bytes, depth %u, %u job%s, %.1f s\n", a->address,
		       workload_names[a->workload], (unsigned long long)a->io_bytes, a->depth,
		       a->threads, a->threads > 1 ? "s" : "", seconds);
		printf("  %.0f IOPS, %.1f MiB/s, CPU %.0f %%\n  latency in us:", iops, mibs,
		       cpu / seconds * 100);
		json_object_object_foreach (lat, key, value)
			printf(" %s %.2f", key, json_object_get_double(value) / 1000);
		printf("\n");
	}
	json_object_put(o);
	if (errors)
		fprintf(stderr, "vroom: %s: %llu commands failed, the first with %s\n", a->address,
			(unsigned long long)errors, vroom_status_str(first_error));
}

static int check(const struct arguments *a, const struct vroom_ns *ns)
{
	if (a->io_bytes % ns->lba_size || a->io_bytes >> ns->lba_shift > ns->blocks) {
		fprintf(stderr,
			"vroom: %s: an I/O of %llu bytes is not a multiple of the block size "
			"of %u, or larger than the namespace\n",
			a->address, (unsigned long long)a->io_bytes, ns->lba_size);
		return 1;
	}
	if (a->span && a->span < a->io_bytes) {
		fprintf(stderr, "vroom: %s: --size: holds not one I/O of %llu bytes\n", a->address,
			(unsigned long long)a->io_bytes);
		return 1;
	}
	if (ns->read_only && a->workload != READ && a->workload != RANDREAD) {
		fprintf(stderr, "vroom: %s: is read-only; choose -w read or randread\n",
			a->address);
		return 1;
	}
	return 0;
}

static int measure(struct arguments *a, struct vroom_ctrlr *c, struct worker *workers)
{
	uint64_t start_ticks, end_ticks, start_ns, end_ns, rate_ns, rate_ticks;
	bool broken = false;
	uint64_t blocks;
	double cpu;
	int ret = 0;

	/* How long a tick is: measured over 20 ms, and again over the whole run. */
	rate_ns = vroom_now_ns();
	rate_ticks = vroom_ticks();
	while (vroom_now_ns() - rate_ns < 20000000)
		;
	rate_ticks = vroom_ticks() - rate_ticks;
	rate_ns = vroom_now_ns() - rate_ns;

	for (unsigned j = 0; j < a->threads; j++) {
		workers[j].args = a;
		workers[j].ctrlr = c;
		workers[j].random = 0x9e3779b97f4a7c15ull * (j + 1);
		if (vroom_namespace(c, 0, &workers[j].ns, NULL))
			return cli_fail();
		if (j == 0 && check(a, &workers[0].ns))
			return 1;
		blocks = workers[j].ns.blocks;
		if (a->span && a->span >> workers[j].ns.lba_shift < blocks)
			blocks = a->span >> workers[j].ns.lba_shift;
		workers[j].nlb = a->io_bytes >> workers[j].ns.lba_shift;
		workers[j].places = blocks / workers[j].nlb;
		if (set_up(&workers[j]))
			return cli_fail();
	}
	cpu = cpu_seconds();
	start_ns = vroom_now_ns();
	start_ticks = vroom_ticks();
	for (unsigned j = 0; j < a->threads; j++) {
		workers[j].end = start_ticks + (uint64_t)(a->seconds * 1e9 * (double)rate_ticks /
							  (double)rate_ns);
		workers[j].next = workers[j].places / a->threads * j;
		if (pthread_create(&workers[j].thread, NULL, work, &workers[j])) {
			fprintf(stderr, "vroom: cannot start thread %u\n", j);
			exit(1);
		}
	}
	for (unsigned j = 0; j < a->threads; j++)
		pthread_join(workers[j].thread, NULL);
	end_ticks = vroom_ticks();
	end_ns = vroom_now_ns();
	cpu = cpu_seconds() - cpu;
	for (unsigned j = 0; j < a->threads; j++) {
		if (workers[j].message[0]) {
			fprintf(stderr, "vroom: %s\n", workers[j].message);
			broken = true;
		}
		ret |= workers[j].errors != 0;
	}
	if (broken) /* half a run is no measurement */
		return 1;
	report(a, workers, (double)(end_ns - start_ns) / 1e9,
	       (double)(end_ns - start_ns) / (double)(end_ticks - start_ticks), cpu);
	return ret;
}

int cli_perf(int argc, char **argv)
{
	static const struct argp argp = {
		options,
		parse,
		"ADDRESS",
		"Measures the driver on namespace 1 (or ,ns=N) of ADDRESS: IOPS, throughput, "
		"latency. Write workloads overwrite data. Sizes take K, M, G.",
		0,
		0,
		0
	};
	struct arguments a = { .depth = 32,
			       .threads = 1,
			       .read_percent = 50,
			       .io_bytes = 4096,
			       .seconds = 3,
			       .workload = RANDREAD };
	struct vroom_opts opts = { 0 };
	struct worker *workers;
	struct vroom_ctrlr *c;
	int ret;

	argp_parse(&argp, argc, argv, 0, NULL, &a);
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	workers = calloc(a.threads, sizeof(*workers));
	if (!workers)
		return 1;
	opts.dma_bytes = a.depth * a.io_bytes * a.threads;
	opts.io_timeout_ms = a.io_timeout * 1000;
	opts.interrupts = a.interrupts;
	opts.transport = a.transport;
	if (vroom_open(a.address, &opts, &c)) {
		free(workers);
		return cli_fail();
	}
	ret = measure(&a, c, workers);
	for (unsigned j = 0; j < a.threads; j++) {
		vroom_qpair_destroy(workers[j].qp);
		free(workers[j].started);
	}
	vroom_close(c);
	free(workers);
	return ret;
}
