/* SPDX-License-Identifier: BSD-3-Clause */
#include "fake.h"

#include <errno.h>
#include <hugetlbfs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/size.h"
#include "unit.h"

_Thread_local volatile uint32_t fake_inside;

static struct fake *fake_of(struct vroom_transport *t)
{
	return (struct fake *)t;
}

static void fault(struct fake *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fault(struct fake *f, const char *format, ...)
{
	va_list args;

	if (f->faulted)
		return;
	f->faulted = 1;
	va_start(args, format);
	vsnprintf(f->fault, sizeof(f->fault), format, args);
	va_end(args);
}

uint64_t fake_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static uint64_t page_bytes(const struct fake *f)
{
	return 1ull << f->opts.page_shift;
}

/* --- huge pages, instead of libhugetlbfs' and the machine's ------------------------------------
 */

size_t fake_huge_bytes;
static bool huge_fd[1024];

long gethugepagesize(void)
{
	return fake_huge_bytes ? (long)VROOM_HUGE_PAGE : -1;
}

int hugetlbfs_unlinked_fd(void)
{
	int fd = memfd_create("fake-huge", MFD_CLOEXEC);

	if (fd >= 0 && fd < (int)VROOM_LENGTH(huge_fd))
		huge_fd[fd] = true;
	return fd;
}

/* Where hugetlbfs would say that there are not so many pages. */
int ftruncate(int fd, off_t length)
{
	if (fd >= 0 && fd < (int)VROOM_LENGTH(huge_fd) && huge_fd[fd]) {
		huge_fd[fd] = false;
		if ((size_t)length > fake_huge_bytes) {
			errno = ENOMEM;
			return -1;
		}
		fake_huge_bytes -= (size_t)length;
	}
	return (int)syscall(SYS_ftruncate, fd, length);
}

/* --- memory ------------------------------------------------------------------------------ */

static bool overlaps(const struct fake *f, uint64_t iova, uint64_t bytes)
{
	for (unsigned i = 0; i < f->fragments; i++)
		if (iova < f->fragment[i].iova + f->fragment[i].bytes &&
		    f->fragment[i].iova < iova + bytes)
			return true;
	return false;
}

static int map_linear(struct fake *f, struct vroom_dma_map *m)
{
	if (overlaps(f, m->iova, m->bytes))
		return vroom_fail(EEXIST, "fake: IOVA %#llx is mapped already",
				  (unsigned long long)m->iova);
	for (size_t i = 0; i < m->bytes >> m->page_shift; i++)
		m->page_iova[i] = m->iova + (i << m->page_shift);
	f->fragment[f->fragments++] = (struct fake_fragment){ m->iova, m->bytes, m->va };
	return 0;
}

/* Pages in a random order, of which some are neighbours all the same. */
static int map_scattered(struct fake *f, struct vroom_dma_map *m)
{
	size_t page = 1ul << m->page_shift, pages = m->bytes >> m->page_shift;
	uint64_t base = vroom_round_up(f->next_iova, page);

	if (f->fragments + pages > FAKE_FRAGMENTS)
		return vroom_fail(ENOSPC, "fake: too many pages");
	for (size_t i = 0; i < pages; i++)
		m->page_iova[i] = i;
	for (size_t i = pages; i > 1; i--) {
		size_t j = fake_random(&f->random) % i;
		uint64_t swap = m->page_iova[i - 1];

		m->page_iova[i - 1] = m->page_iova[j];
		m->page_iova[j] = swap;
	}
	for (size_t i = 0; i < pages; i++) {
		m->page_iova[i] = base + m->page_iova[i] * page;
		f->fragment[f->fragments++] =
			(struct fake_fragment){ m->page_iova[i], page, (char *)m->va + i * page };
	}
	f->next_iova = base + pages * page;
	m->iova = m->page_iova[0];
	return 0;
}

static int fake_dma_map(struct vroom_transport *t, struct vroom_dma_map *m)
{
	struct fake *f = fake_of(t);
	unsigned first = f->fragments;
	int ret;

	fake_inside++;
	pthread_mutex_lock(&f->lock);
	f->mapped++;
	if (m->bytes % (1ul << m->page_shift) || (uintptr_t)m->va % (1ul << m->page_shift))
		fault(f, "dma_map of %zu bytes at %p in pages of 2^%u", m->bytes, m->va,
		      m->page_shift);
	if (f->map_fails_in && --f->map_fails_in == 0)
		ret = vroom_fail(ENOSPC, "fake: no more mappings, as the test wants it");
	else
		ret = f->opts.scattered ? map_scattered(f, m) : map_linear(f, m);
	(void)first;
	if (!ret)
		f->map[f->maps++] = (struct fake_map){ m->iova, m->bytes, true };
	pthread_mutex_unlock(&f->lock);
	fake_inside--;
	return ret;
}

/* Which fragments a map has is known from their order: they were added along with it. */
static int fake_dma_unmap(struct vroom_transport *t, uint64_t iova, size_t bytes)
{
	struct fake *f = fake_of(t);
	int ret = -ENOENT;

	fake_inside++;
	pthread_mutex_lock(&f->lock);
	for (unsigned i = 0; i < f->maps && ret; i++) {
		uint64_t left = bytes;
		unsigned at = 0;

		if (!f->map[i].live || f->map[i].iova != iova || f->map[i].bytes != bytes)
			continue;
		while (f->fragment[at].iova != iova || !f->fragment[at].bytes)
			at++;
		for (; left; at++) {
			left -= f->fragment[at].bytes;
			f->fragment[at].bytes = 0;
		}
		f->map[i].live = false;
		f->unmapped++;
		ret = 0;
	}
	pthread_mutex_unlock(&f->lock);
	fake_inside--;
	return ret ? vroom_fail(ENOENT, "fake: nothing is mapped at %#llx",
				(unsigned long long)iova)
		   : 0;
}

/* VA of IOVA, and how many bytes are contiguous from there on. */
static char *look_up(const struct fake *f, uint64_t iova, uint64_t *bytes)
{
	unsigned n = __atomic_load_n(&f->fragments, __ATOMIC_ACQUIRE);

	for (unsigned i = 0; i < n; i++) {
		const struct fake_fragment *g = &f->fragment[i];

		if (iova - g->iova >= g->bytes)
			continue;
		*bytes = g->bytes - (iova - g->iova);
		return g->va + (iova - g->iova);
	}
	return NULL;
}

void *fake_va(struct fake *f, uint64_t iova, uint64_t bytes)
{
	uint64_t there = 0, more;
	char *va, *next;

	pthread_mutex_lock(&f->lock);
	va = look_up(f, iova, &there);
	while (va && there < bytes) {
		next = look_up(f, iova + there, &more);
		if (next != va + there)
			va = NULL;
		there += more;
	}
	pthread_mutex_unlock(&f->lock);
	if (!va)
		fault(f, "%llu bytes at IOVA %#llx are not mapped in one piece",
		      (unsigned long long)bytes, (unsigned long long)iova);
	return va;
}

bool fake_walk(struct fake *f, const struct nvme_sqe *sqe, uint64_t bytes,
	       void (*each)(void *arg, char *va, size_t bytes), void *arg)
{
	uint64_t page = page_bytes(f), at = sqe->prp1, n, list = 0, entries = 0;
	char *va;

	if (at % 4) {
		fault(f, "PRP1 %#llx is not dword aligned", (unsigned long long)at);
		return false;
	}
	for (bool first = true; bytes; first = false) {
		if (!first && at % page) {
			fault(f, "a PRP entry other than the first, %#llx, has an offset",
			      (unsigned long long)at);
			return false;
		}
		n = VROOM_MIN(bytes, page - at % page);
		va = fake_va(f, at, n);
		if (!va)
			return false;
		each(arg, va, n);
		bytes -= n;
		if (!bytes)
			return true;
		if (first && bytes <= page) { /* PRP2 is the second entry */
			at = sqe->prp2;
			continue;
		}
		if (first) { /* it points to a list */
			list = sqe->prp2;
			entries = (page - list % page) / 8;
			if (list % 8 || !list) {
				fault(f, "a PRP list at %#llx", (unsigned long long)list);
				return false;
			}
		}
		if (entries == 1 && bytes > page) { /* the last entry points to the next list */
			uint64_t *pointer = fake_va(f, list, 8);

			if (!pointer)
				return false;
			list = *pointer;
			entries = (page - list % page) / 8;
		}
		va = fake_va(f, list, 8);
		if (!va)
			return false;
		memcpy(&at, va, 8);
		list += 8;
		entries--;
	}
	return true;
}

struct copy {
	char *at;
	bool to_host, differs;
};

static void copy_piece(void *arg, char *va, size_t bytes)
{
	struct copy *c = arg;

	if (c->to_host)
		memcpy(va, c->at, bytes);
	else
		memcpy(c->at, va, bytes);
	c->at += bytes;
}

static void compare_piece(void *arg, char *va, size_t bytes)
{
	struct copy *c = arg;

	c->differs |= memcmp(va, c->at, bytes) != 0;
	c->at += bytes;
}

static bool to_host(struct fake *f, const struct nvme_sqe *sqe, const void *from, size_t bytes)
{
	struct copy c = { (char *)(uintptr_t)from, true, false };

	return fake_walk(f, sqe, bytes, copy_piece, &c);
}

/* --- queues ---------------------------------------------------------------------------------- */

static uint32_t doorbell(const struct fake *f, unsigned qid, bool completion)
{
	unsigned at = (2 * qid + completion) << f->opts.dstrd;
	const uint32_t *from = f->opts.messages ? f->message : f->doorbell;

	return __atomic_load_n(&from[at], __ATOMIC_ACQUIRE);
}

bool fake_post(struct fake *f, unsigned qid, uint16_t cid, uint64_t result, uint16_t status)
{
	struct fake_queue *q = &f->q[qid];
	uint32_t head = doorbell(f, qid, true), next = (q->cq_tail + 1) % q->cq_size;
	struct nvme_cqe cqe = {
		.dw0 = (uint32_t)result,
		.dw1 = (uint32_t)(result >> 32),
		.sqhd = (uint16_t)q->sq_head,
		.sqid = (uint16_t)qid,
		.cid = cid,
		.status = (uint16_t)(status << 1 | q->phase),
	};
	uint64_t words[2];

	if (head >= q->cq_size) {
		fault(f, "CQ %u: head doorbell %u of %u", qid, head, q->cq_size);
		return false;
	}
	if (next == head) {
		f->cq_full++;
		return false;
	}
	memcpy(words, &cqe, sizeof(words));
	memcpy(&q->cq[q->cq_tail], &words[0], 8);
	__atomic_store_n((uint32_t *)&q->cq[q->cq_tail] + 2, (uint32_t)words[1], __ATOMIC_RELAXED);
	__atomic_store_n((uint32_t *)&q->cq[q->cq_tail] + 3, (uint32_t)(words[1] >> 32),
			 __ATOMIC_RELEASE);
	q->cq_tail = next;
	q->phase ^= !next;
	return true;
}

static bool next_sqe(struct fake *f, unsigned qid, struct nvme_sqe *out)
{
	struct fake_queue *q = &f->q[qid];
	uint32_t tail = doorbell(f, qid, false);

	if (!q->sq_size || tail == q->sq_head)
		return false;
	if (tail >= q->sq_size) {
		fault(f, "SQ %u: tail doorbell %u of %u", qid, tail, q->sq_size);
		return false;
	}
	*out = q->sq[q->sq_head];
	q->sq_head = (q->sq_head + 1) % q->sq_size;
	return true;
}

static void set_queue(struct fake *f, unsigned qid, void *sq, uint32_t sq_size)
{
	struct fake_queue *q = &f->q[qid];

	q->sq = sq;
	q->sq_size = sq ? sq_size : 0;
	q->sq_head = q->first = q->last = 0;
	for (unsigned i = 0; qid && i < sq_size; i++) /* identifiers are below */
		q->in_use[i] = false;
	f->doorbell[(2 * qid) << f->opts.dstrd] = f->message[(2 * qid) << f->opts.dstrd] = 0;
}

static void set_cq(struct fake *f, unsigned qid, void *cq, uint32_t size)
{
	struct fake_queue *q = &f->q[qid];
	unsigned at = (2 * qid + 1) << f->opts.dstrd;

	q->cq = cq;
	q->cq_size = cq ? size : 0;
	q->cq_tail = 0;
	q->phase = 1;
	f->doorbell[at] = f->message[at] = 0;
	for (uint32_t i = 0; cq && i < size; i++)
		if (q->cq[i].status & 1)
			fault(f, "CQ %u: entry %u is not zero when it is created", qid, i);
}

/* --- the admin queue ------------------------------------------------------------------------- */

static unsigned identify(struct fake *f, const struct nvme_sqe *sqe)
{
	union {
		struct nvme_id_ctrlr ctrlr;
		struct nvme_id_ns ns;
		uint32_t list[1024];
	} id = { 0 };

	switch (sqe->cdw10 & 0xff) {
	case NVME_CNS_CTRLR:
		id.ctrlr.mdts = (uint8_t)f->opts.mdts;
		id.ctrlr.cntrltype = NVME_CNTRLTYPE_IO;
		id.ctrlr.sqes = 0x66;
		id.ctrlr.cqes = 0x44;
		id.ctrlr.nn = 1;
		id.ctrlr.oncs = NVME_ONCS_DSM | NVME_ONCS_WRITE_ZEROES | NVME_ONCS_COMPARE;
		break;
	case NVME_CNS_NS:
		if (sqe->nsid != 1)
			return NVME_SC_INVALID_NS;
		id.ns.nsze = id.ns.ncap = id.ns.nuse = f->opts.blocks;
		id.ns.lbaf[0].lbads = (uint8_t)f->opts.lba_shift;
		break;
	case NVME_CNS_ACTIVE_NS_LIST: id.list[0] = sqe->nsid ? 0 : 1; break;
	default: return NVME_SC_INVALID_FIELD;
	}
	return to_host(f, sqe, &id, sizeof(id)) ? 0 : NVME_SC_DATA_TRANSFER_ERROR;
}

static unsigned create(struct fake *f, const struct nvme_sqe *sqe, bool completion)
{
	unsigned qid = sqe->cdw10 & 0xffff, size = (sqe->cdw10 >> 16) + 1;
	struct fake_queue *q = &f->q[qid <= FAKE_QPAIRS ? qid : 0];
	void *entries;

	if (!qid || qid > f->opts.qpairs || (completion ? q->cq_size : q->sq_size))
		return NVME_SC_INVALID_QID;
	if (!completion && ((sqe->cdw11 >> 16) != qid || !q->cq_size))
		return NVME_SC_INVALID_CQ;
	if (size < 2 || size > f->opts.queue_entries)
		return NVME_SC_INVALID_QUEUE_SIZE;
	if (!(sqe->cdw11 & NVME_CREATE_PC) || sqe->prp1 % page_bytes(f))
		return NVME_SC_INVALID_FIELD;
	entries = fake_va(f, sqe->prp1, (uint64_t)size * (completion ? 16 : 64));
	if (!entries)
		return NVME_SC_INVALID_FIELD;
	if (completion)
		set_cq(f, qid, entries, size);
	else
		set_queue(f, qid, entries, size);
	return 0;
}

static unsigned delete_queue(struct fake *f, const struct nvme_sqe *sqe, bool completion)
{
	unsigned qid = sqe->cdw10 & 0xffff;

	if (!qid || qid > f->opts.qpairs || !(completion ? f->q[qid].cq_size : f->q[qid].sq_size))
		return NVME_SC_INVALID_QID;
	if (completion && f->q[qid].sq_size)
		return NVME_SC_INVALID_QUEUE_DELETION;
	if (completion)
		f->q[qid].cq_size = 0;
	else
		f->q[qid].sq_size = 0;
	return 0;
}

/* Get Features answers with its CDW11, and Get Log Page with its CDW14 throughout. */
static unsigned admin(struct fake *f, const struct nvme_sqe *sqe, uint32_t *result)
{
	uint32_t page[1024];

	switch (sqe->opcode) {
	case NVME_ADMIN_IDENTIFY: return identify(f, sqe);
	case NVME_ADMIN_CREATE_SQ: return create(f, sqe, false);
	case NVME_ADMIN_CREATE_CQ: return create(f, sqe, true);
	case NVME_ADMIN_DELETE_SQ: return delete_queue(f, sqe, false);
	case NVME_ADMIN_DELETE_CQ: return delete_queue(f, sqe, true);
	case NVME_ADMIN_GET_FEATURES: *result = sqe->cdw11; return 0;
	case NVME_ADMIN_SET_FEATURES:
		*result = (f->opts.qpairs - 1) << 16 | (f->opts.qpairs - 1);
		return 0;
	case NVME_ADMIN_GET_LOG_PAGE:
		for (unsigned i = 0; i < VROOM_LENGTH(page); i++)
			page[i] = sqe->cdw14;
		*result = sqe->cdw14;
		return to_host(f, sqe, page, ((sqe->cdw10 >> 16) + 1) * 4ul)
			       ? 0
			       : NVME_SC_DATA_TRANSFER_ERROR;
	default: return NVME_SC_INVALID_OPCODE;
	}
}

void fake_run_admin(struct fake *f)
{
	struct nvme_sqe sqe;

	fake_inside++;
	while ((f->csts & 1) && next_sqe(f, 0, &sqe)) {
		uint32_t result = 0;
		unsigned status = admin(f, &sqe, &result);

		f->admin_commands++;
		if (f->stray_cid >= 0)
			fake_post(f, 0, (uint16_t)f->stray_cid, 0xbadbad, 0);
		f->stray_cid = -1;
		fake_post(f, 0, sqe.cid, result, (uint16_t)status);
	}
	fake_inside--;
}

/* --- I/O ----------------------------------------------------------------------------------- */

unsigned fake_held(const struct fake *f, unsigned qid)
{
	return f->q[qid].last - f->q[qid].first;
}

struct nvme_sqe *fake_held_sqe(struct fake *f, unsigned qid, unsigned i)
{
	return &f->q[qid].held[f->q[qid].first + i];
}

unsigned fake_fetch(struct fake *f, unsigned qid)
{
	struct fake_queue *q = &f->q[qid];
	struct nvme_sqe sqe;

	while (next_sqe(f, qid, &sqe)) {
		if (q->in_use[sqe.cid])
			fault(f, "SQ %u: command identifier %u is in use", qid, sqe.cid);
		q->in_use[sqe.cid] = true;
		if (q->last == 2 * FAKE_ENTRIES) {
			memmove(q->held, &q->held[q->first],
				(q->last - q->first) * sizeof(q->held[0]));
			q->last -= q->first;
			q->first = 0;
		}
		q->held[q->last++] = sqe;
	}
	return q->last - q->first;
}

static struct nvme_sqe take(struct fake_queue *q, unsigned i)
{
	struct nvme_sqe sqe = q->held[q->first + i];

	q->in_use[sqe.cid] = false;
	if (i == 0) {
		q->first++;
	} else if (q->last - q->first >
		   256) { /* order is nothing that tests of large queues need */
		q->held[q->first + i] = q->held[--q->last];
	} else {
		memmove(&q->held[q->first + i], &q->held[q->first + i + 1],
			(q->last - q->first - i - 1) * sizeof(sqe));
		q->last--;
	}
	if (q->first == q->last)
		q->first = q->last = 0;
	return sqe;
}

static unsigned deallocate(struct fake *f, const struct nvme_sqe *sqe)
{
	struct nvme_dsm_range range[NVME_DSM_MAX_RANGES];
	unsigned count = (sqe->cdw10 & 0xff) + 1;
	struct copy c = { (char *)range, false, false };

	if (!(sqe->cdw11 & NVME_DSM_DEALLOCATE))
		return NVME_SC_INVALID_FIELD;
	if (!fake_walk(f, sqe, count * sizeof(range[0]), copy_piece, &c))
		return NVME_SC_DATA_TRANSFER_ERROR;
	for (unsigned i = 0; i < count; i++) {
		if (range[i].slba + range[i].nlb > f->opts.blocks)
			return NVME_SC_LBA_RANGE;
		memset(f->disk + (range[i].slba << f->opts.lba_shift), 0,
		       (size_t)range[i].nlb << f->opts.lba_shift);
		f->deallocated += range[i].nlb;
	}
	return 0;
}

static unsigned io(struct fake *f, const struct nvme_sqe *sqe)
{
	uint64_t slba = nvme_sqe_slba(sqe), nlb = nvme_sqe_nlb(sqe);
	uint64_t bytes = nlb << f->opts.lba_shift;
	struct copy c = { (char *)f->disk + (slba << f->opts.lba_shift),
			  sqe->opcode == NVME_CMD_READ, false };

	if (sqe->opcode == NVME_CMD_FLUSH)
		return 0;
	if (sqe->nsid != 1)
		return NVME_SC_INVALID_NS;
	if (sqe->opcode == NVME_CMD_DSM)
		return deallocate(f, sqe);
	if (sqe->opcode != NVME_CMD_READ && sqe->opcode != NVME_CMD_WRITE &&
	    sqe->opcode != NVME_CMD_COMPARE && sqe->opcode != NVME_CMD_WRITE_ZEROES)
		return NVME_SC_INVALID_OPCODE;
	if (slba + nlb > f->opts.blocks)
		return NVME_SC_LBA_RANGE;
	if (sqe->opcode == NVME_CMD_WRITE_ZEROES) {
		memset(c.at, 0, bytes);
		f->zeroed += (unsigned)nlb;
		return 0;
	}
	if (f->opts.mdts && bytes > page_bytes(f) << f->opts.mdts) {
		fault(f, "a command of %llu bytes: more than MDTS", (unsigned long long)bytes);
		return NVME_SC_INVALID_FIELD;
	}
	if (!fake_walk(f, sqe, bytes, sqe->opcode == NVME_CMD_COMPARE ? compare_piece : copy_piece,
		       &c))
		return NVME_SC_DATA_TRANSFER_ERROR;
	return c.differs ? NVME_SC_COMPARE_FAILURE : 0;
}

static bool has_room(struct fake *f, unsigned qid)
{
	const struct fake_queue *q = &f->q[qid];

	if ((q->cq_tail + 1) % q->cq_size != doorbell(f, qid, true))
		return true;
	f->cq_full++;
	return false;
}

/* DW0 and DW1 of the completion are the first block, so that tests can tell whose it is. */
bool fake_complete(struct fake *f, unsigned qid, unsigned i)
{
	struct nvme_sqe sqe;

	if (!has_room(f, qid))
		return false;
	sqe = take(&f->q[qid], i);
	return fake_post(f, qid, sqe.cid, nvme_sqe_slba(&sqe), (uint16_t)io(f, &sqe));
}

bool fake_refuse(struct fake *f, unsigned qid, unsigned i, unsigned status)
{
	struct nvme_sqe sqe;

	if (!has_room(f, qid))
		return false;
	sqe = take(&f->q[qid], i);
	return fake_post(f, qid, sqe.cid, nvme_sqe_slba(&sqe), (uint16_t)status);
}

unsigned fake_run(struct fake *f, unsigned qid)
{
	unsigned done = 0;

	while (fake_fetch(f, qid) && fake_complete(f, qid, 0))
		done++;
	return done;
}

unsigned fake_run_shuffled(struct fake *f, unsigned qid)
{
	unsigned done = 0, held;

	while ((held = fake_fetch(f, qid)) &&
	       fake_complete(f, qid, (unsigned)(fake_random(&f->random) % held)))
		done++;
	return done;
}

/* --- registers --------------------------------------------------------------------------- */

static int fake_read(struct vroom_transport *t, uint32_t offset, void *value, unsigned width,
		     unsigned timeout_ms)
{
	const struct fake *f = fake_of(t);
	uint64_t v = 0;

	(void)timeout_ms;
	switch (offset) {
	case NVME_REG_CAP: v = f->cap; break;
	case NVME_REG_VS: v = NVME_VERSION(2, 0, 0); break;
	case NVME_REG_CC: v = f->cc; break;
	case NVME_REG_CSTS: v = f->csts; break;
	case NVME_REG_AQA: v = f->aqa; break;
	case NVME_REG_ASQ: v = f->asq; break;
	case NVME_REG_ACQ: v = f->acq; break;
	default: break;
	}
	memcpy(value, &v, width);
	return 0;
}

static void set_cc(struct fake *f, uint32_t cc)
{
	bool was = f->cc & 1, is = cc & 1;

	f->cc = cc;
	if (!was && is) {
		uint32_t sq = (f->aqa & 0xfff) + 1, cq = (f->aqa >> 16 & 0xfff) + 1;

		set_queue(f, 0, fake_va(f, f->asq, sq * 64ul), sq);
		set_cq(f, 0, fake_va(f, f->acq, cq * 16ul), cq);
		f->csts = f->q[0].sq_size && f->q[0].cq_size ? 1 : 2;
	}
	if (!is) {
		f->csts = 0;
		for (unsigned i = 0; i <= FAKE_QPAIRS; i++)
			f->q[i].sq_size = f->q[i].cq_size = 0;
	}
	if (NVME_GET(cc, NVME_CC_SHN))
		f->csts = (f->csts & ~0xcu) | NVME_CSTS_SHST_DONE << NVME_CSTS_SHST_SHIFT;
}

static int fake_write(struct vroom_transport *t, uint32_t offset, const void *value, unsigned width)
{
	struct fake *f = fake_of(t);
	uint64_t v = 0;
	unsigned at = (offset - NVME_REG_DOORBELLS) / 4;

	fake_inside++;
	memcpy(&v, value, width);
	switch (offset) {
	case NVME_REG_CC: set_cc(f, (uint32_t)v); break;
	case NVME_REG_AQA: f->aqa = (uint32_t)v; break;
	case NVME_REG_ASQ: f->asq = v; break;
	case NVME_REG_ACQ: f->acq = v; break;
	default:
		if (offset < NVME_REG_DOORBELLS || at >= VROOM_LENGTH(f->message)) {
			fault(f, "a write to register %#x", offset);
			break;
		}
		if (!f->opts.messages)
			fault(f, "doorbell %u is mapped, and was written by message", at);
		__atomic_store_n(&f->message[at], (uint32_t)v, __ATOMIC_RELEASE);
		if (at >> f->opts.dstrd & 1)
			__atomic_fetch_add(&f->cq_rings, 1, __ATOMIC_RELAXED);
		else
			__atomic_fetch_add(&f->sq_rings, 1, __ATOMIC_RELAXED);
		if (at == 0 && !f->opts.lazy_admin)
			fake_run_admin(f);
	}
	fake_inside--;
	return 0;
}

/* A sleeping controller: only then it is told of mapped doorbells. Admin commands need it. */
static void fake_kick(struct vroom_transport *t)
{
	struct fake *f = fake_of(t);

	/* Whoever rings an I/O doorbell does not have the lock that the admin queue is under. */
	if (!f->opts.lazy_admin &&
	    __atomic_load_n(&f->doorbell[0], __ATOMIC_ACQUIRE) != f->q[0].sq_head)
		fake_run_admin(f);
}

static int fake_alive(struct vroom_transport *t)
{
	return fake_of(t)->dead ? vroom_fail(ENODEV, "fake: is gone") : 0;
}

static int fake_cut_off(struct vroom_transport *t)
{
	set_cc(fake_of(t), 0);
	return 0;
}

static void fake_transport_close(struct vroom_transport *t, bool owner)
{
	struct fake *f = fake_of(t);

	if (owner)
		f->closed++;
}

static const struct vroom_transport_ops fake_ops = {
	.name = "fake",
	.close = fake_transport_close,
	.read = fake_read,
	.write = fake_write,
	.dma_map = fake_dma_map,
	.dma_unmap = fake_dma_unmap,
	.cut_off = fake_cut_off,
	.kick = fake_kick,
	.alive = fake_alive,
};

/* --- opening and closing --------------------------------------------------------------------- */

static void *shared(size_t bytes)
{
	void *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	assert_true(mem != MAP_FAILED);
	return mem;
}

static size_t disk_bytes(const struct fake *f)
{
	return (size_t)f->opts.blocks << f->opts.lba_shift;
}

struct fake *fake_new(const struct fake_opts *opts)
{
	struct fake *f = shared(sizeof(*f));
	struct fake_opts *o = &f->opts;

	*o = *opts;
	o->queue_entries = o->queue_entries ? o->queue_entries : 1024;
	o->page_shift = o->page_shift ? o->page_shift : 12;
	o->lba_shift = o->lba_shift ? o->lba_shift : 9;
	o->blocks = o->blocks ? o->blocks : 32768;
	o->qpairs = o->qpairs ? o->qpairs : FAKE_QPAIRS;
	vroom_lock_init(&f->lock);
	f->base.ops = &fake_ops;
	f->base.numa_node = -1;
	f->base.pins = o->pins;
	if (!o->messages) {
		f->base.doorbells = f->doorbell;
		f->base.doorbell_bytes = sizeof(f->doorbell);
	}
	f->sleeps = 1;
	f->base.needs_kick = &f->sleeps;
	f->cap = (o->queue_entries - 1) | 1ull << NVME_CAP_CQR_SHIFT | 2ull << NVME_CAP_TO_SHIFT |
		 (uint64_t)o->dstrd << NVME_CAP_DSTRD_SHIFT |
		 (uint64_t)NVME_CAP_CSS_NVM << NVME_CAP_CSS_SHIFT |
		 (uint64_t)(o->page_shift - 12) << NVME_CAP_MPSMIN_SHIFT |
		 4ull << NVME_CAP_MPSMAX_SHIFT;
	f->random = 88172645463325252ull;
	f->next_iova = 1ull << 34;
	f->stray_cid = -1;
	f->disk = shared(disk_bytes(f));
	return f;
}

int fake_bring_up(struct fake *f, struct vroom_ctrlr **out)
{
	struct vroom_ctrlr *c = calloc(1, sizeof(*c));

	assert_non_null(c);
	strcpy(c->address.text, "fake");
	c->name = c->address.text;
	c->opener = getpid();
	c->opts.io_timeout_ms = f->opts.io_ms ? f->opts.io_ms : 30000;
	c->opts.long_timeout_ms = f->opts.long_ms ? f->opts.long_ms : 300000;
	c->opts.admin_timeout_ms = f->opts.admin_ms ? f->opts.admin_ms : 30000;
	*out = c;
	return vroom_ctrlr_bring_up(c, &f->base);
}

struct vroom_ctrlr *fake_open(struct fake *f)
{
	struct vroom_ctrlr *c;
	int ret = fake_bring_up(f, &c);

	if (ret)
		fail_msg("bring up: %d: %s (%s)", ret, vroom_error(), f->fault);
	return c;
}

void fake_free(struct fake *f)
{
	munmap(f->disk, disk_bytes(f));
	munmap(f, sizeof(*f));
}

void fake_close(struct fake *f, struct vroom_ctrlr *c)
{
	char line[sizeof(f->fault)];

	vroom_close(c);
	snprintf(line, sizeof(line), "%s", f->fault);
	assert_int_equal(f->closed, 1);
	fake_free(f);
	if (line[0])
		fail_msg("the driver: %s", line);
}

struct vroom_ns fake_ns(const struct fake *f)
{
	return (struct vroom_ns){ .nsid = 1,
				  .lba_size = 1u << f->opts.lba_shift,
				  .lba_shift = (uint8_t)f->opts.lba_shift,
				  .blocks = f->opts.blocks };
}
