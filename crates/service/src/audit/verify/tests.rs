//! Every kind of tampering with a log is found at the right line.

use std::fs;

use super::*;
use crate::audit::line::AuditEvent;
use concord_model::time::Timestamp;

const LINES: u64 = 20;

/// A log of two files.
fn log(directory: &Path) -> Vec<Vec<u8>> {
    let (mut head, mut text) = (ChainHead::START, Vec::new());
    for number in 0..LINES {
        head.write_event(&mut text, 1, Timestamp(number), &AuditEvent::Lost(number));
    }
    let lines: Vec<Vec<u8>> = text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    fs::write(directory.join("head"), format!("{} {}\n", head.seq, hex(&head.hash))).unwrap();
    store(directory, &lines);
    lines
}

fn store(directory: &Path, lines: &[Vec<u8>]) {
    let half = lines.len().min(10);
    fs::write(directory.join(format!("audit-{:020}.jsonl", 1)), lines[..half].concat()).unwrap();
    fs::write(directory.join(format!("audit-{:020}.jsonl", 11)), lines[half..].concat()).unwrap();
}

fn check(directory: &Path) -> Vec<Defect> {
    verify(&[directory.to_owned()], None).unwrap().defects
}

/// The file and the line in it, by a position from 0 in the log.
fn place(position: usize) -> (u64, u64) {
    if position < 10 { (1, position as u64 + 1) } else { (11, position as u64 - 9) }
}

#[track_caller]
fn is_at(defects: &[Defect], position: usize, wrong: &[DefectKind]) {
    let (file, line) = place(position);
    let [defect] = defects else { panic!("one defect is expected: {defects:?}") };
    assert!(defect.file.ends_with(format!("audit-{file:020}.jsonl")), "{defect}");
    assert_eq!(defect.line, line, "{defect}");
    assert!(wrong.contains(&defect.wrong), "{defect}");
}

#[test]
fn a_whole_log_has_no_defect() {
    let directory = tempfile::tempdir().unwrap();
    log(directory.path());
    let report = verify(&[directory.path().to_owned()], None).unwrap();
    assert_eq!((report.files, report.lines, report.first), (2, LINES, Some(1)));
    assert_eq!(report.defects, []);
    let noted = report.head.unwrap();
    assert_eq!(verify(&[directory.path().to_owned()], Some(&noted)).unwrap().defects, []);
    assert!(verify(&[directory.path().to_owned()], Some("x")).is_err());
}

#[test]
fn every_flipped_bit_is_found_in_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let lines = log(directory.path());
    for position in [0, 9, 10, 19] {
        for byte in (0..lines[position].len() - 1).step_by(if position == 0 { 1 } else { 3 }) {
            let mut changed = lines.clone();
            changed[position][byte] ^= 1 << (byte % 7);
            store(directory.path(), &changed);
            let defects = check(directory.path());
            let (file, line) = place(position);
            // A line feed in the middle makes two lines of one.
            let is_there = |defect: &Defect| {
                defect.file.ends_with(format!("audit-{file:020}.jsonl"))
                    && (line..=line + 1).contains(&defect.line)
            };
            assert!(defects.first().is_some_and(is_there), "line {position}, byte {byte}: {defects:?}");
            if changed[position][byte] != b'\n' {
                is_at(&defects, position, &[DefectKind::Changed]);
            }
        }
    }
}

#[test]
fn a_removed_line_is_missing_before_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let lines = log(directory.path());
    for position in 1..lines.len() - 1 {
        let mut fewer = lines.clone();
        fewer.remove(position);
        store(directory.path(), &fewer);
        let seq = position as u64 + 1;
        is_at(&check(directory.path()), position, &[DefectKind::Missing(seq, seq)]);
    }
    store(directory.path(), &lines[1..]);
    is_at(&check(directory.path()), 0, &[DefectKind::Missing(1, 1)]);
    store(directory.path(), &lines[..lines.len() - 1]);
    is_at(&check(directory.path()), lines.len() - 2, &[DefectKind::TailMissing(LINES)]);
}

#[test]
fn an_inserted_line_is_found_whatever_its_content() {
    let directory = tempfile::tempdir().unwrap();
    let lines = log(directory.path());
    for position in 1..lines.len() - 1 {
        // A line with the right number and previous hash, as a careful forger writes it.
        let before = hash_of(lines[position - 1].strip_suffix(b"\n").unwrap());
        let mut head = ChainHead { seq: position as u64, hash: before };
        let mut forged = Vec::new();
        head.write_event(&mut forged, 1, Timestamp(7), &AuditEvent::Started);
        let mut more = lines.clone();
        more.insert(position, forged);
        store(directory.path(), &more);
        is_at(&check(directory.path()), position, &[DefectKind::Inserted]);
        // A copy of another line.
        let mut more = lines.clone();
        more.insert(position, lines[(position + 5) % 20].clone());
        store(directory.path(), &more);
        let defects = check(directory.path());
        let (file, line) = place(position);
        assert!(defects[0].file.ends_with(format!("audit-{file:020}.jsonl")), "{defects:?}");
        assert_eq!(defects[0].line, line, "{defects:?}");
    }
}

#[test]
fn a_rewritten_log_differs_from_the_noted_head() {
    let directory = tempfile::tempdir().unwrap();
    log(directory.path());
    let noted = verify(&[directory.path().to_owned()], None).unwrap().head.unwrap();
    let (mut head, mut text) = (ChainHead::START, Vec::new());
    for number in 0..LINES {
        head.write_event(&mut text, 1, Timestamp(number), &AuditEvent::Lost(number + 1));
    }
    let lines: Vec<Vec<u8>> = text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    store(directory.path(), &lines);
    fs::write(directory.path().join("head"), format!("{} {}\n", head.seq, hex(&head.hash))).unwrap();
    assert_eq!(check(directory.path()), []);
    let report = verify(&[directory.path().to_owned()], Some(&noted)).unwrap();
    is_at(&report.defects, 19, &[DefectKind::NotAsNoted]);
}

#[test]
fn the_logs_of_several_nodes_are_checked_each_on_its_own() {
    let nodes = [1, 2].map(|node| {
        let directory = tempfile::tempdir().unwrap();
        let (mut head, mut text) = (ChainHead::START, Vec::new());
        for number in 0..4 {
            head.write_event(&mut text, node, Timestamp(number), &AuditEvent::Lost(number));
        }
        fs::write(directory.path().join("head"), format!("{} {}\n", head.seq, hex(&head.hash))).unwrap();
        fs::write(directory.path().join(format!("audit-{:020}.jsonl", 1)), &text).unwrap();
        let half = text.len() / 2;
        let begin = text[..half].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        for (name, part) in [("one", &text[..begin]), ("two", &text[begin..])] {
            fs::write(directory.path().join(name), part).unwrap();
        }
        directory
    });
    let [one, two] = nodes.each_ref().map(tempfile::TempDir::path);
    let directories = [one.to_owned(), two.to_owned()];
    assert_eq!(logs(&directories).unwrap(), directories.each_ref().map(|path| vec![path.clone()]));
    let files = [one.join("one"), one.join("two"), two.join("one"), two.join("two")];
    let found = logs(&files).unwrap();
    assert_eq!(found, [files[..2].to_vec(), files[2..].to_vec()]);
    for (log, node) in found.iter().chain(&logs(&directories).unwrap()).zip([1, 2, 1, 2]) {
        let report = verify(log, None).unwrap();
        assert_eq!((report.defects, report.lines, report.node), (vec![], 4, Some(node)));
    }
}

#[test]
fn a_part_of_a_log_is_checked_without_its_head() {
    let directory = tempfile::tempdir().unwrap();
    let lines = log(directory.path());
    let export = directory.path().join("export");
    fs::write(&export, lines[5..9].concat()).unwrap();
    let report = verify(std::slice::from_ref(&export), None).unwrap();
    assert_eq!((report.defects, report.lines, report.first), (vec![], 4, Some(6)));
    fs::write(&export, [lines[5].clone(), lines[7].clone()].concat()).unwrap();
    assert_eq!(verify(&[export], None).unwrap().defects[0].wrong, DefectKind::Missing(7, 7));
}
