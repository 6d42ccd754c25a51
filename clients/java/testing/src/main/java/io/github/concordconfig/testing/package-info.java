/** For the tests of programs that use Concord: a fake node in memory, and a real cluster. */
package io.github.concordconfig.testing;
