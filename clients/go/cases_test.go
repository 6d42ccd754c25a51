package concord

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// cases are those that all clients share.
type cases struct {
	Documents []struct{ Name, Text string }
	Filters   struct {
		Indexes []string
		Schema  json.RawMessage
		Configs map[string]string
		Cases   []struct {
			Path, Operator string
			Values         *[]any
			ValuesOf       []string `json:"values_of"`
			Value          string
			Selects        []string
		}
	}
	Reasons struct {
		Cases []struct {
			Reason string
			Sent   *string
		}
	}
	URLs         struct{ Refused []string }
	Secrets      struct{ Schema, Data json.RawMessage }
	Environments struct {
		Name           string
		Names, Refused []string
		WithoutPrefix  []string `json:"without_prefix"`
		Requests       []struct {
			Method, Path, Sent string
			Body               json.RawMessage
			SentBody           json.RawMessage `json:"sent_body"`
		}
		Responses []struct {
			Method, Path string
			Data, Shown  json.RawMessage
		}
		Events    []struct{ Data, Shown json.RawMessage }
		NextPages []struct{ Environment, Link, Shown, Sent string } `json:"next_pages"`
	}
	Readers struct {
		Sent []struct {
			Reader       *string
			Labels       map[string]string
			ReaderHeader string `json:"reader_header"`
			LabelsHeader string `json:"labels_header"`
		}
		Refused []struct {
			Reader *string
			Labels map[string]string
		}
		Requests []struct {
			Method, Path string
			IsSent       bool `json:"is_sent"`
		}
		Variants []struct{ Header, Change string }
	}
}

func sharedCases(t *testing.T) *cases {
	t.Helper()
	text, err := os.ReadFile("../cases.json")
	if err != nil {
		t.Fatal(err)
	}
	made := &cases{}
	if err := json.Unmarshal(text, made); err != nil {
		t.Fatal(err)
	}
	return made
}

func TestURLsThatCanNotBeUsedShowNoPassword(t *testing.T) {
	for _, url := range sharedCases(t).URLs.Refused {
		_, err := New(Options{URLs: []string{url}, Key: "k"})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Error(url, err)
		}
	}
	if shown := (Options{URLs: []string{"http://user:hunter2@a"}, Key: "secret-key"}).String(); strings.Contains(shown, "hunter2") {
		t.Error(shown)
	}
}

func TestReasonsAreSentOrRejected(t *testing.T) {
	for _, each := range sharedCases(t).Reasons.Cases {
		p := &play{answer: func(*http.Request) (*http.Response, error) { return ok(nil) }}
		_, err := p.client(t).Upsert(context.Background(), "d", "k", struct{}{}, Reason(each.Reason))
		requests, _ := p.sent()
		var rejected *APIError
		switch {
		case each.Sent == nil && each.Reason == "":
			// Without a reason, as the zero value says.
		case each.Sent == nil:
			if !errors.As(err, &rejected) || rejected.Code() != "header_invalid" || len(requests) != 0 {
				t.Errorf("%q: %v", each.Reason, err)
			}
		case err != nil || requests[0].Header.Get("X-Change-Reason") != *each.Sent:
			t.Errorf("%q: %v", each.Reason, err)
		}
	}
}

func TestEnvironmentsAreNamesOrTheClientIsNotMade(t *testing.T) {
	shared := sharedCases(t).Environments
	for _, name := range append(shared.Names, shared.WithoutPrefix...) {
		client, err := New(Options{URLs: []string{"http://a"}, Key: "k", Environment: name})
		if err != nil || client.Environment() != name && !slices.Contains(shared.WithoutPrefix, name) {
			t.Error(name, err)
		}
	}
	t.Setenv("CONCORD_API_KEY", "k")
	for _, name := range shared.Refused {
		if err := checkEnvironment(name); err == nil {
			t.Errorf("%q", name)
		}
		if strings.Contains(name, "\x00") {
			continue
		}
		t.Setenv("CONCORD_ENVIRONMENT", name)
		if _, err := OptionsFromEnv(); err == nil {
			t.Errorf("%q by the environment", name)
		}
	}
}

func TestRequestsHaveTheWholeKeys(t *testing.T) {
	shared := sharedCases(t).Environments
	e, err := newEnvironment(shared.Name)
	if err != nil {
		t.Fatal(err)
	}
	for _, each := range shared.Requests {
		sent := e.enter(request{method: each.Method, target: each.Path, body: each.Body})
		want := each.SentBody
		if want == nil {
			want = each.Body
		}
		if sent.target != each.Sent || (want == nil) != (sent.body == nil) || want != nil && !isSameJSON(sent.body, want) {
			t.Errorf("%s %s: %s %s", each.Method, each.Path, sent.target, sent.body)
		}
	}
	data := `{"z":7.0,"a":1.25,"m":123456789012345678901234567890}`
	body := `{"operations":[{"op":"put_config","config_definition_key":"d","data":` + data + `}]}`
	sent := e.enter(request{method: "POST", target: batchPath, body: []byte(body)})
	if string(sent.body) != strings.Replace(body, `"d"`, `"prod.d"`, 1) {
		t.Errorf("%s", sent.body)
	}
}

func TestResponsesHaveTheKeysThatWereRequested(t *testing.T) {
	shared := sharedCases(t).Environments
	e, _ := newEnvironment(shared.Name)
	for _, each := range shared.Responses {
		want := each.Shown
		if want == nil {
			want = each.Data
		}
		if shown := e.leave(each.Method, each.Path, each.Data); !isSameJSON(shown, want) {
			t.Errorf("%s %s: %s", each.Method, each.Path, shown)
		}
	}
	for _, each := range shared.Events {
		if shown := e.leaveEvent(each.Data); !isSameJSON(shown, each.Shown) {
			t.Errorf("%s: %s", each.Data, shown)
		}
	}
	for _, each := range shared.NextPages {
		of, _ := newEnvironment(each.Environment)
		shown := of.leaveTarget(each.Link)
		if shown != each.Shown || of.enter(request{method: "GET", target: shown}).target != each.Sent {
			t.Errorf("%s: %s", each.Link, shown)
		}
	}
}

func TestAReaderIsSentAsItIs(t *testing.T) {
	shared := sharedCases(t).Readers
	for _, each := range shared.Sent {
		p := &play{answer: func(*http.Request) (*http.Response, error) { return ok(record("acme", nil), "Etag", `"7"`) }}
		client := p.client(t, func(o *Options) {
			if each.Reader != nil {
				o.NoReader, o.Reader, o.Labels = false, *each.Reader, each.Labels
			}
		})
		if _, err := client.Get(context.Background(), "limits", "acme"); err != nil {
			t.Fatal(err)
		}
		requests, _ := p.sent()
		header := requests[0].Header
		if header.Get("X-Concord-Reader") != each.ReaderHeader || header.Get("X-Concord-Labels") != each.LabelsHeader {
			t.Error(header)
		}
	}
	for _, each := range shared.Refused {
		var err error
		if each.Reader == nil {
			_, err = New(Options{URLs: []string{"http://a"}, Key: "k", NoReader: true, Labels: each.Labels})
		} else {
			_, err = newReader(*each.Reader, each.Labels)
		}
		if err == nil {
			t.Error(each)
		}
	}
	for _, each := range shared.Requests {
		if isReadAsReader(each.Method, each.Path) != each.IsSent {
			t.Error(each)
		}
	}
	for _, each := range shared.Variants {
		if variantOf(each.Header) != each.Change {
			t.Error(each)
		}
	}
}

func TestTheVariablesNameTheReader(t *testing.T) {
	t.Setenv("CONCORD_READER", "pod-7")
	t.Setenv("CONCORD_LABELS", "ring=canary, region=eu")
	keyFile := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(keyFile, []byte("the-key\nthe-old-key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CONCORD_API_KEY", "")
	t.Setenv("CONCORD_API_KEY_FILE", keyFile)
	options, err := OptionsFromEnv()
	if err != nil || options.Labels["region"] != "eu" {
		t.Fatal(options.Labels, err)
	}
	client, err := New(options)
	if err != nil || client.Reader() != "pod-7" {
		t.Fatal(err)
	}
	for _, text := range []string{"ring", "ring=a,ring=b", "ring="} {
		t.Setenv("CONCORD_LABELS", text)
		options, err := OptionsFromEnv()
		if err == nil {
			_, err = New(options)
		}
		if err == nil {
			t.Error(text)
		}
	}
}

func TestDocumentsAreWrittenAsTheyWereRead(t *testing.T) {
	for _, each := range sharedCases(t).Documents {
		var data map[string]any
		if err := decode([]byte(each.Text), &data); err != nil {
			t.Fatal(each.Name, err)
		}
		written, err := payload(data)
		if err != nil {
			t.Fatal(each.Name, err)
		}
		var plain any
		if err := decode([]byte(each.Text), &plain); err != nil {
			t.Fatal(err)
		}
		want, err := encode(plain)
		if err != nil || !isSameJSON(written, want) {
			t.Errorf("%s: %s", each.Name, written)
		}
		if ordered := inOrderOf([]byte(each.Text), written); len(ordered) != len(written) || each.Name == "the order of members" && string(ordered) != each.Text {
			t.Errorf("%s: %s", each.Name, ordered)
		}
		if raw, err := payload(json.RawMessage(each.Text)); err != nil || !isSameJSON(raw, written) {
			t.Errorf("%s: %s", each.Name, raw)
		}
	}
}
