package concord

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Config is a config as a node returned it.
type Config struct {
	Definition, Key string
	// Data are the JSON that the node sent: numbers with all their digits, members in their order.
	Data json.RawMessage
	// Revision is that of the config, for [IfMatch]. It is 0 in lists across definitions, which don't have it, and of a
	// candidate, which has none: no condition holds with it.
	Revision              uint64
	CreatedAt, ModifiedAt time.Time
	// Variant is the id of the change request whose candidate this is: what this reader gets before the rollout has
	// ended. It is empty for the proven data.
	Variant string
	// Redacted are the places of secret values that the key may not see, as `#/password`. They are null in the data.
	Redacted []string
	// Node is the URL of the node that responded.
	Node string
	// StateRevision is that of the state from which the response was made.
	StateRevision uint64
	// Warnings are the parts of the request that had no effect. Lists have none.
	Warnings []string
}

// Decode reads the data as a Go value. Numbers without a type in it are [json.Number]. A method `Validate() error` of
// the value is called. The error is a [*DecodeError].
func (c *Config) Decode(into any) error { return decodeData(c.Definition, c.Key, c.Data, into) }

// Pointer names a config.
type Pointer struct{ Definition, Key string }

// Definition is a definition.
type Definition struct {
	Key     string
	Indexes []string
	// Schema is the JSON Schema; nil if there is none.
	Schema                json.RawMessage
	CreatedAt, ModifiedAt time.Time
	Revision              uint64
	Warnings              []string
}

// Written is what a write of one record has done.
type Written struct {
	// Revision is the one that the write made; 0 in a dry run.
	Revision uint64
	// StateRevision is one at which the write is there, for [MinRevision].
	StateRevision uint64
	// Data are the content as it is stored.
	Data            json.RawMessage
	Created, DryRun bool
	Node            string
	// Warnings are the parts of the request that had no effect, or that are missing from the response.
	Warnings []string
}

// SchemaChange is what a new schema breaks, or has broken.
type SchemaChange struct {
	BreakingCount int
	// Breaking are the first of the configs that do not fit, with their errors.
	Breaking []json.RawMessage
	DryRun   bool
	Revision uint64
	Warnings []string
}

// IndexProgress is how far an index is built.
type IndexProgress struct {
	Path     string
	Ready    bool
	Done, Of uint64
}

// DeletedDefinition is a deleted definition that is kept, so that its deletion can be undone.
type DeletedDefinition struct {
	Key string `json:"config_definition_key"`
	// Revision is the one that deleted it.
	Revision uint64    `json:"deleted_revision"`
	At       time.Time `json:"deleted_at"`
	// Configs are those that return with it, Bytes what their keys and data take.
	Configs uint64 `json:"configs"`
	Bytes   uint64 `json:"bytes"`
}

// Page is a page of a list.
type Page struct {
	Configs []*Config
	// Total is the number of configs on all pages.
	Total         int
	StateRevision uint64
	Warnings      []string
}

// Past is a change in a history.
type Past struct {
	Revision uint64 `json:"revision"`
	// Operation is `create`, `update` or `delete`.
	Operation string    `json:"operation"`
	At        time.Time `json:"at"`
	// By is the id of the key that made the change.
	By     string `json:"by"`
	Reason string `json:"reason"`
	// Data are the content after the change; of a definition its `indexes` and `json_schema`. Nil after a deletion.
	Data json.RawMessage `json:"data"`
}

// Change is what happened to one record.
type Change struct {
	// Type is `config_created`, `config_updated`, `config_deleted`, `config_unmatched` (it has left the filter),
	// `definition_created`, `definition_updated` or `definition_deleted`.
	Type       string
	Definition string
	// Key is that of the config; empty if the change is about the definition.
	Key  string
	Data json.RawMessage
	// Prev are the data before, if the watch asked for them.
	Prev                  json.RawMessage
	CreatedAt, ModifiedAt time.Time
	Redacted              []string
	// Variant is the id of the change request whose candidate this is; empty for the proven data.
	Variant string
	// Raw is the whole change as the node sent it.
	Raw json.RawMessage
	// Problem is why this client can't read the record; then it has no data.
	Problem string

	revision uint64
}

// Event is all that one revision did. Without changes, everything up to the revision has been handed out.
type Event struct {
	Revision uint64
	Changes  []Change
	// State is set in the first event of a watch with [WatchOptions.Initial], and when such a watch begins again. It
	// replaces what was handed out before.
	State *State
	At    time.Time
	By    string
	// Reason is why the change was made.
	Reason string
	Node   string
}

// State is all that there is at a revision.
type State struct {
	Definitions []*Definition
	Configs     []*Config
	// Unreadable are configs that this client can't read, with the reason.
	Unreadable map[Pointer]string
}

// BatchResult is what a batch or a transaction has done.
type BatchResult struct {
	// Revision is 0 in a dry run.
	Revision uint64
	Results  []OperationResult
	// Succeeded says whether all conditions of a transaction held.
	Succeeded bool
	DryRun    bool
	Warnings  []string
}

// OperationResult is what one operation of a batch has done.
type OperationResult struct {
	Op              string
	Definition, Key string
	Created         bool
	// Config is what [OpGet] read; nil if there was no config, or one that can't be read, of which there is a warning.
	Config *Config
}

// ManyConfigs are configs of one revision.
type ManyConfigs struct {
	Revision uint64
	Found    map[Pointer]*Config
	// Missing says why others are not there: `absent` or `forbidden`.
	Missing map[Pointer]string
}

// ChangeRequest is what [Client.Propose] has made.
type ChangeRequest struct {
	ID     string `json:"change_id"`
	Digest string `json:"digest"`
	Phase  string `json:"phase"`
	// Data are the whole response. Its definition keys have their environment.
	Data json.RawMessage `json:"-"`
}

// --- What nodes send ------------------------------------------------------------------------------------------------

// configRecord is a config, or a change of one.
type configRecord struct {
	Type       string          `json:"type"`
	Definition string          `json:"config_definition_key"`
	Key        string          `json:"config_key"`
	Data       json.RawMessage `json:"data"`
	Prev       json.RawMessage `json:"prev"`
	CreatedAt  time.Time       `json:"created_at"`
	ModifiedAt time.Time       `json:"modified_at"`
	Revision   uint64          `json:"revision"`
	Redacted   []string        `json:"redacted"`
	Variant    *struct {
		ChangeID string `json:"change_id"`
	} `json:"variant"`
}

func (r *configRecord) variant() string {
	if r.Variant == nil {
		return ""
	}
	return r.Variant.ChangeID
}

// config makes the config of a record. The revision counts if the record has none.
func (r *configRecord) config(definition string, revision uint64, node string) *Config {
	made := &Config{
		Definition: r.Definition, Key: r.Key, Data: r.Data, Revision: r.Revision, CreatedAt: r.CreatedAt,
		ModifiedAt: r.ModifiedAt, Variant: r.variant(), Redacted: r.Redacted, Node: node,
	}
	if made.Definition == "" {
		made.Definition = definition
	}
	if made.Revision == 0 {
		made.Revision = revision
	}
	if made.Variant != "" {
		made.Revision = 0
	}
	return made
}

// config is that of a response about it alone: the headers have its version.
func (r *Response) config(definition, key string) (*Config, error) {
	var record configRecord
	if err := r.decode(&record); err != nil {
		return nil, err
	}
	if record.Key != key {
		return nil, &ProtocolError{r.Node, fmt.Sprintf("the response has the config %q where %q was requested", record.Key, key)}
	}
	made := record.config(definition, number(r.Header, "Etag"), r.Node)
	if made.Variant = variantOf(r.Header.Get("X-Concord-Variant")); made.Variant != "" {
		made.Revision = 0
	}
	for _, place := range strings.Split(strings.Join(r.Header.Values("X-Concord-Redacted"), ","), ",") {
		if place = strings.TrimSpace(place); place != "" {
			made.Redacted = append(made.Redacted, place)
		}
	}
	made.StateRevision, made.Warnings = r.Revision(), r.Warnings()
	return made, nil
}

type definitionRecord struct {
	Key        string          `json:"config_definition_key"`
	Indexes    []string        `json:"indexes"`
	Schema     json.RawMessage `json:"json_schema"`
	CreatedAt  time.Time       `json:"created_at"`
	ModifiedAt time.Time       `json:"modified_at"`
	Revision   uint64          `json:"revision"`
}

func (r *definitionRecord) definition(revision uint64) *Definition {
	if r.Revision != 0 {
		revision = r.Revision
	}
	if string(r.Schema) == "null" {
		r.Schema = nil
	}
	return &Definition{
		Key: r.Key, Indexes: r.Indexes, Schema: r.Schema, CreatedAt: r.CreatedAt, ModifiedAt: r.ModifiedAt, Revision: revision,
	}
}

func (r *Response) written() *Written {
	made := &Written{
		Revision: number(r.Header, "Etag"), StateRevision: r.Revision(), Data: r.Data, Created: r.Status == 201,
		DryRun: r.isDryRun(), Node: r.Node, Warnings: r.Warnings(),
	}
	if made.Revision == 0 {
		// A deletion leaves no record.
		made.Revision = number(r.Header, "X-Concord-Write-Revision")
	}
	return made
}

func (r *Response) isDryRun() bool { return r.Header.Get("X-Concord-Dry-Run") == "true" }

// eventOf reads an event. A record that this client can't read says nothing of the others.
func eventOf(text json.RawMessage, node string) (*Event, error) {
	var record struct {
		Revision uint64
		At       time.Time
		By       string
		Reason   string
		Changes  []json.RawMessage
	}
	if err := json.Unmarshal(text, &record); err != nil {
		return nil, &ProtocolError{node, fmt.Sprintf("an event can't be read: %v", err)}
	}
	made := &Event{Revision: record.Revision, At: record.At, By: record.By, Reason: record.Reason, Node: node}
	for _, each := range record.Changes {
		made.Changes = append(made.Changes, changeOf(each, record.Revision))
	}
	return made, nil
}

func changeOf(text json.RawMessage, revision uint64) Change {
	var record configRecord
	if err := json.Unmarshal(text, &record); err != nil {
		var name struct {
			Type       string `json:"type"`
			Definition string `json:"config_definition_key"`
			Key        string `json:"config_key"`
		}
		_ = json.Unmarshal(text, &name) // What can be read of the name is filled in.
		return Change{Type: name.Type, Definition: name.Definition, Key: name.Key, Raw: text, Problem: err.Error()}
	}
	if record.Revision != 0 {
		revision = record.Revision
	}
	return Change{
		Type: record.Type, Definition: record.Definition, Key: record.Key, Data: record.Data, Prev: nullAsNil(record.Prev),
		CreatedAt: record.CreatedAt, ModifiedAt: record.ModifiedAt, Redacted: record.Redacted,
		Variant: record.variant(), Raw: text, revision: revision,
	}
}

func nullAsNil(text json.RawMessage) json.RawMessage {
	if string(text) == "null" {
		return nil
	}
	return text
}

// config is that of a change that created or updated it.
func (c *Change) config(node string) *Config {
	made := &Config{
		Definition: c.Definition, Key: c.Key, Data: c.Data, Revision: c.revision, CreatedAt: c.CreatedAt,
		ModifiedAt: c.ModifiedAt, Variant: c.Variant, Redacted: c.Redacted, Node: node,
	}
	if made.Variant != "" {
		made.Revision = 0
	}
	return made
}

// isSameJSON compares values, not texts.
func isSameJSON(one, other json.RawMessage) bool {
	if bytes.Equal(one, other) {
		return true
	}
	var a, b any
	return decode(one, &a) == nil && decode(other, &b) == nil && reflect.DeepEqual(a, b)
}
