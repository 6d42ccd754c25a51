//! Files that survive a power failure, and the frame around every block of a file.
//!
//! A file is written under another name, fsynced, renamed, and its directory is fsynced: a name exists with
//! all of its bytes or not at all. A frame is a length, the checksum of the length, the checksum of the
//! bytes, the bytes; the length has a checksum of its own because a damaged length would look like the end of
//! the file.
//!
//! **Invariant:** no byte of a frame is used before its checksum was verified.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use super::StoreError;

/// Bytes of a frame before its content.
pub(super) const FRAME_HEADER_BYTES: usize = 12;
/// Longest frame: far above a block with one record of the largest data, small enough to be allocated.
const FRAME_BYTES_MAX: usize = 1 << 30;
/// Bytes that are allocated for a frame before its content was read.
const FRAME_BYTES_PREALLOCATED: usize = 1 << 20;

/// Bytes between two fsyncs of a large file that is being written: some milliseconds of an ordinary disk.
const PIECE_BYTES: usize = 4 << 20;

/// A large file, made durable in pieces while it is written. One fsync of a hundred megabytes would occupy the disk for
/// tenths of a second, and those of the log would wait for it.
#[derive(Debug)]
pub(super) struct InPieces {
    file: File,
    /// Bytes since the last fsync.
    bytes: usize,
}

impl InPieces {
    pub(super) fn new(file: File) -> Self {
        Self { file, bytes: 0 }
    }

    /// Makes a piece durable when it is complete, and says whether it was.
    pub(super) fn end_piece(&mut self) -> io::Result<bool> {
        if self.bytes < PIECE_BYTES {
            return Ok(false);
        }
        self.file.sync_data()?;
        self.bytes = 0;
        Ok(true)
    }

    /// Makes the rest durable.
    pub(super) fn finish(self) -> io::Result<File> {
        self.file.sync_all()?;
        Ok(self.file)
    }
}

impl Write for InPieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.end_piece()?;
        let written = self.file.write(bytes)?;
        self.bytes += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// What was read as the next frame of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileFrame {
    /// The bytes that were written, and their checksum.
    Whole(Vec<u8>, u32),
    /// The file ends here, between two frames.
    End,
    /// The file ends inside the frame: the rest is not written yet, or was cut off.
    Cut(&'static str),
    /// Not what was written.
    Damaged(&'static str),
}

/// Adds what was tried to the error of a failed operation.
pub(super) fn io(context: impl Into<String>) -> impl FnOnce(io::Error) -> StoreError {
    let context = context.into();
    move |source| StoreError::Io { context, source }
}

/// Makes a directory that still exists after a power failure.
pub(super) fn make_directory(path: &Path) -> Result<(), StoreError> {
    if path.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(path).map_err(io(format!("can't make directory {}", path.display())))?;
    path.parent().map_or(Ok(()), sync_directory)
}

/// Makes the names in a directory durable.
pub(super) fn sync_directory(path: &Path) -> Result<(), StoreError> {
    // The parent of a relative path of one segment is the empty path.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(io(format!("can't fsync directory {}", path.display())))
}

/// Makes a file's bytes durable.
pub(super) fn sync_file(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(io(format!("can't fsync {}", path.display())))
}

/// Writes a small file, durably and with all of its bytes or not at all.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let unfinished = unfinished(path);
    File::create(&unfinished)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .map_err(io(format!("can't write {}", unfinished.display())))?;
    rename(&unfinished, path)
}

/// The name that a file has until it is complete.
pub(super) fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}

/// Renames a file that has been fsynced; the new name is durable afterwards.
pub(super) fn rename(from: &Path, to: &Path) -> Result<(), StoreError> {
    fs::rename(from, to).map_err(io(format!("can't rename {} to {}", from.display(), to.display())))?;
    let parent = |path: &Path| path.parent().map(Path::to_path_buf);
    if parent(from) != parent(to) {
        parent(from).map_or(Ok(()), |path| sync_directory(&path))?;
    }
    parent(to).map_or(Ok(()), |path| sync_directory(&path))
}

/// Removes a file, or a directory with its content; a missing one is no error.
pub(super) fn remove(path: &Path) -> Result<(), StoreError> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io(format!("can't remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}

/// The names in a directory, ascending. The store writes no names that are not UTF-8.
pub(super) fn names(directory: &Path) -> Result<Vec<String>, StoreError> {
    let failed = || format!("can't list {}", directory.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(io(failed()))? {
        names.extend(entry.map_err(io(failed()))?.file_name().into_string().ok());
    }
    names.sort_unstable();
    Ok(names)
}

/// Writes a frame; returns the checksum of its bytes.
pub(super) fn write_frame(to: &mut impl Write, bytes: &[u8]) -> io::Result<u32> {
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the frame is too long"));
    }
    let length = u32::try_from(bytes.len()).expect("bounded above").to_le_bytes();
    let check = crc32c::crc32c(bytes);
    to.write_all(&length)?;
    to.write_all(&crc32c::crc32c(&length).to_le_bytes())?;
    to.write_all(&check.to_le_bytes())?;
    to.write_all(bytes)?;
    Ok(check)
}

/// Reads the next frame. An error is the disk's; damage is [`FileFrame::Damaged`] or [`FileFrame::Cut`].
pub(super) fn read_frame(from: &mut impl Read) -> io::Result<FileFrame> {
    let mut header = Vec::with_capacity(FRAME_HEADER_BYTES);
    from.by_ref().take(FRAME_HEADER_BYTES as u64).read_to_end(&mut header)?;
    if header.is_empty() {
        return Ok(FileFrame::End);
    }
    let Some((length, length_check, check)) = split_header(&header) else {
        return Ok(FileFrame::Cut("it ends inside the header of a block"));
    };
    if crc32c::crc32c(&length) != length_check {
        return Ok(FileFrame::Damaged("the length of a block is not what was written"));
    }
    let length = u32::from_le_bytes(length) as usize;
    let mut bytes = Vec::with_capacity(length.min(FRAME_BYTES_PREALLOCATED));
    from.by_ref().take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() < length {
        return Ok(FileFrame::Cut("it ends inside a block"));
    }
    if crc32c::crc32c(&bytes) != check {
        return Ok(FileFrame::Damaged("a block is not what was written"));
    }
    Ok(FileFrame::Whole(bytes, check))
}

fn split_header(header: &[u8]) -> Option<([u8; 4], u32, u32)> {
    let (length, rest) = header.split_first_chunk::<4>()?;
    let (length_check, rest) = rest.split_first_chunk::<4>()?;
    let (check, _) = rest.split_first_chunk::<4>()?;
    Some((*length, u32::from_le_bytes(*length_check), u32::from_le_bytes(*check)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_cut_of_a_frame_is_found() {
        let mut file = Vec::new();
        write_frame(&mut file, b"some bytes").unwrap();
        assert!(
            matches!(read_frame(&mut &file[..]).unwrap(), FileFrame::Whole(bytes, _) if bytes == b"some bytes")
        );
        assert_eq!(read_frame(&mut &file[..0]).unwrap(), FileFrame::End);
        for cut in 1..file.len() {
            assert!(matches!(read_frame(&mut &file[..cut]).unwrap(), FileFrame::Cut(_)), "cut at {cut}");
        }
        for bit in 0..file.len() * 8 {
            let mut file = file.clone();
            file[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(read_frame(&mut &file[..]).unwrap(), FileFrame::Damaged(_)), "bit {bit}");
        }
    }

    #[test]
    fn at_most_one_piece_of_a_large_file_is_not_durable() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("large");
        let mut file = InPieces::new(File::create(&path).unwrap());
        let part: Vec<u8> = (0..=u8::MAX).cycle().take(PIECE_BYTES / 16).collect();
        let mut pieces = 0;
        for _ in 0..40 {
            pieces += u32::from(file.end_piece().unwrap());
            file.write_all(&part).unwrap();
            assert!(file.bytes <= PIECE_BYTES);
        }
        assert_eq!(pieces, 2);
        assert_eq!(file.finish().unwrap().metadata().unwrap().len(), 40 * part.len() as u64);
        assert_eq!(fs::read(&path).unwrap(), part.repeat(40));
    }

    #[test]
    fn a_written_file_is_complete_and_its_unfinished_name_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("CURRENT");
        write_file(&path, b"one").unwrap();
        write_file(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(names(directory.path()).unwrap(), ["CURRENT"]);
        remove(&path).unwrap();
        remove(&path).unwrap();
    }
}
