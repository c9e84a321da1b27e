# What `kun bench kernels` runs.
add_library(kernel_bench STATIC bench/kernel_bench.cc bench/roofline_svg.cc)
target_include_directories(kernel_bench PUBLIC bench)
target_link_libraries(kernel_bench PUBLIC base PRIVATE backend_cpu fmt::fmt)
