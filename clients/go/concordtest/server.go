package concordtest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	concord "github.com/concord-config/concord/clients/go"
)

const (
	bodyBytesMax  = 16 << 20
	pageSizeOfAPI = 10
)

// Server is one node in memory. It holds definitions and configs with their history, and has conditional writes, merge
// patches, batches, transactions, bulk reads, lists with filters for equality, watches and idempotency keys.
//
// It has no permissions, no rollouts and no environments, and does not check data against schemas. What it does not know
// it rejects with 422 or 404.
type Server struct {
	URL, Key string

	http *httptest.Server
	mu   sync.Mutex
	// state is replaced as a whole, so that a request reads one of them.
	state     *state
	events    []event
	stored    map[string]storedReply
	changed   chan struct{}
	isDown    bool
	intercept func(http.ResponseWriter, *http.Request) bool
	ended     chan struct{}
}

type event struct {
	Revision uint64   `json:"revision"`
	At       string   `json:"at"`
	By       string   `json:"by"`
	Reason   string   `json:"reason"`
	Changes  []change `json:"changes"`
}

// storedReply is the response to a write with an idempotency key.
type storedReply struct {
	header http.Header
	status int
	body   []byte
}

// NewServer starts a node. It ends with the test.
func NewServer(t testing.TB) *Server {
	s := Start()
	t.Cleanup(s.Close)
	return s
}

// Start starts a node, for programs that are no test. [Server.Close] ends it.
func Start() *Server {
	s := &Server{
		Key: "concordtest-key", state: &state{1, map[string]*record{}, map[name]*record{}, map[name][]past{}},
		stored: map[string]storedReply{}, changed: make(chan struct{}), ended: make(chan struct{}),
	}
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	s.URL = s.http.URL
	return s
}

// Close ends the node.
func (s *Server) Close() {
	close(s.ended)
	s.http.CloseClientConnections()
	s.http.Close()
}

// Options are those of a client of the node, without a reader.
func (s *Server) Options() concord.Options {
	return concord.Options{URLs: []string{s.URL}, Key: s.Key, NoReader: true}
}

// Client makes a client of the node. It ends with the test.
func (s *Server) Client(t testing.TB) *concord.Client {
	t.Helper()
	client, err := concord.New(s.Options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// Define creates a definition.
func (s *Server) Define(t testing.TB, definition string, indexes ...string) {
	t.Helper()
	s.must(t, &operation{Op: "create_definition", Definition: definition, Indexes: indexes})
}

// Set creates or replaces a config, and returns its revision. It creates the definition if there is none.
func (s *Server) Set(t testing.TB, definition, key string, data any) uint64 {
	t.Helper()
	text, err := json.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	isDefined := s.state.definitions[definition] != nil
	s.mu.Unlock()
	if !isDefined {
		s.Define(t, definition)
	}
	return s.must(t, &operation{Op: "put_config", Definition: definition, Key: key, Data: text, Upsert: true})
}

// Delete deletes a config.
func (s *Server) Delete(t testing.TB, definition, key string) {
	t.Helper()
	s.must(t, &operation{Op: "delete_config", Definition: definition, Key: key})
}

// SetDown makes the node reject every request with 503, or no longer.
func (s *Server) SetDown(isDown bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isDown = isDown
}

// Intercept calls a function before each request. If it returns true, it has written the response; so a test plays
// errors. Nil ends that.
func (s *Server) Intercept(f func(http.ResponseWriter, *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

func (s *Server) must(t testing.TB, o *operation) uint64 {
	t.Helper()
	_, revision, found := s.commit([]*operation{o}, "", false)
	if found != nil {
		t.Fatalf("concordtest: %s", found.message)
	}
	return revision
}

// commit applies operations as one change. The results are those of a batch.
func (s *Server) commit(operations []*operation, reason string, isDry bool) ([]map[string]any, uint64, *fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	made, before := s.state.clone(), s.state
	var changes []change
	results := []map[string]any{}
	for n, o := range operations {
		created, done, found := made.apply(o, reason)
		if found != nil {
			found.loc = append([]any{n}, found.loc...)
			return nil, 0, found
		}
		result := map[string]any{"op": o.Op, "config_definition_key": o.Definition, "created": created}
		if o.Key != "" {
			result["config_key"] = o.Key
		}
		if o.Op == "get_config" {
			result["config"] = before.configs[name{o.Definition, o.Key}]
		}
		results = append(results, result)
		if done != nil {
			changes = append(changes, done)
		}
	}
	if isDry || changes == nil {
		return results, before.revision, nil
	}
	made.revision++
	at := time.Now().UTC().Format(time.RFC3339Nano)
	s.state = made
	s.events = append(s.events, event{made.revision, at, "test", reason, changes})
	close(s.changed)
	s.changed = make(chan struct{})
	return results, made.revision, nil
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	intercept, isDown, now := s.intercept, s.isDown, s.state
	s.mu.Unlock()
	if intercept != nil && intercept(w, r) {
		return
	}
	w.Header().Set("X-Concord-Revision", strconv.FormatUint(now.revision, 10))
	w.Header().Set("X-Concord-Cluster", "concordtest")
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyBytesMax))
	switch {
	case err != nil:
		reject(w, &fault{status: 413, kind: "payload_too_large", code: "too_large", message: err.Error()})
		return
	case isDown:
		reject(w, &fault{status: 503, kind: "unavailable_error", code: "unavailable", message: "the test has put the node down"})
		return
	case strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ") != s.Key:
		reject(w, &fault{status: 401, kind: "unauthorized_error", code: "unauthorized", message: "the key is unknown"})
		return
	}
	key := r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	known, isKnown := s.stored[key]
	s.mu.Unlock()
	if key == "" || r.URL.Query().Get("dry_run") == "true" {
		s.route(w, r, now, body)
		return
	}
	if !isKnown {
		recorder := httptest.NewRecorder()
		maps.Copy(recorder.Header(), w.Header())
		s.route(recorder, r, now, body)
		known = storedReply{recorder.Header(), recorder.Code, recorder.Body.Bytes()}
		s.mu.Lock()
		s.stored[key] = known
		s.mu.Unlock()
	}
	maps.Copy(w.Header(), known.header)
	w.WriteHeader(known.status)
	w.Write(known.body)
}

func (s *Server) route(w http.ResponseWriter, r *http.Request, now *state, body []byte) {
	path := strings.Trim(strings.TrimPrefix(r.URL.Path, "/api/v1"), "/")
	parts := strings.Split(path, "/")
	switch {
	case parts[0] == "config_definition" && len(parts) > 2 && parts[2] == "config":
		s.routeConfig(w, r, now, parts, body)
	case parts[0] == "config_definition":
		s.routeDefinition(w, r, now, parts, body)
	case path == "batch" && r.Method == "POST":
		s.batch(w, r, now, body)
	case path == "read" && r.Method == "POST":
		s.readMany(w, now, body)
	case path == "watch":
		s.watch(w, r, now)
	case path == "changes":
		s.changes(w, r)
	case path == "whoami":
		respond(w, 200, map[string]any{"name": "concordtest", "root": true})
	default:
		reject(w, notFound("path_not_found"))
	}
}

// write does one operation and responds with the record that it left.
func (s *Server) write(w http.ResponseWriter, r *http.Request, o *operation, show func(*state) any) {
	o.IfMatch, o.IfNoneMatch = r.Header.Get("If-Match"), r.Header.Get("If-None-Match")
	isDry := r.URL.Query().Get("dry_run") == "true"
	results, revision, found := s.commit([]*operation{o}, r.Header.Get("X-Change-Reason"), isDry)
	if found != nil {
		found.loc = found.loc[1:]
		reject(w, found)
		return
	}
	w.Header().Set("X-Concord-Revision", strconv.FormatUint(revision, 10))
	s.mu.Lock()
	now := s.state
	s.mu.Unlock()
	if isDry {
		w.Header().Set("X-Concord-Dry-Run", "true")
	} else if strings.HasPrefix(o.Op, "delete") {
		w.Header().Set("X-Concord-Write-Revision", strconv.FormatUint(revision, 10))
	} else {
		setTag(w, revision)
	}
	status := 200
	if results[0]["created"] == true {
		status = 201
	}
	respond(w, status, show(now))
}

func (s *Server) routeDefinition(w http.ResponseWriter, r *http.Request, now *state, parts []string, body []byte) {
	o := &operation{}
	if json.Unmarshal(body, o) != nil && len(body) > 0 {
		reject(w, invalid("body_invalid", "the body is not JSON", "body"))
		return
	}
	show := func(now *state) any { return now.definitions[o.Definition] }
	if len(parts) == 1 {
		if r.Method == "POST" {
			o.Op = "create_definition"
			s.write(w, r, o, show)
			return
		}
		var listed []*record
		for _, key := range slices.Sorted(maps.Keys(now.definitions)) {
			if isMeant(r, key) && strings.Contains(key, r.URL.Query().Get("search")) {
				listed = append(listed, now.definitions[key])
			}
		}
		page(w, r, listed)
		return
	}
	o.Definition = parts[1]
	switch {
	case len(parts) == 3 && parts[2] == "schema" && r.Method == "PUT":
		o.Op = "set_schema"
		s.write(w, r, o, show)
	case len(parts) > 2:
		reject(w, notFound("path_not_found"))
	case r.Method == "PUT":
		o.Op = "set_indexes"
		s.write(w, r, o, show)
	case r.Method == "DELETE":
		o.Op, o.Mode = "delete_definition", r.URL.Query().Get("mode")
		s.write(w, r, o, func(*state) any { return map[string]string{"config_definition_key": o.Definition} })
	case now.definitions[o.Definition] == nil:
		reject(w, notFound("definition_not_found"))
	default:
		setTag(w, now.definitions[o.Definition].Revision)
		respond(w, 200, now.definitions[o.Definition])
	}
}

func (s *Server) routeConfig(w http.ResponseWriter, r *http.Request, now *state, parts []string, body []byte) {
	o := &operation{}
	if json.Unmarshal(body, o) != nil && len(body) > 0 && r.Method != "PATCH" {
		reject(w, invalid("body_invalid", "the body is not JSON", "body"))
		return
	}
	o.Definition = parts[1]
	if now.definitions[o.Definition] == nil {
		reject(w, notFound("definition_not_found"))
		return
	}
	if len(parts) == 3 {
		if r.Method == "POST" {
			o.Op = "create_config"
			s.write(w, r, o, showData(o))
			return
		}
		s.list(w, r, now, o.Definition)
		return
	}
	o.Key = parts[3]
	place := name{o.Definition, o.Key}
	what := r.Method
	if len(parts) > 4 {
		what += " " + parts[4]
	}
	switch what {
	case "GET":
		found := now.configs[place]
		if found == nil {
			reject(w, notFound("config_not_found"))
			return
		}
		setTag(w, found.Revision)
		if r.Header.Get("If-None-Match") == w.Header().Get("ETag") {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		respond(w, 200, found)
	case "PUT":
		o.Op, o.Upsert = "put_config", r.URL.Query().Get("upsert") == "true"
		s.write(w, r, o, showData(o))
	case "PATCH":
		s.write(w, r, &operation{Op: "patch_config", Definition: o.Definition, Key: o.Key, Patch: body}, showData(o))
	case "DELETE":
		o.Op = "delete_config"
		s.write(w, r, o, func(*state) any { return map[string]string{"config_definition_key": o.Definition, "config_key": o.Key} })
	case "GET history":
		if now.histories[place] == nil {
			reject(w, notFound("config_not_found"))
			return
		}
		page(w, r, now.histories[place])
	case "POST rollback":
		o.Op = "rollback_config"
		s.write(w, r, o, showData(o))
	case "POST report":
		respond(w, 200, map[string]bool{"counted": true})
	default:
		reject(w, notFound("path_not_found"))
	}
}

func showData(o *operation) func(*state) any {
	return func(now *state) any {
		if found := now.configs[name{o.Definition, o.Key}]; found != nil {
			return found.Data
		}
		return nil
	}
}

// parameters of lists that are no filters.
var parameters = []string{"page", "limit", "include", "$include", "search", "sort_by", "sort_order", "consistency", "min_revision", "max_staleness_ms"}

func (s *Server) list(w http.ResponseWriter, r *http.Request, now *state, definition string) {
	query := r.URL.Query()
	var listed []*record
	for place, found := range now.configs {
		if place.definition == definition && strings.Contains(place.key, query.Get("search")) {
			listed = append(listed, found)
		}
	}
	for path, values := range query {
		if slices.Contains(parameters, path) {
			continue
		}
		if path != "config_key" && !slices.Contains(now.definitions[definition].Indexes, path) {
			reject(w, invalid("query_invalid", fmt.Sprintf("%q is no indexed path: concordtest filters by equality alone", path), "query", path))
			return
		}
		listed = slices.DeleteFunc(listed, func(each *record) bool {
			return !slices.ContainsFunc(values, func(value string) bool { return hasValue(each, path, value) })
		})
	}
	slices.SortFunc(listed, func(a, b *record) int { return strings.Compare(a.Key, b.Key) })
	if query.Get("sort_order") == "desc" {
		slices.Reverse(listed)
	}
	page(w, r, listed)
}

func hasValue(found *record, path, value string) bool {
	if path == "config_key" {
		return found.Key == value
	}
	at := parsed(found.Data)
	for _, part := range strings.Split(path, ".") {
		members, _ := at.(map[string]any)
		inner, ok := members[part]
		if !ok {
			return false
		}
		at = inner
	}
	if list, ok := at.([]any); ok {
		return slices.ContainsFunc(list, func(each any) bool { return fmt.Sprint(each) == value })
	}
	return fmt.Sprint(at) == value
}

// page responds with a part of a list. The test has no other writer between two pages unless it wants one.
func page[T any](w http.ResponseWriter, r *http.Request, listed []T) {
	number, limit := max(1, intOf(r, "page", 1)), max(1, intOf(r, "limit", pageSizeOfAPI))
	begin := min((number-1)*limit, len(listed))
	end := min(begin+limit, len(listed))
	if end < len(listed) {
		query := r.URL.Query()
		query.Set("page", strconv.Itoa(number+1))
		w.Header().Set("Link", fmt.Sprintf(`<%s?%s>; rel="next"`, r.URL.Path, query.Encode()))
	}
	results := append([]T{}, listed[begin:end]...)
	respond(w, 200, map[string]any{"results": results, "meta": map[string]int{"page": number, "limit": limit, "total": len(listed)}})
}

func (s *Server) batch(w http.ResponseWriter, r *http.Request, now *state, body []byte) {
	var asked struct {
		Operations, If, Then, Else []*operation
	}
	if json.Unmarshal(body, &asked) != nil {
		reject(w, invalid("body_invalid", "the body is not a batch", "body"))
		return
	}
	data := map[string]any{}
	operations := asked.Operations
	if asked.If != nil {
		holds := !slices.ContainsFunc(asked.If, func(o *operation) bool { return !now.holds(o) })
		data["succeeded"], operations = holds, asked.Else
		if holds {
			// The conditions hold for the state that the operations are applied to.
			operations = append(asked.If, asked.Then...)
		}
	}
	isDry := r.URL.Query().Get("dry_run") == "true"
	results, revision, found := s.commit(operations, r.Header.Get("X-Change-Reason"), isDry)
	if found != nil {
		found.loc = append([]any{"operations"}, found.loc...)
		reject(w, found)
		return
	}
	if data["succeeded"] == true {
		results = results[len(asked.If):]
	}
	data["results"], data["revision"] = results, revision
	if isDry {
		data["revision"] = nil
		w.Header().Set("X-Concord-Dry-Run", "true")
	}
	w.Header().Set("X-Concord-Revision", strconv.FormatUint(revision, 10))
	respond(w, 200, data)
}

func (s *Server) readMany(w http.ResponseWriter, now *state, body []byte) {
	var asked struct{ Configs []operation }
	if json.Unmarshal(body, &asked) != nil {
		reject(w, invalid("body_invalid", "the body is not a bulk read", "body"))
		return
	}
	results := []map[string]any{}
	for _, each := range asked.Configs {
		result := map[string]any{"config_definition_key": each.Definition, "config_key": each.Key, "status": "absent"}
		if found := now.configs[name{each.Definition, each.Key}]; found != nil {
			result["status"], result["revision"], result["config"] = "found", found.Revision, found
		}
		results = append(results, result)
	}
	respond(w, 200, map[string]any{"revision": now.revision, "results": results})
}

// watchParameters are all that a watch or a poll takes.
var watchParameters = []string{"definition", "config_key", "initial", "from", "wait", "prev", "consistency", "min_revision", "max_staleness_ms"}

func isFiltered(w http.ResponseWriter, r *http.Request) bool {
	for name := range r.URL.Query() {
		if !slices.Contains(watchParameters, name) {
			reject(w, invalid("query_invalid", "concordtest has no filters of watches", "query", name))
			return true
		}
	}
	return false
}

// watch sends the state. A stream of changes is not needed: the client polls.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, now *state) {
	if r.URL.Query().Get("initial") != "true" {
		reject(w, invalid("query_invalid", "concordtest has watches with initial=true and polls", "query", "initial"))
		return
	}
	if isFiltered(w, r) {
		return
	}
	definitions, configs := []*record{}, []*record{}
	for key, found := range now.definitions {
		if isMeant(r, key) {
			definitions = append(definitions, found)
		}
	}
	for place, found := range now.configs {
		if isMeant(r, place.definition) && isMeantConfig(r, place.key) {
			configs = append(configs, found)
		}
	}
	text, err := json.Marshal(map[string]any{"revision": now.revision, "definitions": definitions, "configs": configs, "complete": true})
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "event: state\nid: %d\ndata: %s\n\n", now.revision, text)
}

func (s *Server) changes(w http.ResponseWriter, r *http.Request) {
	if isFiltered(w, r) {
		return
	}
	deadline := time.After(time.Duration(intOf(r, "wait", 30)) * time.Second)
	from := uint64(intOf(r, "from", 0))
	for {
		s.mu.Lock()
		now, events, changed := s.state, s.events, s.changed
		s.mu.Unlock()
		if from == 0 {
			from = now.revision + 1
		}
		found := []event{}
		for _, each := range events {
			if each.Revision < from {
				continue
			}
			each.Changes = slices.DeleteFunc(slices.Clone(each.Changes), func(done change) bool {
				key, isConfig := done["config_key"].(string)
				return !isMeant(r, done["config_definition_key"].(string)) || isConfig && !isMeantConfig(r, key)
			})
			if len(each.Changes) > 0 {
				found = append(found, each)
			}
		}
		w.Header().Set("X-Concord-Revision", strconv.FormatUint(now.revision, 10))
		w.Header().Set("X-Concord-Next-From", strconv.FormatUint(max(from, now.revision+1), 10))
		if len(found) > 0 {
			respond(w, 200, map[string]any{"events": found, "from": now.revision + 1})
			return
		}
		select {
		case <-changed:
			continue
		case <-deadline:
		case <-s.ended:
		case <-r.Context().Done():
		}
		w.WriteHeader(http.StatusNotModified)
		return
	}
}

func isMeant(r *http.Request, definition string) bool {
	patterns := r.URL.Query()["definition"]
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(pattern string) bool {
		prefix, isPattern := strings.CutSuffix(pattern, "*")
		return pattern == definition || isPattern && strings.HasPrefix(definition, prefix)
	})
}

func isMeantConfig(r *http.Request, key string) bool {
	keys := r.URL.Query()["config_key"]
	return len(keys) == 0 || slices.Contains(keys, key)
}

func intOf(r *http.Request, name string, otherwise int) int {
	if value, err := strconv.Atoi(r.URL.Query().Get(name)); err == nil {
		return value
	}
	return otherwise
}

func setTag(w http.ResponseWriter, revision uint64) {
	w.Header().Set("ETag", `"`+strconv.FormatUint(revision, 10)+`"`)
}

func respond(w http.ResponseWriter, status int, data any) {
	text, err := json.Marshal(map[string]any{"status": "SUCCESS", "message": "done", "data": data})
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(text)
}

func reject(w http.ResponseWriter, found *fault) {
	item := map[string]any{"type": found.kind, "code": found.code, "msg": found.message}
	if len(found.loc) > 0 {
		item["loc"] = found.loc
	}
	text, err := json.Marshal(map[string]any{"status": "FAILURE", "errors": []any{item}})
	if err != nil {
		panic(err)
	}
	if found.current != 0 {
		setTag(w, found.current)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(found.status)
	w.Write(text)
}
