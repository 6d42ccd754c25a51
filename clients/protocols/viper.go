// Reads and follows a config with Viper's remote provider for Consul, and prints each state.
package main

import (
	"bytes"
	"encoding/json"
	"log"
	"os"

	"github.com/spf13/viper"
	_ "github.com/spf13/viper/remote"
)

// place is where Viper finds the config. The key of access is in CONSUL_HTTP_TOKEN.
type place struct{ node, key string }

func (p place) Provider() string      { return "consul" }
func (p place) Endpoint() string      { return p.node }
func (p place) Path() string          { return p.key }
func (p place) SecretKeyring() string { return "" }

func main() {
	at := place{os.Getenv("CONCORD_NODE"), os.Args[1]}
	v := viper.New()
	v.SetConfigType("json")
	if err := v.AddRemoteProvider(at.Provider(), at.Endpoint(), at.Path()); err != nil {
		log.Fatal(err)
	}
	if err := v.ReadRemoteConfig(); err != nil {
		log.Fatal(err)
	}
	show(v)
	states, _ := viper.RemoteConfig.WatchChannel(at)
	for state := range states {
		if state.Error != nil {
			log.Print(state.Error)
			continue
		}
		followed := viper.New()
		followed.SetConfigType("json")
		if err := followed.ReadConfig(bytes.NewReader(state.Value)); err != nil {
			log.Fatal(err)
		}
		show(followed)
	}
}

func show(v *viper.Viper) {
	state := map[string]any{"greeting": v.GetString("shop.greeting"), "seats": v.GetInt("shop.limits.seats"), "hosts": v.GetStringSlice("shop.hosts")}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"seen": state}); err != nil {
		log.Fatal(err)
	}
}
