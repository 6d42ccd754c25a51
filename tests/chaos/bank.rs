//! A bank: money is moved between accounts by transactions, and none is made or lost.
//!
//! Each generation of accounts begins with the same balances, made by the first client that finds none. Its sum is the same
//! at every revision from then on. The balance of an account is in its value, which is else unique as every value is.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
};

use super::{
    history::{Is, Kind, Operation},
    transactions::Draft,
    workload::{Guard, Worker},
};

/// The definition of the accounts.
pub(crate) const BANK: &str = "chaos.bank";
/// Accounts of a generation.
pub(crate) const ACCOUNTS: usize = 4;
/// What each has in the beginning.
const BALANCE: u64 = 100;
/// Transfers that are tried in a generation: the checkers' search grows with the operations of one key.
const TRANSFERS: u64 = 60;

/// What the clients share of it.
#[derive(Debug, Default)]
pub(super) struct Bank {
    tried: AtomicU64,
}

fn account(generation: u64, number: usize) -> String {
    format!("{BANK}/g{generation}-a{number}")
}

/// The value of an account.
pub(super) fn value(balance: u64, number: u64) -> String {
    format!("b{balance}.{number}")
}

/// The balance in the value of an account.
pub(super) fn balance(value: &str) -> Option<u64> {
    value.strip_prefix('b')?.split_once('.')?.0.parse().ok()
}

impl Worker {
    /// Reads all accounts, or makes them; then moves money between two of them, unless somebody else did meanwhile.
    pub(super) async fn transfer(&mut self) {
        let generation = self.shared.bank.tried.fetch_add(1, Ordering::Relaxed) / TRANSFERS;
        let keys: Vec<String> = (0..ACCOUNTS).map(|number| account(generation, number)).collect();
        let batch = self.shared.number();
        let create = |key: &String| self.account(key.clone(), Kind::Create, BALANCE, batch);
        let accounts = Draft {
            conditions: keys.iter().map(|key| (key.clone(), Is::Absent)).collect(),
            reads: keys.clone(),
            branches: [(batch, keys.iter().map(create).collect()), (self.shared.number(), Vec::new())],
        };
        let Some(chosen) = self.decide(accounts).await else { return };
        let read = chosen.found.filter(|_| !chosen.succeeded).unwrap_or_default();
        let known: Vec<(u64, u64)> = read
            .iter()
            .filter_map(|found| {
                found.as_ref().and_then(|(revision, value)| Some((*revision, balance(value)?)))
            })
            .collect();
        if known.len() < ACCOUNTS {
            return;
        }
        let from = self.rng.usize(..ACCOUNTS);
        let to = (from + self.rng.usize(1..ACCOUNTS)) % ACCOUNTS;
        let [(from_at, has), (to_at, gets)] = [known[from], known[to]];
        let amount = self.rng.u64(..=has);
        let batch = self.shared.number();
        let put = |place: usize, balance: u64| self.account(keys[place].clone(), Kind::Put, balance, batch);
        let moved = vec![put(from, has - amount), put(to, gets + amount)];
        let unchanged = [(from, from_at), (to, to_at)];
        let condition = |(place, at): (usize, u64)| (keys[place].clone(), Is::Revision(at));
        let draft = Draft {
            conditions: unchanged.into_iter().map(condition).collect(),
            reads: keys.clone(),
            branches: [(batch, moved), (self.shared.number(), Vec::new())],
        };
        self.decide(draft).await;
    }

    /// A write of an account.
    fn account(&self, key: String, op: Kind, balance: u64, batch: u64) -> Operation {
        let mut operation = self.draft(key, op, Guard::Nothing, batch);
        operation.value = Some(value(balance, self.shared.number()));
        operation
    }
}

/// Whether the sum of each generation is the same at all revisions at which its accounts are there. `changes`: of each
/// account, its value from each revision on.
pub(crate) fn violations(changes: &BTreeMap<String, BTreeMap<u64, Option<String>>>) -> Vec<String> {
    let mut generations: BTreeMap<&str, BTreeMap<&str, &BTreeMap<u64, Option<String>>>> = BTreeMap::new();
    for (key, all) in changes {
        let Some((generation, account)) = key.strip_prefix(BANK).and_then(|rest| rest.rsplit_once('-'))
        else {
            continue;
        };
        generations.entry(generation).or_default().insert(account, all);
    }
    let mut found = Vec::new();
    for (generation, accounts) in generations {
        let revisions: BTreeSet<u64> = accounts.values().flat_map(|all| all.keys().copied()).collect();
        for revision in revisions {
            let at = |all: &&BTreeMap<u64, Option<String>>| {
                let (_, value) = all.range(..=revision).next_back()?;
                balance(value.as_deref()?)
            };
            let balances: Vec<Option<u64>> = accounts.values().map(at).collect();
            let sum: u64 = balances.iter().flatten().sum();
            if accounts.len() != ACCOUNTS || balances.contains(&None) || sum != BALANCE * ACCOUNTS as u64 {
                found.push(format!("the bank{generation} has {balances:?} at revision {revision}"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_that_is_made_lost_or_moved_in_two_steps_is_found() {
        let begin = |accounts: usize| -> BTreeMap<String, BTreeMap<u64, Option<String>>> {
            let all = (0..accounts).map(|number| (account(3, number), Some(value(BALANCE, number as u64))));
            all.map(|(key, value)| (key, BTreeMap::from([(5, value)]))).collect()
        };
        let with = |changes: &[(usize, u64, Option<u64>)]| {
            let mut all = begin(ACCOUNTS);
            for (number, revision, balance) in changes {
                let value = balance.map(|balance| value(balance, *revision));
                all.get_mut(&account(3, *number)).unwrap().insert(*revision, value);
            }
            violations(&all).len()
        };
        assert_eq!(with(&[]), 0);
        assert_eq!(with(&[(0, 7, Some(70)), (1, 7, Some(130)), (2, 9, Some(0)), (0, 9, Some(170))]), 0);
        assert_eq!(with(&[(0, 7, Some(70)), (1, 8, Some(130))]), 1, "between the two");
        assert_eq!(with(&[(0, 7, Some(70))]), 1);
        assert_eq!(with(&[(0, 7, None)]), 1);
        assert_eq!(violations(&begin(ACCOUNTS - 1)).len(), 1, "an account is missing");
    }
}
