// Package viper makes Concord a remote provider of Viper.
//
//	import _ "github.com/concord-config/concord/clients/go/viper"
//
//	viper.SetConfigType("json")
//	viper.AddRemoteProvider("concord", "http://127.0.0.1:8101,http://127.0.0.1:8102", "limits/acme")
//	err := viper.ReadRemoteConfig()
//
// The path is a definition and a config. The access key and everything else come from the variables that
// [concord.OptionsFromEnv] reads.
package viper

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync"
	"time"

	concord "github.com/concord-config/concord/clients/go"
	"github.com/spf13/viper"
)

const (
	name       = "concord"
	retryPause = 5 * time.Second
)

func init() {
	viper.SupportedRemoteProviders = append(viper.SupportedRemoteProviders, name)
	viper.RemoteConfig = &factory{others: viper.RemoteConfig, clients: map[string]*concord.Client{}}
}

// other is what Viper asks of its remote providers.
type other interface {
	Get(viper.RemoteProvider) (io.Reader, error)
	Watch(viper.RemoteProvider) (io.Reader, error)
	WatchChannel(viper.RemoteProvider) (<-chan *viper.RemoteResponse, chan bool)
}

// factory leaves the other providers to whoever was there before.
type factory struct {
	others other

	mu sync.Mutex
	// clients are kept by their endpoints: Viper never says that it needs one no longer.
	clients map[string]*concord.Client
}

func (f *factory) client(endpoint string) (*concord.Client, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known := f.clients[endpoint]; known != nil {
		return known, nil
	}
	options, err := concord.OptionsFromEnv()
	if err != nil {
		return nil, err
	}
	if endpoint != "" {
		options.URLs = []string{endpoint}
	}
	made, err := concord.New(options)
	if err == nil {
		f.clients[endpoint] = made
	}
	return made, err
}

func (f *factory) open(provider viper.RemoteProvider) (*concord.Client, string, string, error) {
	if provider.Provider() != name {
		// Its endpoint must not get the key.
		return nil, "", "", fmt.Errorf("concord: there is no remote provider %q", provider.Provider())
	}
	definition, key, isPath := strings.Cut(strings.Trim(provider.Path(), "/"), "/")
	if !isPath {
		return nil, "", "", fmt.Errorf("concord: the path %q is not a definition and a config, as in limits/acme", provider.Path())
	}
	client, err := f.client(provider.Endpoint())
	return client, definition, key, err
}

// Get reads the config.
func (f *factory) Get(provider viper.RemoteProvider) (io.Reader, error) {
	if provider.Provider() != name && f.others != nil {
		return f.others.Get(provider)
	}
	client, definition, key, err := f.open(provider)
	if err != nil {
		return nil, err
	}
	found, err := client.Get(context.Background(), definition, key)
	if err != nil {
		return nil, err
	}
	return bytes.NewReader(found.Data), nil
}

// Watch reads the config as it is now, as the other providers do.
func (f *factory) Watch(provider viper.RemoteProvider) (io.Reader, error) {
	if provider.Provider() != name && f.others != nil {
		return f.others.Watch(provider)
	}
	return f.Get(provider)
}

// WatchChannel sends the data after each change, until the second channel is closed or gets a value.
func (f *factory) WatchChannel(provider viper.RemoteProvider) (<-chan *viper.RemoteResponse, chan bool) {
	if provider.Provider() != name && f.others != nil {
		return f.others.WatchChannel(provider)
	}
	responses, quit := make(chan *viper.RemoteResponse), make(chan bool)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-quit
		cancel()
	}()
	go func() {
		// Viper reads the channel without an end: it is never closed, and an error is followed by another try.
		for ctx.Err() == nil {
			for response := range f.follow(ctx, provider) {
				select {
				case responses <- response:
				case <-ctx.Done():
				}
			}
			select {
			case <-time.After(retryPause):
			case <-ctx.Done():
			}
		}
	}()
	return responses, quit
}

// follow are the data of the config, now and after each change, until an error.
func (f *factory) follow(ctx context.Context, provider viper.RemoteProvider) iter.Seq[*viper.RemoteResponse] {
	return func(yield func(*viper.RemoteResponse) bool) {
		client, definition, key, err := f.open(provider)
		if err != nil {
			yield(&viper.RemoteResponse{Error: err})
			return
		}
		options := concord.WatchOptions{Definitions: []string{definition}, Configs: []string{key}, Initial: true}
		for event, err := range client.Watch(ctx, options) {
			if err != nil {
				yield(&viper.RemoteResponse{Error: err})
				return
			}
			for _, data := range dataOf(event) {
				if !yield(&viper.RemoteResponse{Value: data}) {
					return
				}
			}
		}
	}
}

// dataOf are the data of an event. A deletion has none: the program keeps what it has.
func dataOf(event *concord.Event) [][]byte {
	var found [][]byte
	if event.State != nil {
		for _, each := range event.State.Configs {
			found = append(found, each.Data)
		}
	}
	for _, each := range event.Changes {
		if each.Data != nil {
			found = append(found, each.Data)
		}
	}
	return found
}
