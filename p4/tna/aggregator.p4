// SPDX-License-Identifier: Apache-2.0
// An aggregator for Tofino (TNA): sixteen words a packet, up to 32 workers; the same protocol as
// p4/v1model, with the same state cut into registers of at most 32 bits, of which each gets one
// RegisterAction per pass. p4/README.md has the stages. No compiler for Tofino has seen it.
//
// The one thing that a single pass cannot do is to count a round as complete before the next round
// is let in, since the count is read first and known last. So the packet that completes a round
// becomes the result, passes ingress again through the recirculation port, and is multicast after
// it has moved `progress` on. Until then, packets of the next round are early, which no worker's
// are. When the result is lost on that way, any worker's repetition of its contribution sends it
// again.
//
// The switch cannot distinguish the state of different grants here: before a lease's `terms` are
// added, `progress` and `opened` of its slots must be cleared.

#include <core.p4>
#include <tna.p4>

#include "../include/parameters.p4"
#include "../include/headers.p4"
#include "parser.p4"
#include "words.p4"

control WeirIngress(inout headers_t hdr, inout metadata_t meta,
                    in ingress_intrinsic_metadata_t ig_intr_md,
                    in ingress_intrinsic_metadata_from_parser_t ig_prsr_md,
                    inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
                    inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    Counter<bit<64>, bit<32>>(COUNTERS, CounterType_t.PACKETS_AND_BYTES) by_lease;
    Counter<bit<64>, bit<32>>(3, CounterType_t.PACKETS_AND_BYTES) refused;

    // By slot: the number of complete rounds.
    Register<bit<32>, bit<32>>(SLOTS, 0) progress;
    RegisterAction<bit<32>, bit<32>, bit<32>>(progress) read_progress = {
        void apply(inout bit<32> value, out bit<32> result) {
            result = value;
        }
    };
    RegisterAction<bit<32>, bit<32>, bit<32>>(progress) advance_progress = {
        void apply(inout bit<32> value) {
            value = meta.round_tag;
        }
    };

    // By slot and set, as all registers below: the round that opened it last, plus 1.
    Register<bit<32>, bit<32>>(SETS, 0) opened;
    RegisterAction<bit<32>, bit<32>, bit<32>>(opened) open_round = {
        void apply(inout bit<32> value, out bit<32> result) {
            result = value;
            value = meta.round_tag;
        }
    };
    RegisterAction<bit<32>, bit<32>, bit<32>>(opened) look_round = {
        void apply(inout bit<32> value, out bit<32> result) {
            result = value;
        }
    };

    // Operation, offset and flags (the lead bit) of the first contribution.
    Register<bit<32>, bit<32>>(SETS) agreed_operation;
    RegisterAction<bit<32>, bit<32>, bit<32>>(agreed_operation) set_operation = {
        void apply(inout bit<32> value, out bit<32> result) {
            value = hdr.packet.operation;
            result = value;
        }
    };
    RegisterAction<bit<32>, bit<32>, bit<32>>(agreed_operation) get_operation = {
        void apply(inout bit<32> value, out bit<32> result) {
            result = value;
        }
    };
    Register<bit<32>, bit<32>>(SETS) agreed_offset;
    RegisterAction<bit<32>, bit<32>, bit<32>>(agreed_offset) set_offset = {
        void apply(inout bit<32> value, out bit<32> result) {
            value = hdr.packet.offset;
            result = value;
        }
    };
    RegisterAction<bit<32>, bit<32>, bit<32>>(agreed_offset) get_offset = {
        void apply(inout bit<32> value, out bit<32> result) {
            result = value;
        }
    };
    Register<bit<8>, bit<32>>(SETS) agreed_flags;
    RegisterAction<bit<8>, bit<32>, bit<8>>(agreed_flags) set_flags = {
        void apply(inout bit<8> value, out bit<8> result) {
            value = hdr.packet.flags;
            result = value;
        }
    };
    RegisterAction<bit<8>, bit<32>, bit<8>>(agreed_flags) get_flags = {
        void apply(inout bit<8> value, out bit<8> result) {
            result = value;
        }
    };

    Register<bit<32>, bit<32>>(SETS) contributors;
    RegisterAction<bit<32>, bit<32>, bit<32>>(contributors) set_contributors = {
        void apply(inout bit<32> value, out bit<32> result) {
            value = meta.worker;
            result = 0;
        }
    };
    RegisterAction<bit<32>, bit<32>, bit<32>>(contributors) add_contributor = {
        void apply(inout bit<32> value, out bit<32> result) {
            result = value;
            value = value | meta.worker;
        }
    };

    Register<bit<16>, bit<32>>(SETS) exponent;
    RegisterAction<bit<16>, bit<32>, bit<16>>(exponent) set_exponent = {
        void apply(inout bit<16> value, out bit<16> result) {
            value = hdr.packet.exponent;
            result = value;
        }
    };
    RegisterAction<bit<16>, bit<32>, bit<16>>(exponent) raise_exponent = {
        void apply(inout bit<16> value, out bit<16> result) {
            value = max(value, hdr.packet.exponent);
            result = value;
        }
    };
    RegisterAction<bit<16>, bit<32>, bit<16>>(exponent) get_exponent = {
        void apply(inout bit<16> value, out bit<16> result) {
            result = value;
        }
    };

    // Mode 4, with one column: whether some worker had a block, and the least next block.
    Register<bit<8>, bit<32>>(SETS) columns;
    RegisterAction<bit<8>, bit<32>, bit<8>>(columns) set_columns = {
        void apply(inout bit<8> value, out bit<8> result) {
            value = hdr.packet.detail[7:0];
            result = 0;
        }
    };
    RegisterAction<bit<8>, bit<32>, bit<8>>(columns) add_columns = {
        void apply(inout bit<8> value, out bit<8> result) {
            result = value;
            value = value | hdr.packet.detail[7:0];
        }
    };
    RegisterAction<bit<8>, bit<32>, bit<8>>(columns) get_columns = {
        void apply(inout bit<8> value, out bit<8> result) {
            result = value;
        }
    };
    Register<bit<32>, bit<32>>(SETS) next_block;
    RegisterAction<bit<32>, bit<32>, bit<32>>(next_block) set_next = {
        void apply(inout bit<32> value, out bit<32> result) {
            value = hdr.next_0.block;
            result = value;
        }
    };
    RegisterAction<bit<32>, bit<32>, bit<32>>(next_block) lower_next = {
        void apply(inout bit<32> value, out bit<32> result) {
            value = min(value, hdr.next_0.block);
            result = value;
        }
    };
    RegisterAction<bit<32>, bit<32>, bit<32>>(next_block) get_next = {
        void apply(inout bit<32> value, out bit<32> result) {
            result = value;
        }
    };

    WEIR_FOR_WORDS(WEIR_WORD, 0)

    action drop() {
        ig_dprsr_md.drop_ctl = 1;
    }

    action to_port(bit<9> port) {
        ig_tm_md.ucast_egress_port = port;
    }

    table forward {
        key = { hdr.ethernet.destination: exact; }
        actions = { to_port; drop; }
        default_action = drop();
        size = 1024;
    }

    table own_address {
        key = {
            hdr.ipv4.destination: exact;
            hdr.udp.destination: exact;
        }
        actions = { NoAction; }
        default_action = NoAction();
        size = 64;
    }

    // The shapes that packets may have, lengths and fields that are 0 included.
    table shape {
        key = {
            hdr.packet.mode: exact;
            hdr.packet.flags: exact;
            hdr.packet.lanes: exact;
            hdr.packet.columns: exact;
            hdr.packet.contributions: exact;
            hdr.packet.detail: exact;
            hdr.packet.checksum: exact;
            hdr.udp.length: exact;
            hdr.ipv4.total_length: exact;
        }
        actions = { NoAction; }
        const default_action = NoAction();
        const entries = {
            (MODE_SUM, 0, 16, 0, 0, 0, 0, 120, 140): NoAction();
            (MODE_SUM, FLAG_LEAD, 16, 0, 0, 0, 0, 56, 76): NoAction();
            (MODE_MAX, 0, 16, 0, 0, 0, 0, 120, 140): NoAction();
            (MODE_TABLE, 0, 32, 0, 0, 16, 0, 72, 92): NoAction();
            (MODE_SPARSE, 0, 16, 1, 0, 0, 0, 60, 80): NoAction();
            (MODE_SPARSE, 0, 16, 1, 0, 1, 0, 124, 144): NoAction();
        }
        size = 8;
    }

    action set_terms(bit<32> index, bit<32> first_slot, bit<16> slots, bit<16> workers,
                     bit<32> everyone, bit<16> mcast_group) {
        meta.index = index;
        meta.first_slot = first_slot;
        meta.slots = slots;
        meta.workers = workers;
        meta.everyone = everyone;
        meta.mcast_group = mcast_group;
    }

    table terms {
        key = {
            hdr.packet.lease: exact;
            hdr.packet.epoch: exact;
            hdr.packet.cookie: exact;
            hdr.packet.mode: exact;  // which decides the lanes
        }
        actions = { set_terms; NoAction; }
        default_action = NoAction();
        size = 64;
    }

    action set_worker(bit<32> worker) {
        meta.worker = worker;
    }

    table member {
        key = {
            ig_intr_md.ingress_port: exact;
            hdr.ipv4.source: exact;
            hdr.udp.source: exact;
            hdr.packet.lease: exact;
            hdr.packet.epoch: exact;
        }
        actions = { set_worker; NoAction; }
        default_action = NoAction();
        size = 2048;
    }

    action measure_room() {
        meta.room = meta.slots |-| hdr.packet.slot;
        meta.slot_index = meta.first_slot + (bit<32>)hdr.packet.slot;
        meta.round_tag = hdr.packet.round + 1;
    }

    action locate_set() {
        meta.set_index = meta.slot_index[30:0] ++ hdr.packet.round[0:0];
    }

    action compare_agreement() {
        meta.operation_before = meta.operation_before ^ hdr.packet.operation;
        meta.offset_before = meta.offset_before ^ hdr.packet.offset;
        meta.flags_before = meta.flags_before ^ hdr.packet.flags;
    }

    action note_mismatch() {
        meta.verdict = VERDICT_NOTICED;
        meta.decided = 1;
    }

    action compare_contributors() {
        meta.present = meta.before & meta.worker;
        meta.before = meta.before | meta.worker;
    }

    action turn_around() {
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
        hdr.udp.checksum = 0;
        ig_tm_md.ucast_egress_port = ig_intr_md.ingress_port;
    }

    action tell_mismatch() {
        hdr.packet.flags = FLAG_REPLY | FLAG_NOTICE;
        hdr.packet.exponent = 0;
        hdr.packet.detail = NOTICE_MISMATCH;
        hdr.contributors.setInvalid();
        hdr.next_0.setInvalid();
        hdr.indices_16_0.setInvalid();
        hdr.group_0.setInvalid();
    }

    action set_lengths(bit<16> payload) {
        hdr.udp.length = UDP_HEADER_BYTES + PACKET_HEADER_BYTES + payload;
        hdr.ipv4.total_length = IPV4_HEADER_BYTES + UDP_HEADER_BYTES + PACKET_HEADER_BYTES +
                                payload;
    }

    action name_contributors() {
        hdr.contributors.setValid();
        hdr.contributors.workers = 32w0 ++ meta.everyone;
        hdr.indices_16_0.setInvalid();
    }

    action tell_result() {
        hdr.packet.flags = hdr.packet.flags | FLAG_REPLY;
        hdr.packet.contributions = meta.workers;
        hdr.packet.exponent = meta.greatest;
    }

    action recirculate() {
        hdr.recirculated.setValid();
        hdr.recirculated.slot_index = meta.slot_index;
        hdr.recirculated.mcast_group = meta.mcast_group;
        ig_tm_md.ucast_egress_port = RECIRCULATION_PORT;
        ig_tm_md.bypass_egress = 1;
    }

    action deliver() {
        ig_tm_md.mcast_grp_a = hdr.recirculated.mcast_group;
        hdr.recirculated.setInvalid();
    }

    apply {
        bit<1> own = 0;
        meta.accepted = 0;
        meta.delivering = 0;
        meta.opening = 0;
        meta.serving = 0;
        meta.decided = 0;
        meta.reply = 0;
        meta.verdict = VERDICT_ADDED;
        meta.words = WORDS_KEEP;
        meta.greatest = 0;
        meta.room = 0;

        if (hdr.recirculated.isValid()) {
            // The second pass: only the switch itself can send to this port.
            meta.slot_index = hdr.recirculated.slot_index;
            meta.round_tag = hdr.packet.round + 1;
            own = 1;
            meta.delivering = 1;
            deliver();
        } else if (hdr.udp.isValid()) {
            if (own_address.apply().hit) {
                own = 1;
                if (hdr.packet.isValid() && ig_prsr_md.parser_err == 0) {
                    if (shape.apply().hit) {
                        if (terms.apply().hit) {
                            if (member.apply().hit) {
                                measure_room();
                            }
                        }
                        if (meta.room == 0) {
                            refused.count(REFUSED_FOREIGN);
                        } else {
                            locate_set();
                            meta.accepted = 1;
                        }
                    } else {
                        refused.count(REFUSED_MALFORMED);
                    }
                } else {
                    refused.count(REFUSED_MALFORMED);
                }
                if (meta.accepted == 0) {
                    drop();
                }
            }
        }
        if (own == 0) {
            forward.apply();
        }

        // Find the round. Each packet executes one of the two actions on `progress`.
        if (meta.delivering == 1) {
            advance_progress.execute(meta.slot_index);
        } else if (meta.accepted == 1) {
            meta.complete = read_progress.execute(meta.slot_index);
            meta.ahead = hdr.packet.round - meta.complete;
            if (meta.ahead == 0) {
                meta.tag_before = open_round.execute(meta.set_index);
                if (meta.tag_before != meta.round_tag) {
                    meta.opening = 1;
                }
            } else if (meta.ahead[31:31] == 1) {
                meta.serving = 1;
                meta.tag_before = look_round.execute(meta.set_index);
                if (meta.tag_before != meta.round_tag) {
                    meta.verdict = VERDICT_STALE;
                    meta.decided = 1;
                }
            } else {
                meta.verdict = VERDICT_EARLY;
                meta.decided = 1;
            }

            // Check that the packet contributes to the operation that the set holds.
            if (meta.decided == 0) {
                if (meta.opening == 1) {
                    meta.operation_before = set_operation.execute(meta.set_index);
                    meta.offset_before = set_offset.execute(meta.set_index);
                    meta.flags_before = set_flags.execute(meta.set_index);
                } else {
                    meta.operation_before = get_operation.execute(meta.set_index);
                    meta.offset_before = get_offset.execute(meta.set_index);
                    meta.flags_before = get_flags.execute(meta.set_index);
                }
                compare_agreement();
                // The conditions are tested one by one: a condition over all three is wider than a
                // gateway.
                if (meta.operation_before != 0) {
                    note_mismatch();
                }
                if (meta.offset_before != 0) {
                    note_mismatch();
                }
                if (meta.flags_before != 0) {
                    note_mismatch();
                }
            }

            // Find out whether the contribution is there already.
            if (meta.decided == 0) {
                if (meta.serving == 1) {
                    meta.verdict = VERDICT_SERVED;
                    meta.words = WORDS_GET;
                } else {
                    if (meta.opening == 1) {
                        meta.before = set_contributors.execute(meta.set_index);
                    } else {
                        meta.before = add_contributor.execute(meta.set_index);
                    }
                    compare_contributors();
                    meta.missing = meta.before ^ meta.everyone;
                    if (meta.missing == 0) {
                        meta.verdict = VERDICT_COMPLETED;
                    }
                    if (meta.present != 0) {
                        // The result of a complete round did not come back, so it is sent again.
                        meta.words = WORDS_GET;
                        if (meta.missing != 0) {
                            meta.verdict = VERDICT_DUPLICATE;
                            meta.words = WORDS_KEEP;
                            meta.decided = 1;
                        }
                    } else if (meta.opening == 1) {
                        meta.words = WORDS_SET;
                    } else if (hdr.packet.mode == MODE_MAX) {
                        meta.words = WORDS_RAISE;
                    } else {
                        meta.words = WORDS_ADD;
                    }
                }
            }

            // Replace the contribution by the result so far.
            if (meta.decided == 0) {
                if (meta.opening == 1) {
                    meta.greatest = set_exponent.execute(meta.set_index);
                } else if (meta.words == WORDS_GET) {
                    meta.greatest = get_exponent.execute(meta.set_index);
                } else {
                    meta.greatest = raise_exponent.execute(meta.set_index);
                }
                if (hdr.packet.mode == MODE_SPARSE) {
                    if (meta.opening == 1) {
                        meta.columns_before = set_columns.execute(meta.set_index);
                        meta.least = set_next.execute(meta.set_index);
                    } else if (meta.words == WORDS_GET) {
                        meta.columns_before = get_columns.execute(meta.set_index);
                        meta.least = get_next.execute(meta.set_index);
                    } else {
                        meta.columns_before = add_columns.execute(meta.set_index);
                        meta.least = lower_next.execute(meta.set_index);
                    }
                    hdr.next_0.block = meta.least;
                    meta.columns_now = meta.columns_before;
                    if (meta.words == WORDS_GET) {
                        if (meta.columns_before == 0) {
                            meta.words = WORDS_KEEP;
                        }
                    } else {
                        meta.columns_now = meta.columns_before | hdr.packet.detail[7:0];
                        if (hdr.packet.detail == 0) {
                            meta.words = WORDS_GET;
                            if (meta.columns_before == 0) {
                                meta.words = WORDS_KEEP;
                            }
                        } else if (meta.columns_before == 0) {
                            meta.words = WORDS_SET;
                        }
                    }
                } else if (hdr.packet.flags == FLAG_LEAD) {
                    meta.words = WORDS_KEEP;
                }
                if (!hdr.group_0.isValid() && meta.words != WORDS_KEEP) {
                    hdr.group_0.setValid();
                }
                if (hdr.packet.mode == MODE_TABLE) {
                    WEIR_FOR_WORDS(WEIR_APPLY_EXPAND, 0)
                }
                WEIR_FOR_WORDS(WEIR_APPLY_WORD, 0)
            }
            by_lease.count((meta.index << 4) | (bit<32>)meta.verdict);

            // Send the answer, if there is one.
            if (meta.verdict == VERDICT_NOTICED) {
                tell_mismatch();
                set_lengths(0);
                turn_around();
            } else if (meta.verdict == VERDICT_SERVED || meta.verdict == VERDICT_COMPLETED) {
                if (hdr.packet.mode == MODE_TABLE) {
                    name_contributors();
                    set_lengths(GROUP_BYTES + CONTRIBUTOR_BYTES);
                } else if (hdr.packet.mode == MODE_SPARSE) {
                    hdr.packet.detail = (bit<32>)meta.columns_now;
                    if (meta.columns_now == 0) {
                        hdr.group_0.setInvalid();
                        set_lengths(NEXT_BYTES);
                    } else {
                        set_lengths(NEXT_BYTES + GROUP_BYTES);
                    }
                }
                tell_result();
                turn_around();
                if (meta.verdict == VERDICT_COMPLETED) {
                    recirculate();
                }
            } else {
                drop();
            }
        }
    }
}

control WeirEgress(inout egress_headers_t hdr, inout egress_metadata_t meta,
                   in egress_intrinsic_metadata_t eg_intr_md,
                   in egress_intrinsic_metadata_from_parser_t eg_prsr_md,
                   inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md,
                   inout egress_intrinsic_metadata_for_output_port_t eg_oport_md) {
    action drop() {
        eg_dprsr_md.drop_ctl = 1;
    }

    action set_destination(bit<48> ethernet, bit<32> address, bit<16> port) {
        meta.reply = 1;
        hdr.ethernet.destination = ethernet;
        hdr.ipv4.destination = address;
        hdr.udp.destination = port;
    }

    // The number of a copy is 64 times the lease's index, plus the worker's number, plus 1.
    table replica {
        key = { eg_intr_md.egress_rid: exact; }
        actions = { set_destination; drop; }
        default_action = drop();
        size = 2048;
    }

    apply {
        meta.reply = 0;
        if (eg_intr_md.egress_rid != 0) {
            replica.apply();
        }
    }
}

Pipeline(WeirIngressParser(), WeirIngress(), WeirIngressDeparser(), WeirEgressParser(),
         WeirEgress(), WeirEgressDeparser()) pipe;

Switch(pipe) main;
