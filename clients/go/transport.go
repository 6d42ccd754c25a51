package concord

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

const (
	// keepalive is how long an idle connection is kept: less than a node keeps it, so that no request meets its end.
	keepalive = 20 * time.Second
	// responseBytesMax bounds a response, and what a stream of the state has in all. A batch alone may have 128 MiB.
	responseBytesMax = 1 << 30
	// streamTimeMax is how long a state may take in all. A node ends it after the same time.
	streamTimeMax       = 5 * time.Minute
	headerBytesMax      = 1 << 20
	idleConnectionsMax  = 100
	readBufferSize      = 32 << 10
	userAgentOfRequests = "concord-client-go/" + Version
)

var (
	errSilent = errors.New("the node was silent for too long")
	errLate   = errors.New("the response did not end in time")
)

// transport sends requests to nodes.
type transport struct {
	credential *credential
	roundTrip  http.RoundTripper
	// isOwn is set if connections are reported to [httptrace], so that a request without one was not sent.
	isOwn bool
	// life ends with the client.
	life context.Context
}

// newRoundTripper speaks HTTP/1.1 alone: there a request that is given up takes its connection with it, so no later
// request meets one that went silent. It knows no proxy and follows no redirect.
func newRoundTripper(life context.Context, connectTimeout time.Duration, tlsConfig *tls.Config) *http.Transport {
	dialer := &net.Dialer{Timeout: connectTimeout}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			// The dial may outlive the request that it was begun for.
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(life, cancel)()
			return dialer.DialContext(ctx, network, address)
		},
		TLSClientConfig:        tlsConfig,
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{},
		TLSHandshakeTimeout:    connectTimeout,
		MaxIdleConns:           idleConnectionsMax,
		MaxIdleConnsPerHost:    idleConnectionsMax,
		IdleConnTimeout:        keepalive,
		MaxResponseHeaderBytes: headerBytesMax,
	}
}

// alive is a context that ends with the client, too.
func (t *transport) alive(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if t.life.Err() != nil {
		// The function below would run only a moment later.
		cancel(ErrClosed)
	}
	stop := context.AfterFunc(t.life, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// send makes one attempt. The node may be silent for a while, and the whole response may take the time that is left; one
// that goes to a sink may take longer, but not without an end.
func (t *transport) send(ctx context.Context, node string, r *request, silence, left time.Duration) (*reply, *failure) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watchdog.Stop()
	heard := func() { watchdog.Reset(silence) }
	if r.sink != nil {
		left = streamTimeMax
	}
	defer time.AfterFunc(left, func() { cancel(errLate) }).Stop()
	var hasConnection atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { hasConnection.Store(true) }}
	sent, err := t.request(httptrace.WithClientTrace(ctx, trace), node, r, heard)
	if err != nil {
		return nil, &failure{err.Error(), false}
	}
	response, err := t.roundTrip.RoundTrip(sent)
	if err != nil {
		isNotSent := t.isOwn && !hasConnection.Load() || isDialError(err)
		return nil, &failure{reasonOf(ctx, err), !isNotSent}
	}
	defer response.Body.Close()
	heard()
	found := &reply{status: response.StatusCode, header: response.Header}
	into := r.sink
	if response.StatusCode/100 != 2 {
		into = nil
	}
	buffer, size := make([]byte, readBufferSize), 0
	for {
		n, err := response.Body.Read(buffer)
		heard()
		if size += n; size > responseBytesMax {
			return nil, &failure{fmt.Sprintf("the response has more than %d bytes", responseBytesMax), true}
		}
		if into == nil {
			found.body = append(found.body, buffer[:n]...)
		} else if into.feed(buffer[:n]) {
			return found, nil
		}
		if err == io.EOF || (err != nil && into != nil) {
			// A sink knows whether it has all.
			return found, nil
		}
		if err != nil {
			return nil, &failure{reasonOf(ctx, err), true}
		}
	}
}

func (t *transport) request(ctx context.Context, node string, r *request, heard func()) (*http.Request, error) {
	key, err := t.credential.current()
	if err != nil {
		return nil, err
	}
	sent, err := http.NewRequestWithContext(ctx, r.method, node+r.target, nil)
	if err != nil {
		return nil, err
	}
	if r.body != nil {
		sent.ContentLength = int64(len(r.body))
		sent.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(&upload{bytes.NewReader(r.body), heard}), nil }
		sent.Body, _ = sent.GetBody()
	}
	for name, values := range r.header {
		sent.Header[name] = values
	}
	sent.Header.Set("Authorization", "Bearer "+key)
	sent.Header.Set("User-Agent", userAgentOfRequests)
	if r.idempotencyKey != "" {
		// Under its canonical name, net/http would take it for a leave to send the request again by itself. Then this
		// client would not know of the first copy.
		sent.Header["idempotency-key"] = []string{r.idempotencyKey}
	}
	return sent, nil
}

// upload is a body whose progress shows that the node is not silent.
type upload struct {
	io.Reader
	heard func()
}

func (u *upload) Read(into []byte) (int, error) {
	u.heard()
	return u.Reader.Read(into)
}

func isDialError(err error) bool {
	var found *net.OpError
	return errors.As(err, &found) && found.Op == "dial"
}

// reasonOf says why the client gave up, if it did.
func reasonOf(ctx context.Context, err error) string {
	if cause := context.Cause(ctx); cause != nil {
		return cause.Error()
	}
	return err.Error()
}
