package concord

import (
	"errors"
	"iter"
	"reflect"
	"slices"
	"sync"
)

// TypedCache are the configs of one definition in a cache as values of a type. A value is made once for each version of a
// config, so it is shared and must not be changed.
//
// Data that do not fit the type never take the place of data that did: the last value stays, the log says so once, and
// [TypedCache.Explain] says why. If the type, or a pointer to it, has the method `Validate() error`, that decides as well.
type TypedCache[T any] struct {
	cache      *Cache
	definition string
	// held has a *heldValue[T] for each key that was asked for, or replaced.
	held sync.Map
	// mu is held while one is replaced.
	mu sync.Mutex
}

// heldValue is immutable.
type heldValue[T any] struct {
	// config is the version that the value was made of; nil if there is no value.
	config *Config
	value  T
	// rejected is the newest version, if it does not fit.
	rejected *Config
	err      error
}

// view is a typed cache of any type.
type view interface {
	of() string
	typeName() string
	// keep makes the value of a config.
	keep(*Config)
	forget(key string)
	keys() []string
	// rejection is why a config does not fit; nil if it does.
	rejection(*Config) error
}

// NewTypedCache returns the configs of a definition. It is the same one for the same definition and type.
func NewTypedCache[T any](cache *Cache, definition string) *TypedCache[T] {
	type name struct {
		definition string
		of         reflect.Type
	}
	key := name{definition, reflect.TypeFor[T]()}
	cache.mu.Lock()
	defer cache.mu.Unlock()
	if known, ok := cache.views[key]; ok {
		return known.(*TypedCache[T])
	}
	made := &TypedCache[T]{cache: cache, definition: definition}
	cache.views[key] = made
	return made
}

// Get returns a value: the last one that fits. The error is a [*DecodeError] if none ever has, and otherwise as that of
// [Cache.Get].
func (t *TypedCache[T]) Get(key string) (T, error) {
	if found := t.config(key); found != nil {
		held := t.make(found)
		if held.config == nil {
			return held.value, held.err
		}
		return held.value, nil
	}
	var value T
	found, err := t.cache.Get(t.definition, key)
	if err == nil {
		err = found.Decode(&value)
	}
	return value, err
}

// Explain returns the data of the same value, with where it comes from. Invalid is set if newer data do not fit.
func (t *TypedCache[T]) Explain(key string) (Value, error) {
	value, err := t.cache.Get(t.definition, key)
	found := t.config(key)
	if err != nil || found == nil {
		return value, err
	}
	held := t.make(found)
	if held.rejected != found {
		return value, nil
	}
	if held.config != nil {
		value = valueOf(held.config, value.Source, value.Age, value.StateRevision)
	}
	value.Invalid = held.err
	return value, nil
}

// All iterates over the keys and their values. A config that has never fitted is left out.
func (t *TypedCache[T]) All() iter.Seq2[string, T] {
	return func(yield func(string, T) bool) {
		var keys []string
		for each := range t.cache.All(t.definition) {
			keys = append(keys, each.Key)
		}
		slices.Sort(keys)
		for _, key := range keys {
			if value, err := t.Get(key); err == nil && !yield(key, value) {
				return
			}
		}
	}
}

func (t *TypedCache[T]) config(key string) *Config {
	return t.cache.current.Load().configs.get(Pointer{t.definition, key})
}

// make returns what is held of a config. What is late changes nothing: the program, the goroutine that follows, and the
// one that reports may make it at the same time.
func (t *TypedCache[T]) make(config *Config) *heldValue[T] {
	if held := t.load(config.Key); held != nil && (held.config == config || held.rejected == config) {
		return held
	}
	made := &heldValue[T]{config: config}
	if err := config.Decode(&made.value); err != nil {
		made = &heldValue[T]{rejected: config, err: err}
	}
	held, isNews := t.hold(config, made)
	if isNews && held.err != nil {
		t.cache.client.logger.Warn("a config does not fit its type", "definition", config.Definition, "config", config.Key,
			"revision", config.Revision, "variant", config.Variant, "type", t.typeName(),
			"has_value", held.config != nil, "problem", held.err.Error())
	}
	return held
}

// hold returns what is held now, and whether that is new.
func (t *TypedCache[T]) hold(config *Config, made *heldValue[T]) (*heldValue[T], bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	held := t.load(config.Key)
	switch {
	case held != nil && (held.config == config || held.rejected == config):
		return held, false
	case t.config(config.Key) != config:
		if held != nil && held.config != nil {
			return held, false
		}
		return made, false
	}
	if made.err != nil && held != nil {
		made.config, made.value = held.config, held.value
	}
	t.held.Store(config.Key, made)
	return made, true
}

func (t *TypedCache[T]) load(key string) *heldValue[T] {
	if found, ok := t.held.Load(key); ok {
		return found.(*heldValue[T])
	}
	return nil
}

func (t *TypedCache[T]) of() string          { return t.definition }
func (t *TypedCache[T]) typeName() string    { return reflect.TypeFor[T]().String() }
func (t *TypedCache[T]) keep(config *Config) { t.make(config) }

func (t *TypedCache[T]) forget(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held.Delete(key)
}

func (t *TypedCache[T]) keys() []string {
	var keys []string
	t.held.Range(func(key, _ any) bool {
		keys = append(keys, key.(string))
		return true
	})
	return keys
}

func (t *TypedCache[T]) rejection(config *Config) error {
	if held := t.make(config); held.rejected == config {
		return held.err
	}
	return nil
}

// placesIn are the places that do not fit, as a report names them: without values, which may be secret.
func placesIn(err error) []string {
	var found *DecodeError
	if errors.As(err, &found) {
		return found.Paths
	}
	return nil
}
