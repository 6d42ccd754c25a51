package concord

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestACacheFollowsAndSaysWhereAValueCameFrom(t *testing.T) {
	nodes := newFakeCluster()
	var heard []uint64
	var mu sync.Mutex
	cache := nodes.cache(t, nodes.client(t), func(o *CacheOptions) {
		o.OnChange = func(event *Event) {
			mu.Lock()
			defer mu.Unlock()
			if event.State == nil {
				heard = append(heard, event.Revision)
			}
			panic("a listener that fails ends nothing")
		}
	})
	value, err := cache.Get("d", "a")
	if err != nil || string(value.Data) != `{"n":1}` || !value.IsFresh() || value.Revision != 9 || !strings.HasPrefix(value.Node, "http://") {
		t.Fatal(value, err)
	}
	nodes.put("a", `{"n":2}`)
	nodes.put("b", `{"n":1e400}`)
	wait(t, cache, 12)
	if value, _ := cache.Get("d", "b"); string(value.Data) != `{"n":1e400}` || value.Revision != 12 {
		t.Fatal(value)
	}
	count := 0
	for value := range cache.All("d") {
		count++
		if value.StateRevision != 12 {
			t.Fatal(value)
		}
	}
	if count != 2 || cache.Status().Configs != 2 {
		t.Fatal(count)
	}
	nodes.remove("config_deleted", "a")
	wait(t, cache, 13)
	var missing *NotCachedError
	if _, err := cache.Get("d", "a"); !errors.As(err, &missing) || !errors.Is(err, ErrNotCached) || missing.Source != SourceLive {
		t.Fatal(err)
	}
	nodes.with(func(s *fakeState) {
		s.add(jsonObject{"type": "definition_deleted", "config_definition_key": "d"})
	})
	wait(t, cache, 14)
	if cache.Status().Configs != 0 {
		t.Fatal(cache.Status())
	}
	if _, err := cache.Get("other", "a"); err == nil || errors.Is(err, ErrNotCached) {
		t.Fatal(err)
	}
	// A listener is called once the change is in the cache.
	until(t, "each change once", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return fmt.Sprint(heard) == "[11 12 13 14]"
	})
}

func wait(t *testing.T, cache *Cache, revision uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := cache.WaitRevision(ctx, revision); err != nil {
		t.Fatal(err, cache.Status())
	}
}

func sourceOf(cache *Cache) Source { return cache.Status().Source }

func TestACacheWithoutNodesGoesOnAndIsNotFresh(t *testing.T) {
	nodes := newFakeCluster()
	cache := nodes.cache(t, nodes.client(t))
	nodes.with(func(s *fakeState) { s.down = true })
	until(t, "not live", func() bool { return sourceOf(cache) == SourceCache })
	before, _ := cache.Get("d", "a")
	time.Sleep(20 * time.Millisecond)
	value, err := cache.Get("d", "a")
	if err != nil || string(value.Data) != `{"n":1}` || value.Age <= before.Age || cache.Status().Problem == "" {
		t.Fatal(value, err)
	}
	nodes.put("a", `{"n":2}`)
	nodes.with(func(s *fakeState) { s.down = false })
	until(t, "live again", func() bool { return sourceOf(cache) == SourceLive })
	if value, _ := cache.Get("d", "a"); string(value.Data) != `{"n":2}` || cache.Status().Problem != "" {
		t.Fatal(value, cache.Status())
	}
	nodes.with(func(s *fakeState) { s.forbidden = true })
	until(t, "not live without the permission", func() bool { return sourceOf(cache) == SourceCache })
	if value, _ := cache.Get("d", "a"); string(value.Data) != `{"n":2}` || !strings.Contains(cache.Status().Problem, "403") {
		t.Fatal(value, cache.Status())
	}
}

func TestACacheReadsTheStateAgainWhenChangesAreGone(t *testing.T) {
	nodes := newFakeCluster()
	cache := nodes.cache(t, nodes.client(t))
	nodes.with(func(s *fakeState) {
		z := s.initial["a"]
		s.revision, s.compacted = 90, 80
		s.initial = map[string]jsonObject{"z": {"config_definition_key": "d", "config_key": "z", "data": json.RawMessage(`{}`), "created_at": z["created_at"], "modified_at": z["modified_at"], "revision": 85}}
	})
	until(t, "z", func() bool { _, err := cache.Get("d", "z"); return err == nil })
	if _, err := cache.Get("d", "a"); !errors.Is(err, ErrNotCached) {
		t.Fatal(err)
	}
}

func TestWhatAnotherClusterDoesNotConfirmIsNotLive(t *testing.T) {
	for _, each := range []struct {
		id       string
		revision int
	}{{"one", 20}, {"two", 50}, {"two", 70}} {
		nodes := newFakeCluster()
		nodes.with(func(s *fakeState) { s.revision = 50 })
		cache := nodes.cache(t, nodes.client(t), func(o *CacheOptions) { o.Fresh = time.Hour })
		until(t, "live", func() bool { return sourceOf(cache) == SourceLive })
		nodes.with(func(s *fakeState) {
			s.id, s.revision, s.hasNoWatch = each.id, each.revision, true
			s.initial["a"]["data"] = json.RawMessage(`{"n":0}`)
		})
		until(t, "not live", func() bool { return sourceOf(cache) == SourceCache })
		if value, _ := cache.Get("d", "a"); string(value.Data) != `{"n":1}` {
			t.Fatal(each, value)
		}
		nodes.with(func(s *fakeState) { s.hasNoWatch = false })
		until(t, "the data of the other cluster", func() bool {
			value, _ := cache.Get("d", "a")
			return string(value.Data) == `{"n":0}` && value.IsFresh()
		})
		nodes.put("a", `{"n":3}`)
		wait(t, cache, uint64(each.revision)+1)
	}
}

func TestAWatchDoesNotGoOnInAnotherCluster(t *testing.T) {
	for _, isInitial := range []bool{false, true} {
		nodes := newFakeCluster()
		options := WatchOptions{Definitions: []string{"d"}, Initial: isInitial, Wait: time.Second}
		if !isInitial {
			options.From = 11
		}
		nodes.put("a", `{"n":2}`)
		var seen []string
		for event, err := range nodes.client(t).Watch(context.Background(), options) {
			switch {
			case errors.Is(err, ErrExpired):
				seen = append(seen, err.(*APIError).Code())
			case err != nil:
				t.Fatal(err)
			case event.State != nil:
				seen = append(seen, fmt.Sprint("state ", event.Revision))
				nodes.with(func(s *fakeState) { s.id = "two" })
			default:
				seen = append(seen, fmt.Sprint(event.Revision))
				nodes.with(func(s *fakeState) { s.id = "two" })
				nodes.put("a", `{"n":7}`)
			}
			if len(seen) == 2 {
				break
			}
		}
		want := "[11 cluster_changed]"
		if isInitial {
			want = "[state 11 state 11]"
		}
		if fmt.Sprint(seen) != want {
			t.Fatal(seen)
		}
	}
}

func TestACacheReadsTheStateAgainFromTimeToTime(t *testing.T) {
	// No change tells what the permissions of the key hide and show.
	real := relistEvery
	relistEvery = 50 * time.Millisecond
	nodes := newFakeCluster()
	client := nodes.client(t)
	cache := nodes.cache(t, client)
	nodes.with(func(s *fakeState) { s.initial["a"]["redacted"] = []string{"#/n"} })
	until(t, "what the key may no longer see", func() bool { value, _ := cache.Get("d", "a"); return len(value.Redacted) == 1 })
	client.Close()
	relistEvery = real
}

func TestAnAgeIsCountedFromBeforeTheReadThatConfirms(t *testing.T) {
	nodes := newFakeCluster()
	cache := nodes.cache(t, nodes.client(t))
	until(t, "a confirmation", func() bool { return cache.current.Load().isConfirmed })
	var count atomic.Int32
	nodes.set(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path != changesPath {
			return nodes.respond(r)
		}
		// The confirmation names a revision that the cache does not have, and no poll brings it.
		count.Add(1)
		next := 12
		if r.URL.Query().Has("from") {
			next = 11
		}
		return answer(304, "", "X-Concord-Next-From", strconv.Itoa(next)), nil
	})
	until(t, "polls", func() bool { return count.Load() > 2 })
	confirmed := cache.current.Load().confirmedAt
	until(t, "more polls", func() bool { return count.Load() > 6 })
	if cache.current.Load().confirmedAt != confirmed {
		t.Fatal("nothing has confirmed it")
	}
}

func TestAFailureCountsUntilTheNextConfirmation(t *testing.T) {
	nodes := newFakeCluster()
	cache := nodes.cache(t, nodes.client(t), func(o *CacheOptions) { o.Fresh = time.Hour })
	var isUp atomic.Bool
	var count atomic.Int32
	nodes.set(func(r *http.Request) (*http.Response, error) {
		switch {
		case r.URL.Path != changesPath:
			return nodes.respond(r)
		case !isUp.Load():
			return nil, errRefused
		}
		// The cluster responds again, but no poll brings what it has.
		count.Add(1)
		next := 12
		if r.URL.Query().Has("from") {
			next = 11
		}
		return answer(304, "", "X-Concord-Next-From", strconv.Itoa(next)), nil
	})
	until(t, "not live", func() bool { return sourceOf(cache) == SourceCache })
	isUp.Store(true)
	until(t, "polls", func() bool { return count.Load() > 4 })
	if status := cache.Status(); status.Source != SourceCache || status.Problem == "" {
		t.Fatal(status)
	}
}

func TestPollsThatAreAnsweredAtOnceAreNoStorm(t *testing.T) {
	for _, hasBody := range []bool{false, true} {
		var count atomic.Int32
		nodes := newFakeCluster()
		nodes.cache(t, nodes.client(t))
		nodes.set(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path != changesPath {
				return nodes.respond(r)
			}
			count.Add(1)
			if hasBody {
				return ok(jsonObject{"events": []any{}}, "X-Concord-Next-From", "11")
			}
			return answer(304, "", "X-Concord-Next-From", "11"), nil
		})
		if time.Sleep(500 * time.Millisecond); count.Load() > 20 {
			t.Error(hasBody, count.Load())
		}
	}
}

func TestAStateAfterWhichNothingIsRetainedIsReadAgainWithPauses(t *testing.T) {
	var count atomic.Int32
	nodes := newFakeCluster()
	nodes.set(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == changesPath {
			return rejects(410, "revision_compacted"), nil
		}
		count.Add(1)
		return nodes.respond(r)
	})
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	for range nodes.client(t).Watch(ctx, WatchOptions{Initial: true}) {
	}
	if count.Load() < 2 || count.Load() > 8 {
		t.Fatal(count.Load())
	}
}

func TestAStartWithoutNodesIsFromTheFile(t *testing.T) {
	nodes, path := newFakeCluster(), filepath.Join(t.TempDir(), "good.json")
	client := nodes.client(t)
	file := func(o *CacheOptions) { o.File, o.StartTimeout = path, 50*time.Millisecond }
	nodes.cache(t, client, file).Close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal(info, err)
	}
	nodes.with(func(s *fakeState) { s.down = true })
	var log bytes.Buffer
	alone := nodes.client(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	cache := nodes.cache(t, alone, file)
	value, err := cache.Get("d", "a")
	if err != nil || string(value.Data) != `{"n":1}` || value.Source != SourceFile || value.Revision != 9 || value.Age <= 0 || value.Node == "" {
		t.Fatal(value, err)
	}
	time.Sleep(50 * time.Millisecond)
	nodes.with(func(s *fakeState) { s.down = false })
	until(t, "live", func() bool { return sourceOf(cache) == SourceLive })
	cache.Close()
	if warnings := strings.Count(log.String(), "level=WARN"); warnings != 1 {
		t.Fatal(log.String())
	}
	nodes.with(func(s *fakeState) { s.down = true })
	start := func(client *Client, more ...func(*CacheOptions)) error {
		options := CacheOptions{Definitions: []string{"d"}, StartTimeout: 20 * time.Millisecond, File: path}
		for _, each := range more {
			each(&options)
		}
		cache, err := client.NewCache(context.Background(), options)
		if err == nil {
			cache.Close()
		}
		return err
	}
	if err := start(client); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damages := map[string]func() error{
		"damaged": func() error {
			return os.WriteFile(path, bytes.Replace(whole, []byte(`"n":1`), []byte(`"n":2`), 1), 0o600)
		},
		"cut":                func() error { return os.WriteFile(path, whole[:len(whole)/2], 0o600) },
		"writable by others": func() error { return os.Chmod(path, 0o620) },
		"empty":              func() error { return os.WriteFile(path, nil, 0o600) },
		"of another program": func() error { return os.WriteFile(path, []byte("{}\n"), 0o600) },
		"a folder":           func() error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"missing":            func() error { return os.Remove(path) },
	}
	for name, damage := range damages {
		if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, whole, 0o600), damage()); err != nil {
			t.Fatal(err)
		}
		if err := start(client); !errors.Is(err, ErrNotReady) {
			t.Error(name, err)
		}
	}
	if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, whole, 0o600)); err != nil {
		t.Fatal(err)
	}
	others := map[string]func(*CacheOptions){
		"definitions": func(o *CacheOptions) { o.Definitions = []string{"e"} },
		"configs":     func(o *CacheOptions) { o.Configs = []string{"a"} },
		"filters":     func(o *CacheOptions) { o.Filters = Filters{"n": 1} },
	}
	for name, other := range others {
		if err := start(client, other); !errors.Is(err, ErrNotReady) {
			t.Error(name, err)
		}
	}
	if err := start(nodes.client(t, func(o *Options) { o.Environment = "prod" })); !errors.Is(err, ErrNotReady) {
		t.Error("another environment", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, whole) {
		t.Error("an unusable file is not deleted", err)
	}
}

func TestAFirstStartWithoutNodesHasDefaults(t *testing.T) {
	nodes := newFakeCluster()
	nodes.with(func(s *fakeState) { s.down = true })
	cache := nodes.cache(t, nodes.client(t), func(o *CacheOptions) {
		o.StartTimeout = 20 * time.Millisecond
		o.Defaults = map[string]map[string]any{"d": {"a": numbered{7}}}
	})
	typed := NewTypedCache[numbered](cache, "d")
	value, err := cache.Get("d", "a")
	if err != nil || string(value.Data) != `{"n":7}` || value.Source != SourceDefault || value.Age != AgeUnknown || cache.Status().Configs != 1 {
		t.Fatal(value, err)
	}
	if found, err := typed.Get("a"); err != nil || found.N != 7 {
		t.Fatal(found, err)
	}
	if _, err := cache.Get("d", "b"); !errors.Is(err, ErrNotCached) {
		t.Fatal(err)
	}
	nodes.with(func(s *fakeState) { s.down = false })
	until(t, "live", func() bool { found, err := typed.Get("a"); return err == nil && found.N == 1 })
}

func TestARecordThatCanNotBeReadSaysNothingOfOthers(t *testing.T) {
	nodes := newFakeCluster()
	nodes.with(func(s *fakeState) {
		s.initial["b"] = jsonObject{"config_definition_key": "d", "config_key": "b", "data": jsonObject{}, "created_at": "the first of May", "modified_at": timeOfRecords, "revision": 9}
	})
	cache := nodes.cache(t, nodes.client(t))
	var wrong *ProtocolError
	if _, err := cache.Get("d", "b"); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "May") {
		t.Fatal(err)
	}
	nodes.put("a", `{"n":7}`, "modified_at", "never")
	nodes.put("b", `{"n":3}`)
	wait(t, cache, 12)
	a, _ := cache.Get("d", "a")
	b, _ := cache.Get("d", "b")
	status := cache.Status()
	if a.Source != SourceCache || a.Age != AgeUnknown || b.Source != SourceLive {
		t.Fatalf("there is a newer version of a, and none of b: %v, %v", a, b)
	}
	if string(a.Data) != `{"n":1}` || string(b.Data) != `{"n":3}` || len(status.Unreadable) != 1 || status.Problem != "" {
		t.Fatal(a, b, status)
	}
	nodes.remove("config_deleted", "a")
	wait(t, cache, 13)
	if status := cache.Status(); len(status.Unreadable) != 0 {
		t.Fatal(status)
	}
}

func TestAStateThatBrokeOffIsReadAgain(t *testing.T) {
	nodes := newFakeCluster()
	count := 0
	nodes.set(func(r *http.Request) (*http.Response, error) {
		made, err := nodes.respond(r)
		if count++; r.URL.Path == watchPath && count == 1 {
			var body bytes.Buffer
			body.ReadFrom(made.Body)
			return answer(200, body.String()[:body.Len()/2], "X-Concord-Cluster", "one"), nil
		}
		return made, err
	})
	for event, err := range nodes.client(t).Watch(context.Background(), WatchOptions{Initial: true}) {
		if err != nil || event.Revision != 10 || len(event.State.Configs) != 1 || count != 2 {
			t.Fatal(event, err, count)
		}
		break
	}
}

func TestAStateThatAlwaysBreaksOffIsAProblem(t *testing.T) {
	real := relistEvery
	relistEvery = 50 * time.Millisecond
	var count atomic.Int32
	nodes := newFakeCluster()
	client := nodes.client(t)
	cache := nodes.cache(t, client)
	nodes.set(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == watchPath {
			count.Add(1)
			return answer(200, "<html>"), nil
		}
		return nodes.respond(r)
	})
	nodes.put("a", `{"n":2}`)
	until(t, "a problem", func() bool { return strings.Contains(cache.Status().Problem, "broke off") })
	if count.Load() > 9 {
		t.Error("each node is asked once before a pause", count.Load())
	}
	client.Close()
	relistEvery = real
}

type numbered struct {
	N int `json:"n"`
}

func (n *numbered) Validate() error {
	if n.N == 4711 {
		panic("s3cret")
	}
	return nil
}

func TestDataThatDoNotFitLeaveTheLastValue(t *testing.T) {
	nodes := newFakeCluster()
	cache := nodes.cache(t, nodes.client(t))
	typed := NewTypedCache[numbered](cache, "d")
	if NewTypedCache[numbered](cache, "d") != typed {
		t.Fatal("it is made once")
	}
	// Nobody has asked for the first value when the second one comes.
	nodes.put("a", `{"n":"two"}`)
	wait(t, cache, 11)
	for range 3 {
		if found, err := typed.Get("a"); err != nil || found.N != 1 {
			t.Fatal(found, err)
		}
	}
	explained, err := typed.Explain("a")
	if err != nil || string(explained.Data) != `{"n":1}` || explained.Revision != 9 || fmt.Sprint(placesIn(explained.Invalid)) != "[/n]" {
		t.Fatal(explained, err)
	}
	if value, _ := cache.Get("d", "a"); string(value.Data) != `{"n":"two"}` {
		t.Fatal(value)
	}
	nodes.put("a", `{"n":4711}`)
	wait(t, cache, 12)
	if found, err := typed.Get("a"); err != nil || found.N != 1 {
		t.Fatal("a panic is a rejection", found, err)
	}
	nodes.put("a", `{"n":3}`)
	wait(t, cache, 13)
	if explained, _ := typed.Explain("a"); explained.Invalid != nil || explained.Revision != 13 {
		t.Fatal(explained)
	}
	// What is created again has no last value.
	nodes.remove("config_deleted", "a")
	nodes.put("a", `{"n":"two"}`)
	wait(t, cache, 15)
	var wrong *DecodeError
	if _, err := typed.Get("a"); !errors.As(err, &wrong) {
		t.Fatal(err)
	}
	for key, value := range typed.All() {
		t.Fatal(key, value)
	}
	if _, err := typed.Get("nobody"); !errors.Is(err, ErrNotCached) {
		t.Fatal(err)
	}
}

func TestWhatABatchCreatesAgainHasNoLastValue(t *testing.T) {
	nodes := newFakeCluster()
	cache := nodes.cache(t, nodes.client(t))
	typed := NewTypedCache[numbered](cache, "d")
	if found, err := typed.Get("a"); err != nil || found.N != 1 {
		t.Fatal(found, err)
	}
	nodes.with(func(s *fakeState) {
		s.add(jsonObject{"type": "config_deleted", "config_definition_key": "d", "config_key": "a"})
		created := jsonObject{"type": "config_created", "config_definition_key": "d", "config_key": "a", "data": jsonObject{"n": "two"}, "created_at": timeOfRecords, "modified_at": timeOfRecords}
		s.events[0]["changes"] = append(s.events[0]["changes"].([]any), created)
	})
	wait(t, cache, 11)
	var wrong *DecodeError
	if found, err := typed.Get("a"); !errors.As(err, &wrong) {
		t.Fatal(found, err)
	}
}

func TestATypeThatIsAPointerIsValidatedToo(t *testing.T) {
	nodes := newFakeCluster()
	cache := nodes.cache(t, nodes.client(t))
	nodes.put("a", `{"n":4711}`)
	wait(t, cache, 11)
	var wrong *DecodeError
	if found, err := NewTypedCache[*numbered](cache, "d").Get("a"); !errors.As(err, &wrong) {
		t.Fatal(found, err)
	}
}

func TestNoValueOfTheDataIsInAnErrorOrTheLog(t *testing.T) {
	type secrets struct {
		Pin    string        `json:"pin"`
		At     time.Time     `json:"at"`
		Number int           `json:"number,string"`
		Exact  json.Number   `json:"exact"`
		Wait   time.Duration `json:"wait"`
	}
	for data, path := range map[string]string{
		`{"pin":471147}`: "/pin", `{"number":"471147x"}`: "", `{"at":"471147"}`: "", `{"exact":"471147x"}`: "", `{"wait":471147.5}`: "/wait",
	} {
		nodes := newFakeCluster()
		var log bytes.Buffer
		client := nodes.client(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		nodes.with(func(s *fakeState) { s.initial["a"]["data"] = json.RawMessage(data) })
		_, err := NewTypedCache[secrets](nodes.cache(t, client), "d").Get("a")
		client.Close()
		var wrong *DecodeError
		if !errors.As(err, &wrong) || path != "" && fmt.Sprint(wrong.Paths) != "["+path+"]" {
			t.Error(data, err)
		}
		if told := fmt.Sprint(err, log.String()); strings.Contains(told, "471147") || !strings.Contains(told, "does not fit") {
			t.Error(told)
		}
	}
}

func TestWhatAListenerGetsIsNotWhatTheCacheHas(t *testing.T) {
	nodes := newFakeCluster()
	nodes.with(func(s *fakeState) {
		s.initial["b"] = jsonObject{"config_definition_key": "d", "config_key": "b", "data": jsonObject{}, "created_at": "never"}
	})
	heard := make(chan struct{}, 10)
	cache := nodes.cache(t, nodes.client(t), func(o *CacheOptions) {
		o.OnChange = func(event *Event) {
			if event.State != nil {
				event.State.Configs[0].Data, event.State.Configs[0].Revision = nil, 1
				clear(event.State.Unreadable)
			}
			for n := range event.Changes {
				event.Changes[n].Data = nil
			}
			heard <- struct{}{}
		}
	})
	<-heard
	if value, err := cache.Get("d", "a"); err != nil || string(value.Data) != `{"n":1}` || value.Revision != 9 {
		t.Fatal(value, err)
	}
	if found := cache.Status().Unreadable; len(found) != 1 {
		t.Fatal(found)
	}
	nodes.put("a", `{"n":2}`)
	<-heard
	if value, err := cache.Get("d", "a"); err != nil || string(value.Data) != `{"n":2}` {
		t.Fatal(value, err)
	}
}

func TestReadersOfACacheAreNeverInTheWay(t *testing.T) {
	nodes := newFakeCluster()
	cache := nodes.cache(t, nodes.client(t))
	typed := NewTypedCache[numbered](cache, "d")
	var readers sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			last := 0
			for {
				select {
				case <-stop:
					return
				default:
				}
				found, err := typed.Get("a")
				if err != nil || found.N < last {
					t.Errorf("%v after %d: %v", found, last, err)
					return
				}
				last = found.N
				for range cache.All("") {
				}
			}
		}()
	}
	for n := range 50 {
		nodes.put("a", fmt.Sprintf(`{"n":%d}`, n+2))
		wait(t, cache, uint64(11+n))
	}
	close(stop)
	readers.Wait()
}

func benchmarkCache(b *testing.B, read func(*Cache, *TypedCache[numbered]) error) {
	nodes := newFakeCluster()
	nodes.with(func(s *fakeState) {
		for n := range 10_000 {
			key := fmt.Sprint("k", n)
			s.initial[key] = jsonObject{"config_definition_key": "d", "config_key": key, "data": json.RawMessage(`{"n":1}`), "created_at": timeOfRecords, "modified_at": timeOfRecords, "revision": 9}
		}
	})
	client, err := New(Options{URLs: []string{"http://a"}, Key: "k", NoReader: true, Transport: &nodes.play})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	cache, err := client.NewCache(context.Background(), CacheOptions{Definitions: []string{"d"}})
	if err != nil {
		b.Fatal(err)
	}
	typed := NewTypedCache[numbered](cache, "d")
	b.ResetTimer()
	for range b.N {
		if err := read(cache, typed); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCacheGet(b *testing.B) {
	benchmarkCache(b, func(cache *Cache, _ *TypedCache[numbered]) error { _, err := cache.Get("d", "k77"); return err })
}

func BenchmarkCacheData(b *testing.B) {
	benchmarkCache(b, func(cache *Cache, _ *TypedCache[numbered]) error { _, err := cache.Data("d", "k77"); return err })
}

func BenchmarkTypedCacheGet(b *testing.B) {
	benchmarkCache(b, func(_ *Cache, typed *TypedCache[numbered]) error { _, err := typed.Get("k77"); return err })
}
