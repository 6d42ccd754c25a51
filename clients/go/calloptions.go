package concord

import (
	"strconv"
	"strings"
	"time"
)

// read is what the options of a read say.
type read struct {
	params   []param
	filters  Filters
	shape    []param
	revision *uint64
	pageSize int
}

// Options of reads. Each call names those that it takes.
type (
	// GetOption is an option of [Client.Get].
	GetOption interface{ get(*read) }
	// BulkOption is an option of [Client.ReadMany].
	BulkOption interface{ bulk(*read) }
	// ListOption is an option of [Client.List] and [Client.Page].
	ListOption interface{ list(*read) }
	// AcrossOption is an option of [Client.ListAcross].
	AcrossOption interface{ across(*read) }
	// DefinitionsOption is an option of [Client.ListDefinitions].
	DefinitionsOption interface{ definitions(*read) }
	// HistoryOption is an option of [Client.History] and [Client.DefinitionHistory].
	HistoryOption interface{ history(*read) }
	// ReadOption is an option of every read.
	ReadOption interface {
		GetOption
		BulkOption
		ListOption
		AcrossOption
		DefinitionsOption
		HistoryOption
		read(*read)
	}
)

type anyRead func(*read)

func (f anyRead) get(r *read)         { f(r) }
func (f anyRead) bulk(r *read)        { f(r) }
func (f anyRead) list(r *read)        { f(r) }
func (f anyRead) across(r *read)      { f(r) }
func (f anyRead) definitions(r *read) { f(r) }
func (f anyRead) history(r *read)     { f(r) }
func (f anyRead) read(r *read)        { f(r) }

func readParam(name, value string) ReadOption {
	return anyRead(func(r *read) { r.params = append(r.params, param{name, value}) })
}

// Linearizable sees every write that was acknowledged before the read began. This is the default.
func Linearizable() ReadOption { return readParam("consistency", "linearizable") }

// Lease sees the same if the rates of the nodes' clocks differ little, and saves a round trip between the nodes.
func Lease() ReadOption { return readParam("consistency", "lease") }

// Local sees what the node has applied, which may be old.
func Local() ReadOption { return readParam("consistency", "local") }

// MaxStaleness bounds the age of what [Local] sees; an older state is a linearizable read.
func MaxStaleness(age time.Duration) ReadOption {
	return readParam("max_staleness_ms", strconv.FormatInt(age.Milliseconds(), 10))
}

// MinRevision sees at least this revision, as that of one's own write.
func MinRevision(revision uint64) ReadOption {
	return readParam("min_revision", strconv.FormatUint(revision, 10))
}

type revisionOption uint64

func (o revisionOption) set(r *read)         { revision := uint64(o); r.revision = &revision }
func (o revisionOption) get(r *read)         { o.set(r) }
func (o revisionOption) bulk(r *read)        { o.set(r) }
func (o revisionOption) list(r *read)        { o.set(r) }
func (o revisionOption) definitions(r *read) { o.set(r) }

// AtRevision reads the state at a revision.
func AtRevision(revision uint64) interface {
	GetOption
	BulkOption
	ListOption
	DefinitionsOption
} {
	return revisionOption(revision)
}

type fieldsOption []string

func (o fieldsOption) get(r *read) { r.shape = []param{{"fields", strings.Join(o, ",")}} }

// With `$` no index takes the parameter for its filter.
func (o fieldsOption) list(r *read) { r.shape = []param{{"$fields", strings.Join(o, ",")}} }

// Fields reads these parts of the data only.
func Fields(paths ...string) interface {
	GetOption
	ListOption
} {
	return fieldsOption(paths)
}

type filterOption Filters

func (o filterOption) list(r *read)   { r.filters = Filters(o) }
func (o filterOption) across(r *read) { r.filters = Filters(o) }

// Where selects configs.
func Where(filters Filters) interface {
	ListOption
	AcrossOption
} {
	return filterOption(filters)
}

type orderOption []param

func (o orderOption) list(r *read)        { r.params = append(r.params, o...) }
func (o orderOption) across(r *read)      { r.params = append(r.params, o...) }
func (o orderOption) definitions(r *read) { r.params = append(r.params, o...) }

// Ordering is what [Search], [Ascending] and [Descending] are.
type Ordering interface {
	ListOption
	AcrossOption
	DefinitionsOption
}

// Search selects records whose key contains a text.
func Search(text string) Ordering { return orderOption{{"search", text}} }

// Ascending sorts by an indexed path, `config_key`, `created_at` or `modified_at`.
func Ascending(path string) Ordering { return orderOption{{"sort_by", path}, {"sort_order", "asc"}} }

// Descending sorts the other way round.
func Descending(path string) Ordering { return orderOption{{"sort_by", path}, {"sort_order", "desc"}} }

type pageSizeOption int

func (o pageSizeOption) list(r *read)        { r.pageSize = int(o) }
func (o pageSizeOption) across(r *read)      { r.pageSize = int(o) }
func (o pageSizeOption) definitions(r *read) { r.pageSize = int(o) }
func (o pageSizeOption) history(r *read)     { r.pageSize = int(o) }

// PageSize is how many records one request returns: 200 by default.
func PageSize(records int) interface {
	ListOption
	AcrossOption
	DefinitionsOption
	HistoryOption
} {
	return pageSizeOption(records)
}

// write is what the options of a write say.
type write struct {
	reason, idempotencyKey string
	dryRun, createOnly     bool
	ifMatch                *uint64
	params                 []param
	formatAssertion        *bool
}

// Options of writes. Each call names those that it takes.
type (
	// UpdateOption is an option of calls that consist of several requests.
	UpdateOption interface{ update(*write) }
	// WriteOption is an option of every write that is one request.
	WriteOption interface {
		ChangeOption
		PutOption
		SchemaOption
		DeleteDefinitionOption
		write(*write)
	}
	// ChangeOption is an option of a conditional write.
	ChangeOption interface{ change(*write) }
	// PutOption is an option of [Client.Put] and [Client.Rollback].
	PutOption interface{ put(*write) }
	// SchemaOption is an option of [Client.SetSchema].
	SchemaOption interface{ schema(*write) }
	// DeleteDefinitionOption is an option of [Client.DeleteDefinition].
	DeleteDefinitionOption interface{ deleteDefinition(*write) }
)

type anyWrite func(*write)

func (f anyWrite) write(w *write)            { f(w) }
func (f anyWrite) change(w *write)           { f(w) }
func (f anyWrite) put(w *write)              { f(w) }
func (f anyWrite) schema(w *write)           { f(w) }
func (f anyWrite) deleteDefinition(w *write) { f(w) }

type reasonOption struct{ anyWrite }

func (o reasonOption) update(w *write) { o.write(w) }

// Reason is why the change is made; the history has it.
func Reason(reason string) interface {
	WriteOption
	UpdateOption
} {
	return reasonOption{func(w *write) { w.reason = reason }}
}

// IdempotencyKey repeats a call of unknown outcome. Without one, each call makes its own.
func IdempotencyKey(key string) WriteOption {
	return anyWrite(func(w *write) { w.idempotencyKey = key })
}

// DryRun returns the response, and stores nothing.
func DryRun() WriteOption { return anyWrite(func(w *write) { w.dryRun = true }) }

type ifMatchOption uint64

func (o ifMatchOption) set(w *write)              { revision := uint64(o); w.ifMatch = &revision }
func (o ifMatchOption) change(w *write)           { o.set(w) }
func (o ifMatchOption) put(w *write)              { o.set(w) }
func (o ifMatchOption) schema(w *write)           { o.set(w) }
func (o ifMatchOption) deleteDefinition(w *write) { o.set(w) }

// IfMatch writes only if the record has this revision; otherwise the error is [ErrPrecondition].
func IfMatch(revision uint64) interface {
	ChangeOption
	PutOption
	SchemaOption
	DeleteDefinitionOption
} {
	return ifMatchOption(revision)
}

type putOption func(*write)

func (f putOption) put(w *write) { f(w) }

// CreateOnly writes only if there is no such config; otherwise the error is [ErrPrecondition].
func CreateOnly() PutOption { return putOption(func(w *write) { w.createOnly = true }) }

type schemaOption func(*write)

func (f schemaOption) schema(w *write) { f(w) }

// Force stores a schema even if configs break it.
func Force() SchemaOption {
	return schemaOption(func(w *write) { w.params = append(w.params, param{"policy", "force"}) })
}

// FormatAssertion says whether an invalid `format` is a violation.
func FormatAssertion(isOn bool) SchemaOption {
	return schemaOption(func(w *write) { w.formatAssertion = &isOn })
}

type deleteDefinitionOption param

func (o deleteDefinitionOption) deleteDefinition(w *write) { w.params = append(w.params, param(o)) }

// Restrict deletes a definition only if it has no configs.
func Restrict() DeleteDefinitionOption { return deleteDefinitionOption{"mode", "restrict"} }

// Purge deletes a definition for good.
func Purge() DeleteDefinitionOption { return deleteDefinitionOption{"purge", "true"} }

// settings applies the options of one call.
func settings[S, O any](options []O, apply func(O, *S)) *S {
	made := new(S)
	for _, each := range options {
		apply(each, made)
	}
	return made
}
