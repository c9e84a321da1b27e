// Loader walks the names of a checkpoint: load / "self_attn" / "o_proj" stands at a tensor, and a
// part's constructor takes the Loader that stands at its own name.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "weights/weight_loader.h"

namespace kun::nn {

class Loader {
 public:
  explicit Loader(WeightLoader& weights, std::string prefix = {})
      : weights_(&weights), prefix_(std::move(prefix)) {}

  Loader operator/(std::string_view name) const {
    return Loader(*weights_,
                  prefix_.empty() ? std::string(name) : prefix_ + "." + std::string(name));
  }
  Loader operator/(int index) const { return *this / std::string_view(std::to_string(index)); }

  // The name of a tensor that does not end in ".weight" or ".bias".
  std::string name(std::string_view part) const { return (*this / part).prefix_; }
  std::string name(std::string_view part, std::string_view of_it) const {
    return (*this / part / of_it).prefix_;
  }

  std::string weight() const { return prefix_ + ".weight"; }
  std::string bias() const { return prefix_ + ".bias"; }

  WeightLoader& weights() const { return *weights_; }
  Ops& ops() const { return weights_->ops(); }

 private:
  WeightLoader* weights_;
  std::string prefix_;
};

}  // namespace kun::nn
