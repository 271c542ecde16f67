# The device kernels: a fat binary that is embedded, when there is an nvcc.
# Nothing of the toolkit is linked; the driver loads the kernels.
option(CKPTFS_NVCC "Build the device kernels when there is an nvcc" ON)

set(ckpt_kernels_state "not built (CKPTFS_NVCC=OFF)")
if(CKPTFS_NVCC)
  set(ckpt_kernels_state "not built (no nvcc)")
  find_program(CKPTFS_NVCC_PATH nvcc
    HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" /usr/local/cuda/bin)
endif()
if(CKPTFS_NVCC AND CKPTFS_NVCC_PATH)
  execute_process(COMMAND "${CKPTFS_NVCC_PATH}" --version
    OUTPUT_VARIABLE nvcc_version)
  string(REGEX REPLACE ".*release ([0-9.]+).*" "\\1" nvcc_version
    "${nvcc_version}")
  execute_process(COMMAND "${CKPTFS_NVCC_PATH}" --list-gpu-arch
    OUTPUT_VARIABLE nvcc_archs ERROR_QUIET)
  # Machine code for what it knows of these, PTX of the oldest for all others.
  set(nvcc_flags)
  set(nvcc_built)
  set(nvcc_oldest)
  foreach(arch 80 90 100)
    if(nvcc_archs MATCHES "compute_${arch}(\n|$)")
      list(APPEND nvcc_flags -gencode arch=compute_${arch},code=sm_${arch})
      list(APPEND nvcc_built sm_${arch})
      if(NOT nvcc_oldest)
        set(nvcc_oldest ${arch})
      endif()
    endif()
  endforeach()
  # It may be there and not work: it needs a host compiler that it knows.
  if(nvcc_oldest AND NOT DEFINED CKPTFS_NVCC_WORKS)
    set(nvcc_probe "${CMAKE_CURRENT_BINARY_DIR}/nvcc_probe.cu")
    file(WRITE "${nvcc_probe}" "extern \"C\" __global__ void probe() {}\n")
    execute_process(COMMAND "${CKPTFS_NVCC_PATH}" -fatbin -std=c++17
        ${nvcc_flags} -o "${nvcc_probe}.fatbin" "${nvcc_probe}"
      RESULT_VARIABLE nvcc_rc OUTPUT_VARIABLE nvcc_says
      ERROR_VARIABLE nvcc_says)
    if(nvcc_rc EQUAL 0)
      set(CKPTFS_NVCC_WORKS ON CACHE INTERNAL "nvcc compiled a kernel")
    else()
      message(STATUS "${CKPTFS_NVCC_PATH}: ${nvcc_says}")
    endif()
  endif()
  if(nvcc_oldest AND NOT CKPTFS_NVCC_WORKS)
    set(ckpt_kernels_state "not built (nvcc ${nvcc_version} does not work)")
  elseif(nvcc_oldest)
    list(APPEND nvcc_flags
      -gencode arch=compute_${nvcc_oldest},code=compute_${nvcc_oldest})
    list(JOIN nvcc_built " " nvcc_built)
    set(ckpt_kernels_state "${nvcc_built} PTX (nvcc ${nvcc_version})")
    if(CKPTFS_WERROR)
      list(APPEND nvcc_flags -Werror all-warnings)
    endif()
    set(ckpt_fatbin "${CMAKE_CURRENT_BINARY_DIR}/kernels.fatbin")
    add_custom_command(OUTPUT "${ckpt_fatbin}"
      COMMAND "${CKPTFS_NVCC_PATH}" -fatbin -std=c++17 -O3
        -I "${CMAKE_SOURCE_DIR}" ${nvcc_flags}
        -o "${ckpt_fatbin}" "${CMAKE_CURRENT_SOURCE_DIR}/kernels.cu"
      DEPENDS kernels.cu host_device.h stash_rows.h xxh3_device.h
      COMMENT "Building the device kernels" VERBATIM)
    set_source_files_properties(kernel_image.c PROPERTIES
      OBJECT_DEPENDS "${ckpt_fatbin}"
      COMPILE_DEFINITIONS
        "CKPT_FATBIN=\"${ckpt_fatbin}\";CKPT_FATBIN_CUDA=\"${nvcc_version}\"")
    set(ckpt_nvcc_flags "${nvcc_flags}" PARENT_SCOPE) # for the tests' kernel
  else()
    set(ckpt_kernels_state "not built (nvcc ${nvcc_version} is too old)")
  endif()
endif()
message(STATUS "GPU kernels: ${ckpt_kernels_state}")
