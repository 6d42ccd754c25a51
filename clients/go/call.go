package concord

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// resendWindow is how long after the first copy of unknown outcome was sent the request is sent again. A cluster
	// remembers what it decided for at least 45 seconds, and a node works on a request for at most 30.
	resendWindow = 15 * time.Second
	pauseFirst   = 50 * time.Millisecond
	pauseMax     = 2 * time.Second
	attemptsTold = 8
	// attemptMin is the least time for an attempt after the first. A shorter one would end before a response, and the
	// outcome would be unknown.
	attemptMin = 20 * time.Millisecond
)

// request is what is sent to a node, all but the key of the client.
type request struct {
	method string
	// target is the path with the query, encoded.
	target  string
	header  http.Header
	body    []byte
	isWrite bool
	// idempotencyKey is empty for a write that is not sent again once it may have been applied.
	idempotencyKey string
	// sink takes a successful response as it comes.
	sink sink
	// isProven is set for a read of the proven data, also where the reader of the client gets a candidate.
	isProven bool
}

// sink returns whether it needs no more.
type sink interface{ feed(chunk []byte) bool }

// reply is the response to one attempt.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// failure is an attempt without a response.
type failure struct {
	text string
	// mayBeApplied is set if a node may have got the request.
	mayBeApplied bool
}

// Response is a successful response to [Client.Request], or one with status 304.
type Response struct {
	Status int
	Header http.Header
	// Data is the member `data` of the body, or the whole body without such a member.
	Data json.RawMessage
	// Node is the URL of the node that responded.
	Node string

	sentAt moment
}

// Revision is that of the state from which the response was made; 0 if the node did not tell.
func (r *Response) Revision() uint64 { return number(r.Header, "X-Concord-Revision") }

var warning = regexp.MustCompile(`\d{3} \S+ "((?:[^"\\]|\\.)*)"`)
var escaped = regexp.MustCompile(`\\(.)`)

// Warnings are the parts of the request that had no effect, or that are missing from the response.
func (r *Response) Warnings() []string {
	header := strings.Join(r.Header.Values("Warning"), ", ")
	var found []string
	for _, each := range warning.FindAllStringSubmatch(header, -1) {
		found = append(found, escaped.ReplaceAllString(each[1], "$1"))
	}
	if found == nil && header != "" {
		return []string{header}
	}
	return found
}

// decode reads the data of a response to a read.
func (r *Response) decode(into any) error {
	if kindOf(r.Data) != '{' {
		return &ProtocolError{r.Node, fmt.Sprintf("the response %d lacks the requested data", r.Status)}
	}
	if err := json.Unmarshal(r.Data, into); err != nil {
		return &ProtocolError{r.Node, fmt.Sprintf("the data of the response can't be read: %v", err)}
	}
	return nil
}

// cluster is what the calls of a client, or of a cache, share.
type cluster struct {
	nodes            []string
	timeout, attempt time.Duration
	environment      *environment
	reader           *reader
	transport        *transport
	jitter           func() float64
	// preferred is the place of the node that responded last.
	preferred atomic.Int64
	// revision is the highest one that a response named.
	revision atomic.Uint64
}

func (c *cluster) seen(revision uint64) {
	for {
		known := c.revision.Load()
		if revision <= known || c.revision.CompareAndSwap(known, revision) {
			return
		}
	}
}

// call sends a request to one node after another until one decides it or the time is up. A write is sent again only if
// no copy can have been applied, or if it has an idempotency key, by which the cluster decides all its copies as one.
// Once a copy may have been applied, the result is success, a rejection that the cluster has stored for all copies, or
// [*UnknownOutcomeError].
func (c *cluster) call(ctx context.Context, asked request, total, attempt time.Duration) (*Response, error) {
	ctx, end := c.transport.alive(ctx)
	defer end()
	a := c.attempts(ctx, asked, total, attempt)
	for {
		node, allowed, err := a.next(ctx)
		if err != nil {
			return nil, err
		}
		sentAt := now()
		reply, failure := c.transport.send(ctx, node, &a.request, allowed, a.left())
		if failure != nil {
			if err := a.failed(ctx, node, failure.text, a.request.isWrite && failure.mayBeApplied); err != nil {
				return nil, err
			}
			continue
		}
		response, err := a.judged(ctx, node, reply)
		if err != nil {
			return nil, err
		}
		if response != nil {
			response.sentAt = sentAt
			return response, nil
		}
	}
}

// attempts are those of one call.
type attempts struct {
	cluster        *cluster
	asked, request request
	attempt        time.Duration
	began          moment
	total          time.Duration
	first, made    int
	pause          time.Duration
	// askedPause is what the nodes of this round asked for by Retry-After.
	askedPause time.Duration
	// sentAfter is when the last attempt was begun.
	sentAfter time.Duration
	// resendUntil is until when another copy may be sent.
	resendUntil time.Duration
	told        []string
	isUnknown   bool
	limited     *APIError
}

func (c *cluster) attempts(ctx context.Context, asked request, total, attempt time.Duration) *attempts {
	sent := asked
	if c.environment != nil {
		sent = c.environment.enter(sent)
	}
	if c.reader != nil {
		sent = c.reader.on(sent)
	}
	deadline, hasDeadline := ctx.Deadline()
	switch {
	case hasDeadline && total == 0:
		total = time.Until(deadline)
	case hasDeadline:
		total = min(total, time.Until(deadline))
	case total == 0:
		total = c.timeout
	}
	if attempt == 0 {
		attempt = c.attempt
	}
	return &attempts{
		cluster: c, asked: asked, request: sent, attempt: attempt, began: now(), total: total,
		resendUntil: math.MaxInt64, first: int(c.preferred.Load()), pause: pauseFirst,
	}
}

func (a *attempts) left() time.Duration { return a.total - a.began.age() }

// next is the node to ask, and how long it may be silent. Between two rounds over all nodes there is a pause.
func (a *attempts) next(ctx context.Context) (string, time.Duration, error) {
	count := len(a.cluster.nodes)
	if a.made > 0 && a.made%count == 0 {
		jittered := time.Duration(float64(a.pause) * (0.5 + a.cluster.jitter()/2))
		pause := max(jittered, a.askedPause)
		a.pause, a.askedPause = min(2*a.pause, pauseMax), 0
		if pause+attemptMin >= min(a.left(), a.resendUntil-a.began.age()) || sleep(ctx, pause) != nil {
			return "", 0, a.givenUp(ctx, nil)
		}
	}
	left := a.left()
	if ctx.Err() != nil || left <= 0 || (a.made > 0 && left < attemptMin) || a.began.age() >= a.resendUntil {
		return "", 0, a.givenUp(ctx, nil)
	}
	node := a.cluster.nodes[(a.first+a.made)%count]
	a.made++
	a.sentAfter = a.total - left
	// The last copy of a write that may be sent has the time that is left.
	isLast := a.sentAfter+a.attempt >= a.resendUntil
	if a.request.isWrite && (a.request.idempotencyKey == "" || isLast) {
		return node, left, nil
	}
	// A node that hangs must not take the time that the others need.
	return node, min(left, a.attempt), nil
}

// failed notes an attempt without a response. It returns an error if there must be no other attempt.
func (a *attempts) failed(ctx context.Context, node, text string, mayBeApplied bool) error {
	a.told = append(a.told, node+": "+text)
	a.told = a.told[max(0, len(a.told)-attemptsTold):]
	if !mayBeApplied {
		return nil
	}
	if !a.isUnknown {
		a.isUnknown = true
		// The node may have decided this copy long before it was given up.
		a.resendUntil = a.sentAfter + resendWindow
	}
	if a.request.idempotencyKey == "" {
		return a.givenUp(ctx, nil)
	}
	return nil
}

// judged returns neither a response nor an error if the request is to be sent again.
func (a *attempts) judged(ctx context.Context, node string, reply *reply) (*Response, error) {
	isWrite := a.request.isWrite
	if reply.status/100 == 2 || reply.status == 304 && !isWrite {
		return a.succeeded(ctx, node, reply)
	}
	found := rejected(reply.status, reply.body, node, reply.header)
	// What stands between may have lost a response. Only a node's own words say that nothing was applied.
	isOwn := len(found.Violations) > 0
	switch {
	case (reply.status == 429 || reply.status == 503) && (isOwn || !isWrite):
		a.limited = nil
		if reply.status == 429 {
			a.limited = found
		}
		seconds, err := strconv.ParseFloat(reply.header.Get("Retry-After"), 64)
		if err == nil && seconds > 0 && seconds < 1e6 {
			a.askedPause = max(a.askedPause, time.Duration(seconds*float64(time.Second)))
		}
		return nil, a.failed(ctx, node, found.Error(), false)
	case reply.status >= 500 && reply.status != 507:
		if reply.status == 500 && isOwn && !isWrite {
			return nil, found
		}
		a.limited = nil
		return nil, a.failed(ctx, node, found.Error(), isWrite)
	case !isOwn && !isPlainRejection(reply.status):
		return nil, a.failed(ctx, node, found.Error(), isWrite)
	}
	a.cluster.seen(found.Revision)
	a.answered()
	if a.isUnknown && !a.isDecision(found) {
		return nil, a.givenUp(ctx, found)
	}
	return nil, found
}

// isPlainRejection tells statuses that are rejections also without a reason, as those that a node gives to HEAD.
func isPlainRejection(status int) bool {
	return status == 401 || status == 403 || status == 404 || status == 405 || status == 413
}

func (a *attempts) succeeded(ctx context.Context, node string, reply *reply) (*Response, error) {
	response := &Response{Status: reply.status, Header: reply.header, Node: node}
	// A write is answered with a body: an empty one is that of something between.
	if a.request.sink == nil && (len(reply.body) > 0 || a.request.isWrite) {
		if !json.Valid(reply.body) {
			// The response was cut off, or is not one of Concord.
			text := fmt.Sprintf("the response %d has a body that is not JSON", reply.status)
			return nil, a.failed(ctx, node, text, a.request.isWrite)
		}
		response.Data = dataOf(reply.body)
	}
	if a.cluster.environment != nil {
		response.Data = a.cluster.environment.leave(a.asked.method, a.asked.target, response.Data)
	}
	a.cluster.seen(response.Revision())
	a.answered()
	return response, nil
}

func dataOf(body []byte) json.RawMessage {
	var found map[string]json.RawMessage
	if kindOf(body) == '{' && json.Unmarshal(body, &found) == nil {
		if data, ok := found["data"]; ok {
			return data
		}
	}
	return bytes.TrimSpace(body)
}

// answered makes the node that responded the first one of later calls.
func (a *attempts) answered() {
	a.cluster.preferred.Store(int64((a.first + a.made - 1) % len(a.cluster.nodes)))
}

// isDecision tells whether the cluster has decided this rejection for all copies of the request, and stored it. What is
// said of the request itself, of the permissions, or of a freeze, says nothing of an earlier copy.
func (a *attempts) isDecision(found *APIError) bool {
	path, _, _ := strings.Cut(a.request.target, "?")
	if strings.HasPrefix(path+"/", changeRequestPath+"/") {
		return false
	}
	switch found.Code() {
	case "definition_not_found":
		return a.request.method == "PATCH" || strings.HasPrefix(path, batchPath)
	case "config_exists", "config_not_found", "definition_exists", "definition_not_empty", "definition_protected",
		"precondition_failed", "unique_taken":
		return true
	}
	return false
}

func (a *attempts) givenUp(ctx context.Context, last *APIError) error {
	// The node that was asked last did not respond: the next call begins with another one.
	a.cluster.preferred.Store(int64((a.first + a.made) % len(a.cluster.nodes)))
	switch {
	case a.isUnknown:
		key := a.request.idempotencyKey
		return &UnknownOutcomeError{IdempotencyKey: key, Attempts: a.told, Rejection: last, Cause: context.Cause(ctx)}
	case a.limited != nil && ctx.Err() == nil:
		return a.limited
	}
	return &UnavailableError{Attempts: a.told, Cause: context.Cause(ctx)}
}
