// SPDX-License-Identifier: Apache-2.0
// Headers of the v1model program, how they are parsed, and how they are written again. If the
// parser does not recognise a packet, `payload` stays unknown, so that no length can match it.

struct headers_t {
    ethernet_h     ethernet;
    ipv4_h         ipv4;
    udp_h          udp;
    packet_h       packet;
    contributors_h contributors;
    next_h         next_0;
    next_h         next_1;
    next_h         next_2;
    next_h         next_3;
    indices_8_h    indices_8_0;
    indices_8_h    indices_8_1;
    indices_8_h    indices_8_2;
    indices_8_h    indices_8_3;
    indices_16_h   indices_16_0;
    indices_16_h   indices_16_1;
    indices_16_h   indices_16_2;
    indices_16_h   indices_16_3;
    group_h        group_0;
    group_h        group_1;
    group_h        group_2;
    group_h        group_3;
}

struct metadata_t {
    bit<16>  payload;    // octets behind the packet's header, as the header says
    // Values of the lease's table entry.
    bit<32>  index;      // among the leases of this switch
    bit<32>  first_slot;
    bit<16>  slots;
    bit<16>  workers;
    bit<64>  everyone;   // bits of all workers
    bit<16>  mcast_group;
    bit<8>   groups;     // of words per packet; mode 4: columns
    bit<32>  sum_bits;
    bit<128> levels;     // level i in bits 8 * i + 7 .. 8 * i
    bit<64>  worker;     // the sender's bit
    // The slot and set.
    bit<32>  slot_index;
    bit<32>  set_index;
    bit<48>  grant;      // lease and epoch: state of another grant does not count
    bit<1>   opening;    // first contribution to its round
    bit<1>   serving;    // the round is complete already
    verdict_t verdict;
    bit<1>   decided;    // the verdict stands; no more state is touched
    bit<1>   reply;      // an answer leaves
    // Words: result = (state & keep) + (packet & take), by group.
    bit<32>  keep_0;
    bit<32>  keep_1;
    bit<32>  keep_2;
    bit<32>  keep_3;
    bit<32>  take_0;
    bit<32>  take_1;
    bit<32>  take_2;
    bit<32>  take_3;
    bit<32>  wrapped;    // its highest bit: some sum did not fit
    bit<16>  loss;       // drop injection, in 65536ths
}

parser WeirParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                  inout standard_metadata_t standard_metadata) {
    state start {
        meta.payload = PAYLOAD_UNKNOWN;
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHER_TYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        // Fragments and packets with options are not for aggregation and are forwarded unchanged.
        transition select(hdr.ipv4.version_ihl, hdr.ipv4.flags, hdr.ipv4.fragment,
                          hdr.ipv4.protocol) {
            (IPV4_NO_OPTIONS, 0, 0, PROTOCOL_UDP): parse_udp;
            (IPV4_NO_OPTIONS, 2, 0, PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }

    state parse_udp {
        packet.extract(hdr.udp);
        transition select(packet.lookahead<bit<32>>()) {
            PACKET_START &&& PACKET_START_MASK: parse_packet;
            default: accept;
        }
    }

    state parse_packet {
        packet.extract(hdr.packet);
        transition select(hdr.packet.mode, hdr.packet.flags) {
            (MODE_SUM, FLAG_LEAD): parse_lead;
            (MODE_SUM, 0): parse_lanes;
            (MODE_MAX, 0): parse_lanes;
            (MODE_TABLE, 0): parse_indices;
            (MODE_SPARSE, 0): parse_sparse;
            default: accept;
        }
    }

    state parse_lead {
        meta.payload = 0;
        transition accept;
    }

    state parse_lanes {
        transition select(hdr.packet.lanes) {
            16: parse_groups_1;
            32: parse_groups_2;
            48: parse_groups_3;
            64: parse_groups_4;
            default: accept;
        }
    }

    state parse_groups_1 {
        packet.extract(hdr.group_0);
        meta.payload = GROUP_BYTES;
        transition accept;
    }

    state parse_groups_2 {
        packet.extract(hdr.group_0);
        packet.extract(hdr.group_1);
        meta.payload = 2 * GROUP_BYTES;
        transition accept;
    }

    state parse_groups_3 {
        packet.extract(hdr.group_0);
        packet.extract(hdr.group_1);
        packet.extract(hdr.group_2);
        meta.payload = 3 * GROUP_BYTES;
        transition accept;
    }

    state parse_groups_4 {
        packet.extract(hdr.group_0);
        packet.extract(hdr.group_1);
        packet.extract(hdr.group_2);
        packet.extract(hdr.group_3);
        meta.payload = 4 * GROUP_BYTES;
        transition accept;
    }

    state parse_indices {
        transition select(hdr.packet.detail, hdr.packet.lanes) {
            (8, 64): parse_indices_8_1;
            (8, 128): parse_indices_8_2;
            (8, 192): parse_indices_8_3;
            (8, 256): parse_indices_8_4;
            (16, 32): parse_indices_16_1;
            (16, 64): parse_indices_16_2;
            (16, 96): parse_indices_16_3;
            (16, 128): parse_indices_16_4;
            default: accept;
        }
    }

    state parse_indices_8_1 {
        packet.extract(hdr.indices_8_0);
        meta.payload = INDICES_8_BYTES;
        transition accept;
    }

    state parse_indices_8_2 {
        packet.extract(hdr.indices_8_0);
        packet.extract(hdr.indices_8_1);
        meta.payload = 2 * INDICES_8_BYTES;
        transition accept;
    }

    state parse_indices_8_3 {
        packet.extract(hdr.indices_8_0);
        packet.extract(hdr.indices_8_1);
        packet.extract(hdr.indices_8_2);
        meta.payload = 3 * INDICES_8_BYTES;
        transition accept;
    }

    state parse_indices_8_4 {
        packet.extract(hdr.indices_8_0);
        packet.extract(hdr.indices_8_1);
        packet.extract(hdr.indices_8_2);
        packet.extract(hdr.indices_8_3);
        meta.payload = 4 * INDICES_8_BYTES;
        transition accept;
    }

    state parse_indices_16_1 {
        packet.extract(hdr.indices_16_0);
        meta.payload = INDICES_16_BYTES;
        transition accept;
    }

    state parse_indices_16_2 {
        packet.extract(hdr.indices_16_0);
        packet.extract(hdr.indices_16_1);
        meta.payload = 2 * INDICES_16_BYTES;
        transition accept;
    }

    state parse_indices_16_3 {
        packet.extract(hdr.indices_16_0);
        packet.extract(hdr.indices_16_1);
        packet.extract(hdr.indices_16_2);
        meta.payload = 3 * INDICES_16_BYTES;
        transition accept;
    }

    state parse_indices_16_4 {
        packet.extract(hdr.indices_16_0);
        packet.extract(hdr.indices_16_1);
        packet.extract(hdr.indices_16_2);
        packet.extract(hdr.indices_16_3);
        meta.payload = 4 * INDICES_16_BYTES;
        transition accept;
    }

    // Blocks of 16 lanes in up to four columns; a set bit beyond the last column is malformed.
    state parse_sparse {
        transition select(hdr.packet.lanes, hdr.packet.columns, hdr.packet.detail) {
            (LANES_PER_BLOCK, 1, 0 &&& 0xFFFFFFFE): parse_nexts_1;
            (LANES_PER_BLOCK, 2, 0 &&& 0xFFFFFFFC): parse_nexts_2;
            (LANES_PER_BLOCK, 3, 0 &&& 0xFFFFFFF8): parse_nexts_3;
            (LANES_PER_BLOCK, 4, 0 &&& 0xFFFFFFF0): parse_nexts_4;
            default: accept;
        }
    }

    state parse_nexts_1 {
        packet.extract(hdr.next_0);
        meta.payload = NEXT_BYTES;
        transition parse_block_0;
    }

    state parse_nexts_2 {
        packet.extract(hdr.next_0);
        packet.extract(hdr.next_1);
        meta.payload = 2 * NEXT_BYTES;
        transition parse_block_0;
    }

    state parse_nexts_3 {
        packet.extract(hdr.next_0);
        packet.extract(hdr.next_1);
        packet.extract(hdr.next_2);
        meta.payload = 3 * NEXT_BYTES;
        transition parse_block_0;
    }

    state parse_nexts_4 {
        packet.extract(hdr.next_0);
        packet.extract(hdr.next_1);
        packet.extract(hdr.next_2);
        packet.extract(hdr.next_3);
        meta.payload = 4 * NEXT_BYTES;
        transition parse_block_0;
    }

    state parse_block_0 {
        transition select(hdr.packet.detail[0:0]) {
            1: extract_block_0;
            default: parse_block_1;
        }
    }

    state extract_block_0 {
        packet.extract(hdr.group_0);
        meta.payload = meta.payload + GROUP_BYTES;
        transition parse_block_1;
    }

    state parse_block_1 {
        transition select(hdr.packet.detail[1:1]) {
            1: extract_block_1;
            default: parse_block_2;
        }
    }

    state extract_block_1 {
        packet.extract(hdr.group_1);
        meta.payload = meta.payload + GROUP_BYTES;
        transition parse_block_2;
    }

    state parse_block_2 {
        transition select(hdr.packet.detail[2:2]) {
            1: extract_block_2;
            default: parse_block_3;
        }
    }

    state extract_block_2 {
        packet.extract(hdr.group_2);
        meta.payload = meta.payload + GROUP_BYTES;
        transition parse_block_3;
    }

    state parse_block_3 {
        transition select(hdr.packet.detail[3:3]) {
            1: extract_block_3;
            default: accept;
        }
    }

    state extract_block_3 {
        packet.extract(hdr.group_3);
        meta.payload = meta.payload + GROUP_BYTES;
        transition accept;
    }
}

control WeirVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.version_ihl == IPV4_NO_OPTIONS,
                        {hdr.ipv4.version_ihl, hdr.ipv4.service, hdr.ipv4.total_length,
                         hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment,
                         hdr.ipv4.time_to_live, hdr.ipv4.protocol, hdr.ipv4.source,
                         hdr.ipv4.destination},
                        hdr.ipv4.header_checksum, HashAlgorithm.csum16);
    }
}

// Computes checksums only for packets that this switch made: all others keep theirs, right or
// wrong.
control WeirComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.reply == 1,
                        {hdr.ipv4.version_ihl, hdr.ipv4.service, hdr.ipv4.total_length,
                         hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment,
                         hdr.ipv4.time_to_live, hdr.ipv4.protocol, hdr.ipv4.source,
                         hdr.ipv4.destination},
                        hdr.ipv4.header_checksum, HashAlgorithm.csum16);
    }
}

control WeirDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.packet);
        packet.emit(hdr.contributors);
        packet.emit(hdr.next_0);
        packet.emit(hdr.next_1);
        packet.emit(hdr.next_2);
        packet.emit(hdr.next_3);
        packet.emit(hdr.indices_8_0);
        packet.emit(hdr.indices_8_1);
        packet.emit(hdr.indices_8_2);
        packet.emit(hdr.indices_8_3);
        packet.emit(hdr.indices_16_0);
        packet.emit(hdr.indices_16_1);
        packet.emit(hdr.indices_16_2);
        packet.emit(hdr.indices_16_3);
        packet.emit(hdr.group_0);
        packet.emit(hdr.group_1);
        packet.emit(hdr.group_2);
        packet.emit(hdr.group_3);
    }
}
