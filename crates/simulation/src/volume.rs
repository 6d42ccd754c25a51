//! The volumes of the nodes: what of a file a power loss leaves, and errors of a disk.
//!
//! All code writes its files through the C library, and this program has functions of the same names (see `machine`). So no
//! place in the code of a node needs to know of a simulation. A file is a node's if its path begins with the node's name:
//! the nodes get relative paths. The real files are in memory; beside them this module knows what is not durable yet:
//! the bytes of each file since its last fsync, and the names of each directory since the directory's last one.
//!
//! At a power loss each file keeps some first part of what was not synced, often none, up to a whole sector or up to any
//! byte; the rest is gone, or zeros where a file has grown: after whole sectors. The last changes of names are gone, in their order.
//!
//! sled writes on threads of its own and is left alone: what it writes is always durable. It is never the only copy.
//!
//! **Invariant:** what was synced is never lost here.

#![expect(unsafe_code, reason = "functions with the names of the C library")]

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ffi::{CStr, CString, OsStr},
    io,
    mem::MaybeUninit,
    ops::Range,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use libc::{EIO, ENOSPC, O_CREAT, O_TRUNC, c_char, c_int, c_void, iovec, mode_t, off_t, size_t, ssize_t};

use crate::machine::{self, HOSTS_MAX};

/// A power loss keeps whole sectors, in most cases.
const SECTOR: u64 = 512;
/// Where files stay that were removed or replaced, until that is durable.
const KEPT: &str = "kept";

thread_local! {
    /// What this thread does with files is its own business, not that of a node.
    static IS_UNWATCHED: Cell<bool> = const { Cell::new(true) };
    static VOLUMES: RefCell<Volumes> = RefCell::default();
}

/// What goes wrong with a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// After so many operations, all fail.
    Broken { after: u32 },
    /// After so many operations, one fails.
    Once { after: u32 },
    /// There is no space.
    Full,
}

/// How a node ends at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Its process ends, and the machine goes on: everything that was written may still reach the disk.
    Process,
    /// Its machine loses power.
    Power,
}

#[derive(Debug, Default)]
struct Volumes {
    rng: fastrand::Rng,
    /// The files and directories of the nodes, by inode.
    known: BTreeMap<u64, Known>,
    nodes: [Volume; HOSTS_MAX],
    /// A node has ended, and its values are being dropped: nothing reaches its disk any more.
    is_off: bool,
    /// Except what its log had queued: the file had got that before.
    takes_queued: bool,
    /// How many files with changes there were.
    numbers: u64,
    kept: u64,
}

#[derive(Debug, Clone)]
struct Known {
    node: usize,
    is_log: bool,
    /// Of a directory.
    directory: Option<PathBuf>,
}

#[derive(Debug, Default)]
struct Volume {
    unsynced: BTreeMap<u64, Unsynced>,
    names: Vec<NameChange>,
    trouble: Option<Trouble>,
    /// Whether something has failed since the trouble began.
    has_failed: bool,
}

/// The writes of a file that are not durable.
#[derive(Debug)]
struct Unsynced {
    /// Inodes are other ones in each run.
    number: u64,
    file: OwnedFd,
    writes: Vec<Write>,
}

/// What a write has replaced.
#[derive(Debug)]
struct Write {
    at: u64,
    bytes: u64,
    /// The file was cut, instead of written to.
    is_cut: bool,
    old: Vec<u8>,
    old_length: u64,
}

/// A change of a directory that is not durable.
#[derive(Debug)]
enum NameChange {
    Made(PathBuf),
    /// The last one is where the file is kept that had this name.
    Renamed(PathBuf, PathBuf, Option<PathBuf>),
    Removed(PathBuf, PathBuf),
}

impl NameChange {
    /// Whether an fsync of this directory makes it durable.
    fn is_in(&self, directory: &Path) -> bool {
        let (Self::Made(path) | Self::Renamed(_, path, _) | Self::Removed(path, _)) = self;
        path.parent() == Some(directory)
    }

    fn kept(&self) -> Option<&Path> {
        match self {
            Self::Made(_) => None,
            Self::Renamed(_, _, kept) => kept.as_deref(),
            Self::Removed(_, kept) => Some(kept),
        }
    }

    fn undo(&self) {
        // A directory that was removed as a whole may be gone, with everything below it.
        let _ = match self {
            Self::Made(path) => std::fs::remove_file(path),
            Self::Renamed(from, to, kept) => std::fs::rename(to, from).and_then(|()| match kept {
                Some(kept) => std::fs::rename(kept, to),
                None => Ok(()),
            }),
            Self::Removed(path, kept) => std::fs::rename(kept, path),
        };
    }
}

/// Begins to look after the files of the nodes.
pub(crate) fn begin(seed: u64) {
    std::fs::create_dir_all(KEPT).expect("the directory of this run");
    VOLUMES.with_borrow_mut(|volumes| volumes.rng.seed(seed ^ 0xf11e));
    IS_UNWATCHED.set(false);
}

/// Runs what is not done by a node.
pub(crate) fn unwatched<T>(what: impl FnOnce() -> T) -> T {
    let was = IS_UNWATCHED.replace(true);
    let result = what();
    IS_UNWATCHED.set(was);
    result
}

/// Sets or ends the trouble of a node's disk.
pub(crate) fn set_trouble(node: usize, trouble: Option<Trouble>) {
    VOLUMES.with_borrow_mut(|volumes| volumes.nodes[node].trouble = trouble);
}

/// Whether the disk of a node has failed since the last call.
pub(crate) fn take_failed(node: usize) -> bool {
    VOLUMES.with_borrow_mut(|volumes| std::mem::take(&mut volumes.nodes[node].has_failed))
}

/// Runs `crash`, which ends a node, while nothing reaches its disk; then the disk loses what it loses.
pub(crate) fn crash<T>(node: usize, loss: Loss, crash: impl FnOnce() -> T) -> T {
    VOLUMES.with_borrow_mut(|volumes| {
        volumes.is_off = true;
        volumes.takes_queued = volumes.rng.bool();
    });
    let result = crash();
    VOLUMES.with_borrow_mut(|volumes| {
        volumes.is_off = false;
        if loss == Loss::Power {
            unwatched(|| volumes.lose(node));
        }
    });
    result
}

/// All files of a node are other ones now, and durable.
pub(crate) fn forget(node: usize) {
    VOLUMES.with_borrow_mut(|volumes| {
        unwatched(|| {
            let volume = &mut volumes.nodes[node];
            volume.unsynced.clear();
            remove_kept(volume.names.drain(..));
        });
    });
}

fn remove_kept(changes: impl Iterator<Item = NameChange>) {
    for change in changes {
        if let Some(kept) = change.kept() {
            let _ = std::fs::remove_file(kept);
        }
    }
}

impl Volumes {
    /// What a power loss takes.
    fn lose(&mut self, node: usize) {
        let (rng, volume) = (&mut self.rng, &mut self.nodes[node]);
        let luck = rng.u8(..5);
        let mut keep = |all: u64| match luck {
            0 => 0,
            1 => all,
            _ => rng.u64(..=all),
        };
        let count = keep(volume.names.len() as u64) as usize;
        for change in volume.names.drain(count..).rev() {
            change.undo();
        }
        remove_kept(volume.names.drain(..));
        let mut files: Vec<_> = std::mem::take(&mut volume.unsynced).into_values().collect();
        files.sort_unstable_by_key(|unsynced| unsynced.number);
        for unsynced in files {
            let all = unsynced.writes.iter().map(|write| write.bytes).sum();
            let kept = keep(all);
            unsynced.lose(kept, luck == 3, luck <= 3);
        }
    }

    /// What a node's operation does: `Ok(true)` if it is done, `Ok(false)` if the node is gone, or how it fails.
    fn enter(&mut self, known: &Known, is_sized: bool) -> Result<bool, c_int> {
        if self.is_off {
            return Ok(known.is_log && is_sized && self.takes_queued);
        }
        let volume = &mut self.nodes[known.node];
        let error = match &mut volume.trouble {
            None => return Ok(true),
            Some(Trouble::Full) if is_sized => ENOSPC,
            Some(Trouble::Full) => return Ok(true),
            Some(Trouble::Broken { after } | Trouble::Once { after }) if *after > 0 => {
                *after -= 1;
                return Ok(true);
            }
            Some(Trouble::Broken { .. }) => EIO,
            Some(Trouble::Once { .. }) => {
                volume.trouble = None;
                EIO
            }
        };
        volume.has_failed = true;
        Err(error)
    }

    /// Notes that the bytes from `at` to the end of a write are about to be replaced.
    fn note_write(
        &mut self,
        known: &Known,
        fd: c_int,
        stat: &libc::stat,
        Range { start: at, end }: Range<u64>,
    ) {
        let length = stat.st_size.cast_unsigned();
        let is_cut = false;
        let number = self.numbers;
        self.numbers += 1;
        let new = || Unsynced { number, file: reopened(fd), writes: Vec::new() };
        let unsynced = self.nodes[known.node].unsynced.entry(stat.st_ino).or_insert_with(new);
        let (bytes, old) = (end - at, read_at(&unsynced.file, at, length.min(end).saturating_sub(at)));
        unsynced.writes.push(Write { at, bytes, is_cut, old, old_length: length });
    }

    /// Notes that a file is about to get another length.
    fn note_length(&mut self, known: &Known, fd: c_int, stat: &libc::stat, length: u64) {
        let now = stat.st_size.cast_unsigned();
        self.note_write(known, fd, stat, now.min(length)..now.max(length));
        let unsynced = self.nodes[known.node].unsynced.get_mut(&stat.st_ino);
        if let Some(last) = unsynced.and_then(|unsynced| unsynced.writes.last_mut()) {
            last.is_cut = length < now;
        }
    }

    /// A name outside of all nodes, for a file that may be needed again.
    fn keep(&mut self, path: &Path) -> Option<PathBuf> {
        self.kept += 1;
        let kept = Path::new(KEPT).join(self.kept.to_string());
        unwatched(|| std::fs::hard_link(path, &kept)).ok().map(|()| kept)
    }
}

impl Unsynced {
    /// Keeps so many first bytes of all writes.
    fn lose(self, kept: u64, is_zeros: bool, is_whole: bool) {
        let length = length_of(&self.file);
        let mut before = self.writes.iter().map(|write| write.bytes).sum::<u64>();
        for write in self.writes.iter().rev() {
            before -= write.bytes;
            let mut stays = kept.saturating_sub(before).min(write.bytes);
            if is_whole && stays < write.bytes {
                stays = ((write.at + stays) / SECTOR * SECTOR).saturating_sub(write.at).min(stays);
            }
            if stays == write.bytes {
                continue;
            }
            if write.is_cut {
                stays = 0;
            }
            let end = if stays == 0 { 0 } else { write.at + stays };
            set_length(&self.file, write.old_length.max(end));
            let skipped = usize::try_from(stays).unwrap_or(usize::MAX).min(write.old.len());
            write_at(&self.file, write.at + stays, &write.old[skipped..]);
        }
        if is_zeros && length > length_of(&self.file) {
            set_length(&self.file, length);
        }
    }
}

/// Where the next bytes go that are written to a file.
fn next(fd: c_int, stat: &libc::stat, bytes: usize) -> Range<u64> {
    // SAFETY: two calls with a descriptor of the caller.
    let at = unsafe {
        let is_append = libc::fcntl(fd, libc::F_GETFL) & libc::O_APPEND != 0;
        if is_append { stat.st_size } else { libc::lseek(fd, 0, libc::SEEK_CUR) }
    };
    let at = at.cast_unsigned();
    at..at + bytes as u64
}

/// The file of a descriptor, to read and to write.
fn reopened(fd: c_int) -> OwnedFd {
    let path = CString::new(format!("/proc/self/fd/{fd}")).expect("no zero byte");
    // SAFETY: a system call with a path that ends with zero; the new descriptor is nobody else's.
    unsafe {
        let own =
            libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        OwnedFd::from_raw_fd(own as c_int)
    }
}

fn read_at(file: &OwnedFd, at: u64, bytes: u64) -> Vec<u8> {
    let mut old = vec![0; usize::try_from(bytes).unwrap_or(0)];
    // SAFETY: the buffer has this length.
    let read = unsafe { libc::pread(file.as_raw_fd(), old.as_mut_ptr().cast(), old.len(), at.cast_signed()) };
    old.truncate(read.max(0).cast_unsigned());
    old
}

fn write_at(file: &OwnedFd, at: u64, bytes: &[u8]) {
    if !bytes.is_empty() {
        // SAFETY: the buffer has this length.
        unsafe { libc::syscall(libc::SYS_pwrite64, file.as_raw_fd(), bytes.as_ptr(), bytes.len(), at) };
    }
}

fn set_length(file: &OwnedFd, length: u64) {
    // SAFETY: a system call with a descriptor of this module.
    unsafe { libc::syscall(libc::SYS_ftruncate, file.as_raw_fd(), length) };
}

fn length_of(file: &OwnedFd) -> u64 {
    stat(file.as_raw_fd()).map_or(0, |stat| stat.st_size.cast_unsigned())
}

fn stat(fd: c_int) -> Option<libc::stat> {
    let mut stat = MaybeUninit::uninit();
    // SAFETY: the call fills the value if it returns 0.
    unsafe { (libc::fstat(fd, stat.as_mut_ptr()) == 0).then(|| stat.assume_init()) }
}

/// The node of a path, if its files are looked after.
fn known(path: &Path) -> Option<Known> {
    let mut parts = path.iter();
    let node = parts.next()?.to_str()?.strip_prefix('n')?.parse().ok().filter(|node| *node < HOSTS_MAX)?;
    let mut is_log = false;
    for part in parts {
        if part == "sled" {
            return None;
        }
        is_log |= part == "log";
    }
    Some(Known { node, is_log, directory: None })
}

fn is_watched() -> bool {
    machine::is_simulated() && !IS_UNWATCHED.get()
}

/// What an operation on a descriptor of a node does.
enum On {
    /// It is not a node's, or nothing is wrong.
    Go,
    /// It does nothing, and seems to work.
    Gone,
    Fails(c_int),
}

/// Looks at an operation on an open file, before it is done.
fn on_file(fd: c_int, is_sized: bool, note: impl FnOnce(&mut Volumes, &Known, &libc::stat)) -> On {
    if !is_watched() {
        return On::Go;
    }
    let Some(stat) = stat(fd) else { return On::Go };
    VOLUMES.with_borrow_mut(|volumes| {
        let Some(known) = volumes.known.get(&stat.st_ino).cloned() else { return On::Go };
        match volumes.enter(&known, is_sized) {
            Ok(true) => {
                note(volumes, &known, &stat);
                On::Go
            }
            Ok(false) => On::Gone,
            Err(error) => On::Fails(error),
        }
    })
}

fn fails(error: c_int) -> c_int {
    // SAFETY: the place of this thread's error.
    unsafe { *libc::__errno_location() = error };
    -1
}

unsafe fn path_of<'a>(path: *const c_char) -> &'a Path {
    // SAFETY: the caller has given a path that ends with zero.
    Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, from: *const c_void, count: size_t) -> ssize_t {
    let on = on_file(fd, true, |volumes, known, stat| {
        volumes.note_write(known, fd, stat, next(fd, stat, count));
    });
    match on {
        // SAFETY: the arguments are those of the caller, who answers for them. So everywhere below.
        On::Go => (unsafe { libc::syscall(libc::SYS_write, fd, from, count) }) as ssize_t,
        On::Gone => count.cast_signed(),
        On::Fails(error) => fails(error) as ssize_t,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t {
    let all = || {
        // SAFETY: as above.
        let parts = unsafe { std::slice::from_raw_parts(from, usize::try_from(count).unwrap_or(0)) };
        parts.iter().map(|part| part.iov_len).sum::<usize>()
    };
    let on = on_file(fd, true, |volumes, known, stat| {
        volumes.note_write(known, fd, stat, next(fd, stat, all()));
    });
    match on {
        // SAFETY: as above.
        On::Go => (unsafe { libc::syscall(libc::SYS_writev, fd, from, count) }) as ssize_t,
        On::Gone => all().cast_signed(),
        On::Fails(error) => fails(error) as ssize_t,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(fd: c_int, from: *const c_void, count: size_t, at: off_t) -> ssize_t {
    let on = on_file(fd, true, |volumes, known, stat| {
        let at = at.cast_unsigned();
        volumes.note_write(known, fd, stat, at..at + count as u64);
    });
    match on {
        // SAFETY: as above.
        On::Go => (unsafe { libc::syscall(libc::SYS_pwrite64, fd, from, count, at) }) as ssize_t,
        On::Gone => count.cast_signed(),
        On::Fails(error) => fails(error) as ssize_t,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate64(fd: c_int, length: off_t) -> c_int {
    let on = on_file(fd, false, |volumes, known, stat| {
        volumes.note_length(known, fd, stat, length.cast_unsigned());
    });
    match on {
        // SAFETY: as above.
        On::Go => unsafe { libc::syscall(libc::SYS_ftruncate, fd, length) as c_int },
        On::Gone => 0,
        On::Fails(error) => fails(error),
    }
}

fn sync(fd: c_int) -> Option<c_int> {
    let on = on_file(fd, false, |volumes, known, stat| {
        let volume = &mut volumes.nodes[known.node];
        match &known.directory {
            None => drop(volume.unsynced.remove(&stat.st_ino)),
            Some(directory) => {
                let is_durable = |change: &mut NameChange| change.is_in(directory);
                unwatched(|| remove_kept(volume.names.extract_if(.., is_durable)));
            }
        }
    });
    match on {
        // The real files are in memory.
        On::Go => is_watched().then_some(0),
        On::Gone => Some(0),
        On::Fails(error) => Some(fails(error)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    // SAFETY: as above.
    sync(fd).unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_fsync, fd) as c_int })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    // SAFETY: as above.
    sync(fd).unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_fdatasync, fd) as c_int })
}

/// Has three parameters also where the C library has two and more: those of a call are passed alike on the architectures
/// that Concord is built for.
#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as above.
    let open = || unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) as c_int };
    if !is_watched() {
        return open();
    }
    // SAFETY: as above.
    let at = unsafe { path_of(path) };
    let known = known(at);
    VOLUMES.with_borrow_mut(|volumes| {
        let is_new = flags & O_CREAT != 0 && unwatched(|| std::fs::symlink_metadata(at)).is_err();
        let is_cut = flags & O_TRUNC != 0 && !is_new;
        if let Some(known) = known.as_ref().filter(|_| is_new || is_cut) {
            match volumes.enter(known, is_new) {
                Ok(true) => {}
                Ok(false) => return fails(EIO),
                Err(error) => return fails(error),
            }
        }
        let fd = if is_cut && known.is_some() {
            // It is cut below, where what it had is noted.
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags & !O_TRUNC, mode) as c_int }
        } else {
            open()
        };
        let Some(stat) = (fd >= 0).then(|| stat(fd)).flatten() else { return fd };
        // Inodes are used again.
        let Some(mut known) = known else {
            volumes.known.remove(&stat.st_ino);
            return fd;
        };
        if is_cut {
            volumes.note_length(&known, fd, &stat, 0);
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_ftruncate, fd, 0) };
        }
        if is_new {
            volumes.nodes[known.node].names.push(NameChange::Made(at.to_owned()));
        }
        known.directory = (stat.st_mode & libc::S_IFMT == libc::S_IFDIR).then(|| at.to_owned());
        volumes.known.insert(stat.st_ino, known);
        fd
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: as above.
    let go = || unsafe {
        libc::syscall(libc::SYS_renameat2, libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) as c_int
    };
    if !is_watched() {
        return go();
    }
    // SAFETY: as above.
    let (old, new) = unsafe { (path_of(from), path_of(to)) };
    let (Some(known), true) = (known(old), known(new).is_some()) else { return go() };
    VOLUMES.with_borrow_mut(|volumes| match volumes.enter(&known, false) {
        Ok(true) => {
            let kept = volumes.keep(new);
            let done = go();
            if done == 0 {
                let change = NameChange::Renamed(old.to_owned(), new.to_owned(), kept);
                volumes.nodes[known.node].names.push(change);
            }
            done
        }
        Ok(false) => 0,
        Err(error) => fails(error),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: as above.
    let go = || unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path, 0) as c_int };
    if !is_watched() {
        return go();
    }
    // SAFETY: as above.
    let at = unsafe { path_of(path) };
    let Some(known) = known(at) else { return go() };
    VOLUMES.with_borrow_mut(|volumes| match volumes.enter(&known, false) {
        Ok(true) => {
            let kept = volumes.keep(at);
            let done = go();
            if let (0, Some(kept)) = (done, kept) {
                volumes.nodes[known.node].names.push(NameChange::Removed(at.to_owned(), kept));
            }
            done
        }
        Ok(false) => 0,
        Err(error) => fails(error),
    })
}

/// Removes directories and what is below them, which `std::fs::remove_dir_all` does by descriptors. Such a removal is
/// durable at once here.
#[unsafe(no_mangle)]
unsafe extern "C" fn unlinkat(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
    if is_watched() && VOLUMES.with_borrow(|volumes| volumes.is_off) {
        return 0;
    }
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_unlinkat, directory, path, flags) as c_int }
}

/// Reads fail as the rest does, once something is wrong with a disk.
fn on_read(fd: c_int) -> Option<c_int> {
    if !is_watched() || VOLUMES.with_borrow(|volumes| volumes.nodes.iter().all(|node| node.trouble.is_none()))
    {
        return None;
    }
    match on_file(fd, false, |_, _, _| ()) {
        On::Go | On::Gone => None,
        On::Fails(error) => Some(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, to: *mut c_void, count: size_t) -> ssize_t {
    match on_read(fd) {
        Some(error) => fails(error) as ssize_t,
        // SAFETY: as above.
        None => unsafe { libc::syscall(libc::SYS_read, fd, to, count) as ssize_t },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pread64(fd: c_int, to: *mut c_void, count: size_t, at: off_t) -> ssize_t {
    match on_read(fd) {
        Some(error) => fails(error) as ssize_t,
        // SAFETY: as above.
        None => unsafe { libc::syscall(libc::SYS_pread64, fd, to, count, at) as ssize_t },
    }
}

/// Copies a directory with everything below it, without sled: on a disk of an earlier time it is missing, and rebuilt.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    let mut entries = std::fs::read_dir(from)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_name() == "sled" {
            continue;
        }
        if path.is_dir() { copy(&path, &target)? } else { std::fs::copy(path, target).map(drop)? }
    }
    Ok(())
}

/// The files below a directory, in the order of their names, without those of sled.
pub(crate) fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut entries: Vec<_> = std::fs::read_dir(directory).into_iter().flatten().flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if entry.file_name() == "sled" {
            continue;
        }
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, Write as _};

    use super::*;

    /// A file of 700 bytes `a`, to which 400 and 900 bytes `b` are appended, after a power loss that keeps so many of them,
    /// as runs of equal bytes.
    fn after_loss(kept: u64, is_zeros: bool, is_whole: bool) -> Vec<(u8, usize)> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[b'a'; 700]).unwrap();
        let mut unsynced = Unsynced { number: 0, file: reopened(file.as_raw_fd()), writes: Vec::new() };
        for bytes in [400, 900] {
            let at = file.stream_position().unwrap();
            unsynced.writes.push(Write { at, bytes, is_cut: false, old: Vec::new(), old_length: at });
            file.write_all(&vec![b'b'; usize::try_from(bytes).unwrap()]).unwrap();
        }
        unsynced.lose(kept, is_zeros, is_whole);
        let mut left = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut left).unwrap();
        left.chunk_by(|one, next| one == next).map(|run| (run[0], run.len())).collect()
    }

    #[test]
    fn a_power_loss_keeps_a_first_part_of_what_was_not_synced() {
        assert_eq!(after_loss(0, false, false), vec![(b'a', 700)]);
        assert_eq!(after_loss(1300, false, true), vec![(b'a', 700), (b'b', 1300)]);
        assert_eq!(after_loss(500, false, false), vec![(b'a', 700), (b'b', 500)]);
        // The second write ends in the sector in which it begins.
        assert_eq!(after_loss(500, false, true), vec![(b'a', 700), (b'b', 400)]);
        assert_eq!(after_loss(300, false, true), vec![(b'a', 700)]);
        assert_eq!(after_loss(1000, true, true), vec![(b'a', 700), (b'b', 836), (0, 464)]);
        assert_eq!(after_loss(0, true, true), vec![(b'a', 700), (0, 1300)]);
    }

    #[test]
    fn a_power_loss_gives_back_what_was_replaced_or_cut() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"xxxxxyyy").unwrap();
        file.set_len(5).unwrap();
        let write = Write { at: 0, bytes: 5, is_cut: false, old: b"old".to_vec(), old_length: 8 };
        let cut = Write { at: 5, bytes: 3, is_cut: true, old: b"yyy".to_vec(), old_length: 8 };
        let own = || reopened(file.as_raw_fd());
        Unsynced { number: 0, file: own(), writes: vec![write, cut] }.lose(2, false, false);
        let mut left = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut left).unwrap();
        assert_eq!(left, "xxdxxyyy");
    }
}
