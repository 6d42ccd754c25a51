//! A file system for each node of a chaos run, so that a disk can be full for one node and not for another.
//!
//! ext4 images on loop devices, in the mount namespace of the run's own that `scripts/chaos.sh` makes when it has the
//! right to (root) and says so in `CONCORD_CHAOS_MOUNTS`: the mounts end with the run. A volume is filled by reserving
//! blocks for a file, which writes nothing.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate, openat, statvfs};

use crate::harness::Node;

/// Bytes of a volume: more than a long run writes. The image is sparse.
const VOLUME_BYTES: u64 = 4 << 30;

/// The file system of one node.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) id: u64,
    point: PathBuf,
}

/// Whether the run has mounts of its own.
pub(crate) fn possible() -> bool {
    std::env::var_os("CONCORD_CHAOS_MOUNTS").is_some()
}

impl Volume {
    /// Makes a volume below a directory and lets a node that does not run yet keep its data there.
    pub(crate) fn for_node(root: &Path, node: &mut Node) -> Self {
        let (image, point) =
            (root.join(format!("volume{}.img", node.id)), root.join(format!("volume{}", node.id)));
        std::fs::File::create(&image)
            .and_then(|file| file.set_len(VOLUME_BYTES))
            .expect("there is space for a volume");
        std::fs::create_dir(&point).expect("a fresh directory");
        // Nothing is initialised later in the background, and all blocks are for everybody.
        let lazy = "lazy_itable_init=0,lazy_journal_init=0";
        run("mkfs.ext4", &["-q", "-F", "-m", "0", "-N", "65536", "-E", lazy, &image.to_string_lossy()]);
        run("mount", &["-o", "loop", &image.to_string_lossy(), &point.to_string_lossy()]);
        node.directory = point.join("data");
        std::fs::create_dir(&node.directory).expect("the volume is fresh");
        Self { id: node.id, point }
    }

    /// Fills it until about so many bytes are free.
    pub(crate) fn fill(&self, left: u64) {
        let file = openat(CWD, self.filler(), OFlags::CREATE | OFlags::WRONLY, Mode::RUSR | Mode::WUSR)
            .expect("the volume has an inode");
        let is = statvfs(&self.point).expect("the volume is mounted");
        let room = (is.f_bavail * is.f_frsize).saturating_sub(left);
        // The nodes write meanwhile, so it may not fit at the first try.
        let fits = |share: &u64| fallocate(&file, FallocateFlags::empty(), 0, room / 100 * share).is_ok();
        assert!([100, 99, 95, 90].iter().any(fits), "the volume can be filled");
    }

    /// Gives the room back.
    pub(crate) fn empty(&self) {
        std::fs::remove_file(self.filler()).expect("it was filled");
    }

    fn filler(&self) -> PathBuf {
        self.point.join("filler")
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Lazily: the namespace of the run ends with it anyway.
        drop(Command::new("umount").arg("-l").arg(&self.point).status());
    }
}

/// Runs a program of the system.
fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}
