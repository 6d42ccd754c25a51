package koanf_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	concord "github.com/concord-config/concord/clients/go"
	"github.com/concord-config/concord/clients/go/concordtest"
	concordkoanf "github.com/concord-config/concord/clients/go/koanf"
	"github.com/knadh/koanf/v2"
)

func TestKoanfReadsAndFollowsAConfig(t *testing.T) {
	server := concordtest.NewServer(t)
	server.Set(t, "limits", "acme", json.RawMessage(`{"plan":"pro","seats":3,"ratio":0.5,"deep":{"list":[1,2]},"big":1e400}`))
	cache, err := server.Client(t).NewCache(context.Background(), concord.CacheOptions{Definitions: []string{"limits"}})
	if err != nil {
		t.Fatal(err)
	}
	provider := concordkoanf.Provider(cache, "limits", "acme")
	k := koanf.New(".")
	if err := k.Load(provider, nil); err != nil {
		t.Fatal(err)
	}
	if k.String("plan") != "pro" || k.Int("seats") != 3 || k.Float64("ratio") != 0.5 || len(k.Ints("deep.list")) != 2 || k.Get("big") != json.Number("1e400") {
		t.Fatal(k.All())
	}
	changed := make(chan struct{}, 1)
	if err := provider.Watch(func(any, error) { changed <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	server.Set(t, "limits", "other", struct{}{})
	server.Set(t, "limits", "acme", json.RawMessage(`{"plan":"free"}`))
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Fatal("no change")
	}
	k = koanf.New(".")
	if err := k.Load(provider, nil); err != nil || k.String("plan") != "free" {
		t.Fatal(k.All(), err)
	}
	if err := provider.Unwatch(); err != nil {
		t.Fatal(err)
	}
	if err := k.Load(concordkoanf.Provider(cache, "limits", "nobody"), nil); err == nil {
		t.Fatal("there is no such config")
	}
}
