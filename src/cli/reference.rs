//! What is made from the declaration of the commands: completions and manual pages.

use std::{fs, io, path::Path};

use clap::Command;
use clap_complete::Shell;

use super::{connection::Failure, output};

/// Prints what a shell needs to complete the command line.
pub(super) fn completions(mut command: Command, shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "concord", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}

/// Prints the manual page of the program, or writes those of all its commands into a folder.
pub(super) fn man(mut command: Command, folder: Option<&Path>) -> Result<(), Failure> {
    command.build();
    let failed = |error: io::Error| Failure::Failed(format!("the manual pages can't be written: {error}"));
    let Some(folder) = folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).map_err(failed)?;
        return output::text(&String::from_utf8_lossy(&page));
    };
    fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(command, folder).map_err(failed)
}
