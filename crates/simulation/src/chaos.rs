//! The clients and the checkers of the chaos tests: the same files, with the `crate::harness` of a simulation.

#[path = "../../../tests/chaos/bank.rs"]
mod bank;
#[path = "../../../tests/chaos/changes/mod.rs"]
pub(crate) mod changes;
#[path = "../../../tests/chaos/check.rs"]
pub(crate) mod check;
#[path = "../../../tests/chaos/expensive.rs"]
#[expect(dead_code, reason = "the chaos tests use all of it")]
pub(crate) mod expensive;
#[path = "../../../tests/chaos/freezes.rs"]
#[expect(dead_code, reason = "the chaos tests use all of it")]
pub(crate) mod freezes;
#[path = "../../../tests/chaos/history.rs"]
#[expect(dead_code, reason = "the chaos tests use all of it")]
pub(crate) mod history;
#[path = "../../../tests/chaos/requests.rs"]
mod requests;
#[path = "../../../tests/chaos/rights.rs"]
pub(crate) mod rights;
#[path = "../../../tests/chaos/service_history.rs"]
pub(crate) mod service_history;
#[path = "../../../tests/chaos/stored_keys.rs"]
#[expect(dead_code, reason = "the chaos tests use all of it")]
pub(crate) mod stored_keys;
#[path = "../../../tests/chaos/transactions.rs"]
mod transactions;
#[path = "../../../tests/chaos/workload.rs"]
pub(crate) mod workload;
