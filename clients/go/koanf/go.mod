module github.com/concord-config/concord/clients/go/koanf

go 1.23.0

require (
	github.com/concord-config/concord/clients/go v0.1.0
	github.com/knadh/koanf/v2 v2.3.3
)

require (
	github.com/go-viper/mapstructure/v2 v2.4.0 // indirect
	github.com/knadh/koanf/maps v0.1.2 // indirect
	github.com/mitchellh/copystructure v1.2.0 // indirect
	github.com/mitchellh/reflectwalk v1.0.2 // indirect
)

replace github.com/concord-config/concord/clients/go => ../
