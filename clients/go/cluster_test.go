//go:build linux

package concord

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concord-config/concord/clients/go/internal/nodes"
)

// TestWithNodes has all that needs real nodes, so that they are started once.
func TestWithNodes(t *testing.T) {
	program := os.Getenv("CONCORD_BIN")
	if program == "" {
		t.Skip("CONCORD_BIN names no binary")
	}
	cluster, err := nodes.Start(program, false)
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.End()
	c := &clustered{cluster, connectTo(t, cluster, nil)}
	t.Run("documents", c.documents)
	t.Run("filters", c.filters)
	t.Run("reasons", c.reasons)
	t.Run("environments", c.environments)
	t.Run("restricted environment", c.restricted)
	t.Run("secrets", c.secrets)
	t.Run("definitions", c.definitions)
	t.Run("configs", c.configs)
	t.Run("keys", c.keys)
	t.Run("list while its node is killed", c.listWhileKilled)
	t.Run("killed leader and paused node", c.killedAndPaused)
	t.Run("all nodes killed", c.allKilled)
}

type clustered struct {
	*nodes.Cluster
	client *Client
}

func connectTo(t *testing.T, cluster *nodes.Cluster, change func(*Options)) *Client {
	t.Helper()
	return connect(t, func(o *Options) {
		o.Key, o.Timeout = cluster.Key, time.Minute
		if change != nil {
			change(o)
		}
	}, cluster.URLs()...)
}

func (c *clustered) define(t *testing.T, key string, spec DefinitionSpec) string {
	t.Helper()
	if _, err := c.client.CreateDefinition(context.Background(), key, spec); err != nil {
		t.Fatal(err)
	}
	return key
}

func (c *clustered) documents(t *testing.T) {
	name := c.define(t, "documents", DefinitionSpec{})
	cache, err := c.client.NewCache(context.Background(), CacheOptions{Definitions: []string{name}, Poll: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	documents := sharedCases(t).Documents
	// A node writes exponents with a sign.
	plain := func(text json.RawMessage) string {
		return strings.NewReplacer("e+", "e", "E+", "e", "E", "e").Replace(string(text))
	}
	for n, each := range documents {
		key := fmt.Sprintf("k%d", n)
		if _, err := c.client.Create(context.Background(), name, key, json.RawMessage(each.Text)); err != nil {
			t.Fatal(each.Name, err)
		}
		found, err := c.client.Get(context.Background(), name, key)
		if err != nil || !isSameJSON([]byte(plain(found.Data)), []byte(plain([]byte(each.Text)))) {
			t.Fatal(each.Name, err, string(found.Data))
		}
		wait(t, cache, found.Revision)
		if value, err := cache.Get(name, key); err != nil || !bytes.Equal(value.Data, found.Data) {
			t.Fatal(each.Name, err)
		}
		// Through a map, which has no order.
		if _, err := c.client.Update(context.Background(), name, key, func(map[string]any) error { return nil }); err != nil {
			t.Fatal(each.Name, err)
		}
		again, err := c.client.Get(context.Background(), name, key)
		if err != nil || !bytes.Equal(again.Data, found.Data) {
			t.Fatal(each.Name, err, string(again.Data))
		}
	}
	if status := cache.Status(); status.Problem != "" || len(status.Unreadable) > 0 || status.Configs != len(documents) {
		t.Fatal(status)
	}
	count := 0
	for _, err := range c.client.List(context.Background(), name, PageSize(3)) {
		if count++; err != nil {
			t.Fatal(err)
		}
	}
	for event, err := range c.client.Watch(context.Background(), WatchOptions{Definitions: []string{name}, Initial: true}) {
		if err != nil || len(event.State.Configs) != count || count != len(documents) {
			t.Fatal(err, count)
		}
		break
	}
}

func (c *clustered) filters(t *testing.T) {
	shared := sharedCases(t).Filters
	name := c.define(t, "filters", DefinitionSpec{Indexes: shared.Indexes, Schema: shared.Schema})
	for key, text := range shared.Configs {
		if _, err := c.client.Create(context.Background(), name, key, json.RawMessage(text)); err != nil {
			t.Fatal(err)
		}
	}
	for _, each := range shared.Cases {
		path := each.Path
		if each.Operator != "" {
			path += "[" + each.Operator + "]"
		}
		var value any = each.Value
		if each.Values != nil {
			value = *each.Values
		}
		if each.ValuesOf != nil {
			// Numbers as the client itself returned them.
			var values []any
			for _, key := range each.ValuesOf {
				config, err := c.client.Get(context.Background(), name, key)
				var data map[string]any
				if err := errors.Join(err, config.Decode(&data)); err != nil {
					t.Fatal(err)
				}
				values = append(values, data[each.Path])
			}
			value = values
		}
		var found []string
		for config, err := range c.client.List(context.Background(), name, Where(Filters{path: value})) {
			if err != nil {
				t.Fatal(each, err)
			}
			found = append(found, config.Key)
		}
		slices.Sort(found)
		page, err := c.client.Page(context.Background(), name, 1, 10, Where(Filters{path: value}))
		if err != nil || !slices.Equal(found, each.Selects) || page.Total != len(found) {
			t.Error(each, found, err)
		}
	}
}

func (c *clustered) reasons(t *testing.T) {
	name := c.define(t, "reasons", DefinitionSpec{})
	for _, each := range sharedCases(t).Reasons.Cases {
		if each.Sent == nil {
			continue
		}
		if _, err := c.client.Upsert(context.Background(), name, "k", struct{}{}, Reason(each.Reason)); err != nil {
			t.Fatal(err)
		}
		for past, err := range c.client.History(context.Background(), name, "k") {
			if err != nil || past.Reason != *each.Sent {
				t.Errorf("%q: %v %v", each.Reason, past, err)
			}
			break
		}
	}
}

// environments runs one program in two environments, which must be told the same.
func (c *clustered) environments(t *testing.T) {
	var told []string
	for _, name := range []string{"prod", "staging"} {
		client := connectTo(t, c.Cluster, func(o *Options) { o.Environment = name })
		file := filepath.Join(t.TempDir(), "cache.json")
		told = append(told, strings.ReplaceAll(program(t, client, "of-"+name, file), "of-"+name, "of"))
		for _, other := range []string{"prod", "staging", ""} {
			alone := connect(t, func(o *Options) { o.Environment = other }, "http://127.0.0.1:1")
			cache, err := alone.NewCache(context.Background(), CacheOptions{File: file, StartTimeout: 50 * time.Millisecond})
			if other != name {
				if !errors.Is(err, ErrNotReady) {
					t.Error(name, other, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if value, err := cache.Get("limits", "a"); err != nil || string(value.Data) != `{"v":"of-`+name+`"}` {
				t.Error(value, err)
			}
		}
	}
	if told[0] != told[1] {
		t.Fatal(told[0], "\n", told[1])
	}
	if found, err := c.client.Get(context.Background(), "prod.limits", "a"); err != nil || string(found.Data) != `{"v":"of-prod"}` {
		t.Fatal(found, err)
	}
}

// program is what it was told.
func program(t *testing.T, client *Client, value, file string) string {
	ctx := context.Background()
	var told []any
	note := func(values ...any) { told = append(told, values...) }
	fail := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	data := map[string]string{"v": value}
	_, err := client.CreateDefinition(ctx, "limits", DefinitionSpec{Indexes: []string{"v"}})
	fail(err)
	first, err := client.Create(ctx, "limits", "a", data)
	fail(err)
	_, err = client.Batch(ctx, []Operation{OpCreate("limits", "b", data), OpPut("limits", "a", data).IfMatch(first.Revision)})
	fail(err)
	done, err := client.Transaction(ctx, []Operation{CheckPresent("limits", "b")}, []Operation{OpGet("limits", "b")}, nil)
	fail(err)
	note(done.Succeeded, done.Results[0].Definition, string(done.Results[0].Config.Data))
	_, err = client.Update(ctx, "limits", "b", func(data map[string]any) error { data["n"] = 1; return nil })
	fail(err)
	for event, err := range client.Watch(ctx, WatchOptions{From: first.Revision}) {
		fail(err)
		note(event.Changes[0].Definition, event.Changes[0].Key)
		break
	}
	cache, err := client.NewCache(ctx, CacheOptions{File: file, Poll: time.Second})
	fail(err)
	for each := range cache.All("") {
		if each.Key == "a" {
			note(each.Definition, string(each.Data))
		}
	}
	cache.Close()
	definition, err := client.GetDefinition(ctx, "limits")
	fail(err)
	note(definition.Key)
	for each, err := range client.ListDefinitions(ctx, PageSize(1)) {
		fail(err)
		note(each.Key)
	}
	for each, err := range client.List(ctx, "limits", Where(Filters{"v": value}), PageSize(1), Ascending("config_key")) {
		fail(err)
		note(each.Key, each.Definition)
	}
	for each, err := range client.ListAcross(ctx, nil, PageSize(1), Ascending("config_key")) {
		fail(err)
		note(each.Key, each.Definition)
	}
	many, err := client.ReadMany(ctx, []Pointer{{"limits", "a"}, {"limits", "c"}})
	fail(err)
	note(len(many.Found), many.Missing[Pointer{"limits", "c"}])
	for past, err := range client.History(ctx, "limits", "b", PageSize(1)) {
		fail(err)
		note(past.Operation)
	}
	_, err = client.DeleteDefinition(ctx, "limits")
	fail(err)
	deleted, err := client.DeletedDefinitions(ctx)
	fail(err)
	note(len(deleted), deleted[0].Key, deleted[0].Configs)
	_, err = client.UndeleteDefinition(ctx, "limits", UndeleteAt{})
	fail(err)
	return fmt.Sprint(told...)
}

func (c *clustered) restricted(t *testing.T) {
	name := c.define(t, "restricted.limits", DefinitionSpec{})
	rules := json.RawMessage(`{"direct":"refuse","approvals":0,"freeze":[]}`)
	if _, err := c.client.Request(context.Background(), "PUT", "/api/v1/environment/restricted", rules, ""); err != nil {
		t.Fatal(err)
	}
	_, err := c.client.Create(context.Background(), name, "a", struct{}{})
	if !errors.Is(err, ErrChangeRequired) || !errors.Is(err, ErrConflict) || errors.Is(err, ErrEnvironmentFrozen) {
		t.Fatal(err)
	}
	made, err := c.client.Propose(context.Background(), "a limit", "for a customer", []Operation{OpCreate(name, "a", map[string]int{"n": 1})})
	if err != nil || made.Phase != "open" {
		t.Fatal(made, err)
	}
	path := changeRequestPath + "/" + made.ID + "/apply"
	if _, err := c.client.Request(context.Background(), "POST", path, map[string]string{"digest": made.Digest}, ""); err != nil {
		t.Fatal(err)
	}
	if found, err := c.client.Get(context.Background(), name, "a"); err != nil || string(found.Data) != `{"n":1}` {
		t.Fatal(found, err)
	}
}

// secretsOf are the secret values with the names of those that they belong to.
func secretsOf(value any, owner string, found map[string]string, owners map[string]bool) {
	switch value := value.(type) {
	case map[string]any:
		owner = fmt.Sprint(owner, "/", value["host"], value["login"])
		owners[owner] = true
		for _, each := range value {
			secretsOf(each, owner, found, owners)
		}
	case []any:
		for _, each := range value {
			secretsOf(each, owner, found, owners)
		}
	case string:
		if strings.HasPrefix(value, "secret-") {
			found[value] = owner
		}
	}
}

// edit makes one change of what the key sees. Names are never used twice.
func edit(dice *rand.Rand, data map[string]any) {
	fresh := fmt.Sprintf("%x", dice.Uint64())
	databases := data["databases"].([]any)
	chosen, isUsers, owner := databases, false, data
	if len(databases) > 0 && dice.IntN(2) == 0 {
		database := databases[dice.IntN(len(databases))].(map[string]any)
		if users, ok := database["users"].([]any); ok {
			chosen, isUsers, owner = users, true, database
		}
	}
	made := map[string]any{"host": "h" + fresh, "users": []any{}}
	secret := "token"
	if isUsers {
		made, secret = map[string]any{"login": "u" + fresh}, "pin"
	}
	switch kind := dice.IntN(7); {
	case kind == 0:
		data["name"] = fresh
	case kind == 1 && len(chosen) > 0:
		n := dice.IntN(len(chosen))
		chosen = slices.Delete(slices.Clone(chosen), n, n+1)
	case kind == 2 && len(chosen) < 6:
		chosen = slices.Insert(slices.Clone(chosen), dice.IntN(len(chosen)+1), any(made))
	case kind == 3:
		dice.Shuffle(len(chosen), func(a, b int) { chosen[a], chosen[b] = chosen[b], chosen[a] })
	case kind == 4:
		slices.Reverse(chosen)
	case kind == 5 && len(chosen) > 0:
		chosen[dice.IntN(len(chosen))].(map[string]any)["note"] = fresh
	case kind == 6 && len(chosen) < 6:
		made[secret] = "secret-" + fresh
		chosen = append(slices.Clone(chosen), any(made))
	}
	if isUsers {
		owner["users"] = chosen
	} else {
		owner["databases"] = chosen
	}
}

func (c *clustered) secrets(t *testing.T) {
	shared := sharedCases(t).Secrets
	name := c.define(t, "secrets", DefinitionSpec{Schema: shared.Schema})
	grants := map[string]any{"name": name, "grants": []any{map[string]any{"verbs": []string{"read", "write"}, "definitions": []string{name}}}}
	response, err := c.client.Request(context.Background(), "POST", "/api/v1/api_key/", grants, "")
	if err != nil {
		t.Fatal(err)
	}
	var key struct {
		Key string `json:"api_key"`
	}
	if err := json.Unmarshal(response.Data, &key); err != nil {
		t.Fatal(err)
	}
	blind := connectTo(t, c.Cluster, func(o *Options) { o.Key = key.Key })
	read := func() (map[string]string, map[string]bool, json.RawMessage) {
		config, err := c.client.Get(context.Background(), name, "k")
		var data map[string]any
		if err := errors.Join(err, config.Decode(&data)); err != nil {
			t.Fatal(err)
		}
		found, owners := map[string]string{}, map[string]bool{}
		secretsOf(data, "", found, owners)
		return found, owners, config.Data
	}
	dice := rand.New(rand.NewPCG(7, 7))
	done, rejected := 0, 0
	for turn := range 500 {
		if turn%50 == 0 {
			// The lists run empty.
			if _, err := c.client.Upsert(context.Background(), name, "k", shared.Data); err != nil {
				t.Fatal(err)
			}
		}
		before, _, dataBefore := read()
		shown := ""
		written, err := blind.Update(context.Background(), name, "k", func(data map[string]any) error {
			text, err := json.Marshal(data)
			shown = string(text)
			edit(dice, data)
			return err
		})
		after, owners, dataAfter := read()
		if errors.Is(err, ErrInvalid) {
			if rejected++; !bytes.Equal(dataBefore, dataAfter) {
				t.Fatal(turn, "a rejected update has changed something")
			}
			continue
		}
		if err != nil {
			t.Fatal(turn, err)
		}
		done++
		if strings.Contains(shown+string(written.Data), "secret-") {
			t.Fatal(turn, "a secret value was shown")
		}
		for secret, owner := range after {
			if was, isOld := before[secret]; isOld && was != owner {
				t.Fatal(turn, "a secret value has moved", secret, was, owner)
			}
		}
		for secret, owner := range before {
			if _, isKept := after[secret]; !isKept && owners[owner] {
				t.Fatal(turn, "a secret value is lost", secret, owner)
			}
		}
	}
	if done <= 30 || rejected <= 10 {
		t.Fatal(done, rejected)
	}
}

func (c *clustered) definitions(t *testing.T) {
	ctx, client := context.Background(), c.client
	type plan struct {
		Plan  string `json:"plan"`
		Seats int    `json:"seats"`
	}
	name := c.define(t, "plans", DefinitionSpec{Indexes: []string{"plan", "seats"}, Schema: SchemaOf[plan]()})
	found, err := client.GetDefinition(ctx, name)
	if err != nil || !isSameJSON(found.Schema, SchemaOf[plan]()) {
		t.Fatal(err)
	}
	var rejected *APIError
	code := func(err error) string {
		if rejected = nil; errors.As(err, &rejected) {
			return rejected.Code()
		}
		return fmt.Sprint(err)
	}
	if _, err := client.SetIndexes(ctx, name, []string{"plan"}, IfMatch(found.Revision)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.SetIndexes(ctx, name, nil, IfMatch(found.Revision)); code(err) != "precondition_failed" || rejected.CurrentRevision <= found.Revision {
		t.Fatal(err)
	}
	progress, err := client.IndexProgress(ctx, name)
	if err != nil || !progress[0].Ready {
		t.Fatal(progress, err)
	}
	_, err = client.SetUnique(ctx, name, []string{"plan"})
	unique, uniqueErr := client.Unique(ctx, name)
	if err := errors.Join(err, uniqueErr); err != nil || !slices.Equal(unique, []string{"plan"}) {
		t.Fatal(unique, err)
	}
	_, first := client.Create(ctx, name, "a", plan{"x", 2})
	if _, err := client.Create(ctx, name, "b", plan{"x", 2}); first != nil || code(err) != "unique_taken" {
		t.Fatal(first, err)
	}
	stricter := json.RawMessage(`{"properties":{"plan":{"type":"string"},"seats":{"minimum":5}}}`)
	report, err := client.SetSchema(ctx, name, stricter, DryRun())
	if err != nil || report.BreakingCount != 1 || !report.DryRun {
		t.Fatal(report, err)
	}
	if _, err := client.SetSchema(ctx, name, stricter); code(err) != "config_breaks_schema" {
		t.Fatal(err)
	}
	if report, err := client.SetSchema(ctx, name, stricter, Force()); err != nil || report.BreakingCount != 1 {
		t.Fatal(report, err)
	}
	if _, err := client.DeleteDefinition(ctx, name, Restrict()); code(err) != "definition_not_empty" {
		t.Fatal(err)
	}
	_, protect := client.SetProtection(ctx, name, true)
	isProtected, get := client.Protection(ctx, name)
	_, remove := client.DeleteDefinition(ctx, name)
	_, unprotect := client.SetProtection(ctx, name, false)
	if errors.Join(protect, get, unprotect) != nil || !isProtected || code(remove) != "definition_protected" {
		t.Fatal(protect, get, remove, unprotect)
	}
	if deleted, err := client.DeleteDefinition(ctx, name); err != nil || deleted.Revision == 0 {
		t.Fatal(deleted, err)
	}
	if _, err := client.UndeleteDefinition(ctx, name, UndeleteAt{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.DeleteDefinition(ctx, name, Purge()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.UndeleteDefinition(ctx, name, UndeleteAt{}); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	warned, err := client.CreateDefinition(ctx, "form-"+name, DefinitionSpec{Indexes: []string{"fields"}})
	if err != nil || len(warned.Warnings) != 1 || !strings.HasPrefix(warned.Warnings[0], "an index has the name of a parameter of lists") {
		t.Fatal(warned, err)
	}
}

func (c *clustered) configs(t *testing.T) {
	ctx, client := context.Background(), c.client
	name := c.define(t, "configs", DefinitionSpec{Indexes: []string{"seats"}})
	made, err := client.Create(ctx, name, "acme", json.RawMessage(`{"plan":"pro","seats":3}`), Reason("a contract"))
	if err != nil || !made.Created {
		t.Fatal(made, err)
	}
	found, err := client.Get(ctx, name, "acme", Fields("plan"))
	if err != nil || string(found.Data) != `{"plan":"pro"}` || found.Revision != made.Revision {
		t.Fatal(found, err)
	}
	patched, err := client.Patch(ctx, name, "acme", json.RawMessage(`[{"op":"replace","path":"/seats","value":9.50}]`), IfMatch(made.Revision))
	if err != nil || string(patched.Data) != `{"plan":"pro","seats":9.50}` {
		t.Fatal(patched, err)
	}
	past, err := client.Get(ctx, name, "acme", AtRevision(made.Revision))
	local, localErr := client.Get(ctx, name, "acme", Local(), MinRevision(client.Revision()))
	if err := errors.Join(err, localErr); err != nil || string(past.Data) != `{"plan":"pro","seats":3}` || local.Revision != patched.Revision {
		t.Fatal(past, local, err)
	}
	if deleted, err := client.Delete(ctx, name, "acme"); err != nil || deleted.Revision == 0 {
		t.Fatal(deleted, err)
	}
	back, err := client.Rollback(ctx, name, "acme", made.Revision, CreateOnly())
	if err != nil || string(back.Data) != `{"plan":"pro","seats":3}` {
		t.Fatal(back, err)
	}
	state := client.Revision()
	if _, err := client.Delete(ctx, name, "acme"); err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, err := range client.List(ctx, name, AtRevision(state)) {
		if count++; err != nil {
			t.Fatal(err)
		}
	}
	if count != 1 {
		t.Fatal(count)
	}
}

func (c *clustered) keys(t *testing.T) {
	name := c.define(t, "keys", DefinitionSpec{})
	grants := map[string]any{"name": name, "grants": []any{map[string]any{"verbs": []string{"read"}, "definitions": []string{name}}}}
	response, err := c.client.Request(context.Background(), "POST", "/api/v1/api_key/", grants, "")
	if err != nil {
		t.Fatal(err)
	}
	var key struct {
		Key string `json:"api_key"`
	}
	if err := json.Unmarshal(response.Data, &key); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("wrong\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := connectTo(t, c.Cluster, func(o *Options) { o.Key, o.KeyFile = "", file })
	if _, err := other.Get(context.Background(), name, "a"); !errors.Is(err, ErrUnauthorized) {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(key.Key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if who, err := other.WhoAmI(context.Background()); err != nil || !bytes.Contains(who, []byte(`"name":"keys"`)) {
		t.Fatal(string(who), err)
	}
	if _, err := other.Create(context.Background(), name, "a", struct{}{}); !errors.Is(err, ErrForbidden) {
		t.Fatal(err)
	}
}

func (c *clustered) listWhileKilled(t *testing.T) {
	name := c.define(t, "long", DefinitionSpec{})
	var operations []Operation
	for n := range 40 {
		operations = append(operations, OpCreate(name, fmt.Sprintf("k%02d", n), map[string]int{"seats": n + 1}))
	}
	if _, err := c.client.Batch(context.Background(), operations); err != nil {
		t.Fatal(err)
	}
	killed, count := 0, 0
	for config, err := range c.client.List(context.Background(), name, Ascending("config_key"), PageSize(5)) {
		if err != nil || config.Key != fmt.Sprintf("k%02d", count) || string(config.Data) != fmt.Sprintf(`{"seats":%d}`, count+1) {
			t.Fatal(config, err)
		}
		if count == 0 {
			killed = c.NodeOf(config.Node)
			c.Kill(killed)
			_, put := c.client.Put(context.Background(), name, "k39", map[string]int{"seats": 1000})
			_, create := c.client.Create(context.Background(), name, "k385", struct{}{})
			if err := errors.Join(put, create); err != nil {
				t.Fatal(err)
			}
		}
		count++
	}
	if err := errors.Join(c.StartNode(killed), c.WaitReady()); err != nil || count != 40 {
		t.Fatal(count, err)
	}
}

func (c *clustered) killedAndPaused(t *testing.T) {
	name := c.define(t, "followed", DefinitionSpec{})
	var events []uint64
	cache, err := c.client.NewCache(context.Background(), CacheOptions{Definitions: []string{name}, OnChange: func(event *Event) {
		if event.State == nil {
			events = append(events, event.Revision)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	var written []uint64
	write := func() {
		for n := range 5 {
			done, err := c.client.Upsert(context.Background(), name, fmt.Sprintf("k%d", n), map[string]int{"seats": len(written)})
			if err != nil {
				t.Fatal(err)
			}
			written = append(written, done.Revision)
		}
		wait(t, cache, written[len(written)-1])
	}
	leader := c.Leader()
	c.Kill(leader)
	write()
	if err := errors.Join(c.StartNode(leader), c.WaitReady()); err != nil {
		t.Fatal(err)
	}
	leader = c.Leader()
	c.Pause(leader)
	write()
	c.Resume(leader)
	if err := c.WaitReady(); err != nil {
		t.Fatal(err)
	}
	cache.Close()
	if !slices.Equal(events, written) {
		t.Fatal(events, written)
	}
}

func (c *clustered) allKilled(t *testing.T) {
	name := c.define(t, "last", DefinitionSpec{})
	made, err := c.client.Create(context.Background(), name, "acme", map[string]int{"seats": 3})
	if err != nil {
		t.Fatal(err)
	}
	options := CacheOptions{Definitions: []string{name}, File: filepath.Join(t.TempDir(), "good.json"), StartTimeout: time.Second}
	cache, err := c.client.NewCache(context.Background(), options)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.IDs {
		c.Kill(n)
	}
	until(t, "not live", func() bool { return sourceOf(cache) == SourceCache })
	cache.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := c.client.Put(ctx, name, "acme", struct{}{}); !isUnavailable(err) {
		t.Fatal(err)
	}
	cache, err = c.client.NewCache(context.Background(), options)
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	if value, err := cache.Get(name, "acme"); err != nil || value.Source != SourceFile || value.Revision != made.Revision {
		t.Fatal(value, err)
	}
	for _, n := range nodes.IDs {
		if err := c.StartNode(n); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.WaitReady(); err != nil {
		t.Fatal(err)
	}
	changed, err := c.client.Patch(context.Background(), name, "acme", map[string]int{"seats": 4})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, cache, changed.Revision)
	until(t, "live", func() bool { return sourceOf(cache) == SourceLive })
}

func TestTLSWithNodes(t *testing.T) {
	program := os.Getenv("CONCORD_BIN")
	if program == "" {
		t.Skip("CONCORD_BIN names no binary")
	}
	cluster, err := nodes.Start(program, true)
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.End()
	callers := filepath.Join(cluster.Home, "callers")
	client := connectTo(t, cluster, func(o *Options) {
		o.CAFile, o.CertFile, o.CertKeyFile = filepath.Join(cluster.Home, "ca.pem"), filepath.Join(callers, "node-9.pem"), filepath.Join(callers, "node-9.key")
	})
	until(t, "a cluster", func() bool {
		_, err := client.Request(context.Background(), "POST", "/api/v1/cluster/init", cluster.Members(), "")
		return err == nil
	})
	if _, err := client.CreateDefinition(context.Background(), "d", DefinitionSpec{}); err != nil {
		t.Fatal(err)
	}
	if made, err := client.Create(context.Background(), "d", "k", map[string]int{"n": 1}); err != nil || !made.Created {
		t.Fatal(made, err)
	}
	cache, err := client.NewCache(context.Background(), CacheOptions{Definitions: []string{"d"}})
	if err != nil {
		t.Fatal(err)
	}
	if value, err := cache.Get("d", "k"); err != nil || !value.IsFresh() {
		t.Fatal(value, err)
	}
	stranger := connectTo(t, cluster, func(o *Options) { o.Timeout = time.Second })
	if _, err := stranger.Delete(context.Background(), "d", "k"); !isUnavailable(err) || !strings.Contains(err.Error(), "certificate") {
		t.Fatal(err)
	}
}
