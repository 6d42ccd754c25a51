package concord

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
)

const pageSizeDefault = 200

// List iterates over all configs that the options select, page by page, of one state, whatever is written meanwhile.
// The list continues when the node that holds its state is gone.
func (c *Client) List(ctx context.Context, definition string, options ...ListOption) iter.Seq2[*Config, error] {
	r := settings(options, ListOption.list)
	path, err := definitionPath(definition, "config/")
	r.params = append(append(r.params, param{"$include", "revision"}), r.shape...)
	return listed(ctx, c, path, err, r, "$revision", func(text json.RawMessage, response *Response) (*Config, error) {
		return listedConfig(definition, text, response)
	})
}

// ListAcross iterates over the configs of several definitions: keys, or key prefixes with `*` at the end. Without any,
// it is of all definitions.
func (c *Client) ListAcross(ctx context.Context, definitions []string, options ...AcrossOption) iter.Seq2[*Config, error] {
	r := settings(options, AcrossOption.across)
	err := checkNames(definitions, "definitions")
	for _, each := range definitions {
		r.params = append(r.params, param{"definition", each})
	}
	return listed(ctx, c, configsPath, err, r, "", func(text json.RawMessage, response *Response) (*Config, error) {
		return listedConfig("", text, response)
	})
}

// ListDefinitions iterates over all definitions, page by page, of one state.
func (c *Client) ListDefinitions(ctx context.Context, options ...DefinitionsOption) iter.Seq2[*Definition, error] {
	r := settings(options, DefinitionsOption.definitions)
	r.params = append(r.params, param{"include", "revision"})
	return listed(ctx, c, definitionsPath+"/", nil, r, "revision", func(text json.RawMessage, _ *Response) (*Definition, error) {
		var record definitionRecord
		err := json.Unmarshal(text, &record)
		return record.definition(0), err
	})
}

// Page reads one page of a list, and how many configs the options select. The first page is 1.
func (c *Client) Page(ctx context.Context, definition string, page, limit int, options ...ListOption) (*Page, error) {
	r := settings(options, ListOption.list)
	filters, err := r.filters.params()
	if err != nil {
		return nil, err
	}
	path, err := definitionPath(definition, "config/")
	if err != nil {
		return nil, err
	}
	params := append(append(r.params, param{"$include", "revision"}), append(r.shape, filters...)...)
	params = append(params, param{"page", strconv.Itoa(page)}, param{"limit", strconv.Itoa(limit)})
	if r.revision != nil {
		params = append(params, param{"$revision", strconv.FormatUint(*r.revision, 10)})
	}
	response, err := c.send(ctx, request{method: "GET", target: target(path, params)})
	if err != nil {
		return nil, err
	}
	results, total, err := resultsOf(response)
	if err != nil {
		return nil, err
	}
	made := &Page{Total: total, StateRevision: response.Revision(), Warnings: response.Warnings()}
	for _, text := range results {
		config, err := listedConfig(definition, text, response)
		if err != nil {
			return nil, &ProtocolError{response.Node, err.Error()}
		}
		made.Configs = append(made.Configs, config)
	}
	return made, nil
}

// checkNames rejects an empty list of names: it would select everything in place of nothing.
func checkNames(names []string, what string) error {
	if names != nil && len(names) == 0 {
		return fmt.Errorf("concord: an empty list of %s selects nothing: use nil to select all", what)
	}
	return nil
}

func listedConfig(definition string, text json.RawMessage, response *Response) (*Config, error) {
	var record configRecord
	if err := json.Unmarshal(text, &record); err != nil {
		return nil, err
	}
	made := record.config(definition, 0, response.Node)
	made.StateRevision = response.Revision()
	return made, nil
}

func resultsOf(response *Response) ([]json.RawMessage, int, error) {
	var found struct {
		Results *[]json.RawMessage
		Meta    struct{ Total int }
	}
	if err := response.decode(&found); err != nil {
		return nil, 0, err
	}
	if found.Results == nil {
		return nil, 0, &ProtocolError{response.Node, "the response lacks the requested data"}
	}
	return *found.Results, found.Meta.Total, nil
}

// listed are the records of a list. When the state that its cursor names is gone with its node, the list continues at
// the revision of that state, which every node can make again.
func listed[T any](
	ctx context.Context, c *Client, path string, err error, r *read, revisionName string,
	parse func(json.RawMessage, *Response) (*T, error),
) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		filters, filterErr := r.filters.params()
		if found := errors.Join(err, filterErr); found != nil {
			yield(nil, found)
			return
		}
		size := r.pageSize
		if size <= 0 {
			size = pageSizeDefault
		}
		params := append(append(append([]param{}, r.params...), filters...), param{"limit", strconv.Itoa(size)})
		first := params
		var state uint64
		if r.revision != nil {
			state = *r.revision
			first = append(first, param{revisionName, strconv.FormatUint(state, 10)})
		}
		next, count, skipped, isCursor := target(path, first), 0, 0, false
		for next != "" {
			response, err := c.send(ctx, request{method: "GET", target: next})
			if errors.Is(err, ErrExpired) && isCursor && revisionName != "" && state != 0 {
				isCursor, skipped = false, count%size
				next = target(path, append(withoutFreshness(params),
					param{revisionName, strconv.FormatUint(state, 10)}, param{"page", strconv.Itoa(count/size + 1)}))
				continue
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if state == 0 {
				state = response.Revision()
			}
			results, _, err := resultsOf(response)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, text := range results[min(skipped, len(results)):] {
				record, err := parse(text, response)
				if err != nil {
					yield(nil, &ProtocolError{response.Node, err.Error()})
					return
				}
				count++
				if !yield(record, nil) {
					return
				}
			}
			skipped = 0
			next, isCursor = c.nextPage(response), true
		}
	}
}

// withoutFreshness are the parameters for a state whose revision is known: how fresh it must be is settled.
func withoutFreshness(params []param) []param {
	var kept []param
	for _, each := range params {
		if each.name != "consistency" && each.name != "max_staleness_ms" {
			kept = append(kept, each)
		}
	}
	return kept
}

func (c *Client) past(ctx context.Context, path string, err error, options []HistoryOption) iter.Seq2[*Past, error] {
	r := settings(options, HistoryOption.history)
	return listed(ctx, c, path, err, r, "", func(text json.RawMessage, _ *Response) (*Past, error) {
		made := &Past{}
		err := json.Unmarshal(text, made)
		made.Data = nullAsNil(made.Data)
		return made, err
	})
}

// nextPage is the path of the next page, as the response names it: always at this cluster, whatever the header says.
func (c *Client) nextPage(response *Response) string {
	for _, link := range strings.Split(strings.Join(response.Header.Values("Link"), ", "), ", ") {
		address, relation, _ := strings.Cut(link, ">")
		if !strings.Contains(relation, `rel="next"`) || !strings.HasPrefix(address, "</") || strings.HasPrefix(address, "<//") {
			continue
		}
		if c.cluster.environment != nil {
			return c.cluster.environment.leaveTarget(address[1:])
		}
		return address[1:]
	}
	return ""
}
