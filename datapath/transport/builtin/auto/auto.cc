// SPDX-License-Identifier: Apache-2.0
// The auto transport: shared memory between ranks of one node, TCP between the others, in one mesh.
// The choice is made per pair while connecting and both ends agree on it (builtin/shm/attach.h).

#include <vector>

#include "datapath/transport/builtin/shm/shm.h"
#include "datapath/transport/builtin/tcp/options.h"
#include "datapath/transport/options.h"

namespace weir {
namespace {

std::span<const TransportOption> Options() {
  static const std::vector<TransportOption> options = [] {
    const std::span<const TransportOption> of_tcp = tcp::Options();
    std::vector<TransportOption> all(of_tcp.begin(), of_tcp.end());
    all.push_back(kNcclOption);
    return all;
  }();
  return options;
}

class AutoFactory : public TransportFactory {
 public:
  const TransportTraits& Traits() const override { return traits_; }
  StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options) const override {
    return shm::MakeMesh(options, shm::Otherwise::kTcp);
  }

 private:
  const TransportTraits traits_ = {
      .name = "auto", .lossless = true, .crosses_hosts = true, .options = Options()};
};

}  // namespace

void RegisterAuto(Registry<TransportFactory>& registry, uint8_t wire_id) {
  registry.Add(wire_id, std::make_unique<AutoFactory>());
}

}  // namespace weir
