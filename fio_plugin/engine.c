/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * fio's hooks, in the order in which fio calls them: setup in the parent; init,
 * iomem_alloc, open_file, then queue, commit, getevents and event in the job (a process or
 * a thread), close_file, iomem_free, cleanup. The parent's destructor comes last.
 *
 * A job has a queue pair of its own per controller; nothing in the I/O path is shared.
 */
#include <dlfcn.h>

#include "engine.h"

/* wait=hybrid looks this often before it sleeps: some microseconds, as an interrupt costs. */
#define HYBRID_POLLS 1000
/* Longest sleep; deadlines are kept within it. */
#define WAIT_MS 1000

/* What a job knows of one of its files. */
struct job_file {
	struct target *target;
	struct vroom_qpair *qp; /* NULL in offload mode: each worker has its own */
	struct vroom_ns ns;
	bool read_fua, write_fua;
};

/* A job's queue pair on one controller. */
struct job_qpair {
	struct target *target;
	struct vroom_qpair *qp;
};

struct job {
	struct engine_options options;
	struct job_qpair *qpairs;
	struct vroom_qpair **waitable; /* the same queue pairs, as vroom_wait() wants them */
	unsigned nr_qpairs;
	unsigned patience; /* empty polls before sleeping; 0: never sleeps */
	unsigned next;	   /* whose turn it is to be polled first */
	struct vroom_completion *done;
	unsigned max_done;
	void *memory; /* of fio's buffers */
	struct target *memory_owner;
	bool failed; /* said so already */
};

static int fail(struct thread_data *td, int err, const char *what)
{
	log_err("vroom: %s\n", vroom_error());
	td_verror(td, err, what);
	return 1;
}

/* --- setup: in the parent, once per job, before any fork ---------------------------------- */

/* Is every size that the job may use a multiple of the block size? */
static int check_block_sizes(struct thread_data *td, const struct fio_file *f,
			     const struct vroom_ns *ns)
{
	static const char *const names[] = { "read", "write", "trim" };

	for (unsigned ddir = DDIR_READ; ddir <= DDIR_TRIM; ddir++) {
		bool used = (ddir == DDIR_READ && td_read(td)) ||
			    (ddir == DDIR_WRITE && td_write(td)) ||
			    (ddir == DDIR_TRIM && td_trim(td));

		if (!used || td->o.min_bs[ddir] % ns->lba_size == 0)
			continue;
		log_err("vroom: %s: bs=%llu for %ss is not a multiple of the namespace's block "
			"size "
			"of %u bytes\n",
			f->file_name, td->o.min_bs[ddir], names[ddir], ns->lba_size);
		td_verror(td, EINVAL, "block size");
		return 1;
	}
	if (ns->read_only && (td_write(td) || td_trim(td))) {
		log_err("vroom: %s: is read-only, the job writes\n", f->file_name);
		td_verror(td, EROFS, "read-only");
		return 1;
	}
	if (td_trim(td) && !ns->deallocates) {
		log_err("vroom: %s: the controller cannot deallocate (ONCS), the job trims\n",
			f->file_name);
		td_verror(td, EOPNOTSUPP, "trim");
		return 1;
	}
	return 0;
}

/* fio would clip the job, or extend a file; a device has the size that it has. */
static int check_size(struct thread_data *td, const struct fio_file *f)
{
	const struct thread_options *o = &td->o;
	uint64_t size = o->file_size_high;

	if (!size && o->size != -1ULL && !o->size_percent)
		size = o->size / (o->nr_files ? o->nr_files : 1);
	if (size && f->file_offset + size > f->real_file_size) {
		log_err("vroom: %s: size=%llu at offset %llu is beyond the namespace of %llu "
			"bytes\n",
			f->file_name, (unsigned long long)size, (unsigned long long)f->file_offset,
			(unsigned long long)f->real_file_size);
		td_verror(td, ENOSPC, "size");
		return 1;
	}
	return 0;
}

static int setup_file(struct thread_data *td, struct fio_file *f)
{
	struct target *target;
	struct vroom_ns ns;
	int ret = target_get(td, f, 0, &target, &ns);

	if (ret)
		return fail(td, -ret, "open");
	if (check_block_sizes(td, f, &ns))
		return 1;
	f->real_file_size = ns.blocks << ns.lba_shift;
	f->filetype = FIO_TYPE_CHAR; /* a block device would be opened and advised by fio */
	fio_file_set_size_known(f);
	f->file_offset = get_start_offset(td, f);
	return check_size(td, f);
}

/*
 * A line of an iolog, version 2 ("FILE add", "FILE read OFFSET BYTES") or 3 (the same behind
 * a time stamp): the file that it adds, in NAME, or the END of what it touches.
 */
static bool parse_iolog_line(const char *line, char *name, uint64_t *end)
{
	char word[3][256];
	unsigned long long offset, bytes;

	*end = 0;
	if (sscanf(line, "%255s %255s %255s", word[0], word[1], word[2]) == 3 &&
	    !strcmp(word[2], "add")) {
		strcpy(name, word[1]);
		return true;
	}
	if (sscanf(line, "%255s %255s", name, word[1]) == 2 && !strcmp(word[1], "add"))
		return true;
	if (sscanf(line, "%*u %*s %*s %llu %llu", &offset, &bytes) == 2 ||
	    sscanf(line, "%*s %*s %llu %llu", &offset, &bytes) == 2)
		*end = offset + bytes;
	return false;
}

static int open_iolog_file(struct thread_data *td, char *name, uint64_t bytes)
{
	struct fio_file f = { .file_name = td->o.replay_redirect ? td->o.replay_redirect : name };
	struct target *target;
	struct vroom_ns ns;
	int ret = target_get(td, &f, bytes, &target, &ns);

	return ret ? fail(td, -ret, "open") : 0;
}

/* The files of an iolog are known to the job only, when it reads the log. Open them now. */
static int setup_iolog(struct thread_data *td)
{
	char line[4096], file[256],
		*name = get_name_by_idx(td->o.read_iolog_file, td->subjob_number);
	FILE *log = name ? fopen(name, "r") : NULL;
	uint64_t end, bytes = 0;
	int ret = 0;

	free(name);
	if (!log)
		return 0; /* fio says so when it wants to read it */
	while (fgets(line, sizeof(line), log))
		if (!parse_iolog_line(line, file, &end) && end > bytes)
			bytes = end;
	rewind(log);
	while (!ret && fgets(line, sizeof(line), log))
		if (parse_iolog_line(line, file, &end))
			ret = open_iolog_file(td, file, bytes);
	fclose(log);
	return ret;
}

/* mem= would make fio refuse an engine that has buffers of its own. */
static void forget_mem_option(struct thread_data *td)
{
	for (struct fio_option *o = &fio_options[0]; o->name; o++) {
		unsigned index = (unsigned)(o - &fio_options[0]);

		if (strcmp(o->name, "mem") == 0)
			td->o.set_options[index / 64] &= ~(1ull << (index % 64));
	}
}

static char engine_path[PATH_MAX]; /* of this library */

static int engine_setup(struct thread_data *td)
{
	struct fio_file *f;
	unsigned int i;

	forget_mem_option(td);
	/* fio's own lies in memory that it has freed, and an offload worker loads us once more. */
	td->o.ioengine_so_path = engine_path;
	if (td->o.read_iolog_file)
		return setup_iolog(td);
	for_each_file (td, f, i)
		if (setup_file(td, f))
			return 1;
	return 0;
}

/* --- a job's own ---------------------------------------------------------------------------- */

/*
 * A worker of io_submit_mode=offload that is ready before the job's thread has come back from
 * creating it hangs fio (3.33, any engine): start_worker() then overwrites the flag that says
 * "ready". So TD, if a worker's, waits here until its flags have been set.
 */
static void await_start_of_worker(const struct thread_data *td)
{
	bool worker = td->o.io_submit_mode == IO_MODE_OFFLOAD && !td->thread_number;

	for (unsigned n = 0; worker && n < thread_number; n++) {
		struct thread_data *job = tnumber_to_td(n);
		bool here = td->o.use_thread ? job->o.use_thread : job->pid == getpid();

		for (unsigned i = 0; here && job->io_wq.workers && i < job->o.iodepth; i++) {
			struct submit_worker *w = &job->io_wq.workers[i];

			while (w->priv == td && !__atomic_load_n(&w->flags, __ATOMIC_RELAXED))
				usleep(50);
		}
	}
}

static int engine_init(struct thread_data *td)
{
	struct job *job = calloc(1, sizeof(*job));

	await_start_of_worker(td);
	if (!job)
		return 1;
	job->max_done = td->o.iodepth;
	job->done = calloc(job->max_done, sizeof(*job->done));
	if (!job->done) {
		free(job);
		return 1;
	}
	/*
	 * The parent frees the options of a forked job, and once more at its end if the job
	 * was killed before it could mark them as gone. So they are marked as gone now.
	 */
	if (td->eo)
		job->options = *(struct engine_options *)td->eo;
	if (job->options.wait != WAIT_POLL)
		job->patience = job->options.wait == WAIT_HYBRID ? HYBRID_POLLS : 1;
	if (!td->o.use_thread)
		td->eo = NULL;
	td->io_ops_data = job;
	return 0;
}

static void engine_cleanup(struct thread_data *td)
{
	struct job *job = td->io_ops_data;

	if (!job)
		return;
	for (unsigned i = 0; i < job->nr_qpairs; i++)
		vroom_qpair_destroy(job->qpairs[i].qp);
	free(job->qpairs);
	free(job->waitable);
	free(job->done);
	free(job);
	td->io_ops_data = NULL;
}

static int engine_iomem_alloc(struct thread_data *td, size_t bytes)
{
	struct job *job = td->io_ops_data;

	/* A thread with create_serialize=0 comes here before its setup. */
	if (!target_memory() && engine_setup(td))
		return 1;
	job->memory_owner = target_memory();
	if (job->memory_owner)
		job->memory = vroom_dma_alloc(job->memory_owner->ctrlr, bytes, page_size);
	if (!job->memory) {
		log_err("vroom: no DMA memory for %zu bytes of buffers; use a smaller bs or "
			"iodepth\n",
			bytes);
		return 1;
	}
	/* Pages come now and not while I/O is timed; an older kernel gives them at first touch. */
	madvise(job->memory, bytes, MADV_POPULATE_WRITE);
	td->orig_buffer = job->memory;
	return 0;
}

static void engine_iomem_free(struct thread_data *td)
{
	struct job *job = td->io_ops_data;

	if (job && job->memory)
		vroom_dma_free(job->memory_owner->ctrlr, job->memory);
}

/* The job's queue pair on TARGET. */
static struct vroom_qpair *get_qpair(struct thread_data *td, struct target *target)
{
	struct job *job = td->io_ops_data;
	struct vroom_qpair **waitable;
	struct job_qpair *grown;

	for (unsigned i = 0; i < job->nr_qpairs; i++)
		if (job->qpairs[i].target == target)
			return job->qpairs[i].qp;
	grown = realloc(job->qpairs, (job->nr_qpairs + 1) * sizeof(*grown));
	if (!grown)
		return NULL;
	job->qpairs = grown;
	waitable = realloc(job->waitable, (job->nr_qpairs + 1) * sizeof(struct vroom_qpair *));
	if (!waitable)
		return NULL;
	job->waitable = waitable;
	grown[job->nr_qpairs].target = target;
	if (vroom_qpair_create(target->ctrlr, td->o.iodepth, &grown[job->nr_qpairs].qp))
		return NULL;
	waitable[job->nr_qpairs] = grown[job->nr_qpairs].qp;
	return grown[job->nr_qpairs++].qp;
}

static int engine_open_file(struct thread_data *td, struct fio_file *f)
{
	const struct engine_options *eo = &((struct job *)td->io_ops_data)->options;
	struct job_file *jf = calloc(1, sizeof(*jf));
	int ret;

	if (!jf)
		return 1;
	ret = target_get(td, f, 0, &jf->target, &jf->ns);
	if (!ret && td->o.io_submit_mode != IO_MODE_OFFLOAD) {
		jf->qp = get_qpair(td, jf->target);
		ret = jf->qp ? 0 : -EIO;
	}
	if (ret) {
		free(jf);
		return fail(td, -ret, "open");
	}
	jf->read_fua = eo->readfua;
	jf->write_fua = eo->writefua || td->o.sync_io;
	FILE_SET_ENG_DATA(f, jf);
	return 0;
}

static int engine_unlink_file(struct thread_data *td, struct fio_file *f)
{
	char key[VROOM_ADDRESS_MAX], path[VROOM_ADDRESS_MAX];
	uint32_t nsid;

	if (vroom_address_key(f->file_name, key, &nsid, path) || !path[0])
		return 0;
	return unlink(path) && errno != ENOENT ? errno : 0;
}

static int engine_close_file(struct thread_data *td, struct fio_file *f)
{
	free(FILE_ENG_DATA(f));
	FILE_SET_ENG_DATA(f, NULL);
	/* fio itself unlinks at the end of a job only what it takes for a plain file. */
	if (td->o.unlink && td->runstate >= TD_FINISHING)
		engine_unlink_file(td, f);
	return 0;
}

/* There is no cache between us and the controller. */
static int engine_invalidate(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

/* --- the I/O path ------------------------------------------------------------------------------
 */

static enum fio_q_status reject(struct io_u *io_u, int err)
{
	io_u->error = err;
	io_u->resid = io_u->xfer_buflen;
	return FIO_Q_COMPLETED;
}

static enum fio_q_status engine_queue(struct thread_data *td, struct io_u *io_u)
{
	const struct job_file *jf = FILE_ENG_DATA(io_u->file);
	const struct vroom_ns *ns = &jf->ns;
	uint64_t slba = io_u->offset >> ns->lba_shift, nlb = io_u->xfer_buflen >> ns->lba_shift;
	struct vroom_qpair *qp = jf->qp;
	struct nvme_dsm_range range;
	struct vroom_io io;
	int ret;

	/* An offload worker: the file is its job's, TD and the queue pair are its own. */
	if (VROOM_UNLIKELY(!qp)) {
		qp = get_qpair(td, jf->target);
		if (!qp)
			return reject(io_u, fail(td, EIO, "queue pair") * EIO);
	}
	if (ddir_sync(io_u->ddir)) {
		vroom_prep_flush(&io, ns, io_u);
	} else if (VROOM_UNLIKELY((io_u->offset | io_u->xfer_buflen) & (ns->lba_size - 1) ||
				  !nlb)) {
		return reject(io_u, EINVAL);
	} else if (io_u->ddir == DDIR_READ) {
		vroom_prep_read(&io, ns, io_u->xfer_buf, slba, nlb, io_u);
		if (VROOM_UNLIKELY(jf->read_fua))
			vroom_prep_fua(&io);
	} else if (io_u->ddir == DDIR_WRITE) {
		vroom_prep_write(&io, ns, io_u->xfer_buf, slba, nlb, io_u);
		if (VROOM_UNLIKELY(jf->write_fua))
			vroom_prep_fua(&io);
	} else if (io_u->ddir == DDIR_TRIM) {
		if (nlb > UINT32_MAX)
			return reject(io_u, EINVAL);
		range = (struct nvme_dsm_range){ .slba = slba, .nlb = (uint32_t)nlb };
		vroom_prep_deallocate(&io, ns, &range, 1, io_u);
	} else {
		return reject(io_u, EINVAL);
	}
	ret = vroom_submit(qp, &io);
	if (!ret)
		return FIO_Q_QUEUED;
	return ret == -EAGAIN ? FIO_Q_BUSY : reject(io_u, -ret);
}

static int engine_commit(struct thread_data *td)
{
	const struct job *job = td->io_ops_data;

	for (unsigned i = 0; i < job->nr_qpairs; i++)
		vroom_ring(job->qpairs[i].qp);
	return 0;
}

/* The option that sets the deadline in LINE, if it is about one: commands differ in theirs. */
static const char *option_behind(const struct target *target, const char *line)
{
	const char *deadline = strstr(line, "the deadline of ");
	unsigned ms;

	if (!deadline || sscanf(deadline, "the deadline of %u ms", &ms) != 1)
		return "";
	return ms == target->io_timeout_ms ? " (io_timeout=)" : " (flush_timeout=)";
}

/* A queue pair, TARGET's most likely, is beyond use: says so once, in one line. */
static int give_up(struct thread_data *td, const struct target *target, int err)
{
	struct job *job = td->io_ops_data;
	const char *line = vroom_error();

	if (!job->failed) {
		log_err("vroom: %s%s\n", line, option_behind(target, line));
		td_verror(td, -err, "getevents");
	}
	job->failed = true;
	return err;
}

static int engine_getevents(struct thread_data *td, unsigned int min, unsigned int max,
			    const struct timespec *t)
{
	struct job *job = td->io_ops_data;
	unsigned int got = 0, empty = 0;

	if (VROOM_UNLIKELY(!job->nr_qpairs))
		return 0;
	if (max > job->max_done)
		max = job->max_done;
	do {
		const struct job_qpair *jq = &job->qpairs[job->next];
		int n = vroom_poll(jq->qp, job->done + got, (int)(max - got));

		if (VROOM_UNLIKELY(n < 0))
			return give_up(td, jq->target, n);
		got += (unsigned int)n;
		if (++job->next >= job->nr_qpairs)
			job->next = 0;
		if (n || !job->patience || got >= min || ++empty < job->patience * job->nr_qpairs)
			continue;
		n = vroom_wait(job->waitable, job->nr_qpairs, WAIT_MS);
		if (VROOM_UNLIKELY(n < 0))
			return give_up(td, jq->target, n);
		empty = 0;
	} while (got < min);
	return (int)got;
}

static struct io_u *engine_event(struct thread_data *td, int event)
{
	struct job *job = td->io_ops_data;
	const struct vroom_completion *c = &job->done[event];
	struct io_u *io_u = c->tag;

	if (VROOM_UNLIKELY(c->status)) {
		io_u->error = vroom_status_errno(c->status);
		io_u->resid = io_u->xfer_buflen;
		/* fio itself looks at errors of syncs only where they are not queued. */
		if (ddir_sync(io_u->ddir))
			td_verror(td, io_u->error, "sync");
		if (!job->failed)
			log_err("vroom: %s: %s at offset %llu of %llu bytes: %s\n",
				io_u->file->file_name, io_ddir_name(io_u->ddir),
				(unsigned long long)io_u->offset,
				(unsigned long long)io_u->xfer_buflen, vroom_status_str(c->status));
		job->failed = true;
	} else {
		io_u->error = 0;
	}
	return io_u;
}

/* --- loading
 * --------------------------------------------------------------------------------------- */

static struct ioengine_ops vroom_ops = {
	.name = "vroom",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_RAWIO | FIO_NOEXTEND | FIO_NODISKUTIL | FIO_MEMALIGN,
	.setup = engine_setup,
	.init = engine_init,
	.queue = engine_queue,
	.commit = engine_commit,
	.getevents = engine_getevents,
	.event = engine_event,
	.cleanup = engine_cleanup,
	.open_file = engine_open_file,
	.close_file = engine_close_file,
	.invalidate = engine_invalidate,
	.unlink_file = engine_unlink_file,
	.iomem_alloc = engine_iomem_alloc,
	.iomem_free = engine_iomem_free,
	.options = vroom_fio_options,
	.option_struct_size = sizeof(struct engine_options),
};

/*
 * fio compares FIO_IOOPS_VERSION only; struct thread_data differs between releases that
 * share it. So the engine is handed out to the very release that it was built for.
 */
__attribute__((visibility("default"))) void get_ioengine(struct ioengine_ops **ops);
void get_ioengine(struct ioengine_ops **ops)
{
	const char *loader = dlsym(RTLD_DEFAULT, "fio_version_string");
	static bool loaded;
	Dl_info self;

	*ops = NULL;
	if (!loader || strcmp(loader, VROOM_FIO_VERSION)) {
		log_err("vroom: built for %s, loaded by %s; rebuild with: make "
			"FIO_SRC=/path/to/its/"
			"source\n",
			VROOM_FIO_VERSION, loader ? loader : "an unknown fio");
		return;
	}
	if (!loaded) {
		if (!dladdr(&vroom_ops, &self) || !realpath(self.dli_fname, engine_path)) {
			log_err("vroom: the engine cannot find its own file\n");
			return;
		}
		target_init();
		loaded = true;
	}
	*ops = &vroom_ops;
}

/* After all jobs have ended; forked jobs leave by _exit() and never get here. */
__attribute__((destructor)) static void engine_unload(void)
{
	target_close_all();
}
