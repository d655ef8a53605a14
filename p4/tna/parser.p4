// SPDX-License-Identifier: Apache-2.0
// Headers of the TNA program, how they are parsed, and how they are written again.

const PortId_t RECIRCULATION_PORT = 68;  // of pipe 0

// This header is in front of a result on its second pass through ingress.
header recirculated_h {
    bit<32> slot_index;
    bit<16> mcast_group;
}

struct headers_t {
    recirculated_h recirculated;
    ethernet_h     ethernet;
    ipv4_h         ipv4;
    udp_h          udp;
    packet_h       packet;
    contributors_h contributors;
    next_h         next_0;
    indices_16_h   indices_16_0;
    group_h        group_0;
}

struct metadata_t {
    bit<32> index;        // of the lease among those of this switch
    bit<32> first_slot;
    bit<16> slots;
    bit<16> workers;
    bit<32> everyone;     // bits of all workers
    bit<16> mcast_group;
    bit<32> worker;       // the sender's bit
    bit<16> room;         // slots of the lease behind the packet's, and 1
    bit<32> slot_index;
    bit<32> set_index;
    bit<32> round_tag;    // round + 1; 0 is no round
    bit<32> complete;     // rounds of the slot that are complete
    bit<32> ahead;        // round - complete
    bit<32> tag_before;
    bit<32> operation_before;
    bit<32> offset_before;
    bit<8>  flags_before;
    bit<32> before;       // contributors
    bit<32> present;      // whether the sender is one
    bit<32> missing;      // workers that have not contributed
    bit<16> greatest;
    bit<32> least;        // mode 4: the least of the next blocks
    bit<8>  columns_before;  // mode 4: 1: some worker had a block
    bit<8>  columns_now;
    bit<1>  accepted;
    bit<1>  delivering;   // second pass
    bit<1>  opening;      // first contribution to its round
    bit<1>  serving;      // the round is complete already
    bit<1>  decided;      // the verdict stands; no more state is touched
    bit<1>  reply;        // this switch made the packet
    verdict_t verdict;
    bit<3>  words;        // the operation on the words, below
}

const bit<3> WORDS_KEEP = 0;   // not touched
const bit<3> WORDS_SET = 1;    // the first contribution overwrites
const bit<3> WORDS_ADD = 2;
const bit<3> WORDS_RAISE = 3;
const bit<3> WORDS_GET = 4;

struct egress_metadata_t {
    bit<1> reply;
}

parser WeirIngressParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                         out ingress_intrinsic_metadata_t ig_intr_md) {
    state start {
        packet.extract(ig_intr_md);
        packet.advance(PORT_METADATA_SIZE);
        transition select(ig_intr_md.ingress_port) {
            RECIRCULATION_PORT: parse_recirculated;
            default: parse_ethernet;
        }
    }

    state parse_recirculated {
        packet.extract(hdr.recirculated);
        transition parse_ethernet;
    }

    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHER_TYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
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

    // A result on its second pass is not parsed further: its payload stays behind its header.
    state parse_packet {
        packet.extract(hdr.packet);
        transition select(hdr.packet.mode, hdr.packet.flags, hdr.packet.lanes, hdr.packet.detail) {
            (MODE_SUM, 0, 16, _): parse_group;
            (MODE_MAX, 0, 16, _): parse_group;
            (MODE_TABLE, 0, 32, 16): parse_indices;
            (MODE_SPARSE, 0, LANES_PER_BLOCK, 0): parse_next;
            (MODE_SPARSE, 0, LANES_PER_BLOCK, 1): parse_next_and_group;
            default: accept;
        }
    }

    state parse_indices {
        packet.extract(hdr.indices_16_0);
        transition accept;
    }

    state parse_next {
        packet.extract(hdr.next_0);
        transition accept;
    }

    state parse_next_and_group {
        packet.extract(hdr.next_0);
        transition parse_group;
    }

    state parse_group {
        packet.extract(hdr.group_0);
        transition accept;
    }
}

control WeirIngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                            in ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md) {
    Checksum() ipv4_checksum;
    apply {
        if (meta.reply == 1) {
            hdr.ipv4.header_checksum = ipv4_checksum.update({
                hdr.ipv4.version_ihl, hdr.ipv4.service, hdr.ipv4.total_length,
                hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment, hdr.ipv4.time_to_live,
                hdr.ipv4.protocol, hdr.ipv4.source, hdr.ipv4.destination});
        }
        packet.emit(hdr.recirculated);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.packet);
        packet.emit(hdr.contributors);
        packet.emit(hdr.next_0);
        packet.emit(hdr.indices_16_0);
        packet.emit(hdr.group_0);
    }
}

struct egress_headers_t {
    ethernet_h ethernet;
    ipv4_h     ipv4;
    udp_h      udp;
}

parser WeirEgressParser(packet_in packet, out egress_headers_t hdr, out egress_metadata_t meta,
                        out egress_intrinsic_metadata_t eg_intr_md) {
    state start {
        packet.extract(eg_intr_md);
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHER_TYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version_ihl, hdr.ipv4.protocol) {
            (IPV4_NO_OPTIONS, PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }

    state parse_udp {
        packet.extract(hdr.udp);
        transition accept;
    }
}

control WeirEgressDeparser(packet_out packet, inout egress_headers_t hdr,
                           in egress_metadata_t meta,
                           in egress_intrinsic_metadata_for_deparser_t eg_dprsr_md) {
    Checksum() ipv4_checksum;
    apply {
        if (meta.reply == 1) {
            hdr.ipv4.header_checksum = ipv4_checksum.update({
                hdr.ipv4.version_ihl, hdr.ipv4.service, hdr.ipv4.total_length,
                hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment, hdr.ipv4.time_to_live,
                hdr.ipv4.protocol, hdr.ipv4.source, hdr.ipv4.destination});
        }
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
    }
}
