package concord

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// rejection is what an [*APIError] is compared with.
type rejection struct {
	name   string
	status int
	code   string
}

func (r *rejection) Error() string { return "concord: " + r.name }

// Rejections, for [errors.Is]. A call that ends with one of them changed nothing.
var (
	ErrUnauthorized      error = &rejection{"unauthorized", 401, ""}
	ErrForbidden         error = &rejection{"forbidden", 403, ""}
	ErrNotFound          error = &rejection{"not found", 404, ""}
	ErrMethodNotAllowed  error = &rejection{"method not allowed", 405, ""}
	ErrConflict          error = &rejection{"conflict", 409, ""}
	ErrExpired           error = &rejection{"the revision, the change or the cursor is no longer retained", 410, ""}
	ErrPrecondition      error = &rejection{"the precondition does not hold", 412, ""}
	ErrTooLarge          error = &rejection{"too large", 413, ""}
	ErrUnsupportedCoding error = &rejection{"unsupported coding", 415, ""}
	ErrInvalid           error = &rejection{"invalid", 422, ""}
	ErrRateLimited       error = &rejection{"rate limited", 429, ""}
	ErrServer            error = &rejection{"internal error of a node", 500, ""}
	ErrStorageFull       error = &rejection{"storage full", 507, ""}

	// ErrChangeRequired is a conflict: the environment takes change requests only.
	ErrChangeRequired error = &rejection{"change request required", 409, "change_required"}
	// ErrEnvironmentFrozen is a conflict: the environment is frozen, which may last for days.
	ErrEnvironmentFrozen error = &rejection{"environment frozen", 409, "environment_frozen"}
)

var (
	// ErrNotReady says that a cache has nothing yet: no node has responded, and there is no usable file.
	ErrNotReady = errors.New("concord: the cache has nothing yet")
	// ErrNotCached says that a cache has no such config. The error is a [*NotCachedError].
	ErrNotCached = errors.New("concord: not in the cache")
	// ErrClosed says that the client or the cache was closed.
	ErrClosed = errors.New("concord: closed")
)

// Violation is one of the reasons of a rejection.
type Violation struct {
	// Type is the class of the error, as in `conflict_error`.
	Type string
	// Code is what exactly is wrong, as in `config_exists`. Programs may depend on it.
	Code string
	// Message is for people.
	Message string
	// Loc is the way to what is wrong, outermost first: names of members and numbers of elements.
	Loc []string
}

// Path is the place as a JSON pointer, as in `/data/limits/0/name`; empty for the whole.
func (v Violation) Path() string { return pointer(v.Loc) }

func (v Violation) String() string {
	if len(v.Loc) == 0 {
		return v.Message
	}
	return v.Path() + ": " + v.Message
}

// APIError says that a node rejected the request, or that the client did before it sent anything. Nothing was changed.
type APIError struct {
	Status     int
	Violations []Violation
	// RequestID names the request in the log of the node.
	RequestID string
	// Node is the URL of the node that rejected it; empty if the client did.
	Node string
	// Revision is that of the state at which the request was evaluated.
	Revision uint64
	// CurrentRevision is the revision that the record has, of [ErrPrecondition]; 0 if there is no record.
	CurrentRevision uint64
}

func (e *APIError) Error() string {
	reasons := make([]string, len(e.Violations))
	for n, each := range e.Violations {
		reasons[n] = each.String()
	}
	told := strings.Join(reasons, "; ")
	if told == "" {
		told = "the response gives no reason"
	}
	return fmt.Sprintf("concord: %d: %s", e.Status, told)
}

// Code is the code of the first reason.
func (e *APIError) Code() string {
	if len(e.Violations) == 0 {
		return ""
	}
	return e.Violations[0].Code
}

// Paths are the places that are wrong, as JSON pointers.
func (e *APIError) Paths() []string {
	var paths []string
	for _, each := range e.Violations {
		if len(each.Loc) > 0 {
			paths = append(paths, each.Path())
		}
	}
	return paths
}

// Is compares the error with [ErrNotFound] and the others.
func (e *APIError) Is(target error) bool {
	wanted, ok := target.(*rejection)
	return ok && wanted.status == e.Status && (wanted.code == "" || wanted.code == e.Code())
}

// UnavailableError says that no node served the request in time. A write was certainly not applied.
type UnavailableError struct {
	// Attempts are what the last attempts met, the latest last.
	Attempts []string
	// Cause is the error of the context, if that ended the call.
	Cause error
}

func (e *UnavailableError) Error() string {
	return "concord: no node served the request in time: " + lastOf(e.Attempts, e.Cause)
}

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Cause }

// UnknownOutcomeError says that a write may or may not have been applied. The same call with [IdempotencyKey] is safe:
// the cluster decides all copies as one. Or read what is there.
type UnknownOutcomeError struct {
	// IdempotencyKey is that of the write; empty if it had none.
	IdempotencyKey string
	// Attempts are what the last attempts met, the latest last.
	Attempts []string
	// Rejection is the response to a later copy, where that does not decide the first one.
	Rejection *APIError
	// Cause is the error of the context, if that ended the call.
	Cause error
}

func (e *UnknownOutcomeError) Error() string {
	text := "concord: the outcome is unknown, the write may have been applied: " + lastOf(e.Attempts, e.Cause)
	if e.Rejection != nil {
		text += "; then " + e.Rejection.Error()
	}
	return text
}

// Unwrap returns the cause. The rejection is none: it says nothing of the first copy.
func (e *UnknownOutcomeError) Unwrap() error { return e.Cause }

func lastOf(attempts []string, cause error) string {
	if len(attempts) > 0 {
		return attempts[len(attempts)-1]
	}
	if cause != nil {
		return cause.Error()
	}
	return "the time was up before anything was sent"
}

// ProtocolError says that a response to a read is not one of a node of Concord.
type ProtocolError struct {
	Node    string
	Message string
}

func (e *ProtocolError) Error() string { return "concord: " + e.Node + ": " + e.Message }

// DecodeError says that data do not fit the type that they are read as. Its text has no value of the data, which may be
// secret, unless the type's own methods name one: what a decoder said is in the errors that it wraps.
type DecodeError struct {
	Definition, Key string
	// Paths are the places that do not fit, as JSON pointers, as far as they are known.
	Paths []string
	Err   error
}

func (e *DecodeError) Error() string {
	return fmt.Sprintf("concord: %s/%s does not fit its type: %v", e.Definition, e.Key, e.Err)
}

// Unwrap returns the error of the decoder or of the type's Validate.
func (e *DecodeError) Unwrap() error { return e.Err }

// NotCachedError says that a cache has no such config, and how certain that is.
type NotCachedError struct {
	Definition, Key string
	Source          Source
	Age             time.Duration
}

func (e *NotCachedError) Error() string {
	return fmt.Sprintf("concord: there is no config %s/%s (known from %s, %s old)", e.Definition, e.Key, e.Source, shown(e.Age))
}

// Is compares the error with [ErrNotCached].
func (e *NotCachedError) Is(target error) bool { return target == ErrNotCached }

// violationsOf are the reasons in the body of a rejection; none if the body is not one of Concord's.
func violationsOf(body []byte) []Violation {
	var listed struct {
		Errors, Detail []json.RawMessage
	}
	if json.Unmarshal(body, &listed) != nil {
		return nil
	}
	if len(listed.Errors) == 0 {
		listed.Errors = listed.Detail
	}
	var found []Violation
	for _, text := range listed.Errors {
		var item struct {
			Type, Code string
			Msg        *string
			Loc        json.RawMessage
		}
		if json.Unmarshal(text, &item) != nil || item.Msg == nil {
			continue
		}
		violation := Violation{Type: item.Type, Code: item.Code, Message: *item.Msg}
		var loc []any
		if decode(item.Loc, &loc) == nil {
			for _, part := range loc {
				violation.Loc = append(violation.Loc, fmt.Sprint(part))
			}
		}
		found = append(found, violation)
	}
	return found
}

func rejected(status int, body []byte, node string, header http.Header) *APIError {
	found := &APIError{
		Status: status, Violations: violationsOf(body), Node: node,
		RequestID: header.Get("X-Request-Id"), Revision: number(header, "X-Concord-Revision"),
	}
	if status == 412 {
		found.CurrentRevision = number(header, "Etag")
	}
	return found
}

// invalid is a rejection before anything is sent.
func invalid(code, message string, loc ...string) *APIError {
	return &APIError{Status: 422, Violations: []Violation{{"validation_error", code, message, loc}}}
}

// otherCluster is what the client says of nodes that are now those of another cluster, or of one that was restored to an
// earlier state. There is nothing to continue from, as if the changes were compacted.
func otherCluster(node string) *APIError {
	text := "the nodes belong to another cluster than before, or to an earlier state of it"
	return &APIError{Status: 410, Violations: []Violation{{"expired_error", "cluster_changed", text, nil}}, Node: node}
}

// number is a header that is a number, with or without quotes; 0 for any other.
func number(header http.Header, name string) uint64 {
	value, err := strconv.ParseUint(strings.Trim(header.Get(name), `"`), 10, 64)
	if err != nil {
		return 0
	}
	return value
}
