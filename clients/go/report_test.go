package concord

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(text)
}

func (b *lockedBuffer) count(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.String(), text)
}

// reporting is a cache whose reports are not waited for.
func reporting(t *testing.T, nodes *fakeCluster, log *lockedBuffer) *Cache {
	t.Helper()
	client := nodes.client(t, func(o *Options) {
		o.NoReader, o.Reader, o.Labels, o.Logger = false, "h", map[string]string{"ring": "canary"}, slog.New(slog.NewTextHandler(log, nil))
	})
	made, err := client.newCache(CacheOptions{Definitions: []string{"d"}, Poll: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	made.reports.every, made.reports.firstWithin = 20*time.Millisecond, 0
	if err := made.begin(context.Background()); err != nil {
		t.Fatal(err)
	}
	return made
}

func (f *fakeCluster) reported() []jsonObject {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]jsonObject{}, f.state.reports...)
}

func (f *fakeCluster) lastReport() jsonObject {
	if all := f.reported(); len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

var candidate = jsonObject{"change_id": "change-1"}

func TestACandidateIsReportedHealthyUntilATypeRejectsIt(t *testing.T) {
	nodes := newFakeCluster()
	nodes.with(func(s *fakeState) { s.initial["a"]["variant"] = candidate })
	cache := reporting(t, nodes, &lockedBuffer{})
	typed := NewTypedCache[numbered](cache, "d")
	if value, _ := cache.Get("d", "a"); value.Variant != "change-1" || value.Revision != 0 {
		t.Fatal(value)
	}
	until(t, "two reports", func() bool { return len(nodes.reported()) > 1 })
	first := nodes.reported()[0]
	if first["path"] != "/api/v1/change_request/change-1/report" || first["state"] != "healthy" || first["reader"] != "h" ||
		len(first["instance"].(string)) != 16 || fmt.Sprint(first["labels"]) != "map[ring:canary]" {
		t.Fatal(first)
	}
	nodes.put("a", `{"n":"s3cret"}`, "variant", candidate, "revision", 9)
	until(t, "a failure", func() bool { return nodes.lastReport()["state"] == "failed" })
	if detail := nodes.lastReport()["detail"].(string); detail != "d/a does not fit concord.numbered at /n" {
		t.Fatal(detail)
	}
	if found, err := typed.Get("a"); err != nil || found.N != 1 {
		t.Fatal(found, err)
	}
	// The rollout is taken back: the config has an earlier revision than what came before.
	nodes.put("a", `{"n":0}`, "revision", 9)
	until(t, "the proven data", func() bool { found, err := typed.Get("a"); return err == nil && found.N == 0 })
	if value, _ := cache.Get("d", "a"); value.Variant != "" || value.Revision != 9 {
		t.Fatal(value)
	}
	time.Sleep(50 * time.Millisecond)
	count := len(nodes.reported())
	time.Sleep(100 * time.Millisecond)
	if len(nodes.reported()) != count {
		t.Fatal("what runs well with the proven data is silent")
	}
}

func TestAConfigThatATypeRejectsIsReportedUntilItDoesNot(t *testing.T) {
	nodes := newFakeCluster()
	cache := reporting(t, nodes, &lockedBuffer{})
	typed := NewTypedCache[numbered](cache, "d")
	if _, err := typed.Get("a"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	if found := nodes.reported(); len(found) != 0 {
		t.Fatal("what runs well is silent", found)
	}
	nodes.put("a", `{"n":4711}`)
	until(t, "two reports", func() bool { return len(nodes.reported()) > 1 })
	told := nodes.lastReport()
	if told["path"] != "/api/v1/config_definition/d/config/a/report" || told["state"] != "failed" || told["revision"] != 11.0 ||
		strings.Contains(told["detail"].(string), "s3cret") {
		t.Fatal(told)
	}
	nodes.put("a", `{"n":2}`)
	until(t, "healthy", func() bool { return nodes.lastReport()["state"] == "healthy" })
	count := len(nodes.reported())
	time.Sleep(100 * time.Millisecond)
	if len(nodes.reported()) != count {
		t.Fatal("it is reported healthy once")
	}
}

func TestAKeyThatMayNotReportIsToldSoOnce(t *testing.T) {
	for _, isCandidate := range []bool{false, true} {
		nodes, log := newFakeCluster(), &lockedBuffer{}
		nodes.with(func(s *fakeState) {
			s.mayReport = false
			if isCandidate {
				s.initial["a"]["variant"] = candidate
			}
		})
		cache := reporting(t, nodes, log)
		typed := NewTypedCache[numbered](cache, "d")
		if _, err := typed.Get("a"); err != nil {
			t.Fatal(err)
		}
		if !isCandidate {
			nodes.put("a", `{"n":"two"}`)
		}
		until(t, "a warning", func() bool { return log.count("nothing is reported") == 1 })
		time.Sleep(100 * time.Millisecond)
		if len(nodes.reported()) != 1 || log.count("nothing is reported") != 1 {
			t.Fatal(nodes.reported())
		}
	}
}

func TestAReportThatHangsDelaysNoChangeAndEndsWithTheCache(t *testing.T) {
	nodes := newFakeCluster()
	hanging := make(chan struct{}, 10)
	nodes.set(func(r *http.Request) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, "/report") {
			hanging <- struct{}{}
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		return nodes.respond(r)
	})
	cache := reporting(t, nodes, &lockedBuffer{})
	typed := NewTypedCache[numbered](cache, "d")
	if _, err := typed.Get("a"); err != nil {
		t.Fatal(err)
	}
	nodes.put("a", `{"n":"two"}`)
	<-hanging
	for n := range 5 {
		nodes.put("a", fmt.Sprintf(`{"n":%d}`, n))
		wait(t, cache, uint64(12+n))
	}
	if len(hanging) != 0 || sourceOf(cache) != SourceLive {
		t.Fatal("one at a time, and it still hangs")
	}
	began := time.Now()
	if cache.Close(); time.Since(began) > time.Second {
		t.Fatal(time.Since(began))
	}
}

func TestAFilterAndNoReaderReportNothingOfRollouts(t *testing.T) {
	nodes := newFakeCluster()
	cache := nodes.cache(t, nodes.client(t))
	if cache.reports.reader != nil {
		t.Fatal("there is nobody to report as")
	}
	client := nodes.client(t, func(o *Options) { o.NoReader, o.Reader = false, "h" })
	nodes.cache(t, client, func(o *CacheOptions) { o.Filters = Filters{"n": 1} })
	requests, _ := nodes.sent()
	if last := requests[len(requests)-1]; last.Header.Get("X-Concord-Reader") != "" {
		t.Fatal(last.URL, last.Header)
	}
}
