package concord

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func connect(t *testing.T, change func(*Options), urls ...string) *Client {
	t.Helper()
	options := Options{URLs: urls, Key: "k", NoReader: true, Timeout: 10 * time.Second}
	if change != nil {
		change(&options)
	}
	client, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	client.cluster.preferred.Store(0)
	return client
}

func sayConfig(w http.ResponseWriter, key string) {
	w.Header().Set("Etag", `"7"`)
	fmt.Fprintf(w, `{"data":{"config_key":%q,"data":{"n":1},"created_at":%q,"modified_at":%q}}`, key, timeOfRecords, timeOfRecords)
}

func TestTheKeyGoesToTheNodesOnly(t *testing.T) {
	elsewhere := serve(t, func(_ http.ResponseWriter, r *http.Request) { t.Error("a redirect was followed", r.Header) })
	t.Setenv("HTTP_PROXY", elsewhere)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
	})
	client := connect(t, func(o *Options) { o.Timeout = 200 * time.Millisecond }, strings.Replace(url, "127.0.0.1", "localhost", 1))
	if _, err := client.Get(context.Background(), "d", "k"); !isUnavailable(err) {
		t.Fatal(err)
	}
	for _, shown := range []string{fmt.Sprintf("%+v", client), fmt.Sprintf("%#v", client), fmt.Sprintf("%v", Options{URLs: []string{"http://a"}, Key: "the-key"})} {
		if strings.Contains(shown, "the-key") || !strings.HasPrefix(shown, "concord.") {
			t.Error(shown)
		}
	}
}

func TestWritesAreNotRepeatedByTheTransport(t *testing.T) {
	for _, method := range []string{"DELETE", "PUT"} {
		var count atomic.Int32
		url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "GET" {
				sayConfig(w, "k")
				return
			}
			if r.Header.Get("Idempotency-Key") == "" {
				t.Error("a write without an idempotency key")
			}
			io.Copy(io.Discard, r.Body)
			switch count.Add(1) {
			case 1:
				// On a connection that was used before, net/http would send it again by itself.
				connection, _, err := w.(http.Hijacker).Hijack()
				if err == nil {
					connection.Close()
				}
			default:
				w.WriteHeader(422)
				fmt.Fprint(w, `{"errors":[{"type":"validation_error","code":"data_invalid","msg":"m"}]}`)
			}
		})
		client := connect(t, nil, url)
		if _, err := client.Get(context.Background(), "d", "k"); err != nil {
			t.Fatal(err)
		}
		var err error
		if method == "PUT" {
			_, err = client.Put(context.Background(), "d", "k", struct{}{})
		} else {
			_, err = client.Delete(context.Background(), "d", "k")
		}
		if found := isUnknownOutcome(err); !found || count.Load() != 2 {
			t.Fatal(method, count.Load(), err)
		}
	}
}

func isUnknownOutcome(err error) bool {
	var found *UnknownOutcomeError
	return errors.As(err, &found)
}

func TestALongResponseMayTakeLongerThanASilence(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		body := httptest.NewRecorder()
		sayConfig(body, "k")
		w.Header().Set("Etag", `"7"`)
		for _, each := range body.Body.Bytes() {
			w.Write([]byte{each})
			w.(http.Flusher).Flush()
			time.Sleep(2 * time.Millisecond)
		}
	})
	slow := connect(t, func(o *Options) { o.AttemptTimeout = 100 * time.Millisecond }, url)
	if _, err := slow.Get(context.Background(), "d", "k"); err != nil {
		t.Fatal(err)
	}
	hasty := connect(t, func(o *Options) { o.AttemptTimeout, o.Timeout = 100*time.Millisecond, 150*time.Millisecond }, url)
	if _, err := hasty.Get(context.Background(), "d", "k"); !isUnavailable(err) {
		t.Fatal(err)
	}
}

func TestCompressedResponsesAreReadAndBounded(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "gzip" {
			t.Error(r.Header)
		}
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Etag", `"7"`)
		packed := gzip.NewWriter(w)
		defer packed.Close()
		body := httptest.NewRecorder()
		sayConfig(body, "k")
		packed.Write(body.Body.Bytes())
	})
	if found, err := connect(t, nil, url).Get(context.Background(), "d", "k"); err != nil || found.Revision != 7 {
		t.Fatal(found, err)
	}
}

// muteProxy passes connections on to a node. While it is mute, it takes bytes and connections, and passes nothing on.
type muteProxy struct {
	listener net.Listener
	isMute   atomic.Bool
	open     sync.WaitGroup
}

func newMuteProxy(t *testing.T, address string) *muteProxy {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &muteProxy{listener: listener}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", address)
			if err != nil {
				near.Close()
				continue
			}
			pass := func(from, to net.Conn) {
				defer p.open.Done()
				defer to.Close()
				buffer := make([]byte, 4096)
				for {
					n, err := from.Read(buffer)
					if err != nil {
						return
					}
					if !p.isMute.Load() {
						to.Write(buffer[:n])
					}
				}
			}
			p.open.Add(2)
			go pass(near, far)
			go pass(far, near)
		}
	}()
	t.Cleanup(func() { listener.Close() })
	return p
}

func TestAConnectionThatGoesSilentIsLeftInTime(t *testing.T) {
	nodes := newFakeCluster()
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		nodes.mu.Lock()
		nodes.bodies = append(nodes.bodies, string(body))
		nodes.mu.Unlock()
		made, err := nodes.respond(r)
		if err != nil {
			return
		}
		for name, values := range made.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(made.StatusCode)
		io.Copy(w, made.Body)
	})
	proxy := newMuteProxy(t, strings.TrimPrefix(url, "http://"))
	client := connect(t, func(o *Options) { o.AttemptTimeout = 200 * time.Millisecond }, "http://"+proxy.listener.Addr().String(), url)
	cache := nodes.cache(t, client)
	cache.following.cluster.preferred.Store(0)
	time.Sleep(100 * time.Millisecond)
	client.cluster.preferred.Store(0)
	proxy.isMute.Store(true)
	began := time.Now()
	nodes.put("a", `{"n":2}`)
	if _, err := client.Get(context.Background(), "d", "a"); err != nil || time.Since(began) > 2*time.Second {
		t.Fatal(err, time.Since(began))
	}
	wait(t, cache, 11)
	if time.Since(began) > 10*time.Second {
		t.Fatal(time.Since(began))
	}
	began = time.Now()
	if client.Close(); time.Since(began) > time.Second {
		t.Fatal(time.Since(began))
	}
}

func TestTLSWithAnAuthorityAndAClientCertificate(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { sayConfig(w, "k") }))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	server.Config.ErrorLog = nil
	folder := t.TempDir()
	certificate := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]*pem.Block{"cert": {Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}, "key": {Type: "PRIVATE KEY", Bytes: key}}
	for name, block := range files {
		if err := os.WriteFile(filepath.Join(folder, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := func(name string) string { return filepath.Join(folder, name) }
	client := connect(t, func(o *Options) { o.CAFile, o.CertFile, o.CertKeyFile = path("cert"), path("cert"), path("key") }, server.URL)
	if _, err := client.Get(context.Background(), "d", "k"); err != nil {
		t.Fatal(err)
	}
	stranger := connect(t, func(o *Options) { o.Timeout = 2 * time.Second }, server.URL)
	if _, err := stranger.Delete(context.Background(), "d", "k"); !isUnavailable(err) || !strings.Contains(err.Error(), "certificate") {
		t.Fatal("a write to a node that is not trusted was not sent", err)
	}
}

func TestTheClientSpeaksHTTP1WhateverItsTLSSettingsOffer(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 1 {
			t.Error(r.Proto)
		}
		sayConfig(w, "k")
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	given := &tls.Config{RootCAs: pool, NextProtos: []string{"h2", "http/1.1"}}
	client := connect(t, func(o *Options) { o.TLS, o.Timeout = given, 2*time.Second }, server.URL)
	if _, err := client.Get(context.Background(), "d", "k"); err != nil || len(given.NextProtos) != 2 {
		t.Fatal(err, given.NextProtos)
	}
}

func TestAKeyFileIsReadAgainWhenItChanges(t *testing.T) {
	var seen []string
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Authorization"))
		sayConfig(w, "k")
	})
	file := filepath.Join(t.TempDir(), "key")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	client := connect(t, func(o *Options) { o.Key, o.KeyFile = "", file }, url)
	for _, text := range []string{"first\n", "second-one\nfirst\n", "", "not a key \x01"} {
		write(text)
		if _, err := client.Get(context.Background(), "d", "k"); err != nil {
			t.Fatal(err)
		}
	}
	if fmt.Sprint(seen) != "[Bearer first Bearer second-one Bearer second-one Bearer not]" {
		t.Fatal(seen)
	}
}

func TestNoGoroutineOutlivesAClient(t *testing.T) {
	before := runtime.NumGoroutine()
	nodes := newFakeCluster()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { sayConfig(w, "a") }))
	plain := connect(t, nil, server.URL, "http://127.0.0.1:1")
	for range 5 {
		if _, err := plain.Get(context.Background(), "d", "a"); err != nil {
			t.Fatal(err)
		}
	}
	client := nodes.client(t, func(o *Options) { o.NoReader, o.Reader = false, "h" })
	nodes.cache(t, client)
	nodes.cache(t, client)
	if _, err := client.NewCache(context.Background(), CacheOptions{Definitions: []string{"d"}}); err != nil {
		t.Fatal(err)
	}
	client.Close()
	plain.Close()
	server.Close()
	until(t, "the goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
	if _, err := client.NewCache(context.Background(), CacheOptions{}); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}
