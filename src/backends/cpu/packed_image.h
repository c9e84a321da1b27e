// Packed matrices as images for the packed-weights cache, and back.
#pragma once

#include <memory>
#include <string>

#include "backends/cpu/pack_plan.h"
#include "backends/cpu/packed_matrix.h"
#include "device/packed_image.h"

namespace kun {

PackedImage image_of(const CpuPackedMatrix& matrix, ThreadPool& pool);

// Copies an image into memory of `slabs`, huge pages and all, and verifies it on the way.
// kDataLoss when it is not what image_of made.
Result<std::unique_ptr<PackedMatrix>> matrix_of(const PackedImage& image, ThreadPool& pool,
                                                Slabs& slabs);

// A name for everything that packing depends on: the settings, and a fingerprint of what they make
// of a fixed matrix, which changes when a panel's layout or a quantizer does.
std::string packing_name(const PackSettings& settings);

}  // namespace kun
