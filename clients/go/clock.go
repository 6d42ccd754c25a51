package concord

import (
	"context"
	"time"
)

// bootTime is the time since the machine was booted, with the time that it slept; 0 where the platform does not tell.
// Tests replace it.
var bootTime = platformBootTime

// moment is a point in time, for ages that must not be too small.
type moment struct {
	boot time.Duration
	at   time.Time
}

func now() moment {
	if boot := bootTime(); boot != 0 {
		return moment{boot: boot}
	}
	return moment{at: time.Now()}
}

// age counts the time for which the machine slept. Where the monotonic clock may stand still, the wall clock is asked
// as well: the longer of the two times is the one that nothing is called too young by.
func (m moment) age() time.Duration {
	if m.boot != 0 {
		return bootTime() - m.boot
	}
	at := time.Now()
	return max(at.Sub(m.at), at.Round(0).Sub(m.at.Round(0)))
}

// sleep waits, or returns the error of the context if that ends first.
func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
