// Package concordtest has nodes for the tests of programs that use Concord.
//
// [NewServer] is one node in memory, for unit tests with the real client. [StartDemo] is a real cluster of the `concord`
// program, for tests that need everything.
package concordtest
