// SPDX-License-Identifier: Apache-2.0
// Numbers of the protocol and sizes of both programs.

#ifndef WEIR_PARAMETERS_P4_
#define WEIR_PARAMETERS_P4_

const bit<16> ETHER_TYPE_IPV4 = 0x0800;
const bit<8>  IPV4_NO_OPTIONS = 0x45;
const bit<8>  PROTOCOL_UDP = 17;
const bit<8>  REPLY_TIME_TO_LIVE = 64;

// Magic and version as they lie in the first three octets of a packet.
const bit<32> PACKET_START = 0x57410200;
const bit<32> PACKET_START_MASK = 0xFFFFFF00;

const bit<8> MODE_SUM = 1;
const bit<8> MODE_MAX = 2;
const bit<8> MODE_TABLE = 3;
const bit<8> MODE_SPARSE = 4;

const bit<8> FLAG_REPLY = 1;
const bit<8> FLAG_OVERFLOW = 8;
const bit<8> FLAG_NOTICE = 16;
const bit<8> FLAG_LEAD = 32;

const bit<32> NOTICE_MISMATCH = 1;

// Sizes in octets of the UDP header, the aggregation packet's header, and one group of words.
const bit<16> UDP_HEADER_BYTES = 8;
const bit<16> IPV4_HEADER_BYTES = 20;
const bit<16> ETHERNET_HEADER_BYTES = 14;
const bit<16> PACKET_HEADER_BYTES = 48;
const bit<16> GROUP_BYTES = 64;
const bit<16> INDICES_8_BYTES = 32;
const bit<16> INDICES_16_BYTES = 16;
const bit<16> NEXT_BYTES = 4;
const bit<16> CONTRIBUTOR_BYTES = 8;
const bit<16> PAYLOAD_UNKNOWN = 0xFFFF;

const bit<16> LANES_PER_BLOCK = 16;

// The outcome of a packet, as the aggregator in software counts it; the low bits of a counter's
// index. Counters of packets that belong to no lease have an index of their own.
typedef bit<4> verdict_t;
const verdict_t VERDICT_ADDED = 0;
const verdict_t VERDICT_COMPLETED = 1;
const verdict_t VERDICT_SERVED = 2;
const verdict_t VERDICT_NOTICED = 3;
const verdict_t VERDICT_DUPLICATE = 4;
const verdict_t VERDICT_STALE = 5;
const verdict_t VERDICT_EARLY = 6;

const bit<32> REFUSED_MALFORMED = 0;
const bit<32> REFUSED_FOREIGN = 1;
const bit<32> REFUSED_INJECTED = 2;

const bit<32> SLOTS = 1024;
const bit<32> SETS = 2048;
const bit<32> LEASES = 64;
const bit<32> COUNTERS = 1024;  // LEASES times the verdicts

#endif
