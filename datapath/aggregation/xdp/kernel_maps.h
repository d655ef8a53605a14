// SPDX-License-Identifier: Apache-2.0
#pragma once
// The values of the maps that the kernel's program and the loading program share, in C and C++.
// Integers are in host order unless their comment says that they are as on the wire.

#include <linux/bpf.h>
#include <linux/types.h>

#define WEIR_XDP_STATE_WORDS 128  // of 64 bits: 256 lanes of 32, 512 of 16 or 1024 of 8 bits
#define WEIR_XDP_PAIRS 256
#define WEIR_XDP_REPLY_BYTES_MAX 1080  // header, contributors, lanes

// A map may reuse the place of a deleted entry while the program still reads it. Everything that
// decides about a packet therefore begins with a generation, which is written first: the program
// copies the entry and then checks that the generation has not changed.

// The terms of a lease.
struct weir_xdp_terms {
  __u64 generation;  // of the plane; increases with every grant, so that slots detect old state
  __u32 first_slot;
  __u32 slots;
  __u32 address, epoch, cookie[2];  // as on the wire; address: the aggregator's
  __u16 port, lanes_wire;           // as on the wire; port: the aggregator's
  __u16 lanes;
  __u8 mode;
  __u8 workers;
  __u8 sum_bits;  // mode table
  __u8 little_endian;
  __u16 unused[3];
};

// A lease; the key of its map is the lease's id.
struct weir_xdp_lease {
  struct weir_xdp_terms terms;
  __u64 used_ns;  // monotonic time of the last accepted packet; 0: none
  // Mode table: for an octet of two indices, the levels of the even and the odd lane, as two octets
  // or as two 16-bit numbers in the order of lanes.
  __u32 pairs[WEIR_XDP_PAIRS];
};

// The key of a sender: the grant and the address. The value is the worker's number.
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
  // Lanes are contiguous, in host order. In mode sum with big-endian lanes, the first of the two
  // lanes in a word is the upper half.
  __u64 state[WEIR_XDP_STATE_WORDS];
};

struct weir_xdp_slot {
  struct bpf_spin_lock lock;
  __u32 unused;
  __u64 generation;
  __s64 newest;  // the newest round; -1: none
  struct weir_xdp_set sets[2];
};

// Packets by outcome, as in AggregatorCounters.
struct weir_xdp_counters {
  __u64 added, completed, served, noticed, duplicate, stale, early, foreign;
  __u64 passed;     // left to the socket: of no lease in the kernel, or not a packet
  __u64 handed;     // replies that the loading program was asked to send
  __u64 ring_full;  // replies for which the ring had no room; they count as lost
};

// A reply that the loading program is to send, from the state of the slot.
struct weir_xdp_request {
  __u64 generation;
  __u64 recipients;  // bit w: worker w
  __u32 lease;
  __u32 slot;  // of the lease
  __u32 round;
  __u32 bytes;  // of the packet that follows; 0: there is none
};

// The same with the packet, as the sender of the last contribution gets it.
struct weir_xdp_handed {
  struct weir_xdp_request request;
  __u8 packet[WEIR_XDP_REPLY_BYTES_MAX];
};
