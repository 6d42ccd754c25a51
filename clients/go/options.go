package concord

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// Options are the settings of a client. [Options.URLs] and a key are required.
type Options struct {
	// URLs are those of the nodes, each alone or several with commas between. Any of them may be down.
	URLs []string
	// Key is the access key.
	Key string
	// KeyFile is a file with the access key, in place of Key. It is read again when it changes.
	KeyFile string

	// CAFile has the certificates of authorities that the nodes' certificates are checked with, in place of those of the
	// system.
	CAFile string
	// CertFile and CertKeyFile are the client certificate, if nodes require one.
	CertFile, CertKeyFile string
	// TLS is used in place of the three files.
	TLS *tls.Config

	// Timeout is the time of a call with all its attempts, if its context has no deadline: 30 seconds by default.
	Timeout time.Duration
	// AttemptTimeout is how long one node may be silent: 5 seconds by default.
	AttemptTimeout time.Duration
	// ConnectTimeout is the time of a connect: 2 seconds by default.
	ConnectTimeout time.Duration

	// Environment is put before the definition keys of requests, with a dot, and taken off those of responses: with
	// `prod`, `limits` is the definition `prod.limits` of the cluster. Lists and watches without a definition are of this
	// environment. `default` and the empty text are no prefix.
	Environment string

	// Reader is the name by which a rollout knows the program: the host name by default. It is no secret and proves
	// nothing.
	Reader string
	// NoReader sends no name: the client gets the new data at the end of a rollout.
	NoReader bool
	// Labels are those of the reader, as in {"ring": "canary"}.
	Labels map[string]string

	// Proxy names the proxy of a request, as [http.ProxyFromEnvironment] does. Without it, none is used.
	Proxy func(*http.Request) (*url.URL, error)
	// Transport sends the requests, in place of one that is made by the options above. It must not follow redirects.
	Transport http.RoundTripper
	// Logger gets a few lines about caches: [slog.Default] by default.
	Logger *slog.Logger
}

// String shows no key.
func (o Options) String() string {
	return "concord.Options{" + strings.Join(shownURLs(o.URLs), ",") + "}"
}

// GoString shows no key.
func (o Options) GoString() string { return o.String() }

func shownURLs(urls []string) []string {
	shown, err := nodeURLs(urls)
	if err != nil {
		return []string{"invalid URLs"}
	}
	return shown
}

// OptionsFromEnv are those that the variables of the command line name: CONCORD_URL, CONCORD_API_KEY or
// CONCORD_API_KEY_FILE, CONCORD_CA_FILE, CONCORD_CLIENT_CERT_FILE, CONCORD_CLIENT_KEY_FILE, CONCORD_ENVIRONMENT,
// CONCORD_READER, and CONCORD_LABELS as in `ring=canary,region=eu`.
func OptionsFromEnv() (Options, error) {
	options := Options{
		URLs:        []string{"http://127.0.0.1:8101"},
		Key:         os.Getenv("CONCORD_API_KEY"),
		CAFile:      os.Getenv("CONCORD_CA_FILE"),
		CertFile:    os.Getenv("CONCORD_CLIENT_CERT_FILE"),
		CertKeyFile: os.Getenv("CONCORD_CLIENT_KEY_FILE"),
		Reader:      os.Getenv("CONCORD_READER"),
	}
	if urls, isSet := os.LookupEnv("CONCORD_URL"); isSet {
		options.URLs = []string{urls}
	}
	if options.Key == "" {
		options.KeyFile = os.Getenv("CONCORD_API_KEY_FILE")
	}
	if name, isSet := os.LookupEnv("CONCORD_ENVIRONMENT"); isSet {
		// An empty one is a mistake of a deployment: without a prefix, the program would have the configs of all.
		if err := checkEnvironment(name); err != nil {
			return Options{}, err
		}
		options.Environment = name
	}
	var err error
	options.Labels, err = labelsOf(os.Getenv("CONCORD_LABELS"))
	return options, err
}

func nodeURLs(given []string) ([]string, error) {
	var urls []string
	for _, each := range strings.Split(strings.Join(given, ","), ",") {
		each = strings.TrimRight(strings.TrimSpace(each), "/")
		if each == "" || slices.Contains(urls, each) {
			continue
		}
		found, err := url.Parse(each)
		isNode := err == nil && (found.Scheme == "http" || found.Scheme == "https") && found.Hostname() != ""
		if !isNode || found.User != nil || found.RawQuery != "" || found.Fragment != "" {
			shown := fmt.Sprintf("%q", each)
			if strings.Contains(each, "@") {
				// The text may hold a password.
				shown = "a URL with a user or a password"
			}
			return nil, fmt.Errorf("concord: %s is not the URL of a node: expected http[s]://host:port", shown)
		}
		urls = append(urls, each)
	}
	if urls == nil {
		return nil, errors.New("concord: no URL of a node is given")
	}
	return urls, nil
}

func (o *Options) tlsConfig() (*tls.Config, error) {
	if o.TLS != nil {
		made := o.TLS.Clone()
		// A program's settings may offer HTTP/2, which this client does not speak.
		made.NextProtos = nil
		return made, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		text, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("concord: the CA file can't be read: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("concord: the CA file %s has no certificate", o.CAFile)
		}
	}
	if (o.CertFile == "") != (o.CertKeyFile == "") {
		return nil, errors.New("concord: give CertFile and CertKeyFile, or none of them")
	}
	if o.CertFile != "" {
		certificate, err := tls.LoadX509KeyPair(o.CertFile, o.CertKeyFile)
		if err != nil {
			return nil, fmt.Errorf("concord: the client certificate can't be read: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}
