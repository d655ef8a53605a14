#pragma once
// What the program in the kernel and the one that loads it share: the values of its maps. C and
// C++. Integers are in host order, but for those whose comment says that they are as on the wire.

#include <linux/bpf.h>
#include <linux/types.h>

#define WEIR_XDP_STATE_WORDS 128  // of 64 bits: 256 lanes of 32, 512 of 16 or 1024 of 8 bits
#define WEIR_XDP_PAIRS 256
#define WEIR_XDP_REPLY_BYTES_MAX 1080  // header, contributors, lanes

// A map may give the place of an entry that is deleted to another one while the program still looks
// at it. So what decides about a packet begins with a generation, which is written first: the
// program copies it, and then asks whether the generation is still the same.

// What a lease says.
struct weir_xdp_terms {
  __u64 generation;  // of the plane; grows with every grant, so that slots know what is theirs
  __u32 first_slot;
  __u32 slots;
  __u32 address, epoch, cookie[2];  // as on the wire; address: the aggregator's
  __u16 port, lanes_wire;           // as on the wire; port: the aggregator's
  __u16 lanes;
  __u8 mode;
  __u8 workers;
  __u8 sum_bits;  // table mode
  __u8 little_endian;
  __u16 unused[3];
};

// A lease, by its number.
struct weir_xdp_lease {
  struct weir_xdp_terms terms;
  __u64 used_ns;  // of the monotonic clock: the last packet that was believed; 0: none
  // Table mode: for an octet, which is two indices, the levels of the even and the odd lane, as two
  // octets or two of sixteen bits in the order of lanes.
  __u32 pairs[WEIR_XDP_PAIRS];
};

// Who sends for a grant, and which of its workers that is.
struct weir_xdp_sender {
  __u64 generation;
  __u64 source;  // address << 16 | port
};

struct weir_xdp_place {
  __u64 generation;
  __u32 worker;
  __u32 unused;
};

struct weir_xdp_set {
  __u64 contributors;
  __u64 opened_ns;
  __u32 operation, offset;  // as on the wire
  __u16 count;
  __u16 exponent;
  __u8 complete, lead, overflow, unused;
  // Lanes next to each other, in host order. Mode sum, unless lanes are little-endian: of the two
  // in a word the first one is the upper half.
  __u64 state[WEIR_XDP_STATE_WORDS];
};

struct weir_xdp_slot {
  struct bpf_spin_lock lock;
  __u32 unused;
  __u64 generation;
  __s64 newest;  // round; -1: none
  struct weir_xdp_set sets[2];
};

// Packets by what became of them, as AggregatorCounters has them.
struct weir_xdp_counters {
  __u64 added, completed, served, noticed, duplicate, stale, early, foreign;
  __u64 passed;  // left to the programs behind the socket: not of a lease in the kernel, no packet
  __u64 handed;  // replies that the loading program was asked to send
  __u64 ring_full;  // and those that it could not be asked for: as if lost on the way
};

// A reply that the loading program sends, from the slot's state.
struct weir_xdp_request {
  __u64 generation;
  __u64 recipients;  // bit w: worker w
  __u32 lease;
  __u32 slot;  // of the lease
  __u32 round;
  __u32 bytes;  // of the packet behind it; 0: there is none
};

// The same with the packet, as the sender of the last contribution gets it.
struct weir_xdp_handed {
  struct weir_xdp_request request;
  __u8 packet[WEIR_XDP_REPLY_BYTES_MAX];
};
