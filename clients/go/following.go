package concord

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const (
	// stateSilence is how long the next part of a state may take.
	stateSilence = 10 * time.Second
	// pollGrace is how much longer than it waits a poll may take.
	pollGrace = 3 * time.Second
	// pollEarly is the least time between two polls without changes.
	pollEarly          = 200 * time.Millisecond
	followPauseFirst   = 100 * time.Millisecond
	followPauseMax     = 5 * time.Second
	headerOfCluster    = "X-Concord-Cluster"
	headerOfNextChange = "X-Concord-Next-From"
)

// following reads a state, then the changes by long polls, each from where the last one ended. A poll goes to whichever
// node responds, so a lost connection or a killed node costs time alone. Every change is handed out once and in order.
//
// The nodes may be those of another cluster from one moment to the next, of one that was restored from a backup: its id
// is another one, or its revision is lower. Then there is nothing to continue from, and the error is [ErrExpired].
type following struct {
	cluster *cluster
	params  []param
	prev    bool
	// position is a revision up to which everything was handed out.
	position uint64
	// id is that of the cluster that the position is of, if a node has told it.
	id string
}

func newFollowing(c *cluster, definitions, configs []string, filters Filters, search string, prev bool) (*following, error) {
	if err := errors.Join(checkNames(definitions, "definitions"), checkNames(configs, "configs")); err != nil {
		return nil, err
	}
	made := &following{cluster: c, prev: prev}
	for _, each := range definitions {
		made.params = append(made.params, param{"definition", each})
	}
	for _, each := range configs {
		made.params = append(made.params, param{"config_key", each})
	}
	found, err := filters.params()
	made.params = append(made.params, found...)
	if search != "" {
		made.params = append(made.params, param{"search", search})
	}
	return made, err
}

func (f *following) with(more ...param) []param {
	return append(f.params[:len(f.params):len(f.params)], more...)
}

// state is all that there is, with the revision and the node, and when it was requested.
func (f *following) state(ctx context.Context) (*Event, moment, error) {
	var told []string
	for {
		sink := &stateSink{}
		asked := request{
			method: "GET", target: target(watchPath, f.with(param{"initial", "true"})), sink: sink,
			header: http.Header{"Accept": {"text/event-stream"}},
		}
		response, err := f.cluster.call(ctx, asked, max(f.cluster.timeout, stateSilence), stateSilence)
		if err != nil {
			return nil, moment{}, err
		}
		if sink.rejection != nil {
			if found := rejectedState(sink.rejection, response); found != nil {
				return nil, moment{}, found
			}
		}
		if sink.isComplete {
			made, err := f.stateOf(sink, response.Node)
			if err != nil {
				return nil, moment{}, err
			}
			f.position, f.id = sink.revision, response.Header.Get(headerOfCluster)
			return made, response.sentAt, nil
		}
		// It broke off half-way: another node, from the beginning.
		f.cluster.preferred.Store((f.cluster.preferred.Load() + 1) % int64(len(f.cluster.nodes)))
		told = append(told, response.Node+": the state broke off")
		if len(told) == len(f.cluster.nodes) {
			return nil, moment{}, &UnavailableError{Attempts: told}
		}
		if err := sleep(ctx, followPauseFirst); err != nil {
			return nil, moment{}, &UnavailableError{Attempts: told, Cause: err}
		}
	}
}

// rejectedState is the error of a state; nil if another node may send it.
func rejectedState(body []byte, response *Response) *APIError {
	found := rejected(422, body, response.Node, response.Header)
	if len(found.Violations) == 0 {
		return nil
	}
	switch found.Violations[0].Type {
	case "expired_error", "unavailable_error", "rate_limited":
		return nil
	case "unauthorized_error":
		found.Status = 401
	case "forbidden_error":
		found.Status = 403
	}
	return found
}

func (f *following) stateOf(sink *stateSink, node string) (*Event, error) {
	made := &State{Unreadable: map[Pointer]string{}}
	for _, part := range sink.parts {
		if f.cluster.environment != nil {
			part = f.cluster.environment.leaveEvent(part)
		}
		var found struct{ Definitions, Configs []json.RawMessage }
		if err := json.Unmarshal(part, &found); err != nil {
			return nil, &ProtocolError{node, fmt.Sprintf("the state can't be read: %v", err)}
		}
		for _, text := range found.Definitions {
			var record definitionRecord
			if err := json.Unmarshal(text, &record); err != nil {
				return nil, &ProtocolError{node, fmt.Sprintf("a definition can't be read: %v", err)}
			}
			made.Definitions = append(made.Definitions, record.definition(0))
		}
		for _, text := range found.Configs {
			if change := changeOf(text, 0); change.Problem != "" {
				made.Unreadable[Pointer{change.Definition, change.Key}] = change.Problem
			} else {
				config := change.config(node)
				config.StateRevision = sink.revision
				made.Configs = append(made.Configs, config)
			}
		}
	}
	return &Event{Revision: sink.revision, State: made, Node: node}, nil
}

// poll returns the changes after the position; none if none came in time.
func (f *following) poll(ctx context.Context, wait time.Duration) ([]*Event, error) {
	params := f.with(param{"from", strconv.FormatUint(f.position+1, 10)}, param{"wait", strconv.Itoa(int(wait.Seconds()))})
	if f.prev {
		params = append(params, param{"prev", "true"})
	}
	response, err := f.cluster.call(ctx, request{method: "GET", target: target(changesPath, params)}, wait+f.cluster.timeout, wait+pollGrace)
	if err != nil {
		return nil, err
	}
	next, err := f.nextFrom(response)
	if err != nil {
		return nil, err
	}
	var found struct{ Events []json.RawMessage }
	if response.Status != http.StatusNotModified {
		if err := response.decode(&found); err != nil {
			return nil, err
		}
	}
	var events []*Event
	for _, text := range found.Events {
		event, err := eventOf(text, response.Node)
		if err != nil {
			return nil, err
		}
		if event.Revision > f.position {
			events = append(events, event)
		}
	}
	f.position = max(f.position, next-1)
	if events == nil && response.sentAt.age() < min(wait, pollEarly) {
		// Something between has not waited. Polling again at once would be a storm.
		if err := sleep(ctx, pollEarly); err != nil {
			return nil, &UnavailableError{Cause: err}
		}
	}
	return events, nil
}

// confirm returns a revision, and a time by which everything acknowledged has at most that revision.
func (f *following) confirm(ctx context.Context) (uint64, moment, error) {
	// Without `from`, a poll tells the revision that a linearizable read sees. It returns no earlier changes.
	asked := request{method: "GET", target: target(changesPath, f.with(param{"wait", "0"}))}
	response, err := f.cluster.call(ctx, asked, 0, 0)
	if err != nil {
		return 0, moment{}, err
	}
	next, err := f.nextFrom(response)
	if err != nil {
		return 0, moment{}, err
	}
	// A cluster does not go back: what was known before the request is in a linearizable response.
	if next-1 < f.position {
		return 0, moment{}, otherCluster(response.Node)
	}
	return next - 1, response.sentAt, nil
}

// nextFrom is from where a poll continues, if it is of the cluster of the position.
func (f *following) nextFrom(response *Response) (uint64, error) {
	next, id := number(response.Header, headerOfNextChange), response.Header.Get(headerOfCluster)
	if next == 0 {
		return 0, &ProtocolError{response.Node, "the response to a poll lacks " + headerOfNextChange}
	}
	if id != "" {
		if f.id != "" && id != f.id {
			return 0, otherCluster(response.Node)
		}
		f.id = id
	}
	return next, nil
}

// stateSink puts a state together from the parts of an event stream.
type stateSink struct {
	revision   uint64
	parts      []json.RawMessage
	isComplete bool
	// rejection is the body of an `error` event.
	rejection  []byte
	rest       []byte
	name, data []byte
}

func (s *stateSink) feed(chunk []byte) bool {
	for {
		end := bytes.IndexByte(chunk, '\n')
		if end < 0 {
			s.rest = append(s.rest, chunk...)
			return false
		}
		line := append(s.rest, chunk[:end]...)
		s.rest, chunk = line[:0], chunk[end+1:]
		if s.line(bytes.TrimSuffix(line, []byte("\r"))) {
			return true
		}
	}
}

func (s *stateSink) line(line []byte) bool {
	if name, ok := bytes.CutPrefix(line, []byte("event:")); ok {
		s.name = bytes.Clone(bytes.TrimSpace(name))
	} else if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
		s.data = append(s.data, bytes.TrimSpace(data)...)
	} else if len(line) == 0 {
		name, data := string(s.name), s.data
		s.name, s.data = nil, nil
		return s.event(name, data)
	}
	return false
}

func (s *stateSink) event(name string, data []byte) bool {
	switch name {
	case "error":
		s.rejection = data
		return true
	case "state":
		var part struct {
			Revision uint64
			Complete bool
		}
		if json.Unmarshal(data, &part) != nil {
			// The state is read again.
			return true
		}
		s.revision, s.isComplete = part.Revision, part.Complete
		s.parts = append(s.parts, data)
	}
	return s.isComplete
}
