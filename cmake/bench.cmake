# What `kun bench kernels` runs, as a library, and the same as a program of its own.
add_library(kernel_bench STATIC bench/kernel_bench.cc)
target_include_directories(kernel_bench PUBLIC bench)
target_link_libraries(kernel_bench PUBLIC base PRIVATE backend_cpu fmt::fmt)

add_executable(kernels_bench bench/kernels_bench.cc)
target_link_libraries(kernels_bench PRIVATE kernel_bench)
