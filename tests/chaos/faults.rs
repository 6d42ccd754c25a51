//! The kinds of faults: what each needs, what it changes, and which nodes it holds while it lasts.
//!
//! **Invariant:** two faults that change the same thing of the machine never overlap, because the end of one would be
//! the end of the other.

use std::collections::{BTreeMap, BTreeSet};

use super::tools::{Lasting, Tools};

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    KillLeader,
    KillAny,
    KillAll,
    StopPolitely,
    PauseLeader,
    PauseAny,
    RestartWithinLease,
    WipeSled,
    RotSled,
    RotSnapshot,
    TornHistory,
    Isolate,
    IsolateLeader,
    OneWay,
    Bridge,
    PacketLoss,
    SlowDisk,
    HungDisk,
    SyncError,
    FullDisk,
    FullFollowers,
    WrongClock,
    ClockJump,
    SwitchVersion,
    RotateDataKey,
    EarlierDisk,
}

/// What a kind changes, or needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Means {
    /// Processes and files only.
    Processes,
    /// Routing rules, in a network of the run's own.
    Routes,
    /// Packet filters, in a network of the run's own.
    Filters,
    /// One strace for each process.
    Strace,
    /// A library that is loaded before the others.
    Clock,
    /// A volume for each node.
    Volumes,
    /// A second binary.
    Versions,
    /// Encrypted data directories.
    DataKeys,
}

/// All kinds.
const ALL: [Fault; 26] = [
    Fault::KillLeader,
    Fault::KillAny,
    Fault::KillAll,
    Fault::StopPolitely,
    Fault::PauseLeader,
    Fault::PauseAny,
    Fault::RestartWithinLease,
    Fault::WipeSled,
    Fault::RotSled,
    Fault::RotSnapshot,
    Fault::TornHistory,
    Fault::Isolate,
    Fault::IsolateLeader,
    Fault::OneWay,
    Fault::Bridge,
    Fault::PacketLoss,
    Fault::SlowDisk,
    Fault::HungDisk,
    Fault::SyncError,
    Fault::FullDisk,
    Fault::FullFollowers,
    Fault::WrongClock,
    Fault::ClockJump,
    Fault::SwitchVersion,
    Fault::RotateDataKey,
    Fault::EarlierDisk,
];

/// The kinds that may last while another fault is made.
const BACKGROUND: [Fault; 8] = [
    Fault::SlowDisk,
    Fault::HungDisk,
    Fault::FullFollowers,
    Fault::WrongClock,
    Fault::ClockJump,
    Fault::PacketLoss,
    Fault::OneWay,
    Fault::Bridge,
];

impl Fault {
    /// By what it is made.
    pub(crate) fn means(self) -> Means {
        match self {
            Self::Isolate | Self::IsolateLeader | Self::OneWay | Self::Bridge => Means::Routes,
            Self::PacketLoss => Means::Filters,
            Self::SlowDisk | Self::HungDisk | Self::SyncError => Means::Strace,
            Self::WrongClock | Self::ClockJump => Means::Clock,
            Self::FullFollowers => Means::Volumes,
            Self::SwitchVersion => Means::Versions,
            Self::RotateDataKey => Means::DataKeys,
            Self::KillLeader
            | Self::KillAny
            | Self::KillAll
            | Self::StopPolitely
            | Self::PauseLeader
            | Self::PauseAny
            | Self::RestartWithinLease
            | Self::WipeSled
            | Self::RotSled
            | Self::RotSnapshot
            | Self::TornHistory
            | Self::FullDisk
            | Self::EarlierDisk => Means::Processes,
        }
    }

    /// Whether it begins, lasts and is ended, so that another fault may be made meanwhile.
    pub(crate) fn lasts(self) -> bool {
        BACKGROUND.contains(&self) || matches!(self, Self::Isolate | Self::IsolateLeader)
    }

    /// The kinds that may last while this one is made.
    pub(crate) fn background(self, possible: &[Self]) -> Vec<Self> {
        let fits = |kind: &Self| possible.contains(kind) && !self.excludes(*kind);
        BACKGROUND.into_iter().filter(fits).collect()
    }

    fn excludes(self, other: Self) -> bool {
        if self == Self::EarlierDisk {
            return true; // the others must be able to say what the member has forgotten
        }
        let processes = self.means() == Means::Processes && other.means() == Means::Processes;
        // A full volume and a setting that says that it is full are the same fault.
        let full = [Self::FullDisk, Self::FullFollowers];
        (self.means() == other.means() && !processes) || (full.contains(&self) && full.contains(&other))
    }

    /// The kinds that a machine can make, and the others with the reason. `only` names the kinds that are asked for.
    pub(crate) fn possible(tools: &Tools, only: Option<&str>) -> (Vec<Self>, Vec<String>) {
        let missing = |kind: Self| match kind.means() {
            Means::Processes => None,
            Means::Routes => (!tools.network).then_some("no network of its own (scripts/chaos.sh, unshare)"),
            Means::Filters => (!tools.iptables).then_some("no network of its own with iptables"),
            Means::Strace => (!tools.strace).then_some("no strace, or no right to use it"),
            Means::Clock => tools.faketime.is_none().then_some("no libfaketime"),
            Means::Volumes => (!tools.volumes).then_some("no volumes of its own (scripts/chaos.sh as root)"),
            Means::Versions => tools.old.is_none().then_some("no CONCORD_OLD_BIN"),
            Means::DataKeys => {
                (!tools.encrypted).then_some("the data directories are not encrypted (ENCRYPTED=1)")
            }
        };
        let (mut kinds, mut skipped) = (Vec::new(), Vec::new());
        let asked =
            |kind: &Self| only.is_none_or(|only| only.split(',').any(|name| name == format!("{kind:?}")));
        for kind in ALL.into_iter().filter(asked) {
            match missing(kind) {
                None => kinds.push(kind),
                Some(why) => skipped.push(format!("{kind:?}: {why}")),
            }
        }
        (kinds, skipped)
    }
}

/// A fault that lasts, until [`Lasting::end`].
#[derive(Debug)]
pub(crate) struct InForce {
    pub(crate) fault: Fault,
    /// The node whose process it changes, if it changes one.
    pub(crate) process: Option<u64>,
    /// The nodes that need not become ready, or stay so, while it lasts. Recovery from another fault waits for none of
    /// them, because only the end of this one helps them.
    pub(crate) holds: BTreeSet<u64>,
    pub(crate) lasting: Lasting,
}

impl InForce {
    /// Whether nodes that this fault holds may end by themselves.
    pub(crate) fn may_end(&self) -> bool {
        matches!(self.fault, Fault::HungDisk | Fault::FullFollowers)
    }

    /// Whether a node may end by itself because of this fault, and need not start or stop as others do.
    pub(crate) fn may_end_node(&self, id: u64) -> bool {
        self.may_end() && self.holds.contains(&id)
    }
}

/// The nodes that no fault holds.
pub(crate) fn free(in_force: &[InForce]) -> Vec<u64> {
    (1..=3).filter(|id| !in_force.iter().any(|fault| fault.holds.contains(id))).collect()
}

/// Faults that were made, by kind, and when leaders died (nanoseconds of the history).
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) made: BTreeMap<String, u64>,
    pub(crate) leader_deaths: Vec<u64>,
    /// Faults that lasted while another was made.
    pub(crate) overlapping: u64,
    /// Nodes that ended by themselves because of a fault that may end them.
    pub(crate) ended: u64,
    /// How often writes went on although both followers had less room than their reserve.
    pub(crate) done_without_room: u64,
    /// How often every node used a new data key, and the others were taken away.
    pub(crate) data_keys_removed: u64,
    /// Kinds that could not be made here.
    pub(crate) skipped: Vec<String>,
    /// What a fault itself showed to be wrong.
    pub(crate) violations: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_waits_for_no_node_that_another_fault_holds() {
        let fault = |fault, holds: &[u64]| InForce {
            fault,
            process: None,
            holds: holds.iter().copied().collect(),
            lasting: Lasting::Cut,
        };
        assert_eq!(free(&[]), [1, 2, 3]);
        assert_eq!(free(&[fault(Fault::OneWay, &[1, 3])]), [2]);
        assert_eq!(free(&[fault(Fault::OneWay, &[1, 3]), fault(Fault::HungDisk, &[2])]), [0; 0]);
        assert_eq!(free(&[fault(Fault::ClockJump, &[])]), [1, 2, 3]);
    }

    #[test]
    fn faults_by_the_same_means_never_overlap() {
        for (one, other, excluded) in [
            (Fault::SyncError, Fault::HungDisk, true),
            (Fault::Isolate, Fault::OneWay, true),
            (Fault::FullDisk, Fault::FullFollowers, true),
            (Fault::WrongClock, Fault::ClockJump, true),
            (Fault::KillAll, Fault::OneWay, false),
            (Fault::OneWay, Fault::PacketLoss, false),
            (Fault::EarlierDisk, Fault::SlowDisk, true),
        ] {
            assert_eq!(one.background(&[other]).is_empty(), excluded, "{one:?} {other:?}");
        }
    }
}
