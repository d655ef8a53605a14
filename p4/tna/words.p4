// SPDX-License-Identifier: Apache-2.0
// State of the lanes: sixteen registers of 32 bits, one entry per slot and set. A table picks the
// one read-modify-write that a packet gets; four are as many as a register can have.
//
// Two indices of THC become a word of two sums by one table each, of 256 entries a lease: octet o
// of lease i is levels[o / 16] * 65536 + levels[o % 16].

#include "../include/words.p4"

#define WEIR_WORD(G, I)                                                                  \
    Register<bit<32>, bit<32>>(SETS) word_##I;                                           \
    RegisterAction<bit<32>, bit<32>, bit<32>>(word_##I) set_##I = {                      \
        void apply(inout bit<32> value, out bit<32> result) {                            \
            value = hdr.group_##G.word_##I;                                              \
            result = value;                                                              \
        }                                                                                \
    };                                                                                   \
    RegisterAction<bit<32>, bit<32>, bit<32>>(word_##I) add_##I = {                      \
        void apply(inout bit<32> value, out bit<32> result) {                            \
            value = value + hdr.group_##G.word_##I;                                      \
            result = value;                                                              \
        }                                                                                \
    };                                                                                   \
    RegisterAction<bit<32>, bit<32>, bit<32>>(word_##I) raise_##I = {                    \
        void apply(inout bit<32> value, out bit<32> result) {                            \
            value = max(value, hdr.group_##G.word_##I);                                  \
            result = value;                                                              \
        }                                                                                \
    };                                                                                   \
    RegisterAction<bit<32>, bit<32>, bit<32>>(word_##I) get_##I = {                      \
        void apply(inout bit<32> value, out bit<32> result) {                            \
            result = value;                                                              \
        }                                                                                \
    };                                                                                   \
    action run_set_##I() { hdr.group_##G.word_##I = set_##I.execute(meta.set_index); }     \
    action run_add_##I() { hdr.group_##G.word_##I = add_##I.execute(meta.set_index); }     \
    action run_raise_##I() { hdr.group_##G.word_##I = raise_##I.execute(meta.set_index); } \
    action run_get_##I() { hdr.group_##G.word_##I = get_##I.execute(meta.set_index); }     \
    table words_##I {                                                                    \
        key = { meta.words: exact; }                                                     \
        actions = { run_set_##I; run_add_##I; run_raise_##I; run_get_##I; NoAction; }    \
        const default_action = NoAction();                                               \
        const entries = {                                                                \
            WORDS_SET: run_set_##I();                                                    \
            WORDS_ADD: run_add_##I();                                                    \
            WORDS_RAISE: run_raise_##I();                                                \
            WORDS_GET: run_get_##I();                                                    \
        }                                                                                \
        size = 4;                                                                        \
    }                                                                                    \
    action expand_word_##I(bit<32> word) { hdr.group_##G.word_##I = word; }                \
    table expand_##I {                                                                   \
        key = {                                                                          \
            meta.index: exact;                                                           \
            hdr.indices_16_##G.word_##I: exact;                                          \
        }                                                                                \
        actions = { expand_word_##I; NoAction; }                                         \
        default_action = NoAction();                                                     \
        size = 4096;                                                                     \
    }

#define WEIR_APPLY_EXPAND(G, I) expand_##I.apply();
#define WEIR_APPLY_WORD(G, I) words_##I.apply();
