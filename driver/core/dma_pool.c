/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A first-fit allocator over a few large regions of shared memory.
 *
 * A region is hugetlbfs memory where enough huge pages are free, else an anonymous file. Neither
 * has a name, so nothing is left behind however the process ends; only where addresses are physical
 * it is a named file (struct vroom_dma_space, prefix).
 *
 * A region is a sequence of blocks, free or taken. What is known of a block is one word, in a table
 * by unit at the block's first unit: its length, its state, its owner. The next block begins behind
 * it. So a change is prepared where nobody looks, and made valid by one store of such a word: a
 * process that is killed at any instruction leaves a sequence that is right.
 */
#include <errno.h>
#include <fcntl.h>
#include <hugetlbfs.h>
#include <limits.h>
#include <numaif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/size.h"
#include "core/dma.h"

/*
 * Of the first region; generous where memory is taken as it is touched, not at once (huge or locked
 * pages). Each is twice the one before, to a limit: controllers allow only so many.
 */
#define REGION_BYTES	    (256ul << 20)
#define REGION_BYTES_PINNED (4ul << 20)
#define REGION_BYTES_MAX    (16ul << 30)

enum block_state {
	BLOCK_FREE,
	BLOCK_TAKEN,
	BLOCK_KEPT_BACK, /* freed, but a suspect controller may write to it */
};

/* A block's word: units in the upper half; state, and the owner's pid, in the lower. */
static uint64_t block_word(uint64_t units, enum block_state state, pid_t owner)
{
	return units << 32 | (uint64_t)state << 28 | (uint32_t)owner;
}

static uint64_t block_units(const struct vroom_dma_region *r, uint64_t unit)
{
	return r->block[unit] >> 32;
}

static enum block_state block_state(const struct vroom_dma_region *r, uint64_t unit)
{
	return (enum block_state)(r->block[unit] >> 28 & 0xf);
}

static uint64_t units_of(const struct vroom_dma_region *r)
{
	return r->bytes / VROOM_DMA_UNIT;
}

/* Release: what was prepared for the change is there before it. For a kill, not for readers. */
static void set_block(struct vroom_dma_region *r, uint64_t unit, uint64_t word)
{
	__atomic_store_n(&r->block[unit], word, __ATOMIC_RELEASE);
}

/* Makes one of the free block at UNIT and all free ones behind it. Its units. */
static uint64_t merge_free(struct vroom_dma_region *r, uint64_t unit)
{
	uint64_t units = block_units(r, unit);

	while (unit + units < units_of(r) && block_state(r, unit + units) == BLOCK_FREE)
		units += block_units(r, unit + units);
	if (units != block_units(r, unit))
		set_block(r, unit, block_word(units, BLOCK_FREE, 0));
	return units;
}

static void *take_block(struct vroom_dma_region *r, uint64_t unit, uint64_t skip, uint64_t units)
{
	uint64_t rest = block_units(r, unit) - skip - units;
	uint64_t taken = block_word(units, BLOCK_TAKEN, getpid());

	if (rest)
		set_block(r, unit + skip + units, block_word(rest, BLOCK_FREE, 0));
	if (skip)
		set_block(r, unit + skip, taken);
	set_block(r, unit, skip ? block_word(skip, BLOCK_FREE, 0) : taken);
	return (char *)r->base + (unit + skip) * VROOM_DMA_UNIT;
}

/* The first free block with room for UNITS at ALIGN, SKIP units into it; false: there is none. */
static bool find_room(struct vroom_dma_region *r, uint64_t units, size_t align, uint64_t *unit,
		      uint64_t *skip)
{
	for (*unit = 0; *unit < units_of(r); *unit += block_units(r, *unit)) {
		uintptr_t va = (uintptr_t)r->base + *unit * VROOM_DMA_UNIT;

		*skip = (vroom_round_up(va, align) - va) / VROOM_DMA_UNIT;
		if (block_state(r, *unit) == BLOCK_FREE && merge_free(r, *unit) >= *skip + units)
			return true;
	}
	return false;
}

static bool any_suspect(const struct vroom_dma_pool *p)
{
	bool suspect = p->shared->tainted;

	for (unsigned i = 0; i < p->spaces; i++)
		suspect |= vroom_space_suspect(p->space[i]);
	return suspect;
}

static void give_back(const struct vroom_dma_pool *p, struct vroom_dma_region *r, uint64_t unit)
{
	enum block_state state = any_suspect(p) ? BLOCK_KEPT_BACK : BLOCK_FREE;

	set_block(r, unit, block_word(block_units(r, unit), state, 0));
}

static bool is_orphan(const struct vroom_dma_region *r, uint64_t unit)
{
	pid_t owner = (pid_t)(r->block[unit] & 0xfffffff);

	return block_state(r, unit) == BLOCK_TAKEN && !vroom_process_alive(owner);
}

/* Gives back what was kept back, if it may be now; and what dead processes have, if DEAD. */
static void sweep(struct vroom_dma_pool *p, bool dead)
{
	for (struct vroom_dma_region *r = p->region; r < p->region + p->regions; r++)
		for (uint64_t unit = 0; unit < units_of(r); unit += block_units(r, unit))
			if (block_state(r, unit) == BLOCK_KEPT_BACK || (dead && is_orphan(r, unit)))
				give_back(p, r, unit);
}

/* TAKE: makes it an allocation. Else only says, by any address, that there is room. */
static void *find(struct vroom_dma_pool *p, size_t bytes, size_t align, bool take)
{
	uint64_t units = vroom_round_up(bytes, VROOM_DMA_UNIT) / VROOM_DMA_UNIT, unit, skip;
	void *mem = NULL;

	vroom_lock(&p->shared->lock);
	if (!any_suspect(p))
		sweep(p, false);
	for (struct vroom_dma_region *r = p->region; r < p->region + p->regions && !mem; r++)
		if (find_room(r, units, align, &unit, &skip))
			mem = take ? take_block(r, unit, skip, units) : r->base;
	vroom_unlock(&p->shared->lock);
	return mem;
}

void *vroom_pool_alloc(struct vroom_dma_pool *p, size_t bytes, size_t align)
{
	return find(p, bytes, align, true);
}

bool vroom_pool_has_room(struct vroom_dma_pool *p, size_t bytes)
{
	return find(p, bytes, VROOM_DMA_UNIT, false);
}

/* What begins at a unit is known by walking there: words in between are stale. */
static void free_block(struct vroom_dma_pool *p, struct vroom_dma_region *r, const char *mem)
{
	uint64_t offset = (uint64_t)(mem - (char *)r->base), unit = 0;

	while (unit * VROOM_DMA_UNIT < offset)
		unit += block_units(r, unit);
	if (unit * VROOM_DMA_UNIT == offset && block_state(r, unit) == BLOCK_TAKEN)
		give_back(p, r, unit);
}

void vroom_pool_free_memory(struct vroom_dma_pool *p, void *mem)
{
	unsigned i = 0;

	vroom_lock(&p->shared->lock);
	while (i < p->regions &&
	       (uintptr_t)mem - (uintptr_t)p->region[i].base >= p->region[i].bytes)
		i++;
	if (i < p->regions)
		free_block(p, &p->region[i], mem);
	vroom_unlock(&p->shared->lock);
}

void vroom_pool_free_dead(struct vroom_dma_pool *p)
{
	vroom_lock(&p->shared->lock);
	sweep(p, true);
	vroom_unlock(&p->shared->lock);
}

/*
 * Maps BYTES of FD, which becomes the region's file; closed when that fails. The region begins at
 * a multiple of its pages of 2^SHIFT: so do IOVAs, and what is aligned for us is for the
 * controller. hugetlbfs reserves all pages at once.
 */
static bool map_file(struct vroom_dma_region *r, int fd, size_t bytes, unsigned shift)
{
	size_t align = 1ul << shift, head;
	char *room, *base = MAP_FAILED;

	r->bytes = bytes;
	if (fd < 0)
		return false;
	room = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (room == MAP_FAILED)
		goto out_close;
	head = vroom_round_up((uintptr_t)room, align) - (uintptr_t)room;
	if (ftruncate(fd, (off_t)bytes) == 0)
		base = mmap(room + head, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
			    0);
	if (base == MAP_FAILED)
		goto out_unmap;
	munmap(room, head);
	munmap(base + bytes, align - head);
	r->base = base;
	r->fd = fd;
	r->page_shift = shift;
	return true;

out_unmap:
	munmap(room, bytes + align);
out_close:
	close(fd);
	return false;
}

static bool map_huge(struct vroom_dma_region *r, size_t bytes)
{
	return gethugepagesize() == (long)VROOM_HUGE_PAGE &&
	       map_file(r, hugetlbfs_unlinked_fd(), bytes, VROOM_HUGE_SHIFT);
}

/*
 * Touches every page, so that it has its place; on the device's NUMA node if there is room. To
 * touch what was reserved cannot fail.
 */
static void populate(const struct vroom_dma_region *r, int numa_node)
{
	unsigned long node = numa_node >= 0 ? 1ul << numa_node : 0;

	if (node)
		mbind(r->base, r->bytes, MPOL_PREFERRED, &node, sizeof(node) * 8, 0);
	for (size_t at = 0; at < r->bytes; at += 1ul << r->page_shift)
		((volatile char *)r->base)[at] = 0;
}

/* The file of number FILE among S's names, in pages of 2^SHIFT; false: no hugetlbfs has those. */
static bool file_path(const struct vroom_dma_space *s, unsigned shift, uint32_t file,
		      char path[PATH_MAX])
{
	const char *dir = hugetlbfs_find_path_for_size(1l << shift);

	return dir && snprintf(path, PATH_MAX, "%s/%s.%u", dir, s->prefix, file) < PATH_MAX;
}

static uint32_t new_file(const struct vroom_dma_space *s)
{
	return __atomic_fetch_add(&s->shared->next_file, 1, __ATOMIC_RELAXED);
}

static bool map_named(const struct vroom_dma_space *s, unsigned shift, struct vroom_dma_region *r,
		      size_t bytes)
{
	char path[PATH_MAX];
	int fd;

	r->file = new_file(s);
	if (!file_path(s, shift, r->file, path))
		return false;
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (map_file(r, fd, vroom_round_up(bytes, 1ul << shift), shift)) {
		populate(r, s->transport->numa_node);
		return true;
	}
	unlink(path);
	return false;
}

static int map_physical(const struct vroom_dma_space *s, struct vroom_dma_region *r, size_t wanted,
			size_t least)
{
	for (; wanted > least; wanted = VROOM_MAX(wanted / 2, least))
		if (map_named(s, 21, r, wanted))
			return 0;
	if (map_named(s, 21, r, least) || map_named(s, 30, r, least))
		return 0;
	return vroom_fail_on(s->name, ENOMEM,
			     "DMA without an IOMMU needs %zu MiB of free huge pages: "
			     "vroom hugepages %zuM, as root",
			     least >> 20, least >> 19);
}

/* Bytes of the next region, which holds LEAST: FIRST doubled with each before it, to a limit. */
static size_t region_bytes(const struct vroom_dma_pool *p, size_t least, size_t first)
{
	return VROOM_MAX(least, VROOM_MIN(first << p->regions, REGION_BYTES_MAX));
}

/* Memory for a region that holds BYTES: as large as its turn is, if there is so much. */
static int map_region(const struct vroom_dma_pool *p, struct vroom_dma_region *r, size_t bytes)
{
	size_t least = vroom_round_up(bytes, VROOM_HUGE_PAGE);
	size_t pinned = region_bytes(p, least, REGION_BYTES_PINNED);
	size_t sparse = region_bytes(p, least, REGION_BYTES);

	if (p->owner->prefix[0])
		return map_physical(p->owner, r, pinned, least);
	/* Of what huge pages are left half and half again, so that regions stay few. */
	for (size_t huge = pinned; huge > least; huge = VROOM_MAX(huge / 2, least))
		if (map_huge(r, huge))
			return 0;
	if (map_huge(r, least) ||
	    map_file(r, memfd_create("vroom-dma", MFD_CLOEXEC),
		     p->owner->transport->pins ? pinned : sparse, VROOM_HUGE_SHIFT))
		return 0;
	return vroom_fail_on(p->owner->name, ENOMEM, "cannot map %zu bytes of DMA memory: %s",
			     r->bytes, strerror(errno));
}

static void unmap_region(struct vroom_dma_region *r)
{
	munmap(r->base, r->bytes);
	close(r->fd);
	if (r->block)
		munmap(r->block, r->bytes / VROOM_DMA_UNIT * sizeof(*r->block));
}

/*
 * A space that uses memory of another's pool by physical address gives it a second name, so that
 * it stays until both controllers are off. Its number; 0: there are no names; negative: an error.
 */
static int64_t second_name(const struct vroom_dma_pool *p, const struct vroom_dma_space *s,
			   const struct vroom_dma_region *r)
{
	char from[PATH_MAX], to[PATH_MAX];
	uint32_t file;

	if (!s->prefix[0])
		return 0;
	if (s == p->owner)
		return r->file;
	file = new_file(s);
	if (!p->owner->prefix[0] || !file_path(p->owner, r->page_shift, r->file, from) ||
	    !file_path(s, r->page_shift, file, to))
		return vroom_fail_on(s->name, ENOTSUP, "cannot reach %s's memory", p->owner->name);
	if (link(from, to))
		return vroom_fail_on(s->name, errno, "cannot link %s: %s", from, strerror(errno));
	return file;
}

static int reach_region(const struct vroom_dma_pool *p, struct vroom_dma_space *s,
			const struct vroom_dma_region *r)
{
	struct vroom_dma_map map = {
		.va = r->base, .bytes = r->bytes, .fd = r->fd, .page_shift = r->page_shift
	};
	int64_t file;
	int ret;

	if (vroom_space_suspect(s)) /* nothing more for one that failed */
		return 0;
	file = second_name(p, s, r);
	if (file < 0)
		return (int)file;
	ret = vroom_space_map(s, &map, (uint32_t)file);
	if (ret && file)
		vroom_space_remove_files(s, (uint32_t)file);
	return ret;
}

/* The lock is held. */
static int add_region(struct vroom_dma_pool *p, struct vroom_dma_region *r)
{
	size_t units = r->bytes / VROOM_DMA_UNIT;
	unsigned reached = 0;
	int ret;

	ret = vroom_share(p->owner->name, units * sizeof(*r->block), (void **)&r->block);
	if (ret)
		return ret;
	r->block[0] = block_word(units, BLOCK_FREE, 0);
	while (reached < p->spaces && !ret)
		ret = reach_region(p, p->space[reached++], r);
	while (ret && reached)
		vroom_space_unmap(p->space[--reached], r->base, r->bytes);
	if (ret)
		return ret;
	p->region[p->regions] = *r;
	__atomic_store_n(&p->regions, p->regions + 1, __ATOMIC_RELEASE);
	return 0;
}

int vroom_pool_grow(struct vroom_dma_pool *p, size_t bytes, size_t align)
{
	struct vroom_dma_region r = { .fd = -1 };
	int ret;

	/* Regions begin at huge pages or at least at pages; what is coarser may have to skip. */
	if (align > VROOM_DMA_UNIT)
		bytes += align;
	vroom_lock(&p->shared->lock);
	if (p->regions == VROOM_MAX_REGIONS)
		ret = vroom_fail_on(p->owner->name, ENOMEM, "all DMA memory is in use");
	else
		ret = map_region(p, &r, bytes);
	if (!ret && (ret = add_region(p, &r)))
		unmap_region(&r);
	vroom_unlock(&p->shared->lock);
	return ret;
}

int vroom_pool_init(struct vroom_dma_pool *p, struct vroom_dma_space *owner)
{
	int ret = vroom_share(owner->name, sizeof(*p->shared), (void **)&p->shared);

	p->owner = owner;
	p->space[p->spaces++] = owner;
	return ret ? ret : vroom_lock_init(&p->shared->lock);
}

void vroom_pool_free(struct vroom_dma_pool *p)
{
	while (p->regions)
		unmap_region(&p->region[--p->regions]);
	if (p->shared)
		munmap(p->shared, sizeof(*p->shared));
	p->shared = NULL;
}

int vroom_pool_share(struct vroom_dma_pool *p, struct vroom_dma_space *space)
{
	unsigned reached = 0, i = 0;
	int ret = 0;

	vroom_lock(&p->shared->lock);
	while (i < p->spaces && p->space[i] != space)
		i++;
	if (i == VROOM_MAX_SPACES)
		ret = vroom_fail_on(p->owner->name, ENOMEM, "%u controllers use its memory", i);
	if (i < p->spaces) /* it does already */
		reached = p->regions;
	while (reached < p->regions && !ret)
		ret = reach_region(p, space, &p->region[reached++]);
	while (ret && reached--)
		vroom_space_unmap(space, p->region[reached].base, p->region[reached].bytes);
	if (!ret && i == p->spaces)
		p->space[p->spaces++] = space;
	vroom_unlock(&p->shared->lock);
	return ret;
}

void vroom_pool_unshare(struct vroom_dma_pool *p, const struct vroom_dma_space *space, bool off)
{
	unsigned i = 0;

	vroom_lock(&p->shared->lock);
	while (i < p->spaces && p->space[i] != space)
		i++;
	if (i < p->spaces) {
		p->shared->tainted |= !off;
		p->space[i] = p->space[--p->spaces];
	}
	vroom_unlock(&p->shared->lock);
}
