package concord

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// reportEvery is the pause between two reports of one change request. A report counts for a minute.
	reportEvery = 20 * time.Second
	// reportFailedEvery is the same of failures: a new leader knows none, and must not wait long for them.
	reportFailedEvery = 5 * time.Second
	// reportFirstWithin spreads the first reports, so that not all readers report in one moment.
	reportFirstWithin = 5 * time.Second
	reportTimeout     = 5 * time.Second
	reportAttempt     = 2 * time.Second
	// lookEvery is how often there is a look at what there is to report if the cache does not change.
	lookEvery = 5 * time.Second
	// lookPause is the least time between two looks.
	lookPause      = 20 * time.Millisecond
	detailBytesMax = 1024
	// reportedConfigsMax is the most configs outside rollouts that a cache reports as failed at one time.
	reportedConfigsMax = 50
	// reportSilence is for how long nothing is reported of the configs of a definition after a node has said that this key
	// may not, that there is no such config, or that the cluster does not know such reports yet.
	reportSilence = 600 * time.Second
)

// reportTarget is what a report is about: the rollout of a change request, or a config.
type reportTarget struct{ change, definition, key string }

// group is whom a rejection is about: it is the same for all configs of a definition.
func (t reportTarget) group() reportTarget { return reportTarget{t.change, t.definition, ""} }

func (t reportTarget) isOfConfig() bool { return t.change == "" }

func (t reportTarget) path() (string, error) {
	if t.isOfConfig() {
		return configPath(t.definition, t.key, "report")
	}
	return changeRequestPath + "/" + t.change + "/report", checkKey(t.change, "change_id")
}

func (t reportTarget) String() string {
	if t.isOfConfig() {
		return "the configs of " + t.definition
	}
	return "the change request " + t.change
}

// said is what a report says.
type said struct {
	// reason is why something is wrong; empty for `healthy`.
	reason string
	// revision is that of a config; 0 of a candidate.
	revision uint64
}

type reportTurn struct {
	// said was reported last, seen was to report at the last look.
	said, seen *said
	// wait counts from at until the next report.
	at   moment
	wait time.Duration
}

func (t *reportTurn) left() time.Duration { return t.wait - t.at.age() }

// reports says of what a cache holds that the program runs well with it, or not. A rollout continues by what its readers
// report. While a config is a candidate, the cache reports it: `failed` at once if a type rejects the data, otherwise
// `healthy`. One report is of all configs of a change request: it has failed if one of them has. Outside rollouts, the
// cache reports configs that a type rejects, and `healthy` once when it no longer does. So a fleet that runs well sends
// nothing.
//
// One report at a time is under way, in a goroutine of its own, so that none delays what follows. Nothing is reported of
// what a node has not sent since the start.
type reports struct {
	cache                    *Cache
	cluster                  *cluster
	reader                   *reader
	instance                 string
	every, firstWithin, look time.Duration

	turns map[reportTarget]*reportTurn
	// silent is of what nothing is reported: for a change request as long as there is something to report of it, for a
	// definition until the time.
	silent map[reportTarget]moment
	warned map[reportTarget]bool
}

func newReports(cache *Cache) *reports {
	cluster := cache.following.cluster
	return &reports{
		cache: cache, cluster: cluster, reader: cluster.reader, instance: newIdempotencyKey()[:16],
		every: reportEvery, firstWithin: reportFirstWithin, look: lookEvery,
		turns: map[reportTarget]*reportTurn{}, silent: map[reportTarget]moment{}, warned: map[reportTarget]bool{},
	}
}

func (r *reports) run(ctx context.Context) {
	for {
		s := r.cache.current.Load()
		r.sendDue(ctx, s)
		timer := time.NewTimer(r.untilNext())
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-s.replaced:
		}
		timer.Stop()
		if sleep(ctx, lookPause) != nil {
			return
		}
	}
}

func (r *reports) untilNext() time.Duration {
	wait := r.look
	for target, turn := range r.turns {
		if _, isSilent := r.silent[target.group()]; !isSilent {
			wait = min(wait, turn.left())
		}
	}
	return max(0, wait)
}

// sendDue sends the report that is due, if there is one.
func (r *reports) sendDue(ctx context.Context, s *snapshot) {
	all := r.all(s)
	maps.DeleteFunc(r.turns, func(target reportTarget, _ *reportTurn) bool { _, ok := all[target]; return !ok })
	maps.DeleteFunc(r.silent, func(group reportTarget, since moment) bool {
		if group.isOfConfig() {
			return since.age() > reportSilence
		}
		_, ok := all[group]
		return !ok
	})
	maps.DeleteFunc(r.warned, func(group reportTarget, _ bool) bool {
		_, ok := all[group]
		return !ok && !group.isOfConfig()
	})
	// What has waited longest is next.
	var due *reportTarget
	for _, target := range slices.SortedFunc(maps.Keys(all), compareTargets) {
		if _, isSilent := r.silent[target.group()]; isSilent || !r.isDue(target, all[target]) {
			continue
		}
		if due == nil || r.turns[target].left() < r.turns[*due].left() {
			due = &target
		}
	}
	if due != nil {
		r.send(ctx, *due, all[*due])
	}
}

// compareTargets puts candidates first.
func compareTargets(a, b reportTarget) int {
	return strings.Compare(a.definition+"/"+a.key+"/"+a.change, b.definition+"/"+b.key+"/"+b.change)
}

func (r *reports) isDue(target reportTarget, current said) bool {
	soon := time.Duration(float64(r.firstWithin) * r.cluster.jitter())
	turn := r.turns[target]
	if turn == nil {
		turn = &reportTurn{at: now(), wait: soon}
		r.turns[target] = turn
	}
	if target.isOfConfig() && (turn.seen == nil || *turn.seen != current) {
		// Many readers reject one config in one moment: nobody waits for a report of it.
		turn.seen = &current
		if soon < turn.left() {
			turn.at, turn.wait = now(), soon
		}
	}
	// That something is wrong in a rollout is said at once: the rollout ends by it.
	isNews := !target.isOfConfig() && current.reason != "" && (turn.said == nil || *turn.said != current)
	return turn.left() <= 0 || isNews
}

// all is what there is to say.
func (r *reports) all(s *snapshot) map[reportTarget]said {
	all := map[reportTarget]said{}
	if !s.isConfirmed {
		return all
	}
	if s.configs.candidates > 0 {
		for _, config := range s.configs.all() {
			target := reportTarget{change: config.Variant}
			if before, isKnown := all[target]; config.Variant != "" && (!isKnown || before.reason == "") {
				all[target] = said{reason: r.reason(config)}
			}
		}
	}
	r.addRejected(s, all)
	for target, turn := range r.turns {
		if _, isKnown := all[target]; isKnown || !target.isOfConfig() || turn.said == nil {
			continue
		}
		if config := s.configs.get(Pointer{target.definition, target.key}); config != nil && config.Variant == "" {
			// It is rejected no longer.
			all[target] = said{revision: config.Revision}
		}
	}
	return all
}

// addRejected adds the configs outside rollouts that a type rejects, of those that the program has read.
func (r *reports) addRejected(s *snapshot, all map[reportTarget]said) {
	count := 0
	for _, each := range r.views() {
		for _, key := range each.keys() {
			config := s.configs.get(Pointer{each.of(), key})
			if config == nil || config.Variant != "" || count == reportedConfigsMax {
				continue
			}
			target := reportTarget{definition: each.of(), key: key}
			if _, isKnown := all[target]; isKnown {
				continue
			}
			if reason := r.reason(config); reason != "" {
				all[target] = said{reason, config.Revision}
				count++
			}
		}
	}
}

func (r *reports) views() []view {
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	return slices.Collect(maps.Values(r.cache.views))
}

// reason is why a type rejects a config, by the places and without values: those may be secret, and others read it.
func (r *reports) reason(config *Config) string {
	for _, each := range r.cache.viewsOf(config.Definition) {
		err := each.rejection(config)
		if err == nil {
			continue
		}
		places := strings.Join(placesIn(err), ", ")
		if places == "" {
			places = "some place"
		}
		text := fmt.Sprintf("%s/%s does not fit %s at %s", config.Definition, config.Key, each.typeName(), places)
		// A node rejects characters that nobody sees.
		text = strings.Map(func(each rune) rune {
			if unicode.IsPrint(each) {
				return each
			}
			return ' '
		}, text)
		for len(text) > detailBytesMax {
			_, size := utf8.DecodeLastRuneInString(text)
			text = text[:len(text)-size]
		}
		return text
	}
	return ""
}

func (r *reports) send(ctx context.Context, target reportTarget, what said) {
	isFailed := what.reason != ""
	if every := r.every; isFailed || !target.isOfConfig() {
		if isFailed && !target.isOfConfig() {
			every = min(every, reportFailedEvery)
		}
		wait := time.Duration(float64(every) * (0.9 + r.cluster.jitter()/10))
		r.turns[target] = &reportTurn{said: &what, seen: &what, at: now(), wait: wait}
	} else {
		delete(r.turns, target)
	}
	body := map[string]any{"reader": r.reader.name, "labels": r.reader.labels, "instance": r.instance, "state": "healthy"}
	if isFailed {
		body["state"], body["detail"] = "failed", what.reason
	}
	if target.isOfConfig() {
		body["revision"] = what.revision
	}
	path, err := target.path()
	if err == nil {
		var text []byte
		if text, err = encode(body); err == nil {
			// A copy of a report is the same report: it is sent again as a read is.
			sent := request{method: "POST", target: path, body: text, header: http.Header{"Content-Type": {"application/json"}}}
			_, err = r.cluster.call(ctx, sent, reportTimeout, reportAttempt)
		}
	}
	var rejected *APIError
	if err == nil || ctx.Err() != nil || !errors.As(err, &rejected) {
		// It may be another matter at the next turn.
		return
	}
	// Who may not even know of a change request is told that there is none.
	isTold := rejected.Status == 403 || rejected.Status == 404 || rejected.Status == 409 && target.isOfConfig()
	if !isTold {
		return
	}
	group := target.group()
	r.silent[group] = now()
	delete(r.turns, target)
	if !r.warned[group] {
		r.warned[group] = true
		r.cache.client.logger.Warn("nothing is reported of "+group.String(), "problem", err.Error())
	}
}
