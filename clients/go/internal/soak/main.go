//go:build linux

// Command soak runs the client beside a model while nodes are killed and paused.
//
//	CONCORD_BIN=target/release/concord go run ./internal/soak -for 10m -seed 1
//
// Writers change configs on condition of their revisions, a watch and a cache follow, another cache is started again and
// again from its file. At the end the service's own history judges:
//
//   - no lost update: each write builds on the one before; an acknowledged one is there once, one of unknown outcome at
//     most once, a rejected one never;
//   - no missed change: the watch has what the history has, each once and in order;
//   - no stale value called fresh: a value with an age has every write that was acknowledged longer before it was read;
//     no cache goes back; a batch is never seen in part.
//
// The first breach ends the run with exit code 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	concord "github.com/concord-config/concord/clients/go"
	"github.com/concord-config/concord/clients/go/internal/nodes"
)

const (
	definition = "soak"
	fresh      = 15 * time.Second
	// fileDrift is between the wall clock, by which the age of a file is counted, and the one of this program.
	fileDrift = 50 * time.Millisecond
	writers   = 3
)

var (
	keys    = []string{"k0", "k1", "k2", "k3", "k4", "k5"}
	pair    = []string{"pair-one", "pair-two"}
	passing = []string{"e0", "e1", "e2", "e3"}
	all     = slices.Concat(keys, pair, passing)
)

func main() {
	length := flag.Duration("for", 10*time.Minute, "how long nodes are disturbed")
	seed := flag.Uint64("seed", 1, "draws what happens")
	flag.Parse()
	s := &soak{model: newModel(), seed: *seed}
	if err := s.run(*length); err != nil {
		log.Fatal(err)
	}
	for name, count := range s.model.counts {
		fmt.Printf("%s: %d\n", name, count)
	}
	fmt.Println("greatest ages:", s.model.ages)
	for _, breach := range s.model.breaches {
		fmt.Fprintln(os.Stderr, "soak: BREACH:", breach)
	}
	if len(s.model.breaches) > 0 {
		os.Exit(1)
	}
}

type soak struct {
	*model
	seed   uint64
	nodes  *nodes.Cluster
	client *concord.Client
	cache  *concord.Cache
	file   string

	watchMu sync.Mutex
	watched []*concord.Event
}

func (s *soak) dice(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(s.seed, stream)) }

func (s *soak) run(length time.Duration) error {
	ctx := context.Background()
	var err error
	if s.nodes, err = nodes.Start(os.Getenv("CONCORD_BIN"), false); err != nil {
		return err
	}
	defer s.nodes.End()
	s.client, err = concord.New(concord.Options{
		URLs: s.nodes.URLs(), Key: s.nodes.Key, Timeout: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return err
	}
	defer s.client.Close()
	if _, err := s.client.CreateDefinition(ctx, definition, concord.DefinitionSpec{}); err != nil {
		return err
	}
	var first []concord.Operation
	for _, key := range slices.Concat(keys, pair) {
		first = append(first, concord.OpCreate(definition, key, content{0, "first-" + key}))
	}
	begun, err := s.client.Batch(ctx, first)
	if err != nil {
		return err
	}
	s.file = filepath.Join(s.nodes.Home, "known.json")
	options := concord.CacheOptions{Definitions: []string{definition}, File: s.file, Fresh: fresh, StartTimeout: time.Minute}
	if s.cache, err = s.client.NewCache(ctx, options); err != nil {
		return err
	}
	watching, stopWatch := context.WithCancel(ctx)
	defer stopWatch()
	var tasks sync.WaitGroup
	start := func(task func()) {
		tasks.Add(1)
		go func() {
			defer tasks.Done()
			task()
		}()
	}
	start(func() { s.watch(watching, begun.Revision+1) })
	start(func() { s.readCache(s.dice(100)) })
	for n := range writers {
		start(func() { s.write(ctx, fmt.Sprintf("writer%d", n), s.dice(uint64(n))) })
	}
	s.disturb(ctx, length)
	s.isOver.Store(true)
	if err := s.nodes.WaitReady(); err != nil {
		return err
	}
	histories, err := s.settle(ctx)
	stopWatch()
	tasks.Wait()
	if err != nil || s.hasBreach() {
		return err
	}
	s.judgeHistory(histories, s.watched, begun.Revision+1)
	for config, err := range s.client.List(ctx, definition) {
		if err != nil {
			return err
		}
		if value, err := s.cache.Get(definition, config.Key); err != nil || string(value.Data) != string(config.Data) {
			s.breach("the cache has %s of %s at the end, the list %s", value.Data, config.Key, config.Data)
		}
	}
	return nil
}

// settle waits until the watch and the cache have the last change, and returns the histories.
func (s *soak) settle(ctx context.Context) (map[string][]past, error) {
	for end := time.Now().Add(nodes.Patience); time.Now().Before(end) && !s.hasBreach(); time.Sleep(50 * time.Millisecond) {
		histories, last, err := s.histories(ctx)
		if err != nil {
			continue
		}
		s.watchMu.Lock()
		isWatched := len(s.watched) > 0 && s.watched[len(s.watched)-1].Revision >= last
		s.watchMu.Unlock()
		if status := s.cache.Status(); isWatched && status.Revision >= last && status.Source == concord.SourceLive {
			return histories, nil
		}
	}
	return nil, errors.New("the watch and the cache have not everything in time")
}

func (s *soak) histories(ctx context.Context) (map[string][]past, uint64, error) {
	found, last := map[string][]past{}, uint64(0)
	for _, key := range all {
		for each, err := range s.client.History(ctx, definition, key) {
			if errors.Is(err, concord.ErrNotFound) {
				break
			}
			if err != nil {
				return nil, 0, err
			}
			made := past{revision: each.Revision}
			if each.Data != nil {
				made.data = &content{}
				config := concord.Config{Data: each.Data}
				if err := config.Decode(made.data); err != nil {
					return nil, 0, err
				}
			}
			found[key] = append(found[key], made)
			last = max(last, each.Revision)
		}
	}
	return found, last, nil
}

func (s *soak) watch(ctx context.Context, from uint64) {
	for event, err := range s.client.Watch(ctx, concord.WatchOptions{Definitions: []string{definition}, From: from, Wait: 3 * time.Second}) {
		if err != nil {
			if ctx.Err() == nil {
				s.breach("the watch ended: %v", err)
			}
			return
		}
		s.watchMu.Lock()
		s.watched = append(s.watched, event)
		s.watchMu.Unlock()
	}
}

// write reads, computes, and writes on condition.
func (s *soak) write(ctx context.Context, name string, dice *rand.Rand) {
	for number := 0; !s.isOver.Load(); number++ {
		token := fmt.Sprintf("%s-%d", name, number)
		var err error
		switch draw := dice.Float64(); {
		case draw < 0.2:
			err = s.writePair(ctx, token)
		case draw < 0.3:
			key := passing[dice.IntN(len(passing))]
			var done *concord.Written
			done, err = s.client.Upsert(ctx, definition, key, content{0, token})
			s.noteWrite(token, nil, done, err)
		case draw < 0.4:
			_, err = s.client.Delete(ctx, definition, passing[dice.IntN(len(passing))])
		default:
			err = s.writeOne(ctx, token, keys[dice.IntN(len(keys))])
		}
		if err != nil {
			s.count("no success")
		}
		time.Sleep(time.Duration(dice.Float64() * float64(50*time.Millisecond)))
	}
}

func (s *soak) noteWrite(token string, keys []string, done *concord.Written, err error) {
	var revision uint64
	if done != nil {
		revision = done.Revision
	}
	s.outcome(token, keys, revision, err)
}

func (s *soak) writeOne(ctx context.Context, token, key string) error {
	began := time.Now()
	config, err := s.client.Get(ctx, definition, key)
	if err != nil {
		return err
	}
	if needed := s.acknowledgedBefore(key, began); config.Revision < needed {
		s.breach("a read of %s has revision %d and lacks %d", key, config.Revision, needed)
	}
	var data content
	if err := config.Decode(&data); err != nil {
		return err
	}
	done, err := s.client.Put(ctx, definition, key, content{data.N + 1, token}, concord.IfMatch(config.Revision))
	s.noteWrite(token, []string{key}, done, err)
	return err
}

func (s *soak) writePair(ctx context.Context, token string) error {
	many, err := s.client.ReadMany(ctx, []concord.Pointer{{Definition: definition, Key: pair[0]}, {Definition: definition, Key: pair[1]}})
	if err != nil {
		return err
	}
	var puts []concord.Operation
	for place, config := range many.Found {
		var data content
		if err := config.Decode(&data); err != nil {
			return err
		}
		puts = append(puts, concord.OpPut(definition, place.Key, content{data.N + 1, token}).IfMatch(config.Revision))
	}
	done, err := s.client.Batch(ctx, puts)
	var revision uint64
	if done != nil {
		revision = done.Revision
	}
	s.outcome(token, pair, revision, err)
	return err
}

func (s *soak) readCache(dice *rand.Rand) {
	last := map[string]uint64{}
	for !s.isOver.Load() {
		for range 20 {
			key, readAt := keys[dice.IntN(len(keys))], time.Now()
			value, err := s.cache.Get(definition, key)
			if err != nil {
				s.breach("the cache: %v", err)
				return
			}
			s.judge("cache", readAt, value, 0)
			if value.Revision < last[key] {
				s.breach("%s went back from %d to %d", key, last[key], value.Revision)
			}
			last[key] = value.Revision
		}
		var numbers []int
		for value := range s.cache.All(definition) {
			var data content
			if slices.Contains(pair, value.Key) && value.Decode(&data) == nil {
				numbers = append(numbers, data.N)
			}
		}
		if len(numbers) != 2 || numbers[0] != numbers[1] {
			s.breach("a batch is seen in part: %v", numbers)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// restart is a program that starts, reads, and ends, whether there are nodes or not.
func (s *soak) restart(ctx context.Context, dice *rand.Rand) {
	cache, err := s.client.NewCache(ctx, concord.CacheOptions{Definitions: []string{definition}, File: s.file, Fresh: fresh, StartTimeout: 300 * time.Millisecond})
	if err != nil {
		s.count("restarted: not ready")
		return
	}
	defer cache.Close()
	for range 50 {
		key, readAt := keys[dice.IntN(len(keys))], time.Now()
		if value, err := cache.Get(definition, key); err == nil {
			s.judge("restarted", readAt, value, fileDrift)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// disturb kills and pauses nodes until the time is over, and heals them after each disturbance.
func (s *soak) disturb(ctx context.Context, length time.Duration) {
	dice, restarts := s.dice(200), s.dice(201)
	kinds := []string{"kill one", "kill leader", "pause one", "pause leader", "kill two", "pause two", "kill all"}
	lengths := []time.Duration{300 * time.Millisecond, 2 * time.Second, 5 * time.Second, 8 * time.Second, 10 * time.Second}
	for end := time.Now().Add(length); time.Now().Before(end) && !s.isOver.Load(); {
		kind := kinds[dice.IntN(len(kinds))]
		s.count(kind)
		count := map[string]int{"one": 1, "two": 2, "all": 3}[kind[strings.Index(kind, " ")+1:]]
		chosen := slices.Clone(nodes.IDs)
		dice.Shuffle(len(chosen), func(a, b int) { chosen[a], chosen[b] = chosen[b], chosen[a] })
		if chosen = chosen[:count]; count == 0 {
			chosen = []int{s.nodes.Leader()}
		}
		isPause := strings.HasPrefix(kind, "pause")
		for _, n := range chosen {
			if isPause {
				s.nodes.Pause(n)
			} else {
				s.nodes.Kill(n)
			}
		}
		for until := time.Now().Add(lengths[dice.IntN(len(lengths))]); time.Now().Before(until) && !s.isOver.Load(); {
			s.restart(ctx, restarts)
			time.Sleep(200 * time.Millisecond)
		}
		for _, n := range chosen {
			if isPause {
				s.nodes.Resume(n)
			} else if err := s.nodes.StartNode(n); err != nil {
				s.breach("a node does not start: %v", err)
			}
		}
		for calm := time.Now().Add(time.Duration(dice.IntN(3)) * time.Second); time.Now().Before(calm); {
			s.restart(ctx, restarts)
			time.Sleep(100 * time.Millisecond)
		}
		fmt.Printf("%5.0f s left: %s %v\n", time.Until(end).Seconds(), kind, chosen)
	}
}
