// SPDX-License-Identifier: MIT OR GPL-2.0-only
// The aggregator of modes sum and table in the kernel, before the socket. It does what SlotPool
// does, for leases that the loading program put into maps. Packets that it does not understand go
// on to the socket. The code is written for the kernel's verifier: every loop has a bound, every
// access a check.
//
// A lock guards each slot. Sums are made under it. The copy into a reply is a separate critical
// section, because a packet cannot change its length while a lock is held.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "kernel_maps.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "lanes next to each other in a word are those of little-endian hosts"
#endif

// Defined after the headers above, which must not see it.
#define READ_NOW(value) (*(const volatile __typeof__(value)*)&(value))

#define INLINE static __attribute__((always_inline)) inline

enum {
  kMagic = 0x5741,
  kVersion = 2,
  kModeSum = 1,
  kModeTable = 3,
  kFlagReply = 1,
  kFlagLittleEndian = 2,
  kFlagOverflow = 8,
  kFlagNotice = 16,
  kFlagLead = 32,
  kFlagsOfRequest = kFlagLittleEndian | kFlagLead,
  kNoticeMismatch = 1,
  kHeaderBytes = 48,
  kContributorBytes = 8,
  kLanesMax = 256,
  kTableLanesMax = 1024,
};

// The header of WIRE section 4.
struct wire_header {
  __u16 magic;
  __u8 version, mode, flags, columns;
  __u16 lease;
  __u32 epoch, cookie[2];
  __u16 slot, lanes;
  __u32 round, operation, offset;
  __u16 contributions, exponent;
  __u32 detail, checksum;
};

_Static_assert(sizeof(struct wire_header) == kHeaderBytes, "the header of WIRE section 4");

// Offsets of the parts of a frame. A struct of the whole frame would be aligned, or read one octet
// at a time.
enum {
  kIpAt = sizeof(struct ethhdr),
  kUdpAt = kIpAt + sizeof(struct iphdr),
  kHeaderAt = kUdpAt + sizeof(struct udphdr),
  kPayloadAt = kHeaderAt + kHeaderBytes,
};

struct frame {
  struct ethhdr* ethernet;
  struct iphdr* ip;
  struct udphdr* udp;
  struct wire_header* header;
  __u8* payload;
};

INLINE struct frame frame_at(void* data) {
  const struct frame f = {.ethernet = data,
                          .ip = data + kIpAt,
                          .udp = data + kUdpAt,
                          .header = data + kHeaderAt,
                          .payload = data + kPayloadAt};
  return f;
}

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 64);
  __type(key, __u32);
  __type(value, struct weir_xdp_lease);
} leases SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 64 * 64 * 2);
  __type(key, struct weir_xdp_sender);
  __type(value, struct weir_xdp_place);
} senders SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1024);
  __type(key, __u32);
  __type(value, struct weir_xdp_slot);
} slots SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct weir_xdp_counters);
} counters SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 1 << 20);
} requests SEC(".maps");

// An accepted packet and its lease.
struct contribution {
  struct weir_xdp_terms terms;
  struct weir_xdp_lease* lease;  // only its table of pairs may be read
  struct weir_xdp_slot* slot;
  struct weir_xdp_counters* counted;
  __u64 now;
  __u32 round, operation, offset;
  __u32 payload_bytes;
  __u16 exponent;
  __u8 worker;
  __u8 lead;
};

enum verdict { kAdded, kCompleted, kServed, kMismatched, kDuplicate, kStale, kEarly, kForeign };

INLINE __u32 reply_payload_bytes(const struct weir_xdp_terms* lease, __u8 lead) {
  if (lead) return 0;
  if (lease->mode == kModeSum) return (__u32)lease->lanes * 4;
  return kContributorBytes + (__u32)lease->lanes * lease->sum_bits / 8;
}

// Returns whether the fields are consistent, as DecodePacket requires. The socket gets other
// packets, whose program counts them.
INLINE int well_formed(const struct wire_header* h, __u32 payload_bytes) {
  if (h->version != kVersion || (h->flags & ~kFlagsOfRequest) != 0) return 0;
  if (h->columns != 0 || h->contributions != 0 || h->checksum != 0) return 0;
  const __u32 lanes = bpf_ntohs(h->lanes), detail = bpf_ntohl(h->detail);
  if (lanes == 0) return 0;
  if (h->mode == kModeSum) {
    if (lanes > kLanesMax || detail != 0) return 0;
    return payload_bytes == ((h->flags & kFlagLead) != 0 ? 0 : lanes * 4);
  }
  if (h->mode != kModeTable || (h->flags & kFlagLead) != 0) return 0;
  if ((detail != 8 && detail != 16) || lanes % 2 != 0) return 0;
  return lanes * detail <= kTableLanesMax * 8 && payload_bytes == lanes / 2;
}

// Returns whether the packet fits the grant. The sender is not checked.
INLINE int fits(const struct weir_xdp_terms* lease, const struct wire_header* h) {
  const __u8 little = (h->flags & kFlagLittleEndian) != 0;
  if (h->epoch != lease->epoch || h->cookie[0] != lease->cookie[0]) return 0;
  if (h->cookie[1] != lease->cookie[1] || h->mode != lease->mode) return 0;
  if (h->lanes != lease->lanes_wire || little != lease->little_endian) return 0;
  if (h->mode == kModeTable && bpf_ntohl(h->detail) != lease->sum_bits) return 0;
  return bpf_ntohs(h->slot) < lease->slots;
}

// Loops over lanes come in pairs: the first handles eight at a time, the second the rest, from a
// place that is computed before the first loop and from the number of lanes alone. So no state of
// the first loop outlives it, and the verifier need not follow the code behind it once for every
// number of turns.

// Two lanes in one word are added without a carry between them: bit 31 of each is cleared first and
// corrected afterwards. Big-endian lanes are byte-swapped as one word when loaded and when stored.
// So the first of two lanes is the upper half, and their order is that of the wire again after the
// second swap.
enum { kPairsMax = kLanesMax / 2 };
#define LOW_BITS 0x7FFFFFFF7FFFFFFFULL

INLINE __u64 add_pair(const __u64* at, __u64* state, __u64 keep, int swap) {
  const __u64 addend = swap ? __builtin_bswap64(*at) : *at;
  const __u64 before = *state & keep, differ = before ^ addend;
  const __u64 sum = ((before & LOW_BITS) + (addend & LOW_BITS)) ^ (differ & ~LOW_BITS);
  *state = sum;
  return (before ^ sum) & ~differ;
}

// state = (state & keep) + lanes of the packet. Bit 31 or 63 of the result is set when some sum
// overflowed as a signed number.
INLINE __u64 add_lanes(const __u8* octets, const void* end, __u64* state, __u32 lanes, __u64 keep,
                       int swap) {
  const __u64* at = (const __u64*)octets;
  const __u32 pairs = lanes / 2, whole = pairs & 0x78;  // 0 for 128, which has no rest
  const __u64* rest = at + whole;
  __u64* rest_state = state + whole;
  const __u32* last = (const __u32*)(octets + (lanes & 0xFE) * 4);
  __u64* last_state = state + (pairs & 0x7F);
  __u64 wrapped = 0;
  for (__u32 chunk = 0; chunk < kPairsMax / 8; ++chunk) {
    if (chunk * 8 + 8 > pairs || (const void*)(at + 8) > end) break;
#pragma unroll
    for (int i = 0; i < 8; ++i) wrapped |= add_pair(at + i, state + i, keep, swap);
    at += 8;
    state += 8;
  }
  for (__u32 i = 0; i < 7; ++i) {
    if (i >= (pairs & 7) || (const void*)(rest + 1) > end) break;
    wrapped |= add_pair(rest, rest_state, keep, swap);
    ++rest;
    ++rest_state;
  }
  if ((lanes & 1) != 0 && (const void*)(last + 1) <= end) {
    const __u64 alone = *last;  // followed by a lane of zeros
    wrapped |= add_pair(&alone, last_state, keep, swap);
  }
  return wrapped;
}

// The same for indices: eight octets are sixteen lanes. The lease guarantees that no sum carries.
INLINE void add_levels_8(const __u8* at, const void* end, __u64* state, __u32 octets, __u64 keep,
                         const __u32* pairs) {
  const __u32 whole = octets & 0x1F8;  // 0 for 512
  const __u8* rest = at + whole;
  __u16* rest_state = (__u16*)state + whole;
  for (__u32 chunk = 0; chunk < kTableLanesMax / 16; ++chunk) {
    if (chunk * 8 + 8 > octets || (const void*)(at + 8) > end) break;
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      __u64 levels = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) levels |= (__u64)pairs[at[word * 4 + i]] << (16 * i);
      state[word] = (state[word] & keep) + levels;
    }
    at += 8;
    state += 2;
  }
  for (__u32 i = 0; i < 7; ++i) {
    if (i >= (octets & 7) || (const void*)(rest + 1) > end) break;
    *rest_state = (*rest_state & (__u16)keep) + (__u16)pairs[*rest];
    ++rest;
    ++rest_state;
  }
}

INLINE void add_levels_16(const __u8* at, const void* end, __u32* state, __u32 octets, __u32 keep,
                          const __u32* pairs) {
  const __u32 whole = octets & 0xF8;  // 0 for 256
  const __u8* rest = at + whole;
  __u32* rest_state = state + whole;
  for (__u32 chunk = 0; chunk < kTableLanesMax / 32; ++chunk) {
    if (chunk * 8 + 8 > octets || (const void*)(at + 8) > end) break;
#pragma unroll
    for (int i = 0; i < 8; ++i) state[i] = (state[i] & keep) + pairs[at[i]];
    at += 8;
    state += 8;
  }
  for (__u32 i = 0; i < 7; ++i) {
    if (i >= (octets & 7) || (const void*)(rest + 1) > end) break;
    *rest_state = (*rest_state & keep) + pairs[*rest];
    ++rest;
    ++rest_state;
  }
}

INLINE void add(const struct contribution* c, const void* payload, const void* end,
                struct weir_xdp_set* set) {
  const struct weir_xdp_terms* lease = &c->terms;
  const __u64 keep = set->contributors == 0 ? 0 : ~0ULL;
  if (lease->mode == kModeTable) {
    if (lease->sum_bits == 8) {
      add_levels_8(payload, end, set->state, lease->lanes / 2, keep, c->lease->pairs);
    } else {
      add_levels_16(payload, end, (__u32*)set->state, lease->lanes / 2, (__u32)keep,
                    c->lease->pairs);
    }
    return;
  }
  const __u64 wrapped = lease->little_endian
                            ? add_lanes(payload, end, set->state, lease->lanes, keep, 0)
                            : add_lanes(payload, end, set->state, lease->lanes, keep, 1);
  set->overflow |= (wrapped >> 31 | wrapped >> 63) & 1;
}

INLINE __u64 swapped(__u64 word, int swap) {
  if (swap == 4) return __builtin_bswap64(word);  // this also exchanges the two lanes
  if (swap == 2) return (word & 0x00FF00FF00FF00FF) << 8 | (word >> 8 & 0x00FF00FF00FF00FF);
  return word;
}

// Copies lanes of `size` octets in total into a reply. `swap`: reverse each 4 or 2 octets; 1: none.
INLINE void copy_lanes(void* to, const void* end, const __u64* state, __u32 size, int swap) {
  const __u32 words = size / 8, whole = words & 0x78;  // 0 for 128
  __u64* at = to;
  __u64* rest = at + whole;
  const __u64* from = state;
  const __u64* rest_from = from + whole;
  __u16* last = to + (size & 0x3F8);  // an even number of octets, so at most six are left
  __u64 tail = swapped(state[words & 0x7F], swap);
  for (__u32 chunk = 0; chunk < WEIR_XDP_STATE_WORDS / 8; ++chunk) {
    if (chunk * 8 + 8 > words || (const void*)(at + 8) > end) break;
#pragma unroll
    for (int i = 0; i < 8; ++i) at[i] = swapped(from[i], swap);
    at += 8;
    from += 8;
  }
  for (__u32 i = 0; i < 7; ++i) {
    if (i >= (words & 7) || (const void*)(rest + 1) > end) break;
    *rest = swapped(*rest_from, swap);
    ++rest;
    ++rest_from;
  }
  for (__u32 i = 0; i < 3; ++i) {
    if (i >= (size & 6) / 2 || (const void*)(last + 1) > end) break;
    *last = (__u16)tail;
    tail >>= 16;
    ++last;
  }
}

// The rules of WIRE section 4, "Rounds"; see SlotPool. The slot's lock is held.
INLINE enum verdict contribute(const struct contribution* c, const void* payload, const void* end) {
  struct weir_xdp_slot* slot = c->slot;
  const struct weir_xdp_terms* lease = &c->terms;
  // A packet of an earlier grant that was in flight while the slot was granted again.
  if (slot->generation > lease->generation) return kForeign;
  if (slot->generation < lease->generation) {
    slot->generation = lease->generation;
    slot->newest = -1;
  }
  const __s64 newest = slot->newest, round = c->round;
  struct weir_xdp_set* set = (round & 1) != 0 ? &slot->sets[1] : &slot->sets[0];
  const struct weir_xdp_set* other = (round & 1) != 0 ? &slot->sets[0] : &slot->sets[1];
  if (round > newest + 1) return kEarly;
  if (round == newest + 1) {
    if (newest >= 0 && !other->complete) return kEarly;
    slot->newest = round;
    set->contributors = 0;
    set->opened_ns = c->now;
    set->operation = c->operation;
    set->offset = c->offset;
    set->count = 0;
    set->exponent = 0;
    set->complete = 0;
    set->lead = c->lead;
    set->overflow = 0;
  } else if (round + 1 < newest) {
    return kStale;
  }
  if (c->operation != set->operation || c->offset != set->offset || c->lead != set->lead) {
    return kMismatched;
  }
  if (set->complete) return kServed;
  const __u64 bit = 1ULL << (c->worker & 63);
  if ((set->contributors & bit) != 0) return kDuplicate;
  if (!c->lead) add(c, payload, end, set);
  if (c->exponent > set->exponent) set->exponent = c->exponent;
  set->contributors |= bit;
  ++set->count;
  if (set->count < lease->workers) return kAdded;
  set->complete = 1;
  return kCompleted;
}

INLINE void describe(struct weir_xdp_request* request, const struct contribution* c, __u32 id,
                     __u32 slot, __u64 recipients, __u32 bytes) {
  request->generation = c->terms.generation;
  request->recipients = recipients;
  request->lease = id;
  request->slot = slot;
  request->round = c->round;
  request->bytes = bytes;
}

// Asks the loading program to send a reply, made from the state of the slot.
INLINE void hand_over(const struct contribution* c, __u32 id, __u32 slot, __u64 recipients) {
  struct weir_xdp_request* request = bpf_ringbuf_reserve(&requests, sizeof *request, 0);
  if (!request) {
    ++c->counted->ring_full;
    return;
  }
  describe(request, c, id, slot, recipients, 0);
  bpf_ringbuf_submit(request, 0);
  ++c->counted->handed;
}

// The same with the reply, which the frame holds already: copying it costs less than copying a
// slot.
INLINE void hand_over_frame(struct xdp_md* ctx, const struct contribution* c, __u32 id, __u32 slot,
                            __u64 recipients, __u32 payload_bytes) {
  const __u32 bytes = kHeaderBytes + (payload_bytes & 0x7FF);
  struct weir_xdp_handed* handed = bpf_ringbuf_reserve(&requests, sizeof *handed, 0);
  if (!handed) {
    ++c->counted->ring_full;
    return;
  }
  if (bytes > sizeof handed->packet ||
      bpf_xdp_load_bytes(ctx, kHeaderAt, handed->packet, bytes) != 0) {
    bpf_ringbuf_discard(handed, 0);
    return;
  }
  describe(&handed->request, c, id, slot, recipients, bytes);
  bpf_ringbuf_submit(handed, 0);
  ++c->counted->handed;
}

// Addresses the frame to its sender. Length and fields of the datagram are those of the reply
// already.
INLINE void return_to_sender(const struct frame* f, __u32 datagram_bytes) {
  unsigned char station[ETH_ALEN];
  __builtin_memcpy(station, f->ethernet->h_dest, ETH_ALEN);
  __builtin_memcpy(f->ethernet->h_dest, f->ethernet->h_source, ETH_ALEN);
  __builtin_memcpy(f->ethernet->h_source, station, ETH_ALEN);
  const __u32 address = f->ip->saddr;
  f->ip->saddr = f->ip->daddr;
  f->ip->daddr = address;
  f->ip->tot_len = bpf_htons(sizeof(struct iphdr) + sizeof(struct udphdr) + datagram_bytes);
  f->ip->ttl = 64;
  f->ip->check = 0;
  __u32 sum = 0;
  const __u16* halves = (const __u16*)f->ip;
#pragma unroll
  for (int i = 0; i < (int)sizeof(struct iphdr) / 2; ++i) sum += halves[i];
  sum = (sum & 0xFFFF) + (sum >> 16);
  sum = (sum & 0xFFFF) + (sum >> 16);
  f->ip->check = (__u16)~sum;
  const __u16 port = f->udp->source;
  f->udp->source = f->udp->dest;
  f->udp->dest = port;
  f->udp->len = bpf_htons(sizeof(struct udphdr) + datagram_bytes);
  f->udp->check = 0;  // the checksum is optional over IPv4
}

INLINE int send_notice(struct xdp_md* ctx, const struct contribution* c) {
  const int excess = (int)(c->payload_bytes & 0x7FF);
  if (excess > 0 && bpf_xdp_adjust_tail(ctx, -excess) != 0) return XDP_DROP;
  void *data = (void*)(long)ctx->data, *end = (void*)(long)ctx->data_end;
  if (data + kPayloadAt > end) return XDP_DROP;
  const struct frame f = frame_at(data);
  f.header->flags = (f.header->flags & kFlagLittleEndian) | kFlagReply | kFlagNotice;
  f.header->exponent = 0;
  f.header->detail = bpf_htonl(kNoticeMismatch);
  return_to_sender(&f, kHeaderBytes);
  return XDP_TX;
}

// The slot's lock is held. Returns 0 if the slot has advanced in the meantime.
INLINE int write_reply(const struct contribution* c, const struct frame* f, const void* end) {
  const struct weir_xdp_slot* slot = c->slot;
  const struct weir_xdp_terms* lease = &c->terms;
  const struct weir_xdp_set* set = (c->round & 1) != 0 ? &slot->sets[1] : &slot->sets[0];
  const __s64 round = c->round;
  if (slot->generation != lease->generation || round > slot->newest || round + 1 < slot->newest) {
    return 0;
  }
  if (!set->complete) return 0;
  f->header->flags = (f->header->flags & kFlagsOfRequest) | kFlagReply;
  if (set->overflow) f->header->flags |= kFlagOverflow;
  f->header->contributions = bpf_htons(set->count);
  f->header->exponent = bpf_htons(set->exponent);
  if (c->lead) return 1;
  __u8* payload = f->payload;
  if (lease->mode == kModeSum) {
    if (lease->little_endian) {
      copy_lanes(payload, end, set->state, (__u32)lease->lanes * 4, 1);
    } else {
      copy_lanes(payload, end, set->state, (__u32)lease->lanes * 4, 4);
    }
    return 1;
  }
  if (payload + kContributorBytes > (const __u8*)end) return 0;
  *(__u64*)payload = bpf_cpu_to_be64(set->contributors);
  payload += kContributorBytes;
  if (lease->sum_bits == 16 && !lease->little_endian) {
    copy_lanes(payload, end, set->state, (__u32)lease->lanes * 2, 2);
  } else {
    copy_lanes(payload, end, set->state, (__u32)lease->lanes * lease->sum_bits / 8, 1);
  }
  return 1;
}

INLINE int send_reply(struct xdp_md* ctx, const struct contribution* c, __u32 id, __u32 slot,
                      int to_all) {
  const __u32 bytes = reply_payload_bytes(&c->terms, c->lead);
  const __u64 sender = 1ULL << (c->worker & 63);
  const __u64 others = to_all ? (~0ULL >> (-c->terms.workers & 63)) & ~sender : 0;
  const int growth = (int)bytes - (int)c->payload_bytes;
  // A driver may have no room after the packet. Then the loading program also serves the sender.
  if (growth != 0 && bpf_xdp_adjust_tail(ctx, growth) != 0) {
    hand_over(c, id, slot, others | sender);
    return XDP_DROP;
  }
  void *data = (void*)(long)ctx->data, *end = (void*)(long)ctx->data_end;
  if (data + kPayloadAt > end) return XDP_DROP;
  struct frame f = frame_at(data);
  bpf_spin_lock(&c->slot->lock);
  const int written = write_reply(c, &f, end);
  bpf_spin_unlock(&c->slot->lock);
  if (!written) return XDP_DROP;
  // Reload the pointers, so that the verifier forgets how many lanes it has seen. This halves its
  // work.
  data = (void*)(long)ctx->data;
  end = (void*)(long)ctx->data_end;
  if (data + kPayloadAt > end) return XDP_DROP;
  f = frame_at(data);
  return_to_sender(&f, kHeaderBytes + bytes);
  if (others != 0) hand_over_frame(ctx, c, id, slot, others, bytes);
  return XDP_TX;
}

INLINE int act(struct xdp_md* ctx, const struct contribution* c, enum verdict verdict, __u32 id,
               __u32 slot) {
  switch (verdict) {
    case kAdded:
      ++c->counted->added;
      return XDP_DROP;
    case kCompleted:
      ++c->counted->completed;
      break;
    case kServed:
      ++c->counted->served;
      break;
    case kMismatched:
      ++c->counted->noticed;
      return send_notice(ctx, c);
    case kDuplicate:
      ++c->counted->duplicate;
      return XDP_DROP;
    case kStale:
      ++c->counted->stale;
      return XDP_DROP;
    case kEarly:
      ++c->counted->early;
      return XDP_DROP;
    case kForeign:
      ++c->counted->foreign;
      return XDP_DROP;
  }
  return send_reply(ctx, c, id, slot, verdict == kCompleted);
}

// Returns whether this is a datagram of a lease in the kernel; the sender is not checked. 0: it is
// for the socket.
INLINE int understand(const struct frame* f, const void* end, __u32* payload_bytes) {
  if (f->ethernet->h_proto != bpf_htons(ETH_P_IP) || f->ip->ihl != 5) return 0;
  if (f->ip->version != 4 || f->ip->protocol != IPPROTO_UDP) return 0;
  if ((f->ip->frag_off & bpf_htons(0x3FFF)) != 0) return 0;
  if (f->header->magic != bpf_htons(kMagic)) return 0;
  const __u32 udp_bytes = bpf_ntohs(f->udp->len);
  if (udp_bytes < sizeof(struct udphdr) + kHeaderBytes || udp_bytes > 1500) return 0;
  if (bpf_ntohs(f->ip->tot_len) != sizeof(struct iphdr) + udp_bytes) return 0;
  *payload_bytes = udp_bytes - sizeof(struct udphdr) - kHeaderBytes;
  // A short frame is followed by padding, which a reply would carry as lanes.
  return f->payload + *payload_bytes == (const __u8*)end;
}

SEC("xdp")
int weir_aggregate(struct xdp_md* ctx) {
  void *data = (void*)(long)ctx->data, *end = (void*)(long)ctx->data_end;
  if (data + kPayloadAt > end) return XDP_PASS;
  const struct frame f = frame_at(data);
  struct contribution c = {};
  if (!understand(&f, end, &c.payload_bytes)) return XDP_PASS;
  const __u32 zero = 0, id = bpf_ntohs(f.header->lease), slot = bpf_ntohs(f.header->slot);
  c.lease = bpf_map_lookup_elem(&leases, &id);
  c.counted = bpf_map_lookup_elem(&counters, &zero);
  if (!c.lease || !c.counted) return XDP_PASS;
  c.terms = c.lease->terms;
  __asm__ volatile("" ::: "memory");
  if (READ_NOW(c.lease->terms.generation) != c.terms.generation || f.ip->daddr != c.terms.address ||
      f.udp->dest != c.terms.port || !well_formed(f.header, c.payload_bytes)) {
    ++c.counted->passed;
    return XDP_PASS;
  }
  const struct weir_xdp_sender sender = {
      .generation = c.terms.generation,
      .source = (__u64)bpf_ntohl(f.ip->saddr) << 16 | bpf_ntohs(f.udp->source)};
  const struct weir_xdp_place* place = bpf_map_lookup_elem(&senders, &sender);
  const __u32 index = c.terms.first_slot + slot;
  c.slot = bpf_map_lookup_elem(&slots, &index);
  if (place) c.worker = READ_NOW(place->worker) & 63;
  if (!place || READ_NOW(place->generation) != c.terms.generation || !c.slot ||
      !fits(&c.terms, f.header)) {
    ++c.counted->foreign;
    return XDP_DROP;
  }
  c.now = bpf_ktime_get_coarse_ns();
  c.lease->used_ns = c.now;
  c.round = bpf_ntohl(f.header->round);
  c.operation = f.header->operation;
  c.offset = f.header->offset;
  c.exponent = bpf_ntohs(f.header->exponent);
  c.lead = (f.header->flags & kFlagLead) != 0;
  bpf_spin_lock(&c.slot->lock);
  const enum verdict verdict = contribute(&c, f.payload, end);
  bpf_spin_unlock(&c.slot->lock);
  return act(ctx, &c, verdict, id, slot);
}

char _license[] SEC("license") = "Dual MIT/GPL";
