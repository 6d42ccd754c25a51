package concord

import (
	"context"
	"errors"
	"iter"
	"time"
)

const pollWaitDefault = 30 * time.Second

// WatchOptions say what is watched. The zero value watches everything, from now on.
type WatchOptions struct {
	// Definitions are keys, or key prefixes with `*` at the end. Nil is all.
	Definitions []string
	// Configs are the keys of configs of one definition. Nil is all.
	Configs []string
	// Filters select configs of one definition. With them, the watch has the proven data.
	Filters Filters
	// Search selects configs of one definition whose key contains a text.
	Search string
	// From begins with the changes of this revision. 0 begins with the next change.
	From uint64
	// Initial begins with the current [State], and again if the changes after the position are no longer retained.
	// Without it, that ends the watch with [ErrExpired].
	Initial bool
	// Prev gives each change the data before it.
	Prev bool
	// Wait is how long a poll waits, in whole seconds: 30 by default.
	Wait time.Duration
	// IdleEvents gives an event without changes at least after each Wait, while nodes respond.
	IdleEvents bool
}

// Watch iterates over the changes, each once and in order, across lost connections and killed nodes. It ends with an
// error, or by the context, whose cause it then yields.
func (c *Client) Watch(ctx context.Context, options WatchOptions) iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		f, err := newFollowing(c.cluster, options.Definitions, options.Configs, options.Filters, options.Search, options.Prev)
		if err == nil && options.Initial && options.From != 0 {
			err = errors.New("concord: a watch begins with the current state or with a revision, not with both")
		}
		if err != nil {
			yield(nil, err)
			return
		}
		ctx, end := c.cluster.transport.alive(ctx)
		defer end()
		if err := f.watch(ctx, options, func(event *Event) bool { return yield(event, nil) }); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			yield(nil, err)
		}
	}
}

// watch returns nil when `hand` has returned false.
func (f *following) watch(ctx context.Context, options WatchOptions, hand func(*Event) bool) error {
	wait := max(orDefault(options.Wait, pollWaitDefault).Truncate(time.Second), time.Second)
	pause, isBegun := followPauseFirst, options.From != 0
	if isBegun {
		f.position = options.From - 1
	}
	for {
		events, err := f.watchStep(ctx, options.Initial, isBegun, wait)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return err
		case errors.Is(err, ErrExpired) && options.Initial && isBegun:
			isBegun = false
			// The changes after a state may be gone again and again. Reading it at once each time would be a storm.
			if err := sleep(ctx, jittered(pause, f.cluster)); err != nil {
				return err
			}
			pause = min(2*pause, followPauseMax)
			continue
		case isUnavailable(err):
			// No node responds. The changes are retained; they come when one does.
			if err := sleep(ctx, jittered(pause, f.cluster)); err != nil {
				return err
			}
			pause = min(2*pause, followPauseMax)
			continue
		default:
			return err
		}
		if !isBegun {
			isBegun = true
		} else if pause = followPauseFirst; len(events) == 0 && options.IdleEvents {
			events = []*Event{{Revision: f.position}}
		}
		for _, event := range events {
			if !hand(event) {
				return nil
			}
		}
	}
}

// watchStep begins the watch, or polls once.
func (f *following) watchStep(ctx context.Context, isInitial, isBegun bool, wait time.Duration) ([]*Event, error) {
	if isBegun {
		return f.poll(ctx, wait)
	}
	if isInitial {
		state, _, err := f.state(ctx)
		return []*Event{state}, err
	}
	revision, _, err := f.confirm(ctx)
	if err == nil {
		f.position = revision
	}
	return nil, err
}

func isUnavailable(err error) bool {
	var unavailable *UnavailableError
	return errors.As(err, &unavailable) || errors.Is(err, ErrRateLimited)
}

func jittered(pause time.Duration, c *cluster) time.Duration {
	return time.Duration(float64(pause) * (0.5 + c.jitter()/2))
}
