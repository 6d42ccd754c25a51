package concord

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const (
	apiRoot           = "/api/v1"
	definitionsPath   = apiRoot + "/config_definition"
	configsPath       = apiRoot + "/config"
	deletedPath       = apiRoot + "/deleted_definition"
	changeRequestPath = apiRoot + "/change_request"
	batchPath         = apiRoot + "/batch"
	readPath          = apiRoot + "/read"
	watchPath         = apiRoot + "/watch"
	changesPath       = apiRoot + "/changes"
	auditPath         = apiRoot + "/audit"

	definitionKey = "config_definition_key"
)

var environmentName = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9_~-]{0,63}\z`)

// environment is put with a dot before the definition keys of requests, and taken off those of responses. This is done
// once, where requests go out and responses come in, so that no request can be forgotten. Data, schemas and patches are
// never changed.
type environment struct{ name, prefix string }

func checkEnvironment(name string) error {
	if !environmentName.MatchString(name) {
		return fmt.Errorf("concord: %q is not the name of an environment: "+
			"expected 1 to 64 characters of A-Z a-z 0-9 _ ~ -, the first a letter or a digit", name)
	}
	return nil
}

// newEnvironment returns nil without a name, and for `default`, which has no prefix.
func newEnvironment(name string) (*environment, error) {
	if name == "" {
		return nil, nil
	}
	if err := checkEnvironment(name); err != nil || name == "default" {
		return nil, err
	}
	return &environment{name, name + "."}, nil
}

func (e *environment) enter(r request) request {
	r.body = e.enterBody(r)
	r.target = e.enterTarget(r.method, r.target)
	return r
}

func (e *environment) enterTarget(method, target string) string {
	path, query, _ := strings.Cut(target, "?")
	entered := path
	if rest, isBelow := strings.CutPrefix(path, definitionsPath+"/"); isBelow && rest != "" {
		entered = definitionsPath + "/" + e.prefix + rest
	}
	// The lines of the audit log are of requests, of which many are about no definition.
	isOfAll := isListOfAll(method, path)
	if !isOfAll && plainPath(path) != auditPath {
		return entered + target[len(path):]
	}
	var pairs []string
	if query != "" {
		pairs = strings.Split(query, "&")
	}
	hasDefinition := false
	sent := slices.Clone(pairs)
	for n, pair := range pairs {
		if value, ok := strings.CutPrefix(pair, "definition="); ok && value != "" {
			sent[n], hasDefinition = "definition="+e.prefix+value, true
		}
	}
	if isOfAll && !hasDefinition && !isOfChangeRequests(pairs) {
		sent = append(sent, "definition="+e.prefix+"*")
	}
	if len(sent) == 0 {
		return entered
	}
	return entered + "?" + strings.Join(sent, "&")
}

func (e *environment) enterBody(r request) []byte {
	path := plainPath(r.target)
	isPost := r.method == "POST"
	var lists []string
	switch {
	case isPost && path == readPath:
		lists = []string{"configs"}
	case isPost && path == batchPath:
		lists = []string{"operations", "if", "then", "else"}
	case (isPost || r.method == "PUT") && strings.HasPrefix(path, changeRequestPath):
		lists = []string{"operations"}
	case isPost && path == definitionsPath:
		return e.enterKey(r.body)
	}
	body := json.RawMessage(r.body)
	for _, name := range lists {
		body = edited(body, name, func(list json.RawMessage) json.RawMessage { return editedElements(list, e.enterKey) })
	}
	return body
}

func (e *environment) enterKey(text json.RawMessage) json.RawMessage {
	return edited(text, definitionKey, func(value json.RawMessage) json.RawMessage {
		var key string
		if json.Unmarshal(value, &key) != nil {
			return value
		}
		return quoted(e.prefix + key)
	})
}

// leave makes the data of a response those that were asked for. The target is that of the request as it was made.
func (e *environment) leave(method, target string, data json.RawMessage) json.RawMessage {
	path := plainPath(target)
	isRead := method == "GET" || method == "HEAD"
	below, isBelow := strings.CutPrefix(path, definitionsPath+"/")
	switch {
	case path == deletedPath, path == configsPath, path == readPath, path == batchPath, path == definitionsPath && isRead:
		return edited(data, "results", e.leaveKeys)
	case path == changesPath:
		return edited(data, "events", func(list json.RawMessage) json.RawMessage {
			return editedElements(list, e.leaveEvent)
		})
	// The data of a config's response are its own, except when it is deleted.
	case path == definitionsPath, isBelow && (!isOfConfig(below) || method == "DELETE"):
		return e.leaveKey(data)
	}
	return data
}

// leaveEvent does the same for an event of a watch.
func (e *environment) leaveEvent(event json.RawMessage) json.RawMessage {
	for _, name := range []string{"changes", "definitions", "configs"} {
		event = edited(event, name, e.leaveKeys)
	}
	return event
}

func (e *environment) leaveKeys(list json.RawMessage) json.RawMessage {
	return editedElements(list, e.leaveKey)
}

func (e *environment) leaveKey(text json.RawMessage) json.RawMessage {
	return edited(text, definitionKey, func(value json.RawMessage) json.RawMessage {
		var key string
		if json.Unmarshal(value, &key) != nil || !strings.HasPrefix(key, e.prefix) {
			return value
		}
		return quoted(key[len(e.prefix):])
	})
}

// leaveTarget is the path of a next page, as a program asks for it.
func (e *environment) leaveTarget(target string) string {
	path, query, hasQuery := strings.Cut(target, "?")
	isList := isListOfAll("GET", path) || plainPath(path) == auditPath
	if rest, ok := strings.CutPrefix(path, definitionsPath+"/"+e.prefix); ok {
		path = definitionsPath + "/" + rest
	}
	if !hasQuery {
		return path
	}
	if isList {
		pairs := strings.Split(query, "&")
		for n, pair := range pairs {
			value, isDefinition := strings.CutPrefix(pair, "definition=")
			// Nodes encode one character of names in queries.
			for _, prefix := range []string{e.prefix, strings.ReplaceAll(e.prefix, "~", "%7E")} {
				if rest, ok := strings.CutPrefix(value, prefix); ok && isDefinition {
					pairs[n] = "definition=" + rest
					break
				}
			}
		}
		query = strings.Join(pairs, "&")
	}
	return path + "?" + query
}

// isListOfAll tells the routes that are of all definitions without the parameter `definition`.
func isListOfAll(method, path string) bool {
	switch plainPath(path) {
	case deletedPath, configsPath, watchPath, changesPath:
		return true
	case definitionsPath:
		return method == "GET" || method == "HEAD"
	}
	return false
}

// isOfChangeRequests tells a watch of change requests, which are of no one definition. Any other value may mean a watch
// of definitions, and of several values the last one counts.
func isOfChangeRequests(pairs []string) bool {
	isFound := false
	for _, pair := range pairs {
		name, _, _ := strings.Cut(pair, "=")
		if name == "change_requests" {
			if pair != "change_requests=true" {
				return false
			}
			isFound = true
		}
	}
	return isFound
}

func isOfConfig(below string) bool {
	parts := strings.Split(below, "/")
	return len(parts) > 1 && parts[1] == "config"
}

// plainPath is the path alone. Nodes take one with a slash at its end for the same one.
func plainPath(target string) string {
	path, _, _ := strings.Cut(target, "?")
	return strings.TrimSuffix(path, "/")
}
