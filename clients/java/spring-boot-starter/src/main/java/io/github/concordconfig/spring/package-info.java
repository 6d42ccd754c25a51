/** Concord for Spring Boot: a client, a cache, and configuration properties that follow a config. */
package io.github.concordconfig.spring;
