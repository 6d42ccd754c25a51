package concord

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
)

// Filters select configs: a value by an indexed path, or by a path with an operator, as in
//
//	concord.Filters{"plan": []string{"pro", "team"}, "seats[gte]": 5}
//
// A slice is any of its values, with or without `[in]`; an empty one selects nothing.
type Filters map[string]any

var (
	filterOperator  = regexp.MustCompile(`\A(.*[^\\])\[([a-z]+)\]\z`)
	parametersOfAll = []string{
		"page", "limit", "sort_by", "sort_order", "search", "consistency", "max_staleness_ms", "min_revision", "cursor",
		"include", "fields", "revision", "pretty", "raw", "upsert", "definition", "from", "initial", "prev", "wait",
	}
)

// params are sorted by name. A path with the name of a parameter is marked.
func (f Filters) params() ([]param, error) {
	var params []param
	for _, name := range slices.Sorted(maps.Keys(f)) {
		found, err := filterParams(name, f[name])
		if err != nil {
			return nil, err
		}
		params = append(params, found...)
	}
	return params, nil
}

func filterParams(name string, value any) ([]param, error) {
	path, operator := name, ""
	if found := filterOperator.FindStringSubmatch(name); found != nil {
		path, operator = found[1], found[2]
	}
	if slices.Contains(parametersOfAll, path) {
		name, path = "data."+name, "data."+path
	}
	values, isList := listOf(value)
	isAny := operator == "" || operator == "in"
	switch {
	case isList && len(values) == 0 && isAny:
		return []param{{path + "[exists]", "true"}, {path + "[exists]", "false"}}, nil
	case isList && len(values) == 0:
		return nil, fmt.Errorf("concord: the filter %q has an empty list, which only equality and [in] take", name)
	case isList && isAny:
		// Not `[in]`: there a comma in a text separates values.
		name = path
	case !isList:
		values = []any{value}
	}
	var params []param
	for _, each := range values {
		text, err := filterText(each)
		if err != nil {
			return nil, fmt.Errorf("concord: the filter %q has a value that is not JSON: %w", name, err)
		}
		params = append(params, param{name, text})
	}
	return params, nil
}

// listOf tells lists from single values, which JSON as text is.
func listOf(value any) ([]any, bool) {
	if _, isText := value.(json.RawMessage); isText {
		return nil, false
	}
	found := reflect.ValueOf(value)
	if !found.IsValid() || found.Kind() != reflect.Slice && found.Kind() != reflect.Array {
		return nil, false
	}
	values := make([]any, found.Len())
	for n := range values {
		values[n] = found.Index(n).Interface()
	}
	return values, true
}

func filterText(value any) (string, error) {
	text, err := encode(value)
	if err != nil {
		return "", err
	}
	var plain string
	if kindOf(text) == '"' && json.Unmarshal(text, &plain) == nil {
		return plain, nil
	}
	return string(text), nil
}
