package concord

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	timeoutDefault        = 30 * time.Second
	attemptTimeoutDefault = 5 * time.Second
	connectTimeoutDefault = 2 * time.Second
	// cacheTimeout is the time of the calls of a cache, which wants to know soon that no node responds.
	cacheTimeout = 3 * time.Second
)

// Client is a client of a cluster, for any number of goroutines.
type Client struct {
	cluster *cluster
	logger  *slog.Logger
	end     context.CancelFunc

	mu       sync.Mutex
	isClosed bool
	caches   map[*Cache]bool
}

// New makes a client. It sends nothing.
func New(options Options) (*Client, error) {
	nodes, err := nodeURLs(options.URLs)
	if err != nil {
		return nil, err
	}
	credential, err := newCredential(options.Key, options.KeyFile)
	if err != nil {
		return nil, err
	}
	environment, err := newEnvironment(options.Environment)
	if err != nil {
		return nil, err
	}
	reader, err := readerOf(&options)
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	sender := &transport{credential: credential, roundTrip: options.Transport, life: life}
	if sender.roundTrip == nil {
		tlsConfig, err := options.tlsConfig()
		if err != nil {
			end()
			return nil, err
		}
		made := newRoundTripper(life, orDefault(options.ConnectTimeout, connectTimeoutDefault), tlsConfig)
		made.Proxy = options.Proxy
		sender.roundTrip, sender.isOwn = made, true
	}
	logger := options.Logger
	if logger == nil {
		logger = slog.Default()
	}
	client := &Client{logger: logger, end: end, caches: map[*Cache]bool{}}
	client.cluster = &cluster{
		nodes: nodes, timeout: orDefault(options.Timeout, timeoutDefault),
		attempt:     orDefault(options.AttemptTimeout, attemptTimeoutDefault),
		environment: environment, reader: reader, transport: sender, jitter: rand.Float64,
	}
	client.cluster.spread()
	return client, nil
}

func orDefault(given, otherwise time.Duration) time.Duration {
	if given > 0 {
		return given
	}
	return otherwise
}

// spread makes clients that start together begin with different nodes.
func (c *cluster) spread() { c.preferred.Store(int64(rand.IntN(len(c.nodes)))) }

// forCache is the same cluster for the calls of a cache: which node a cache asks is its own matter.
func (c *cluster) forCache() *cluster {
	made := &cluster{
		nodes: c.nodes, timeout: cacheTimeout, attempt: cacheTimeout,
		environment: c.environment, reader: c.reader, transport: c.transport, jitter: c.jitter,
	}
	made.spread()
	return made
}

// Close ends the caches and the connections. Calls in progress end: a write that may have been sent has an unknown
// outcome. A listener of a cache must not call it.
func (c *Client) Close() error {
	c.mu.Lock()
	c.isClosed = true
	caches := make([]*Cache, 0, len(c.caches))
	for each := range c.caches {
		caches = append(caches, each)
	}
	c.mu.Unlock()
	var failed []error
	for _, each := range caches {
		failed = append(failed, each.Close())
	}
	c.end()
	if own, ok := c.cluster.transport.roundTrip.(*http.Transport); ok && c.cluster.transport.isOwn {
		own.CloseIdleConnections()
	}
	return errors.Join(failed...)
}

// Environment is the name of the environment; empty if definition keys have no prefix.
func (c *Client) Environment() string {
	if c.cluster.environment == nil {
		return ""
	}
	return c.cluster.environment.name
}

// Reader is the name of the reader; empty if the client sends none.
func (c *Client) Reader() string {
	if c.cluster.reader == nil {
		return ""
	}
	return c.cluster.reader.name
}

// Revision is the highest revision that any response has named: a [MinRevision] to read one's own writes for less.
func (c *Client) Revision() uint64 { return c.cluster.revision.Load() }

// String shows no key.
func (c *Client) String() string { return "concord.Client{" + strings.Join(c.cluster.nodes, ",") + "}" }

// GoString shows no key.
func (c *Client) GoString() string { return c.String() }
