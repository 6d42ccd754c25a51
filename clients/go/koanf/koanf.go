// Package koanf lets koanf read a config of Concord from a cache.
//
//	k := koanf.New(".")
//	err := k.Load(concordkoanf.Provider(cache, "limits", "acme"), nil)
package koanf

import (
	"bytes"
	"encoding/json"
	"errors"
	"sync"

	concord "github.com/concord-config/concord/clients/go"
)

// Config is a provider of koanf for one config.
type Config struct {
	cache           *concord.Cache
	definition, key string

	mu   sync.Mutex
	stop func()
}

// Provider reads from the cache, so it sends nothing and also works while no node is reachable.
func Provider(cache *concord.Cache, definition, key string) *Config {
	return &Config{cache: cache, definition: definition, key: key}
}

// ReadBytes returns the data as JSON.
func (c *Config) ReadBytes() ([]byte, error) {
	data, err := c.cache.Data(c.definition, c.key)
	return bytes.Clone(data), err
}

// Read returns the data. A number is an int64 or a float64 if that holds all its digits, and otherwise a json.Number.
func (c *Config) Read() (map[string]any, error) {
	data, err := c.cache.Data(c.definition, c.key)
	if err != nil {
		return nil, err
	}
	var found map[string]any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(&found); err != nil {
		return nil, err
	}
	for name, value := range found {
		found[name] = plain(value)
	}
	return found, nil
}

// plain replaces numbers by those that koanf knows.
func plain(value any) any {
	switch value := value.(type) {
	case json.Number:
		if whole, err := value.Int64(); err == nil {
			return whole
		}
		number, err := value.Float64()
		if text, encodeErr := json.Marshal(number); err == nil && encodeErr == nil && string(text) == value.String() {
			return number
		}
		return value
	case map[string]any:
		for name, each := range value {
			value[name] = plain(each)
		}
	case []any:
		for n, each := range value {
			value[n] = plain(each)
		}
	}
	return value
}

// Watch calls a function after each change of the config, until [Config.Unwatch]. Load the provider again there.
func (c *Config) Watch(changed func(event any, err error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		return errors.New("concord: the provider is watched already")
	}
	c.stop = c.cache.OnChange(func(event *concord.Event) {
		if event.State != nil || contains(event.Changes, c.definition, c.key) {
			changed(event, nil)
		}
	})
	return nil
}

// Unwatch ends the watch.
func (c *Config) Unwatch() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		c.stop()
		c.stop = nil
	}
	return nil
}

func contains(changes []concord.Change, definition, key string) bool {
	for _, each := range changes {
		if each.Definition == definition && (each.Key == key || each.Type == "definition_deleted") {
			return true
		}
	}
	return false
}
