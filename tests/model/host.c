/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The host's side of the model checker. The driver's code, compiled with -fsanitize=thread, tells
 * of each access by a call of __tsan_*(); here these are not ThreadSanitizer's but the memory
 * model's. The code runs on a stack of its own, which is left at loads whose value others have a
 * say in and taken up again there, perhaps many times, from a copy.
 *
 * Also here: what the driver's files need of the rest of the driver, and its heap, which is a part
 * of the state.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

#include "base/base.h"
#include "core/core.h"
#include "model.h"

/* Memory as the host's instructions find it; the hooks put there what a load is to return. */
static struct {
	struct nvme_sqe sq[SQ_MAX + 1];
	struct nvme_cqe cq[CQ_MAX + 1];
	volatile uint32_t doorbell[2 * QID + 2];
	volatile uint32_t needs_kick;
} image;

struct world w;
_Alignas(64) char host_stack[STACK_BYTES];
const char *fault;
char fault_detail[160];

static jmp_buf outside;
static bool in_host;
static ucontext_t begin;
static size_t written_at, written_bytes; /* a store whose hook was called but not its effect seen */

void violated(const char *property, const char *format, ...)
{
	va_list args;

	if (!fault) {
		fault = property;
		va_start(args, format);
		vsnprintf(fault_detail, sizeof(fault_detail), format, args);
		va_end(args);
	}
	if (in_host)
		longjmp(outside, 1);
}

/* --- stores ---------------------------------------------------------------------------------- */

static void store_doorbell(bool head, uint32_t value, bool release)
{
	struct store *s = &w.buffer[w.buffered];

	if (w.buffered == BUFFER_MAX)
		violated("doorbell", "more than %d stores to doorbells on their way", BUFFER_MAX);
	if (value >= (head ? w.cq_size : w.sq_size))
		violated("doorbell", "%u is beyond the end of the queue", value);
	*s = (struct store){ .head = head, .release = release, .value = (uint8_t)value };
	s->clears = release ? UINT16_MAX : 0;
	/* Where stores stay in order, all that were before are; else only a release waits. */
	s->before = release || !config.weak ? w.dirty : 0;
	w.buffered++;
	if (head)
		w.issued_head = (uint8_t)value;
	else
		check_room();
	if (config.eager)
		arrive(w.buffered - 1u);
}

static void store_entry(size_t at, size_t bytes)
{
	unsigned slot = (unsigned)(at / sizeof(*image.sq)), ahead;

	if (slot >= w.sq_size)
		violated("sq bounds", "the host writes to slot %u of %u", slot, w.sq_size);
	memcpy((char *)w.sq + at, (char *)&image + at, bytes);
	w.dirty |= (uint8_t)(1 << slot);
	for (unsigned i = 0; i < w.buffered; i++)
		w.buffer[i].before &= (uint8_t) ~(1 << slot);
	ahead = (slot + w.sq_size - w.sq_head) % w.sq_size;
	if (ahead < (unsigned)(w.tail + w.sq_size - w.sq_head) % w.sq_size)
		violated("sq overwritten", "slot %u is the controller's, and not fetched yet",
			 slot);
}

/* The effect of the last store of which there was a hook. */
static void settle(void)
{
	size_t at = written_at, bytes = written_bytes, doorbell;

	if (!bytes)
		return;
	written_bytes = 0;
	if (at < sizeof(image.sq)) {
		store_entry(at, bytes);
		return;
	}
	doorbell = (at - offsetof(__typeof__(image), doorbell)) / 4;
	if (at < offsetof(__typeof__(image), doorbell) || doorbell / 2 != QID)
		violated("stray store", "the host writes what is not its own to write");
	store_doorbell(doorbell & 1, image.doorbell[doorbell], false);
}

static size_t shared(const volatile void *address)
{
	return (size_t)((const volatile char *)address - (char *)&image);
}

static void on_write(const volatile void *address, size_t bytes)
{
	settle();
	if (shared(address) >= sizeof(image))
		return;
	written_at = shared(address);
	written_bytes = bytes;
}

/* --- loads ----------------------------------------------------------------------------------- */

/* Leaves the host's stack; comes back when the search has chosen the host to go on. */
static __attribute__((noinline)) void yield(void)
{
	w.mid = 1;
	w.frame = (uint16_t)(host_stack + STACK_BYTES - (char *)__builtin_frame_address(0) + 512);
	if (!_setjmp(w.env))
		_longjmp(outside, 1);
	w.mid = 0;
	memset(w.env, 0, sizeof(w.env));
}

/* One word of a completion queue entry, as a load now finds it. */
static uint32_t load_word(unsigned slot, unsigned word, bool acquire)
{
	uint16_t bit = (uint16_t)(1 << slot);
	uint32_t *memory = (uint32_t *)&w.cq[slot] + word, value = *memory;
	bool complete = !(w.posting && w.cq_tail == slot);

	if (word < 2 && w.stale[word] & bit)
		return (uint32_t)POISON;
	w.unread[word] &= (uint16_t)~bit;
	if (acquire)
		w.stale[0] = w.stale[1] = 0;
	if (word == 0 && w.posted[slot] < COMMANDS_MAX && w.life[w.posted[slot]] == POSTED &&
	    complete)
		w.life[w.posted[slot]] = TAKEN;
	if (word < 2 && complete)
		*memory = (uint32_t)POISON;
	if (!((w.unread[0] | w.unread[1] | w.unread[3]) & bit) && complete) {
		w.cq[slot].cid = UINT16_MAX;
		w.cq[slot].status &= NVME_STATUS_PHASE_MASK;
		w.posted[slot] = COMMANDS_MAX;
	}
	return value;
}

static void on_read_order(const volatile void *address, size_t bytes, bool acquire)
{
	size_t at = shared(address);
	unsigned slot;

	settle();
	if (at >= sizeof(image))
		return;
	if (address == &image.needs_kick) {
		if (config.sleep)
			yield();
		image.needs_kick = w.needs_kick;
		return;
	}
	at -= offsetof(__typeof__(image), cq);
	slot = (unsigned)(at / sizeof(*image.cq));
	if (at >= sizeof(image.cq))
		violated("stray load", "the host reads what it alone writes");
	if (slot >= w.cq_size)
		violated("cq bounds", "the host reads slot %u of %u", slot, w.cq_size);
	if (is_writable(slot))
		yield();
	for (size_t word = at % 16 / 4; word < (at % 16 + bytes + 3) / 4; word++)
		((uint32_t *)&image.cq[slot])[word] = load_word(slot, (unsigned)word, acquire);
}

static void on_read(const volatile void *address, size_t bytes)
{
	on_read_order(address, bytes, false);
}

/* --- what instrumented code calls ------------------------------------------------------------ */

#define PLAIN(n)                                 \
	void __tsan_read##n(void *p);            \
	void __tsan_write##n(void *p);           \
	void __tsan_unaligned_read##n(void *p);  \
	void __tsan_unaligned_write##n(void *p); \
	void __tsan_read##n(void *p)             \
	{                                        \
		on_read(p, n);                   \
	}                                        \
	void __tsan_write##n(void *p)            \
	{                                        \
		on_write(p, n);                  \
	}                                        \
	void __tsan_unaligned_read##n(void *p)   \
	{                                        \
		on_read(p, n);                   \
	}                                        \
	void __tsan_unaligned_write##n(void *p)  \
	{                                        \
		on_write(p, n);                  \
	}
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

void __tsan_init(void);
void __tsan_func_entry(void *p);
void __tsan_func_exit(void);
void __tsan_read_range(void *p, unsigned long bytes);
void __tsan_write_range(void *p, unsigned long bytes);
uint32_t __tsan_atomic32_load(const volatile uint32_t *p, int order);
void __tsan_atomic32_store(volatile uint32_t *p, uint32_t value, int order);
uint32_t __tsan_atomic32_exchange(volatile uint32_t *p, uint32_t value, int order);
uint64_t __tsan_atomic64_load(const volatile uint64_t *p, int order);
void __tsan_atomic64_store(volatile uint64_t *p, uint64_t value, int order);

void __tsan_init(void)
{
}

void __tsan_func_entry(void *p)
{
	(void)p;
}

void __tsan_func_exit(void)
{
}

void __tsan_read_range(void *p, unsigned long bytes)
{
	on_read(p, bytes);
}

void __tsan_write_range(void *p, unsigned long bytes)
{
	on_write(p, bytes);
}

uint32_t __tsan_atomic32_load(const volatile uint32_t *p, int order)
{
	on_read_order(p, 4, order == __ATOMIC_ACQUIRE || order == __ATOMIC_SEQ_CST);
	return *p;
}

void __tsan_atomic32_store(volatile uint32_t *p, uint32_t value, int order)
{
	settle();
	/* The barrier of a controller that falls asleep may come before this store or after it. */
	if (config.sleep && shared(p) < sizeof(image))
		yield();
	*p = value;
	if (p >= image.doorbell + 2 * QID && p < image.doorbell + 2 * QID + 2)
		store_doorbell((p - image.doorbell) & 1, value,
			       order == __ATOMIC_RELEASE || order == __ATOMIC_SEQ_CST);
	else if (shared(p) < sizeof(image))
		violated("stray store", "the host writes what is not its own to write");
}

/* Of 64 bits there is nothing that the controller sees: where memory was found last. */
uint64_t __tsan_atomic64_load(const volatile uint64_t *p, int order)
{
	(void)order;
	return *p;
}

void __tsan_atomic64_store(volatile uint64_t *p, uint64_t value, int order)
{
	(void)order;
	*p = value;
}

uint32_t __tsan_atomic32_exchange(volatile uint32_t *p, uint32_t value, int order)
{
	(void)order;
	uint32_t old = *p;

	*p = value;
	return old;
}

/* --- the heap: calloc(), aligned_alloc() and free() of the driver's files --------------------- */

void *model_aligned_alloc(size_t align, size_t bytes);
void *model_calloc(size_t n, size_t size);
void model_free(void *p);
int model_clock_gettime(clockid_t id, struct timespec *ts);

void *model_aligned_alloc(size_t align, size_t bytes)
{
	unsigned at = 0, i = 0;

	(void)align;
	bytes = vroom_round_up(bytes, 64);
	for (; i < w.chunks && w.chunk[i].at - at < bytes; i++)
		at = w.chunk[i].at + w.chunk[i].bytes;
	if (w.chunks == sizeof(w.chunk) / sizeof(*w.chunk) || at + bytes > ARENA_BYTES)
		abort();
	memmove(&w.chunk[i + 1], &w.chunk[i], (w.chunks++ - i) * sizeof(*w.chunk));
	w.chunk[i].at = (uint16_t)at;
	w.chunk[i].bytes = (uint16_t)bytes;
	memset(w.arena + at, 0xa5, bytes);
	return w.arena + at;
}

void *model_calloc(size_t n, size_t size)
{
	return memset(model_aligned_alloc(64, n * size), 0, n * size);
}

void model_free(void *p)
{
	for (unsigned i = 0; i < w.chunks; i++) {
		if (p != w.arena + w.chunk[i].at)
			continue;
		memset(p, 0, w.chunk[i].bytes);
		w.chunks--;
		memmove(&w.chunk[i], &w.chunk[i + 1], (w.chunks - i) * sizeof(*w.chunk));
		memset(&w.chunk[w.chunks], 0, sizeof(*w.chunk));
		return;
	}
	if (p)
		violated("heap", "free() of what was not allocated");
}

int model_clock_gettime(clockid_t id, struct timespec *ts)
{
	(void)id;
	*ts = (struct timespec){ .tv_sec = 1000 };
	return 0;
}

/* --- the rest of the driver, as far as its files here call it --------------------------------- */

static void kick(struct vroom_transport *t)
{
	(void)t;
	/* A message: what was stored before it was sent is seen by who receives it. */
	arrive_all();
	w.asleep = w.needs_kick = 0;
}

static int alive(struct vroom_transport *t)
{
	(void)t;
	return 0;
}

static const struct vroom_transport_ops ops = { .name = "model", .kick = kick, .alive = alive };
static struct vroom_transport transport = { .ops = &ops,
					    .doorbells = image.doorbell,
					    .doorbell_bytes = sizeof(image.doorbell),
					    .needs_kick = &image.needs_kick,
					    .numa_node = -1 };
static struct vroom_ctrlr_shared ctrlr_shared;
static struct vroom_ctrlr ctrlr = { .transport = &transport,
				    .shared = &ctrlr_shared,
				    .opts = { .io_timeout_ms = 30000, .long_timeout_ms = 30000 },
				    .page_size = 4096,
				    .max_transfer = 1 << 20,
				    .qpairs = QID };

/* The commands that create and delete queues. The host waits for each, which orders everything. */
int vroom_admin_locked(struct vroom_ctrlr *c, const struct nvme_sqe *sqe, void *buf, size_t bytes,
		       struct nvme_cqe *cqe)
{
	uint8_t size = (uint8_t)(((sqe->cdw10 >> NVME_CREATE_QSIZE_SHIFT) & 0xffff) + 1);

	(void)c, (void)buf, (void)bytes, (void)cqe;
	switch (sqe->opcode) {
	case NVME_ADMIN_CREATE_CQ:
		w.cq_size = size;
		memcpy(w.cq, image.cq, sizeof(w.cq));
		memset(w.posted, COMMANDS_MAX, sizeof(w.posted));
		w.cq_tail = w.head = w.issued_head = 0;
		w.phase = 1;
		break;
	case NVME_ADMIN_CREATE_SQ:
		if (!w.cq_size)
			violated("life", "a submission queue without a completion queue");
		w.sq_size = size;
		memcpy(w.sq, image.sq, sizeof(w.sq));
		w.sq_head = w.tail = w.dirty = 0;
		break;
	case NVME_ADMIN_DELETE_SQ:
		arrive_all();
		w.sq_size = 0;
		w.fetches = 0;
		memset(w.fetched, 0, sizeof(w.fetched));
		break;
	case NVME_ADMIN_DELETE_CQ:
		if (w.sq_size)
			violated("life", "a completion queue goes before its submission queue");
		w.cq_size = w.posting = w.loose = 0;
		memset(w.unread, 0, sizeof(w.unread));
		memset(w.stale, 0, sizeof(w.stale));
		break;
	}
	return 0;
}

int vroom_admin(struct vroom_ctrlr *c, const struct nvme_sqe *sqe, void *buf, size_t bytes,
		struct nvme_cqe *cqe)
{
	return vroom_admin_locked(c, sqe, buf, bytes, cqe);
}

/* The submission queue, then the completion queue: where they were before, as they were. */
void *vroom_dma_alloc(struct vroom_ctrlr *c, size_t bytes, size_t align)
{
	(void)c, (void)align;
	if (w.queues_allocated++) {
		if (bytes > sizeof(w.cq))
			violated("cq bounds", "a queue of %zu bytes", bytes);
		return memcpy(image.cq, w.cq, sizeof(w.cq));
	}
	if (bytes > sizeof(w.sq))
		violated("sq bounds", "a queue of %zu bytes", bytes);
	return memcpy(image.sq, w.sq, sizeof(w.sq));
}

void vroom_dma_free(struct vroom_ctrlr *c, void *mem)
{
	(void)c;
	if ((mem == image.sq && w.sq_size) || (mem == image.cq && w.cq_size))
		violated("life", "memory of a queue is freed that the controller still has");
	w.queues_allocated = 0;
}

int vroom_space_find(struct vroom_dma_space *s, const void *va, struct vroom_dma_range *out)
{
	(void)s, (void)va;
	*out = (struct vroom_dma_range){ .bytes = SIZE_MAX };
	return 0;
}

uint64_t vroom_space_iova(struct vroom_dma_space *s, const void *va)
{
	(void)s;
	return (uintptr_t)va;
}

int vroom_fail(int err, const char *format, ...)
{
	(void)format;
	return -err;
}

int vroom_fail_on(const char *device, int err, const char *format, ...)
{
	(void)device, (void)format;
	return -err;
}

/* clang-format off */
const char *vroom_status_str(uint16_t status) { (void)status; return ""; }
bool vroom_space_suspect(const struct vroom_dma_space *s) { (void)s; return false; }
void vroom_space_unmap_dead(struct vroom_dma_space *s) { (void)s; }
void vroom_pool_free_dead(struct vroom_dma_pool *p) { (void)p; }
const char *vroom_ctrlr_reason(const struct vroom_ctrlr *c) { (void)c; return ""; }
int vroom_ctrlr_mark_failed(struct vroom_ctrlr *c, int err) { (void)c; return err; }
int vroom_ctrlr_failed(const struct vroom_ctrlr *c) { (void)c; return 0; }
int vroom_ctrlr_health(struct vroom_ctrlr *c) { (void)c; return 0; }
void vroom_notice(const struct vroom_ctrlr *c, const char *format, ...) { (void)c, (void)format; }
int vroom_qpair_connect_interrupt(struct vroom_qpair *qp) { (void)qp; return 0; }
void vroom_qpair_disconnect_interrupt(struct vroom_qpair *qp) { (void)qp; }
bool vroom_lock(pthread_mutex_t *lock) { (void)lock; return false; }
void vroom_unlock(pthread_mutex_t *lock) { (void)lock; }
bool vroom_process_alive(pid_t pid) { (void)pid; return true; }
/* clang-format on */

/* --- steps ----------------------------------------------------------------------------------- */

/* A queue pair's life ends, and another's begins. */
static int reset(void)
{
	int ret;

	if (w.qp) {
		vroom_qpair_destroy(w.qp);
		settle();
		w.qp = NULL;
		/* What the old life left in memory is not to be mistaken for something. */
		for (unsigned i = 0; i < CQ_MAX; i++)
			w.cq[i].dw0 = w.cq[i].dw1 = (uint32_t)POISON;
		memset(w.life, FREE, sizeof(w.life));
		memset(w.status, 0, sizeof(w.status));
		w.splitting = 0;
	}
	ret = vroom_qpair_create(&ctrlr, config.depth, &w.qp);
	if (!ret && w.qp->depth != config.depth)
		violated("life", "the depth is %u", w.qp->depth);
	return ret;
}

static int submit(unsigned command)
{
	struct vroom_io io;

	describe_command(&io, command);
	return api_submit(w.qp, &io);
}

static void host_main(void)
{
	unsigned command = 0;

	switch (w.op) {
	case OP_SUBMIT:
		/* Named as the slot that it will most likely get: names are no choice then. */
		if (w.qp->free_slot < config.depth && w.life[w.qp->free_slot] == FREE)
			command = w.qp->free_slot;
		while (command < config.depth && w.life[command] != FREE)
			command++;
		w.ret = (int8_t)submit(command);
		if (!w.ret && command < config.depth)
			w.life[command] = SUBMITTED;
		break;
	case OP_SPLIT:
		w.splitting = 1;
		w.ret = (int8_t)submit(SPLIT);
		break;
	case OP_RING: api_ring(w.qp); break;
	case OP_POLL_ONE: w.ret = (int8_t)api_poll(w.qp, w.out, 1); break;
	case OP_POLL_ALL: w.ret = (int8_t)api_poll(w.qp, w.out, DEPTH_MAX + 2); break;
	case OP_RESET: w.ret = (int8_t)reset(); break;
	}
	settle();
	_longjmp(outside, 1);
}

void host_step(enum op op)
{
	static ucontext_t context;

	in_host = true;
	if (!_setjmp(outside)) {
		if (w.mid)
			_longjmp(w.env, 1);
		w.op = (uint8_t)op;
		w.ret = 0;
		memset(host_stack + STACK_BYTES - 4096, 0, 4096);
		context = begin;
		makecontext(&context, host_main, 0);
		setcontext(&context);
	}
	in_host = false;
	if (!fault)
		settle();
	written_bytes = 0;
	memset(&image, 0, sizeof(image));
}

void host_init(void)
{
	ctrlr.cap = config.entries - 1; /* CAP.MQES */
	getcontext(&begin);
	begin.uc_stack.ss_sp = host_stack;
	begin.uc_stack.ss_size = sizeof(host_stack);
	memset(&w, 0, sizeof(w));
	memset(&ctrlr_shared, 0, sizeof(ctrlr_shared));
}
