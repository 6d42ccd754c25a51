package concord

import (
	"hash/maphash"
	"iter"
	"maps"
)

// shardCount makes a change of one of 100,000 configs copy some 400 entries.
const shardCount = 256

var shardSeed = maphash.MakeSeed()

// configSet is an immutable set of configs. A changed one shares what has not changed.
type configSet struct {
	shards [shardCount]map[Pointer]*Config
	size   int
	// candidates are the configs with a variant.
	candidates int
}

func shardOf(key string) uint64 { return maphash.String(shardSeed, key) % shardCount }

func (s *configSet) get(name Pointer) *Config { return s.shards[shardOf(name.Key)][name] }

func (s *configSet) all() iter.Seq2[Pointer, *Config] {
	return func(yield func(Pointer, *Config) bool) {
		for _, shard := range s.shards {
			for name, config := range shard {
				if !yield(name, config) {
					return
				}
			}
		}
	}
}

// configEditor makes a changed set. A shard is copied once, before its first change.
type configEditor struct {
	made  *configSet
	isOwn [shardCount]bool
	// touched are the names that were set or removed, removed those that were removed, also if they were set again.
	touched, removed []Pointer
}

func (s *configSet) edit() *configEditor {
	made := *s
	return &configEditor{made: &made}
}

// put sets a config; nil removes it.
func (e *configEditor) put(name Pointer, config *Config) {
	n := shardOf(name.Key)
	if !e.isOwn[n] {
		e.isOwn[n] = true
		if e.made.shards[n] = maps.Clone(e.made.shards[n]); e.made.shards[n] == nil {
			e.made.shards[n] = map[Pointer]*Config{}
		}
	}
	shard := e.made.shards[n]
	before, had := shard[name]
	if config == nil {
		delete(shard, name)
		e.removed = append(e.removed, name)
	} else {
		shard[name] = config
	}
	e.touched = append(e.touched, name)
	e.made.size += count(config != nil) - count(had)
	e.made.candidates += count(config != nil && config.Variant != "") - count(had && before.Variant != "")
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}
