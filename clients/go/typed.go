package concord

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"strings"
)

// Typed are the configs of one definition as values of a type. Data are read and written with [encoding/json]. If the
// type, or a pointer to it, has the method `Validate() error`, that is called for data that are read.
type Typed[T any] struct {
	client     *Client
	definition string
}

// NewTyped sends nothing.
func NewTyped[T any](client *Client, definition string) *Typed[T] {
	return &Typed[T]{client, definition}
}

// Record is a config with its data as a value.
type Record[T any] struct {
	*Config
	Value T
}

func recordOf[T any](found *Config, err error) (*Record[T], error) {
	if err != nil {
		return nil, err
	}
	made := &Record[T]{Config: found}
	return made, found.Decode(&made.Value)
}

// Get reads a config.
func (t *Typed[T]) Get(ctx context.Context, key string, options ...GetOption) (*Record[T], error) {
	return recordOf[T](t.client.Get(ctx, t.definition, key, options...))
}

// Create creates a config.
func (t *Typed[T]) Create(ctx context.Context, key string, value T, options ...WriteOption) (*Written, error) {
	return t.client.Create(ctx, t.definition, key, value, options...)
}

// Put replaces a config.
func (t *Typed[T]) Put(ctx context.Context, key string, value T, options ...PutOption) (*Written, error) {
	return t.client.Put(ctx, t.definition, key, value, options...)
}

// Upsert creates or replaces a config.
func (t *Typed[T]) Upsert(ctx context.Context, key string, value T, options ...WriteOption) (*Written, error) {
	return t.client.Upsert(ctx, t.definition, key, value, options...)
}

// Delete deletes a config.
func (t *Typed[T]) Delete(ctx context.Context, key string, options ...ChangeOption) (*Written, error) {
	return t.client.Delete(ctx, t.definition, key, options...)
}

// List iterates over the configs that the options select.
func (t *Typed[T]) List(ctx context.Context, options ...ListOption) iter.Seq2[*Record[T], error] {
	return func(yield func(*Record[T], error) bool) {
		for config, err := range t.client.List(ctx, t.definition, options...) {
			if record, err := recordOf[T](config, err); !yield(record, err) {
				return
			}
		}
	}
}

// Update reads a config, lets a function change its value, and writes that if no other client has written meanwhile;
// otherwise it begins again. So the function may be called several times. Its error ends the update.
//
// Members that the type does not have are dropped, except secret values that the key may not see: those are kept where
// the function leaves them alone. If it changes a list with such values in another way than by setting them, or moves an
// entry with such a value to another key of a map, the update is rejected before it is sent: use [Client.Update] or a
// JSON Patch. So it is if there are more such values than a response names, or if the elements of a list differ by them
// alone and one is set.
func (t *Typed[T]) Update(ctx context.Context, key string, change func(*T) error, options ...UpdateOption) (*Written, error) {
	return t.client.update(ctx, t.definition, key, options, func(found *Config) (json.RawMessage, error) {
		record, err := recordOf[T](found, nil)
		if err != nil {
			return nil, err
		}
		before, err := encode(record.Value)
		if err != nil {
			return nil, err
		}
		if err := change(&record.Value); err != nil {
			return nil, err
		}
		after, err := encode(record.Value)
		if err != nil {
			return nil, err
		}
		return keepSecrets(before, after, found.Redacted)
	})
}

// decodeData also turns a panic of a method of the type into an error: data must not end the program.
func decodeData(definition, key string, data json.RawMessage, into any) (err error) {
	fail := func(cause error) *DecodeError {
		return &DecodeError{Definition: definition, Key: key, Paths: pathsOf(cause), Err: cause}
	}
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fail(fmt.Errorf("panic: %v", panicked))
		}
	}()
	if err := decode(data, into); err != nil {
		return fail(&unreadableError{err})
	}
	if found := validatorOf(into); found != nil {
		if err := found.Validate(); err != nil {
			return fail(err)
		}
	}
	return nil
}

type validator interface{ Validate() error }

// validatorOf is the value that data were read into, or what it points to if that is a pointer itself.
func validatorOf(into any) validator {
	if found, ok := into.(validator); ok {
		return found
	}
	if pointed := reflect.ValueOf(into); pointed.Kind() == reflect.Pointer && !pointed.IsNil() {
		found, _ := pointed.Elem().Interface().(validator)
		return found
	}
	return nil
}

// unreadableError is an error of a decoder. Its text has no value of the data, which may be secret and would be logged.
type unreadableError struct{ err error }

func (e *unreadableError) Error() string {
	var mistyped *json.UnmarshalTypeError
	if !errors.As(e.err, &mistyped) {
		return fmt.Sprintf("a value can't be read as its type (%T)", e.err)
	}
	// After the kind of a number comes the number.
	kind, _, _ := strings.Cut(mistyped.Value, " ")
	text := fmt.Sprintf("JSON of the kind %s can't be read as %v", kind, mistyped.Type)
	if mistyped.Field != "" {
		text = mistyped.Field + ": " + text
	}
	return text
}

func (e *unreadableError) Unwrap() error { return e.err }

// pathsOf are the places that an error of a decoder names. It names members of structs, and no values.
func pathsOf(err error) []string {
	var mistyped *json.UnmarshalTypeError
	if errors.As(err, &mistyped) && mistyped.Field != "" {
		return []string{pointer(strings.Split(mistyped.Field, "."))}
	}
	return nil
}
