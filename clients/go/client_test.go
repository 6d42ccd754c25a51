package concord_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	concord "github.com/concord-config/concord/clients/go"
	"github.com/concord-config/concord/clients/go/concordtest"
)

type limits struct {
	Plan  string `json:"plan"`
	Seats int    `json:"seats"`
}

func (l *limits) Validate() error {
	if l.Seats < 0 {
		return fmt.Errorf("seats: %d is below 0", l.Seats)
	}
	return nil
}

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func TestConfigsFromTheCreationToTheRollback(t *testing.T) {
	ctx, server := context.Background(), concordtest.NewServer(t)
	client := server.Client(t)
	written, config := must[*concord.Written](t), must[*concord.Config](t)
	definition := must[*concord.Definition](t)
	made := definition(client.EnsureDefinition(ctx, "limits", concord.DefinitionSpec{Indexes: []string{"plan"}, Schema: concord.SchemaOf[limits]()}))
	again := definition(client.EnsureDefinition(ctx, "limits", concord.DefinitionSpec{Indexes: []string{"plan"}, Schema: concord.SchemaOf[limits]()}))
	if made.Revision == 0 || made.Revision != again.Revision || !slices.Equal(again.Indexes, []string{"plan"}) {
		t.Fatal(made, again)
	}
	first := written(client.Create(ctx, "limits", "acme", limits{"pro", 3}, concord.Reason("a contract")))
	if _, err := client.Create(ctx, "limits", "acme", limits{}); !errors.Is(err, concord.ErrConflict) {
		t.Fatal(err)
	}
	found := config(client.Get(ctx, "limits", "acme"))
	if !first.Created || found.Revision != first.Revision || config(client.GetIfChanged(ctx, found)) != found {
		t.Fatal(first, found)
	}
	written(client.Put(ctx, "limits", "acme", limits{"pro", 4}, concord.IfMatch(found.Revision)))
	_, err := client.Put(ctx, "limits", "acme", limits{"pro", 5}, concord.IfMatch(found.Revision))
	var rejected *concord.APIError
	if !errors.As(err, &rejected) || !errors.Is(err, concord.ErrPrecondition) || rejected.CurrentRevision != found.Revision+1 {
		t.Fatal(err)
	}
	if _, err := client.Put(ctx, "limits", "acme", limits{}, concord.CreateOnly()); !errors.Is(err, concord.ErrPrecondition) {
		t.Fatal(err)
	}
	if _, err := client.Put(ctx, "limits", "nobody", limits{}); !errors.Is(err, concord.ErrNotFound) {
		t.Fatal(err)
	}
	if patched := written(client.Patch(ctx, "limits", "acme", map[string]any{"plan": nil, "big": json.Number("1e400")})); string(patched.Data) != `{"big":1e400,"seats":4}` {
		t.Fatal(string(patched.Data))
	}
	if dry := written(client.Upsert(ctx, "limits", "acme", limits{}, concord.DryRun())); !dry.DryRun {
		t.Fatal(dry)
	}
	if deleted := written(client.Delete(ctx, "limits", "acme")); deleted.Revision == 0 {
		t.Fatal(deleted)
	}
	if back := written(client.Rollback(ctx, "limits", "acme", first.Revision)); !back.Created {
		t.Fatal(back)
	}
	var operations []string
	for past, err := range client.History(ctx, "limits", "acme", concord.PageSize(2)) {
		if err != nil {
			t.Fatal(err)
		}
		operations = append(operations, past.Operation)
	}
	if !slices.Equal(operations, []string{"create", "delete", "update", "update", "create"}) {
		t.Fatal(operations)
	}
	one := written(client.Create(ctx, "limits", "b", limits{}, concord.IdempotencyKey("one")))
	two := written(client.Create(ctx, "limits", "b", limits{}, concord.IdempotencyKey("one")))
	if one.Revision != two.Revision || !two.Created {
		t.Fatal(one, two)
	}
}

func TestTypedRecords(t *testing.T) {
	ctx, server := context.Background(), concordtest.NewServer(t)
	server.Set(t, "limits", "acme", map[string]any{"plan": "pro", "seats": 1})
	typed := concord.NewTyped[limits](server.Client(t), "limits")
	if _, err := typed.Update(ctx, "acme", func(l *limits) error { l.Seats++; return nil }); err != nil {
		t.Fatal(err)
	}
	found, err := typed.Get(ctx, "acme")
	if err != nil || found.Value != (limits{"pro", 2}) || found.Revision == 0 {
		t.Fatal(found, err)
	}
	stop := errors.New("stop")
	if _, err := typed.Update(ctx, "acme", func(*limits) error { return stop }); err != stop {
		t.Fatal(err)
	}
	var wrong *concord.DecodeError
	for data, paths := range map[string][]string{`{"seats":"three"}`: {"/seats"}, `{"seats":-1}`: nil} {
		server.Set(t, "limits", "acme", json.RawMessage(data))
		if _, err := typed.Get(ctx, "acme"); !errors.As(err, &wrong) || !slices.Equal(wrong.Paths, paths) {
			t.Fatal(data, err)
		}
	}
}

func TestAnUpdateLosesNoConcurrentChange(t *testing.T) {
	ctx, server := context.Background(), concordtest.NewServer(t)
	server.Set(t, "counter", "hits", json.RawMessage(`{"z":1.50,"n":0,"a":123456789012345678901234567890}`))
	client := server.Client(t)
	failed := make(chan error)
	for range 4 {
		go func() {
			var err error
			for range 5 {
				_, updateErr := client.Update(ctx, "counter", "hits", func(data map[string]any) error {
					n, err := data["n"].(json.Number).Int64()
					data["n"] = n + 1
					return err
				})
				err = errors.Join(err, updateErr)
			}
			failed <- err
		}()
	}
	for range 4 {
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
	found, err := client.Get(ctx, "counter", "hits")
	if err != nil || string(found.Data) != `{"z":1.50,"n":20,"a":123456789012345678901234567890}` {
		t.Fatal(string(found.Data), err)
	}
}

func TestBatchesTransactionsAndLists(t *testing.T) {
	ctx, server := context.Background(), concordtest.NewServer(t)
	client := server.Client(t)
	server.Define(t, "limits", "plan")
	var operations []concord.Operation
	for n := range 25 {
		operations = append(operations, concord.OpCreate("limits", fmt.Sprintf("k%02d", n), limits{string("abc"[n%3]), n}))
	}
	if _, err := client.Batch(ctx, operations); err != nil {
		t.Fatal(err)
	}
	keys := func(options ...concord.ListOption) (keys []string) {
		for config, err := range client.List(ctx, "limits", append(options, concord.PageSize(4))...) {
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, config.Key)
		}
		return keys
	}
	if found := keys(); len(found) != 25 || !slices.IsSorted(found) {
		t.Fatal(found)
	}
	if found := keys(concord.Where(concord.Filters{"plan": []string{"a", "b"}}), concord.Search("k1")); len(found) != 7 {
		t.Fatal(found)
	}
	page, err := client.Page(ctx, "limits", 2, 4, concord.Where(concord.Filters{"plan": "a"}))
	if err != nil || page.Total != 9 || page.Configs[0].Key != "k12" {
		t.Fatal(page, err)
	}
	done, err := client.Transaction(ctx,
		[]concord.Operation{concord.CheckEqualsAt("limits", "k00", "/seats", 0), concord.CheckPresent("limits", "k01")},
		[]concord.Operation{concord.OpPatch("limits", "k00", map[string]int{"seats": 7}), concord.OpDelete("limits", "k01"), concord.OpGet("limits", "k02")}, nil)
	if err != nil || !done.Succeeded || done.Results[2].Config.Key != "k02" {
		t.Fatal(done, err)
	}
	done, err = client.Transaction(ctx, []concord.Operation{concord.CheckAbsent("limits", "k00")}, nil, []concord.Operation{concord.OpGet("limits", "k00")})
	if err != nil || done.Succeeded || string(done.Results[0].Config.Data) != `{"plan":"a","seats":7}` {
		t.Fatal(done, err)
	}
	_, err = client.Batch(ctx, []concord.Operation{concord.OpPut("limits", "k00", limits{}), concord.OpDelete("limits", "absent")})
	var rejected *concord.APIError
	if !errors.As(err, &rejected) || rejected.Paths()[0] != "/operations/1" {
		t.Fatal(err)
	}
	many, err := client.ReadMany(ctx, []concord.Pointer{{Definition: "limits", Key: "k00"}, {Definition: "limits", Key: "k01"}})
	if err != nil || len(many.Found) != 1 || many.Missing[concord.Pointer{Definition: "limits", Key: "k01"}] != "absent" {
		t.Fatal(many, err)
	}
}

func TestWhatCanNotBeReadOfABatchDoesNotHideTheRest(t *testing.T) {
	ctx, server := context.Background(), concordtest.NewServer(t)
	server.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		fmt.Fprint(w, `{"data":{"results":[
			{"op":"get_config","config_definition_key":"d","config_key":"a","config":{"config_key":"a","data":{},"created_at":"never"}},
			{"op":"put_config","config_definition_key":"d","config_key":"b","created":true}],"revision":9,"succeeded":true}}`)
		return true
	})
	done, err := server.Client(t).Transaction(ctx,
		[]concord.Operation{concord.CheckPresent("d", "a")}, []concord.Operation{concord.OpGet("d", "a"), concord.OpPut("d", "b", 1)}, nil)
	if err != nil || !done.Succeeded || done.Revision != 9 || len(done.Results) != 2 || !done.Results[1].Created || len(done.Warnings) != 1 {
		t.Fatal(done, err)
	}
}

func TestABulkReadLacksNothingThatWasAskedFor(t *testing.T) {
	ctx, server := context.Background(), concordtest.NewServer(t)
	server.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		fmt.Fprint(w, `{"data":{"revision":9,"results":[]}}`)
		return true
	})
	var wrong *concord.ProtocolError
	if found, err := server.Client(t).ReadMany(ctx, []concord.Pointer{{Definition: "d", Key: "a"}}); !errors.As(err, &wrong) {
		t.Fatal(found, err)
	}
}

func TestAWatchHasEveryChangeOnceWhileTheNodeIsDown(t *testing.T) {
	ctx, server := context.Background(), concordtest.NewServer(t)
	client := server.Client(t)
	begin := server.Set(t, "limits", "a", limits{"x", 0})
	server.Set(t, "other", "a", limits{})
	go func() {
		for n := range 3 {
			server.SetDown(n == 1)
			time.Sleep(20 * time.Millisecond)
			server.Set(t, "limits", "a", limits{"x", n + 1})
		}
		server.SetDown(false)
	}()
	var seen []string
	for event, err := range client.Watch(ctx, concord.WatchOptions{Definitions: []string{"limits"}, From: begin, Wait: time.Second}) {
		if err != nil {
			t.Fatal(err)
		}
		for _, change := range event.Changes {
			seen = append(seen, string(change.Data))
		}
		if len(seen) == 4 {
			break
		}
	}
	for n, each := range seen {
		if each != fmt.Sprintf(`{"plan":"x","seats":%d}`, n) {
			t.Fatal(seen)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	count := 0
	for event, err := range client.Watch(ctx, concord.WatchOptions{Definitions: []string{"limits"}, Initial: true}) {
		if count++; count == 1 && (err != nil || len(event.State.Configs) != 1 || event.State.Definitions[0].Key != "limits") {
			t.Fatal(event, err)
		}
		if count == 2 && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(event, err)
		}
	}
	if count != 2 {
		t.Fatal(count)
	}
}

func TestWhatIsNoKeyIsRejectedBeforeAnythingIsSent(t *testing.T) {
	ctx, server := context.Background(), concordtest.NewServer(t)
	server.Intercept(func(_ http.ResponseWriter, r *http.Request) bool { t.Error(r.URL); return false })
	client := server.Client(t)
	var errs []error
	for _, key := range []string{"", "..", "a/b", "a?b", strings.Repeat("x", 256), "ü"} {
		_, get := client.Get(ctx, "d", key)
		_, put := client.Put(ctx, key, "k", limits{})
		_, create := client.Create(ctx, "d", key, limits{})
		_, define := client.CreateDefinition(ctx, key, concord.DefinitionSpec{})
		errs = append(errs, get, put, create, define)
	}
	_, reason := client.Delete(ctx, "d", "k", concord.Reason("two\nlines"))
	_, idempotency := client.Request(ctx, "POST", "/api/v1/batch", nil, "a b")
	_, path := client.Request(ctx, "GET", "api/v1/batch", nil, "")
	_, data := client.Put(ctx, "d", "k", map[string]any{"f": func() {}})
	_, operation := client.Batch(ctx, []concord.Operation{concord.OpPut("d", "k", make(chan int))})
	errs = append(errs, reason, idempotency, path, data, operation)
	for _, err := range client.ListAcross(ctx, []string{}) {
		errs = append(errs, err)
	}
	for _, err := range client.List(ctx, "d", concord.Where(concord.Filters{"n[gte]": []int{}})) {
		errs = append(errs, err)
	}
	for _, err := range client.Watch(ctx, concord.WatchOptions{Configs: []string{}}) {
		errs = append(errs, err)
	}
	if len(errs) != 32 || slices.Contains(errs, nil) {
		t.Fatal(len(errs), errs)
	}
}

func TestSchemasOfTypes(t *testing.T) {
	type inner struct {
		At    time.Time       `json:"at"`
		Tags  []string        `json:"tags,omitempty"`
		Any   json.RawMessage `json:"any"`
		Inner map[string]any  `json:"inner"`
	}
	type outer struct {
		inner
		Password string  `json:"password" concord:"secret"`
		Next     *outer  `json:"next"`
		Ratio    float64 `json:"ratio,omitempty"`
		Count    uint8
		private  int
	}
	_ = outer{private: 1}
	want := `{"properties":{"Count":{"minimum":0,"type":"integer"},"any":{},"at":{"format":"date-time","type":"string"},` +
		`"inner":{"additionalProperties":{},"type":["object","null"]},"next":{"anyOf":[{},{"type":"null"}]},` +
		`"password":{"type":"string","x-concord-secret":true},"ratio":{"type":"number"},` +
		`"tags":{"items":{"type":"string"},"type":["array","null"]}},"required":["at","any","inner","password","Count"],"type":"object"}`
	if found := string(concord.SchemaOf[outer]()); found != want {
		t.Fatal(found)
	}
}
