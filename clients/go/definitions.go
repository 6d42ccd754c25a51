package concord

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"time"
)

// DefinitionSpec is what a definition is made of.
type DefinitionSpec struct {
	// Indexes are the paths that lists filter and sort by. Nil leaves them as they are in [Client.EnsureDefinition].
	Indexes []string
	// Schema is a JSON Schema: JSON, or a value that is written as one. See [SchemaOf].
	Schema any
	// FormatAssertion says whether an invalid `format` is a violation: true by default.
	FormatAssertion *bool
}

// CreateDefinition creates a definition.
func (c *Client) CreateDefinition(ctx context.Context, key string, spec DefinitionSpec, options ...WriteOption) (*Written, error) {
	body := struct {
		Key             string   `json:"config_definition_key"`
		Indexes         []string `json:"indexes"`
		Schema          any      `json:"json_schema,omitempty"`
		FormatAssertion *bool    `json:"format_assertion,omitempty"`
	}{key, append([]string{}, spec.Indexes...), spec.Schema, spec.FormatAssertion}
	err := checkKey(key, definitionKey)
	return written(c.write(ctx, settings(options, WriteOption.write), "POST", definitionsPath+"/", body, err))
}

// EnsureDefinition creates a definition, or changes its schema and its indexes where they differ. What the spec does not
// name stays as it is. A schema that existing configs do not fit is rejected.
func (c *Client) EnsureDefinition(ctx context.Context, key string, spec DefinitionSpec, options ...UpdateOption) (*Definition, error) {
	w := settings(options, UpdateOption.update)
	var warnings []string
	found, err := c.GetDefinition(ctx, key)
	if errors.Is(err, ErrNotFound) {
		made, createErr := c.CreateDefinition(ctx, key, spec, Reason(w.reason))
		var conflict *APIError
		// Another program may have been faster, and may have made another one.
		if createErr != nil && !(errors.As(createErr, &conflict) && conflict.Code() == "definition_exists") {
			return nil, createErr
		}
		if made != nil {
			warnings = append(warnings, made.Warnings...)
		}
		found, err = c.GetDefinition(ctx, key)
	}
	if err != nil {
		return nil, err
	}
	if spec.Schema != nil {
		wanted, err := encode(spec.Schema)
		if err != nil {
			return nil, fmt.Errorf("concord: the schema is not JSON: %w", err)
		}
		if !isSameJSON(wanted, found.Schema) {
			done, err := c.SetSchema(ctx, key, wanted, Reason(w.reason))
			if err != nil {
				return nil, err
			}
			warnings = append(warnings, done.Warnings...)
		}
	}
	if spec.Indexes != nil && !slices.Equal(spec.Indexes, found.Indexes) {
		done, err := c.SetIndexes(ctx, key, spec.Indexes, Reason(w.reason))
		if err != nil {
			return nil, err
		}
		warnings = append(warnings, done.Warnings...)
	}
	if found, err = c.GetDefinition(ctx, key); err != nil {
		return nil, err
	}
	found.Warnings = append(warnings, found.Warnings...)
	return found, nil
}

// GetDefinition reads a definition.
func (c *Client) GetDefinition(ctx context.Context, key string, options ...ReadOption) (*Definition, error) {
	var record definitionRecord
	response, err := c.part(ctx, key, "", options, &record)
	if err != nil {
		return nil, err
	}
	if record.Key != key {
		return nil, &ProtocolError{response.Node, fmt.Sprintf("the response has the definition %q where %q was requested", record.Key, key)}
	}
	made := record.definition(number(response.Header, "Etag"))
	made.Warnings = response.Warnings()
	return made, nil
}

// part reads something of a definition.
func (c *Client) part(ctx context.Context, key, name string, options []ReadOption, into any) (*Response, error) {
	rest := []string{name}
	if name == "" {
		rest = nil
	}
	path, err := definitionPath(key, rest...)
	if err != nil {
		return nil, err
	}
	r := settings(options, ReadOption.read)
	response, err := c.send(ctx, request{method: "GET", target: target(path, r.params)})
	if err != nil {
		return nil, err
	}
	return response, response.decode(into)
}

// SetIndexes sets all indexed paths of a definition.
func (c *Client) SetIndexes(ctx context.Context, key string, indexes []string, options ...ChangeOption) (*Written, error) {
	path, err := definitionPath(key)
	body := map[string][]string{"indexes": append([]string{}, indexes...)}
	return written(c.write(ctx, settings(options, ChangeOption.change), "PUT", path, body, err))
}

// DeleteDefinition deletes a definition with its configs. The deletion can be undone for a while, unless [Purge].
func (c *Client) DeleteDefinition(ctx context.Context, key string, options ...DeleteDefinitionOption) (*Written, error) {
	path, err := definitionPath(key)
	w := settings(options, DeleteDefinitionOption.deleteDefinition)
	return written(c.write(ctx, w, http.MethodDelete, path, nil, err))
}

// SetSchema changes the schema; nil removes it. It is rejected if configs break it, unless [Force].
func (c *Client) SetSchema(ctx context.Context, key string, schema any, options ...SchemaOption) (*SchemaChange, error) {
	path, err := definitionPath(key, "schema")
	w := settings(options, SchemaOption.schema)
	body := struct {
		Schema          any   `json:"json_schema"`
		FormatAssertion *bool `json:"format_assertion,omitempty"`
	}{schema, w.formatAssertion}
	response, err := c.write(ctx, w, "PUT", path, body, err)
	if err != nil {
		return nil, err
	}
	var found struct {
		Count    int               `json:"breaking_count"`
		Breaking []json.RawMessage `json:"breaking"`
	}
	// The schema is stored, whatever the response says of it.
	_ = json.Unmarshal(response.Data, &found)
	return &SchemaChange{
		found.Count, found.Breaking, response.isDryRun(), number(response.Header, "Etag"), response.Warnings(),
	}, nil
}

// Unique returns the paths whose values are unique among the configs.
func (c *Client) Unique(ctx context.Context, key string, options ...ReadOption) ([]string, error) {
	var found struct{ Paths []string }
	_, err := c.part(ctx, key, "unique", options, &found)
	return found.Paths, err
}

// SetUnique sets all unique paths. They must be indexed.
func (c *Client) SetUnique(ctx context.Context, key string, paths []string, options ...ChangeOption) (*Written, error) {
	path, err := definitionPath(key, "unique")
	body := map[string][]string{"paths": append([]string{}, paths...)}
	return written(c.write(ctx, settings(options, ChangeOption.change), "PUT", path, body, err))
}

// Protection says whether the deletion of a definition is rejected.
func (c *Client) Protection(ctx context.Context, key string, options ...ReadOption) (bool, error) {
	var found struct{ Protected bool }
	_, err := c.part(ctx, key, "protection", options, &found)
	return found.Protected, err
}

// SetProtection protects a definition from deletion, or no longer.
func (c *Client) SetProtection(ctx context.Context, key string, isProtected bool, options ...ChangeOption) (*Written, error) {
	path, err := definitionPath(key, "protection")
	body := map[string]bool{"protected": isProtected}
	return written(c.write(ctx, settings(options, ChangeOption.change), "PUT", path, body, err))
}

// UndeleteAt is an earlier point that a definition returns as of: a revision, or a time. The zero value is the deletion.
type UndeleteAt struct {
	Revision uint64
	Time     time.Time
}

// UndeleteDefinition undoes the deletion of a definition: it returns with its configs.
func (c *Client) UndeleteDefinition(ctx context.Context, key string, as UndeleteAt, options ...WriteOption) (*Written, error) {
	path, err := definitionPath(key, "undelete")
	body := map[string]any{}
	if as.Revision != 0 {
		body["revision"] = as.Revision
	}
	if !as.Time.IsZero() {
		body["time"] = as.Time.UTC().Format(time.RFC3339Nano)
	}
	return written(c.write(ctx, settings(options, WriteOption.write), "POST", path, body, err))
}

// DeletedDefinitions returns the deleted definitions that are kept; the last deletion comes first.
func (c *Client) DeletedDefinitions(ctx context.Context, options ...ReadOption) ([]DeletedDefinition, error) {
	r := settings(options, ReadOption.read)
	response, err := c.send(ctx, request{method: "GET", target: target(deletedPath+"/", r.params)})
	if err != nil {
		return nil, err
	}
	var found struct{ Results []DeletedDefinition }
	return found.Results, response.decode(&found)
}

// IndexProgress returns how far the indexes of a definition are built.
func (c *Client) IndexProgress(ctx context.Context, key string, options ...ReadOption) ([]IndexProgress, error) {
	var found struct {
		Indexes []struct {
			Path, State string
			Done, Of    uint64
		}
	}
	if _, err := c.part(ctx, key, "indexes", options, &found); err != nil {
		return nil, err
	}
	var made []IndexProgress
	for _, each := range found.Indexes {
		made = append(made, IndexProgress{each.Path, each.State == "ready", each.Done, each.Of})
	}
	return made, nil
}

// DefinitionHistory iterates over the changes of a definition, newest first.
func (c *Client) DefinitionHistory(ctx context.Context, key string, options ...HistoryOption) iter.Seq2[*Past, error] {
	path, err := definitionPath(key, "history")
	return c.past(ctx, path, err, options)
}
