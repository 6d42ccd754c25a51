package concord

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"
)

var (
	timeType      = reflect.TypeFor[time.Time]()
	numberType    = reflect.TypeFor[json.Number]()
	marshalerType = reflect.TypeFor[json.Marshaler]()
	texterType    = reflect.TypeFor[encoding.TextMarshaler]()
)

// SchemaOf is the JSON Schema of what [encoding/json] writes of a type, for [DefinitionSpec.Schema]. A member is required
// unless its tag has `omitempty` or `omitzero`, or it is a pointer. The tag `concord:"secret"` hides a member from keys
// without the permission `reveal`. A type that writes itself, and one inside of itself, has a schema without rules.
func SchemaOf[T any]() json.RawMessage {
	text, err := encode(schemaOf(reflect.TypeFor[T](), nil))
	if err != nil {
		panic("a schema is always JSON: " + err.Error())
	}
	return text
}

type schema = map[string]any

func schemaOf(of reflect.Type, inside []reflect.Type) schema {
	switch {
	case of == timeType:
		return schema{"type": "string", "format": "date-time"}
	case of == numberType:
		return schema{"type": "number"}
	case of.Kind() == reflect.Pointer:
		return schema{"anyOf": []schema{schemaOf(of.Elem(), inside), {"type": "null"}}}
	case implements(of, marshalerType) || slices.Contains(inside, of):
		return schema{}
	case implements(of, texterType):
		return schema{"type": "string"}
	}
	inside = append(slices.Clip(inside), of)
	switch of.Kind() {
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return schema{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return schema{"type": "integer", "minimum": 0}
	case reflect.Float32, reflect.Float64:
		return schema{"type": "number"}
	case reflect.String:
		return schema{"type": "string"}
	case reflect.Array:
		return schema{"type": "array", "items": schemaOf(of.Elem(), inside)}
	case reflect.Slice:
		if of.Elem().Kind() == reflect.Uint8 {
			return schema{"type": []string{"string", "null"}}
		}
		// A slice without elements may be nil, which is written as null; so may a map.
		return schema{"type": []string{"array", "null"}, "items": schemaOf(of.Elem(), inside)}
	case reflect.Map:
		return schema{"type": []string{"object", "null"}, "additionalProperties": schemaOf(of.Elem(), inside)}
	case reflect.Struct:
		properties, required := schema{}, []string{}
		addFields(of, inside, properties, &required)
		return schema{"type": "object", "properties": properties, "required": required}
	}
	return schema{}
}

func implements(of, method reflect.Type) bool {
	return of.Implements(method) || reflect.PointerTo(of).Implements(method)
}

func addFields(of reflect.Type, inside []reflect.Type, properties schema, required *[]string) {
	for _, field := range reflect.VisibleFields(of) {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		isFlattened := field.Anonymous && name == "" && field.Type.Kind() == reflect.Struct
		if !field.IsExported() || isFlattened || field.Tag.Get("json") == "-" {
			continue
		}
		if name == "" {
			name = field.Name
		}
		made := schemaOf(field.Type, inside)
		if field.Tag.Get("concord") == "secret" {
			made["x-concord-secret"] = true
		}
		properties[name] = made
		isOptional := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		if !isOptional && field.Type.Kind() != reflect.Pointer {
			*required = append(*required, name)
		}
	}
}
