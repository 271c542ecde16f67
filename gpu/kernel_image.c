/*
 * kernel_image.c - takes the fat binary into the library as it is: CMake names
 * the file in CKPT_FATBIN.
 */
#include "gpu/kernel_image.h"

#include <stddef.h>

#ifdef CKPT_FATBIN

extern const unsigned char ckpt_fatbin[] __attribute__((visibility("hidden")));

__asm__(".pushsection .rodata.ckpt_fatbin, \"a\"\n"
	".balign 64\n"
	".globl ckpt_fatbin\n"
	".hidden ckpt_fatbin\n"
	".type ckpt_fatbin, @object\n"
	"ckpt_fatbin:\n"
	".incbin \"" CKPT_FATBIN "\"\n"
	".size ckpt_fatbin, . - ckpt_fatbin\n"
	".popsection\n");

const void *kernel_image(void)
{
	return ckpt_fatbin;
}

const char *kernel_image_cuda(void)
{
	return CKPT_FATBIN_CUDA;
}

#else

const void *kernel_image(void)
{
	return NULL;
}

const char *kernel_image_cuda(void)
{
	return "(none)";
}

#endif
