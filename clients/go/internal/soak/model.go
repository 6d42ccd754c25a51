//go:build linux

package main

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	concord "github.com/concord-config/concord/clients/go"
)

// content is the data of each config: a number that grows by one with each write, and who wrote it.
type content struct {
	N     int    `json:"n"`
	Token string `json:"token"`
}

// acknowledgement is the highest revision of a config that was acknowledged until a time.
type acknowledgement struct {
	at       time.Time
	revision uint64
}

type sighting struct {
	key      string
	revision uint64
	n        int
}

// model is what was sent, and what became of it.
type model struct {
	isOver atomic.Bool

	mu           sync.Mutex
	breaches     []string
	acknowledged map[string]uint64
	unknown      map[string]bool
	rejected     map[string]bool
	visible      map[string][]acknowledgement
	seen         map[sighting]bool
	counts       map[string]int
	ages         map[concord.Source]time.Duration
}

func newModel() *model {
	return &model{
		acknowledged: map[string]uint64{}, unknown: map[string]bool{}, rejected: map[string]bool{},
		visible: map[string][]acknowledgement{}, seen: map[sighting]bool{}, counts: map[string]int{},
		ages: map[concord.Source]time.Duration{},
	}
}

func (m *model) breach(format string, values ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.breaches = append(m.breaches, fmt.Sprintf(format, values...))
	m.isOver.Store(true)
}

func (m *model) hasBreach() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.breaches) > 0
}

func (m *model) count(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[name]++
}

// outcome notes what became of a write.
func (m *model) outcome(token string, keys []string, revision uint64, err error) {
	at := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	var unknown *concord.UnknownOutcomeError
	switch {
	case errors.As(err, &unknown):
		m.unknown[token] = true
		m.counts["unknown"]++
	case err != nil:
		m.rejected[token] = true
		m.counts["certainly not applied"]++
	default:
		m.acknowledged[token] = revision
		m.counts["acknowledged"]++
		for _, key := range keys {
			known := m.visible[key]
			if len(known) > 0 {
				revision = max(revision, known[len(known)-1].revision)
			}
			m.visible[key] = append(known, acknowledgement{at, revision})
		}
	}
}

// acknowledgedBefore is the highest revision of a config that was acknowledged before a time.
func (m *model) acknowledgedBefore(key string, at time.Time) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.visible[key]
	place := sort.Search(len(known), func(n int) bool { return !known[n].at.Before(at) })
	if place == 0 {
		return 0
	}
	return known[place-1].revision
}

// judge checks a value that a cache has shown.
func (m *model) judge(what string, readAt time.Time, value concord.Value, drift time.Duration) {
	if value.Age != concord.AgeUnknown {
		needed := m.acknowledgedBefore(value.Key, readAt.Add(-value.Age-drift))
		if value.Revision < needed {
			m.breach("%s: %s of %s at %d, %s old, lacks the revision %d", what, value.Key, value.Source, value.Revision, value.Age, needed)
		}
	}
	if value.IsFresh() && value.Age > fresh {
		m.breach("%s: %s is called fresh and is %s old", what, value.Key, value.Age)
	}
	var data content
	if err := value.Decode(&data); err != nil {
		m.breach("%s: %v", what, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen[sighting{value.Key, value.Revision, data.N}] = true
	m.counts[what+": "+string(value.Source)]++
	if value.Age != concord.AgeUnknown {
		m.ages[value.Source] = max(m.ages[value.Source], value.Age)
	}
}

// past is a change as the history has it.
type past struct {
	revision uint64
	data     *content
}

// judgeHistory compares everything with the service's own history, which has the newest change of a config first.
func (m *model) judgeHistory(histories map[string][]past, watched []*concord.Event, begin uint64) {
	applied := map[string][]uint64{}
	type place struct {
		revision uint64
		key      string
	}
	changes := map[place]*content{}
	for key, history := range histories {
		slices.Reverse(history)
		var before *content
		for _, each := range history {
			if each.revision >= begin {
				changes[place{each.revision, key}] = each.data
				if each.data != nil {
					applied[each.data.Token] = append(applied[each.data.Token], each.revision)
				}
				if !slices.Contains(passing, key) && (before == nil || each.data == nil || each.data.N != before.N+1) {
					m.breach("a lost update: %s at %d: %v after %v", key, each.revision, each.data, before)
				}
			}
			before = each.data
		}
	}
	isOnce := func(token string, revision uint64) bool {
		return !slices.ContainsFunc(applied[token], func(each uint64) bool { return each != revision }) && len(applied[token]) > 0
	}
	for token, revision := range m.acknowledged {
		if !isOnce(token, revision) {
			m.breach("the acknowledged write %s of %d is at %v", token, revision, applied[token])
		}
	}
	for token := range m.unknown {
		if len(applied[token]) > 0 {
			m.count("applied of unknown outcome")
			if !isOnce(token, applied[token][0]) {
				m.breach("the write %s of unknown outcome was applied at %v", token, applied[token])
			}
		}
	}
	for token := range m.rejected {
		if len(applied[token]) > 0 {
			m.breach("the write %s was certainly not applied, and is at %v", token, applied[token])
		}
	}
	for each := range m.seen {
		if shown := changes[place{each.revision, each.key}]; each.revision >= begin && (shown == nil || shown.N != each.n) {
			m.breach("a cache showed %s at %d as %d; the history has %v", each.key, each.revision, each.n, shown)
		}
	}
	last := uint64(0)
	told := 0
	for _, event := range watched {
		if event.Revision <= last {
			m.breach("the watch has the revision %d after %d", event.Revision, last)
		}
		last = event.Revision
		for _, each := range event.Changes {
			shown, isThere := changes[place{event.Revision, each.Key}]
			var data *content
			if each.Data != nil {
				config := concord.Config{Data: each.Data}
				data = &content{}
				if err := config.Decode(data); err != nil {
					m.breach("the watch: %v", err)
				}
			}
			if told++; !isThere || (shown == nil) != (data == nil) || shown != nil && *shown != *data {
				m.breach("the watch has %v at %d of %s, the history %v", data, event.Revision, each.Key, shown)
			}
		}
	}
	if told != len(changes) {
		m.breach("the watch has %d changes, the history %d", told, len(changes))
	}
	m.counts["changes in the history"] = len(changes)
}
