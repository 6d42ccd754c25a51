//go:build !linux

package concord

import "time"

func platformBootTime() time.Duration { return 0 }
