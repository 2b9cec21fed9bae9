//go:build suite

// Package suite pins the Gateway API's conformance tests and their dependencies. The suite
// `gateway-api` of `cargo xtask test --suites` compiles them; no program imports this package.
package suite

import _ "sigs.k8s.io/gateway-api/conformance"
