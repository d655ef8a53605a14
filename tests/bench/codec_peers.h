// SPDX-License-Identifier: Apache-2.0
#pragma once
// The calls that a PyTorch user would make instead of a codec, timed in a separate process
// (codec_peers.py).

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "datapath/codec/codec.h"
#include "datapath/codec/codec_names.h"
#include "tests/bench/peer_process.h"

namespace weir {

/// The PyTorch process for tensors of one size; without one, no call has a peer. Not thread-safe.
class CodecPeers {
 public:
  CodecPeers(bool wanted, size_t elements) {
    if (!wanted) return;
    process_.emplace(
        std::vector<std::string>{"/usr/bin/python3", WEIR_CODEC_PEERS, std::to_string(elements)});
    if (process_->Receive() == "ready") return;
    std::fprintf(stderr, "no peers: codec_peers.py did not start (is torch there?)\n");
    process_.reset();
  }

  struct Answer {
    std::string name;  // PyTorch's call; empty: PyTorch has none
    double seconds = 0;
  };
  /// Times the peer of a codec once; its first call is warm-up and not counted. Blocks.
  Answer Run(const CodecTraits& traits, const CodecParams& params, double bits_per_element) {
    if (!process_.has_value()) return {};
    std::ostringstream request;
    request << traits.name << '\t' << NameOf(traits.error_model) << '\t'
            << (traits.uses_ratio ? params.ratio : 1) << '\t' << params.bits << '\t'
            << bits_per_element << '\t' << traits.rounds;
    if (!process_->Send(request.str())) return {};
    const std::string line = process_->Receive();
    const size_t tab = line.find('\t');
    if (tab == std::string::npos || tab == 0) return {};
    return {line.substr(0, tab), std::strtod(line.c_str() + tab, nullptr)};
  }

 private:
  std::optional<PeerProcess> process_;
};

}  // namespace weir
