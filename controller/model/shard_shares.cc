// SPDX-License-Identifier: Apache-2.0
#include "controller/model/shard_shares.h"

#include <coin/Clp_C_Interface.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

namespace weir {
namespace {

// The part of the first programme's optimum that the second one may lose for shares that are more
// even.
constexpr double kEvenness = 1e-3;
constexpr double kUnbounded = std::numeric_limits<double>::max();

/// Costs of links and interfaces, all over the same scale.
class ShardCosts {
 public:
  explicit ShardCosts(const ShardNetwork& network) : network_(network), nodes_(size(network)) {
    out_.assign(nodes_, 0);
    in_.assign(nodes_, 0);
    for (size_t a = 0; a < nodes_; ++a) {
      for (size_t b = 0; b < nodes_; ++b) {
        if (a == b) continue;
        const bool first_out = b == (a == 0 ? 1 : 0);
        out_[a] = first_out ? Link(a, b) : std::min(out_[a], Link(a, b));
        in_[a] = first_out ? Link(b, a) : std::min(in_[a], Link(b, a));
      }
    }
  }
  static size_t size(const ShardNetwork& network) { return network.ranks.size(); }
  size_t nodes() const { return nodes_; }
  double ranks(size_t node) const { return network_.ranks[node]; }
  double Link(size_t from, size_t to) const { return network_.s_per_byte[from * nodes_ + to]; }
  double Out(size_t node) const { return out_[node]; }
  double In(size_t node) const { return in_[node]; }
  /// Whether the interfaces at both ends are faster, so that the link says something of its own.
  bool LinkMatters(size_t from, size_t to) const {
    return Link(from, to) > (1 + 1e-9) * std::max(Out(from), In(to));
  }

 private:
  const ShardNetwork& network_;
  const size_t nodes_;
  std::vector<double> out_, in_;
};

/// Calls `row(first, second)` for everything that may be the slowest: coefficients of the nodes'
/// shares in the seconds per byte of either phase.
template <typename Row>
void ForEachResource(const ShardCosts& costs, const Row& row) {
  const size_t n = costs.nodes();
  std::vector<double> first(n), second(n);
  for (size_t a = 0; a < n; ++a) {
    double others = 0;
    for (size_t b = 0; b < n; ++b) others += b == a ? 0 : costs.ranks(b);
    for (const bool out : {true, false}) {
      // The bytes that leave in one phase arrive in the other.
      std::vector<double>&own = out ? second : first, &foreign = out ? first : second;
      const double cost = out ? costs.Out(a) : costs.In(a);
      for (size_t b = 0; b < n; ++b) {
        foreign[b] = b == a ? 0 : cost * costs.ranks(a);
        own[b] = b == a ? cost * others : 0;
      }
      row(first, second);
    }
    for (size_t b = 0; b < n; ++b) {
      if (a == b || !costs.LinkMatters(a, b)) continue;
      std::fill(first.begin(), first.end(), 0);
      std::fill(second.begin(), second.end(), 0);
      first[b] = costs.Link(a, b) * costs.ranks(a);
      second[a] = costs.Link(a, b) * costs.ranks(b);
      row(first, second);
    }
  }
}

/// Rows of a linear programme as they are added; columns are made first.
class Programme {
 public:
  explicit Programme(int columns) : model_(Clp_newModel(), Clp_deleteModel), columns_(columns) {
    Clp_setLogLevel(model_.get(), 0);
    Clp_resize(model_.get(), 0, columns);
    for (int column = 0; column < columns; ++column) {
      Clp_columnLower(model_.get())[column] = 0;
      Clp_columnUpper(model_.get())[column] = kUnbounded;
      Clp_objective(model_.get())[column] = 0;
    }
  }
  /// lower <= sum of values <= upper.
  void AddRow(std::span<const double> values, double lower, double upper) {
    starts_.push_back(static_cast<CoinBigIndex>(values_.size()));
    for (size_t column = 0; column < values.size(); ++column) {
      if (values[column] == 0) continue;
      indices_.push_back(static_cast<int>(column));
      values_.push_back(values[column]);
    }
    lower_.push_back(lower);
    upper_.push_back(upper);
  }
  void SetObjective(int column, double value) { Clp_objective(model_.get())[column] = value; }
  /// The columns' values. kInternal: there is no optimum. Rows have to be added again before
  /// another call.
  StatusOr<std::vector<double>> Minimise() {
    starts_.push_back(static_cast<CoinBigIndex>(values_.size()));
    Clp_addRows(model_.get(), static_cast<int>(lower_.size()), lower_.data(), upper_.data(),
                starts_.data(), indices_.data(), values_.data());
    starts_.clear();
    indices_.clear();
    values_.clear();
    lower_.clear();
    upper_.clear();
    Clp_dual(model_.get(), 0);
    if (Clp_status(model_.get()) != 0) {
      return Internal(
          StrCat("shares of shards: expected an optimum of the linear programme, found ", "status ",
                 Clp_status(model_.get())));
    }
    const double* solution = Clp_primalColumnSolution(model_.get());
    return std::vector<double>(solution, solution + columns_);
  }
  double objective() const { return Clp_objectiveValue(model_.get()); }

 private:
  std::unique_ptr<Clp_Simplex, decltype(&Clp_deleteModel)> model_;
  int columns_;
  std::vector<CoinBigIndex> starts_;
  std::vector<int> indices_;
  std::vector<double> values_, lower_, upper_;
};

Status CheckNetwork(const ShardNetwork& network) {
  const size_t nodes = network.ranks.size();
  if (nodes < 1 || nodes > static_cast<size_t>(kShardNodesMax)) {
    return InvalidArgument(
        StrCat("shares of shards: expected 1 to ", kShardNodesMax, " nodes, found ", nodes));
  }
  if (network.s_per_byte.size() != nodes * nodes) {
    return InvalidArgument(StrCat("shares of shards: expected ", nodes * nodes,
                                  " costs of links, found ", network.s_per_byte.size()));
  }
  if (!(network.unpipelined >= 0 && network.unpipelined <= 1)) {
    return InvalidArgument(StrCat(
        "shares of shards: expected an unpipelined share of 0 to 1, found ", network.unpipelined));
  }
  for (size_t i = 0; i < nodes; ++i) {
    if (network.ranks[i] < 1) {
      return InvalidArgument(StrCat("shares of shards: expected at least 1 rank on node ", i,
                                    ", found ", network.ranks[i]));
    }
    for (size_t j = 0; j < nodes; ++j) {
      const double cost = network.s_per_byte[i * nodes + j];
      if (i == j || (std::isfinite(cost) && cost >= 0)) continue;
      return InvalidArgument(StrCat("shares of shards: expected a finite cost of at least 0 from ",
                                    "node ", i, " to node ", j, ", found ", cost));
    }
  }
  return OkStatus();
}

std::vector<double> EvenShares(const ShardNetwork& network) {
  double world = 0;
  for (const int ranks : network.ranks) world += ranks;
  std::vector<double> shares;
  for (const int ranks : network.ranks) shares.push_back(ranks / world);
  return shares;
}

}  // namespace

double ShardSecondsPerByte(const ShardNetwork& network, std::span<const double> shares) {
  double both_max = 0, first_max = 0, second_max = 0;
  const auto times = [&](std::span<const double> values) {
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) sum += values[i] * shares[i];
    return sum;
  };
  ForEachResource(ShardCosts(network), [&](const auto& first, const auto& second) {
    const double one = times(first), two = times(second);
    both_max = std::max(both_max, one + two);
    first_max = std::max(first_max, one);
    second_max = std::max(second_max, two);
  });
  return (1 - network.unpipelined) * both_max + network.unpipelined * (first_max + second_max);
}

StatusOr<std::vector<double>> BestShardShares(const ShardNetwork& network) {
  WEIR_RETURN_IF_ERROR(CheckNetwork(network));
  const size_t nodes = network.ranks.size();
  double scale = 0;
  for (size_t i = 0; i < nodes * nodes; ++i) {
    if (i % (nodes + 1) != 0) scale = std::max(scale, network.s_per_byte[i]);
  }
  if (!(scale > 0)) return EvenShares(network);
  // Costs near 1 keep clear of the solver's tolerances, which are absolute.
  std::vector<double> scaled(network.s_per_byte.begin(), network.s_per_byte.end());
  for (double& cost : scaled) cost /= scale;
  const ShardNetwork unit{scaled, network.ranks, network.unpipelined};

  // Columns: the nodes' shares, x, p1, p2, and the largest share of a rank.
  const size_t both = nodes, phase = nodes + 1, largest = nodes + 3, columns = nodes + 4;
  Programme programme(static_cast<int>(columns));
  std::vector<double> row(columns);
  const auto at_most = [&](std::span<const double> values, size_t bound) {
    std::fill(row.begin(), row.end(), 0);
    std::copy(values.begin(), values.end(), row.begin());
    row[bound] = -1;
    programme.AddRow(row, -kUnbounded, 0);
  };
  std::vector<double> sum(nodes);
  const ShardCosts costs(unit);
  ForEachResource(costs, [&](const auto& first, const auto& second) {
    for (size_t i = 0; i < nodes; ++i) sum[i] = first[i] + second[i];
    at_most(sum, both);
    at_most(first, phase);
    at_most(second, phase + 1);
  });
  std::fill(row.begin(), row.end(), 0);
  std::fill_n(row.begin(), nodes, 1);
  programme.AddRow(row, 1, 1);
  programme.SetObjective(static_cast<int>(both), 1 - network.unpipelined);
  for (const size_t column : {phase, phase + 1}) {
    programme.SetObjective(static_cast<int>(column), network.unpipelined);
  }
  WEIR_RETURN_IF_ERROR(programme.Minimise().status());

  std::fill(row.begin(), row.end(), 0);
  row[both] = 1 - network.unpipelined;
  row[phase] = row[phase + 1] = network.unpipelined;
  programme.AddRow(row, -kUnbounded, (1 + kEvenness) * programme.objective());
  for (size_t i = 0; i < nodes; ++i) {
    std::fill(row.begin(), row.end(), 0);
    row[i] = 1.0 / network.ranks[i];
    row[largest] = -1;
    programme.AddRow(row, -kUnbounded, 0);
  }
  for (const size_t column : {both, phase, phase + 1}) {
    programme.SetObjective(static_cast<int>(column), 0);
  }
  programme.SetObjective(static_cast<int>(largest), 1);
  WEIR_ASSIGN_OR_RETURN(std::vector<double> solution, programme.Minimise());

  // The solver keeps to bounds within a tolerance.
  solution.resize(nodes);
  double total = 0;
  for (double& share : solution) total += share = std::max(0.0, share);
  for (double& share : solution) share /= total;
  return solution;
}

}  // namespace weir
