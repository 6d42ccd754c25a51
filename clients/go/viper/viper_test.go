package viper_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/concord-config/concord/clients/go/concordtest"
	_ "github.com/concord-config/concord/clients/go/viper"
	"github.com/spf13/viper"
)

func TestViperReadsAndFollowsAConfig(t *testing.T) {
	server := concordtest.NewServer(t)
	t.Setenv("CONCORD_API_KEY", server.Key)
	server.Set(t, "limits", "acme", json.RawMessage(`{"plan":"pro","seats":3}`))
	v := viper.New()
	v.SetConfigType("json")
	if err := v.AddRemoteProvider("concord", server.URL, "limits/acme"); err != nil {
		t.Fatal(err)
	}
	if err := v.ReadRemoteConfig(); err != nil || v.GetString("plan") != "pro" || v.GetInt("seats") != 3 {
		t.Fatal(v.AllSettings(), err)
	}
	if err := v.WatchRemoteConfigOnChannel(); err != nil {
		t.Fatal(err)
	}
	server.Set(t, "limits", "acme", json.RawMessage(`{"plan":"free","seats":1}`))
	time.Sleep(500 * time.Millisecond)
	if err := v.WatchRemoteConfig(); err != nil || v.GetString("plan") != "free" {
		t.Fatal(v.AllSettings(), err)
	}
	other := viper.New()
	other.SetConfigType("json")
	if err := other.AddRemoteProvider("concord", server.URL, "limits"); err != nil {
		t.Fatal(err)
	}
	if err := other.ReadRemoteConfig(); err == nil {
		t.Fatal("a path has a definition and a config")
	}
}

func TestTheKeyGoesToNoOtherProvider(t *testing.T) {
	t.Setenv("CONCORD_API_KEY", "the-key")
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Error(r.URL, r.Header) }))
	defer server.Close()
	v := viper.New()
	v.SetConfigType("json")
	if err := v.AddRemoteProvider("etcd", server.URL, "limits/acme"); err != nil {
		t.Fatal(err)
	}
	if v.ReadRemoteConfig() == nil || v.WatchRemoteConfig() == nil {
		t.Error("nobody knows this provider")
	}
	if err := v.WatchRemoteConfigOnChannel(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
}
