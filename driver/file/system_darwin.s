#include "textflag.h"

// The address of clock_gettime, which the dynamic linker puts in place.

TEXT libc_clock_gettime_trampoline<>(SB),NOSPLIT,$0-0
	JMP	libc_clock_gettime(SB)

GLOBL	·clockGettime(SB), RODATA, $8
DATA	·clockGettime(SB)/8, $libc_clock_gettime_trampoline<>(SB)
