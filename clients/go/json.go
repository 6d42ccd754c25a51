package concord

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// member is a member of a JSON object. Its value is the text as it came.
type member struct {
	name  string
	value json.RawMessage
}

// encode writes JSON without the escapes that only HTML needs.
func encode(value any) (json.RawMessage, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimRight(out.Bytes(), "\n"), nil
}

// decode reads JSON. A number without a type in the target keeps its digits, as a [json.Number].
func decode(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return fmt.Errorf("there is more after the JSON value")
	}
	return nil
}

// members are those of an object, in their order; false where the text is no object.
func members(text json.RawMessage) ([]member, bool) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return nil, false
	}
	var found []member
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, false
		}
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			return nil, false
		}
		found = append(found, member{name.(string), value})
	}
	return found, true
}

// elements are those of an array; false where the text is no array.
func elements(text json.RawMessage) ([]json.RawMessage, bool) {
	if kindOf(text) != '[' {
		return nil, false
	}
	var found []json.RawMessage
	return found, json.Unmarshal(text, &found) == nil
}

func kindOf(text json.RawMessage) byte {
	if trimmed := bytes.TrimLeft(text, " \t\r\n"); len(trimmed) > 0 {
		return trimmed[0]
	}
	return 0
}

func object(found []member) json.RawMessage {
	out := []byte{'{'}
	for n, each := range found {
		if n > 0 {
			out = append(out, ',')
		}
		out = append(append(append(out, quoted(each.name)...), ':'), each.value...)
	}
	return append(out, '}')
}

func array(found []json.RawMessage) json.RawMessage {
	out := []byte{'['}
	for n, each := range found {
		if n > 0 {
			out = append(out, ',')
		}
		out = append(out, each...)
	}
	return append(out, ']')
}

func quoted(text string) json.RawMessage {
	out, err := encode(text)
	if err != nil {
		panic("a string is always JSON: " + err.Error())
	}
	return out
}

// edited is an object with another value of one member, if it has that.
func edited(text json.RawMessage, name string, change func(json.RawMessage) json.RawMessage) json.RawMessage {
	found, ok := members(text)
	if !ok {
		return text
	}
	isChanged := false
	for n := range found {
		if found[n].name == name {
			found[n].value, isChanged = change(found[n].value), true
		}
	}
	if !isChanged {
		return text
	}
	return object(found)
}

// editedElements is an array with other elements. What is no array stays as it is.
func editedElements(text json.RawMessage, change func(json.RawMessage) json.RawMessage) json.RawMessage {
	found, ok := elements(text)
	if !ok {
		return text
	}
	for n := range found {
		found[n] = change(found[n])
	}
	return array(found)
}

// inOrderOf is the text with the members of its objects in the order that they have in another text. A map of Go has no
// order; members that the other text does not have come last.
func inOrderOf(before, text json.RawMessage) json.RawMessage {
	switch kindOf(text) {
	case '[':
		old, wasArray := elements(before)
		found, ok := elements(text)
		if !wasArray || !ok {
			return text
		}
		for n := range min(len(old), len(found)) {
			found[n] = inOrderOf(old[n], found[n])
		}
		return array(found)
	case '{':
		old, wasObject := members(before)
		found, ok := members(text)
		if !wasObject || !ok {
			return text
		}
		values := make(map[string]json.RawMessage, len(found))
		for _, each := range found {
			values[each.name] = each.value
		}
		var ordered []member
		for _, each := range old {
			if value, ok := values[each.name]; ok {
				ordered = append(ordered, member{each.name, inOrderOf(each.value, value)})
				delete(values, each.name)
			}
		}
		for _, each := range found {
			if _, isNew := values[each.name]; isNew {
				ordered = append(ordered, each)
			}
		}
		return object(ordered)
	}
	return text
}

// pointer is a place as a JSON pointer.
func pointer(place []string) string {
	var out strings.Builder
	for _, part := range place {
		out.WriteString("/" + strings.ReplaceAll(strings.ReplaceAll(part, "~", "~0"), "/", "~1"))
	}
	return out.String()
}
