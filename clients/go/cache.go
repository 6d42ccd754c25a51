package concord

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	pollDefault         = 5 * time.Second
	freshDefault        = 15 * time.Second
	startTimeoutDefault = 10 * time.Second
)

// AgeUnknown is the age of a value about which nothing is known.
const AgeUnknown = time.Duration(math.MaxInt64)

// Source is where a value of a cache comes from.
type Source string

// The sources of values.
const (
	// SourceLive was confirmed a moment ago, and nothing has failed since.
	SourceLive Source = "live"
	// SourceCache is from memory, while no node confirms it.
	SourceCache Source = "cache"
	// SourceFile is from the last-known-good file.
	SourceFile Source = "file"
	// SourceDefault is what the program gave, because no node has responded and there is no file.
	SourceDefault Source = "default"
	// SourceNone is the source of a cache without anything.
	SourceNone Source = "none"
)

// CacheOptions say what a cache holds.
type CacheOptions struct {
	// Definitions are keys, or key prefixes with `*` at the end. Nil is all.
	Definitions []string
	// Configs are the keys of configs of one definition. Nil is all.
	Configs []string
	// Filters select configs of one definition. With them, the cache has the proven data.
	Filters Filters
	// File is the last-known-good file, for a start without nodes.
	File string
	// Defaults are data by definition and key. They are used before a node has responded, while there is no file.
	Defaults map[string]map[string]any
	// Poll is how often the cluster is asked for its revision, in whole seconds: 5 seconds by default.
	Poll time.Duration
	// Fresh is up to which age a value is [SourceLive]: 15 seconds by default.
	Fresh time.Duration
	// StartTimeout is how long the start waits for a node: 10 seconds by default. Then the file or the defaults are used.
	StartTimeout time.Duration
	// OnChange is called with each event and state once that is in the cache, in the goroutine that follows the cluster.
	// The data in them are shared: they must not be changed.
	OnChange func(*Event)
}

// Value is a value of a cache, with where it comes from.
type Value struct {
	Definition, Key string
	// Data are shared: they must not be changed.
	Data   json.RawMessage
	Source Source
	// Age is an upper bound: every write that was acknowledged longer ago is in the value.
	Age time.Duration
	// Revision is that of the config; 0 of a default, and of a candidate, which has none.
	Revision   uint64
	ModifiedAt time.Time
	// StateRevision is the revision up to which the cache has every change.
	StateRevision uint64
	// Node is the URL of the node that the value comes from.
	Node string
	// Redacted are the places of secret values that the key may not see. They are null in the data.
	Redacted []string
	// Variant is the id of the change request whose candidate this is; empty for the proven data.
	Variant string
	// Invalid says, of [TypedCache.Explain], why the newest data do not fit the type. Data and Revision are those of the
	// last value then.
	Invalid error
}

// IsFresh tells whether the value is [SourceLive].
func (v *Value) IsFresh() bool { return v.Source == SourceLive }

// Decode reads the data as a Go value; see [Config.Decode].
func (v *Value) Decode(into any) error { return decodeData(v.Definition, v.Key, v.Data, into) }

// Status is what a cache has.
type Status struct {
	Source   Source
	Age      time.Duration
	Revision uint64
	Configs  int
	Node     string
	// Problem is why the cache is not being confirmed, or why the file could not be read or written.
	Problem string
	// Unreadable are configs that this client can't read, with the reason. They are as they were before.
	Unreadable map[Pointer]string
}

// Cache is a copy in memory that follows the cluster. Reading it sends nothing and waits for nobody.
//
// The copy is put together from a state and the changes after it. Every few seconds a linearizable read tells the
// revision of the cluster. Once the copy has that revision, it has every write that was acknowledged before the read was
// sent: that is what ages are counted from. The copy never goes back while its cluster does not.
type Cache struct {
	client    *Client
	options   CacheOptions
	following *following
	defaults  map[Pointer]*Config
	file      *cacheFile
	current   atomic.Pointer[snapshot]
	reports   *reports

	// mu guards the views and the listeners.
	mu        sync.Mutex
	views     map[any]view
	listeners map[*func(*Event)]bool

	life    context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	closing sync.Once
	// listedAt is when the state was read last.
	listedAt moment
}

// snapshot is immutable: what a cache has at one moment.
type snapshot struct {
	configs     *configSet
	definitions map[string]*Definition
	unreadable  map[Pointer]string
	revision    uint64
	node        string
	// confirmedAt counts if isConfirmed.
	confirmedAt moment
	isConfirmed bool
	// fileConfirmedAt is by the wall clock; zero if nothing was read from a file.
	fileConfirmedAt      time.Time
	problem, fileProblem string
	// replaced is closed when there is a newer snapshot.
	replaced chan struct{}
}

// NewCache makes a cache and waits until a node has responded; after [CacheOptions.StartTimeout] the file or the
// defaults are enough. Without any of them the error is [ErrNotReady]. The context is for the start alone. The cache
// lasts until [Cache.Close] or [Client.Close].
func (c *Client) NewCache(ctx context.Context, options CacheOptions) (*Cache, error) {
	made, err := c.newCache(options)
	if err != nil {
		return nil, err
	}
	if err := made.begin(ctx); err != nil {
		return nil, err
	}
	return made, nil
}

func (c *Client) newCache(options CacheOptions) (*Cache, error) {
	cluster := c.cluster.forCache()
	following, err := newFollowing(cluster, options.Definitions, options.Configs, options.Filters, "", false)
	if err != nil {
		return nil, err
	}
	options.Poll = max(orDefault(options.Poll, pollDefault).Truncate(time.Second), time.Second)
	options.Fresh = orDefault(options.Fresh, freshDefault)
	made := &Cache{
		client: c, options: options, following: following, defaults: map[Pointer]*Config{},
		views: map[any]view{}, listeners: map[*func(*Event)]bool{},
	}
	for definition, configs := range options.Defaults {
		for key, value := range configs {
			data, err := encode(value)
			if err != nil {
				return nil, fmt.Errorf("concord: the default of %s/%s is not JSON: %w", definition, key, err)
			}
			made.defaults[Pointer{definition, key}] = &Config{Definition: definition, Key: key, Data: data}
		}
	}
	if options.OnChange != nil {
		made.listeners[&options.OnChange] = true
	}
	made.current.Store(&snapshot{configs: &configSet{}, replaced: make(chan struct{})})
	made.reports = newReports(made)
	if options.File != "" {
		made.file = newCacheFile(options.File, cluster.environment, &options)
	}
	return made, nil
}

func (c *Cache) begin(ctx context.Context) error {
	c.restore()
	if err := c.start(); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, orDefault(c.options.StartTimeout, startTimeoutDefault))
	defer cancel()
	err := c.wait(waiting, func(s *snapshot) bool { return s.isConfirmed })
	if err == nil {
		return nil
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = c.goWithoutNodes()
	}
	if err != nil {
		c.Close()
	}
	return err
}

func (c *Cache) start() error {
	c.client.mu.Lock()
	defer c.client.mu.Unlock()
	if c.client.isClosed {
		return ErrClosed
	}
	c.client.caches[c] = true
	c.life, c.stop = context.WithCancel(context.Background())
	c.running.Add(1)
	go func() {
		defer c.running.Done()
		c.follow(c.life)
	}()
	if c.reports.reader != nil {
		c.running.Add(1)
		go func() {
			defer c.running.Done()
			c.reports.run(c.life)
		}()
	}
	return nil
}

// goWithoutNodes says once that the start goes on without a node.
func (c *Cache) goWithoutNodes() error {
	s := c.current.Load()
	source, age, err := c.origin(s)
	if err != nil {
		return err
	}
	what := "the defaults are used"
	if source == SourceFile {
		what = fmt.Sprintf("the file is used, it is %s old", shown(age))
	}
	problem := "no node has responded since the start; " + what
	isNews := false
	c.update(func(s *snapshot) {
		// The goroutine that follows may have said more, or have heard a node meanwhile.
		if isNews = s.problem == "" && !s.isConfirmed; isNews {
			s.problem = problem
		}
	})
	if isNews {
		c.client.logger.Warn("the cache is not being confirmed", "problem", problem)
	}
	return nil
}

// Close ends the cache and writes the file once more. A listener of the cache must not call it.
func (c *Cache) Close() error {
	c.closing.Do(func() {
		c.stop()
		c.running.Wait()
		c.client.mu.Lock()
		delete(c.client.caches, c)
		c.client.mu.Unlock()
		c.save(true)
	})
	return nil
}

// Get returns a config, with where it comes from. The error is [ErrNotCached] if there is none, and [ErrNotReady] if the
// cache has nothing yet.
func (c *Cache) Get(definition, key string) (Value, error) {
	s := c.current.Load()
	source, age, err := c.origin(s)
	if err != nil {
		return Value{}, err
	}
	name := Pointer{definition, key}
	if found := s.configs.get(name); found != nil {
		return s.valueOf(found, source, age), nil
	}
	if err := c.checkCovered(definition, key); err != nil {
		return Value{}, err
	}
	if found := c.defaults[name]; found != nil && source == SourceDefault {
		return valueOf(found, source, age, 0), nil
	}
	if why, ok := s.unreadable[name]; ok {
		return Value{}, &ProtocolError{s.node, fmt.Sprintf("the config %s/%s can't be read: %s", definition, key, why)}
	}
	return Value{}, &NotCachedError{definition, key, source, age}
}

// Data returns the data of a config alone. They are shared and must not be changed.
func (c *Cache) Data(definition, key string) (json.RawMessage, error) {
	if found := c.current.Load().configs.get(Pointer{definition, key}); found != nil {
		return found.Data, nil
	}
	value, err := c.Get(definition, key)
	return value.Data, err
}

// All iterates over the configs of a definition, or of all definitions with an empty text. All of them are of one
// revision, whatever changes meanwhile.
func (c *Cache) All(definition string) iter.Seq[Value] {
	return func(yield func(Value) bool) {
		s := c.current.Load()
		source, age, err := c.origin(s)
		if err != nil {
			return
		}
		configs := s.configs.all()
		if source == SourceDefault {
			configs = maps.All(c.defaults)
		}
		for name, config := range configs {
			isMeant := definition == "" || name.Definition == definition
			if isMeant && !yield(s.valueOf(config, source, age)) {
				return
			}
		}
	}
}

// Definition returns a definition that is followed. Its schema and its indexes are shared: they must not be changed.
func (c *Cache) Definition(key string) (*Definition, error) {
	s := c.current.Load()
	source, age, err := c.origin(s)
	if err != nil {
		return nil, err
	}
	if found := s.definitions[key]; found != nil {
		made := *found
		return &made, nil
	}
	return nil, &NotCachedError{Definition: key, Source: source, Age: age}
}

// Status says where the copy is from, how old it is, and what is wrong.
func (c *Cache) Status() Status {
	s := c.current.Load()
	source, age, err := c.origin(s)
	if err != nil {
		source, age = SourceNone, AgeUnknown
	}
	made := Status{
		Source: source, Age: age, Revision: s.revision, Configs: s.configs.size, Node: s.node,
		Problem: s.problem, Unreadable: maps.Clone(s.unreadable),
	}
	if source == SourceDefault {
		made.Configs = len(c.defaults)
	}
	if made.Problem == "" {
		made.Problem = s.fileProblem
	}
	return made
}

// WaitRevision waits until the copy has everything up to a revision, as that of one's own write.
func (c *Cache) WaitRevision(ctx context.Context, revision uint64) error {
	return c.wait(ctx, func(s *snapshot) bool { return s.revision >= revision })
}

func (c *Cache) wait(ctx context.Context, condition func(*snapshot) bool) error {
	for {
		s := c.current.Load()
		if condition(s) {
			return nil
		}
		select {
		case <-s.replaced:
		case <-ctx.Done():
			return ctx.Err()
		case <-c.life.Done():
			return ErrClosed
		}
	}
}

// OnChange calls a function as [CacheOptions.OnChange] is called, until the returned function is called.
func (c *Cache) OnChange(listener func(*Event)) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners[&listener] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.listeners, &listener)
	}
}

// origin is where a snapshot is from, and its age.
func (c *Cache) origin(s *snapshot) (Source, time.Duration, error) {
	if s.isConfirmed {
		if age := s.confirmedAt.age(); age > c.options.Fresh || s.problem != "" {
			return SourceCache, age, nil
		} else {
			return SourceLive, age, nil
		}
	}
	if !s.fileConfirmedAt.IsZero() {
		age := time.Since(s.fileConfirmedAt)
		if age < 0 {
			// A wall clock that was set back says nothing.
			age = AgeUnknown
		}
		return SourceFile, age, nil
	}
	if len(c.defaults) > 0 {
		return SourceDefault, AgeUnknown, nil
	}
	why := s.problem
	if why == "" {
		why = s.fileProblem
	}
	if why == "" {
		why = "no node has responded"
	}
	return SourceNone, AgeUnknown, fmt.Errorf("%w: %s", ErrNotReady, why)
}

func (c *Cache) checkCovered(definition, key string) error {
	isMatch := func(pattern string) bool {
		prefix, isPattern := strings.CutSuffix(pattern, "*")
		return definition == pattern || isPattern && strings.HasPrefix(definition, prefix)
	}
	if c.options.Definitions != nil && !slices.ContainsFunc(c.options.Definitions, isMatch) {
		return fmt.Errorf("concord: this cache does not follow the definition %q", definition)
	}
	if c.options.Configs != nil && !slices.Contains(c.options.Configs, key) {
		return fmt.Errorf("concord: this cache does not follow the config %q", key)
	}
	return nil
}

// valueOf returns a config of the cache. If there is a newer version that can't be read, nobody knows how long this one
// has not been the newest.
func (s *snapshot) valueOf(found *Config, source Source, age time.Duration) Value {
	if _, ok := s.unreadable[Pointer{found.Definition, found.Key}]; ok {
		age = AgeUnknown
		if source == SourceLive {
			source = SourceCache
		}
	}
	return valueOf(found, source, age, s.revision)
}

func valueOf(found *Config, source Source, age time.Duration, state uint64) Value {
	return Value{
		Definition: found.Definition, Key: found.Key, Data: found.Data, Source: source, Age: age, Revision: found.Revision,
		ModifiedAt: found.ModifiedAt, StateRevision: state, Node: found.Node, Redacted: found.Redacted, Variant: found.Variant,
	}
}

// shown is an age for people.
func shown(age time.Duration) string {
	if age == AgeUnknown {
		return "an unknown time"
	}
	return age.Round(100 * time.Millisecond).String()
}
