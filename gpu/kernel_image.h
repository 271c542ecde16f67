/* kernel_image.h - the kernels' fat binary, as nvcc made it. */
#ifndef GPU_KERNEL_IMAGE_H
#define GPU_KERNEL_IMAGE_H

/* For cuModuleLoadData(); NULL: the library was built without nvcc. */
const void *kernel_image(void);
/* The CUDA of that nvcc: "13.0". */
const char *kernel_image_cuda(void);

#endif
