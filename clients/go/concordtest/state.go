package concordtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// fault is a rejection.
type fault struct {
	status     int
	kind, code string
	message    string
	loc        []any
	current    uint64
}

func notFound(code string) *fault {
	return &fault{status: 404, kind: "not_found_error", code: code, message: "it does not exist"}
}

func conflict(code string) *fault {
	return &fault{status: 409, kind: "conflict_error", code: code, message: "it exists already, or is in use"}
}

func invalid(code, message string, loc ...any) *fault {
	return &fault{status: 422, kind: "validation_error", code: code, message: message, loc: loc}
}

// record is a definition or a config. It is immutable.
type record struct {
	Definition string          `json:"config_definition_key,omitempty"`
	Key        string          `json:"config_key,omitempty"`
	Indexes    []string        `json:"indexes,omitempty"`
	Schema     json.RawMessage `json:"json_schema,omitempty"`
	Data       json.RawMessage `json:"data,omitempty"`
	Created    string          `json:"created_at"`
	Modified   string          `json:"modified_at"`
	Revision   uint64          `json:"revision"`
}

type name struct{ definition, key string }

type past struct {
	Revision  uint64          `json:"revision"`
	Operation string          `json:"operation"`
	At        string          `json:"at"`
	By        string          `json:"by"`
	Reason    string          `json:"reason"`
	Data      json.RawMessage `json:"data"`
}

// state is what the node holds.
type state struct {
	revision    uint64
	definitions map[string]*record
	configs     map[name]*record
	histories   map[name][]past
}

func (s *state) clone() *state {
	return &state{s.revision, maps.Clone(s.definitions), maps.Clone(s.configs), maps.Clone(s.histories)}
}

// operation is one of a batch; each write is one.
type operation struct {
	Op          string          `json:"op"`
	Definition  string          `json:"config_definition_key"`
	Key         string          `json:"config_key"`
	Data        json.RawMessage `json:"data"`
	Patch       json.RawMessage `json:"patch"`
	Indexes     []string        `json:"indexes"`
	Schema      json.RawMessage `json:"json_schema"`
	IfMatch     string          `json:"if_match"`
	IfNoneMatch string          `json:"if_none_match"`
	Upsert      bool            `json:"upsert"`
	Mode        string          `json:"mode"`
	Revision    uint64          `json:"revision"`
	Absent      *bool           `json:"absent"`
	Equals      json.RawMessage `json:"equals"`
	Pointer     *string         `json:"pointer"`
}

// change is what an operation has done, as an event has it.
type change map[string]any

// apply does one operation at the next revision. Without a change it has only read.
func (s *state) apply(o *operation, reason string) (created bool, done change, _ *fault) {
	at := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
	place := name{o.Definition, o.Key}
	if strings.HasSuffix(o.Op, "_config") && o.Op != "check_config" && s.definitions[o.Definition] == nil {
		return false, nil, notFound("definition_not_found")
	}
	switch o.Op {
	case "create_definition", "set_indexes", "set_schema", "delete_definition":
		return s.define(o, at)
	case "create_config":
		if s.configs[place] != nil {
			return false, nil, conflict("config_exists")
		}
		return s.put(o, at, reason, o.Data)
	case "put_config":
		if s.configs[place] == nil && !o.Upsert && o.IfNoneMatch == "" {
			return false, nil, notFound("config_not_found")
		}
		return s.put(o, at, reason, o.Data)
	case "patch_config":
		before := s.configs[place]
		if before == nil {
			return false, nil, notFound("config_not_found")
		}
		data, err := merged(before.Data, o.Patch)
		if err != nil {
			return false, nil, invalid("patch_invalid", err.Error(), "patch")
		}
		return s.put(o, at, reason, data)
	case "rollback_config":
		for _, each := range s.histories[place] {
			if each.Revision == o.Revision && each.Data != nil {
				return s.put(o, at, reason, each.Data)
			}
		}
		return false, nil, notFound("not_there")
	case "delete_config":
		before := s.configs[place]
		if before == nil {
			return false, nil, notFound("config_not_found")
		}
		if found := o.precondition(before); found != nil {
			return false, nil, found
		}
		delete(s.configs, place)
		s.remember(place, past{s.revision + 1, "delete", at, "test", reason, nil})
		return false, change{"type": "config_deleted", "config_definition_key": o.Definition, "config_key": o.Key}, nil
	case "check_config":
		if !s.holds(o) {
			return false, nil, &fault{status: 412, kind: "precondition_failed", code: "precondition_failed", message: "a check does not hold"}
		}
		return false, nil, nil
	case "get_config":
		return false, nil, nil
	}
	return false, nil, invalid("body_invalid", fmt.Sprintf("concordtest does not know the operation %q", o.Op))
}

func (s *state) define(o *operation, at string) (bool, change, *fault) {
	before := s.definitions[o.Definition]
	kind, made := "definition_updated", record{Definition: o.Definition, Created: at}
	if o.Op == "create_definition" {
		if before != nil {
			return false, nil, conflict("definition_exists")
		}
		kind = "definition_created"
	} else if before == nil {
		return false, nil, notFound("definition_not_found")
	} else if found := o.precondition(before); found != nil {
		return false, nil, found
	} else {
		made = *before
	}
	switch o.Op {
	case "delete_definition":
		count := 0
		for place := range s.configs {
			if place.definition == o.Definition {
				count++
			}
		}
		if count > 0 && o.Mode == "restrict" {
			return false, nil, conflict("definition_not_empty")
		}
		maps.DeleteFunc(s.configs, func(place name, _ *record) bool { return place.definition == o.Definition })
		delete(s.definitions, o.Definition)
		return false, change{"type": "definition_deleted", "config_definition_key": o.Definition, "count": count}, nil
	case "create_definition":
		made.Indexes, made.Schema = append([]string{}, o.Indexes...), o.Schema
	case "set_indexes":
		made.Indexes = append([]string{}, o.Indexes...)
	case "set_schema":
		made.Schema = o.Schema
	}
	if string(made.Schema) == "null" {
		made.Schema = nil
	}
	made.Modified, made.Revision = at, s.revision+1
	s.definitions[o.Definition] = &made
	return kind == "definition_created", change{
		"type": kind, "config_definition_key": o.Definition, "indexes": made.Indexes, "json_schema": made.Schema,
		"created_at": made.Created, "modified_at": at,
	}, nil
}

func (s *state) put(o *operation, at, reason string, data json.RawMessage) (bool, change, *fault) {
	place := name{o.Definition, o.Key}
	before := s.configs[place]
	if found := o.precondition(before); found != nil {
		return false, nil, found
	}
	var compact bytes.Buffer
	if json.Compact(&compact, data) != nil || compact.Len() == 0 || compact.Bytes()[0] != '{' {
		return false, nil, invalid("data_invalid", "the data must be an object", "data")
	}
	made := &record{Definition: o.Definition, Key: o.Key, Data: compact.Bytes(), Created: at, Modified: at, Revision: s.revision + 1}
	kind, what := "config_created", "create"
	if before != nil {
		made.Created, kind, what = before.Created, "config_updated", "update"
	}
	s.configs[place] = made
	s.remember(place, past{made.Revision, what, at, "test", reason, made.Data})
	return before == nil, change{
		"type": kind, "config_definition_key": o.Definition, "config_key": o.Key, "data": made.Data,
		"created_at": made.Created, "modified_at": at,
	}, nil
}

func (s *state) remember(place name, what past) {
	s.histories[place] = append([]past{what}, s.histories[place]...)
}

func (o *operation) precondition(before *record) *fault {
	var current uint64
	if before != nil {
		current = before.Revision
	}
	matches := o.IfMatch == "" || before != nil && (o.IfMatch == "*" || strings.Trim(o.IfMatch, `"`) == strconv.FormatUint(current, 10))
	if matches && (o.IfNoneMatch != "*" || before == nil) {
		return nil
	}
	text := fmt.Sprintf("the current revision is %d, not the expected one", current)
	return &fault{status: 412, kind: "precondition_failed", code: "precondition_failed", message: text, current: current}
}

func (s *state) holds(o *operation) bool {
	found := s.configs[name{o.Definition, o.Key}]
	if o.Revision != 0 {
		return found != nil && found.Revision == o.Revision
	}
	var value any
	isThere := found != nil
	if isThere {
		value = parsed(found.Data)
		if o.Pointer != nil && *o.Pointer != "" {
			for _, part := range strings.Split(*o.Pointer, "/")[1:] {
				members, _ := value.(map[string]any)
				value, isThere = members[strings.NewReplacer("~1", "/", "~0", "~").Replace(part)]
			}
		}
	}
	if o.Absent != nil {
		return isThere != *o.Absent
	}
	return isThere && reflect.DeepEqual(value, parsed(o.Equals))
}

// parsed reads JSON with the digits of its numbers.
func parsed(text json.RawMessage) any {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if decoder.Decode(&value) != nil {
		return nil
	}
	return value
}

// merged is the data after a merge patch.
func merged(data, patch json.RawMessage) (json.RawMessage, error) {
	change, ok := parsed(patch).(map[string]any)
	if !ok {
		return nil, fmt.Errorf("concordtest takes merge patches only")
	}
	return json.Marshal(merge(parsed(data), change))
}

func merge(into any, patch map[string]any) any {
	made, ok := into.(map[string]any)
	if !ok {
		made = map[string]any{}
	}
	for name, value := range patch {
		if inner, isObject := value.(map[string]any); isObject {
			made[name] = merge(made[name], inner)
		} else if value == nil {
			delete(made, name)
		} else {
			made[name] = value
		}
	}
	return made
}
