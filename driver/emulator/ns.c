/* SPDX-License-Identifier: BSD-3-Clause */
/* Namespaces: a file with its data at the same offsets, memory, or nothing at all. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "emulator/emulator.h"
#include "emulator/size.h"

static int fail(char *error, size_t size, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
static int fail(char *error, size_t size, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(error, size, format, args);
	va_end(args);
	return -1;
}

/* A POSIX record lock: it names its holder, and dies with it. */
static int lock_file(struct emu_ns *ns, char *error, size_t size)
{
	struct flock lock = { .l_type = ns->read_only ? F_RDLCK : F_WRLCK, .l_whence = SEEK_SET };

	if (fcntl(ns->fd, F_SETLK, &lock) == 0)
		return 0;
	if (errno != EACCES && errno != EAGAIN)
		return 0; /* a file system without locks */
	fcntl(ns->fd, F_GETLK, &lock);
	return fail(error, size, "%s: in use by process %d; wait for it, or end it", ns->path,
		    (int)lock.l_pid);
}

static int open_file(struct emu_ns *ns, uint64_t extend, char *error, size_t size)
{
	struct stat st;

	ns->fd = open(ns->path, O_RDWR | O_CLOEXEC | (extend ? O_CREAT : 0), 0644);
	if (ns->fd < 0 && (errno == EACCES || errno == EROFS || errno == EPERM)) {
		int err = errno;

		ns->fd = open(ns->path, O_RDONLY | O_CLOEXEC);
		ns->read_only = true;
		if (ns->fd < 0)
			return fail(error, size, "%s: %s", ns->path, strerror(err));
	}
	if (ns->fd < 0)
		return fail(error, size,
			    errno == ENOENT && !extend ? "%s: %s; give size= to create it"
						       : "%s: %s",
			    ns->path, strerror(errno));
	if (fstat(ns->fd, &st) != 0)
		return fail(error, size, "%s: %s", ns->path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return fail(error, size, "%s: is not a plain file", ns->path);
	if (lock_file(ns, error, size))
		return -1;
	if ((uint64_t)st.st_size < extend) {
		if (ns->read_only)
			return fail(error, size,
				    "%s: is read-only and shorter than the %llu bytes "
				    "asked for",
				    ns->path, (unsigned long long)extend);
		if (ftruncate(ns->fd, (off_t)extend) != 0)
			return fail(error, size, "%s: cannot extend it to %llu bytes: %s", ns->path,
				    (unsigned long long)extend, strerror(errno));
		st.st_size = (off_t)extend;
	}
	ns->bytes = (uint64_t)st.st_size;
	return 0;
}

/* The same file has the same UUID each time; memory gets a new one (RFC 4122, 4.4). */
static void make_uuid(struct emu_ns *ns)
{
	struct stat st;

	if (ns->kind == EMU_NS_FILE && fstat(ns->fd, &st) == 0) {
		uint64_t ino = st.st_ino, dev = st.st_dev;

		memcpy(ns->uuid, &ino, 8);
		memcpy(ns->uuid + 8, &dev, 8);
	} else if (getrandom(ns->uuid, sizeof(ns->uuid), 0) != sizeof(ns->uuid)) {
		memset(ns->uuid, 0x5a, sizeof(ns->uuid));
	}
	ns->uuid[6] = (ns->uuid[6] & 0x0f) | 0x40;
	ns->uuid[8] = (ns->uuid[8] & 0x3f) | 0x80;
}

/* One "key=value" after the kind. */
static int take_option(struct emu_ns *ns, const char *item, uint64_t *extend, char *error,
		       size_t size)
{
	uint64_t value;

	if (strncmp(item, "lba=", 4) == 0) {
		if (!vroom_parse_size(item + 4, &value) || (value != 512 && value != 4096))
			return fail(error, size, "%s: LBA sizes are 512 and 4096 bytes", item);
		ns->lba_shift = value == 512 ? 9 : 12;
		return 0;
	}
	if (strncmp(item, "size=", 5) == 0) {
		if (!vroom_parse_size(item + 5, &value) || !value)
			return fail(error, size, "%s: is not a size", item);
		*extend = value;
		return 0;
	}
	return fail(error, size, "%s: unknown option of a namespace (lba=, size=)", item);
}

/* Options are taken off the end as long as the path without them is not a file itself. */
static int split_spec(struct emu_ns *ns, char *spec, uint64_t *extend, char *error, size_t size)
{
	struct stat st;

	while (strncmp(spec, "file=", 5) != 0 || stat(spec + 5, &st) != 0) {
		char *comma = strrchr(spec, ',');

		if (!comma || (strncmp(comma, ",lba=", 5) && strncmp(comma, ",size=", 6) &&
			       strncmp(spec, "file=", 5) == 0))
			return 0;
		*comma = '\0';
		if (take_option(ns, comma + 1, extend, error, size))
			return -1;
	}
	return 0;
}

int emu_ns_open(struct emu_ns *ns, const char *spec, uint64_t extend, char *error, size_t size)
{
	char copy[PATH_MAX + 64];
	const char *value;

	memset(ns, 0, sizeof(*ns));
	ns->fd = -1;
	ns->lba_shift = 9;
	if (strlen(spec) >= sizeof(copy))
		return fail(error, size, "%.40s...: too long", spec);
	memcpy(copy, spec, strlen(spec) + 1);
	if (split_spec(ns, copy, &extend, error, size))
		return -1;
	value = strchr(copy, '=');
	if (value && strncmp(copy, "file=", 5) == 0) {
		ns->kind = EMU_NS_FILE;
		snprintf(ns->path, sizeof(ns->path), "%s", value + 1);
		if (open_file(ns, extend, error, size))
			return -1;
	} else {
		if (value && !vroom_parse_size(value + 1, &ns->bytes))
			return fail(error, size, "%s: '%s' is not a size", spec, value + 1);
		if (!value)
			ns->bytes = extend;
		if (strncmp(copy, "mem", 3) == 0 && (!value || value == copy + 3)) {
			ns->kind = EMU_NS_MEMORY;
		} else if (strncmp(copy, "null", 4) == 0 && (!value || value == copy + 4)) {
			ns->kind = EMU_NS_NULL;
		} else {
			return fail(error, size,
				    "%s: namespaces are file=PATH, mem=SIZE or "
				    "null=SIZE",
				    spec);
		}
		snprintf(ns->path, sizeof(ns->path), "%s", spec);
	}
	ns->blocks = ns->bytes >> ns->lba_shift;
	if (!ns->blocks)
		return fail(error, size,
			    "%s: is smaller than one block of %u bytes; give size=", ns->path,
			    1u << ns->lba_shift);
	if (ns->kind == EMU_NS_MEMORY) {
		ns->memory = mmap(NULL, ns->bytes, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (ns->memory == MAP_FAILED)
			return fail(error, size, "%s: no such amount of memory: %s", spec,
				    strerror(errno));
		madvise(ns->memory, ns->bytes, MADV_HUGEPAGE);
	}
	make_uuid(ns);
	return 0;
}

static uint32_t status_of(int err, uint32_t otherwise)
{
	switch (err) {
	case ENOSPC:
	case EDQUOT:
	case EFBIG: return NVME_SC_CAPACITY_EXCEEDED;
	case EROFS: return NVME_SC_NS_WRITE_PROTECTED;
	default: return otherwise;
	}
}

/* preadv()/pwritev2() until all is moved; IOV is used up. */
static uint32_t move_file(struct emu_ns *ns, struct iovec *iov, unsigned count, uint64_t offset,
			  bool write, int flags)
{
	uint32_t failure = write ? NVME_SC_WRITE_FAULT : NVME_SC_UNRECOVERED_READ;

	while (count) {
		int use = count < IOV_MAX ? (int)count : IOV_MAX;
		ssize_t n = write ? pwritev2(ns->fd, iov, use, (off_t)offset, flags)
				  : preadv(ns->fd, iov, use, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? status_of(errno, failure) : failure;
		offset += (uint64_t)n;
		while (count && (size_t)n >= iov->iov_len) {
			n -= (ssize_t)iov->iov_len;
			iov++;
			count--;
		}
		if (n) {
			iov->iov_base = (char *)iov->iov_base + n; // NOLINT: count says so
			iov->iov_len -= (size_t)n;
		}
	}
	return 0;
}

uint32_t emu_ns_read(struct emu_ns *ns, struct iovec *iov, unsigned count, uint64_t offset)
{
	if (ns->kind == EMU_NS_FILE)
		return move_file(ns, iov, count, offset, false, 0);
	for (unsigned i = 0; ns->kind == EMU_NS_MEMORY && i < count; i++) {
		memcpy(iov[i].iov_base, ns->memory + offset, iov[i].iov_len);
		offset += iov[i].iov_len;
	}
	return 0;
}

uint32_t emu_ns_write(struct emu_ns *ns, struct iovec *iov, unsigned count, uint64_t offset,
		      bool durable)
{
	if (ns->kind == EMU_NS_FILE)
		return move_file(ns, iov, count, offset, true, durable ? RWF_DSYNC : 0);
	for (unsigned i = 0; ns->kind == EMU_NS_MEMORY && i < count; i++) {
		memcpy(ns->memory + offset, iov[i].iov_base, iov[i].iov_len);
		offset += iov[i].iov_len;
	}
	return 0;
}

static uint32_t zero_by_writing(struct emu_ns *ns, uint64_t offset, uint64_t bytes)
{
	static const char zeroes[65536];

	while (bytes) {
		size_t n = bytes < sizeof(zeroes) ? bytes : sizeof(zeroes);
		struct iovec iov = { .iov_base = (void *)(uintptr_t)zeroes, .iov_len = n };
		uint32_t status = move_file(ns, &iov, 1, offset, true, 0);

		if (status)
			return status;
		offset += n;
		bytes -= n;
	}
	return 0;
}

uint32_t emu_ns_zero(struct emu_ns *ns, uint64_t offset, uint64_t bytes, bool deallocate)
{
	int mode = FALLOC_FL_KEEP_SIZE | (deallocate ? FALLOC_FL_PUNCH_HOLE : FALLOC_FL_ZERO_RANGE);

	if (!bytes || ns->kind == EMU_NS_NULL)
		return 0;
	if (ns->kind == EMU_NS_MEMORY) {
		uint64_t first = (offset + 4095) & ~4095ull, last = (offset + bytes) & ~4095ull;

		/* Whole pages go back to the kernel and read as zeroes again. */
		if (deallocate && first < last) {
			madvise(ns->memory + first, last - first, MADV_DONTNEED);
			memset(ns->memory + offset, 0, first - offset);
			memset(ns->memory + last, 0, offset + bytes - last);
		} else {
			memset(ns->memory + offset, 0, bytes);
		}
		return 0;
	}
	if (fallocate(ns->fd, mode, (off_t)offset, (off_t)bytes) == 0)
		return 0;
	if (errno == EOPNOTSUPP)
		return zero_by_writing(ns, offset, bytes);
	return status_of(errno, NVME_SC_WRITE_FAULT);
}

uint32_t emu_ns_flush(struct emu_ns *ns)
{
	if (ns->kind != EMU_NS_FILE || ns->read_only || fdatasync(ns->fd) == 0)
		return 0;
	return status_of(errno, NVME_SC_WRITE_FAULT);
}

void emu_ns_format(struct emu_ns *ns, uint8_t lba_shift)
{
	emu_ns_zero(ns, 0, ns->bytes, true);
	ns->lba_shift = lba_shift;
	ns->blocks = ns->bytes >> lba_shift;
}
