package concord

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	updateAttempts = 64
	updatePauseMax = 250 * time.Millisecond
)

func (c *Client) send(ctx context.Context, r request) (*Response, error) {
	return c.cluster.call(ctx, r, 0, 0)
}

// write sends a write of one record. The path may not be one.
func (c *Client) write(ctx context.Context, w *write, method, path string, body any, err error) (*Response, error) {
	if err != nil {
		return nil, err
	}
	made, err := w.request(method, path, body)
	if err != nil {
		return nil, err
	}
	return c.send(ctx, made)
}

func written(response *Response, err error) (*Written, error) {
	if err != nil {
		return nil, err
	}
	return response.written(), nil
}

// Create creates a config. The error is [ErrConflict] if there is one.
func (c *Client) Create(ctx context.Context, definition, key string, data any, options ...WriteOption) (*Written, error) {
	text, err := payload(data)
	if err == nil {
		err = checkKey(key, "config_key")
	}
	if err != nil {
		return nil, err
	}
	path, err := definitionPath(definition, "config/")
	body := object([]member{{"config_key", quoted(key)}, {"data", text}})
	return written(c.write(ctx, settings(options, WriteOption.write), "POST", path, body, err))
}

// Get reads a config. A reader that is in a rollout gets the candidate. The error is [ErrNotFound] if there is none.
func (c *Client) Get(ctx context.Context, definition, key string, options ...GetOption) (*Config, error) {
	path, err := configPath(definition, key)
	if err != nil {
		return nil, err
	}
	r := settings(options, GetOption.get)
	params := append(r.params, r.shape...)
	if r.revision != nil {
		params = append(params, param{"revision", strconv.FormatUint(*r.revision, 10)})
	}
	return c.get(ctx, definition, key, request{method: "GET", target: target(path, params)})
}

func (c *Client) get(ctx context.Context, definition, key string, r request) (*Config, error) {
	response, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	return response.config(definition, key)
}

// GetIfChanged returns the config as it is now. If it has not changed, that is the same one, and its data are not sent
// again.
func (c *Client) GetIfChanged(ctx context.Context, known *Config, options ...ReadOption) (*Config, error) {
	path, err := configPath(known.Definition, known.Key)
	if err != nil {
		return nil, err
	}
	r := settings(options, ReadOption.read)
	sent := request{method: "GET", target: target(path, r.params)}
	if known.Variant == "" {
		// The tag of a candidate names its edition, which is not known here: a candidate is always sent again.
		sent.header = http.Header{"If-None-Match": {fmt.Sprintf(`"%d"`, known.Revision)}}
	}
	response, err := c.send(ctx, sent)
	if err != nil {
		return nil, err
	}
	if response.Status == http.StatusNotModified {
		return known, nil
	}
	return response.config(known.Definition, known.Key)
}

// ReadMany reads up to 1000 configs, all of one revision.
func (c *Client) ReadMany(ctx context.Context, configs []Pointer, options ...BulkOption) (*ManyConfigs, error) {
	type name struct {
		Definition string `json:"config_definition_key"`
		Key        string `json:"config_key"`
	}
	asked := struct {
		Configs  []name  `json:"configs"`
		Revision *uint64 `json:"revision,omitempty"`
	}{Configs: []name{}}
	isAsked := map[Pointer]bool{}
	for _, each := range configs {
		asked.Configs = append(asked.Configs, name(each))
		isAsked[each] = true
	}
	r := settings(options, BulkOption.bulk)
	asked.Revision = r.revision
	body, err := encode(asked)
	if err != nil {
		return nil, err
	}
	response, err := c.send(ctx, request{
		method: "POST", target: target(readPath, r.params), body: body, header: http.Header{"Content-Type": {"application/json"}},
	})
	if err != nil {
		return nil, err
	}
	var found struct {
		Revision uint64
		Results  []struct {
			name
			Status   string
			Revision uint64
			Config   configRecord
			Variant  json.RawMessage
		}
	}
	if err := response.decode(&found); err != nil {
		return nil, err
	}
	made := &ManyConfigs{found.Revision, map[Pointer]*Config{}, map[Pointer]string{}}
	for _, each := range found.Results {
		place := Pointer(each.name)
		if !isAsked[place] {
			text := fmt.Sprintf("the response has the config %s/%s, which was not requested", place.Definition, place.Key)
			return nil, &ProtocolError{response.Node, text}
		}
		if each.Status != "found" {
			made.Missing[place] = each.Status
			continue
		}
		if each.Variant != nil {
			// The version is beside the config.
			if err := json.Unmarshal(each.Variant, &each.Config.Variant); err != nil {
				return nil, &ProtocolError{response.Node, err.Error()}
			}
		}
		config := each.Config.config(place.Definition, each.Revision, response.Node)
		config.StateRevision = found.Revision
		made.Found[place] = config
	}
	for place := range isAsked {
		if made.Found[place] == nil && made.Missing[place] == "" {
			text := fmt.Sprintf("the response lacks the config %s/%s, which was requested", place.Definition, place.Key)
			return nil, &ProtocolError{response.Node, text}
		}
	}
	return made, nil
}

// Put replaces a config. The error is [ErrNotFound] if there is none: see [Client.Upsert] and [CreateOnly].
func (c *Client) Put(ctx context.Context, definition, key string, data any, options ...PutOption) (*Written, error) {
	return c.put(ctx, definition, key, data, settings(options, PutOption.put))
}

// Upsert creates or replaces a config.
func (c *Client) Upsert(ctx context.Context, definition, key string, data any, options ...WriteOption) (*Written, error) {
	w := settings(options, WriteOption.write)
	w.params = append(w.params, param{"upsert", "true"})
	return c.put(ctx, definition, key, data, w)
}

func (c *Client) put(ctx context.Context, definition, key string, data any, w *write) (*Written, error) {
	text, err := payload(data)
	if err != nil {
		return nil, err
	}
	path, err := configPath(definition, key)
	return written(c.write(ctx, w, "PUT", path, object([]member{{"data", text}}), err))
}

// Patch changes a part of a config: an object is a merge patch (RFC 7396), a list a JSON Patch (RFC 6902).
func (c *Client) Patch(ctx context.Context, definition, key string, patch any, options ...ChangeOption) (*Written, error) {
	text, err := encode(patch)
	if err != nil {
		return nil, fmt.Errorf("concord: the patch is not JSON: %w", err)
	}
	if text, err = unmarked(text); err != nil {
		return nil, err
	}
	path, err := configPath(definition, key)
	if err != nil {
		return nil, err
	}
	made, err := settings(options, ChangeOption.change).request("PATCH", path, text)
	if err != nil {
		return nil, err
	}
	made.header.Set("Content-Type", "application/merge-patch+json")
	if kindOf(text) == '[' {
		made.header.Set("Content-Type", "application/json-patch+json")
	}
	return written(c.send(ctx, made))
}

// Update reads a config, lets a function change its data, and writes them if no other client has written meanwhile;
// otherwise it begins again. So the function may be called several times. Its error ends the update.
//
// The data have [json.Number] for numbers. If the key may not see a secret value, an object stands in its place that
// keeps it. It must not be moved.
func (c *Client) Update(
	ctx context.Context, definition, key string, change func(data map[string]any) error, options ...UpdateOption,
) (*Written, error) {
	return c.update(ctx, definition, key, options, func(found *Config) (json.RawMessage, error) {
		before := found.Editable()
		var data map[string]any
		if err := decode(before, &data); err != nil {
			return nil, &DecodeError{Definition: definition, Key: key, Err: &unreadableError{err}}
		}
		if err := change(data); err != nil {
			return nil, err
		}
		after, err := payload(data)
		if err != nil {
			return nil, err
		}
		return inOrderOf(before, after), nil
	})
}

func (c *Client) update(
	ctx context.Context, definition, key string, options []UpdateOption, change func(*Config) (json.RawMessage, error),
) (*Written, error) {
	path, err := configPath(definition, key)
	if err != nil {
		return nil, err
	}
	for attempt := 0; ; attempt++ {
		// What is written back starts from the proven data: a candidate has no revision.
		found, err := c.get(ctx, definition, key, request{method: "GET", target: path, isProven: true})
		if err != nil {
			return nil, err
		}
		data, err := change(found)
		if err != nil {
			return nil, err
		}
		w := settings(options, UpdateOption.update)
		w.ifMatch = &found.Revision
		done, err := c.put(ctx, definition, key, data, w)
		if !errors.Is(err, ErrPrecondition) || attempt+1 == updateAttempts {
			return done, err
		}
		pause := min(time.Millisecond<<(2+min(attempt, 10)), updatePauseMax)
		if sleep(ctx, time.Duration(float64(pause)*c.cluster.jitter())) != nil {
			// The write was certainly not applied.
			return nil, &UnavailableError{Attempts: []string{err.Error()}, Cause: ctx.Err()}
		}
	}
}

// Delete deletes a config. Its history stays.
func (c *Client) Delete(ctx context.Context, definition, key string, options ...ChangeOption) (*Written, error) {
	path, err := configPath(definition, key)
	return written(c.write(ctx, settings(options, ChangeOption.change), "DELETE", path, nil, err))
}

// Rollback writes what the config was at a revision as a new change. It brings a deleted config back.
func (c *Client) Rollback(ctx context.Context, definition, key string, revision uint64, options ...PutOption) (*Written, error) {
	path, err := configPath(definition, key, "rollback")
	body := map[string]uint64{"revision": revision}
	return written(c.write(ctx, settings(options, PutOption.put), "POST", path, body, err))
}

// History iterates over the changes of a config, newest first; also of a deleted one.
func (c *Client) History(ctx context.Context, definition, key string, options ...HistoryOption) iter.Seq2[*Past, error] {
	path, err := configPath(definition, key, "history")
	return c.past(ctx, path, err, options)
}

// WhoAmI returns what the cluster knows of the key: its name, grants and quota.
func (c *Client) WhoAmI(ctx context.Context) (json.RawMessage, error) {
	return data(c.send(ctx, request{method: "GET", target: apiRoot + "/whoami"}))
}

// Cluster returns members, leader, lag and alarms, as one node sees them.
func (c *Client) Cluster(ctx context.Context) (json.RawMessage, error) {
	return data(c.send(ctx, request{method: "GET", target: apiRoot + "/cluster"}))
}

func data(response *Response, err error) (json.RawMessage, error) {
	if err != nil {
		return nil, err
	}
	return response.Data, nil
}

// Request makes any other request, with the same failover. The path begins with a slash and may have a query. A body of
// nil is none. A write is sent again after an unknown outcome only with an idempotency key, which its path must take; an
// empty one is none.
func (c *Client) Request(ctx context.Context, method, path string, body any, idempotencyKey string) (*Response, error) {
	_, err := http.NewRequest(method, c.cluster.nodes[0]+path, nil)
	if err != nil || !strings.HasPrefix(path, "/") || strings.Contains(path, "#") {
		return nil, fmt.Errorf("concord: %s %q is not a request: expected a method, and a path that begins with a slash", method, path)
	}
	if err := checkIdempotencyKey(idempotencyKey); err != nil {
		return nil, err
	}
	made := request{method: method, target: path, idempotencyKey: idempotencyKey, isWrite: method != "GET" && method != "HEAD"}
	if body != nil {
		text, err := encode(body)
		if err != nil {
			return nil, fmt.Errorf("concord: the body is not JSON: %w", err)
		}
		made.body, made.header = text, http.Header{"Content-Type": {"application/json"}}
	}
	return c.send(ctx, made)
}
