// SPDX-License-Identifier: Apache-2.0
// The bytes of the aggregation protocol and of the headers in front of it: proto/WIRE.md section 4.
// Both programs include this file, and tests/lint/p4_widths.py compares packet_h with that table.

#ifndef WEIR_HEADERS_P4_
#define WEIR_HEADERS_P4_

header ethernet_h {
    bit<48> destination;
    bit<48> source;
    bit<16> ether_type;
}

header ipv4_h {
    bit<8>  version_ihl;
    bit<8>  service;
    bit<16> total_length;
    bit<16> identification;
    bit<3>  flags;
    bit<13> fragment;
    bit<8>  time_to_live;
    bit<8>  protocol;
    bit<16> header_checksum;
    bit<32> source;
    bit<32> destination;
}

header udp_h {
    bit<16> source;
    bit<16> destination;
    bit<16> length;
    bit<16> checksum;
}

header packet_h {
    bit<16> magic;
    bit<8>  version;
    bit<8>  mode;
    bit<8>  flags;
    bit<8>  columns;
    bit<16> lease;
    bit<32> epoch;
    bit<64> cookie;
    bit<16> slot;
    bit<16> lanes;
    bit<32> round;
    bit<32> operation;
    bit<32> offset;
    bit<16> contributions;
    bit<16> exponent;
    bit<32> detail;
    bit<32> checksum;
}

// In front of the sums of mode 3. If bit w is set, worker w is in the sums.
header contributors_h {
    bit<64> workers;
}

// Mode 4: the next block of one column.
header next_h {
    bit<32> block;
}

// Sixteen words of state. In modes 1 and 2 a word is a lane; in mode 3 it holds four sums of 8 or
// two of 16 bits; in mode 4 the group is the block of one column.
header group_h {
    bit<32> word_0;
    bit<32> word_1;
    bit<32> word_2;
    bit<32> word_3;
    bit<32> word_4;
    bit<32> word_5;
    bit<32> word_6;
    bit<32> word_7;
    bit<32> word_8;
    bit<32> word_9;
    bit<32> word_10;
    bit<32> word_11;
    bit<32> word_12;
    bit<32> word_13;
    bit<32> word_14;
    bit<32> word_15;
}

// The indices that become one group of sums of 8 bits: four per word, the even lane first.
header indices_8_h {
    bit<16> word_0;
    bit<16> word_1;
    bit<16> word_2;
    bit<16> word_3;
    bit<16> word_4;
    bit<16> word_5;
    bit<16> word_6;
    bit<16> word_7;
    bit<16> word_8;
    bit<16> word_9;
    bit<16> word_10;
    bit<16> word_11;
    bit<16> word_12;
    bit<16> word_13;
    bit<16> word_14;
    bit<16> word_15;
}

// The indices that become one group of sums of 16 bits: two per word.
header indices_16_h {
    bit<8> word_0;
    bit<8> word_1;
    bit<8> word_2;
    bit<8> word_3;
    bit<8> word_4;
    bit<8> word_5;
    bit<8> word_6;
    bit<8> word_7;
    bit<8> word_8;
    bit<8> word_9;
    bit<8> word_10;
    bit<8> word_11;
    bit<8> word_12;
    bit<8> word_13;
    bit<8> word_14;
    bit<8> word_15;
}

#endif
