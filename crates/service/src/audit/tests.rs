//! The audit log as a whole: its lines, restarts, failures.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, Instant},
};

use super::{line::StoredLine, verify::verify, *};

const LONG: Duration = Duration::from_secs(60);

fn options(directory: &Path, mode: AuditPolicy) -> AuditOptions {
    AuditOptions { mode, directory: directory.to_owned(), ..AuditOptions::off() }
}

fn decision(key: &str) -> AuditDecision {
    let mut what = AuditTarget::default();
    what.add_definition("app");
    what.set_config(key);
    AuditDecision {
        at: Timestamp(1_700_000_000_000_000),
        log_time: Timestamp(1_700_000_000_000_001),
        request_id: "r\"1".into(),
        key: Some("root".into()),
        address: Some(IpAddr::from([10, 0, 0, 7])),
        verb: None,
        method: "PUT",
        route: Some("/api/v1/x"),
        what,
        dry_run: false,
        status: Some(200),
        outcome: "ok",
        before: 1,
        after: Some(2),
    }
}

/// The lines of all files, in their order.
fn lines(directory: &Path) -> Vec<String> {
    let files = files::list(directory).unwrap();
    let text: String = files.iter().map(|file| fs::read_to_string(&file.path).unwrap()).collect();
    text.lines().map(str::to_owned).collect()
}

fn events(directory: &Path) -> Vec<String> {
    lines(directory).iter().filter_map(|line| StoredLine::parse(line.as_bytes()).unwrap().event).collect()
}

/// Writes this many lines, and shuts the log down.
async fn write(options: AuditOptions, count: usize) {
    let audit = Audit::start(options, 3);
    for number in 0..count {
        assert!(audit.record_write(decision(&format!("k{number}")), LONG).await);
    }
    audit.flush().await;
}

fn is_whole(directory: &Path) {
    let report = verify(&[directory.to_owned()], None, &[]).unwrap();
    assert_eq!(report.defects, [], "{report:?}");
}

#[tokio::test]
async fn lines_form_a_chain_across_restarts_and_files() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("deep/audit");
    let small = AuditOptions { file_bytes: 4096, files_max: 100, ..options(&directory, AuditPolicy::Strict) };
    for _ in 0..3 {
        write(small.clone(), 50).await;
    }
    let all = lines(&directory);
    assert_eq!(all.len(), 3 * 51, "one for each start");
    assert!(files::list(&directory).unwrap().len() > 3);
    let first = StoredLine::parse(all[0].as_bytes()).unwrap();
    assert_eq!((first.seq, first.prev.as_str()), (1, "0".repeat(64).as_str()));
    assert!(all[1].starts_with(concat!(
        r#"{"seq":2,"time":"2023-11-14T22:13:20.000000Z","log_time":"2023-11-14T22:13:20.000001Z","#,
        r#""node":3,"request_id":"r\"1","#
    )));
    assert!(all[1].contains(r#""key":"root","address":"10.0.0.7","method":"PUT""#), "{}", all[1]);
    assert!(all[1].contains(r#""definition":"app","config":"k0","status":200,"outcome":"ok""#), "{}", all[1]);
    is_whole(&directory);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    for entry in fs::read_dir(&directory).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
}

#[tokio::test]
async fn the_number_of_files_is_bounded_and_a_line_reports_removed_lines() {
    let directory = tempfile::tempdir().unwrap();
    let small =
        AuditOptions { file_bytes: 4096, files_max: 3, ..options(directory.path(), AuditPolicy::Strict) };
    write(small, 200).await;
    assert!(files::list(directory.path()).unwrap().len() <= 3);
    assert!(events(directory.path()).contains(&"removed".to_owned()));
    is_whole(directory.path());
    // A file that was removed by hand has no such line.
    fs::remove_file(&files::list(directory.path()).unwrap()[0].path).unwrap();
    let report = verify(&[directory.path().to_owned()], None, &[]).unwrap();
    assert!(matches!(report.defects[0].wrong, verify::DefectKind::Missing(1, _)), "{report:?}");
}

#[tokio::test]
async fn a_torn_last_line_is_removed_and_noted() {
    let directory = tempfile::tempdir().unwrap();
    write(options(directory.path(), AuditPolicy::Alarm), 5).await;
    let file = files::list(directory.path()).unwrap().pop().unwrap();
    let mut open = OpenOptions::new().append(true).open(&file.path).unwrap();
    open.write_all(br#"{"seq":7,"time":"20"#).unwrap();
    drop(open);
    let report = verify(&[directory.path().to_owned()], None, &[]).unwrap();
    assert_eq!(
        report.defects.iter().map(|defect| &defect.wrong).collect::<Vec<_>>(),
        [&verify::DefectKind::Torn]
    );
    write(options(directory.path(), AuditPolicy::Alarm), 5).await;
    assert_eq!(events(directory.path()), ["started", "repaired", "started"]);
    assert_eq!(lines(directory.path()).len(), 6 + 1 + 6);
    is_whole(directory.path());
}

#[tokio::test]
async fn a_missing_tail_is_noted_at_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    write(options(directory.path(), AuditPolicy::Alarm), 5).await;
    let file = files::list(directory.path()).unwrap().pop().unwrap();
    let text = fs::read_to_string(&file.path).unwrap();
    let cut: String = text.split_inclusive('\n').take(4).collect();
    fs::write(&file.path, cut).unwrap();
    let report = verify(&[directory.path().to_owned()], None, &[]).unwrap();
    assert_eq!(report.defects[0].wrong, verify::DefectKind::TailMissing(6), "{report:?}");
    write(options(directory.path(), AuditPolicy::Alarm), 1).await;
    assert_eq!(events(directory.path()), ["started", "tail_missing", "started"]);
    let report = verify(&[directory.path().to_owned()], None, &[]).unwrap();
    let wrong: Vec<_> = report.defects.iter().map(|defect| defect.wrong.clone()).collect();
    assert_eq!(wrong, [verify::DefectKind::TailWasMissing(6)], "{report:?}");
}

#[tokio::test]
async fn a_failed_log_rejects_writes_only_in_strict_mode() {
    let root = tempfile::tempdir().unwrap();
    let taken = root.path().join("taken");
    fs::write(&taken, "no directory").unwrap();
    let strict = Audit::start(options(&taken, AuditPolicy::Strict), 3);
    assert!(matches!(strict.admit_write(), Err(Refusal::StorageFull(text)) if text.contains("taken")));
    assert!(!strict.record_write(decision("k"), LONG).await);
    // Elsewhere: a directory has one writer.
    let other = root.path().join("other");
    fs::write(&other, "no directory").unwrap();
    let alarm = Audit::start(options(&other, AuditPolicy::Alarm), 3);
    assert_eq!(alarm.admit_write(), Ok(()));
    assert!(alarm.record_write(decision("k"), LONG).await, "no request waits");
    let text = alarm.alarm(3).unwrap();
    assert_eq!((text.kind, text.node_id), ("audit", Some(3)));
    fs::remove_file(&taken).unwrap();
    let begin = Instant::now();
    while strict.admit_write().is_err() {
        assert!(begin.elapsed() < Duration::from_secs(30), "it tries again each second");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(strict.record_write(decision("k"), LONG).await);
    assert_eq!(strict.alarm(3), None);
    assert_eq!(events(&taken)[..2], ["started", "lost"], "the line that was lost is counted");
}

#[tokio::test]
async fn lines_lost_by_a_full_queue_are_counted_without_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    let audit = Audit::start(options(directory.path(), AuditPolicy::Alarm), 3);
    // As after a full queue.
    audit.shared.lost.fetch_add(7, Ordering::Relaxed);
    assert!(audit.alarm(3).is_some());
    let begin = Instant::now();
    while audit.alarm(3).is_some() {
        assert!(begin.elapsed() < Duration::from_secs(30), "a line reports it, and the alarm ends");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    audit.flush().await;
    assert_eq!(events(directory.path()), ["started", "lost"]);
    assert!(lines(directory.path())[1].contains(r#""count":7"#));
    is_whole(directory.path());
}

#[tokio::test]
async fn failed_credentials_are_one_line_and_a_count() {
    let directory = tempfile::tempdir().unwrap();
    let audit = Audit::start(options(directory.path(), AuditPolicy::Alarm), 3);
    for _ in 0..1000 {
        let failed =
            AuditDecision { status: Some(401), outcome: "unauthorized_error", key: None, ..decision("k") };
        audit.record_failed_credential(failed.address, failed);
    }
    audit.flush().await;
    drop(audit);
    let begin = Instant::now();
    while events(directory.path()).len() < 2 {
        assert!(begin.elapsed() < Duration::from_secs(30), "the rest is written at the end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let all = lines(directory.path());
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(
        all[2].contains(r#""event":"failed_credentials","address":"10.0.0.7","count":999"#),
        "{}",
        all[2]
    );
    is_whole(directory.path());
}

#[test]
fn reads_are_recorded_if_a_pattern_matches() {
    let reads = |patterns: &[&str]| {
        let reads = patterns.iter().map(|text| Pattern::parse(text).unwrap()).collect();
        let (queue, _inbox) = sync_channel(1);
        let shared = Arc::default();
        Audit {
            options: AuditOptions { reads, ..AuditOptions::off() },
            shared,
            queue: Some(queue),
            reads: Semaphore::new(1),
        }
    };
    let some = reads(&["billing.*", "limits"]);
    assert!(some.records_reads_of(Some("billing.eu")) && some.records_reads_of(Some("limits")));
    assert!(!some.records_reads_of(Some("billing")) && !some.records_reads_of(Some("limits2")));
    assert!(!some.records_reads_of(None));
    assert!(reads(&["*"]).records_reads_of(None) && reads(&["*"]).records_reads_of(Some("x")));
    assert!(!reads(&[]).records_reads_of(Some("x")) && !reads(&[]).has_reads());
}

#[tokio::test]
async fn pages_have_the_exact_lines_in_both_directions() {
    let directory = tempfile::tempdir().unwrap();
    let small =
        AuditOptions { file_bytes: 8192, files_max: 100, ..options(directory.path(), AuditPolicy::Strict) };
    write(small, 100).await;
    let all = lines(directory.path());
    let read = |query: AuditQuery| page::read(directory.path(), &query).unwrap();
    let base = AuditQuery { limit: 7, ..AuditQuery::default() };
    let (mut ascending, mut after) = (Vec::new(), Some(0));
    while let Some(from) = after {
        let page = read(AuditQuery { after: Some(from), ..base.clone() });
        assert_eq!(page.head.as_ref().map(|(seq, _)| *seq), Some(101));
        after = page.next;
        ascending.extend(page.lines);
    }
    assert_eq!(ascending, all);
    let (mut descending, mut before) = (Vec::new(), Some(u64::MAX));
    while let Some(from) = before {
        let page = read(AuditQuery { before: Some(from), ..base.clone() });
        before = page.next;
        descending.extend(page.lines);
    }
    descending.reverse();
    assert_eq!(descending, all);
    let newest = read(base.clone());
    assert_eq!(newest.lines[0], all[100]);
    for (seq, line) in (1..).zip(&all) {
        let one = read(AuditQuery { after: Some(seq - 1), limit: 1, ..base.clone() });
        assert_eq!(one.lines, std::slice::from_ref(line));
    }
    let count = |query: AuditQuery| read(AuditQuery { limit: 1000, ..query }).lines.len();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(count(AuditQuery { definition: some("app"), ..base.clone() }), 100);
    assert_eq!(count(AuditQuery { definition: some("ap"), ..base.clone() }), 0);
    assert_eq!(count(AuditQuery { key: some("root"), outcome: some("ok"), ..base.clone() }), 100);
    assert_eq!(count(AuditQuery { outcome: some("forbidden_error"), ..base.clone() }), 0);
    let at = Timestamp(1_700_000_000_000_000);
    assert_eq!(count(AuditQuery { until: Some(at), ..base.clone() }), 0);
    assert_eq!(count(AuditQuery { since: Some(at), until: Some(Timestamp(at.0 + 1)), ..base }), 100);
}

#[tokio::test]
async fn a_strict_write_does_not_wait_for_ever_for_a_disk_that_hangs() {
    let directory = tempfile::tempdir().unwrap();
    // Nobody takes the lines out of the queue, as while an fsync hangs.
    let (queue, _inbox) = sync_channel(QUEUE_MAX);
    let audit = Audit {
        options: options(directory.path(), AuditPolicy::Strict),
        shared: Arc::default(),
        queue: Some(queue),
        reads: Semaphore::new(READS_MAX),
    };
    assert!(!audit.record_write(decision("k"), Duration::from_millis(50)).await);
}

#[tokio::test]
async fn a_line_is_found_by_its_number_in_whichever_file_it_is() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("audit");
    assert_eq!(page::line_at(&[], 1).unwrap(), page::LineAt::After(0));
    let small = AuditOptions { file_bytes: 4096, files_max: 4, ..options(&directory, AuditPolicy::Strict) };
    write(small, 100).await;
    let (files, all) = (files::list(&directory).unwrap(), lines(&directory));
    let first = StoredLine::parse(all[0].as_bytes()).unwrap().seq;
    assert!(files.len() == 4 && first > 1, "{files:?}");
    for (seq, line) in (first..).zip(&all) {
        assert_eq!(page::line_at(&files, seq).unwrap(), page::LineAt::Found(line::hash_of(line.as_bytes())));
    }
    let last = first + all.len() as u64 - 1;
    assert_eq!(page::line_at(&files, first - 1).unwrap(), page::LineAt::Removed);
    assert_eq!(page::line_at(&files, last + 1).unwrap(), page::LineAt::After(last));
    // The lines are read on from where the last ones ended, and what was removed is counted.
    let (mut after, mut place, mut read, mut removed) = (0, None, Vec::new(), 0);
    loop {
        let found = page::lines_after(&directory, after, last - 1, place.as_ref()).unwrap();
        removed += found.removed;
        if found.lines.is_empty() {
            break;
        }
        read.extend(found.lines.into_iter().map(|line| String::from_utf8(line).unwrap()));
        (after, place) = (found.last, found.place);
    }
    assert_eq!((after, removed), (last - 1, first - 1), "only up to the given line");
    assert_eq!(read, all[..all.len() - 1]);
    let found = page::lines_after(&directory, last - 1, last, None).unwrap();
    assert_eq!((found.last, found.lines.len()), (last, 1));
}

#[tokio::test]
async fn the_line_to_anchor_is_the_last_one_of_a_flush() {
    let root = tempfile::tempdir().unwrap();
    let audit = Audit::start(options(&root.path().join("audit"), AuditPolicy::Alarm), 3);
    audit.flush().await;
    let begin = audit.shared.durable_head().expect("the first line").seq;
    audit.record(decision("k"));
    audit.flush().await;
    assert_eq!(audit.shared.durable_head().expect("a line").seq, begin + 1);
}
