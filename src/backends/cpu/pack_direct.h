// The commonest block formats, moved into panels without taking their codes apart: a block's bytes
// become a panel's pieces by a few operations on 32-bit words, so that packing a model costs little
// more than copying it. What comes out is what unpack_block and put_codes would write.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/weight_view.h"

namespace kun {

// Whether pack_row_directly knows `format`.
bool packs_directly(WeightFormat format);

// Writes one row of the view into row `lane` of a panel of grouped_panel_format(view.format).
// Requires: packs_directly(view.format), and what check_view checks.
void pack_row_directly(const WeightView& view, std::int64_t row, int lane, std::byte* panel);

// Writes rows [first, first + count) of a BF16 view into a panel of kBF16, whose words are pairs of
// columns. Requires: count <= kPanelRows, and what check_view checks.
void pack_bf16_panel(const WeightView& view, std::int64_t first, int count, std::byte* panel);

}  // namespace kun
