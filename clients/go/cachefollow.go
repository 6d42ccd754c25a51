package concord

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// relistEvery is how often the whole state is read again: the permissions of the key may have changed, which is no change
// of a config. Tests shorten it.
var relistEvery = 300 * time.Second

// update replaces the snapshot.
func (c *Cache) update(change func(*snapshot)) {
	c.mu.Lock()
	old := c.current.Load()
	made := *old
	made.replaced = make(chan struct{})
	change(&made)
	c.current.Store(&made)
	c.mu.Unlock()
	close(old.replaced)
}

// follow keeps the copy until the end, whatever goes wrong.
func (c *Cache) follow(ctx context.Context) {
	pause, isCurrent := followPauseFirst, false
	for {
		isConfirmed, err := c.followOnce(ctx, &isCurrent)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			pause = followPauseFirst
			if s := c.current.Load(); s.problem != "" && isConfirmed {
				c.client.logger.Info("the cache is confirmed again", "revision", s.revision)
				c.update(func(s *snapshot) { s.problem = "" })
			}
			c.save(false)
			continue
		}
		var rejected *APIError
		var wrong *ProtocolError
		if errors.As(err, &rejected) || errors.As(err, &wrong) {
			// The changes are gone, or the permissions, or a change can't be read: a list says what there is.
			isCurrent = false
		}
		c.note(err.Error())
		if sleep(ctx, jittered(pause, c.following.cluster)) != nil {
			return
		}
		pause = min(2*pause, followPauseMax)
	}
}

func (c *Cache) followOnce(ctx context.Context, isCurrent *bool) (isConfirmed bool, err error) {
	if !*isCurrent || c.listedAt.age() >= relistEvery {
		if err := c.list(ctx); err != nil {
			return false, err
		}
		*isCurrent = true
	}
	return c.step(ctx)
}

// step confirms the copy, and waits for changes. Without an error it may still not be confirmed.
func (c *Cache) step(ctx context.Context) (isConfirmed bool, err error) {
	revision, sentAt, err := c.following.confirm(ctx)
	if err != nil {
		return false, err
	}
	for c.following.position < revision {
		before := c.following.position
		if err := c.poll(ctx, 0); err != nil {
			return false, err
		}
		if c.following.position == before {
			// The next confirmation tells more. Polling at once could go on without an end.
			return false, sleep(ctx, followPauseFirst)
		}
	}
	c.update(func(s *snapshot) { s.confirmedAt, s.isConfirmed = sentAt, true })
	return true, c.poll(ctx, c.options.Poll)
}

func (c *Cache) poll(ctx context.Context, wait time.Duration) error {
	events, err := c.following.poll(ctx, wait)
	if err != nil {
		return err
	}
	for _, event := range events {
		c.apply(event)
	}
	if c.current.Load().revision < c.following.position {
		c.update(func(s *snapshot) { s.revision = c.following.position })
	}
	return nil
}

// list replaces the copy by the current state. A config that has not changed stays the same one, so that views keep
// their values.
func (c *Cache) list(ctx context.Context) error {
	event, sentAt, err := c.following.state(ctx)
	if err != nil {
		return err
	}
	old := c.current.Load()
	configs := (&configSet{}).edit()
	isSame := old.isConfirmed && old.configs.size == len(event.State.Configs)
	for _, config := range event.State.Configs {
		name := Pointer{config.Definition, config.Key}
		if known := old.configs.get(name); known != nil && isSameVersion(known, config) {
			config = known
		} else {
			// The listeners get the other one: the program may change that.
			made := *config
			config, isSame = &made, false
		}
		configs.put(name, config)
	}
	for name := range event.State.Unreadable {
		if known := old.configs.get(name); known != nil {
			configs.put(name, known)
		}
	}
	for name := range old.configs.all() {
		if configs.made.get(name) == nil {
			configs.put(name, nil)
		}
	}
	definitions := map[string]*Definition{}
	for _, each := range event.State.Definitions {
		made := *each
		definitions[each.Key] = &made
	}
	if event.Revision < old.revision {
		c.client.logger.Warn("the cluster has an earlier revision than the cache", "revision", event.Revision, "cache", old.revision)
	}
	c.tellUnreadable(old.unreadable, event.State.Unreadable)
	c.replace(configs, func(s *snapshot) {
		s.definitions, s.unreadable, s.revision, s.node = definitions, maps.Clone(event.State.Unreadable), event.Revision, event.Node
		if !s.isConfirmed {
			// Why there was nothing before says nothing of what there is now.
			s.problem = ""
		}
		s.confirmedAt, s.isConfirmed = sentAt, true
	})
	c.listedAt = sentAt
	if !isSame {
		c.tell(event)
	}
	return nil
}

func (c *Cache) apply(event *Event) {
	old := c.current.Load()
	configs := old.configs.edit()
	definitions, unreadable := old.definitions, maps.Clone(old.unreadable)
	if unreadable == nil {
		unreadable = map[Pointer]string{}
	}
	for n := range event.Changes {
		change := &event.Changes[n]
		name := Pointer{change.Definition, change.Key}
		if change.Problem != "" {
			unreadable[name] = change.Problem
			continue
		}
		delete(unreadable, name)
		switch {
		case change.Type == "definition_deleted":
			definitions = maps.Clone(definitions)
			delete(definitions, change.Definition)
			for each := range configs.made.all() {
				if each.Definition == change.Definition {
					configs.put(each, nil)
				}
			}
			maps.DeleteFunc(unreadable, func(each Pointer, _ string) bool { return each.Definition == change.Definition })
		case change.Key == "":
			var record definitionRecord
			if json.Unmarshal(change.Raw, &record) == nil {
				if definitions = maps.Clone(definitions); definitions == nil {
					definitions = map[string]*Definition{}
				}
				definitions[change.Definition] = record.definition(event.Revision)
			}
		case change.Type == "config_created", change.Type == "config_updated":
			configs.put(name, change.config(event.Node))
		default:
			configs.put(name, nil)
		}
	}
	c.tellUnreadable(old.unreadable, unreadable)
	c.replace(configs, func(s *snapshot) {
		s.definitions, s.unreadable, s.revision, s.node = definitions, unreadable, event.Revision, event.Node
	})
	c.tell(event)
}

// replace replaces the configs. Before that, views make the values of what goes, so that they have a last one; after it,
// they forget what is gone in one step with that: what was created again under the same name is another one.
func (c *Cache) replace(made *configEditor, more func(*snapshot)) {
	old := c.current.Load().configs
	for _, name := range made.touched {
		before := old.get(name)
		if before == nil || before == made.made.get(name) {
			continue
		}
		for _, each := range c.viewsOf(name.Definition) {
			each.keep(before)
		}
	}
	c.update(func(s *snapshot) {
		more(s)
		s.configs = made.made
		c.current.Store(s)
		for _, name := range made.removed {
			for _, each := range c.views {
				if each.of() == name.Definition {
					each.forget(name.Key)
				}
			}
		}
	})
}

func (c *Cache) viewsOf(definition string) []view {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []view
	for _, each := range c.views {
		if each.of() == definition {
			found = append(found, each)
		}
	}
	return found
}

func (c *Cache) tellUnreadable(old, new map[Pointer]string) {
	for name, why := range new {
		if _, isKnown := old[name]; !isKnown {
			c.client.logger.Warn("a config can't be read", "definition", name.Definition, "config", name.Key, "problem", why)
		}
	}
}

// tell calls the listeners. A panic of one of them must not end the cache.
func (c *Cache) tell(event *Event) {
	c.mu.Lock()
	listeners := slices.Collect(maps.Keys(c.listeners))
	c.mu.Unlock()
	for _, listener := range listeners {
		func() {
			defer func() {
				if panicked := recover(); panicked != nil {
					c.client.logger.Error("a listener of the cache panicked", "panic", fmt.Sprint(panicked))
				}
			}()
			(*listener)(event)
		}()
	}
}

func (c *Cache) note(problem string) {
	if c.current.Load().problem == "" {
		c.client.logger.Warn("the cache is not being confirmed", "problem", problem)
	}
	c.update(func(s *snapshot) { s.problem = problem })
}

// isSameVersion tells whether two configs are one version. Two editions of a change request have the same id, and the
// permissions decide what of the data is shown, so the data count as well.
func isSameVersion(one, other *Config) bool {
	return one.Revision == other.Revision && one.Variant == other.Variant && bytes.Equal(one.Data, other.Data) &&
		slices.Equal(one.Redacted, other.Redacted)
}
