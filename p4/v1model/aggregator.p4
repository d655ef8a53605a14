// SPDX-License-Identifier: Apache-2.0
// An aggregator for BMv2 (v1model): sums, maxima, table sums and sparse blocks of several jobs,
// with the answers of datapath/aggregation/slot_pool.h, packet by packet. p4/README.md walks
// through it.
//
// All state is touched in ingress, which BMv2 runs in one thread, and every register is read at
// most once and written at most once per packet. A program whose registers allow one atomic
// read-modify-write only needs a second pass for `progress` (p4/tna does that).

#include <core.p4>
#include <v1model.p4>

#include "../include/parameters.p4"
#include "../include/headers.p4"
#include "parser.p4"
#include "words.p4"

control WeirIngress(inout headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    // By slot: the grant that it belongs to (48 bits) and the number of complete rounds (32 bits).
    register<bit<80>>(SLOTS) progress;
    // By slot and set, as all registers below: the grant, and the round that opened it last.
    register<bit<80>>(SETS) opened;
    // Lead bit, operation and offset of the first contribution.
    register<bit<65>>(SETS) agreed;
    register<bit<64>>(SETS) contributors;
    register<bit<16>>(SETS) exponent;
    register<bit<1>>(SETS) overflow;
    // Mode 4: the columns of which some worker has a block, and the least next block of each
    // column.
    register<bit<4>>(SETS) columns;
    register<bit<32>>(SETS) next_block_0;
    register<bit<32>>(SETS) next_block_1;
    register<bit<32>>(SETS) next_block_2;
    register<bit<32>>(SETS) next_block_3;

    counter(COUNTERS, CounterType.packets_and_bytes) by_lease;
    counter(3, CounterType.packets_and_bytes) refused;

    WEIR_GROUP(0)
    WEIR_GROUP(1)
    WEIR_GROUP(2)
    WEIR_GROUP(3)

    action drop() {
        mark_to_drop(standard_metadata);
    }

    action to_port(bit<9> port) {
        standard_metadata.egress_spec = port;
    }

    action to_group(bit<16> mcast_group) {
        standard_metadata.mcast_grp = mcast_group;
    }

    // Forwards all packets that are not for the aggregator.
    table forward {
        key = { hdr.ethernet.destination: exact; }
        actions = { to_port; to_group; drop; }
        default_action = drop();
        size = 1024;
    }

    // Addresses at which this switch aggregates.
    table own_address {
        key = {
            hdr.ipv4.destination: exact;
            hdr.udp.destination: exact;
        }
        actions = { NoAction; }
        default_action = NoAction();
        size = 64;
    }

    action set_terms(bit<32> index, bit<32> first_slot, bit<16> slots, bit<16> workers,
                     bit<64> everyone, bit<16> mcast_group, bit<8> groups, bit<32> sum_bits,
                     bit<128> levels) {
        meta.index = index;
        meta.first_slot = first_slot;
        meta.slots = slots;
        meta.workers = workers;
        meta.everyone = everyone;
        meta.mcast_group = mcast_group;
        meta.groups = groups;
        meta.sum_bits = sum_bits;
        meta.levels = levels;
    }

    // The fields that a packet must have in common with its lease.
    table terms {
        key = {
            hdr.packet.lease: exact;
            hdr.packet.epoch: exact;
            hdr.packet.cookie: exact;
            hdr.packet.mode: exact;
            hdr.packet.lanes: exact;
            hdr.packet.columns: exact;
        }
        actions = { set_terms; NoAction; }
        default_action = NoAction();
        size = 64;
    }

    action set_worker(bit<64> worker) {
        meta.worker = worker;
    }

    // Finds the worker by its address, because the packet does not name it.
    table member {
        key = {
            standard_metadata.ingress_port: exact;
            hdr.ipv4.source: exact;
            hdr.udp.source: exact;
            hdr.packet.lease: exact;
            hdr.packet.epoch: exact;
        }
        actions = { set_worker; NoAction; }
        default_action = NoAction();
        size = 4096;
    }

    action set_loss(bit<16> loss) {
        meta.loss = loss;
    }

    // For tests: the share of aggregation packets from a port that is dropped.
    table inject_loss {
        key = { standard_metadata.ingress_port: exact; }
        actions = { set_loss; NoAction; }
        default_action = NoAction();
        size = 512;
    }

    action locate_set() {
        meta.slot_index = meta.first_slot + (bit<32>)hdr.packet.slot;
        meta.set_index = (meta.slot_index << 1) | (bit<32>)hdr.packet.round[0:0];
        meta.grant = hdr.packet.lease ++ hdr.packet.epoch;
    }

    action keep_all() {
        meta.keep_0 = 0xFFFFFFFF;
        meta.keep_1 = 0xFFFFFFFF;
        meta.keep_2 = 0xFFFFFFFF;
        meta.keep_3 = 0xFFFFFFFF;
    }

    action keep_none() {
        meta.keep_0 = 0;
        meta.keep_1 = 0;
        meta.keep_2 = 0;
        meta.keep_3 = 0;
    }

    action take_all() {
        meta.take_0 = 0xFFFFFFFF;
        meta.take_1 = 0xFFFFFFFF;
        meta.take_2 = 0xFFFFFFFF;
        meta.take_3 = 0xFFFFFFFF;
    }

    action take_none() {
        meta.take_0 = 0;
        meta.take_1 = 0;
        meta.take_2 = 0;
        meta.take_3 = 0;
    }

    action strip_payload() {
        hdr.contributors.setInvalid();
        hdr.next_0.setInvalid();
        hdr.next_1.setInvalid();
        hdr.next_2.setInvalid();
        hdr.next_3.setInvalid();
        hdr.indices_8_0.setInvalid();
        hdr.indices_8_1.setInvalid();
        hdr.indices_8_2.setInvalid();
        hdr.indices_8_3.setInvalid();
        hdr.indices_16_0.setInvalid();
        hdr.indices_16_1.setInvalid();
        hdr.indices_16_2.setInvalid();
        hdr.indices_16_3.setInvalid();
        hdr.group_0.setInvalid();
        hdr.group_1.setInvalid();
        hdr.group_2.setInvalid();
        hdr.group_3.setInvalid();
    }

    // Sends the packet back to its source; replies to all workers get their destinations in egress.
    action turn_around(bit<16> payload) {
        meta.reply = 1;
        bit<48> ethernet = hdr.ethernet.source;
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = ethernet;
        bit<32> address = hdr.ipv4.source;
        hdr.ipv4.source = hdr.ipv4.destination;
        hdr.ipv4.destination = address;
        bit<16> port = hdr.udp.source;
        hdr.udp.source = hdr.udp.destination;
        hdr.udp.destination = port;
        hdr.ipv4.time_to_live = REPLY_TIME_TO_LIVE;
        hdr.udp.length = UDP_HEADER_BYTES + PACKET_HEADER_BYTES + payload;
        hdr.ipv4.total_length = IPV4_HEADER_BYTES + UDP_HEADER_BYTES + PACKET_HEADER_BYTES +
                                payload;
        hdr.udp.checksum = 0;
    }

    action tell_mismatch() {
        hdr.packet.flags = FLAG_REPLY | FLAG_NOTICE;
        hdr.packet.exponent = 0;
        hdr.packet.detail = NOTICE_MISMATCH;
    }

    apply {
        bit<1> own = 0;
        bit<1> accepted = 0;
        bit<80> tag;
        bit<80> slot_state;
        bit<32> complete = 0;
        bit<65> agreement;
        bit<65> agreement_before;
        bit<64> before = 0;
        bit<16> greatest = 0;
        bit<1> wrapped_before;
        bit<4> columns_before = 0;
        bit<4> columns_now = 0;
        bit<32> least;
        bit<16> dice;
        bit<16> payload = 0;

        meta.decided = 0;
        meta.opening = 0;
        meta.serving = 0;
        meta.verdict = VERDICT_ADDED;
        meta.wrapped = 0;
        meta.loss = 0;
        meta.index = 0;
        meta.reply = 0;
        meta.mcast_group = 0;

        if (hdr.udp.isValid()) {
            if (own_address.apply().hit) {
                own = 1;
            }
        }
        if (own == 0) {
            forward.apply();
        } else {
            // Check that the packet is whole and belongs to a lease. Its lengths must agree to the
            // last octet of the frame: octets that a parser leaves over would be sent to all
            // workers behind the sums.
            mark_to_drop(standard_metadata);
            inject_loss.apply();
            random(dice, 16w0, 16w65535);
            if (dice < meta.loss) {
                refused.count(REFUSED_INJECTED);
            } else if (standard_metadata.parser_error != error.NoError ||
                       standard_metadata.checksum_error == 1 || !hdr.packet.isValid() ||
                       meta.payload == PAYLOAD_UNKNOWN) {
                refused.count(REFUSED_MALFORMED);
            } else if (hdr.udp.length != UDP_HEADER_BYTES + PACKET_HEADER_BYTES + meta.payload ||
                       hdr.ipv4.total_length != IPV4_HEADER_BYTES + hdr.udp.length ||
                       standard_metadata.packet_length !=
                           (bit<32>)(ETHERNET_HEADER_BYTES + hdr.ipv4.total_length)) {
                refused.count(REFUSED_MALFORMED);
            } else if (hdr.packet.contributions != 0 || hdr.packet.checksum != 0 ||
                       (hdr.packet.mode != MODE_SPARSE && hdr.packet.columns != 0) ||
                       ((hdr.packet.mode == MODE_SUM || hdr.packet.mode == MODE_MAX) &&
                        hdr.packet.detail != 0)) {
                refused.count(REFUSED_MALFORMED);
            } else {
                if (terms.apply().hit) {
                    if (member.apply().hit) {
                        accepted = 1;
                    }
                }
                if (accepted == 1) {
                    if (hdr.packet.slot >= meta.slots ||
                        (hdr.packet.mode == MODE_TABLE && hdr.packet.detail != meta.sum_bits)) {
                        accepted = 0;
                    }
                }
                if (accepted == 0) {
                    refused.count(REFUSED_FOREIGN);
                }
            }
        }

        if (accepted == 1) {
            @atomic {
                locate_set();
                tag = meta.grant ++ hdr.packet.round;
                agreement = hdr.packet.flags[5:5] ++ hdr.packet.operation ++ hdr.packet.offset;

                // Find the round: the open one, a complete one that is still there, or none.
                progress.read(slot_state, meta.slot_index);
                if (slot_state[79:32] == meta.grant) {
                    complete = slot_state[31:0];
                }
                if (hdr.packet.round > complete) {
                    meta.verdict = VERDICT_EARLY;
                    meta.decided = 1;
                } else {
                    opened.read(slot_state, meta.set_index);
                    if (hdr.packet.round < complete) {
                        meta.serving = 1;
                        if (slot_state != tag) {
                            meta.verdict = VERDICT_STALE;
                            meta.decided = 1;
                        }
                    } else if (slot_state != tag) {
                        meta.opening = 1;
                        opened.write(meta.set_index, tag);
                    }
                }

                // Check that the packet contributes to the operation that the set holds.
                if (meta.decided == 0) {
                    agreed.read(agreement_before, meta.set_index);
                    if (meta.opening == 1) {
                        agreed.write(meta.set_index, agreement);
                    } else if (agreement != agreement_before) {
                        meta.verdict = VERDICT_NOTICED;
                        meta.decided = 1;
                    }
                }

                // Find out whether the contribution is there already.
                if (meta.decided == 0) {
                    if (meta.serving == 1) {
                        meta.verdict = VERDICT_SERVED;
                    } else {
                        contributors.read(before, meta.set_index);
                        if (meta.opening == 1) {
                            before = 0;
                        }
                        if ((before & meta.worker) != 0) {
                            meta.verdict = VERDICT_DUPLICATE;
                            meta.decided = 1;
                        } else {
                            before = before | meta.worker;
                            contributors.write(meta.set_index, before);
                            if (before == meta.everyone) {
                                meta.verdict = VERDICT_COMPLETED;
                                progress.write(meta.slot_index,
                                               meta.grant ++ (hdr.packet.round + 1));
                            }
                        }
                    }
                }

                // Replace the contribution by the result so far.
                if (meta.decided == 0) {
                    if (meta.opening == 1) {
                        keep_none();
                    } else {
                        keep_all();
                    }
                    if (meta.serving == 1) {
                        take_none();
                    } else {
                        take_all();
                    }

                    exponent.read(greatest, meta.set_index);
                    if (meta.serving == 0) {
                        if (meta.opening == 1 || hdr.packet.exponent > greatest) {
                            greatest = hdr.packet.exponent;
                        }
                        exponent.write(meta.set_index, greatest);
                    }

                    if (hdr.packet.mode == MODE_SPARSE) {
                        columns.read(columns_before, meta.set_index);
                        if (meta.opening == 1) {
                            columns_before = 0;
                        }
                        columns_now = columns_before;
                        if (meta.serving == 0) {
                            columns_now = columns_before | hdr.packet.detail[3:0];
                            columns.write(meta.set_index, columns_now);
                        }
                        WEIR_COMBINE_NEXT(0)
                        WEIR_COMBINE_NEXT(1)
                        WEIR_COMBINE_NEXT(2)
                        WEIR_COMBINE_NEXT(3)
                    }

                    if (hdr.packet.flags != FLAG_LEAD) {
                        WEIR_COMBINE_GROUP(0)
                        WEIR_COMBINE_GROUP(1)
                        WEIR_COMBINE_GROUP(2)
                        WEIR_COMBINE_GROUP(3)
                    }

                    // Words of table sums are packed, so their highest bit is not a sign, and the
                    // lease ensures that the sums fit; a maximum always fits.
                    overflow.read(wrapped_before, meta.set_index);
                    if (meta.opening == 1) {
                        wrapped_before = 0;
                    }
                    if (hdr.packet.mode == MODE_SUM || hdr.packet.mode == MODE_SPARSE) {
                        wrapped_before = wrapped_before | meta.wrapped[31:31];
                    }
                    overflow.write(meta.set_index, wrapped_before);
                }
            }

            by_lease.count((meta.index << 4) | (bit<32>)meta.verdict);

            // Send the answer, if there is one.
            if (meta.verdict == VERDICT_NOTICED) {
                strip_payload();
                tell_mismatch();
                turn_around(0);
                standard_metadata.egress_spec = standard_metadata.ingress_port;
            } else if (meta.verdict == VERDICT_SERVED || meta.verdict == VERDICT_COMPLETED) {
                if (hdr.packet.mode == MODE_SPARSE) {
                    payload = (bit<16>)meta.groups * NEXT_BYTES;
                    WEIR_TRIM_BLOCK(0)
                    WEIR_TRIM_BLOCK(1)
                    WEIR_TRIM_BLOCK(2)
                    WEIR_TRIM_BLOCK(3)
                    hdr.packet.detail = (bit<32>)columns_now;
                } else if (hdr.packet.flags != FLAG_LEAD) {
                    payload = (bit<16>)meta.groups * GROUP_BYTES;
                    if (hdr.packet.mode == MODE_TABLE) {
                        hdr.contributors.setValid();
                        hdr.contributors.workers = meta.everyone;
                        payload = payload + CONTRIBUTOR_BYTES;
                    }
                }
                hdr.packet.contributions = meta.workers;
                hdr.packet.exponent = greatest;
                hdr.packet.flags = hdr.packet.flags | FLAG_REPLY;
                if (wrapped_before == 1) {
                    hdr.packet.flags = hdr.packet.flags | FLAG_OVERFLOW;
                }
                turn_around(payload);
                if (meta.verdict == VERDICT_SERVED) {
                    standard_metadata.egress_spec = standard_metadata.ingress_port;
                } else {
                    standard_metadata.mcast_grp = meta.mcast_group;
                }
            }
        }
    }
}

control WeirEgress(inout headers_t hdr, inout metadata_t meta,
                   inout standard_metadata_t standard_metadata) {
    counter(1, CounterType.packets_and_bytes) lost;

    action drop() {
        mark_to_drop(standard_metadata);
    }

    action set_destination(bit<48> ethernet, bit<32> address, bit<16> port) {
        hdr.ethernet.destination = ethernet;
        hdr.ipv4.destination = address;
        hdr.udp.destination = port;
    }

    // One copy for each worker: worker w of the lease has number w + 1 in its multicast group.
    table replica {
        key = {
            meta.mcast_group: exact;
            standard_metadata.egress_rid: exact;
        }
        actions = { set_destination; drop; }
        default_action = drop();
        size = 4096;
    }

    action set_loss(bit<16> loss) {
        meta.loss = loss;
    }

    table inject_reply_loss {
        key = { standard_metadata.egress_port: exact; }
        actions = { set_loss; NoAction; }
        default_action = NoAction();
        size = 512;
    }

    apply {
        bit<16> dice;
        if (meta.reply == 1) {
            if (standard_metadata.egress_rid != 0) {
                replica.apply();
            }
            meta.loss = 0;
            inject_reply_loss.apply();
            random(dice, 16w0, 16w65535);
            if (dice < meta.loss) {
                lost.count(0);
                mark_to_drop(standard_metadata);
            }
        }
    }
}

V1Switch(WeirParser(), WeirVerifyChecksum(), WeirIngress(), WeirEgress(), WeirComputeChecksum(),
         WeirDeparser()) main;
