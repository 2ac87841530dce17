/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A way to reach a controller: opens the function behind an address, reads and writes its BAR0,
 * hands out doorbells and interrupts, and makes memory reachable for it. It never builds a command.
 * All functions return 0 or a negative errno and leave a line in vroom_error().
 */
#ifndef VROOM_TRANSPORT_H
#define VROOM_TRANSPORT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What a user may write as the name of a controller (docs/addresses.md). */
enum vroom_address_kind {
	VROOM_ADDRESS_FILE,   /* a plain file, there or to be created: emulated controller */
	VROOM_ADDRESS_MEMORY, /* emu-mem */
	VROOM_ADDRESS_NULL,   /* emu-null */
	VROOM_ADDRESS_SOCKET, /* somebody's vfio-user controller */
	VROOM_ADDRESS_PCI,    /* a PCI function, or a kernel device name */
};

struct vroom_address {
	enum vroom_address_kind kind;
	char text[PATH_MAX];	/* as written */
	char path[PATH_MAX];	/* file or socket; of a PCI function 0000:04:00.0 */
	char options[PATH_MAX]; /* "lba=4096,mdts=64K": for the emulated controller */
	uint32_t nsid;		/* of ,ns=N or /dev/nvme0nN; 0 when not given */
};

/* Splits TEXT; says what is wrong in vroom_error(). 0 or -EINVAL, -EISDIR, -ENODEV, ... */
int vroom_address_parse(const char *text, struct vroom_address *out);

struct vroom_transport;

/* What a transport is told when it opens; all of it may be zero. */
struct vroom_transport_opts {
	unsigned timeout_ms; /* for answers to the transport's own messages */
	bool interrupts;     /* set_irq() will be called */
	uint64_t file_bytes; /* a plain file as address: at least this long */
};

/* A stretch of memory that a controller is to reach. */
struct vroom_dma_map {
	void *va;
	size_t bytes;	     /* a multiple of the page */
	int fd;		     /* what VA maps, from FD_OFFSET on; -1: memory without a file */
	uint64_t fd_offset;  /* bytes */
	unsigned page_shift; /* log2 of the pages that VA consists of */
	uint64_t iova; /* where the controller is to see it; the transport may choose another */
	uint64_t *page_iova; /* result, by page: where the controller does see it */
};

struct vroom_transport_ops {
	const char *name;
	/* Opens ADDR, which outlives *OUT. *OUT embeds struct vroom_transport as its first member.
	 */
	int (*open)(const struct vroom_address *addr, const struct vroom_transport_opts *opts,
		    struct vroom_transport **out);
	/* OWNER: this process opened it and nobody will use it any more. */
	void (*close)(struct vroom_transport *t, bool owner);
	/*
	 * BAR0 registers, 4 or 8 bytes wide. Callable from any process that inherited T.
	 * -ETIMEDOUT when a read takes longer than TIMEOUT_MS (0: the transport's own limit).
	 */
	int (*read)(struct vroom_transport *t, uint32_t offset, void *value, unsigned width,
		    unsigned timeout_ms);
	int (*write)(struct vroom_transport *t, uint32_t offset, const void *value, unsigned width);
	/* Makes memory reachable and fills map->page_iova and map->iova (of the first page). */
	int (*dma_map)(struct vroom_transport *t, struct vroom_dma_map *map);
	/* Takes BYTES at IOVA, mapped as one, away again. From any process. NULL: nothing to do. */
	int (*dma_unmap)(struct vroom_transport *t, uint64_t iova, size_t bytes);
	/* The controller has been disabled: from now on it may reach memory. NULL: always may. */
	int (*allow_dma)(struct vroom_transport *t);
	/*
	 * Takes all memory away from a controller that does not obey any more: 0 when it reaches
	 * none from now on, whatever it does. From any process. NULL: there is no way.
	 */
	int (*cut_off)(struct vroom_transport *t);
	/* Function-level reset: for a controller that cannot be disabled. NULL: there is none. */
	int (*reset)(struct vroom_transport *t);
	/* MSI-X vector VECTOR signals eventfd FD from now on; -1: nothing. NULL: no interrupts. */
	int (*set_irq)(struct vroom_transport *t, unsigned vector, int fd);
	/* Tells a sleeping controller that a mapped doorbell was written. NULL: none sleeps. */
	void (*kick)(struct vroom_transport *t);
	/* 0 while the controller's side is there; cheap enough for ten times a second. */
	int (*alive)(struct vroom_transport *t);
};

struct vroom_transport {
	const struct vroom_transport_ops *ops;
	volatile uint32_t *doorbells; /* BAR0 + 1000h mapped, or NULL: doorbells are messages */
	size_t doorbell_bytes;
	const volatile uint32_t *needs_kick; /* non-zero: the controller sleeps; or NULL */
	unsigned vectors;		     /* MSI-X vectors, when interrupts were asked for */
	int numa_node;			     /* where the device is, or -1 */
	bool on_bus;			     /* a PCI function of this machine */
	bool pins; /* memory that is mapped is taken at once, and counted */
	/*
	 * Set: addresses are physical. DMA memory is then huge pages in files of this name, which
	 * outlive a killed process until the next owner has disabled the controller.
	 */
	const char *pool;
};

extern const struct vroom_transport_ops vroom_transport_vfio_user;
extern const struct vroom_transport_ops vroom_transport_vfio;
extern const struct vroom_transport_ops vroom_transport_pci;

/*
 * The address decides the device, the driver that has the device decides the transport. WANTED, a
 * name or NULL, overrides nothing: it only insists. -EBUSY: the kernel's driver has the device.
 */
int vroom_transport_choose(const struct vroom_address *addr, const char *wanted,
			   const struct vroom_transport_ops **out);

/* Starting and ending the emulated controller that serves a file, memory or nothing. */
struct vroom_emulated {
	pid_t pid;     /* 0: none */
	int pidfd;     /* of it; it is not our child */
	int report_fd; /* what it says before it serves */
};

/* Runs `vroom emulate` for ADDR and returns a socket to it, or a negative errno. A file is created,
 * or extended to FILE_BYTES. */
int vroom_emulated_start(const struct vroom_address *addr, uint64_t file_bytes,
			 struct vroom_emulated *out);

/* The handshake failed with RET: puts the process' own words in vroom_error(), if it has any. */
int vroom_emulated_why(const struct vroom_emulated *e, const struct vroom_address *addr, int ret);

/* Kills the process, from any that inherited E. 0 once it has ended; NAME is for the error line. */
int vroom_emulated_kill(const struct vroom_emulated *e, const char *name);

/* Forgets the process. END: all have closed its socket; it is waited for, and killed in the end. */
void vroom_emulated_close(const struct vroom_emulated *e, bool end);

#endif
