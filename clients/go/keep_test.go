package concord

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
)

// secretConfig plays a config with secret values that the key does not see, and notes what is written.
func secretConfig(data, redacted string) *play {
	return &play{answer: func(r *http.Request) (*http.Response, error) {
		if r.Method == "GET" {
			return ok(record("k", json.RawMessage(data)), "Etag", `"7"`, "X-Concord-Redacted", redacted)
		}
		return ok(nil, "Etag", `"8"`)
	}}
}

const (
	hosts         = `{"name":"n","password":null,"hosts":[{"host":"a","token":null},{"host":"b","token":null}]}`
	hostsRedacted = "#/password, #/hosts/0/token, #/hosts/1/token"
	keptText      = `{"$concord-keep":true}`
)

func TestAnUpdateKeepsSecretValuesAndMovesNone(t *testing.T) {
	list := func(data map[string]any) []any { return data["hosts"].([]any) }
	cases := map[string]struct {
		change func(map[string]any) error
		want   string
	}{
		"another member": {func(d map[string]any) error { d["name"] = "m"; return nil },
			strings.Replace(strings.ReplaceAll(hosts, "null", keptText), `"n"`, `"m"`, 1)},
		"a new secret": {func(d map[string]any) error { d["password"] = "x"; return nil },
			`{"name":"n","password":"x","hosts":[{"host":"a","token":` + keptText + `},{"host":"b","token":` + keptText + `}]}`},
		"the last element is removed": {func(d map[string]any) error { d["hosts"] = list(d)[:1]; return nil },
			`{"name":"n","password":` + keptText + `,"hosts":[{"host":"a","token":` + keptText + `}]}`},
		"the first element is removed": {func(d map[string]any) error { d["hosts"] = list(d)[1:]; return nil }, ""},
		"two elements change places": {func(d map[string]any) error {
			list(d)[0], list(d)[1] = list(d)[1], list(d)[0]
			return nil
		}, ""},
		"a secret is copied": {func(d map[string]any) error { d["name"] = d["password"]; return nil }, ""},
	}
	for name, each := range cases {
		p := secretConfig(hosts, hostsRedacted)
		_, err := p.client(t).Update(context.Background(), "d", "k", each.change)
		_, bodies := p.sent()
		var rejected *APIError
		switch {
		case each.want == "":
			if !errors.As(err, &rejected) || rejected.Code() != "data_invalid" || len(bodies) != 1 {
				t.Errorf("%s: %v %v", name, err, bodies)
			}
		case err != nil || bodies[1] != `{"data":`+each.want+`}`:
			t.Errorf("%s: %v %v", name, err, bodies)
		}
	}
}

func TestATypedUpdateKeepsSecretValuesAndMovesNone(t *testing.T) {
	type host struct {
		Host  string `json:"host"`
		Token string `json:"token,omitempty"`
	}
	type value struct {
		Name     string `json:"name"`
		Password string `json:"password"`
		Hosts    []host `json:"hosts"`
	}
	kept := `,"password":` + keptText + `,"hosts":[{"host":"a","token":` + keptText + `},{"host":"b","token":` + keptText + `}]}`
	cases := map[string]struct {
		change func(*value)
		want   string
	}{
		"another member":      {func(v *value) { v.Name = "m" }, `{"name":"m"` + kept},
		"a new secret":        {func(v *value) { v.Hosts[1].Token = "x" }, `{"name":"n"` + strings.Replace(kept, `"b","token":`+keptText, `"b","token":"x"`, 1)},
		"the list is removed": {func(v *value) { v.Hosts = nil }, `{"name":"n","password":` + keptText + `,"hosts":null}`},
		"an element is added": {func(v *value) { v.Hosts = append([]host{{"c", "x"}}, v.Hosts...) }, ""},
		"two change places":   {func(v *value) { v.Hosts[0], v.Hosts[1] = v.Hosts[1], v.Hosts[0] }, ""},
		"one is replaced":     {func(v *value) { v.Hosts = []host{{"c", "x"}, v.Hosts[0]} }, ""},
	}
	for name, each := range cases {
		p := secretConfig(hosts, hostsRedacted)
		typed := NewTyped[value](p.client(t), "d")
		_, err := typed.Update(context.Background(), "k", func(v *value) error { each.change(v); return nil })
		_, bodies := p.sent()
		switch {
		case each.want == "":
			if !errors.Is(err, ErrInvalid) || len(bodies) != 1 {
				t.Errorf("%s: %v %v", name, err, bodies)
			}
		case err != nil || bodies[1] != `{"data":`+each.want+`}`:
			t.Errorf("%s: %v %v", name, err, bodies)
		}
	}
	type small struct{ Name string }
	p := secretConfig(`{"Name":"n","a":{"b":null}}`, "#/a/b")
	if _, err := NewTyped[small](p.client(t), "d").Update(context.Background(), "k", func(*small) error { return nil }); !errors.Is(err, ErrInvalid) {
		t.Error("a secret value whose owner the type does not have would be lost", err)
	}
	p = secretConfig(`{"Name":"n","a/b~c":null}`, "#/a~1b~0c")
	_, err := NewTyped[small](p.client(t), "d").Update(context.Background(), "k", func(*small) error { return nil })
	if _, bodies := p.sent(); err != nil || bodies[1] != `{"data":{"Name":"n","a/b~c":`+keptText+`}}` {
		t.Error(err, bodies)
	}
}

func TestATypedUpdateIsRejectedIfASecretValueCouldBeAnother(t *testing.T) {
	type value struct {
		Tokens   []string `json:"tokens"`
		Password string   `json:"password"`
	}
	update := func(data, redacted string, change func(*value)) (string, error) {
		p := secretConfig(data, redacted)
		_, err := NewTyped[value](p.client(t), "d").Update(context.Background(), "k", func(v *value) error { change(v); return nil })
		_, bodies := p.sent()
		return bodies[len(bodies)-1], err
	}
	const tokens = `{"tokens":[null,null],"password":""}`
	// The first token is removed and another one appended. What is left looks as the one that is gone.
	if body, err := update(tokens, "#/tokens/0, #/tokens/1", func(v *value) { v.Tokens = append(v.Tokens[1:], "x") }); !errors.Is(err, ErrInvalid) {
		t.Error(body, err)
	}
	want := `{"data":{"tokens":[` + keptText + `,` + keptText + `],"password":"x"}}`
	if body, err := update(tokens, "#/tokens/0, #/tokens/1", func(v *value) { v.Password = "x" }); err != nil || body != want {
		t.Error(body, err)
	}
	if body, err := update(tokens, "#/tokens/0, #/tokens/1", func(v *value) { v.Tokens = []string{"x", "y"} }); err != nil || !strings.Contains(body, `["x","y"]`) {
		t.Error(body, err)
	}
	type host struct {
		Token string `json:"token"`
	}
	type hosts struct {
		Hosts map[string]host `json:"hosts"`
	}
	for name, change := range map[string]func(map[string]host){
		"another key": func(found map[string]host) { found["c"] = found["a"]; delete(found, "a") },
		"removed":     func(found map[string]host) { delete(found, "a") },
		"a new value": func(found map[string]host) { found["c"] = host{"x"}; delete(found, "a") },
	} {
		p := secretConfig(`{"hosts":{"a":{"token":null},"b":{"token":null}}}`, "#/hosts/a/token, #/hosts/b/token")
		_, err := NewTyped[hosts](p.client(t), "d").Update(context.Background(), "k", func(v *hosts) error { change(v.Hosts); return nil })
		if isRejected := errors.Is(err, ErrInvalid); isRejected != (name == "another key") || !isRejected && err != nil {
			t.Error(name, err)
		}
	}
	// The response does not name all places. The password, which is not named, has become an empty text.
	if body, err := update(`{"tokens":[],"password":null}`, "#/other, ...", func(*value) {}); !errors.Is(err, ErrInvalid) {
		t.Error(body, err)
	}
}

func TestMarkersAreCheckedInEveryWrite(t *testing.T) {
	p := secretConfig(`{"a":null}`, "#/a")
	client, ctx := p.client(t), context.Background()
	found, err := client.Get(ctx, "d", "k")
	if err != nil {
		t.Fatal(err)
	}
	moved := json.RawMessage(strings.Replace(string(found.Editable()), `"a"`, `"b"`, 1))
	_, put := client.Put(ctx, "d", "k", moved)
	_, patch := client.Patch(ctx, "d", "k", moved)
	_, batch := client.Batch(ctx, []Operation{OpPut("d", "k", moved)})
	for _, err := range []error{put, patch, batch} {
		if !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
	}
	if _, err := client.Put(ctx, "d", "k", found.Editable()); err != nil {
		t.Fatal(err)
	}
	if _, bodies := p.sent(); bodies[1] != `{"data":{"a":`+keptText+`}}` {
		t.Error(bodies)
	}
}
