module github.com/concord-config/concord/clients/go

go 1.23
