package concordtest_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	concord "github.com/concord-config/concord/clients/go"
	"github.com/concord-config/concord/clients/go/concordtest"
)

func TestAProgramIsTestedWithTheRealClient(t *testing.T) {
	ctx, server := context.Background(), concordtest.NewServer(t)
	client := server.Client(t)
	first := server.Set(t, "limits", "acme", map[string]int{"n": 1})
	cache, err := client.NewCache(ctx, concord.CacheOptions{Definitions: []string{"limits"}, Poll: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	second := server.Set(t, "limits", "acme", map[string]int{"n": 2})
	if err := cache.WaitRevision(ctx, second); err != nil || second != first+1 {
		t.Fatal(first, second, err)
	}
	if value, err := cache.Get("limits", "acme"); err != nil || string(value.Data) != `{"n":2}` || value.Revision != second {
		t.Fatal(value, err)
	}
	server.Delete(t, "limits", "acme")
	if _, err := client.Get(ctx, "limits", "acme"); !errors.Is(err, concord.ErrNotFound) {
		t.Fatal(err)
	}
	for _, err := range client.List(ctx, "limits", concord.Where(concord.Filters{"n": 1})) {
		if !errors.Is(err, concord.ErrInvalid) {
			t.Fatal("a path without an index is rejected", err)
		}
	}
}

func TestATestPlaysErrors(t *testing.T) {
	ctx, server := context.Background(), concordtest.NewServer(t)
	client := server.Client(t)
	server.Define(t, "limits")
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	server.SetDown(true)
	var unavailable *concord.UnavailableError
	if _, err := client.Upsert(ctx, "limits", "acme", struct{}{}); !errors.As(err, &unavailable) {
		t.Fatal(err)
	}
	server.SetDown(false)
	isLost := true
	server.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		if isLost {
			isLost = false
			panic(http.ErrAbortHandler)
		}
		return false
	})
	if done, err := client.Upsert(context.Background(), "limits", "acme", struct{}{}); err != nil || isLost || !done.Created {
		t.Fatal(done, err)
	}
}

func TestADemo(t *testing.T) {
	demo := concordtest.StartDemo(t, 1)
	client := demo.Client(t)
	ctx := context.Background()
	if _, err := client.CreateDefinition(ctx, "limits", concord.DefinitionSpec{}); err != nil {
		t.Fatal(err)
	}
	if made, err := client.Create(ctx, "limits", "acme", map[string]int{"n": 1}); err != nil || !made.Created {
		t.Fatal(made, err)
	}
}
