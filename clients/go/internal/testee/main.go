// Command testee makes the calls of clients/conformance.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"reflect"
	"time"

	concord "github.com/concord-config/concord/clients/go"
)

const (
	patience     = 40 * time.Second
	freshOfCache = 3 * time.Second
	lineBytesMax = 64 << 20
)

// message is a line of the input.
type message struct {
	Client struct {
		URLs        []string          `json:"urls"`
		Key         string            `json:"key"`
		Timeout     float64           `json:"timeout_s"`
		Attempt     float64           `json:"attempt_timeout_s"`
		Environment string            `json:"environment"`
		Reader      string            `json:"reader"`
		Labels      map[string]string `json:"labels"`
	} `json:"client"`
	Call call `json:"call"`
	Step *struct {
		Do, Config, File string
		Start            float64 `json:"start_timeout_s"`
		Data             json.RawMessage
		IsFresh          *bool `json:"is_fresh"`
		Missing          *bool
	} `json:"step"`
}

type call struct {
	Do, Definition, Config, Reason string
	Method, Path, Consistency      string
	Data, Patch                    json.RawMessage
	Body                           *json.RawMessage
	Set                            map[string]json.RawMessage
	Operations                     []json.RawMessage
	IfMatch                        *uint64 `json:"if_match"`
	IdempotencyKey                 *string `json:"idempotency_key"`
	Revision                       *uint64
	PageSize                       int `json:"page_size"`
	From                           uint64
	Take                           int
}

type object = map[string]any

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, lineBytesMax)
	var asked message
	for has := read(lines, &asked); has; {
		client, err := newClient(&asked)
		switch {
		case err != nil:
			tell(nil, err)
			has = read(lines, &asked)
		case asked.Call.Do == "cache":
			tell(object{}, nil)
			has = steps(client, lines, &asked)
		default:
			tell(made(context.Background(), client, &asked.Call))
			has = read(lines, &asked)
		}
		if client != nil {
			client.Close()
		}
	}
}

func read(lines *bufio.Scanner, into *message) bool {
	*into = message{}
	if !lines.Scan() {
		return false
	}
	if err := json.Unmarshal(lines.Bytes(), into); err != nil {
		log.Fatal(err)
	}
	return true
}

func newClient(asked *message) (*concord.Client, error) {
	seconds := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	given := asked.Client
	return concord.New(concord.Options{
		URLs: given.URLs, Key: given.Key, Timeout: seconds(given.Timeout), AttemptTimeout: seconds(given.Attempt),
		Environment: given.Environment, Reader: given.Reader, NoReader: given.Reader == "", Labels: given.Labels,
	})
}

// made is what a call results in.
func made(ctx context.Context, client *concord.Client, c *call) (any, error) {
	switch c.Do {
	case "get":
		var options []concord.GetOption
		if c.Revision != nil {
			options = append(options, concord.AtRevision(*c.Revision))
		}
		switch c.Consistency {
		case "linearizable":
			options = append(options, concord.Linearizable())
		case "lease":
			options = append(options, concord.Lease())
		case "local":
			options = append(options, concord.Local())
		}
		found, err := client.Get(ctx, c.Definition, c.Config, options...)
		if err != nil {
			return nil, err
		}
		return object{"data": found.Data, "revision": found.Revision}, nil
	case "put":
		options := plain[concord.PutOption](c)
		if c.IfMatch != nil {
			options = append(options, concord.IfMatch(*c.IfMatch))
		}
		return revision(client.Put(ctx, c.Definition, c.Config, c.Data, options...))
	case "create":
		return revision(client.Create(ctx, c.Definition, c.Config, c.Data, plain[concord.WriteOption](c)...))
	case "patch":
		return revision(client.Patch(ctx, c.Definition, c.Config, c.Patch, conditional(c)...))
	case "delete":
		_, err := client.Delete(ctx, c.Definition, c.Config, conditional(c)...)
		return object{}, err
	case "update":
		return revision(client.Update(ctx, c.Definition, c.Config, func(data map[string]any) error {
			for name, value := range c.Set {
				data[name] = value
			}
			return nil
		}))
	case "list":
		keys := []string{}
		for each, err := range client.List(ctx, c.Definition, concord.PageSize(c.PageSize)) {
			if err != nil {
				return nil, err
			}
			keys = append(keys, each.Key)
		}
		return keys, nil
	case "batch":
		var operations []concord.Operation
		for _, each := range c.Operations {
			operations = append(operations, concord.OpRaw(each))
		}
		done, err := client.Batch(ctx, operations, plain[concord.WriteOption](c)...)
		if err != nil {
			return nil, err
		}
		return object{"revision": done.Revision}, nil
	case "request":
		key := ""
		if c.IdempotencyKey != nil {
			key = *c.IdempotencyKey
		}
		var body any
		if c.Body != nil {
			body = *c.Body
		}
		done, err := client.Request(ctx, c.Method, c.Path, body, key)
		if err != nil {
			return nil, err
		}
		return done.Data, nil
	case "watch":
		return watched(ctx, client, c)
	}
	return nil, fmt.Errorf("there is no call %q", c.Do)
}

// plain are the options that every write takes.
func plain[O any](c *call) []O {
	var options []O
	if c.Reason != "" {
		options = append(options, any(concord.Reason(c.Reason)).(O))
	}
	if c.IdempotencyKey != nil {
		options = append(options, any(concord.IdempotencyKey(*c.IdempotencyKey)).(O))
	}
	return options
}

func conditional(c *call) []concord.ChangeOption {
	options := plain[concord.ChangeOption](c)
	if c.IfMatch != nil {
		options = append(options, concord.IfMatch(*c.IfMatch))
	}
	return options
}

func revision(done *concord.Written, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return object{"revision": done.Revision}, nil
}

func watched(ctx context.Context, client *concord.Client, c *call) (any, error) {
	found := []object{}
	for event, err := range client.Watch(ctx, concord.WatchOptions{Definitions: []string{c.Definition}, From: c.From}) {
		if err != nil {
			return nil, err
		}
		for _, each := range event.Changes {
			told := object{"revision": event.Revision, "type": each.Type, "config": each.Key}
			if each.Data != nil {
				told["data"] = each.Data
			}
			found = append(found, told)
		}
		if len(found) >= c.Take {
			break
		}
	}
	return found, nil
}

// steps makes the calls of a cache, and returns whether there is another message.
func steps(client *concord.Client, lines *bufio.Scanner, asked *message) bool {
	definition := asked.Call.Definition
	var cache *concord.Cache
	for read(lines, asked) {
		step := asked.Step
		if step == nil {
			return true
		}
		switch step.Do {
		case "start":
			made, err := client.NewCache(context.Background(), concord.CacheOptions{
				Definitions: []string{definition}, File: step.File, Poll: time.Second, Fresh: freshOfCache,
				StartTimeout: time.Duration(step.Start * float64(time.Second)),
			})
			cache = made
			tell(object{}, err)
		case "stop":
			if cache != nil {
				cache.Close()
			}
			tell(object{}, nil)
		default:
			found, err := cached(cache, definition, step.Config)
			isThere := func() bool {
				return (step.Data == nil || isSame(found["data"], step.Data)) &&
					(step.IsFresh == nil || found["is_fresh"] == *step.IsFresh) && (step.Missing == nil || found["missing"] == *step.Missing)
			}
			for end := time.Now().Add(patience); step.Do == "wait" && err == nil && !isThere() && time.Now().Before(end); {
				time.Sleep(20 * time.Millisecond)
				found, err = cached(cache, definition, step.Config)
			}
			tell(found, err)
		}
	}
	return false
}

func cached(cache *concord.Cache, definition, key string) (object, error) {
	value, err := cache.Get(definition, key)
	if errors.Is(err, concord.ErrNotCached) {
		return object{"missing": true}, nil
	}
	if err != nil {
		return nil, err
	}
	found := object{"data": value.Data, "revision": value.Revision, "is_fresh": value.IsFresh()}
	if value.Source == concord.SourceFile {
		found["source"] = "file"
	}
	return found, nil
}

func isSame(one any, other json.RawMessage) bool {
	text, ok := one.(json.RawMessage)
	return ok && reflect.DeepEqual(parsed(text), parsed(other))
}

func parsed(text json.RawMessage) any {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil && err != io.EOF {
		log.Fatal(err)
	}
	return value
}

func tell(value any, err error) {
	told := object{"value": value}
	if err != nil {
		told = object{"error": outcome(err)}
	}
	if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
		log.Fatal(err)
	}
}

func outcome(err error) object {
	var unknown *concord.UnknownOutcomeError
	var rejected *concord.APIError
	var unavailable *concord.UnavailableError
	var wrong *concord.ProtocolError
	switch {
	case errors.As(err, &unknown):
		told := object{"kind": "unknown", "idempotency_key": nil}
		if unknown.IdempotencyKey != "" {
			told["idempotency_key"] = unknown.IdempotencyKey
		}
		return told
	case errors.As(err, &rejected) && rejected.Node != "":
		told := object{"kind": "rejected", "status": rejected.Status, "code": rejected.Code(), "paths": rejected.Paths()}
		if rejected.Status == 412 {
			told["current_revision"] = rejected.CurrentRevision
		}
		return told
	case errors.As(err, &unavailable):
		return object{"kind": "unavailable"}
	case errors.As(err, &wrong):
		return object{"kind": "protocol"}
	case errors.Is(err, concord.ErrNotReady):
		return object{"kind": "not_ready"}
	}
	fmt.Fprintln(os.Stderr, err)
	return object{"kind": "invalid"}
}
