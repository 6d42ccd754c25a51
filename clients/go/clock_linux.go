package concord

import (
	"syscall"
	"time"
	"unsafe"
)

// platformBootTime reads CLOCK_BOOTTIME, which the standard library does not offer.
func platformBootTime() time.Duration {
	const clockBoottime = 7
	var at syscall.Timespec
	// The call does not block, so the scheduler need not know of it.
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&at)), 0)
	if errno != 0 {
		return 0
	}
	return time.Duration(at.Nano())
}
