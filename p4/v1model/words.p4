// SPDX-License-Identifier: Apache-2.0
// State of the lanes: sixty-four registers of 32 bits, one entry per slot and set, in four groups.
// Each is read once and written once per packet, in one action. `G` and `I` are digits.

#include "../include/words.p4"

#define WEIR_WORD_REGISTER(G, I) register<bit<32>>(SETS) word_##G##_##I;

// keep and take are all ones or zero: the first contribution overwrites, later ones add, and a
// packet that only reads the state takes nothing. If two numbers of one sign have a sum of the
// other sign, it did not fit.
#define WEIR_ADD_WORD(G, I)                                                         \
    word_##G##_##I.read(kept, meta.set_index);                                      \
    kept = kept & meta.keep_##G;                                                    \
    taken = hdr.group_##G.word_##I & meta.take_##G;                                 \
    result = kept + taken;                                                          \
    meta.wrapped = meta.wrapped | (~(kept ^ taken) & (kept ^ result));              \
    word_##G##_##I.write(meta.set_index, result);                                   \
    hdr.group_##G.word_##I = result;

#define WEIR_RAISE_WORD(G, I)                                                       \
    word_##G##_##I.read(kept, meta.set_index);                                      \
    kept = kept & meta.keep_##G;                                                    \
    taken = hdr.group_##G.word_##I & meta.take_##G;                                 \
    result = (kept > taken ? kept : taken);                                         \
    word_##G##_##I.write(meta.set_index, result);                                   \
    hdr.group_##G.word_##I = result;

// A level of the table of THC; its sixteen levels are in the lease's entry.
#define WEIR_LEVEL(INDEX) ((bit<8>)(meta.levels >> ((bit<8>)(INDEX) << 3)))

#define WEIR_EXPAND_8(G, I)                                                         \
    hdr.group_##G.word_##I = WEIR_LEVEL(hdr.indices_8_##G.word_##I[15:12]) ++       \
                             WEIR_LEVEL(hdr.indices_8_##G.word_##I[11:8]) ++        \
                             WEIR_LEVEL(hdr.indices_8_##G.word_##I[7:4]) ++         \
                             WEIR_LEVEL(hdr.indices_8_##G.word_##I[3:0]);

#define WEIR_EXPAND_16(G, I)                                                        \
    hdr.group_##G.word_##I = 8w0 ++ WEIR_LEVEL(hdr.indices_16_##G.word_##I[7:4]) ++ \
                             8w0 ++ WEIR_LEVEL(hdr.indices_16_##G.word_##I[3:0]);

#define WEIR_GROUP(G)                                                               \
    WEIR_FOR_WORDS(WEIR_WORD_REGISTER, G)                                           \
    action add_##G() {                                                              \
        bit<32> kept;                                                               \
        bit<32> taken;                                                              \
        bit<32> result;                                                             \
        WEIR_FOR_WORDS(WEIR_ADD_WORD, G)                                            \
    }                                                                               \
    action raise_##G() {                                                            \
        bit<32> kept;                                                               \
        bit<32> taken;                                                              \
        bit<32> result;                                                             \
        WEIR_FOR_WORDS(WEIR_RAISE_WORD, G)                                          \
    }                                                                               \
    action expand_8_##G() {                                                         \
        WEIR_FOR_WORDS(WEIR_EXPAND_8, G)                                            \
    }                                                                               \
    action expand_16_##G() {                                                        \
        WEIR_FOR_WORDS(WEIR_EXPAND_16, G)                                           \
    }

// For use in apply: group G of this packet, if it has one, becomes the group of the result.
#define WEIR_COMBINE_GROUP(G)                                                       \
    if (meta.groups > G) {                                                          \
        if (!hdr.group_##G.isValid()) {                                             \
            hdr.group_##G.setValid();                                               \
        }                                                                           \
        if (hdr.packet.mode == MODE_TABLE) {                                        \
            if (meta.sum_bits == 8) {                                               \
                expand_8_##G();                                                     \
                hdr.indices_8_##G.setInvalid();                                     \
            } else {                                                                \
                expand_16_##G();                                                    \
                hdr.indices_16_##G.setInvalid();                                    \
            }                                                                       \
        }                                                                           \
        if (hdr.packet.mode == MODE_MAX) {                                          \
            raise_##G();                                                            \
        } else {                                                                    \
            add_##G();                                                              \
        }                                                                           \
    }

// Mode 4, column G: whether the packet has its block, and the least of the next blocks. A round that
// opens without a block begins with zeros, to which later blocks are added.
#define WEIR_COMBINE_NEXT(G)                                                        \
    if (meta.groups > G) {                                                          \
        next_block_##G.read(least, meta.set_index);                                 \
        if (meta.serving == 0) {                                                    \
            if (meta.opening == 1 || hdr.next_##G.block < least) {                  \
                least = hdr.next_##G.block;                                         \
            }                                                                       \
            next_block_##G.write(meta.set_index, least);                            \
            if (hdr.packet.detail[G:G] == 0) {                                      \
                meta.take_##G = 0;                                                  \
            }                                                                       \
        }                                                                           \
        hdr.next_##G.block = least;                                                 \
    }

// A block that no worker has is left out of the reply.
#define WEIR_TRIM_BLOCK(G)                                                          \
    if (columns_now[G:G] == 0) {                                                    \
        hdr.group_##G.setInvalid();                                                 \
    } else {                                                                        \
        payload = payload + GROUP_BYTES;                                            \
    }
