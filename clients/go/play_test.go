package concord

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const timeOfRecords = "2026-11-23T00:00:00.000000Z"

var (
	errRefused = &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	errLost    = errors.New("connection reset")
)

// play plays the nodes.
type play struct {
	mu       sync.Mutex
	answer   func(*http.Request) (*http.Response, error)
	requests []*http.Request
	bodies   []string
}

func (p *play) RoundTrip(r *http.Request) (*http.Response, error) {
	body := ""
	if r.Body != nil {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		body = string(text)
	}
	p.mu.Lock()
	p.requests, p.bodies = append(p.requests, r), append(p.bodies, body)
	answer := p.answer
	p.mu.Unlock()
	return answer(r)
}

func (p *play) set(answer func(*http.Request) (*http.Response, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

func (p *play) sent() ([]*http.Request, []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*http.Request{}, p.requests...), append([]string{}, p.bodies...)
}

func (p *play) client(t *testing.T, change ...func(*Options)) *Client {
	t.Helper()
	options := Options{
		URLs: []string{"http://a:1,http://b:2,http://c:3"}, Key: "the-key", Transport: p, NoReader: true, Timeout: 2 * time.Second,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	for _, each := range change {
		each(&options)
	}
	client, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func answer(status int, body string, header ...string) *http.Response {
	made := http.Header{}
	for n := 0; n < len(header); n += 2 {
		made.Set(header[n], header[n+1])
	}
	return &http.Response{StatusCode: status, Header: made, Body: io.NopCloser(strings.NewReader(body))}
}

func ok(data any, header ...string) (*http.Response, error) {
	text, err := encode(map[string]any{"status": "SUCCESS", "data": data})
	return answer(200, string(text), header...), err
}

func rejects(status int, code string, header ...string) *http.Response {
	return answer(status, fmt.Sprintf(`{"errors":[{"type":"t","code":%q,"msg":"m"}]}`, code), header...)
}

type jsonObject = map[string]any

func record(key string, data any) jsonObject {
	return jsonObject{"config_key": key, "data": data, "created_at": timeOfRecords, "modified_at": timeOfRecords}
}

// fakeCluster answers what a cache asks, from a list of events.
type fakeCluster struct {
	play
	state fakeState
	// changed is closed by the next change.
	changed chan struct{}
}

type fakeState struct {
	events                      []jsonObject
	initial                     map[string]jsonObject
	revision, compacted         int
	down, forbidden, hasNoWatch bool
	id                          string
	states                      int
	reports                     []jsonObject
	mayReport                   bool
}

func newFakeCluster() *fakeCluster {
	made := &fakeCluster{changed: make(chan struct{}), state: fakeState{
		initial:  map[string]jsonObject{"a": {"config_definition_key": "d", "config_key": "a", "data": json.RawMessage(`{"n":1}`), "created_at": timeOfRecords, "modified_at": timeOfRecords, "revision": 9}},
		revision: 10, id: "one", mayReport: true,
	}}
	made.answer = made.respond
	return made
}

func (f *fakeCluster) with(change func(*fakeState)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.state)
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeCluster) put(key, data string, more ...any) {
	f.with(func(s *fakeState) {
		change := jsonObject{"type": "config_updated", "config_definition_key": "d", "config_key": key, "data": json.RawMessage(data), "created_at": timeOfRecords, "modified_at": timeOfRecords}
		for n := 0; n < len(more); n += 2 {
			change[more[n].(string)] = more[n+1]
		}
		s.add(change)
	})
}

func (f *fakeCluster) remove(kind, key string) {
	f.with(func(s *fakeState) { s.add(jsonObject{"type": kind, "config_definition_key": "d", "config_key": key}) })
}

func (s *fakeState) add(change jsonObject) {
	s.revision++
	s.events = append(s.events, jsonObject{"revision": s.revision, "at": timeOfRecords, "by": "root", "reason": nil, "changes": []any{change}})
}

// respond waits for a change where a poll waits.
func (f *fakeCluster) respond(r *http.Request) (*http.Response, error) {
	made, changed, err := f.respondNow(r)
	if err != nil || made.StatusCode != 304 || r.URL.Query().Get("wait") == "0" {
		return made, err
	}
	select {
	case <-changed:
	case <-time.After(time.Second):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	made, _, err = f.respondNow(r)
	return made, err
}

func (f *fakeCluster) respondNow(r *http.Request) (*http.Response, chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	made, err := f.respondLocked(r)
	return made, f.changed, err
}

func (f *fakeCluster) respondLocked(r *http.Request) (*http.Response, error) {
	s := &f.state
	header := []string{"X-Concord-Revision", strconv.Itoa(s.revision), "X-Concord-Cluster", s.id}
	switch {
	case s.down:
		return nil, errRefused
	case s.forbidden:
		return rejects(403, "forbidden"), nil
	case strings.HasSuffix(r.URL.Path, "/report"):
		if !s.mayReport {
			s.reports = append(s.reports, nil)
			return rejects(403, "forbidden"), nil
		}
		var told jsonObject
		if err := json.Unmarshal([]byte(f.bodies[len(f.bodies)-1]), &told); err != nil {
			return nil, err
		}
		told["path"] = r.URL.Path
		s.reports = append(s.reports, told)
		return ok(nil)
	case r.URL.Path == watchPath && s.hasNoWatch:
		return rejects(503, "unavailable"), nil
	case r.URL.Path == watchPath:
		s.states++
		configs := []jsonObject{}
		for _, each := range s.initial {
			configs = append(configs, each)
		}
		part, err := encode(jsonObject{"revision": s.revision, "definitions": []any{}, "configs": configs, "complete": false})
		last := fmt.Sprintf(`{"revision":%d,"definitions":[],"configs":[],"complete":true}`, s.revision)
		text := fmt.Sprintf("retry: 1000\nevent: state\ndata: %s\n\nevent: state\r\ndata: %s\r\n\r\n", part, last)
		return answer(200, text, header...), err
	case r.URL.Path == changesPath:
		from := s.revision + 1
		if text := r.URL.Query().Get("from"); text != "" {
			from, _ = strconv.Atoi(text)
		}
		if from <= s.compacted {
			return rejects(410, "revision_compacted"), nil
		}
		var found []any
		next := s.revision + 1
		for _, each := range s.events {
			if each["revision"].(int) >= from {
				found = append(found, each)
			}
		}
		header = append(header, "X-Concord-Next-From", strconv.Itoa(next))
		if found == nil {
			return answer(304, "", header...), nil
		}
		return ok(jsonObject{"events": found}, header...)
	}
	return ok(record("a", json.RawMessage(`{"n":1}`)), "Etag", `"9"`)
}

func (f *fakeCluster) cache(t *testing.T, client *Client, change ...func(*CacheOptions)) *Cache {
	t.Helper()
	options := CacheOptions{Definitions: []string{"d"}, Poll: time.Second}
	for _, each := range change {
		each(&options)
	}
	made, err := client.NewCache(context.Background(), options)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
