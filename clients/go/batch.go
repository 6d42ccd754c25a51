package concord

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
)

// Operation is one operation of a batch, or a condition of a transaction.
type Operation struct {
	members []member
	err     error
}

// MarshalJSON writes the operation as the API takes it.
func (o Operation) MarshalJSON() ([]byte, error) {
	if o.err != nil {
		return nil, o.err
	}
	return object(o.members), nil
}

func operation(op, definition, key string) Operation {
	made := Operation{members: []member{{"op", quoted(op)}, {definitionKey, quoted(definition)}}}
	if key != "" {
		made.members = append(made.members, member{"config_key", quoted(key)})
	}
	return made
}

// with adds a member that is no data of a config.
func (o Operation) with(name string, value any) Operation {
	text, err := encode(value)
	if o.err == nil && err != nil {
		o.err = fmt.Errorf("concord: %s of an operation is not JSON: %w", name, err)
	}
	o.members = append(o.members[:len(o.members):len(o.members)], member{name, text})
	return o
}

func (o Operation) withData(name string, data any) Operation {
	text, err := payload(data)
	if o.err == nil {
		o.err = err
	}
	return o.with(name, text)
}

// IfMatch makes the operation conditional on a revision.
func (o Operation) IfMatch(revision uint64) Operation {
	return o.with("if_match", strconv.FormatUint(revision, 10))
}

// OpCreate creates a config.
func OpCreate(definition, key string, data any) Operation {
	return operation("create_config", definition, key).withData("data", data)
}

// OpPut replaces a config.
func OpPut(definition, key string, data any) Operation {
	return operation("put_config", definition, key).withData("data", data)
}

// OpUpsert creates or replaces a config.
func OpUpsert(definition, key string, data any) Operation {
	return OpPut(definition, key, data).with("upsert", true)
}

// OpPatch changes a part of a config: an object is a merge patch, a list a JSON Patch.
func OpPatch(definition, key string, patch any) Operation {
	return operation("patch_config", definition, key).withData("patch", patch)
}

// OpDelete deletes a config.
func OpDelete(definition, key string) Operation { return operation("delete_config", definition, key) }

// OpRollback writes what a config was at a revision.
func OpRollback(definition, key string, revision uint64) Operation {
	return operation("rollback_config", definition, key).with("revision", revision)
}

// OpGet reads a config as it is before the batch.
func OpGet(definition, key string) Operation { return operation("get_config", definition, key) }

// OpCreateDefinition creates a definition.
func OpCreateDefinition(key string, spec DefinitionSpec) Operation {
	made := operation("create_definition", key, "").with("indexes", append([]string{}, spec.Indexes...))
	if spec.Schema != nil {
		made = made.with("json_schema", spec.Schema)
	}
	return made
}

// OpSetIndexes sets all indexed paths of a definition.
func OpSetIndexes(key string, indexes []string) Operation {
	return operation("set_indexes", key, "").with("indexes", append([]string{}, indexes...))
}

// OpSetSchema changes the schema of a definition; nil removes it.
func OpSetSchema(key string, schema any) Operation {
	return operation("set_schema", key, "").with("json_schema", schema)
}

// OpDeleteDefinition deletes a definition with its configs.
func OpDeleteDefinition(key string) Operation { return operation("delete_definition", key, "") }

// OpRaw is an operation as the API takes it.
func OpRaw(text json.RawMessage) Operation {
	found, ok := members(text)
	if !ok {
		return Operation{err: fmt.Errorf("concord: an operation is a JSON object")}
	}
	return Operation{members: found}
}

func check(definition, key string) Operation { return operation("check_config", definition, key) }

// CheckRevision holds if a config has this revision.
func CheckRevision(definition, key string, revision uint64) Operation {
	return check(definition, key).with("revision", revision)
}

// CheckAbsent holds if there is no such config.
func CheckAbsent(definition, key string) Operation {
	return check(definition, key).with("absent", true)
}

// CheckPresent holds if there is such a config.
func CheckPresent(definition, key string) Operation {
	return check(definition, key).with("absent", false)
}

// CheckAbsentAt holds if the data have no value at a JSON pointer.
func CheckAbsentAt(definition, key, pointer string) Operation {
	return CheckAbsent(definition, key).with("pointer", pointer)
}

// CheckEquals holds if the data equal a value.
func CheckEquals(definition, key string, value any) Operation {
	return check(definition, key).with("equals", value)
}

// CheckEqualsAt holds if the data equal a value at a JSON pointer.
func CheckEqualsAt(definition, key, pointer string, value any) Operation {
	return CheckEquals(definition, key, value).with("pointer", pointer)
}

// Batch applies up to 1000 operations as one change: all of them, or none.
func (c *Client) Batch(ctx context.Context, operations []Operation, options ...WriteOption) (*BatchResult, error) {
	return c.batch(ctx, map[string][]Operation{"operations": append([]Operation{}, operations...)}, options)
}

// Transaction applies `then` if all conditions hold, and `otherwise` if not. [BatchResult.Succeeded] says which.
func (c *Client) Transaction(
	ctx context.Context, conditions, then, otherwise []Operation, options ...WriteOption,
) (*BatchResult, error) {
	return c.batch(ctx, map[string][]Operation{
		"if": append([]Operation{}, conditions...), "then": append([]Operation{}, then...),
		"else": append([]Operation{}, otherwise...),
	}, options)
}

func (c *Client) batch(ctx context.Context, body map[string][]Operation, options []WriteOption) (*BatchResult, error) {
	response, err := c.write(ctx, settings(options, WriteOption.write), "POST", batchPath, body, nil)
	if err != nil {
		return nil, err
	}
	var found struct {
		Revision  uint64
		Succeeded bool
		Results   []struct {
			Op         string
			Definition string `json:"config_definition_key"`
			Key        string `json:"config_key"`
			Created    bool
			Config     json.RawMessage
		}
	}
	made := &BatchResult{DryRun: response.isDryRun(), Warnings: response.Warnings()}
	if err := json.Unmarshal(response.Data, &found); err != nil {
		// It is applied; only what the node says of it can't be read.
		made.Warnings = append(made.Warnings, "the results can't be read: "+err.Error())
		return made, nil
	}
	made.Revision, made.Succeeded = found.Revision, found.Succeeded
	for _, each := range found.Results {
		result := OperationResult{Op: each.Op, Definition: each.Definition, Key: each.Key, Created: each.Created}
		var record *configRecord
		if each.Config != nil {
			if err := json.Unmarshal(each.Config, &record); err != nil {
				text := fmt.Sprintf("the config %s/%s can't be read: %v", each.Definition, each.Key, err)
				made.Warnings, record = append(made.Warnings, text), nil
			}
		}
		if record != nil {
			result.Config = record.config(each.Definition, 0, response.Node)
			result.Config.StateRevision = response.Revision()
		}
		made.Results = append(made.Results, result)
	}
	return made, nil
}

// Propose makes a change request of operations that write. Nothing is changed before others have approved it and it is
// applied.
func (c *Client) Propose(
	ctx context.Context, title, description string, operations []Operation, options ...UpdateOption,
) (*ChangeRequest, error) {
	body := struct {
		Title       string      `json:"title"`
		Description string      `json:"description"`
		Operations  []Operation `json:"operations"`
	}{title, description, append([]Operation{}, operations...)}
	w := settings(options, UpdateOption.update)
	response, err := c.write(ctx, w, "POST", changeRequestPath+"/", body, nil)
	if err != nil {
		return nil, err
	}
	made := &ChangeRequest{}
	// It is made, whatever the response says of it.
	_ = json.Unmarshal(response.Data, made)
	made.Data = response.Data
	return made, nil
}
