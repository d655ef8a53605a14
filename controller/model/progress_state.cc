// SPDX-License-Identifier: Apache-2.0
// ProgressModel as text, so that a controller that restarts goes on where the former one was.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "controller/model/progress.h"
#include "datapath/base/status.h"

namespace weir {
namespace {

constexpr std::string_view kForm = "progress1";  // another form needs another name
constexpr double kCountMax = 1e15;

/// The numbers of a text that are separated by single spaces.
class NumberReader {
 public:
  explicit NumberReader(std::string_view text) : text_(text) {}
  void operator()(double& value) {
    if (!ok_ || text_.empty() || text_[0] != ' ') return Fail();
    const auto [end, error] = std::from_chars(text_.data() + 1, text_.data() + text_.size(), value);
    if (error != std::errc() || !std::isfinite(value)) return Fail();
    text_.remove_prefix(static_cast<size_t>(end - text_.data()));
  }
  bool done() const { return ok_ && text_.empty(); }

 private:
  void Fail() { ok_ = false; }
  std::string_view text_;
  bool ok_ = true;
};

template <typename Integer, typename Visit>
void VisitCount(Integer& value, const Visit& visit) {
  double number = static_cast<double>(value);
  visit(number);
  value = static_cast<Integer>(number >= 0 && number <= kCountMax ? number : 0);
}

}  // namespace

// Saving passes a copy, so one list of members serves both ways.
template <typename Visit>
void ProgressModel::VisitNumbers(const Visit& visit) {
  const auto visit_filter = [&](Filter& filter) {
    for (double* value : {&filter.level, &filter.slope, &filter.level_variance, &filter.covariance,
                          &filter.slope_variance, &filter.noise, &filter.log_likelihood}) {
      visit(*value);
    }
  };
  const auto visit_all = [&](auto& values) {
    for (double& value : values) visit(value);
  };
  for (Filter& filter : filters_) visit_filter(filter);
  visit_all(clocks_);
  visit_all(advances_);
  for (double* value : {&reference_gain_, &degrees_, &smoothed_gain_, &gain_seen_}) visit(*value);
  VisitCount(losses_, visit);
  VisitCount(updates_, visit);
  VisitCount(outliers_, visit);
  VisitCount(informed_, visit);
  bool compares = frozen_.has_value();
  VisitCount(compares, visit);
  if (!compares) return frozen_.reset();
  if (!frozen_.has_value()) frozen_.emplace(Frozen{});
  for (Filter& filter : frozen_->filters) visit_filter(filter);
  visit_all(frozen_->clocks);
  visit(frozen_->drift);
  visit_all(frozen_->residuals);
  VisitCount(frozen_->losses, visit);
}

// Logarithms and square roots are taken of these numbers.
bool ProgressModel::IsSane() const {
  const auto sane = [](const Filter& filter) {
    const double product = filter.level_variance * filter.slope_variance;
    return filter.noise > 0 && filter.level_variance >= 0 && filter.slope_variance >= 0 &&
           filter.covariance * filter.covariance <= 1.01 * product + 1e-12;
  };
  const auto positive = [](double value) { return value > 0; };
  const auto share = [](double value) { return value > 0 && value <= 1; };
  bool all =
      std::all_of(filters_.begin(), filters_.end(), sane) &&
      std::all_of(clocks_.begin(), clocks_.end(), positive) &&
      std::all_of(advances_.begin(), advances_.end(), [](double value) { return value >= 0; }) &&
      degrees_ > 1 && share(reference_gain_) && share(smoothed_gain_) && share(gain_seen_);
  if (frozen_.has_value()) {
    all = all && std::all_of(frozen_->filters.begin(), frozen_->filters.end(), sane) &&
          std::all_of(frozen_->clocks.begin(), frozen_->clocks.end(), positive) &&
          frozen_->drift >= 0;
  }
  return all;
}

std::string ProgressModel::Save() const {
  if (losses_ == 0) return "";
  std::string text(kForm);
  ProgressModel copy = *this;
  copy.VisitNumbers([&text](double& value) {
    char digits[32];
    text.append(digits,
                static_cast<size_t>(std::snprintf(digits, sizeof(digits), " %.17g", value)));
  });
  return text;
}

Status ProgressModel::Restore(std::string_view text, uint64_t steps) {
  if (!text.starts_with(kForm)) {
    return InvalidArgument(StrCat("expected a state that begins with ", std::string(kForm)));
  }
  ProgressModel read;
  NumberReader reader(text.substr(kForm.size()));
  read.VisitNumbers([&reader](double& value) { reader(value); });
  if (!reader.done() || read.losses_ == 0 || !read.IsSane()) {
    return InvalidArgument("the state of the progress model is damaged");
  }
  *this = std::move(read);
  // Nobody saw the losses of these steps, but they made progress.
  for (int i = 0; i < kExponents; ++i) {
    const double progress =
        static_cast<double>(steps) * std::pow(smoothed_gain_ / reference_gain_, kExponentStep * i);
    advances_[static_cast<size_t>(i)] += std::log1p(progress / clocks_[static_cast<size_t>(i)]);
    clocks_[static_cast<size_t>(i)] += progress;
  }
  return OkStatus();
}

}  // namespace weir
