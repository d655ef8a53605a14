// SPDX-License-Identifier: Apache-2.0
// Macros for repetition, because P4 has no loops.

#ifndef WEIR_WORDS_P4_
#define WEIR_WORDS_P4_

// F(G, i) for the sixteen words of group G.
#define WEIR_FOR_WORDS(F, G) \
    F(G, 0) F(G, 1) F(G, 2) F(G, 3) F(G, 4) F(G, 5) F(G, 6) F(G, 7) \
    F(G, 8) F(G, 9) F(G, 10) F(G, 11) F(G, 12) F(G, 13) F(G, 14) F(G, 15)

#endif
