//! What a seed draws for the clients: which operations they do, on how much, and who looks on.
//!
//! Most runs have few kinds of operations (swarm testing): two that must meet for a bug to show meet more often.

use concord_model::limits::REMEMBERED_MAX;

use crate::chaos::workload::{Action, DEFINITIONS, Mix, SLOTS};

/// What the clients of a run do.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub(crate) mix: Mix,
    /// Watches of everything.
    pub(crate) followers: usize,
    /// Whether somebody creates and ends access keys, in whose names the clients work.
    pub(crate) has_keys: bool,
    /// Whether somebody freezes the definitions at times.
    pub(crate) has_freezes: bool,
    /// Workers at change requests, with others who change keys and look on.
    pub(crate) proposers: usize,
    /// People who release change requests in stages, with readers and others who look on.
    pub(crate) rollers: usize,
    /// Nodes that join during the run. Others leave then.
    pub(crate) spares: usize,
    /// Outcomes of requests with an idempotency key that are remembered.
    pub(crate) remembered_max: u64,
}

impl Work {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0b_0e57_c0de);
        let mut mix = Mix::default();
        // These cost much in a simulation, too.
        let is_cheap = |action: Action| action != Action::Expensive;
        if rng.u8(..8) == 0 {
            mix.actions.retain(|(action, _)| is_cheap(*action) || rng.u8(..4) == 0);
        } else {
            let share = [1, 2, 4][rng.usize(..3)];
            mix.actions.retain(|(action, _)| {
                let always = matches!(action, Action::Get | Action::Upsert);
                always || (rng.u8(..8) < share && (is_cheap(*action) || rng.u8(..4) == 0))
            });
            for (_, weight) in &mut mix.actions {
                *weight = [1, 3, 10][rng.usize(..3)];
            }
        }
        mix.definitions = rng.usize(2..=DEFINITIONS.len());
        mix.slots = [1, 2, 4, SLOTS][rng.usize(..4)];
        let pause = rng.u64(2..30);
        mix.pause_ms = (0, pause);
        let has_keys = rng.u8(..3) == 0;
        mix.with_key = if has_keys { [10, 50, 90][rng.usize(..3)] } else { 0 };
        let spares = [0, 0, 0, 0, 1, 2][rng.usize(..6)];
        // More than the preparation needs.
        let remembered_max = if rng.u8(..10) == 0 { 24 } else { REMEMBERED_MAX };
        let followers = rng.usize(1..=2);
        let has_freezes = rng.bool();
        let proposers = [0, 1, 2, 4][rng.usize(..4)];
        let rollers = [0, 0, 1, 2][rng.usize(..4)];
        Self { mix, followers, has_keys, has_freezes, proposers, rollers, spares, remembered_max }
    }

    pub(crate) fn does(&self, action: Action) -> bool {
        self.mix.actions.iter().any(|(one, _)| *one == action)
    }
}
