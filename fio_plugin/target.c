/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The controllers that a fio run uses. fio calls setup for every job in the parent before
 * it forks the first one, so that all are open, and all memory is there, when jobs start.
 */
#include "engine.h"

static struct target *targets;
static pid_t loader; /* the process that loaded the engine: fio's main one */
static pthread_mutex_t targets_lock = PTHREAD_MUTEX_INITIALIZER; /* threads may open too */

struct target *target_memory(void)
{
	struct target *t = targets;

	while (t && t->next)
		t = t->next;
	return t;
}

/* Does this job run on our engine? Options of others have another layout. */
static bool is_ours(const struct thread_data *td)
{
	return td->io_ops && td->io_ops->options == vroom_fio_options;
}

/* Bytes that the file behind FILE must hold for TD; 0 when its own size decides. */
static uint64_t wanted_bytes(struct thread_data *td, struct fio_file *file)
{
	const struct thread_options *o = &td->o;
	uint64_t size = o->file_size_high;

	if (!size && o->size && o->size != -1ULL && !o->size_percent)
		size = o->size / (o->nr_files ? o->nr_files : 1);
	return size ? get_start_offset(td, file) + size : 0;
}

/* What all jobs on target KEY need of the file behind it. */
static uint64_t bytes_for_all(const char *key)
{
	char other[VROOM_ADDRESS_MAX];
	uint64_t bytes = 0;
	uint32_t nsid;

	for (unsigned i = 0; i < thread_number; i++) {
		struct thread_data *td = tnumber_to_td(i);
		struct fio_file *f;
		unsigned j;

		if (!is_ours(td))
			continue;
		for_each_file (td, f, j) {
			uint64_t wanted;

			if (vroom_address_key(f->file_name, other, &nsid, NULL) ||
			    strcmp(key, other))
				continue;
			wanted = wanted_bytes(td, f);
			bytes = wanted > bytes ? wanted : bytes;
		}
	}
	return bytes;
}

/* I/O buffers, queues and PRP lists of all jobs on this engine. */
static size_t memory_for_all(void)
{
	size_t bytes = 1 << 20;

	for (unsigned i = 0; i < thread_number; i++) {
		struct thread_data *td = tnumber_to_td(i);

		if (is_ours(td))
			bytes += (size_t)td->o.iodepth * (td_max_bs(td) + 8192) + (64 << 10);
	}
	return bytes;
}

/* Does a job of this fio want interrupts? */
static bool anybody_sleeps(void)
{
	for (unsigned i = 0; i < thread_number; i++) {
		struct thread_data *td = tnumber_to_td(i);
		const struct engine_options *eo = is_ours(td) ? td->eo : NULL;

		if (eo && eo->wait != WAIT_POLL)
			return true;
	}
	return false;
}

static int open_target(struct thread_data *td, const struct fio_file *file, uint64_t bytes,
		       const char *key)
{
	const struct engine_options *eo = td->eo; /* NULL in a forked job that opens late */
	unsigned timeout_ms = eo && eo->io_timeout ? eo->io_timeout * 1000 : 30000;
	struct target *first = target_memory();
	uint64_t for_all = bytes_for_all(key);
	struct vroom_opts opts = {
		.io_timeout_ms = timeout_ms,
		.long_timeout_ms = eo ? eo->flush_timeout * 1000 : 0,
		.admin_timeout_ms = timeout_ms,
		.file_bytes = bytes > for_all ? bytes : for_all,
		.dma_bytes = first ? 0 : memory_for_all(),
		.interrupts = anybody_sleeps(),
		.transport = eo ? eo->transport : NULL,
	};
	struct target *t = calloc(1, sizeof(*t));
	int ret;

	if (!t)
		return -ENOMEM;
	t->io_timeout_ms = timeout_ms;
	t->key = strdup(key);
	ret = t->key ? vroom_open(file->file_name, &opts, &t->ctrlr) : -ENOMEM;
	if (!ret && first)
		ret = vroom_dma_share(t->ctrlr, first->ctrlr);
	if (ret == -ENOTSUP && t->ctrlr)
		ret = 0; /* then its data is copied */
	if (ret) {
		vroom_close(t->ctrlr);
		free(t->key);
		free(t);
		return ret;
	}
	t->next = targets;
	targets = t;
	return 0;
}

/* A file that was created just now has got its real name. */
static void rename_key(struct target *t, const struct fio_file *file)
{
	char key[VROOM_ADDRESS_MAX], *copy;
	uint32_t nsid;

	if (vroom_address_key(file->file_name, key, &nsid, NULL) || !(copy = strdup(key)))
		return;
	free(t->key);
	t->key = copy;
}

static struct target *find_target(const char *key)
{
	struct target *t = targets;

	while (t && strcmp(t->key, key))
		t = t->next;
	return t;
}

int target_get(struct thread_data *td, const struct fio_file *file, uint64_t bytes,
	       struct target **target, struct vroom_ns *ns)
{
	char key[VROOM_ADDRESS_MAX];
	uint32_t nsid;
	int ret = vroom_address_key(file->file_name, key, &nsid, NULL);

	if (ret)
		return ret;
	pthread_mutex_lock(&targets_lock);
	*target = find_target(key);
	if (!*target) {
		ret = open_target(td, file, bytes, key);
		if (!ret) {
			*target = targets;
			rename_key(targets, file);
		}
	}
	pthread_mutex_unlock(&targets_lock);
	return ret ? ret : vroom_namespace((*target)->ctrlr, nsid ? nsid : 1, ns, NULL);
}

/*
 * Before any fork in fio's own process. Jobs with create_serialize=0 are set up after they
 * were forked; their targets must be open before, or each job would open its own. What
 * goes wrong here the job meets again, and reports.
 */
static void open_before_fork(void)
{
	static bool busy; /* starting an emulated controller forks, too */

	if (busy || getpid() != loader)
		return;
	busy = true;
	for (unsigned i = 0; i < thread_number; i++) {
		struct thread_data *td = tnumber_to_td(i);
		struct target *target;
		struct vroom_ns ns;
		struct fio_file *f;
		unsigned int j;

		if (!is_ours(td) || td->o.create_serialize || td->runstate > TD_CREATED)
			continue;
		for_each_file (td, f, j)
			target_get(td, f, 0, &target, &ns);
	}
	busy = false;
}

void target_init(void)
{
	loader = getpid();
	pthread_atfork(open_before_fork, NULL, NULL);
}

void target_close_all(void)
{
	/* The first one lends its memory to the others, and is last in the list. */
	while (targets) {
		struct target *t = targets;

		targets = t->next;
		vroom_close(t->ctrlr);
		free(t->key);
		free(t);
	}
}
