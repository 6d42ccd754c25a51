//! Puts the files of the console (`src/console/`) into the program: each as it is in the source, and compressed.
//!
//! They are compressed here and not when they are asked for, as anyone may ask for them without a key.

use std::{
    env,
    fmt::Write as _,
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};

const CONSOLE: &str = "src/console";
/// The ends of the names of its files. Its unit tests stand beside them.
const KINDS: [&str; 5] = [".html", ".css", ".js", ".svg", ".txt"];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={CONSOLE}");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("no OUT_DIR"))?);
    let root = env::current_dir()?.join(CONSOLE);
    let mut files = Vec::new();
    collect(&root, "", &mut files)?;
    files.sort();
    let mut table = String::from("&[\n");
    for (place, name) in files.iter().enumerate() {
        let plain = root.join(name);
        let bytes = fs::read(&plain)?;
        let packed = out.join(format!("console-{place}.gz"));
        let mut encoder = GzEncoder::new(fs::File::create(&packed)?, Compression::best());
        encoder.write_all(&bytes)?;
        encoder.finish()?;
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let version = format!("W/\"{:016x}\"", hasher.finish());
        writeln!(
            table,
            "Asset {{ name: {name:?}, version: {version:?}, plain: include_bytes!({plain:?}), packed: include_bytes!({packed:?}) }},"
        )
        .map_err(io::Error::other)?;
    }
    table.push(']');
    fs::write(out.join("console.rs"), table)
}

/// The names of the files below a folder, with `/` between their parts.
fn collect(folder: &Path, prefix: &str, files: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name =
            entry.file_name().into_string().map_err(|_| io::Error::other("a name that is not UTF-8"))?;
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &format!("{prefix}{name}/"), files)?;
        } else if KINDS.iter().any(|kind| name.ends_with(kind)) {
            files.push(format!("{prefix}{name}"));
        }
    }
    Ok(())
}
