//! Every kind of tampering with a log is found at the right line.

use std::fs;

use super::*;
use crate::audit::line::AuditEvent;
use concord_model::time::Timestamp;

const LINES: u64 = 20;
const NODE: NodeId = 1;

/// A log of two files.
fn log(directory: &Path) -> Vec<Vec<u8>> {
    let (mut head, mut text) = (ChainHead::START, Vec::new());
    for number in 0..LINES {
        head.write_event(&mut text, NODE, Timestamp(number), &AuditEvent::Lost(number));
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
    verify(&[directory.to_owned()], None, &[]).unwrap().defects
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
    let report = verify(&[directory.path().to_owned()], None, &[]).unwrap();
    assert_eq!((report.files, report.lines, report.first), (2, LINES, Some(1)));
    assert_eq!(report.defects, []);
    let noted = report.head.unwrap();
    assert_eq!(verify(&[directory.path().to_owned()], Some(&noted), &[]).unwrap().defects, []);
    assert!(verify(&[directory.path().to_owned()], Some("x"), &[]).is_err());
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
    let noted = verify(&[directory.path().to_owned()], None, &[]).unwrap().head.unwrap();
    let (mut head, mut text) = (ChainHead::START, Vec::new());
    for number in 0..LINES {
        head.write_event(&mut text, 1, Timestamp(number), &AuditEvent::Lost(number + 1));
    }
    let lines: Vec<Vec<u8>> = text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    store(directory.path(), &lines);
    fs::write(directory.path().join("head"), format!("{} {}\n", head.seq, hex(&head.hash))).unwrap();
    assert_eq!(check(directory.path()), []);
    let report = verify(&[directory.path().to_owned()], Some(&noted), &[]).unwrap();
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
        let report = verify(log, None, &[]).unwrap();
        assert_eq!((report.defects, report.lines, report.node), (vec![], 4, Some(node)));
    }
}

#[test]
fn a_part_of_a_log_is_checked_without_its_head() {
    let directory = tempfile::tempdir().unwrap();
    let lines = log(directory.path());
    let export = directory.path().join("export");
    fs::write(&export, lines[5..9].concat()).unwrap();
    let report = verify(std::slice::from_ref(&export), None, &[]).unwrap();
    assert_eq!((report.defects, report.lines, report.first), (vec![], 4, Some(6)));
    fs::write(&export, [lines[5].clone(), lines[7].clone()].concat()).unwrap();
    assert_eq!(verify(&[export], None, &[]).unwrap().defects[0].wrong, DefectKind::Missing(7, 7));
}

/// An anchor of a line as it is in the file.
fn anchor(cluster: &str, at: &str, seq: u64, line: &[u8]) -> KnownAnchor {
    let hash = hash_of(line.strip_suffix(b"\n").unwrap());
    KnownAnchor { cluster: cluster.into(), node: NODE, at: at.into(), seq, hash, is_accepted: false }
}

#[test]
fn a_log_that_was_rewritten_with_matching_hashes_differs_from_its_anchors() {
    let directory = tempfile::tempdir().unwrap();
    let lines = log(directory.path());
    let of = |cluster: &str, at: &str, seq: usize| anchor(cluster, at, seq as u64, &lines[seq - 1]);
    let anchors = [of("a", "2026-01-01", 2), of("a", "2026-01-02", 12), of("a", "2026-01-03", 18)];
    let all = [directory.path().to_owned()];
    let report = verify(&all, None, &anchors).unwrap();
    assert_eq!(
        (report.defects, report.anchors),
        (vec![], AnchorCounts { matched: 3, ..AnchorCounts::default() })
    );
    // From line 5 on it is another log. It is whole in itself.
    let mut head = ChainHead { seq: 4, hash: hash_of(lines[3].strip_suffix(b"\n").unwrap()) };
    let mut rewritten = lines[..4].to_vec();
    for seq in 5..=15 {
        let mut line = Vec::new();
        head.write_event(&mut line, NODE, Timestamp(seq), &AuditEvent::Started);
        rewritten.push(line);
    }
    store(directory.path(), &rewritten);
    fs::write(directory.path().join("head"), format!("15 {}", hex(&head.hash))).unwrap();
    assert_eq!(check(directory.path()), []);
    let report = verify(&all, None, &anchors).unwrap();
    assert_eq!(report.anchors, AnchorCounts { matched: 1, differing: 2, ..AnchorCounts::default() });
    let wrong: Vec<_> = report.defects.iter().map(|defect| (defect.seq, defect.wrong.clone())).collect();
    let expected = [
        (Some(12), DefectKind::NotAsAnchored("2026-01-02".into())),
        (Some(15), DefectKind::AnchoredMissing(18, "2026-01-03".into())),
    ];
    assert_eq!(wrong, expected);
    // Exported files may end anywhere, and begin anywhere.
    let last_file = directory.path().join(format!("audit-{:020}.jsonl", 11));
    let report = verify(&[last_file], None, &anchors).unwrap();
    assert_eq!(report.anchors, AnchorCounts { differing: 1, outside: 2, ..AnchorCounts::default() });
    // What somebody has accepted is counted, and no defect.
    let accepted = anchors.clone().map(|anchor| KnownAnchor { is_accepted: true, ..anchor });
    let report = verify(&all, None, &accepted).unwrap();
    assert_eq!((report.defects, report.anchors.accepted), (vec![], 2));
    // The anchors of another node are none of this log.
    let others = anchors.map(|anchor| KnownAnchor { node: NODE + 1, ..anchor });
    let report = verify(&all, None, &others).unwrap();
    assert_eq!((report.defects, report.anchors), (vec![], AnchorCounts::default()));
}

#[test]
fn the_anchors_of_an_earlier_cluster_are_of_other_logs_unless_this_one_has_some() {
    let directory = tempfile::tempdir().unwrap();
    let lines = log(directory.path());
    let all = [directory.path().to_owned()];
    let own = anchor("new", "2026-02-01", 12, &lines[11]);
    let foreign = |seq| KnownAnchor { hash: [9; 32], seq, ..anchor("old", "2026-01-01", 3, &lines[2]) };
    // A restored cluster: its nodes have the ids of the old ones, and logs of their own.
    let report = verify(&all, None, &[own.clone(), foreign(3), foreign(400)]).unwrap();
    assert_eq!(
        (report.defects, report.anchors),
        (vec![], AnchorCounts { matched: 1, ..AnchorCounts::default() })
    );
    // A recovered one: the log has gone on, so the anchors from before hold.
    let kept = anchor("old", "2026-01-01", 2, &lines[1]);
    let report = verify(&all, None, &[own.clone(), kept.clone(), foreign(3)]).unwrap();
    assert_eq!((report.anchors.matched, report.anchors.differing, report.defects.len()), (2, 1, 1));
    // A log that has none of the newest cluster is none of its logs, whatever it has of the old one.
    let replaced = KnownAnchor { hash: [9; 32], ..own };
    let report = verify(&all, None, &[replaced, kept]).unwrap();
    assert_eq!((report.anchors.differing, report.defects.len()), (1, 1));
}

#[test]
fn anchors_are_parsed_as_they_are_shown() {
    let hash = "ab".repeat(32);
    let data = format!(
        r#"{{"logs":[{{"cluster_id":"c","node_id":3,"accepted":null,"anchors":[{{"at":"t","seq":7,"hash":"{hash}","accepted":true}}]}}]}}"#
    );
    let expected = KnownAnchor {
        cluster: "c".into(),
        node: 3,
        at: "t".into(),
        seq: 7,
        hash: [0xab; 32],
        is_accepted: true,
    };
    assert_eq!(KnownAnchor::parse_all(data.as_bytes()), Ok(vec![expected.clone()]));
    let enveloped = format!(r#"{{"status":"SUCCESS","message":"m","data":{data}}}"#);
    assert_eq!(KnownAnchor::parse_all(enveloped.as_bytes()), Ok(vec![expected]));
    for bad in ["", "[]", "{}", &data.replace("ab", "xy")] {
        assert!(KnownAnchor::parse_all(bad.as_bytes()).is_err(), "{bad}");
    }
}
